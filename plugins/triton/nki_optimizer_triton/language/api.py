"""What of triton.language a model is told: the operations that kernels are made of, each in a line.

Names and arguments as Triton 3.4 to 3.9 have them (its documentation, "triton.language"); a test compares them with the
Triton that is installed.
"""

from __future__ import annotations

OPERATIONS: tuple[tuple[str, str, str], ...] = (
    ("program_id", "axis", "of this instance, 0 to num_programs(axis) - 1; axis 0, 1 or 2"),
    ("num_programs", "axis", "as the grid says"),
    ("arange", "start, end", "int32; end - start is a power of two"),
    ("load", "pointer, mask=None, other=None, cache_modifier='', eviction_policy=''",
     "a block through a block of pointers; what is masked off is `other`, and undefined without it"),
    ("store", "pointer, value, mask=None, cache_modifier='', eviction_policy=''", "converts to the pointer's type"),
    ("make_tensor_descriptor", "base, shape, strides, block_shape",
     "for .load([i, j]) and .store([i, j], value): tiles in memory; the last stride is 1, others 16-byte multiples"),
    ("make_block_ptr", "base, shape, strides, offsets, block_shape, order",
     "for load and store with boundary_check=(0, 1), padding_option='zero'; .advance((i, j))"),
    ("dot", "input, other, acc=None, input_precision=None, out_dtype=None",
     "[M, K] times [K, N], plus acc; at least 16 of each; input_precision 'ieee', 'tf32' or 'tf32x3' for float32"),
    ("zeros", "shape, dtype", "a block"),
    ("full", "shape, value, dtype", "a block"),
    ("where", "condition, x, y", "both are computed; load with a mask where one must not be"),
    ("cast", "input, dtype", "the same as x.to(dtype)"),
    ("sum", "input, axis=None, keep_dims=False", "of 16-bit values in float32 only where they were converted first"),
    ("max", "input, axis=None, return_indices=False, keep_dims=False", ""),
    ("min", "input, axis=None, return_indices=False, keep_dims=False", ""),
    ("argmax", "input, axis", "the first of equals"),
    ("argmin", "input, axis", "the first of equals"),
    ("reduce", "input, axis, combine_fn", "combine_fn: a jit function of two elements, associative"),
    ("associative_scan", "input, axis, combine_fn, reverse=False", "likewise"),
    ("cumsum", "input, axis=0, reverse=False", ""),
    ("cumprod", "input, axis=0, reverse=False", ""),
    ("sort", "x, dim=None, descending=False", "along the last axis"),
    ("topk", "x, k", "the k largest along the last axis, sorted; k a power of two"),
    ("gather", "src, index, axis", "within a block"),
    ("histogram", "input, num_bins", "of int32 values"),
    ("maximum", "x, y", ""),
    ("minimum", "x, y", ""),
    ("clamp", "x, min, max", ""),
    ("abs", "x", ""),
    ("exp", "x", "float32 and float64, as all functions here: x.to(tl.float32) first"),
    ("exp2", "x", "cheaper than exp: put log2(e) into a scale"),
    ("log", "x", ""),
    ("log2", "x", ""),
    ("sqrt", "x", "fast; sqrt_rn is rounded correctly"),
    ("rsqrt", "x", ""),
    ("sin", "x", ""),
    ("cos", "x", ""),
    ("erf", "x", ""),
    ("sigmoid", "x", ""),
    ("fma", "x, y, z", ""),
    ("fdiv", "x, y", "fast; div_rn is rounded correctly"),
    ("floor", "x", ""),
    ("ceil", "x", ""),
    ("trans", "input", "of two axes"),
    ("permute", "input, dims", ""),
    ("reshape", "input, shape", "keeps the order of elements"),
    ("expand_dims", "input, axis", "the same as x[:, None]"),
    ("broadcast_to", "input, shape", ""),
    ("join", "a, b", "a new last axis of two"),
    ("split", "a", "undoes join"),
    ("interleave", "a, b", "along the last axis"),
    ("atomic_add", "pointer, val, mask=None", "returns what was there; the order of additions is not fixed"),
    ("atomic_max", "pointer, val, mask=None", ""),
    ("atomic_min", "pointer, val, mask=None", ""),
    ("atomic_cas", "pointer, cmp, val", ""),
    ("atomic_xchg", "pointer, val, mask=None", ""),
    ("range", "start, end, step, num_stages=None", "a loop on the device, pipelined in so many stages"),
    ("static_range", "start, end, step", "a loop that is unrolled when compiled"),
    ("static_assert", "cond, msg=''", "when compiled"),
    ("multiple_of", "input, values", "a promise that lets accesses be wider; wrong results where it is untrue"),
    ("max_contiguous", "input, values", "likewise"),
    ("cdiv", "x, div", "rounded up"),
    ("swizzle2d", "i, j, size_i, size_j, size_g", "program ids in groups of size_g rows"),
)  # fmt: skip


def api_reference() -> str:
    """All of it: it is short, and which parts a kernel will need nobody knows before it is written."""
    return "\n".join(f"tl.{name}({given}){f': {note}' if note else ''}" for name, given, note in OPERATIONS)


def instruction_list() -> str:
    """Names alone, for whoever plans."""
    return "tl: " + ", ".join(name for name, _, _ in OPERATIONS)
