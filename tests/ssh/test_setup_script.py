"""setup_trn2.sh on machines of several kinds: nothing installed, everything installed, and what lies between."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.processes import PATIENCE_S

SCRIPT = Path(__file__).resolve().parents[2] / "setup_trn2.sh"

# As the Neuron documentation prints it (neuron-ls user guide), shortened to two devices.
NEURON_LS = """\
instance-type: trn2n.48xlarge
instance-id: i-aabbccdd123456789
logical-neuroncore-config: 2
+--------+--------+----------+--------+---------------+--------------+---------------+------+
| NEURON | NEURON |  NEURON  | NEURON |   CONNECTED   |     PCI      |      CPU      | NUMA |
| DEVICE | CORES  | CORE IDS | MEMORY |    DEVICES    |     BDF      |   AFFINITY    | NODE |
+--------+--------+----------+--------+---------------+--------------+---------------+------+
| 0      | 4      | 0-3      | 96 GB  | 12, 3, 4, 1   | 0000:cc:00.0 | 48-95,144-191 | 1    |
| 1      | 4      | 4-7      | 96 GB  | 13, 0, 5, 2   | 0000:b5:00.0 | 48-95,144-191 | 1    |
+--------+--------+----------+--------+---------------+--------------+---------------+------+
"""


@dataclass
class Machine:
    """A pretended instance: a home, a PATH of its own, and virtual environments below `opt`."""

    home: Path
    bin: Path
    opt: Path
    driver: Path

    def tool(self, name: str, body: str) -> None:
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def venv(self, name: str, packages: dict[str, str]) -> Path:
        """A virtual environment whose packages are there and know their versions, and contain nothing."""
        folder = self.opt / name
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        site = next(folder.glob("lib/python3*/site-packages"))
        for package, version in packages.items():
            module = {"neuronx-cc": "neuronxcc"}.get(package, package)
            (site / module).mkdir()
            (site / module / "__init__.py").write_text("")
            info = site / f"{package.replace('-', '_')}-{version}.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        return folder / "bin" / "python"

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """As over SSH: the script comes through standard input."""
        with SCRIPT.open("rb") as script:
            return subprocess.run(
                [shutil.which("bash") or "bash", "-s", "--", *arguments, "--venvs", f"{self.opt}/aws_neuronx_venv_*"],
                stdin=script, capture_output=True, text=True, timeout=PATIENCE_S,
                env={"HOME": str(self.home), "PATH": str(self.bin), "NEURON_DRIVER_VERSION_FILE": str(self.driver)},
            )  # fmt: skip

    def contents(self) -> list[str]:
        return sorted(str(path) for base in (self.home, self.opt) for path in base.rglob("*"))


@pytest.fixture
def bare(tmp_path: Path) -> Machine:
    """A Linux machine with the ordinary tools and nothing of Neuron, not even a Python."""
    machine = Machine(tmp_path / "home", tmp_path / "bin", tmp_path / "opt", tmp_path / "driver-version")
    for folder in (machine.home, machine.bin, machine.opt):
        folder.mkdir()
    for name in [
        "sh",
        "bash",
        "awk",
        "sed",
        "head",
        "tail",
        "df",
        "mkdir",
        "chmod",
        "find",
        "dirname",
        "cat",
        "grep",
        "sort",
        "date",
    ]:
        program = shutil.which(name)
        if program is None:
            pytest.skip(f"this machine has no {name}")
        (machine.bin / name).symlink_to(program)
    return machine


@pytest.fixture
def trn2(bare: Machine) -> Machine:
    """A Trn2 as its machine image comes: driver, runtime, tools and two environments."""
    bare.venv("aws_neuronx_venv_jax_0_10", {"neuronx-cc": "2.20.1", "numpy": "1.26.4"})
    packages = {"nki": "0.6.0+g12345", "neuronx-cc": "2.24.5133.0", "numpy": "2.1.0", "ml_dtypes": "0.5.1"}
    bare.venv("aws_neuronx_venv_pytorch_2_9", packages)
    bare.driver.write_text("2.26.10.0\n")
    bare.tool("neuron-ls", f"cat <<'EOF'\n{NEURON_LS}EOF")
    bare.tool("neuron-explorer", "echo neuron-explorer 2.29.18.0")
    bare.tool("neuron-profile", "echo; echo neuron-profile version 2.0.22196.0 >&2")
    bare.tool("dpkg-query", 'case "$*" in *runtime-lib*) printf 2.31.12.0 ;; *) exit 1 ;; esac')
    return bare


def test_a_complete_instance_is_ready_and_everything_found_is_named(trn2: Machine) -> None:
    done = trn2.run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "READY" in done.stdout and done.stderr == ""
    for fact in ("2.32 (told by its NKI 0.6.0+g12345)", "2.24.5133.0", "2 devices, 8 cores, trn2n.48xlarge",
                 "2.26.10.0", "2.31.12.0", "2.29.18.0", "2.0.22196.0", "venv_pytorch_2_9/bin/python"):  # fmt: skip
        assert fact in done.stdout
    assert (trn2.home / ".nki-optimizer").stat().st_mode & 0o777 == 0o700


def test_the_change_is_announced_before_the_summary_and_made_once(trn2: Machine) -> None:
    first, second = trn2.run(), trn2.run()
    assert first.stdout.startswith("making the work directory")
    assert second.returncode == 0 and "making" not in second.stdout


@pytest.mark.parametrize("kind", ["bare", "trn2"])
def test_check_changes_nothing_at_all(kind: str, request: pytest.FixtureRequest) -> None:
    machine: Machine = request.getfixturevalue(kind)
    before = machine.contents()
    done = machine.run("--check")
    assert machine.contents() == before
    assert done.returncode == (0 if kind == "trn2" else 3)
    assert "would be made without --check" in done.stdout


def test_check_leaves_even_wrong_permissions_alone(trn2: Machine) -> None:
    work = trn2.home / ".nki-optimizer"
    work.mkdir()
    work.chmod(0o755)
    assert "open to others" in trn2.run("--check").stdout and work.stat().st_mode & 0o777 == 0o755
    assert "closing" in trn2.run().stdout and work.stat().st_mode & 0o777 == 0o700


def test_a_bare_machine_has_no_sdk_and_says_what_is_missing(bare: Machine) -> None:
    done = bare.run()
    assert done.returncode == 3 and "--remote-simulator" in done.stdout and done.stderr == ""
    for name in ("Neuron SDK", "Python", "Neuron devices", "Neuron driver", "profiler"):
        assert any(line.startswith(name) and " missing " in line for line in done.stdout.splitlines()), name


@pytest.mark.parametrize(
    ("packages", "status"),
    [
        ({"nki": "0.0.1", "numpy": "2.0", "ml_dtypes": "0.5"}, 3),
        ({"neuronx-cc": "2.20", "numpy": "1.26", "ml_dtypes": "0.5"}, 4),
        ({"numpy": "1.26", "ml_dtypes": "0.5"}, 3),
    ],
)
def test_environments_that_are_not_enough(bare: Machine, packages: dict[str, str], status: int) -> None:
    bare.venv("aws_neuronx_venv_pytorch_2_9", packages)
    assert bare.run().returncode == status


@pytest.mark.parametrize(
    ("name", "body", "said"),
    [
        ("neuron-ls", "echo 'neuron-ls: no neuron device found' >&2; exit 1", "no neuron device found"),
        ("neuron-ls", "echo instance-type: trn2.48xlarge", "lists none"),
        ("neuron-ls", "exit 127", "neuron-ls"),
    ],
)
def test_an_instance_whose_devices_do_not_show_is_incomplete(trn2: Machine, name: str, body: str, said: str) -> None:
    trn2.tool(name, body)
    done = trn2.run()
    assert done.returncode == 4 and said in done.stdout


def test_what_is_broken_of_a_complete_instance_is_told(trn2: Machine) -> None:
    (trn2.bin / "neuron-explorer").unlink()
    assert trn2.run().returncode == 0, "one of the two profilers is enough"
    (trn2.bin / "neuron-profile").unlink()
    assert trn2.run().returncode == 4
    (trn2.home / "file").write_text("")
    assert trn2.run("--root", str(trn2.home / "file" / "work")).returncode == 5, "it cannot be made"
    (trn2.bin / "df").unlink()
    trn2.tool(
        "df", "echo 'Filesystem 1048576-blocks Used Available Use Mounted'\necho '/dev/root 100000 99000 1000 99% /'"
    )
    done = trn2.run()
    assert done.returncode == 5 and "1000 MB" in done.stdout
    shutil.rmtree(trn2.opt / "aws_neuronx_venv_pytorch_2_9")
    assert "-m pip install ml_dtypes" in trn2.run().stdout


@pytest.mark.parametrize("arguments", [("--nonsense",), ("--root",), ("--root", "relative"), ("--root", "/")])
def test_wrong_usage_changes_nothing_and_exits_with_2(bare: Machine, arguments: tuple[str, ...]) -> None:
    done = bare.run(*arguments)
    assert done.returncode == 2 and done.stderr and not list(bare.home.iterdir())


def test_another_python_is_used_when_named_and_passed_on(trn2: Machine, tmp_path: Path) -> None:
    python = trn2.venv("elsewhere", {"nki": "0.4.1", "numpy": "2.1.0", "ml_dtypes": "0.5.1"})
    done = trn2.run("--python", str(python))
    assert done.returncode == 0 and "2.30 (told by" in done.stdout and f"--remote-python {python}" in done.stdout


@pytest.mark.program("shellcheck")
def test_shellcheck_finds_nothing() -> None:
    assert subprocess.run(["shellcheck", str(SCRIPT)], capture_output=True, text=True).stdout == ""
