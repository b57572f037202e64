"""What a kernel's file is loaded with: the function that is the kernel, and the files that it imports."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from accelopt_core.task import ALONE, Surroundings
from infra.tasks import kernel_file
from infra.tasks.kernel_file import kernel_text, surroundings_of
from infra.tasks.reference_reader import TaskInvalid

JIT = "import nki\n\n\n@nki.jit\ndef {}(x):\n    return x\n"
IF = "import nki\n\nif nki:\n    @nki.jit\n    def {}(x):\n        return x\nelse:\n    def {}(x):\n        pass\n"
TRY = "try:\n    import nki\nexcept ImportError:\n    pass\nelse:\n    @nki.jit\n    def {}(x):\n        return x\n"
TWO = JIT.format("first") + "\n\n@nki.jit\ndef second(x):\n    return x\n"


def around(folder: Path, kernel: str, files: Mapping[str, str | bytes], function: str | None = None) -> Surroundings:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return surroundings_of(folder / kernel, kernel_text(folder / kernel), function)


def paths(found: Surroundings) -> list[str]:
    return [path for path, _ in found.neighbours]


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
        (IF.format("kernel", "kernel"), None, ""),
        (IF.format("softmax", "softmax"), None, "softmax"),
        (IF.format("softmax", "other"), "softmax", "softmax"),
        (TRY.format("softmax") + JIT.format("second"), "softmax", "softmax"),
        (JIT.format("f") + "\nif __name__ == '__main__':\n    @nki.jit\n    def g(x):\n        return x\n", None, "f"),
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
        ("third", r"defines no 'third' .* its kernels are: first \(line 5\), second"),
    ],
)
def test_a_file_with_several_kernels_lists_them(tmp_path: Path, wanted: str | None, said: str) -> None:
    with pytest.raises(TaskInvalid, match=said):
        around(tmp_path, "k.py", {"k.py": TWO}, wanted)


PLAIN = "".join(f"def f{number}(x):\n    return x\n\n\n" for number in range(9))


def test_functions_that_nobody_decorates_are_listed(tmp_path: Path) -> None:
    with pytest.raises(
        TaskInvalid, match=r"one of its 9 functions with --function: f0 \(line 1\), .* \(line 29\), \.\.\.$"
    ):
        around(tmp_path, "k.py", {"k.py": PLAIN})
    assert around(tmp_path, "k.py", {"k.py": PLAIN}, "f3") == Surroundings("f3")
    for kernel in ("if True:\n    kernel = f0\n", "from elsewhere import *\n", "from elsewhere import f as kernel\n"):
        assert around(tmp_path, "k.py", {"k.py": PLAIN + kernel}) == ALONE, "there may be one: importing it shows"


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
        "library/__init__.py", "library/core/__init__.py", "library/core/sizes.py", "library/utils/__init__.py",
        "library/utils/checks.py", "library/utils/words.py", "library/version.py",
    ]  # fmt: skip
    assert dict(found.neighbours)["library/core/sizes.py"] == "P = 128\n"
    assert {"library", "sizes"} <= found.importable


K = JIT.format("kernel")
LAZY = (
    "import importlib\n\n\ndef __getattr__(name):\n"
    "    return getattr(importlib.import_module('.lazy', __name__), name)\n"
)
LOADED: dict[str, tuple[str, str, dict[str, str], str]] = {
    # what: the kernel's file, its module, all files, and those that are loaded with it
    "relative imports need no __init__": (
        "pack/kernels/k.py", "pack.kernels.k", {"pack/kernels/k.py": "from ..help import f\n" + K, "pack/help.py": ""},
        "pack/help.py",
    ),
    "a file beside the kernel, as when Python runs it": (
        "my-kernels/k.py", "k",
        {"my-kernels/k.py": "import math\nimport numpy as np\nimport helpers\nimport tools.sizes\n" + K,
         "my-kernels/helpers.py": "", "my-kernels/tools/sizes.py": "", "my-kernels/numpy.py": "raise ImportError\n",
         "my-kernels/math.py": "raise ImportError\n"},
        "helpers.py tools/sizes.py",
    ),
    "in a circle, and the kernel too": (
        "pack/k.py", "pack.k",
        {"pack/__init__.py": "from .k import kernel\n", "pack/k.py": "from . import a\n" + K,
         "pack/a.py": "from . import b\n", "pack/b.py": "from . import a, k\n"},
        "pack/__init__.py pack/a.py pack/b.py",
    ),
    "a lone kernel of a name of Python's": (
        "math.py", "top.math", {"math.py": "import helpers\n" + K, "helpers.py": ""}, "top/helpers.py",
    ),
    "no Python, for the compiler to complain of": (
        "k.py", "k", {"k.py": "import broken\n" + K, "broken.py": "def f(:\n"}, "broken.py",
    ),
    "packages without __init__, and files of the project": (
        "repo/examples/ns/b/k.py", "ns.b.k",
        {"repo/pyproject.toml": "", "repo/src/library/__init__.py": "", "repo/src/library/sizes.py": "P = 128\n",
         "repo/tools/names.py": "import examples.more\n", "repo/examples/more.py": "",
         "repo/examples/ns/b/k.py": "import library.sizes\nfrom ns.a.help import f\nfrom tools import names\n" + K,
         "repo/examples/ns/a/help.py": "def f(): pass\n"},
        "examples/more.py library/__init__.py library/sizes.py ns/a/help.py tools/names.py",
    ),
    "imported in less plain ways": (
        "pack/k.py", "pack.k",
        {"pack/__init__.py": LAZY, "pack/lazy.py": "def f(): pass\n",
         "pack/k.py": "from . import f\nfrom .all import *\n" + K, "pack/all/__init__.py": "__all__ = ['one']\n",
         "pack/all/one.py": "try:\n    from ........far import away\nexcept ImportError:\n    pass\n"},
        "pack/__init__.py pack/all/__init__.py pack/all/one.py pack/lazy.py",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", LOADED)
def test_what_importing_the_kernel_loads_is_loaded_with_it(tmp_path: Path, what: str) -> None:
    kernel, module, files, loaded = LOADED[what]
    found = around(tmp_path / "top", kernel, files)
    assert (found.module, paths(found)) == (module, loaded.split())


def test_a_kernel_that_imports_no_neighbour_stands_alone_wherever_it_lies(tmp_path: Path) -> None:
    files = {"pack/__init__.py": "from . import other\n", "pack/other.py": "", "pack/k.py": JIT.format("kernel")}
    assert around(tmp_path, "pack/k.py", files) == ALONE


@pytest.mark.parametrize(
    ("kernel", "module"),
    [
        ("my-kernels/k.py", "my_kernels.k"),
        ("my-kernels/k-v2.py", "my_kernels.k_v2"),
        ("my-kernels/2nd.py", "my_kernels._2nd"),
        ("my-kernels/helpers-.py", "my_kernels.helpers_"),
        ("my-kernels/help-ers.py", "my_kernels.help_ers_"),
        ("nki/k.py", "{}.nki.k"),
        ("nki/math.py", "{}.nki.math"),
    ],
)
def test_a_name_that_python_cannot_import_is_replaced_by_one_that_it_can(tmp_path, kernel, module) -> None:
    folder = kernel.partition("/")[0]
    files = {
        kernel: "try:\n    from .helpers import f\nexcept ImportError:\n    from helpers import f\n"
        + JIT.format("kernel"),
        f"{folder}/helpers.py": "def f(): pass\n",
        f"{folder}/help_ers.py": "",
    }
    top = tmp_path / "top"
    found = around(top, kernel, files)
    assert found.module == module.format("top")
    assert paths(found) == [f"{found.path.rpartition('/')[0]}/helpers.py"]


def test_files_are_read_as_python_reads_them_and_travel_as_utf_8(tmp_path: Path) -> None:
    files = {
        "k.py": b"\xef\xbb\xbfimport bom\nimport old\n" + JIT.format("kernel").encode(),
        "bom.py": b"\xef\xbb\xbfimport more\n",
        "more.py": "",
        "old.py": b"#!/bin/python\n# -*- coding: latin-1 -*-\nNAME = 'caf\xe9'\n",
    }
    found = dict(around(tmp_path, "k.py", files).neighbours)
    assert found["bom.py"] == "import more\n" and "more.py" in found
    assert found["old.py"] == "#!/bin/python\n# -*- coding: utf-8 -*-\nNAME = 'caf\u00e9'\n"
    for name in ("k.py", "old.py"):
        with pytest.raises(TaskInvalid, match=rf"{name}.*save it as UTF-8"):
            around(tmp_path, "k.py", {"k.py": "import old\n", name: b"import old  # caf\xe9\n"})


@pytest.mark.parametrize("folder_is_link", [True, False])
def test_links_are_looked_at_as_they_are_then_as_what_they_lead_to(tmp_path: Path, folder_is_link: bool) -> None:
    kernel = "from ..utils import f\n" + JIT.format("kernel")
    files = {"pack/__init__.py": "", "pack/utils.py": "", "store/a.py": kernel, "pack/kernels/__init__.py": ""}
    if folder_is_link:
        del files["pack/kernels/__init__.py"]
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
        (tmp_path / "pack/kernels").mkdir(parents=True, exist_ok=True)
    if folder_is_link:
        (tmp_path / "pack/kernels").rmdir()
        (tmp_path / "pack/kernels").symlink_to(tmp_path / "store")
    else:
        (tmp_path / "pack/kernels/a.py").symlink_to(tmp_path / "store/a.py")
    (tmp_path / "mine.py").symlink_to(tmp_path / "pack/kernels/a.py")
    given = tmp_path / "store/../pack/kernels/a.py"
    assert surroundings_of(given, kernel, None).module == "pack.kernels.a"


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
