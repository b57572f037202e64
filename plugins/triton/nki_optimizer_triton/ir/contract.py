"""Which operations a kernel may consist of: a closed list, and why some others are refused by name.

What is not here has no business in a kernel, or is not known: either way it is refused before anything runs. The
names are those of the dialects that Triton's front end uses (tt, arith, math, scf, cf, ub, and barriers of ttg, gpu).
"""

from __future__ import annotations

from nki_optimizer_triton.ir.types import IrError, Module, Operation, operations_in

_ARITH = (
    "addi subi muli divsi divui remsi remui ceildivsi ceildivui floordivsi minsi minui maxsi maxui andi ori xori shli "
    "shrsi shrui addf subf mulf divf remf negf maximumf minimumf maxnumf minnumf cmpi cmpf select extf truncf extsi "
    "extui trunci sitofp uitofp fptosi fptoui bitcast index_cast index_castui constant mulsi_extended mului_extended "
    "addui_extended"
)
_MATH = (
    "absf absi ceil cos erf exp exp2 floor fma log log2 rsqrt sin sqrt tanh tan atan atan2 powf expm1 log1p cbrt round "
    "roundeven trunc copysign isnan isinf"
)
_TT = (
    "func return call get_program_id get_num_programs make_range splat unsplat expand_dims broadcast reshape trans "
    "join split cat gather histogram addptr load store atomic_rmw atomic_cas atomic_load "
    "atomic_store dot dot_scaled reduce reduce.return scan "
    "scan.return map_elementwise map_elementwise.return bitcast int_to_ptr ptr_to_int fp_to_fp clampf precise_sqrt "
    "precise_divf approx_divf mulhiui extern_elementwise make_tensor_ptr advance make_tensor_descriptor "
    "descriptor_load descriptor_store descriptor_gather descriptor_scatter descriptor_reduce"
)

KNOWN = frozenset(
    [f"arith.{name}" for name in _ARITH.split()]
    + [f"math.{name}" for name in _MATH.split()]
    + [f"tt.{name}" for name in _TT.split()]
    + ["scf.for", "scf.if", "scf.while", "scf.yield", "scf.condition", "cf.br", "cf.cond_br", "ub.poison"]
    + ["llvm.intr.assume", "gpu.barrier", "ttg.barrier", "ttg.local_barrier"]
)

REFUSED = {
    "tt.elementwise_inline_asm": "inline assembly (tl.inline_asm_elementwise): a kernel is judged by operations of tl",
    "tt.print": "printing (tl.device_print): a kernel writes to its outputs and to nothing else",
    "tt.atomic_poll": "waiting by a clock (tl.atomic_poll)",
    "tt.assert": "device assertions: nobody reads them; leave debug out",
    "cf.assert": "device assertions: nobody reads them; leave debug out",
}

_FUNCTIONS = (
    "acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh cospi erf erfc erfcinv erfcx erfinv exp exp10 "
    "exp2 expm1 fabs fast_cosf fast_exp10f fast_expf fast_fdividef fast_log10f fast_log2f fast_logf fast_powf "
    "fast_sinf fast_tanf fdim floor fma fmax fmin fmod hypot ilogb isinf isnan finitef isfinited ldexp lgamma llrint "
    "llround log log10 log1p log2 logb nearbyint nextafter norm3d norm4d normcdf normcdfinv pow powi rcbrt remainder "
    "rhypot rint round rsqrt scalbn signbit sin sinh sinpi sqrt tan tanh tgamma trunc y0 y1 yn j0 j1 jn abs max min "
    "umax umin llabs llmax llmin brev brevll clz clzll ffs ffsll popc popcll mulhi umulhi mul24 umul24 sad usad hadd "
    "rhadd uhadd urhadd byte_perm saturatef float_as_int int_as_float float_as_uint uint_as_float add_rn add_rz "
    "sub_rn sub_rz mul_rn mul_rz fadd_rn fadd_rz fsub_rn fsub_rz fmul_rn fmul_rz fdiv_rn fdiv_rz frcp_rn frcp_rz "
    "fsqrt_rn fsqrt_rz frsqrt_rn fma_rn fma_rz fmaf_rn fmaf_rz fast_dividef"
)
LIBDEVICE = frozenset(_FUNCTIONS.split())
"""Functions of NVIDIA's libdevice that a kernel may call, without `__nv_` and, mostly, the `f` of their float32 form.
Source: NVIDIA, Libdevice User's Guide, function reference."""


def libdevice_function(symbol: str) -> str | None:
    """`__nv_tanhf` -> `tanh`; None for what is none of LIBDEVICE."""
    if not symbol.startswith("__nv_"):
        return None
    name = symbol[len("__nv_") :]
    for known in (name, name.removesuffix("f"), name.removesuffix("d")):
        if known in LIBDEVICE:
            return known
    return None


def refusal(name: str) -> str | None:
    """Why an operation of this name is refused; None for one that is not."""
    if name in KNOWN:
        return None
    return REFUSED.get(name, f"the operation {name}, which is on no list of what a kernel may do")


def check_module(module: Module) -> None:
    """Raises IrError for what is refused; names were checked when the text was read."""
    names = [function.name for function in module.functions]
    if len(set(names)) != len(names) or sum(function.is_public for function in module.functions) != 1:
        raise IrError("a module holds one public kernel, and each function once")
    for function in module.functions:
        for operation in operations_in(function.body):
            _check(operation, frozenset(names))


def _check(operation: Operation, functions: frozenset[str]) -> None:
    if operation.name == "tt.extern_elementwise":
        symbol = str(operation.attributes.get("symbol", ""))
        outside = operation.attributes.get("libname") or operation.attributes.get("libpath")
        if libdevice_function(symbol) is None or outside not in (None, "", "libdevice"):
            raise IrError(f"the outside function {symbol[:60]!r}: only libdevice's may be called", operation.line)
    if operation.name == "tt.call" and _called(operation) not in functions:
        raise IrError(f"a call of {_called(operation)[:60]!r}, which the module does not have", operation.line)


def _called(operation: Operation) -> str:
    return next((word[1:] for word in operation.words if word.startswith("@")), "")
