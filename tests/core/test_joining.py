"""Several kernels in one file: at a variant's shapes its very program, at all others the input kernel's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nki_sim
from accelopt_core.dispatch.joining import Branch, Variant, check, joined
from accelopt_core.dispatch.kernel_file import CannotJoin
from accelopt_core.task import ENTRY_POINTS
from accelopt_core.toolchain import ArgumentSpec, ConstantArgument, DtypeArgument, TensorArgument
from nki_sim.encoding.canonical import digest
from nki_sim.lint import VERSIONS, check_source
from tests.kernel_texts import HEADER, kernel_of, run, trace

GIVEN = f'''"""The sum of two arrays, some columns at a time."""

{HEADER}
STEP = 64  # columns
ROWS = 128
TUNABLES = {{"STEP": (64, 128)}}


def loaded(src, start, width):
    tile = nl.ndarray((ROWS, width), dtype=src.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=src[0:ROWS, start : start + width])
    return tile


@nki.jit
def kernel(x, y):
    rows, n = x.shape
    assert rows == ROWS, "as many rows as partitions"
    assert n % STEP == 0, "whole steps"
    out = nl.ndarray((rows, n), dtype=x.dtype, buffer=nl.shared_hbm)
    for j in range(n // STEP):
        a = loaded(x, j * STEP, STEP)
        b = loaded(y, j * STEP, STEP)
        c = nl.ndarray((ROWS, STEP), dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=c, data1=a, data2=b, op=nl.add)
        nisa.dma_copy(dst=out[0:ROWS, j * STEP : (j + 1) * STEP], src=c)
    return out
'''
WIDE = GIVEN.replace("STEP = 64", "STEP = 128")
HERE, ELSEWHERE = (128, 256), (128, 512)


def branch(*shape: int) -> Branch:
    return Branch("x".join(map(str, shape)), (TensorArgument(shape, "float32"), TensorArgument(shape, "float32")))


def both(given: str, *variants: tuple[str, tuple[int, ...]]) -> str:
    return joined(given, [Variant(source, (branch(*shape),)) for source, shape in variants], ENTRY_POINTS)


def arrays(shape: tuple[int, ...] = HERE, dtype: str = "float32") -> list[np.ndarray]:
    drawn = np.random.default_rng(7)
    return [drawn.normal(size=shape).astype(dtype) for _ in range(2)]


def program(source: str, shape: tuple[int, ...]) -> str:
    return digest(trace(source, *arrays(shape)))


def names_of(source: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "a kernel's file"}
    exec(source, names)
    return names


def check_joined(given: str, variant: str) -> str:
    """At HERE the variant's program, elsewhere the input kernel's, the two being different; the same twice over."""
    made = both(given, (variant, HERE))
    for source in (made, both(made, (made, ELSEWHERE))):
        assert program(source, HERE) == program(variant, HERE) != program(given, HERE)
        assert program(source, ELSEWHERE) == program(given, ELSEWHERE)
    assert (run(made, *arrays()) == sum(arrays())).all()
    return made


def changed(*changes: tuple[str, str], source: str = WIDE) -> str:
    for old, new in changes:
        assert old in source
        source = source.replace(old, new)
    return source


VARIANTS = {
    "a constant": WIDE,
    "a helper of the same name that does another thing": changed(
        ("    nisa.dma_copy(dst=tile, src", "    nisa.memset(dst=tile, value=0.0)\n    nisa.dma_copy(dst=tile, src"),
        source=GIVEN,
    ),
    "a helper of the same text, of a constant of another value": changed(
        ("    tile = nl", "    assert width % HALF == 0\n    tile = nl"),
        ("ROWS = 128\n", "ROWS = 128\nHALF = STEP // 2\n"),
    ),
    "an import under the name of something else": changed(
        ("import nki.isa as nisa", "import nki.isa as loaded_by, nki.isa as nisa\nimport math as loaded"),
        ("def loaded(", "def taken("), ("= loaded(x", "= taken(x"), ("= loaded(y", "= taken(y"),
        ("nisa.tensor_tensor", "loaded_by.tensor_tensor"), ("// STEP)", "// int(loaded.sqrt(STEP * STEP)))"),
    ),
    "one of Python's names for itself": changed(
        ("STEP = 128", "def range(n):\n    return list(reversed([*(each for each in (0, 1, 2)[:n])]))\n\n\nSTEP = 128"),
    ),
    "locals under names of the file": changed(
        ("    for j in", "    found = [ROWS for STEP in (1, 2)]\n    assert found == [128, 128]\n    for j in"),
        ("    tile = nl", "    STEP = (lambda ROWS: ROWS)(3)\n    assert STEP == 3\n    tile = nl"),
    ),
    "a parameter under the name of a constant": changed(
        ("def loaded(src, start, width):", "def loaded(src, start, STEP):"),
        ("tile = nl.ndarray((ROWS, width)", "tile = nl.ndarray((ROWS, STEP)"),
        ("start : start + width]", "start : start + STEP]"), ("(x, j * STEP, STEP)", "(x, j * STEP, STEP=STEP)"),
    ),
    "a list that it changes": changed(
        ("ROWS = 128\n", "ROWS = 128\nseen = []\n"), ("    a = loaded", "    seen.append(j)\n        a = loaded"),
        ("    return out", "    assert seen == list(range(n // STEP)), seen\n    return out"),
    ),
    "text with names in it": changed(
        ("    for j in", '    assert f"{STEP}{ROWS:d}" == "128128", f"{STEP=}"\n    for j in')
    ),
    "lines that end where Python ends none": changed(
        ("STEP = 128  # columns", "\x0cSTEP = 128  # columns\u2028 or \x1c"),
        ("    tile = nl", "    '\u2028'; tile = nl"),
    ),
    "a name that an expression binds": changed(
        ("    for j in", "    assert [STEP for _ in (0,) if (loaded := 3)] == [STEP] and loaded == 3\n    for j in"),
        ("= loaded(x", "= taken(x"), ("= loaded(y", "= taken(y"), ("\n\n@nki", "\n\ntaken = loaded\n\n\n@nki"),
    ),
    "other names of the parameters": changed(
        ("def kernel(x, y)", "def kernel(p, q)"), ("x.shape", "p.shape"), ("x.dtype", "p.dtype"),
        ("loaded(x", "loaded(p"), ("loaded(y", "loaded(q"),
    ),
    "a default that is its own": changed(
        ("def kernel(x, y):", "def kernel(x, y, step=STEP):"), ("j * STEP, STEP)", "j * step, step)")
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", VARIANTS)
def test_a_variant_keeps_what_its_names_mean(what: str) -> None:
    check_joined(GIVEN, VARIANTS[what])


CLASS = ("ROWS = 128\n", "ROWS = 128\n\n\nclass Way:\n    step = 1\n    seen = []\n\n\n")
WAYS_OF_CHANGING = {
    "a class": "Way.step = STEP",
    "by its name": "setattr(Way, 'step', STEP)",
    "under another name": "other = Way\nother.step = STEP",
    "from a function": "def set_step(step=STEP):\n    Way.step = step\n\n\nset_step()",
    "in a loop": "for each in (Way,):\n    each.step = STEP",
    "a function": "loaded.step = STEP",
}


@pytest.mark.parametrize("what", WAYS_OF_CHANGING)
def test_what_a_file_changes_of_its_own_is_its_own(what: str) -> None:
    """The very same class or function stands in both files, and each gives it another value."""
    given, wide = (
        changed(
            CLASS, ("    for j in", "    STEP = loaded.step\n    for j in" if what == "a function" else
                    "    STEP = Way.step\n    for j in"),
            ("\n\n@nki.jit", f"\n\n{WAYS_OF_CHANGING[what]}\n\n\n@nki.jit"), ("n % STEP", "n % 64"), source=source,
        )
        for source in (GIVEN, WIDE)
    )  # fmt: skip
    check_joined(given, wide)


def test_what_a_class_holds_is_not_shared_either() -> None:
    counting = ("    for j in", "    assert len(Way.seen) < 1\n    Way.seen.append(n)\n    for j in")
    given, wide = (changed(CLASS, counting, source=source) for source in (GIVEN, WIDE))
    kernel = kernel_of(both(given, (wide, HERE)))
    for shape in (HERE, ELSEWHERE):
        nki_sim.trace(kernel, *arrays(shape))
    with pytest.raises(AssertionError):
        nki_sim.trace(kernel, *arrays(ELSEWHERE))


def test_an_enumeration_that_a_caller_names_is_the_same_in_both() -> None:
    kinds = "from enum import Enum, auto\n\n\nclass Way(Enum):\n    FORTH = auto()\n    BACK = auto()\n\n\nROWS = 128\n"
    given = changed(
        ("ROWS = 128\n", kinds), ("def kernel(x, y):", "def kernel(x, y, way=Way.FORTH):"),
        ("    for j in", "    assert way == Way.FORTH\n    for j in"), source=GIVEN,
    )  # fmt: skip
    assert check_joined(given, changed(("STEP = 64", "STEP = 128"), source=given)).count("class Way") == 1


GIVENS = {
    "names that would be given": changed(
        ("ROWS = 128\n", "ROWS = 128\nSTEP_v1 = 1\n\n\ndef kernel_v1(kernel_as_given=STEP_v1):\n    return STEP_v1\n"),
        source=GIVEN,
    ),
    "a function that calls the kernel": f"{GIVEN}\n\ndef called(x, y):\n    return kernel(x, y)\n"
    "\n\nKERNELS = {'sum': kernel}\n",
    "several kernels": GIVEN + "\n\n@nki.jit\ndef other(x):\n    return x\n",
    "a test at its end": GIVEN + '\n\nif __name__ == "__main__":\n    import numpy as np\n    print(kernel, STEP)\n',
    "names of two spaces": GIVEN.replace("    ", "  "),
    "a decorator with an argument": changed(("@nki.jit", "@nki.jit()"), source=GIVEN),
    "one module or another": GIVEN.replace(
        "import nki.isa as nisa\n",
        "try:\n    import nki.isa as nisa\nexcept ImportError:\n    import neuronxcc.nki.isa as nisa\n",
    ),
    "no name for the language": GIVEN.replace(
        "import nki.language as nl\n", "from nki.language import add, ndarray, sbuf, shared_hbm\n"
    ).replace("nl.", ""),
    "a class": GIVEN.replace("ROWS = 128\n", "class Sizes:\n    rows = 128\n\n\nROWS = Sizes.rows\n"),
    "defaults of a class of its own": changed(
        ("ROWS = 128\n", "class Way:\n    FORTH = 1\n\n\nROWS = 128\n"),
        ("def kernel(x, y):", "def kernel(x, y, way=Way.FORTH, *, twice=False):"),
        ("    for j in", "    assert way == Way.FORTH and not twice\n    for j in"), source=GIVEN,
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", GIVENS)
def test_the_input_kernels_file_stays_as_it_is(what: str) -> None:
    given = GIVENS[what]
    made = check_joined(given, changed(("STEP = 64", "STEP = 128"), source=given))
    module, before = names_of(made), names_of(given)
    assert before.keys() <= module.keys()
    assert module["STEP"] == 64 and module["STEP_v1" if "STEP_v1" not in before else "STEP_v1_2"] == 128
    if "called" in before:
        assert module["KERNELS"]["sum"] is module["kernel"]
    if "__main__" in given:
        assert made.rstrip().endswith("print(kernel, STEP)") and made.count("__main__") == 1


def test_a_search_may_still_change_the_tunables_of_each() -> None:
    made = both(GIVEN, (WIDE, HERE))
    assert 'TUNABLES = {"STEP": (64, 128), "STEP_v1": (64, 128)}' in made
    many = both(GIVEN, *((WIDE, (128, 128 * number)) for number in range(1, 6)))
    assert '\n    "STEP_v5": (64, 128),\n}' in many and program(many, (128, 128 * 5)) == program(WIDE, (128, 128 * 5))
    narrow = made.replace("STEP_v1 = 128", "STEP_v1 = 64")
    assert program(narrow, HERE) == program(GIVEN, HERE) and program(narrow, ELSEWHERE) == program(GIVEN, ELSEWHERE)


def test_what_both_say_stands_once() -> None:
    made = both(GIVEN, (WIDE, HERE), (changed(("nl.add)", "nl.add)  # so")), (128, 128)))
    assert made.count("import nki.isa") == 1 and made.count("def loaded") == 1 and made.count("ROWS = 128") == 1
    assert made.count("def kernel") == 4 and made.count("@nki.jit") == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_it_is_valid_wherever_its_parts_are(version: str) -> None:
    def errors(source: str) -> list[str]:
        return [found.message for found in check_source(source, version) if found.severity == "error"]

    assert errors(both(GIVEN, (WIDE, HERE))) == errors(GIVEN)
    options = joined(
        OPTIONS, [Variant(OPTIONS.replace("STEP = 64", "STEP = 128"), (Branch("here", WITH),))], ENTRY_POINTS
    )
    assert errors(options) == errors(OPTIONS)


TAKEN = 'def kernel(x, y, scale, mode="add", acc=None, kind=nl.float32, exact=True, sizes=(1, 2), count=1):'
OPTIONS = changed(("def kernel(x, y):", TAKEN), source=GIVEN)
WITH: tuple[ArgumentSpec, ...] = (*branch(*HERE).arguments, ConstantArgument(2.0))


@pytest.mark.parametrize(
    ("arguments", "keywords", "taken"),
    [
        ((2.0,), {}, True),
        ((2.5,), {}, False),
        ((2.0, "add", None), {"exact": True}, True),
        ((2.0, "mul"), {}, False),
        ((2.0,), {"acc": 0}, False),
        ((2.0,), {"exact": 1}, False),
        ((2.0,), {"kind": "bfloat16"}, False),
        ((2.0,), {"sizes": (1, 3)}, False),
        ((2,), {}, False),
        ((2.0,), {"count": True}, False),
        ((2.0,), {"count": 1.0}, False),
        ((2.0,), {"count": 1}, True),
    ],
)
def test_a_guard_is_no_wider_than_what_was_verified(arguments: tuple, keywords: dict, taken: bool) -> None:
    import nki.language as nl

    if "kind" in keywords:
        keywords = {"kind": nl.bfloat16}
    wide = changed(("STEP = 64", "STEP = 128"), source=OPTIONS)
    made = joined(OPTIONS, [Variant(wide, (Branch("here", WITH),))], ENTRY_POINTS)

    def traced(source: str) -> str:
        return digest(nki_sim.trace(kernel_of(source), *arrays(), *arguments, **keywords))

    assert traced(made) == traced(wide if taken else OPTIONS)


@pytest.mark.parametrize(("shape", "dtype"), [((128, 128), "float32"), ((128, 256), "float16")])
def test_another_shape_or_element_type_is_the_input_kernels(shape: tuple[int, int], dtype: str) -> None:
    made = both(GIVEN, (WIDE, HERE))
    inputs = arrays(shape, dtype)
    assert digest(trace(made, *inputs)) == digest(trace(GIVEN, *inputs)) != digest(trace(WIDE, *inputs))


@pytest.mark.parametrize("shape", [(128,), (1, 128, 256), (128, 256, 1)])
def test_another_rank_is_the_input_kernels_to_refuse(shape: tuple[int, ...]) -> None:
    made = both(GIVEN, (WIDE, HERE))
    for source in (GIVEN, made):
        with pytest.raises(ValueError, match="values to unpack"):
            trace(source, *arrays(shape))


MASKED = changed(
    ("def kernel(x, y):", "def kernel(x, y, mask=None, scale=1.0):"),
    ("    for j in", "    assert mask is None or mask.shape == (4, 4)\n    for j in"), source=GIVEN,
)  # fmt: skip
REQUIRED = changed(("mask=None", "mask"), source=MASKED)
EITHER = changed(
    ("def kernel(x, y):", "def kernel(x, y, mask):"),
    ("    for j in", "    assert isinstance(mask, float) or mask.shape == (4, 4)\n    for j in"), source=GIVEN,
)  # fmt: skip


@pytest.mark.parametrize(
    ("given", "others"),
    [(MASKED, ((), (None,))), (REQUIRED, ((None,),)), (EITHER, ((2.5,),))],
    ids=["by default", "as it asks", "of another kind"],
)
def test_what_is_no_tensor_where_one_was_verified_is_the_input_kernels(given: str, others: tuple[tuple, ...]) -> None:
    wide = changed(("STEP = 64", "STEP = 128"), source=given)
    arguments = (*branch(*HERE).arguments, TensorArgument((4, 4), "float32"))
    made = joined(given, [Variant(wide, (Branch("masked", arguments),))], ENTRY_POINTS)

    def traced(source: str, *more: Any) -> str:
        return digest(nki_sim.trace(kernel_of(source), *arrays(), *more))

    mask = np.ones((4, 4), "float32")
    assert traced(made, mask) == traced(wide, mask) != traced(given, mask)
    for more in others:
        assert traced(made, *more) == traced(given, *more)


def test_a_file_may_set_variables_of_the_environment() -> None:
    setting = 'import os\nos.environ["NEURON_FRAMEWORK_DEBUG"] = "1"\n'
    made = both(setting + GIVEN, (setting + WIDE, HERE))
    assert "os.environ" in made and program(made, HERE) == program(WIDE, HERE)


def test_assertions_of_both_are_kept() -> None:
    made = both(GIVEN, (changed(("n % STEP == 0", "n % STEP == 1")), HERE))
    for shape, said in ((HERE, "whole steps"), ((64, 128), "as many rows"), ((128, 96), "whole steps")):
        with pytest.raises(AssertionError, match=said):
            trace(made, *arrays(shape))


REFUSED = {
    "a star": (("import nki.isa as nisa", "import nki.isa as nisa\nfrom nki.isa import *"), "import *"),
    "a global": (("    rows, n", "    global ROWS\n    rows, n"), "changes ROWS of the file"),
    "names by text": (("    rows, n", "    assert globals()['STEP']\n    rows, n"), "globals"),
    "what it imports": (("TUNABLES", "nl.add = nl.subtract\nTUNABLES"), "changes what it imports as nl"),
    "any arguments": (("def kernel(x, y)", "def kernel(x, *y)"), "any number of arguments"),
    "bound again": (("TUNABLES", "kernel = None\nTUNABLES"), "bound again"),
    "a class that hides": (("TUNABLES", "class Sizes:\n    ROWS = ROWS\n\n\nTUNABLES"), "a class binds ROWS"),
    "a decorator around": (("@nki.jit", "def same(f):\n    return f\n\n\n@same\n@nki.jit"), "around that of NKI"),
    "no Python": (("    rows, n", "    rows, n ="), "cannot be parsed"),
    "no kernel": (("def kernel", "def kern"), "no function called"),
    "defined in a block": (("TUNABLES", "if STEP:\n    def more(x):\n        return x\nTUNABLES"), "in a block"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_told_apart_is_refused_by_name(what: str) -> None:
    change, said = REFUSED[what]
    source = changed(change, source=GIVEN)
    with pytest.raises(CannotJoin, match=said.replace("*", r"\*")) as refused:
        check(source, ENTRY_POINTS)
    assert "\n" not in str(refused.value)
    with pytest.raises(CannotJoin, match="variant 1: "):
        both(GIVEN, (source, HERE))


@pytest.mark.parametrize(
    ("given", "variant", "said"),
    [
        (GIVEN, changed(("@nki.jit", "@nki.jit()")), "decorators"),
        (GIVEN, "from __future__ import annotations\n" + WIDE, "annotations"),
        (GIVEN, changed(("def kernel(x, y)", "def kernel(x)")), "takes 1 arguments"),
        (GIVEN, changed(("def kernel(x, y)", "def kernel(x, y, z)")), "no z, which has no default"),
        (changed(("ROWS = 128\n", "ROWS = 128\nrange = reversed\n"), source=GIVEN), WIDE, "range is another thing"),
        (GIVEN, changed(("TUNABLES", "try:\n    1\nexcept ValueError as E:\n    2\nTUNABLES")), "binds E at its"),
        (GIVEN, changed(("import nki.isa", "import numpy.linalg, math\nimport nki.isa")), "imports numpy"),
    ],
)  # fmt: skip
def test_what_does_not_fit_the_input_kernel_is_refused_by_name(given: str, variant: str, said: str) -> None:
    with pytest.raises(CannotJoin, match=f"variant 1: .*{said}"):
        both(given, (variant, HERE))


def test_an_element_type_is_told_by_its_name_and_nothing_to_join_is_the_input_kernel() -> None:
    assert joined(GIVEN, [], ENTRY_POINTS) == GIVEN
    given = changed(("def kernel(x, y):", "def kernel(x, y, kind):"), source=GIVEN)
    wide = changed(("STEP = 64", "STEP = 128"), source=given)
    arguments = (*branch(*HERE).arguments, DtypeArgument("bfloat16"))
    assert " and kind == nl.bfloat16" in joined(given, [Variant(wide, (Branch("here", arguments),))], ENTRY_POINTS)
