"""Which arguments each `nki.isa` instruction writes; every other argument is only read."""

from __future__ import annotations

# Instructions whose result depends on their operands alone, and that write `dst` (and what is named here).
# Those that keep state between calls (random numbers, registers, barriers, transfers between cores) are
# left out on purpose: a statement that uses them is opaque to every transform.
WRITTEN_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "activation": ("dst", "reduce_res"),
    "activation_reduce": ("dst", "reduce_res"),
    "affine_select": ("dst",),
    "bn_aggr": ("dst",),
    "bn_stats": ("dst",),
    "dma_compute": ("dst",),
    "dma_copy": ("dst",),
    "dma_transpose": ("dst",),
    "iota": ("dst",),
    "local_gather": ("dst",),
    "max8": ("dst",),
    "memset": ("dst",),
    "nc_find_index8": ("dst",),
    "nc_match_replace8": ("dst", "dst_idx"),
    "nc_matmul": ("dst",),
    "nc_n_gather": ("dst",),
    "nc_stream_shuffle": ("dst",),
    "nc_transpose": ("dst",),
    "nonzero_with_count": ("dst",),
    "range_select": ("dst", "reduce_res"),
    "reciprocal": ("dst",),
    "scalar_tensor_tensor": ("dst",),
    "select_reduce": ("dst", "reduce_res"),
    "tensor_copy": ("dst",),
    "tensor_copy_predicated": ("dst",),
    "tensor_partition_reduce": ("dst",),
    "tensor_reduce": ("dst",),
    "tensor_scalar": ("dst",),
    "tensor_scalar_reduce": ("dst", "reduce_res"),
    "tensor_tensor": ("dst",),
    "tensor_tensor_scan": ("dst",),
}

PARAMETERS: dict[str, tuple[str, ...]] = {
    "activation": ("dst", "op", "data", "bias", "scale"),
    "activation_reduce": (
        "dst",
        "op",
        "data",
        "reduce_op",
        "reduce_res",
    ),
    "affine_select": (
        "dst",
        "pattern",
        "channel_multiplier",
        "on_true_tile",
        "on_false_value",
    ),
    "bn_aggr": (
        "dst",
        "data",
    ),
    "bn_stats": (
        "dst",
        "data",
    ),
    "dma_compute": (
        "dst",
        "srcs",
        "reduce_op",
    ),
    "dma_copy": (
        "dst",
        "src",
    ),
    "dma_transpose": (
        "dst",
        "src",
    ),
    "iota": (
        "dst",
        "pattern",
    ),
    "local_gather": (
        "dst",
        "src_buffer",
        "index",
    ),
    "max8": (
        "dst",
        "src",
    ),
    "memset": (
        "dst",
        "value",
    ),
    "nc_find_index8": (
        "dst",
        "data",
        "vals",
    ),
    "nc_match_replace8": (
        "dst",
        "data",
        "vals",
        "imm",
    ),
    "nc_matmul": (
        "dst",
        "stationary",
        "moving",
    ),
    "nc_n_gather": (
        "dst",
        "data",
        "indices",
    ),
    "nc_stream_shuffle": (
        "dst",
        "src",
        "shuffle_mask",
    ),
    "nc_transpose": (
        "dst",
        "data",
    ),
    "nonzero_with_count": (
        "dst",
        "src",
    ),
    "range_select": (
        "dst",
        "on_true_tile",
        "comp_op0",
        "comp_op1",
        "bound0",
        "bound1",
    ),
    "reciprocal": (
        "dst",
        "data",
    ),
    "scalar_tensor_tensor": (
        "dst",
        "data",
        "op0",
        "operand0",
        "op1",
        "operand1",
    ),
    "select_reduce": (
        "dst",
        "predicate",
        "on_true",
        "on_false",
    ),
    "tensor_copy": (
        "dst",
        "src",
    ),
    "tensor_copy_predicated": (
        "dst",
        "src",
        "predicate",
    ),
    "tensor_partition_reduce": (
        "dst",
        "op",
        "data",
    ),
    "tensor_reduce": (
        "dst",
        "op",
        "data",
        "axis",
    ),
    "tensor_scalar": ("dst", "data", "op0", "operand0", "reverse0", "op1", "operand1"),
    "tensor_scalar_reduce": (
        "dst",
        "data",
        "op0",
        "operand0",
        "reduce_op",
    ),
    "tensor_tensor": (
        "dst",
        "data1",
        "data2",
        "op",
    ),
    "tensor_tensor_scan": (
        "dst",
        "data0",
        "data1",
        "initial",
        "op0",
        "op1",
    ),
}
"""Names of what is passed by position, in the order of the signatures of nki.isa."""

STARTS_ANEW = "nki.isa.reduce_cmd.reset_reduce"
"""With this `reduce_cmd` an instruction sums its own elements alone; with another it may go on from an earlier sum."""

SUMS_ANEW = frozenset({"activation_reduce", "range_select", "tensor_scalar_reduce"})
"""These do so without a `reduce_cmd`; the others would write what the last sum left in the engine's registers."""

LOADS = frozenset({"dma_copy", "dma_transpose"})

VIEW_METHODS = frozenset(
    {
        "ap",
        "broadcast",
        "expand_dim",
        "flatten_dims",
        "permute",
        "rearrange",
        "reshape",
        "reshape_dim",
        "select",
        "slice",
        "squeeze_dim",
        "view",
    }
)
"""Methods of a tensor that give another view of the same buffer."""

STATIC_ATTRIBUTES = frozenset({"shape", "dtype", "ndim", "size", "buffer"})
"""Attributes of a tensor that do not depend on its contents."""

PURE_FUNCTIONS = frozenset(
    {
        "abs",
        "bool",
        "divmod",
        "float",
        "int",
        "len",
        "math.ceil",
        "math.floor",
        "math.log2",
        "math.prod",
        "math.sqrt",
        "max",
        "min",
        "nki.language.ds",
        "nki.language.par_dim",
        "pow",
        "range",
        "round",
        "sum",
        "tuple",
    }
)
"""Functions that may appear in an index, a shape or a definition."""

LOOP_RANGES = frozenset(
    {
        "range",
        "builtins.range",
        "nki.language.affine_range",
        "nki.language.sequential_range",
        "nki.language.static_range",
    }
)
