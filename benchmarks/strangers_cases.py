"""Kernels that nobody here wrote, each with a NumPy reference of ours: the rows of strangers.py.

None of them is kept here: they are read from checkouts. Work on the catalogue looks at the development half only; the
other one says at the end whether what was learnt holds for others. Once its figures are known it is development too,
and others take its place.
"""

from __future__ import annotations

import ast
import sys
import textwrap
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from benchmarks.migration import PREAMBLE

REFERENCES = Path(__file__).resolve().parent / "strangers"
REPOSITORIES = {
    "sdk": "aws-neuron/aws-neuron-sdk",
    "autocomp": "ucb-bar/autocomp",
    "library": "aws-neuron/nki-library",
    "samples": "aws-neuron/nki-samples",
    "neuronmm": "dinghongsong/NeuronMM",
    "fusion": "allenkchau/trainium-kernel-fusion",
    "jin": "im-a-jin/CS149-asst4",
    "akjadhav": "akjadhav/asst4-trainium",
    "rishic3": "rishic3/asst4-trainium2",
    "argy": "a-argy/asst4-trainium2",
    "corelab": "corelab-src/nki-llama",
    "yin": "RichardYin21/Trainium-Quantum-Simulator",
    "biquando": "biquando/trainium-quantum-sim",
    "inference": "aws-neuron/neuronx-distributed-inference",
    "viz": "Deep-Learning-Profiling-Tools/triton-viz",
    "nkipy": "aws-neuron/nkipy",
    "translation": "KevGomes1403/trainium-model-translation",
    "autotune": "awslabs/nki-autotune",
    "whn09": "whn09/nki-moe",
    "goomelo": "Goomelo/nki-moe",
    "hong": "charleshong3/nki-moe-7013",
    "iitaku": "iitaku/nki-llama",
    "ericcsr": "Ericcsr/asst4-trainium",
    "gonzalez": "xaviergonzalez/asst4-trainium2",
    "nriedman": "nriedman/asst4-trainium2",
}
IMPORTED = {*sys.stdlib_module_names, "nki", "neuronxcc", "numpy", "ml_dtypes"}
"""Packages that a kernel may import."""
IMPORTS = "import math\n\nimport nki\nimport nki.isa as nisa\nimport nki.language as nl\nimport numpy as np\n\n\n"
"""What autocomp's harnesses paste in front of a kernel that imports nothing."""


class Half(str, Enum):
    DEVELOPMENT = "development"
    UNTOUCHED = "untouched"


@dataclass(frozen=True)
class Stranger:
    name: str
    """As a run is called."""
    kind: str
    half: Half
    repository: str
    """A key of REPOSITORIES."""
    file: str
    """In the checkout."""
    function: str
    reference: str
    """A file of REFERENCES, without `.py`; kernels that take the same arguments share one."""
    digest: str
    """The beginning of the SHA-256 of the file that the row was written for."""
    migrate: bool = False
    """Of NKI Beta 1: rewritten for today's before it is run."""
    cut: bool = False
    """Its file imports what need not be installed: the kernel stands alone, with what it uses of the file."""

    @property
    def reference_file(self) -> Path:
        return REFERENCES / f"{self.reference}.py"


def completed(stranger: Stranger, text: str) -> str:
    """A kernel's text as a file of its own: those that their own harness completes begin with what it pastes there."""
    if stranger.cut:
        text = cut_out(text, stranger.function)
    if any(line.startswith(("import nki", "import neuronxcc", "from neuronxcc")) for line in text.splitlines()):
        return text
    return (PREAMBLE if stranger.migrate else IMPORTS) + text


def cut_out(text: str, function: str) -> str:
    """A function, wherever it is defined, with the names of its module that it needs, and the imports that they need.

    Imports of packages that need not be installed are left out. Raises KeyError where there is no such function.
    """
    module = ast.parse(text)
    bound = {name: node for node in module.body for name in _names(node)}
    functions = {node.name: node for node in ast.walk(module) if isinstance(node, ast.FunctionDef)}
    kept: dict[ast.stmt, None] = {}
    pending: list[ast.stmt] = [functions[function]]
    while pending:
        node = pending.pop()
        if node not in kept:
            kept[node] = None
            used = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
            pending += [bound[name] for name in sorted(used & bound.keys())]
    lines = text.splitlines()
    ordered = sorted(kept, key=lambda node: (not isinstance(node, (ast.Import, ast.ImportFrom)), _first(node)))
    found = [textwrap.dedent("\n".join(lines[_first(node) - 1 : node.end_lineno])) for node in ordered]
    return "\n\n".join(["from __future__ import annotations", *found]) + "\n"


