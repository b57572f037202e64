"""What stands around kernels in their files: other kernels, host code, launch grids; and that the new file is valid."""

from __future__ import annotations

import textwrap

import numpy as np
import pytest

from nki_sim.lint import check_source
from nki_sim.migrate.beta1_to_current import migrate_beta1
from nki_sim.migrate.report import Migration
from tests.migrate.kernels import HEAD, attempt, computed, migrated, normal

COPY = """
@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nl.store(out, value=nl.load(x))
    return out
"""


def of(source: str, *arguments: object, function: str = "kernel", grid: tuple[int, ...] = ()) -> Migration:
    migration = migrate_beta1(HEAD + textwrap.dedent(source), function, list(arguments), grid=grid)
    assert migration.done and migration.proven, migration.summary() + "\n".join(map(str, migration.left))
    return migration


def errors(source: str) -> list[str]:
    return [str(finding) for finding in check_source(source, "0.7") if finding.severity == "error"]


def test_kernels_that_were_not_run_become_comments_so_that_the_file_is_valid() -> None:
    other = """
@nki.jit(mode="trace")
def other(x):
    '''What it does.'''
    t = nl.load(x[nl.arange(4)[:, None], nl.arange(4)[None, :]])
    return t


class Host:
    @nki.jit
    def method(x):
        return nl.load(x)
"""
    new = of(COPY + other, normal(4, 4)).source
    assert "#     t" not in new and "    # t = nl.load(x[" in new and "'''What it does.'''" in new
    assert not errors(new)


def test_an_elif_that_was_not_run_asserts_in_itself_alone() -> None:
    x = normal(16, 16)
    new = migrated(
        """
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        t = nl.load(x)
        if flag == 1:
            nl.store(out, value=t)
        elif flag == 2:
            nl.store(out, value=t + t)
        elif flag == 3:
            flag = 1
        else:
            nl.store(out, value=nl.exp(t))
        return out
        """,
        x,
        parameters="x, flag",
        flag=1,
    )
    assert np.array_equal(computed(new, x, flag=1), x)
    for flag in (2, 4):
        with pytest.raises(AssertionError, match="not migrated"):
            computed(new, x, flag=flag)


def test_arguments_that_a_kernel_wrote_are_returned() -> None:
    migration = of(
        """
        @nki.trace
        def kernel(x, y):
            nl.store(y, value=nl.exp(nl.load(x)))
        """,
        normal(16, 16),
        np.zeros((16, 16), np.float32),
    )
    assert "y = nl.ndarray(y.shape, dtype=y.dtype, buffer=nl.shared_hbm)" in migration.source
    assert "return y" in migration.source and not errors(migration.source)
    assert [finding for finding in migration.findings if finding.rule == "outputs"]


def test_marks_under_other_names_and_kernels_under_a_condition() -> None:
    new = of(
        """
        nki_jit = nki.trace
        if True:
            @nki_jit
            def kernel(x):
                out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
                nl.store(out, value=nl.load(x) * 2.0)
                return out
        """,
        normal(4, 4),
    ).source
    assert "nki_jit = nki.jit" in new and "nisa.tensor_scalar" in new and not errors(new)


def test_what_is_not_installed_here_and_data_of_scripts_do_not_stop_a_run() -> None:
    around = """
import some_package_that_nobody_has as absent
from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    rows: "int" = 4


class Module(absent.Module):
    dtype = absent.float32


def host(x: absent.Tensor, dtype=absent.float32):
    return np.arange(4)


DEVICE = absent.device()
data = [1 / 0]
"""
    new = of(around + COPY, normal(4, 4)).source
    assert "def host(" in new and "data = [1 / 0]" in new


def test_helpers_without_calls_of_nl_are_rewritten_and_may_ask_for_their_program() -> None:
    new = of(
        """
        def scaled(t, factor):
            return factor * t * (1.0 + t)

        def place():
            return 4

        def load(x, rows):
            return nl.load(x[nl.program_id(0) * rows:nl.program_id(0) * rows + rows, :])

        @nki.jit
        def kernel(x):
            me = nl.program_id(0)
            out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
            t = load(x, 4)
            nl.store(out[me * 4:me * 4 + 4, :], value=scaled(t, 0.5))
            return out
        """,
        normal(8, 16),
        grid=(2,),
    ).source
    assert "def load(x, rows, *, program_0, grid)" in new and "for program_0 in range(grid[0])" in new
    assert new.index("out = nl.ndarray") < new.index("me = program_0")


@pytest.mark.parametrize("rows", [3000])
def test_one_wrong_row_of_thousands_is_a_difference(rows: int) -> None:
    from nki_sim.migrate import proving

    right = normal(rows, 64)
    wrong = right.copy()
    wrong[17] *= -1
    whole = float(np.linalg.norm(right - wrong) / np.linalg.norm(right))
    assert whole < 4e-2 < proving.difference(right, wrong)
    assert proving.difference(right, right.T) == proving.difference(right, right.astype(np.float16)) == np.inf
    assert proving.difference(np.array([3, 4], np.int32), np.array([3, 5], np.int32)) == np.inf
    assert proving.difference(np.array([np.inf, 1.0]), np.array([np.inf, 1.0])) == 0


def test_inputs_of_one_sign_are_not_all_that_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    from nki_sim.migrate import proving

    run = proving.run_new
    monkeypatch.setattr(proving, "run_new", lambda *given: np.abs(run(*given)))
    body = (
        "out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)\nnl.store(out, value=nl.load(x))\nreturn out\n"
    )
    migration = attempt(body, np.ones((4, 4), np.float32))
    assert not migration.done and "both signs" in migration.left[0].text
    assert attempt(body, -np.abs(normal(4, 4))).done is False


def test_index_grids_of_the_module_go_where_nothing_asks_for_them_any_more() -> None:
    source = """
    ROWS = nl.arange(4)[:, None]  # the rows
    COLUMNS, NEXT = nl.arange(8)[None, :], nl.arange(8)[None, :] + 1
    FIRST = nl.arange(4)[:, None]; SIZE = 4
    BELOW = ROWS + 1
    MASK = np.tril(np.ones((4, 8), np.float32))

    @nki.jit
    def kernel(x):
        out = nl.ndarray((SIZE, 8), dtype=x.dtype, buffer=nl.shared_hbm)
        t = nl.load(x[ROWS, COLUMNS])
        mask = nl.load(nl.shared_constant(MASK, dtype=nl.float32))
        nl.store(out[FIRST, COLUMNS], value=t * mask)
        return out
    """
    new = of(source, normal(4, 8)).source
    assert "arange" not in new and "BELOW" not in new and "SIZE = 4" in new and "nl.shared_constant(MASK)" in new
    assert not errors(new)


@pytest.mark.parametrize(
    "decorators", ["@nki.compiler.skip_middle_end_transformations\n@nki.jit", "@nki.profile\n@nki.jit",
                   "@nki.compiler.enable_stack_allocator", "@nki.jit\n@nki.compiler.enable_stack_allocator  # said"]
)  # fmt: skip
def test_a_kernel_is_marked_once(decorators: str) -> None:
    source = f"{decorators}\n" + textwrap.dedent(COPY).strip("\n").removeprefix("@nki.jit\n")
    new = of(source, normal(4, 4)).source
    assert new.count("@") == new.count("@nki.jit") == 1 and ("# said" in decorators) == ("# said" in new)
    assert not errors(new)
