"""A model without our kernels and with them, by its own harness on its own host, and whether they are to stay.

The way in is `Benchmark.run`: the baseline runs on the checkout as it is, then the kernels go into their places, and
the same harness runs again. They stay only where the answers are right and the model is faster; else they are put back
at once, and `--undo` puts them back whenever it is asked for. A dropped link is waited out. A killed client leaves
nothing half done: whoever asks for the same again collects what ran on meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from accelopt_core.ports import TargetError, TargetMisconfigured, TargetUnreachable
from infra.journal import utc_now
from infra.model_benchmark.deployment import Checkout, Deployment, Wanted, files_of, fitted, key_of
from infra.model_benchmark.figures import Accuracy, gain
from infra.model_benchmark.harness import Harness, environment
from infra.model_benchmark.kept_runs import Ended, KeptRuns
from infra.model_benchmark.reports import ReportInvalid
from infra.model_benchmark.verdict import Benchmarked, HarnessRun, Verdict, judged
from infra.ssh.job_records import JobRecord
from infra.ssh.runner import JobSpec, RemoteJob, SshRunner
from infra.ssh.stream import JobRefused

BASELINE = "baseline"
_STOP_PATIENCE_S = 15.0
_OUTPUT_LIMIT_BYTES = 16 << 20
_LONGEST_REASON = 400

Tell = Callable[[str], object]


class AtWork(TargetMisconfigured):
    """Another client's harness runs in the checkout: wait for it, or end it."""


class ChangedMeanwhile(TargetMisconfigured):
    """The checkout was not one and the same while the harness ran, and what it measured counts for nothing."""


class HarnessFailed(TargetMisconfigured):
    """The harness ended without a result: its last words say why."""


@dataclass(frozen=True)
class Host:
    """`python`: there; `path_first`: folders of its tools; `limit_s`: for one run of the harness."""

    runner: SshRunner
    python: str
    path_first: tuple[str, ...]
    limit_s: float


