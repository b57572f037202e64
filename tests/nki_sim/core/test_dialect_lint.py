"""What the compiler would reject is found by rule, line and version; valid kernels pass."""

from __future__ import annotations

import pytest

from nki_sim.lint import COMMON, RULES, VERSIONS, check_source, valid_in

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
    tiles = []
    for i in range(2):
        tiles.append(load(a[i * 128 : (i + 1) * 128, :]))
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


LATEST = VERSIONS[-1]
PARSED = "0.6"
"""The last version that reads a part of Python only."""

INNER = "@nki.jit\ndef inner(a):\n    return a\n"
PLAIN = "class Config:\n    pass\n"
REGISTER = "r = nisa.register_alloc()\n"
SCALAR = "n = nl.ndarray((1, 1), nl.int32)\ns = nisa.scalar_load(n)\n"
WIDE = "n = nl.ndarray((1, 1), nl.int64)\ns = nisa.scalar_load(n)\n"
INDEX = "n = nl.ndarray((1, 1), nl.int32)\n"
LOADED = "r = nisa.register_alloc()\nnisa.register_load(r, n)\n"
CONFIG = "from nki.compiler import CompileConfig\n"

Case = tuple[str, str, str, str]

CASES: dict[str, Case] = {
    # rule: (first version, last version, what breaks it, the same as it should be: a file, or a body of a kernel)
    "identity-comparison": ("0.3", PARSED, "if a is True:\n    pass", "if a == True:\n    pass"),
    "lambda-expression": ("0.2", PARSED, "f = lambda: 1", "def f():\n    return 1"),
    "dictionary-key": ("0.2", PARSED, "d = {1: a}", "d = {'one': a}"),
    "identity-comparison-with-none": ("0.3", PARSED, "if a is None:\n    pass", "if a == None:\n    pass"),
    "keyword-only-arguments": ("0.3", PARSED, kernel_with("pass", "a, *, flag=True"),
        kernel_with("pass", "a, flag=True")),
    "list-arguments": ("0.3", PARSED, kernel_with("pass", "a, stride=[1, 1]"), kernel_with("pass", "a, stride=(1, 1)")),
    "variable-arguments": ("0.2", PARSED, kernel_with("pass", "*tensors"), kernel_with("pass", "a, b")),
    "nested-jit": ("0.6", PARSED, kernel_with("inner(a)", top=INNER), kernel_with("inner(a)", top=INNER[9:])),
    "unsupported-statement": ("0.2", PARSED, "try:\n    x = 1\nfinally:\n    x = 2", "assert a.shape[0] == 128"),
    "tuple-loop-target": ("0.2", PARSED, "for i, t in enumerate(a):\n    pass", "for i in range(2):\n    pass"),
    "with-statement": ("0.2", PARSED, "with open('x') as f:\n    pass", "with nl.no_reorder():\n    pass"),
    "class-without-nki-object": ("0.2", PARSED, kernel_with("c = Config(1)", top=PLAIN),
        kernel_with("c = Config(1)", top="class Config(nl.NKIObject):\n    pass\n")),
    "tensor-assignment": ("0.2", LATEST, "a[0:128, 0:512] = a", "tiles = [a, a]\ntiles[0:1] = [a, a]"),
    "old-namespace": ("0.2", LATEST, kernel_with("pass", top="import neuronxcc.nki.isa"),
        kernel_with("pass", top="import neuronxcc.nki.typing as nt")),
    "platform-target": ("0.3", LATEST, kernel_with("pass", decorator='@nki.jit(platform_target="trn2")'), "pass"),
    "jit-mode": ("0.3", LATEST, kernel_with("pass", decorator='@nki.jit(mode="trace")'), "pass"),
    "removed-in-0.2": ("0.2", LATEST, "i = nl.arange(128)", "i = nl.ds(0, 128)"),
    "removed-in-0.3": ("0.3", LATEST, "t = nl.ndarray((nl.par_dim(128), 512), dtype=nl.float32)",
        "t = nl.ndarray((128, 512), dtype=nl.float32)"),
    "removed-in-0.4": ("0.4", LATEST, "nisa.tensor_copy_dynamic_src(dst=a, src=a, offset=a)",
        "nisa.tensor_copy(dst=a, src=a.ap([[1, 1]], scalar_offset=a))"),
    "removed-keyword": ("0.3", LATEST, "nisa.tensor_copy(dst=a, src=a, dtype=nl.float32)",
        "nisa.tensor_copy(dst=a, src=a)"),
    "mask-keyword": ("0.2", LATEST, "nisa.tensor_copy(dst=a, src=a, mask=a)", "nisa.tensor_copy(dst=a, src=a)"),
    "unknown-name": ("0.3", LATEST, "nisa.rsqrt(dst=a, data=a)", "nisa.activation(dst=a, op=nl.rsqrt, data=a)"),
    "call-signature": ("0.3", LATEST, "nisa.tensor_copy(src=a)", "nisa.tensor_copy(src=a, dst=a)"),
    "raw-enum": ("0.3", LATEST, "nisa.dma_copy(dst=a, src=a, dge_mode=2)",
        "nisa.dma_copy(dst=a, src=a, dge_mode=nisa.dge_mode.swdge)"),
    "output-memory": ("0.3", LATEST, "o = nl.ndarray((1, 1), nl.float32, buffer=nl.hbm)\nreturn o",
        "o = nl.ndarray((1, 1), nl.float32, buffer=nl.shared_hbm)\nreturn o"),
    "deprecated-sizes": ("0.4", LATEST, "n = nl.tile_size.psum_fmax", "n = nl.tile_size.psum_bank_fmax"),
    "repeated-jit": ("0.2", LATEST, kernel_with("pass", decorator="@nki.jit\n@nki.jit"), "pass"),
    "inner-function": ("0.2", "0.3", "def f():\n    return 1", kernel_with("inner(a)", top=INNER[9:])),
    "list-comprehension": ("0.2", "0.3", "t = [a for i in range(2)]", "t = []\nfor i in range(2):\n    t.append(a)"),
    "subscript-in-a-target": ("0.2", "0.3", "t = [1, 2]\nt[0], b = 3, 4", "c, b = 3, 4\nt = [c, b]"),
    "unproven-syntax": ("0.4", PARSED, "t = [1, 2]\nt[0], b = [i for i in range(2)]", "b, c = 3, 4"),
    "not-on-hardware": ("0.3", LATEST, "nl.divide(a, a)", "nl.multiply(a, a)"),
    "tensor-operator": ("0.2", LATEST, "t = nl.load(a)\nu = nl.exp(t) * 2.0", "t = nl.load(a)\nn = a.shape[0] * 2"),
    "power-of-a-number": ("0.3", PARSED, "n = 2.0\nt = nl.power(nl.load(a), n)", "t = nl.power(nl.load(a), a)"),
    "broadcast-operand": ("0.3", PARSED,
        "t = nl.ndarray((128, 512), nl.float32)\nu = nl.add(t, nl.max(t, axis=1, keepdims=True))",
        "t = nl.ndarray((128, 1), nl.float32)\nu = nl.add(t, nl.max(t, axis=1, keepdims=True))"),
    "possible-broadcast": ("0.3", PARSED,
        "t = nl.load(a)\nu = nl.subtract(x=nl.exp(t), y=nl.max(t, axis=1, keepdims=True))",
        "t = nl.load(a[:, 3:4])\nu = nl.subtract(x=nl.exp(t), y=nl.max(t, axis=1, keepdims=True))"),
    "store-from-psum": ("0.3", "0.3", "p = nl.ndarray((128, 4), nl.float32, buffer=nl.psum)\nnl.store(a, p)",
        "p = nl.ndarray((128, 4), nl.float32, buffer=nl.sbuf)\nnl.store(a, p)"),
    "copy-between-memories": ("0.3", PARSED, "p = nl.ndarray((128, 4), nl.float32, buffer=nl.psum)\nt = nl.copy(p)",
        "p = nl.ndarray((128, 4), nl.float32, buffer=nl.sbuf)\nt = nl.copy(p)"),
    "copy-of-integers": ("0.3", PARSED, INDEX + "m = nl.copy(n)", INDEX + "nisa.tensor_copy(dst=n, src=n)"),
    "vector-select-of-a-cast": ("0.5", PARSED, "b = a.reinterpret_cast(nl.int8).vector_select(0, a)",
        "b = a.vector_select(0, a)"),
    "ignored-by-range-select": ("0.2", "0.2", "nisa.range_select(dst=a, on_false_value=0.0)",
        "nisa.range_select(dst=a)"),
    "implied-by-local-gather": ("0.6", "0.6", "nisa.local_gather(a, a, a)",
        "nisa.local_gather(a, a, a, num_elem_per_idx=1, num_valid_indices=4)"),
    "seed-is-a-number": ("0.3", PARSED, "nl.random_seed(42)", "nl.random_seed(nl.full((1, 1), 42, nl.int32))"),
    "nested-dynamic-range": ("0.4", PARSED,
        "for i in nl.dynamic_range(3):\n    for j in nl.dynamic_range(3):\n        pass",
        "for i in range(3):\n    for j in nl.dynamic_range(3):\n        pass"),
    "index-of-dynamic-range": ("0.3", "0.3", "for i in nl.dynamic_range(3):\n    b = a[i * 4]",
        "for i in nl.dynamic_range(3):\n    b = a[0]"),
    "removed-device-loops": ("0.7", LATEST, "for i in nl.dynamic_range(3):\n    pass",
        "def body(i):\n    pass\nnl.fori_loop(0, 3, body)"),
    "deprecated-device-loops": ("0.6", PARSED, REGISTER + "while r:\n    nisa.register_load(r, a)",
        REGISTER + "def body(c):\n    return r\nnl.while_loop(r, body)"),
    "device-loop-result": ("0.7", LATEST, "for i in nl.dynamic_range(3):\n    t = nl.load(a)\nnl.store(a, t)",
        "t = nl.load(a)\ndef body(i):\n    nisa.tensor_copy(dst=t, src=a)\nnl.fori_loop(0, 3, body)"),
    "device-value-in-python": ("0.7", LATEST, REGISTER + "if r:\n    pass",
        REGISTER + "if r is None:\n    pass\nnisa.tensor_copy(dst=a, src=a.ap([[1, 1]], scalar_offset=r))"),
    "deprecated-ranges": ("0.7", LATEST, "for i in nl.sequential_range(2):\n    pass", "for i in range(2):\n    pass"),
    "experimental-while-loop": ("0.7", LATEST, REGISTER + "nki.experimental.while_loop(r, a)",
        REGISTER + "nl.while_loop(r, a)"),
    "counter-is-no-register": ("0.7", LATEST, "def body(i: nisa.VirtualRegister):\n    pass\nnl.fori_loop(0, 3, body)",
        REGISTER + "def body(i: nisa.VirtualRegister):\n    pass\nnl.fori_loop(0, r, body)"),
    "wide-loop-bound": ("0.7", LATEST, WIDE + "def body(i):\n    pass\nnl.fori_loop(0, s + 1, body)",
        SCALAR + "def body(i):\n    pass\nnl.fori_loop(0, s + 1, body)"),
    "scalar-comparison": ("0.7", LATEST, SCALAR + "c = s < 3", SCALAR + "c = s + 3"),
    "wide-scalar-comparison": ("0.7", LATEST, WIDE + "c = s < 3", SCALAR + "c = s < 3"),
    "unlisted-scalar-operator": ("0.7", LATEST, SCALAR + "c = s // 3", SCALAR + "c = -s * 3"),
    "mixed-scalars": ("0.7", LATEST,
        SCALAR + WIDE.replace("n ", "m ").replace("s ", "w ").replace("(n", "(m") + "c = s + w",
        SCALAR + "c = s + s"),
    "stored-constant": ("0.7", LATEST, "nisa.scalar_store(a, -5)", SCALAR + "nisa.scalar_store(n, s)"),
    "wide-offset-on-chip": ("0.7", LATEST, WIDE + "b = nl.ndarray((1, 8), nl.float32)\nc = b.select(1, s)",
        WIDE + "c = a.select(1, s)"),
    "wide-operand": ("0.7", LATEST, "n = nl.ndarray((1, 1), nl.int64)\nnisa.tensor_copy(dst=n, src=n)",
        "n = nl.ndarray((1, 1), nl.int64)\nnisa.memset(n, value=0)"),
    "grid-operand": ("0.7", LATEST, "g = nl.tiles(a, tile_shape=(128, 512))\nnisa.dma_copy(dst=a, src=g[0, 1])",
        "g = nl.tiles(a, tile_shape=(128, 512))\nnisa.dma_copy(dst=a, src=g[0, 1].data)"),
    "compared-instances": ("0.7", LATEST, kernel_with("c = Config()\nd = c == a", top=PLAIN),
        kernel_with("c = Config()\nd = c == a", top="@dataclass\n" + PLAIN)),
    "bracket-launch": ("0.7", LATEST, kernel_with("pass") + "kernel[2](1)\n", kernel_with("pass") + "kernel(1)\n"),
    "entry-signature": ("0.7", LATEST, kernel_with("pass", "a, *, flag=True"), kernel_with("pass", "a, flag=True")),
    "nested-jit-config": ("0.7", LATEST,
        kernel_with("inner(a)", top=CONFIG + INNER.replace("jit", "jit(compile_config=CompileConfig())")),
        kernel_with("inner(a)", top=INNER)),
    "not-before-0-7": ("0.2", PARSED, "g = nl.tiles(a)", "g = a[0:128, 0:512]"),
    "not-before-0-6": ("0.2", "0.5", "def body(i):\n    pass\nnl.fori_loop(0, 3, body)",
        "for i in range(3):\n    pass"),
    "register-as-offset": ("0.7", LATEST, INDEX + LOADED + "b = a.select(0, r)",
        INDEX + LOADED + "b = a.select(0, r)\nnl.while_loop(r, body)"),
    "offset-on-a-tile": ("0.7", LATEST, INDEX + "nisa.tensor_scalar(dst=n, data=n, op0=nl.add, operand0=4)\n" + LOADED,
        INDEX + "nisa.tensor_scalar(dst=a, data=n, op0=nl.add, operand0=4)\n" + LOADED),
    "tail-by-hand": ("0.7", LATEST, "for i in range(3):\n    rows = min(128, a.shape[0] - i * 128)",
        "for i in range(3):\n    rows = min(128, a.shape[0] - 128)"),
    "old-front-end": ("0.7", LATEST,
        kernel_with("pass") + "import os\nos.environ['NKI_COMPILER_FRONTEND'] = 'parser'\n",
        "pass"),
}  # fmt: skip


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("rule", CASES)
def test_a_broken_rule_is_found_in_its_versions_and_a_kept_one_in_none(rule: str, version: str) -> None:
    since, until, *sources = CASES[rule]
    broken, kept = (each if "def kernel" in each else kernel_with(each) for each in sources)
    found = [finding for finding in check_source(broken, version, hints=True) if finding.rule == rule]
    assert bool(found) == (VERSIONS.index(since) <= VERSIONS.index(version) <= VERSIONS.index(until))
    for finding in found:
        assert finding.hint and 1 <= finding.line <= broken.count("\n") + 1
    assert [finding for finding in check_source(kept, version, hints=True) if finding.rule == rule] == []


