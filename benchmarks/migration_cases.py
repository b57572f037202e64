"""The public kernels of NKI 0.1 that are migrated, and the arguments they are run on.

Arguments are those of the kernels' own tests; where a kernel takes any shape, a smaller one of the same kind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from nki_sim.commands.problem import module_of

Call = tuple[list[Any], dict[str, Any]]


@dataclass(frozen=True)
class Case:
    repository: str
    file: str
    function: str
    call: Callable[[Path], Call]
    """Arguments for the kernel; the path is the repository's."""
    grid: tuple[int, ...] = ()


def _f32(*shape: int, low: float = 0.0) -> np.ndarray:
    return (np.random.default_rng(sum(shape)).random(shape) + low).astype(np.float32)


def _arrays(
    *shapes: tuple[int, ...], dtype: Any = np.float32, low: float = -0.5, **named: Any
) -> Callable[[Path], Call]:
    def call(_: Path) -> Call:
        rng = np.random.default_rng(7)
        return [(rng.random(shape) + low).astype(dtype) for shape in shapes], dict(named)

    return call


def _then(call: Callable[[Path], Call], *more: Any) -> Callable[[Path], Call]:
    def both(root: Path) -> Call:
        arrays, named = call(root)
        return [*arrays, *more], named

    return both


def _nkibench(name: str) -> Callable[[Path], Call]:
    def call(root: Path) -> Call:
        path = next(p for p in sorted((root / "NKIBench/reference").glob("*.py")) if p.name.startswith(name))
        module = module_of(path, "reference")
        np.random.seed(0)
        return list(module.transform_to_nki_inputs(module.get_inputs())), {}

    return call


_NKIBENCH = (
    "adamw_M10944_N2048",
    "add_rmsnorm_matmul_M4096_N2048_K1024",
    "bmm_B16_M4096_K64_N4096",
    "bmm_softmax_B16_K64_M4096_N4096",
    "gqa_full_B1_N4096_QH16_KH8_D128",
    "lora_M4096_N12288_K5120_R128",
    "mamba_M7168_C256_S16",
    "matmul_M4096_N12288_K5120",
    "matmul_add_rmsnorm_M4096_N2048_K2048",
    "rmsnorm_matmul_M4096_N2048_K1024",
    "rope_single_freq_apply_B1_H64_N4096_D128",
    "silu_M4096_N7168",
    "swiglu_M4096_N3072_K1024",
    "transpose_matmul_M4096_K2048_N10944",
)

_TUTORIALS = "src/nki_samples/tutorials"
_MAMBA = ((1, 256, 512), (1, 256, 512), (256, 16), (1, 16, 512), (1, 16, 512))
_BF16 = {"kernel_dtype": ml_dtypes.bfloat16, "acc_type": np.float32}


def _mask(rows: int, columns: int, tile: int) -> np.ndarray:
    return np.arange(columns)[None, :] <= (tile * rows + np.arange(rows))[:, None]


