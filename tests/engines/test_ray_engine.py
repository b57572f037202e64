"""The engine against two real Ray nodes: the same results as here, and what it refuses."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from accelopt_core.candidate import Candidate
from accelopt_core.evaluation import CompileFailed, Incorrect, Measured
from accelopt_core.ports import EvaluationRequest, TargetMisconfigured, TargetUnreachable
from accelopt_core.task import ShapePreset, Task
from infra.engines.engine import Command, Placement
from infra.engines.ray_engine import RayEngine, bundle
from infra.prediction.predictor import Predictor
from infra.targets.local import LocalTarget
from infra.targets.on_engine import EngineTarget
from infra.tasks.seed_index import load_seed
from tests.e2e import kernels
from tests.e2e.run import orchestrate
from tests.engines.cluster import SECRET_OF_THE_NODE, Cluster, running_cluster
from tests.processes import eventually

pytestmark = pytest.mark.extra("ray")
TASK = Task("sum", kernels.REFERENCE, (ShapePreset("full", (("P", 128), ("N", 2048), ("T", 1))),), seeds=(0, 21))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster() as made:
        yield made


@pytest.fixture(scope="module")
def engine(cluster: Cluster) -> Iterator[RayEngine]:
    made = RayEngine(cluster.address, patience_s=30.0)
    yield made
    made.close()


def quietly(line: str) -> None: ...


def script(text: str, limit_s: float = 20.0) -> Command:
    return Command(("-c", text), limit_s)


def test_verdicts_and_latencies_are_those_of_the_local_engine(engine: RayEngine) -> None:
    here, there = LocalTarget("simulator", "trn2"), EngineTarget(engine, "simulator", "trn2")
    assert there.describe() == here.describe()
    told: list[str] = []
    for source, kind in ((kernels.FAST, Measured), (kernels.WRONG, Incorrect), (kernels.BROKEN, CompileFailed)):
        request = EvaluationRequest(TASK, Candidate("c", source))
        result = there.evaluate(request, lambda step, detail: told.append(detail))
        assert isinstance(result, kind)
        assert result == here.evaluate(request, lambda step, detail: None)
    assert len([line for line in told if line.startswith("on ")]) == 3, "the live view says where each runs ..."
    assert all("worker" in line for line in told), "... at every step"
    here.close()


def test_prices_and_programs_are_those_of_the_local_engine(engine: RayEngine) -> None:
    seed = load_seed("silu")
    task = dataclasses.replace(seed.task(), presets=(ShapePreset("only", (("M", 128), ("N", 7168))),), seeds=(0,))
    texts = [seed.kernel_source.replace("TILE_N = 512", f"TILE_N = {n}") for n in (512, 1024, 1792)]
    texts += [texts[0] + "\n# the same in other words\n", "def kernel(:"]
    here, there = Predictor(task, "trn2"), Predictor(task, "trn2", workers=8, engine=engine)
    try:
        assert there(texts) == here(texts)
        assert there.programs(texts) == here.programs(texts)
    finally:
        here.close()
        there.close()


def test_a_run_ends_as_it_does_here(cluster: Cluster, tmp_path: Path) -> None:
    flags = ("--kernel", "add.py", "--rounds", "1", "--provider", "catalogue", "--extra-seeds", "0")
    runs = {}
    for name in ("local", cluster.name):
        folder = tmp_path / name.partition(":")[0]
        folder.mkdir()
        (folder / "add.py").write_text(kernels.SLOW, encoding="utf-8")
        (folder / "add_reference.py").write_text(kernels.REFERENCE.replace("2048", "512"), encoding="utf-8")
        ran = orchestrate(*flags, "--engine", name, folder=folder)
        assert ran.status == 0, ran.errors + ran.output
        assert "ray" not in ran.errors.lower(), "what Ray prints is not for the terminal"
        attempts = [{k: v for k, v in a.items() if k in ("id", "outcome", "message")} for a in ran.attempts()]
        runs[name] = ((ran.folder / "best_kernel.py").read_bytes(), ran.latency_us("best.json"), attempts)
    assert runs["local"] == runs[cluster.name]


def test_the_doctor_shows_each_node_and_what_it_makes_of_a_known_kernel(cluster: Cluster, tmp_path: Path) -> None:
    ran = orchestrate("doctor", "--engine", cluster.name, folder=tmp_path)
    assert ran.status == 0, ran.errors
    headings = [line for line in ran.output.splitlines() if line.startswith("node ")]
    assert len(headings) == 2 and all("1 CPUs, 0 NeuronCores" in line for line in headings)
    assert all(f"Python {sys.version.partition(' ')[0]}, numpy " in line and "ray 2." in line for line in headings)
    assert ran.output.count("right on simulated trn2") == 2


def test_a_node_unpacks_what_is_sent_once_and_again_where_it_is_damaged(engine: RayEngine, cluster: Cluster) -> None:
    where = "import os; print(os.getcwd())"
    node = engine.nodes()[0].id
    first = engine.carry_out(script(where), quietly, Placement(node))
    tree = Path((first.result or "").strip())
    assert tree.name == bundle().key and any(node.scratch in tree.parents for node in cluster.nodes())
    made = (tree / "infra/judging/judge.py").stat()
    again = engine.carry_out(script(where), quietly, Placement(node))
    assert again.result == first.result
    assert (tree / "infra/judging/judge.py").stat().st_ino == made.st_ino
    (tree / "infra/judging/judge.py").write_text("print('not the judge')")
    other = RayEngine(cluster.address)  # its job gets new workers, and each looks before it starts
    try:
        assert other.carry_out(script(where), quietly, Placement(node)).result == first.result
    finally:
        other.close()
    assert "not the judge" not in (tree / "infra/judging/judge.py").read_text()


@pytest.mark.parametrize(
    ("change", "said"), [({"python": "3.9"}, "the run has 3.9"), ({"numpy": "0"}, "the run has 0")]
)
def test_a_node_of_other_versions_refuses_in_one_line(cluster: Cluster, change: dict[str, str], said: str) -> None:
    other = RayEngine(cluster.address, sent=dataclasses.replace(bundle(), **change))
    try:
        with pytest.raises(TargetMisconfigured, match=said) as raised:
            other.carry_out(script("pass"), quietly)
        assert "\n" not in str(raised.value)
    finally:
        other.close()


def test_no_key_of_anybody_is_where_candidates_are_judged(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = {"ANTHROPIC_API_KEY": "sk-of-the-user", "RAY_SOMETHING_TOKEN": "token-of-the-user"}
    for name, value in mine.items():
        monkeypatch.setenv(name, value)
    other = RayEngine(cluster.address)
    try:
        done = other.carry_out(script("import os, json; print(json.dumps(dict(os.environ)))"), quietly)
        judge = json.loads(done.result or "")
        assert not [name for name in judge if name.startswith("RAY_") or name in (*mine, *SECRET_OF_THE_NODE)]
        worker = int(done.where.rpartition(" ")[2])
        block = Path(f"/proc/{worker}/environ").read_bytes()
        values = (*mine.values(), *SECRET_OF_THE_NODE.values())
        assert b"NKI_TEST_RAY_NODE" in block and not [value for value in values if value.encode() in block]
    finally:
        other.close()


def test_a_run_that_ends_leaves_nothing_at_work_on_the_nodes(cluster: Cluster, tmp_path: Path) -> None:
    mark = tmp_path / "at work"
    other = RayEngine(cluster.address)
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            other.carry_out(
                script(f"import time; open({str(mark)!r}, 'w').write('yes'); time.sleep(600)", 700), quietly
            )
        except TargetUnreachable as error:
            errors.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    assert eventually(mark.exists)
    other.close()
    thread.join(30)
    assert errors and "the run has ended" in str(errors[0])
    assert eventually(lambda: not _running(str(mark))), "the command goes on"


def _running(words: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if words.encode() in path.read_bytes() and int(path.parent.name) != os.getpid():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def test_a_cluster_that_is_not_there_is_said_in_one_line(tmp_path: Path) -> None:
    ran = orchestrate("--task", "silu", "--preset", "small", "--engine", "ray://127.0.0.1:9", folder=tmp_path)
    assert ran.status == 4
    assert "is out of reach" in ran.errors and ran.errors.count("\n") == 1, ran.errors
