"""What a Triton kernel's text gives away, which functions are kernels, and what it computes with."""

from __future__ import annotations

import pytest

from accelopt_core.languages.nki.language import NKI
from accelopt_core.languages.registry import UnknownLanguage, language_named, language_of
from infra.tasks.seed_index import every_seed, load_seed, seeds_of
from nki_optimizer_triton.language.language import TRITON
from nki_optimizer_triton.language.static_checks import RULES

SEEDS = seeds_of("triton")
SOFTMAX = next(seed for seed in SEEDS if seed.name == "softmax").kernel_source


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: seed.name)
def test_nothing_is_found_in_a_shipped_kernel(seed) -> None:
    assert TRITON.forbidden(seed.kernel_source) == []
    assert TRITON.kernels(seed.kernel_source) == ["run"]
    assert {"load", "store"} <= set(TRITON.operators(seed.kernel_source))
    assert language_of(seed.kernel_source) is TRITON and seed.task().language == "triton"
    assert seed.task().around.entry_points == ("run",)


def test_there_are_eight_tasks_and_no_name_stands_for_two() -> None:
    names = [seed.name for seed in every_seed()]
    assert len(SEEDS) == 8 and len(set(names)) == len(names) == 22
    assert load_seed("gemm_bf16").language == "triton" and load_seed("silu").language == "nki"


FOUND = {
    "import subprocess\nsubprocess.run('x')": "unusual-import",
    "open('/etc/passwd')": "outside-access",
    "torch.ops.aten.softmax(1)": "host-only",
    "from torch.cuda import Event\nEvent()": "host-only",
    "import triton.testing\ntriton.testing.do_bench(run)": "host-only",
    "torch.compile(run)": "host-only",
    "tl.inline_asm_elementwise('mov.u64 $0, %globaltimer;', '=l', [], tl.int64, True, 1)": "unread-code",
    "tl.extern_elementwise('x', 'y', [], {}, True)": "unread-code",
    "tl.device_print('x')": "unread-code",
    "from triton.language.extra import cuda\ntl.extra.cuda.globaltimer()": "unread-code",
    "tl.load = run": "patched-module",
    "torch.os.environ": "behind-a-module",
    "getattr(torch, '_C')": "computed-attribute",
    "().__class__.__subclasses__()": "dunder-tricks",
    "import numpy as np\nnp.load('x')": "file-formats",
}


@pytest.mark.parametrize("line", FOUND, ids=str)
def test_what_no_kernel_needs_is_found_at_its_line(line: str) -> None:
    source = f"{SOFTMAX}\n\n{line}\n"
    found = TRITON.forbidden(source)
    assert FOUND[line] in {finding.rule for finding in found}, found
    assert min(finding.line for finding in found) > len(SOFTMAX.splitlines())


def test_every_rule_of_its_own_has_a_case() -> None:
    assert {"unusual-import", "host-only", "unread-code", "behind-a-module"} <= set(FOUND.values()) & set(RULES)


def test_libdevice_is_read_by_everybody() -> None:
    assert TRITON.forbidden(SOFTMAX.replace("tl.exp", "tl.extra.cuda.libdevice.exp")) == []


def test_a_kernel_by_its_launches_whatever_it_is_called() -> None:
    source = SOFTMAX.replace("def run(", "def forward(")
    assert TRITON.kernels(source) == ["forward"]
    assert TRITON.kernels("import triton\n\n\ndef run(x):\n    return x\n\n\ndef other():\n    pass\n") == ["run"]


@pytest.mark.parametrize(("source", "language"), [
    ("import nki\n", NKI), ("from neuronxcc import nki\n", NKI), ("from triton import language as tl\n", TRITON),
    ("import triton.language as tl\n", TRITON), ("import numpy\n", None), ("def f(:\n", None),
    ("from .triton import x\n", None),
])  # fmt: skip
def test_a_file_tells_its_language_by_what_it_imports(source: str, language: object) -> None:
    assert language_of(source) is language


def test_a_language_that_is_not_there_is_named() -> None:
    with pytest.raises(UnknownLanguage, match="'cuda', only nki, triton: "):
        language_named("cuda")