class Benchmark:
    """Of one checkout with one harness."""

    def __init__(self, host: Host, checkout: str, harness: Harness, kept: KeptRuns, tell: Tell) -> None:
        """`tell`: told each step, and each line that the harness prints."""
        self._host = host
        self._deployment = Deployment(host.runner, checkout)
        self._harness = harness
        self._kept = kept
        self._tell = tell
        self._notes: list[str] = []

    def run(self, wanted: Sequence[Wanted], *, baseline_again: bool = False) -> Benchmarked:
        """An interruption ends what runs there and puts the checkout back.

        Raises HarnessFailed and ReportInvalid for a baseline without a result, ChangedMeanwhile, AtWork, CannotPlace,
        BadHarness, JobRefused, TargetUnreachable and JournalError.
        """
        there = self._looked(wanted, baseline_again=baseline_again)
        command = self._harness.command(self._host.python, there.base, there.read)
        kernels = fitted(wanted, there) if there.in_place is None else None  # before a baseline that may take hours
        baseline = self._baseline(there, again=baseline_again and there.in_place is None)
        if baseline.figures.accuracy is Accuracy.FAILED:
            raise HarnessFailed(f"{there.base} fails its own accuracy check as it is, without any kernel of ours")
        try:
            if kernels is not None:
                self._tell("putting the kernels into the checkout")
                self._notes += kernels.notes
                self._deployment.put_in(kernels, there)
            with_kernels, after, failure = None, None, ""
            try:
                with_kernels = self._run(key_of(wanted), there, command.collect)
                after = with_kernels.figures
            except (HarnessFailed, ReportInvalid) as error:
                failure = str(error)
            verdict, why = judged(baseline.figures, after, failure)
        except TargetUnreachable:
            self._tell("it goes on there: the same command collects it, and `model --undo` puts the checkout back")
            raise
        except BaseException:
            self._put_back_after_all()
            raise
        if verdict is not Verdict.FASTER:
            self._tell("putting the checkout back")
            self._put_back()
        return Benchmarked(
            there.base, baseline, with_kernels, gain(baseline.figures, after) if after is not None else None, verdict,
            why, verdict is Verdict.FASTER, (*self._notes, *self._host.runner.notes),
        )  # fmt: skip

    def _looked(self, wanted: Sequence[Wanted], *, baseline_again: bool) -> Checkout:
        """The checkout as it is, or with just these kernels in it since an earlier call."""
        names = [*self._harness.reads, *files_of(wanted)]
        there = self._deployment.look(names)
        in_place = there.in_place
        ours = self._key(BASELINE, there)
        if in_place is not None:
            ours = self._key(in_place.key, replace(there, digest=in_place.before))
        if there.running and not self._kept.under_way.owes(ours):
            raise AtWork(
                f"another benchmark, or an earlier one of what was changed since, is at work in {there.base}: wait for "
                "it, or end it with --undo"
            )
        if in_place is None:
            return there
        known, goes_on = self._kept.ended(self._key(BASELINE, there)), there.running or not baseline_again
        if in_place.key == key_of(wanted) and known is not None and goes_on:
            self._tell(f"the kernels are in place since {in_place.since}: going on from there")
            return there
        what = "other kernels are in place"
        if there.digest != in_place.before:
            what = "it was changed with kernels in place"
        elif in_place.key == key_of(wanted):
            what = "the kernels are in place"
        self._tell(f"{what} since {in_place.since}: putting the checkout back first")
        self._put_back()
        return self._deployment.look(names)

    def _put_back(self) -> list[str]:
        """The notes that it adds."""
        back = self._deployment.put_back()
        kept = back.kept if back is not None else ()
        added = [f"{copy} on {self._host.runner.where} is a copy of a file that was changed meanwhile" for copy in kept]
        self._notes += added
        return added

    def _put_back_after_all(self) -> None:
        """On the way out: what cannot be done is said, and the reason for going stays the one that is told."""
        try:
            for note in self._put_back():
                self._tell(note)
        except TargetError as error:
            self._tell(f"the kernels are in the checkout still, `model --undo` puts it back: {error}")

    def _key(self, variant: str, there: Checkout) -> str:
        words = (self._host.python, self._harness.name, *self._harness.words)
        return self._kept.key(variant, there.base, there.digest, words)

    # --- one run of the harness -----------------------------------------------------------------

    def _baseline(self, there: Checkout, *, again: bool) -> HarnessRun:
        command = self._harness.command(self._host.python, there.base, there.read)
        key = self._key(BASELINE, there)
        known = None if again else self._kept.ended(key)
        if known is None:
            return self._run(BASELINE, there, command.collect)
        ended, files = known
        self._notes.append(f"the baseline is that of {ended.began}: --baseline-again measures it anew")
        return self._measured(key, ended, files, there)

    def _run(self, variant: str, there: Checkout, collect: Sequence[str]) -> HarnessRun:
        """Raises HarnessFailed and ReportInvalid."""
        key = self._key(variant, there)
        job = self._collected(key, collect) or self._started(key, variant, there)
        outcome = job.outcome
        assert outcome is not None, "followed to its end"
        if outcome.ended != "exit" or outcome.status != 0:
            how = {"timeout": f"took longer than {self._host.limit_s / 3600:g} h", "killed": "was ended there"}
            said = how.get(outcome.ended, f"ended with status {outcome.status}")
            raise HarnessFailed(f"the harness {said}{_last_words(outcome.stderr_tail)}")
        self._same_still(there, variant)
        ended = Ended(utc_now().isoformat(timespec="seconds"), outcome.elapsed_s, tuple(sorted(job.files)))
        for name, why in job.unreadable.items():
            raise ReportInvalid(f"{name} cannot be fetched: {why}")
        folder = self._kept.keep(key, job.files)
        try:
            measured = self._measured(key, ended, job.files, there)
        except ReportInvalid as error:
            raise ReportInvalid(f"{error}; what came back is in {folder}") from None
        if measured.figures.accuracy is not Accuracy.FAILED:
            self._kept.hold(key, ended)  # what is no result is measured anew when it is asked for again
        return measured

    def _same_still(self, there: Checkout, variant: str) -> None:
        now = self._deployment.look()
        there_now = now.in_place.key if now.in_place is not None else BASELINE
        if there_now != variant or now.digest != there.digest:
            which = "its baseline ran" if variant == BASELINE else "the harness ran with the kernels in it"
            raise ChangedMeanwhile(
                f"{there.base} was changed while {which}, so that counts for nothing: run it again, and where "
                "it was the harness that wrote there, have it write into its own folder"
            )

    def _measured(self, key: str, ended: Ended, files: Mapping[str, bytes], there: Checkout) -> HarnessRun:
        figures = self._harness.figures(files, there.read)
        return HarnessRun(ended.began, ended.elapsed_s, figures, str(self._kept.path(key)))

    def _collected(self, key: str, collect: Sequence[str]) -> RemoteJob | None:
        """What an earlier process had started and did not see the end of."""
        record = self._kept.under_way.take_over(key)
        if record is None:
            return None
        self._tell(f"a run of the harness began at {record.began[:19]}, before a restart: collecting it")
        job = RemoteJob(record.job, JobSpec((), record.limit_s, collect=tuple(collect)), record.secret)
        try:
            self._follow(job, record)
        except JobRefused as error:
            self._tell(f"nothing to collect, so it begins again: {error}")
            return None
        if job.outcome is not None and job.outcome.ended == "killed":
            self._tell("it was ended there, so it begins again")
            return None
        return job

    def _started(self, key: str, variant: str, there: Checkout) -> RemoteJob:
        runner = self._host.runner
        command = self._harness.command(self._host.python, there.base, there.read)
        job = runner.new_job(
            JobSpec(
                command.argv, self._host.limit_s, command.files, environment(), self._host.path_first,
                collect=command.collect, stdout_limit_bytes=_OUTPUT_LIMIT_BYTES,
            )
        )  # fmt: skip
        record = JobRecord(
            key, runner.where, runner.root, job.id, job.secret, "", self._host.limit_s,
            utc_now().isoformat(timespec="seconds"),
        )  # fmt: skip
        which = "as it is" if variant == BASELINE else "with the kernels"
        self._tell(f"running {self._harness.name} on the checkout {which}")
        self._kept.under_way.begin(record)  # before it starts: what is not recorded could not be collected
        self._deployment.works(job.id)
        self._follow(job, record, start=True)
        return job

    def _follow(self, job: RemoteJob, record: JobRecord, *, start: bool = False) -> None:
        """To its end. Only an unreachable host keeps the record; after an interruption nothing runs on there."""
        runner = self._host.runner
        try:
            if start:
                runner.start_job(job)
            for line in runner.follow(job):
                self._tell(line)
        except TargetUnreachable:
            raise
        except BaseException as error:
            if not isinstance(error, JobRefused):
                with contextlib.suppress(TargetError):
                    runner.kill(job, remove=True, patience_s=_STOP_PATIENCE_S)
            self._kept.under_way.over(record)
            raise
        with contextlib.suppress(TargetUnreachable):  # the files are here; a later sweep removes what is there
            runner.remove(job, patience_s=_STOP_PATIENCE_S)
        self._kept.under_way.over(record)


def _last_words(text: str) -> str:
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return f": {lines[-1][:_LONGEST_REASON]}" if lines else ""
