"""What a kernel's file is loaded with: the function that is the kernel, and the files that it imports."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from accelopt_core.task import ALONE, Surroundings
from infra.tasks import kernel_file
from infra.tasks.kernel_file import surroundings_of
from infra.tasks.reference_reader import TaskInvalid

JIT = "import nki\n\n\n@nki.jit\ndef {}(x):\n    return x\n"
TWO = JIT.format("first") + "\n\n@nki.jit\ndef second(x):\n    return x\n"


def around(folder: Path, kernel: str, files: Mapping[str, str], function: str | None = None) -> Surroundings:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return surroundings_of(folder / kernel, files[kernel], function)


def paths(found: Surroundings) -> list[str]:
    return [path for path, _ in found.neighbours]


# --- which function -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "wanted", "function"),
    [
        (JIT.format("kernel"), None, ""),
        (JIT.format("optimized_kernel"), None, ""),
        (JIT.format("kernel"), "kernel", ""),
        (JIT.format("softmax"), None, "softmax"),
        (TWO, "second", "second"),
        (TWO + "\nkernel = second\n", None, ""),
        (TWO + "\nkernel = second\n", "first", "first"),
        ("x = 1\n", None, ""),
        ("def kernel(:\n", None, ""),
    ],
)
def test_the_kernel_is_the_one_that_is_meant(tmp_path: Path, source: str, wanted: str | None, function: str) -> None:
    assert around(tmp_path, "k.py", {"k.py": source}, wanted) == Surroundings(function)


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (None, r"2 kernels: first \(line 5\), second \(line 10\); name one with --function"),
        ("third", r"defines no third .* its kernels are: first \(line 5\), second"),
    ],
)
def test_a_file_with_several_kernels_lists_them(tmp_path: Path, wanted: str | None, said: str) -> None:
    with pytest.raises(TaskInvalid, match=said):
        around(tmp_path, "k.py", {"k.py": TWO}, wanted)


# --- which files ----------------------------------------------------------------------------------


def test_a_kernel_of_a_package_has_all_that_importing_it_runs(tmp_path: Path) -> None:
    files = {
        "repo/library/__init__.py": "from .version import VERSION\n",
        "repo/library/version.py": "VERSION = 1\n",
        "repo/library/core/__init__.py": "",
        "repo/library/core/norm.py": "from ..utils.checks import check\nfrom . import sizes\n" + JIT.format("norm"),
        "repo/library/core/sizes.py": "P = 128\n",
        "repo/library/core/unused.py": "P = 64\n",
        "repo/library/utils/__init__.py": "",
        "repo/library/utils/checks.py": "import library.utils.words as words\n\nassert words.NO\n",
        "repo/library/utils/words.py": "NO = 'no'\n",
    }
    found = around(tmp_path, "repo/library/core/norm.py", files)
    assert (found.module, found.function, found.path) == ("library.core.norm", "norm", "library/core/norm.py")
    assert paths(found) == [
        "library/__init__.py",
        "library/core/__init__.py",
        "library/core/sizes.py",
        "library/utils/__init__.py",
        "library/utils/checks.py",
        "library/utils/words.py",
        "library/version.py",
    ]
    assert dict(found.neighbours)["library/core/sizes.py"] == "P = 128\n"
    assert {"library", "sizes"} <= found.importable


def test_relative_imports_need_no_init_files(tmp_path: Path) -> None:
    files = {"pack/kernels/k.py": "from ..help import f\n" + JIT.format("kernel"), "pack/help.py": "def f(): pass\n"}
    found = around(tmp_path, "pack/kernels/k.py", files)
    assert found.module == "pack.kernels.k" and paths(found) == ["pack/help.py"]


def test_a_file_beside_the_kernel_is_found_as_when_python_runs_the_kernel(tmp_path: Path) -> None:
    files = {
        "my-kernels/k.py": "import helpers\nimport tools.sizes\n" + JIT.format("kernel"),
        "my-kernels/helpers.py": "def f(): pass\n",
        "my-kernels/tools/sizes.py": "P = 128\n",
        "my-kernels/numpy.py": "raise ImportError('not this one')\n",
        "my-kernels/math.py": "raise ImportError('nor this')\n",
    }
    files["my-kernels/k.py"] = "import math\nimport numpy as np\n" + files["my-kernels/k.py"]
    found = around(tmp_path, "my-kernels/k.py", files)
    assert found.module == "k" and paths(found) == ["helpers.py", "tools/sizes.py"]
    assert found.importable == {"helpers", "tools"}


def test_neighbours_may_import_each_other_in_a_circle_and_the_kernel_too(tmp_path: Path) -> None:
    files = {
        "pack/__init__.py": "from .k import kernel\n",
        "pack/k.py": "from . import a\n" + JIT.format("kernel"),
        "pack/a.py": "from . import b\n",
        "pack/b.py": "from . import a, k\n",
    }
    assert paths(around(tmp_path, "pack/k.py", files)) == ["pack/__init__.py", "pack/a.py", "pack/b.py"]


def test_a_kernel_that_imports_no_neighbour_stands_alone_wherever_it_lies(tmp_path: Path) -> None:
    files = {"pack/__init__.py": "from . import other\n", "pack/other.py": "", "pack/k.py": JIT.format("kernel")}
    assert around(tmp_path, "pack/k.py", files) == ALONE


def test_a_neighbour_that_is_no_python_travels_for_the_compiler_to_complain_of(tmp_path: Path) -> None:
    files = {"k.py": "import broken\n" + JIT.format("kernel"), "broken.py": "def f(:\n"}
    assert paths(around(tmp_path, "k.py", files)) == ["broken.py"]


def test_relative_imports_in_a_folder_that_python_cannot_import_are_explained(tmp_path: Path) -> None:
    files = {"my-kernels/k.py": "from .helpers import f\n" + JIT.format("kernel"), "my-kernels/helpers.py": ""}
    with pytest.raises(TaskInvalid, match="no name that Python can import"):
        around(tmp_path, "my-kernels/k.py", files)


def test_neighbours_do_not_travel_without_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_file, "MOST_BYTES", 100)
    files = {"k.py": "import table\n" + JIT.format("kernel"), "table.py": "T = '" + "x" * 100 + "'\n"}
    with pytest.raises(TaskInvalid, match="smaller package"):
        around(tmp_path, "k.py", files)


@pytest.mark.parametrize(
    ("module", "path"),
    [("", "a.py"), ("k", "k.py"), ("k", "/etc/passwd"), ("k", "../a.py"), ("k", "a//b.py"), ("a-b", "a.py")],
)
def test_what_is_no_file_beside_the_kernel_is_refused_wherever_it_comes_from(module: str, path: str) -> None:
    with pytest.raises(ValueError):
        Surroundings("", module, ((path, ""),))
