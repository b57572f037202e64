"""0.2 to 0.6 -> 0.7: one rewrite and one refusal for each rule, and what is not touched stays byte for byte."""

from __future__ import annotations

import textwrap

import pytest

from nki_sim.migrate.current import migrate_current
from nki_sim.migrate.report import Migration

HEAD = "import nki\nimport nki.isa as nisa\nimport nki.language as nl\n\n\n"


def migrate(body: str, also_in_06: bool = False) -> Migration:
    return migrate_current(HEAD + textwrap.dedent(body).lstrip("\n"), also_in_06)


def body_of(migration: Migration) -> str:
    assert migration.source.startswith(HEAD)
    return migration.source[len(HEAD) :]


def test_ranges_and_nothing_else() -> None:
    old = """
    def kernel(x):  # a comment
        for i in nl.affine_range( 4 ):   # spaces stay
            for j in nl.static_range(1, i):
                pass
    """
    new = migrate(old)
    wanted = textwrap.dedent(old).lstrip("\n").replace("nl.affine_range", "range").replace("nl.static_range", "range")
    assert body_of(new) == wanted and new.done and new.exit_code() == 0


def test_a_file_that_is_valid_in_07_stays_as_it_is() -> None:
    source = HEAD + "def kernel(x):\n\tfor i in range(4) : pass\n"
    assert migrate_current(source).source == source


def test_device_loops_that_end_together_become_nested_functions() -> None:
    new = body_of(
        migrate(
            """
            def kernel(x, n):
                for i in nl.dynamic_range(n):
                    for j in nl.dynamic_range(1, n, 2):
                        nisa.dma_copy(dst=x[0:1], src=x[1:2])
                return x
            """
        )
    )
    assert new == textwrap.dedent(
        """
        def kernel(x, n):
            def loop_body_1(i):
                def loop_body_2(j):
                    nisa.dma_copy(dst=x[0:1], src=x[1:2])
                nl.fori_loop(1, n, loop_body_2, 2)
            nl.fori_loop(0, n, loop_body_1)
            return x
        """
    ).lstrip("\n")


def test_a_loop_over_a_register_becomes_while_loop() -> None:
    new = body_of(
        migrate(
            """
            def kernel(x):
                reg = nisa.register_alloc(3)
                while reg:  # until 0
                    nisa.register_load(reg, x)
                return x
            """
        )
    )
    assert "def loop_body_1(reg):  # until 0" in new
    assert "        return reg\n    nl.while_loop(reg, loop_body_1)\n    return x\n" in new
    compile(HEAD + new, "new", "exec")


@pytest.mark.parametrize(
    ("rule", "body"),
    [
        ("dynamic_range", "t = 0\n    for i in nl.dynamic_range(4):\n        t = i\n    return t"),
        ("dynamic_range", "for i in nl.dynamic_range(4):\n        break"),
        ("dynamic_range", "with nl.no_reorder():\n        for i in nl.dynamic_range(4):\n            pass"),
        ("while register", "r = nisa.register_alloc(1)\n    while r:\n        if x:\n            continue"),
        ("register in if", "r = nisa.register_alloc(1)\n    if r > 2:\n        pass"),
        ("register in range()", "r = nisa.scalar_load(x)\n    for i in range(r):\n        pass"),
        ("register in int()", "r = nisa.register_alloc(1)\n    n = int(r)"),
        (
            "wide bound",
            "t = nl.ndarray((1, 1), dtype=nl.int64)\n    s = nisa.scalar_load(t)\n    nl.fori_loop(0, s, x)",
        ),
    ],
)
def test_what_needs_a_person_is_marked_in_place(rule: str, body: str) -> None:
    migration = migrate(f"def kernel(x):\n    {body}\n")
    assert [finding.rule for finding in migration.left] == [rule]
    finding = migration.left[0]
    lines = migration.source.splitlines()
    assert lines[finding.line - 1].strip().startswith(f"# migrate [{rule}]")
    assert migration.exit_code() == 1 and "not done" in migration.summary()
    compile(migration.source, "new", "exec")


def test_constants_grids_and_the_old_front_end() -> None:
    new = migrate(
        """
        import os
        os.environ["NKI_COMPILER_FRONTEND"] = "parser"
        def kernel(x):
            nisa.scalar_store(x[0:1, 0:1], 5)
            g = nl.tiles(x, tile_shape=(128, 128))
            nisa.dma_copy(dst=g[0, 1], src=x)
        """
    )
    body = body_of(new)
    assert "nisa.memset(dst=x[0:1, 0:1], value=5)" in body and "dst=g[0, 1].data" in body
    assert "FRONTEND" not in body and new.done


@pytest.mark.parametrize(
    ("array", "old", "new"),
    [
        ("np.tril(np.ones((4, 4), np.float32))", "TABLE, dtype=nl.float32", "TABLE"),
        ("np.ones((4, 4))", "TABLE, nl.int32", "np.asarray(TABLE, dtype=np.int32)"),
        ("np.ones((4, 4), np.float32)", "constant=TABLE", "constant=TABLE"),
    ],
)
def test_a_constant_has_its_arrays_type(array: str, old: str, new: str) -> None:
    source = f"{HEAD}import numpy as np\nTABLE = {array}\n\n\ndef kernel(x):\n    return nl.shared_constant({old})\n"
    migration = migrate_current(source)
    assert migration.source == source.replace(old, new) and migration.done


def test_a_constant_of_a_type_that_numpy_lacks_needs_a_person() -> None:
    migration = migrate("def kernel(x):\n    return nl.shared_constant(x, dtype=nl.bfloat16)\n")
    assert [finding.rule for finding in migration.left] == ["shared_constant"]


def test_classes_compared_by_identity_from_07_on() -> None:
    old = """
    class Config(nl.NKIObject):
        a = 1
    def kernel(x):
        one = Config()
        if one == x:
            pass
    """
    assert [finding.rule for finding in migrate(old).left] == ["equality"]
    assert migrate(old.replace("a = 1", "def __eq__(self, other):\n            return True")).done
