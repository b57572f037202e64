"""What the compiler would reject is found by rule, line and version; valid kernels pass."""

from __future__ import annotations

import pytest

from nki_sim.lint import RULES, VERSIONS, check_source

GOOD = """
import nki
import nki.language as nl
import nki.isa as nisa


def load(src):
    tile = nl.ndarray((128, 512), dtype=src.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=src)
    return tile


@nki.jit
def kernel(a, b=None, scale=1.0, shape=(1, 2)):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    tiles = [load(a[i * 128 : (i + 1) * 128, :]) for i in range(2)]
    for i in nl.affine_range(2):
        if b == None:
            nisa.activation(dst=tiles[i], op=nl.exp, data=tiles[i], scale=scale)
        with nl.no_reorder():
            nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, :], src=tiles[i], dge_mode=nisa.dge_mode.hwdge)
    return out
"""


@pytest.mark.parametrize("version", VERSIONS)
def test_a_valid_kernel_has_no_findings(version: str) -> None:
    assert check_source(GOOD, version) == []


def kernel_with(statement: str, signature: str = "a", decorator: str = "@nki.jit", top: str = "") -> str:
    body = "\n    ".join(statement.split("\n"))
    return (
        f"import nki\nimport nki.language as nl\nimport nki.isa as nisa\n{top}\n"
        f"{decorator}\ndef kernel({signature}):\n    {body}\n"
    )


CASES = {
    # rule: (first version, source)
    "identity-comparison": ("0.3", kernel_with("if a is True:\n    pass")),
    "identity-comparison-with-none": ("0.3", kernel_with("if a is None:\n    pass")),
    "keyword-only-arguments": ("0.3", kernel_with("pass", "a, *, flag=True")),
    "list-arguments": ("0.3", kernel_with("pass", "a, stride=[1, 1]")),
    "variable-arguments": ("0.2", kernel_with("pass", "*tensors")),
    "nested-jit": ("0.6", kernel_with("inner(a)", top="@nki.jit\ndef inner(a):\n    return a\n")),
    "unsupported-statement": ("0.2", kernel_with("try:\n    x = 1\nfinally:\n    x = 2")),
    "tuple-loop-target": ("0.2", kernel_with("for i, t in enumerate(a):\n    pass")),
    "with-statement": ("0.2", kernel_with("with open('x') as f:\n    pass")),
    "tensor-assignment": ("0.2", kernel_with("a[0:128, 0:512] = a")),
    "class-without-nki-object": ("0.2", kernel_with("c = Config(1)", top="class Config:\n    pass\n")),
    "old-namespace": ("0.2", kernel_with("pass", top="import neuronxcc.nki.isa")),
    "platform-target": ("0.3", kernel_with("pass", decorator='@nki.jit(platform_target="trn2")')),
    "jit-mode": ("0.3", kernel_with("pass", decorator='@nki.jit(mode="trace")')),
    "removed-in-0.2": ("0.2", kernel_with("i = nl.arange(128)")),
    "removed-in-0.3": ("0.3", kernel_with("t = nl.ndarray((nl.par_dim(128), 512), dtype=nl.float32)")),
    "removed-in-0.4": ("0.4", kernel_with("nisa.tensor_copy_dynamic_src(dst=a, src=a, offset=a)")),
    "removed-keyword": ("0.3", kernel_with("nisa.tensor_copy(dst=a, src=a, dtype=nl.float32)")),
    "mask-keyword": ("0.2", kernel_with("nisa.tensor_copy(dst=a, src=a, mask=a)")),
    "unknown-name": ("0.3", kernel_with("nisa.rsqrt(dst=a, data=a)")),
    "call-signature": ("0.3", kernel_with("nisa.tensor_copy(src=a)")),
    "raw-enum": ("0.3", kernel_with("nisa.dma_copy(dst=a, src=a, dge_mode=2)")),
    "output-memory": ("0.3", kernel_with("o = nl.ndarray((1, 1), nl.float32, buffer=nl.hbm)\nreturn o")),
    "deprecated-sizes": ("0.4", kernel_with("n = nl.tile_size.psum_fmax")),
    "deprecated-device-loops": ("0.6", kernel_with("for i in nl.dynamic_range(3):\n    pass")),
    "not-on-hardware": ("0.4", kernel_with("nl.divide(a, a)")),
}


@pytest.mark.parametrize("rule, case", CASES.items(), ids=CASES.keys())
def test_a_broken_rule_is_found_from_its_version_on(rule: str, case: tuple[str, str]) -> None:
    since, source = case
    for version in VERSIONS:
        found = [finding for finding in check_source(source, version) if finding.rule == rule]
        assert bool(found) == (VERSIONS.index(version) >= VERSIONS.index(since)), version
        for finding in found:
            assert finding.hint and 1 <= finding.line <= source.count("\n") + 1


def test_convenience_functions_are_missing_in_0_2_only() -> None:
    source = kernel_with("t = nl.load(a)")
    assert [f.rule for f in check_source(source, "0.2")] == ["no-convenience-functions"]
    assert check_source(source, "0.3") == []


def test_every_rule_has_a_case() -> None:
    check_source("")
    assert set(RULES) == {*CASES, "no-convenience-functions"}


def test_a_misspelt_name_gets_the_right_one() -> None:
    (finding,) = check_source(kernel_with("nisa.nc_matmull(dst=a, stationary=a, moving=a)"))
    assert "nc_matmul" in finding.hint
    (finding,) = check_source(kernel_with("nisa.exp(dst=a, data=a)"))
    assert "op=nl.exp" in finding.hint


def test_code_that_no_kernel_reaches_is_free() -> None:
    source = (
        kernel_with("pass")
        + "\ndef main():\n    try:\n        import torch\n    except ImportError as e:\n        raise e\n"
    )
    assert check_source(source) == []


def test_a_file_that_is_not_python_is_one_finding() -> None:
    (finding,) = check_source("def kernel(:\n  pass")
    assert finding.rule == "python-syntax"