TRACED = {
    "generator": "def parts(n):\n    yield n\nfor n in parts(3):\n    pass",
    "comprehensions": "d = {(i, j): i for i, j in zip([1], [2])}",
    "closure": "scale = 2\ndef twice():\n    return scale\nf = lambda: twice()",
    "try, raise, with, import, walrus, is": (
        "import math\ntry:\n    raise ValueError\nexcept ValueError:\n    pass\nif (n := 3) is not None:\n    del n"
    ),
    "a nested kernel": "inner(a)",
    "any class": "c = Derived(a)",
}
CLASSES = "class Base:\n    pass\nclass Derived(Base):\n    pass\n"


@pytest.mark.parametrize("statement", TRACED.values(), ids=TRACED)
def test_from_0_7_a_kernel_may_be_any_python(statement: str) -> None:
    source = kernel_with(statement, top=INNER + CLASSES)
    assert check_source(source, "0.7") == []
    assert check_source(source, "0.6") != []


USES = {
    "in if": "if r:\n    pass",
    "in a comparison": "if r > 3 and a.shape:\n    pass",
    "in not": "x = 1 if not r else 2",
    "in int": "n = int(r)",
    "in range": "for i in range(r):\n    pass",
    "as an index": "t = [a, a][r]",
    "in a slice": "t = a[r : r + 128]",
    "in assert": "assert r",
    "in while": "while r != 0:\n    pass",
}


