"""Kernels that nobody here wrote, each with a NumPy reference of ours: the rows of strangers.py.

None of them is kept here: they are read from checkouts. The halves are alike in kinds, authors and eras. Work on the
catalogue looks at the development half only; the other one says at the end whether what was learnt holds for others.
"""

from __future__ import annotations

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
}
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
    without: str = ""
    """A line that the kernel does not need, and that imports what need not be installed."""

    @property
    def reference_file(self) -> Path:
        return REFERENCES / f"{self.reference}.py"


def completed(stranger: Stranger, text: str) -> str:
    """A kernel's text as a file of its own: those that their own harness completes begin with what it pastes there."""
    if stranger.without:
        text = text.replace(stranger.without + "\n", "", 1)
    if any(line.startswith(("import nki", "import neuronxcc", "from neuronxcc")) for line in text.splitlines()):
        return text
    return (PREAMBLE if stranger.migrate else IMPORTS) + text


DEVELOPMENT, UNTOUCHED = Half.DEVELOPMENT, Half.UNTOUCHED
TUTORIAL, ADVANCED, INTERNAL = "sols/trn-tutorial-nki2/", "sols/trn-advanced-nki2/", "sols/trn-internal/"
EXAMPLES, LIBRARY = "nki/examples/", "src/nkilib_src/nkilib/"

STRANGERS = (
    Stranger(
        "rmsnorm", "norm", DEVELOPMENT, "autocomp", TUTORIAL + "0_rmsnorm_ref.py", "solution", "rmsnorm", "e13fdc11da21"
    ),
    Stranger(
        "layernorm",
        "norm",
        UNTOUCHED,
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
        UNTOUCHED,
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
        UNTOUCHED,
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
        UNTOUCHED,
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
        UNTOUCHED,
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
        UNTOUCHED,
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
        UNTOUCHED,
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
        UNTOUCHED,
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
        without="from scipy.special import softmax",
    ),
    Stranger(
        "matmul-gelu",
        "matmul",
        UNTOUCHED,
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
        UNTOUCHED,
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
        UNTOUCHED,
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
        UNTOUCHED,
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
        UNTOUCHED,
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
        UNTOUCHED,
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
        UNTOUCHED,
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
        UNTOUCHED,
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
        UNTOUCHED,
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
        UNTOUCHED,
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
        UNTOUCHED,
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
        UNTOUCHED,
        "autocomp",
        INTERNAL + "7_trotter_ref.py",
        "solution",
        "trotter",
        "d0fe736d777f",
    ),
)
