"""Steps from one kernel to the next: a transform at a site, the kernel it leads to, and what that is predicted to take.

Plans that are carried out without a model name their steps in `Plan.details`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from accelopt_core.candidate import source_hash
from accelopt_core.task import Surroundings
from accelopt_core.transforms.base import (
    AnalysisContext,
    IllegalSite,
    KernelModule,
    NotAKernel,
    Site,
    Transform,
    parse_kernel,
)
from accelopt_core.transforms.printing import text_of_module
from accelopt_core.transforms.registry import transform_named
from nki_sim.collector import collector_resting


class Predict(Protocol):
    """Simulated latency in µs at the task's full shape, by source: the predictor that `infra` provides."""

    def __call__(self, sources: Sequence[str], limit_s: float = ...) -> Mapping[str, float | None]:
        """None: it does not compile at every shape. Sources that the time does not suffice for are left out."""
        ...


@dataclass(frozen=True)
class Rewrite:
    """One transform at one site of one kernel."""

    site: Site
    source: str
    """The kernel it leads to."""

    @cached_property
    def content_hash(self) -> str:
        return source_hash(self.source)


@dataclass(frozen=True)
class SiteName:
    """What identifies a step in a plan."""

    transform: str
    key: str


class NotRewrites(Exception):
    """The details of a plan are not a list of steps: a model wrote them, for a model."""


def legal_rewrites(
    module: KernelModule,
    context: AnalysisContext,
    transforms: Sequence[Transform],
    wanted: Callable[[SiteName], bool] = lambda name: True,
) -> tuple[Rewrite, ...]:
    """Every legal site, in the order of the transforms, less those that lead to the same kernel as one before.

    Raises NotAKernel.
    """
    with collector_resting():
        return without_repeats(every_rewrite(module, context, transforms, wanted))


def every_rewrite(
    module: KernelModule,
    context: AnalysisContext,
    transforms: Sequence[Transform],
    wanted: Callable[[SiteName], bool] = lambda name: True,
) -> tuple[Rewrite, ...]:
    """Every legal site that is wanted, in the order of the transforms. Raises NotAKernel.

    A transform that fails, or offers what it then refuses, is at fault and not the kernel: told as a refusal, it costs
    that site and not the run.
    """
    found = []
    for transform in transforms:
        try:
            sites = transform.analyze(module, context)
        except NotAKernel:
            raise
        except Exception as error:  # whatever a stranger's kernel brings out
            context.refuse(transform.name, "", 1, _fault(error))
            continue
        for site in sites:
            if not wanted(SiteName(site.transform, site.key)):
                continue
            try:
                found.append(Rewrite(site, text_of_module(transform.apply(module, site.key))))
            except Exception as error:  # as above
                context.refuse(transform.name, site.key, site.line, _fault(error))
    return tuple(found)


def _fault(error: Exception) -> IllegalSite:
    if isinstance(error, IllegalSite):
        return error
    return IllegalSite(f"the transform itself fails here ({type(error).__name__}: {error}); please report it")


def without_repeats(steps: Sequence[Rewrite]) -> tuple[Rewrite, ...]:
    """Of steps that lead to the same kernel the first."""
    found: dict[str, Rewrite] = {}
    for step in steps:
        found.setdefault(step.content_hash, step)
    return tuple(found.values())


def carried_out(source: str, names: Sequence[SiteName], around: Surroundings) -> str:
    """The kernel after the steps, one after the other. Raises KeyError for an unknown transform, and TransformError."""
    for name in names:
        module = parse_kernel(source, around.entry_points, around)
        source = text_of_module(transform_named(name.transform).apply(module, name.key))
    return source


def as_details(names: Sequence[SiteName]) -> str:
    return json.dumps({"steps": [{"transform": name.transform, "site": name.key} for name in names]})


def rewrites_in(details: str) -> tuple[SiteName, ...]:
    """Raises NotRewrites."""
    try:
        steps = json.loads(details)["steps"]
        found = tuple(SiteName(step["transform"], step["site"]) for step in steps)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise NotRewrites(f"{type(error).__name__}: {error}") from None
    if not found or not all(isinstance(text, str) for name in found for text in (name.transform, name.key)):
        raise NotRewrites("a step is a transform and a site, by name")
    return found