@pytest.mark.parametrize("statement", USES.values(), ids=USES)
@pytest.mark.parametrize("made", [REGISTER, SCALAR.replace("s =", "r =")], ids=["register", "scalar"])
def test_a_value_of_the_device_is_found_wherever_python_wants_it(statement: str, made: str) -> None:
    assert "device-value-in-python" in [f.rule for f in check_source(kernel_with(made + statement), "0.7")]


def test_the_index_of_a_device_loop_has_no_value_either() -> None:
    source = kernel_with(
        "def body(i):\n    if i == 0:\n        pass\nnl.fori_loop(0, 3, body)\nfor i in range(3):\n    a[i]"
    )
    assert [(f.rule, f.line) for f in check_source(source, "0.7") if f.severity == "error"] == [
        ("device-value-in-python", 8)
    ]


def test_convenience_functions_are_missing_in_0_2_only() -> None:
    source = kernel_with("t = nl.load(a)")
    assert [f.rule for f in check_source(source, "0.2")] == ["no-convenience-functions"]
    assert check_source(source, "0.3") == []


VALID = {
    "everywhere": (GOOD, COMMON),
    "with device loops of before": (kernel_with("for i in nl.dynamic_range(3):\n    pass"), COMMON[:-1]),
    "with scalars": (kernel_with("nisa.scalar_load(a)"), ("0.7",)),
    "with a generator": (kernel_with("yield a"), ("0.7",)),
    "nowhere": (kernel_with("nisa.nothing(a)"), COMMON),
}


@pytest.mark.parametrize("source, versions", VALID.values(), ids=VALID)
def test_where_a_kernel_is_valid(source: str, versions: tuple[str, ...]) -> None:
    assert valid_in(source) == versions


def test_every_rule_has_a_case() -> None:
    check_source("")
    assert set(RULES) == {*CASES, "no-convenience-functions"}


def test_what_a_file_does_when_it_is_imported_is_checked_too() -> None:
    (finding,) = check_source(kernel_with("pass", top="ROWS = nl.arange(128)[:, None]"))
    assert (finding.rule, finding.line) == ("removed-in-0.2", 4)
    alone = "def host():\n    return nl.arange(4)\nif __name__ == '__main__':\n    print(nl.arange(4))\n"
    assert check_source(kernel_with("pass", top=alone)) == []


def test_a_file_that_is_not_python_is_one_finding() -> None:
    (finding,) = check_source("def kernel(:\n  pass")
    assert finding.rule == "python-syntax"