def _names(node: ast.stmt) -> list[str]:
    """What a statement at the top of a module binds, but for imports of what need not be installed."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        if all(name.partition(".")[0] in IMPORTED for name in modules):
            return [alias.asname or alias.name.partition(".")[0] for alias in node.names]
    elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    elif isinstance(node, (ast.Assign, ast.AnnAssign)):
        return [each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)]
    return []


def _first(node: ast.stmt) -> int:
    """Its line, that of its first decorator where it has some."""
    return min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])


DEVELOPMENT, UNTOUCHED = Half.DEVELOPMENT, Half.UNTOUCHED
TUTORIAL, ADVANCED, INTERNAL = "sols/trn-tutorial-nki2/", "sols/trn-advanced-nki2/", "sols/trn-internal/"
NOT_RUN = {
    "cross_attn_kernel of aws-neuron/neuronx-distributed-inference": "returns a tensor of private HBM",
    "flash_fwd of aws-neuron/neuronx-distributed-inference": "asserts a launch grid of two dimensions",
    "flash_fwd_large_d of huggingface/optimum-neuron": "returns nothing: it writes into an argument",
    "deltanet_tkg_fwd of KevGomes1403/trainium-model-translation": "its package imports torch",
    "rmsnorm_kernel of whn09/neuronx-distributed-inference": "nl.rms_norm does not migrate",
    "fused_mlp_up_T of dinghongsong/NeuronMM": "nl.load_transpose2d with a mask does not migrate",
    "nki_expert_aggregation_kernel of whn09/nki-moe": "index grids and slices in one subscript do not migrate",
    "nki_fused_expert_mlp_kernel of whn09/nki-moe": "reshape of a view does not migrate",
    "flash_decode_kernel of iitaku/nki-llama": "a tile compared by Python's own > does not migrate",
    "dk_nki_softmax_lastdim of corelab-src/nki-llama": "a mask of four dimensions on a tile of two",
    "fused_conv2d_maxpool of Ericcsr/asst4-trainium": "migrated, it fails at a permutation of axes",
}
"""Kernels that were meant for the untouched half, and why they are not in it."""

EXAMPLES, LIBRARY = "nki/examples/", "src/nkilib_src/nkilib/"
QWEN, DELTANET = "contrib/models/Qwen3.5-2B/src/nki_kernels/", "models/qwen3_6_moe/nki_kernels/deltanet/"

STRANGERS = (
    Stranger(
        "rmsnorm", "norm", DEVELOPMENT, "autocomp", TUTORIAL + "0_rmsnorm_ref.py", "solution", "rmsnorm", "e13fdc11da21"
    ),
    Stranger(
        "layernorm",
        "norm",
        DEVELOPMENT,
        "autocomp",
        TUTORIAL + "1_layernorm_ref.py",
        "solution",
        "layernorm",
        "386ef0519ef0",
    ),
    Stranger(
        "layernorm-beta1",
        "norm",
        DEVELOPMENT,
        "autocomp",
        "sols/trn-tutorial-nki1/1_layernorm_ref.py",
        "solution",
        "layernorm",
        "6d790d49bd8f",
        migrate=True,
    ),
    Stranger(
        "rmsnorm-beta1",
        "norm",
        DEVELOPMENT,
        "autocomp",
        "sols/trn-tutorial-nki1/0_rmsnorm_ref.py",
        "solution",
        "rmsnorm",
        "0e61560920bf",
        migrate=True,
    ),
    Stranger(
        "softmax",
        "norm",
        DEVELOPMENT,
        "fusion",
        "kernels/baseline/softmax.py",
        "softmax_kernel",
        "softmax",
        "55b4d56290d2",
        migrate=True,
    ),
    Stranger(
        "attention",
        "attention",
        DEVELOPMENT,
        "autocomp",
        TUTORIAL + "4_attention_ref.py",
        "solution",
        "attention",
        "338f595f578b",
    ),
    Stranger(
        "attention-rows",
        "attention",
        DEVELOPMENT,
        "autocomp",
        TUTORIAL + "5_sdattention_ref.py",
        "solution",
        "attention_rows",
        "8c1f3f89c125",
    ),
    Stranger(
        "attention-causal",
        "attention",
        DEVELOPMENT,
        "autocomp",
        ADVANCED + "6_csa_2048_ref.py",
        "solution",
        "attention_causal",
        "dc9b22de1807",
    ),
    Stranger(
        "attention-causal-heads",
        "attention",
        DEVELOPMENT,
        "autocomp",
        ADVANCED + "8_mha_ref.py",
        "solution",
        "attention_causal_heads",
        "fd885d4b8966",
    ),
    Stranger(
        "attention-v3",
        "attention",
        DEVELOPMENT,
        "samples",
        "src/nki_samples/tutorials/attention_fwd_performance/attention_kernels.py",
        "attn_fwd_v3",
        "attention",
        "29a440100c7b",
        migrate=True,
    ),
    Stranger(
        "attention-fused",
        "attention",
        DEVELOPMENT,
        "fusion",
        "kernels/fused/attention.py",
        "fused_attention",
        "attention",
        "8aa369abcd97",
        migrate=True,
    ),
    Stranger(
        "gemm",
        "matmul",
        DEVELOPMENT,
        "autocomp",
        TUTORIAL + "2_gemm_ref.py",
        "solution",
        "matmul_rounded",
        "868e95b2a2c7",
    ),
    Stranger(
        "matmul-tiled",
        "matmul",
        DEVELOPMENT,
        "sdk",
        EXAMPLES + "matrix_multiplication/matrix_multiplication_nki_kernels.py",
        "nki_matmul_tiled_",
        "matmul_bf16",
        "033dec767d29",
    ),
    Stranger(
        "matmul-hoist-load",
        "matmul",
        DEVELOPMENT,
        "sdk",
        EXAMPLES + "matrix_multiplication/matrix_multiplication_nki_kernels.py",
        "nki_matmul_hoist_load_",
        "matmul_bf16",
        "033dec767d29",
    ),
    Stranger(
        "matmul-block-free",
        "matmul",
        DEVELOPMENT,
        "sdk",
        EXAMPLES + "matrix_multiplication/matrix_multiplication_nki_kernels.py",
        "nki_matmul_block_free_dimension_",
        "matmul_bf16",
        "033dec767d29",
    ),
    Stranger(
        "triangular-update",
        "matmul",
        DEVELOPMENT,
        "autocomp",
        INTERNAL + "4_trimul_ref.py",
        "solution",
        "triangular_update",
        "aef9c0fa95d5",
    ),
    Stranger(
        "triangular-channel",
        "matmul",
        DEVELOPMENT,
        "autocomp",
        INTERNAL + "10_openfold3_trimul_ref.py",
        "solution",
        "matmul_square",
        "bded8f1b0efe",
    ),
    Stranger(
        "low-rank",
        "matmul",
        DEVELOPMENT,
        "neuronmm",
        "models/nki_kernels.py",
        "XUV_matmul",
        "low_rank",
        "e8ecd115abdd",
        migrate=True,
        cut=True,
    ),
    Stranger(
        "matmul-gelu",
        "matmul",
        DEVELOPMENT,
        "fusion",
        "kernels/fused/mlp.py",
        "fused_mlp_taylor",
        "matmul_gelu",
        "a947c2322b2b",
        migrate=True,
    ),
    Stranger(
        "output-projection",
        "matmul",
        DEVELOPMENT,
        "library",
        LIBRARY + "core/output_projection/output_projection_cte/output_projection_cte.py",
        "output_projection_cte",
        "output_projection",
        "9a172e5bbc47",
    ),
    Stranger(
        "cumsum", "scan", DEVELOPMENT, "autocomp", ADVANCED + "0_cumsum_ref.py", "solution", "cumsum", "9fe80aeb3883"
    ),
    Stranger(
        "cumsum-library",
        "scan",
        DEVELOPMENT,
        "library",
        LIBRARY + "core/cumsum/cumsum.py",
        "cumsum",
        "cumsum",
        "935d43878b8b",
    ),
    Stranger(
        "mamba",
        "scan",
        DEVELOPMENT,
        "sdk",
        EXAMPLES + "fused_mamba/mamba_nki_kernels.py",
        "mamba_v1",
        "mamba",
        "0706c035c173",
    ),
    Stranger(
        "mamba-repeated",
        "scan",
        DEVELOPMENT,
        "autocomp",
        TUTORIAL + "3_mamba_ref.py",
        "solution",
        "mamba_repeated",
        "c22be17588f1",
    ),
    Stranger(
        "mamba2",
        "scan",
        DEVELOPMENT,
        "autocomp",
        INTERNAL + "6_mamba_scan_ref.py",
        "solution",
        "mamba2",
        "93f151ce1f09",
    ),
    Stranger(
        "delta-rule",
        "scan",
        DEVELOPMENT,
        "autocomp",
        INTERNAL + "8_deltanet_recurrent_ref.py",
        "solution",
        "delta_rule",
        "c36e3feb3cbd",
    ),
    Stranger(
        "conv1d",
        "convolution",
        DEVELOPMENT,
        "autocomp",
        ADVANCED + "4_conv1d_ref.py",
        "solution",
        "conv1d_same",
        "407d4a5c0407",
    ),
    Stranger(
        "conv1d-library",
        "convolution",
        DEVELOPMENT,
        "library",
        LIBRARY + "experimental/conv/conv1d.py",
        "conv1d",
        "conv1d",
        "40f0a674199d",
    ),
    Stranger(
        "conv1d-depthwise",
        "convolution",
        DEVELOPMENT,
        "library",
        LIBRARY + "experimental/conv/depthwise_conv1d.py",
        "depthwise_conv1d_implicit_gemm",
        "conv1d_depthwise",
        "b4d66e4cd3ad",
    ),
    Stranger(
        "conv2d-akjadhav",
        "convolution",
        DEVELOPMENT,
        "akjadhav",
        "part2/conv2d.py",
        "fused_conv2d_maxpool",
        "conv2d",
        "3cd5af4ee160",
        migrate=True,
    ),
    Stranger(
        "conv2d-jin",
        "convolution",
        DEVELOPMENT,
        "jin",
        "part2/conv2d.py",
        "fused_conv2d_maxpool",
        "conv2d",
        "5233cd510018",
        migrate=True,
    ),
    Stranger(
        "avgpool",
        "pooling",
        DEVELOPMENT,
        "sdk",
        EXAMPLES + "average_pool2d/average_pool2d_nki_kernels.py",
        "tensor_avgpool_kernel",
        "avgpool",
        "522980d4d6a1",
    ),
    Stranger(
        "maxpool",
        "pooling",
        DEVELOPMENT,
        "autocomp",
        ADVANCED + "2_maxpool_ref.py",
        "solution",
        "maxpool",
        "f7bbf8f44c71",
    ),
    Stranger(
        "transpose3d",
        "transpose",
        DEVELOPMENT,
        "autocomp",
        ADVANCED + "1_transpose_ref.py",
        "solution",
        "transpose3d",
        "9d808a4eda4e",
    ),
    Stranger(
        "transpose-rows",
        "transpose",
        DEVELOPMENT,
        "sdk",
        EXAMPLES + "transpose2d/transpose2d_nki_kernels.py",
        "tensor_transpose2D_kernel_",
        "transpose_rows",
        "7db370cbfa3d",
    ),
    Stranger(
        "transpose",
        "transpose",
        DEVELOPMENT,
        "rishic3",
        "part1/kernels.py",
        "matrix_transpose",
        "transpose",
        "332f3521ad48",
        migrate=True,
    ),
    Stranger(
        "split-columns",
        "transpose",
        DEVELOPMENT,
        "sdk",
        EXAMPLES + "index-case-1.py",
        "tensor_split_kernel_",
        "split_columns",
        "8b042033a4c9",
    ),
    Stranger(
        "add",
        "elementwise",
        DEVELOPMENT,
        "sdk",
        EXAMPLES + "tensor_addition/tensor_addition_nki_kernels.py",
        "nki_tensor_add",
        "add",
        "bf19e295d296",
    ),
    Stranger(
        "add-vectors",
        "elementwise",
        DEVELOPMENT,
        "argy",
        "part1/kernels.py",
        "vector_add_stream",
        "add_vectors",
        "ea7984c901b0",
        migrate=True,
    ),
    Stranger("rope", "rope", DEVELOPMENT, "autocomp", ADVANCED + "3_rope_ref.py", "solution", "rope", "ccde638d77fb"),
    Stranger(
        "rope-library",
        "rope",
        DEVELOPMENT,
        "library",
        LIBRARY + "core/embeddings/rope.py",
        "RoPE",
        "rope_heads",
        "0f9b64fdfcbf",
    ),
    Stranger(
        "fft", "transform", DEVELOPMENT, "autocomp", INTERNAL + "5_fft256_ref.py", "solution", "fft", "ce9776ec7c80"
    ),
    Stranger(
        "trotter",
        "transform",
        DEVELOPMENT,
        "autocomp",
        INTERNAL + "7_trotter_ref.py",
        "solution",
        "trotter",
        "d0fe736d777f",
    ),
    # The untouched half, of 28 November 2026.
    Stranger(
        "add-rmsnorm",
        "norm",
        UNTOUCHED,
        "whn09",
        "nki_kernels.py",
        "nki_fused_add_rmsnorm_kernel",
        "add_rmsnorm",
        "fb958af8a2e9",
        migrate=True,
        cut=True,
    ),
    Stranger(
        "rmsnorm-gated",
        "norm",
        UNTOUCHED,
        "translation",
        DELTANET + "components/norm_gate.py",
        "deltanet_gated_rmsnorm",
        "rmsnorm_gated",
        "e1f3f3b6c788",
    ),
    Stranger(
        "rmsnorm-nkipy",
        "norm",
        UNTOUCHED,
        "nkipy",
        "examples/models/gpt_oss/kernels/nki/rmsnorm.py",
        "nki_rmsnorm_kernel",
        "rmsnorm_epsilon",
        "70b35070f989",
    ),
    Stranger(
        "softmax-viz",
        "norm",
        UNTOUCHED,
        "viz",
        "examples/nki_beta2/softmax.py",
        "softmax_kernel",
        "softmax_into",
        "ff338e6f687a",
    ),
    Stranger(
        "softmax-router",
        "router",
        UNTOUCHED,
        "whn09",
        "nki_moe_kernels.py",
        "nki_router_softmax_kernel",
        "softmax_router",
        "13c90fa7bdd7",
        migrate=True,
        cut=True,
    ),
    Stranger(
        "attention-scores",
        "attention",
        UNTOUCHED,
        "corelab",
        "llama.py",
        "dk_nki_matmul_fully_optimized_BB_forscaled_divsqrt",
        "attention_scores",
        "10ed8e2deb5d",
        migrate=True,
        cut=True,
    ),
    Stranger(
        "attention-unfused",
        "attention",
        UNTOUCHED,
        "fusion",
        "kernels/baseline/attention.py",
        "baseline_attention",
        "attention",
        "140cb3d92cdb",
        migrate=True,
    ),
    Stranger(
        "attention-decode",
        "attention",
        UNTOUCHED,
        "autocomp",
        "sols/trn-e2e/5_llama_attention_nki.py",
        "solution",
        "attention_decode",
        "d39ccee82b6e",
        migrate=True,
    ),
    Stranger(
        "attention-viz",
        "attention",
        UNTOUCHED,
        "viz",
        "examples/nki_beta2/tiled_attention.py",
        "tiled_attention_kernel",
        "attention_tiles",
        "5842b95c26c8",
    ),
    Stranger(
        "latent-attention",
        "attention",
        UNTOUCHED,
        "inference",
        "contrib/models/GLM-5.2/src/mla_attention_nki_kernel.py",
        "mla_attention_tkg",
        "latent_attention",
        "ba3be8e0ca9a",
    ),
    Stranger(
        "matmul-bias",
        "matmul",
        UNTOUCHED,
        "fusion",
        "kernels/baseline/mlp_gemm.py",
        "gemm_kernel",
        "matmul_bias",
        "0c30f305966e",
        migrate=True,
    ),
    Stranger(
        "matmul-hand",
        "matmul",
        UNTOUCHED,
        "autotune",
        "kernel_library/matmul/lhs_rhs/kernel_handtuned_89.26mfu.py",
        "matmul_lhs_rhs_nkigym",
        "matmul_hard_wired",
        "e360453e9d15",
    ),
    Stranger(
        "projections",
        "matmul",
        UNTOUCHED,
        "iitaku",
        "llama.py",
        "nki_fused_qkv_separate_gemm",
        "projections",
        "29aff332f4ca",
        migrate=True,
        cut=True,
    ),
    Stranger(
        "low-rank-transposed",
        "matmul",
        UNTOUCHED,
        "neuronmm",
        "profiler/mm_nki_profiler.py",
        "fused_three_mm_xuv_transpose_block",
        "low_rank_transposed",
        "ad9acf896800",
        migrate=True,
        cut=True,
    ),
    Stranger(
        "gate-up",
        "mlp",
        UNTOUCHED,
        "corelab",
        "llama.py",
        "nki_matmul_fully_optimized_fused",
        "gate_up",
        "10ed8e2deb5d",
        migrate=True,
        cut=True,
    ),
    Stranger(
        "silu-down",
        "mlp",
        UNTOUCHED,
        "iitaku",
        "llama.py",
        "nki_fused_swiglu_down",
        "silu_down",
        "29aff332f4ca",
        migrate=True,
        cut=True,
    ),
    Stranger(
        "mlp-decode",
        "mlp",
        UNTOUCHED,
        "autocomp",
        "sols/trn-e2e/3_llama_mlp_decode_nki.py",
        "solution",
        "mlp_decode",
        "02d155d83724",
        migrate=True,
    ),
    Stranger("mlp-viz", "mlp", UNTOUCHED, "viz", "examples/nki_beta2/mlp.py", "mlp_kernel", "mlp_relu", "820a4a18774b"),
    Stranger(
        "expert-tail",
        "mlp",
        UNTOUCHED,
        "hong",
        "qwen_with_nki.py",
        "_nki_moe_tail_kernel",
        "expert_tail",
        "76b3084c90e7",
        cut=True,
    ),
    Stranger(
        "expert-total",
        "reduction",
        UNTOUCHED,
        "goomelo",
        "nki_moe_integrated.py",
        "nki_moe_aggregate",
        "expert_total",
        "c7289012e5ad",
        migrate=True,
        cut=True,
    ),
    Stranger(
        "silu-gate",
        "elementwise",
        UNTOUCHED,
        "corelab",
        "llama.py",
        "nki_hidden_layer_B",
        "silu_gate",
        "10ed8e2deb5d",
        migrate=True,
        cut=True,
    ),
    Stranger(
        "silu-halves",
        "elementwise",
        UNTOUCHED,
        "goomelo",
        "nki_moe_integrated.py",
        "nki_swiglu",
        "silu_halves",
        "c7289012e5ad",
        migrate=True,
        cut=True,
    ),
    Stranger(
        "gelu",
        "elementwise",
        UNTOUCHED,
        "fusion",
        "kernels/baseline/mlp_gemm.py",
        "gelu_kernel",
        "gelu",
        "0c30f305966e",
        migrate=True,
    ),
    Stranger(
        "qk-norm-rope",
        "rope",
        UNTOUCHED,
        "inference",
        QWEN + "qwen_qk_norm_rope.py",
        "qwen_qk_norm_partial_rope_kernel",
        "qk_norm_rope",
        "fdd17338457a",
    ),
    Stranger(
        "rope-viz", "rope", UNTOUCHED, "viz", "examples/nki_beta2/rope.py", "rope_kernel", "rope_pair", "57e0bbf7cc11"
    ),
    Stranger(
        "delta-step",
        "scan",
        UNTOUCHED,
        "inference",
        QWEN + "nki_deltanet.py",
        "_deltanet_recurrent_step_batched_kernel",
        "delta_step",
        "d76dfcdc4d74",
    ),
    Stranger(
        "state-prefix",
        "scan",
        UNTOUCHED,
        "inference",
        QWEN + "nki_deltanet_fused.py",
        "deltanet_autocp_prefix_apply_output",
        "state_prefix",
        "d9026c7b24e4",
    ),
    Stranger(
        "conv-state",
        "convolution",
        UNTOUCHED,
        "translation",
        DELTANET + "components/conv.py",
        "deltanet_conv_tkg_fwd_cand",
        "conv_state",
        "a634ea806d1e",
    ),
    Stranger(
        "conv2d-gonzalez",
        "convolution",
        UNTOUCHED,
        "gonzalez",
        "part2/conv2d.py",
        "fused_conv2d_maxpool",
        "conv2d",
        "ac97b4295511",
        migrate=True,
    ),
    Stranger(
        "conv2d-nriedman",
        "convolution",
        UNTOUCHED,
        "nriedman",
        "part2/conv2d.py",
        "fused_conv2d_maxpool",
        "conv2d",
        "7d9e40523c0c",
        migrate=True,
    ),
    Stranger(
        "maxpool-twice",
        "pooling",
        UNTOUCHED,
        "ericcsr",
        "part2/avgpool.py",
        "tensor_avgpool_kernel_",
        "maxpool_twice",
        "8fed0a31069e",
        migrate=True,
    ),
    Stranger(
        "gate-apply",
        "transform",
        UNTOUCHED,
        "yin",
        "nki_gate_apply.py",
        "nki_gate_apply",
        "gate_apply",
        "b0730c309070",
        migrate=True,
    ),
    Stranger(
        "unitary",
        "transform",
        UNTOUCHED,
        "biquando",
        "src/hybrid.py",
        "kernel",
        "unitary",
        "3c8a0cf97d8c",
        migrate=True,
        cut=True,
    ),
)
