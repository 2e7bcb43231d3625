"""Decide which step of an idle rule is next for a job, and when. Pure.

A rule holds only while every window of its duration was measured and no GPU of the job did more in it than
the rule's threshold. One window that was not measured, or in which a GPU may have worked, ends the idle
stretch: the duration begins anew, and so do the steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from fairway.model.gpu_use import IDLE_RATIO, WINDOW_SECONDS
from fairway.model.idle import IdleAction, IdleRule, IdleStep
from fairway.model.job import JobId
from fairway.model.names import PoolName, PriorityName, TeamName, UserName
from fairway.model.team import TeamTree
from fairway.model.text import count, span

MEASURED_IN_WINDOW: Final = 0.8
"""The part of each window that must be measured: a lost scrape is no loss, a restarted exporter is."""
MEASURED: Final = 0.95
"""The part of the whole stretch that must be measured."""
MAX_AGE_SECONDS: Final = 900
"""Beyond this nothing is decided: telemetry is too far behind to know what a job does now."""


@dataclass(frozen=True, slots=True)
class IdleWindow:
    """What the GPUs of a job did in a window."""

    start: int
    measured: float
    """GPU-seconds."""
    busy: float
    gpus: int
    """GPUs with a measurement."""
    idle_gpus: int
    """GPUs below `IDLE_RATIO`."""


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A running job as rules see it."""

    id: JobId
    name: str
    user: UserName
    team: TeamName | None
    pool: PoolName | None
    priority: PriorityName | None
    devices: int
    started_at: float
    """Of its current attempt."""
    is_service: bool = False


@dataclass(frozen=True, slots=True)
class PastStep:
    """A step that was recorded for a job."""

    rule: str
    action: IdleAction
    at: float
    dry_run: bool


@dataclass(frozen=True, slots=True)
class IdleStretch:
    """A time up to now in which a job was idle throughout."""

    since: int
    until: int
    mean: float
    """The ratio of busy time, over all GPUs."""
    measured: float
    """The ratio of the time that was measured."""


@dataclass(frozen=True, slots=True)
class NextStep:
    """The next step of a rule for a job."""

    rule: IdleRule
    step: IdleStep
    due_at: float
    idle_since: int
    counts_from: float
    """Steps from before this belong to an earlier stretch, or to before a `keep`."""
    evidence: str


class RuleSet:
    """The rules of a fleet, with the teams that each one selects."""

    def __init__(self, rules: Sequence[IdleRule], tree: TeamTree) -> None:
        self._rules: Final = tuple((rule, _teams(rule, tree)) for rule in rules)

    def rule_of(self, job: RunningJob) -> IdleRule | None:
        """Return the rule that applies to a job. Returns None if none does, or the first one exempts it."""
        for rule, teams in self._rules:
            if (
                (not rule.pools or job.pool in rule.pools)
                and (not rule.teams or job.team in teams)
                and (not rule.priorities or job.priority in rule.priorities)
            ):
                return None if exemption(rule, job) else rule
        return None


def _teams(rule: IdleRule, tree: TeamTree) -> frozenset[TeamName]:
    named = (tree[name] for name in rule.teams if name in tree)
    return frozenset(inner.name for team in named for inner in tree.subtree(team))


def exemption(rule: IdleRule, job: RunningJob) -> str:
    """Return why a rule leaves a job alone; empty if it does not."""
    if rule.except_services and job.is_service:
        return "it is a service"
    if job.user in rule.except_users:
        return f"{job.user} is exempt"
    if any(fnmatchcase(job.name, pattern) for pattern in rule.except_jobs):
        return f"jobs named {job.name} are exempt"
    return ""


def is_quiet(window: IdleWindow, devices: int, below: float) -> bool:
    """Return whether every GPU was measured in a window, and none can have reached the ratio `below`."""
    if devices < 1 or window.gpus < devices:
        return False
    if window.measured < MEASURED_IN_WINDOW * devices * WINDOW_SECONDS:
        return False
    if window.busy >= below * window.measured:
        return False
    # All the busy time may be that of one GPU, unless each of them is known to have done nothing.
    all_idle = below >= IDLE_RATIO and window.idle_gpus >= window.gpus
    return all_idle or window.busy * window.gpus < below * window.measured


def idle_stretch(
    job: RunningJob, rule: IdleRule, windows: Sequence[IdleWindow], read_to: int
) -> IdleStretch | None:
    """Return how long a job has been idle up to `read_to`. Returns None if that is shorter than the rule's.

    `windows` are the job's, oldest first.
    """
    since, busy, measured = read_to, 0.0, 0.0
    for window in reversed(windows):
        if window.start + WINDOW_SECONDS != since or window.start < job.started_at:
            break
        if not is_quiet(window, job.devices, float(rule.below)):
            break
        since = window.start
        busy += window.busy
        measured += window.measured
    seconds = read_to - since
    held = job.devices * seconds
    if seconds < rule.for_seconds or measured < MEASURED * held:
        return None
    return IdleStretch(since, read_to, busy / measured, min(1.0, measured / held))


def next_step(
    job: RunningJob,
    rule: IdleRule,
    windows: Sequence[IdleWindow],
    read_to: int,
    past: Iterable[PastStep],
    keep_until: float | None,
) -> NextStep | None:
    """Return the next step for an idle job. Returns None if it is not idle, or all steps were done.

    Steps from before the stretch, or before the end of a `keep`, do not count: the ladder begins anew. So do
    not those that a dry run recorded, once the rule acts, and the other way round.
    """
    stretch = idle_stretch(job, rule, windows, read_to)
    if stretch is None:
        return None
    began = max(float(stretch.since + rule.for_seconds), keep_until or 0.0)
    counts_from = max(float(stretch.since), keep_until or 0.0)
    done: Mapping[IdleAction, float] = {
        one.action: one.at
        for one in sorted(past, key=lambda one: one.at)
        if one.rule == rule.name and one.dry_run == rule.dry_run and one.at >= counts_from
    }
    last = began
    for step in rule.steps:
        if step.action not in done:
            due_at = last + step.after_seconds
            return NextStep(rule, step, due_at, stretch.since, counts_from, evidence(job, rule, stretch))
        last = done[step.action]
    return None


def evidence(job: RunningJob, rule: IdleRule, stretch: IdleStretch) -> str:
    """Describe the figures that a decision is based on."""
    percent = f"{float(rule.below) * 100:g} %"
    gpus = "its GPU was" if job.devices == 1 else f"its {count(job.devices, 'GPU')} were each"
    return (
        f"{gpus} busy for less than {percent} of the last {span(stretch.until - stretch.since)} "
        f"({stretch.mean * 100:.1f} % on average, {stretch.measured * 100:.0f} % of that time measured)"
    )