def _samples() -> list[Case]:
    repository = "aws-neuron/nki-samples"
    attention = f"{_TUTORIALS}/attention_fwd_performance/attention_kernels.py"
    found = [
        ("tensor_addition/tensor_addition_nki_kernels.py", "nki_tensor_add", ((256, 1024),) * 2),
        ("tensor_addition/spmd_tensor_addition_nki_kernels.py", "nki_tensor_add", ((256, 1024),) * 2),
        ("tensor_addition/spmd_multiple_nc_tensor_addition_nki_kernels.py", "nki_tensor_add_nc2", ((512, 2048),) * 2),
    ]
    cases = [
        Case(repository, f"{_TUTORIALS}/{file}", function, _arrays(*shapes, dtype=np.float16))
        for file, function, shapes in found
    ]
    cases += [
        Case(
            repository,
            f"{_TUTORIALS}/average_pool2d/average_pool2d_nki_kernels.py",
            "tensor_avgpool_kernel",
            _then(_arrays((2, 6, 6)), 2),
        ),
        Case(
            repository,
            f"{_TUTORIALS}/transpose2d/transpose2d_nki_kernels.py",
            "tensor_transpose2D_kernel_",
            _then(_arrays((5, 12)), (3, 4)),
        ),
    ]
    cases += [
        Case(repository, f"{_TUTORIALS}/fused_mamba/mamba_nki_kernels.py", f"mamba_v{n}", _arrays(*_MAMBA))
        for n in (1, 2, 3)
    ]
    for version, length in ((1, 128), (2, 128), *((n, 1024) for n in (3, 4, 5, 6, 7, 8, "8a", 9, 10, 11))):
        cases.append(Case(repository, attention, f"attn_fwd_v{version}", _arrays(*((128, length),) * 3)))
    cases += [
        Case(repository, "contributed/matmul.py", "matmul", _arrays((1024, 512), (1024, 2048), dtype=np.float16)),
        Case(repository, "contributed/maxpooling.py", "max_pooling_2d_stride_1", _then(_arrays((448, 448)), 3)),
        Case(
            repository,
            "contributed/interpolate_bilinear_fwd.py",
            "interpolate_bilinear_2x_fwd",
            _arrays((2, 64, 23, 23)),
        ),
        Case(
            repository,
            "contributed/interpolate_trilinear_fwd.py",
            "interpolate_trilinear_2x_fwd",
            _arrays((2, 64, 11, 11, 11)),
        ),
        Case(
            repository,
            "contributed/pipelined_attention.py",
            "flash_fwd",
            _arrays((1, 128, 16384), (1, 128, 16384), (1, 16384, 128), use_causal_mask=False),
            (1,),
        ),
    ]
    return cases


def _autocomp() -> list[Case]:
    repository = "ucb-bar/autocomp"
    tutorial: dict[str, Callable[[Path], Call]] = {
        "0_rmsnorm": _arrays((500, 1024), (1024,)),
        "1_layernorm": lambda _: ([_f32(300, 1024), 1e-5, _f32(1024), _f32(1024)], {}),
        "2_gemm": _arrays((512, 256), (512, 1024), dtype=ml_dtypes.bfloat16),
        "3_mamba": _arrays(*_MAMBA),
        "4_attention": _arrays(*((128, 1024),) * 3),
        "5_sdattention": _arrays(*((1024, 64),) * 3),
    }
    advanced: dict[str, Callable[[Path], Call]] = {
        "0_cumsum": _arrays((300, 5000)),
        "1_transpose": _then(_arrays((3, 200, 300)), 1),
        "2_maxpool": _then(_arrays((448, 448)), 3),
        "3_rope": _arrays((128, 1024), (64, 1024), (64, 1024)),
        "4_conv1d": _arrays((2, 256, 1, 256), (256, 1, 1, 3), padding=((0, 0), (1, 1))),
        "5_conv2d": _arrays(
            (2, 128, 16, 16),
            (256, 128, 3, 3),
            padding=((1, 1), (1, 1)),
            stride=(1, 1),
            rhs_dilation=(1, 1),
            in_perm=[0, 1, 2, 3],
            kern_perm=[0, 1, 2, 3],
            out_perm=[0, 1, 2, 3],
        ),
        "6_csa_2048": _arrays((2048, 128), (128, 2048), (2048, 128), **_BF16, seq_len=2048, d_head=128),
        "7_csa_16384": _arrays(
            (128, 16384),
            (128, 16384),
            (128, 128, 128),
            (128, 130),
            **_BF16,
            tile_mask=_mask(128, 16384, 64),
            q_tile_idx=64,
            Q_TILE_SIZE=128,
            LARGE_KV_TILE_SIZE=16384,
            B_P_SIZE=128,
            B_F_SIZE=512,
            B_D_SIZE=128,
        ),
        "8_mha": _arrays(
            (2, 2048, 128), (2, 128, 2048), (2, 2048, 128), **_BF16, num_heads=2, seq_len=2048, d_head=128
        ),
    }
    return [
        Case(repository, f"sols/{folder}/{name}_ref.py", "solution", call)
        for folder, calls in (("trn-tutorial-nki1", tutorial), ("trn-advanced-nki1", advanced))
        for name, call in calls.items()
    ]


CASES = [
    *[Case("zhang677/AccelOpt", f"NKIBench/kernels/{name}_0.py", "kernel", _nkibench(name)) for name in _NKIBENCH],
    *_samples(),
    *_autocomp(),
]
