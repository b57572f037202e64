"""What became of an attempt, in one word: of a right kernel the verdict, of any other what was wrong."""

from __future__ import annotations

from enum import Enum


class Outcome(str, Enum):
    IMPROVED = "improved"
    """A new best kernel."""
    KEPT = "kept"
    """No new best, but the next parent: an exploration step."""
    NO_IMPROVEMENT = "no_improvement"
    REVERTED = "reverted"
    """Far slower than the best, or one exploration step too many."""
    MEASURED = "measured"
    """Right and timed, and not decided yet."""
    COMPILE_FAILED = "compile_failed"
    INCORRECT = "incorrect"
    IMPLAUSIBLE = "implausible"
    TIMED_OUT = "timed_out"
    CRASHED = "crashed"
    DUPLICATE = "duplicate"
    """The program of an earlier kernel in other words."""
    UNTIMED = "untimed"
    """Right as far as it could be checked where no device could time it."""
    OUTRANKED = "outranked"
    """Not sent to the device: others of its round were predicted to be faster."""
    NO_KERNEL = "no_kernel"
    """The reply held no usable kernel."""
    NO_PLAN = "no_plan"
    """The planner answered with something that is no plan."""
    MODEL_FAILED = "model_failed"
    """A model could not answer at all."""

    def __str__(self) -> str:
        return self.value


FAULTS = frozenset(
    {
        Outcome.COMPILE_FAILED,
        Outcome.INCORRECT,
        Outcome.CRASHED,
        Outcome.TIMED_OUT,
        Outcome.IMPLAUSIBLE,
        Outcome.DUPLICATE,
        Outcome.UNTIMED,
        Outcome.NO_KERNEL,
    }
)
"""Those whose attempt has an error message for its summary."""
