"""Idle rules: who is selected, when a step is due, and that no busy job is ever touched.

Histories are generated sample by sample: GPUs that work, wait, work one at a time, jobs with holes in their
measurement. What a rule does is compared with the samples themselves, not with windows.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

import pytest

from fairway.model.gpu_use import IDLE_RATIO, WINDOW_SECONDS
from fairway.model.idle import IdleAction, IdleRule, IdleStep
from fairway.model.job import JobId
from fairway.model.names import PoolName, PriorityName, TeamName, UserName
from fairway.model.team import Team, TeamTree
from fairway.policy import idle
from fairway.policy.idle import IdleWindow, NextStep, PastStep, RuleSet, RunningJob, exemption, next_step

HOUR = 3600
START = 1_800_000_000 - 1_800_000_000 % WINDOW_SECONDS
RULE = IdleRule(
    "notebooks",
    Decimal("0.01"),
    2 * HOUR,
    (IdleStep(IdleAction.WARN, 0), IdleStep(IdleAction.CANCEL, 1800)),
    dry_run=False,
)
JOB = RunningJob(
    JobId(7),
    "train",
    UserName("ada"),
    TeamName("nlp"),
    PoolName("a100"),
    PriorityName("normal"),
    devices=2,
    started_at=float(START),
)
TREE = TeamTree(
    [Team(TeamName("research")), Team(TeamName("nlp"), TeamName("research")), Team(TeamName("ads"))]
)


def windows(count: int, busy: float = 0.0, first: int = 0, gpus: int = 2) -> list[IdleWindow]:
    """Windows in which one GPU was busy for this ratio of the time."""
    return [
        IdleWindow(
            START + n * WINDOW_SECONDS,
            gpus * WINDOW_SECONDS,
            busy * WINDOW_SECONDS,
            gpus,
            gpus if busy < IDLE_RATIO else gpus - 1,
        )
        for n in range(first, first + count)
    ]


def decide(
    found: Sequence[IdleWindow],
    past: Sequence[PastStep] = (),
    keep_until: float | None = None,
    rule: IdleRule = RULE,
    job: RunningJob = JOB,
) -> NextStep | None:
    return next_step(job, rule, found, found[-1].start + WINDOW_SECONDS, past, keep_until)


def done(action: IdleAction, at: float, *, dry_run: bool = False, rule: str = "notebooks") -> PastStep:
    return PastStep(rule, action, at, dry_run)


def test_a_job_that_is_idle_for_long_enough_is_warned_then_cancelled() -> None:
    first = decide(windows(24))
    assert first is not None
    assert (first.step.action, first.due_at, first.idle_since) == (IdleAction.WARN, START + 2 * HOUR, START)
    assert first.evidence == (
        "its 2 GPUs were each busy for less than 1 % of the last 2 h (0.0 % on average, "
        "100 % of that time measured)"
    )
    warned = START + 2 * HOUR + 90.0
    second = decide(windows(25), [done(IdleAction.WARN, warned)])
    assert second is not None
    assert (second.step.action, second.due_at) == (IdleAction.CANCEL, warned + 1800)
    assert decide(windows(40), [done(a, warned) for a in (IdleAction.WARN, IdleAction.CANCEL)]) is None


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (windows(23), "five minutes short"),
        ([*windows(12), *windows(1, 0.02, 12), *windows(12, first=13)], "one GPU worked an hour ago"),
        ([*windows(12), *windows(12, first=13)], "one window is missing"),
        (
            [*windows(23), replace(windows(1, first=23)[0], measured=400.0)],
            "a window was measured by two thirds",
        ),
        ([*windows(23), replace(windows(1, first=23)[0], gpus=1, idle_gpus=1)], "one GPU was not measured"),
        ([replace(w, measured=560.0) for w in windows(24)], "each window was measured by 93 %"),
        (windows(24, 0.012), "one GPU of two was busy, and the mean is below the threshold"),
    ],
)
def test_a_job_that_may_have_worked_is_left_alone(found: list[IdleWindow], why: str) -> None:
    assert decide(found) is None, why


def test_an_attempt_that_began_later_has_its_own_duration() -> None:
    assert decide(windows(24), job=replace(JOB, started_at=START + 1.0)) is None
    assert decide(windows(25), job=replace(JOB, started_at=START + 1.0)) is not None


def test_a_job_that_worked_after_the_warning_begins_anew() -> None:
    found = [*windows(24), *windows(2, 0.5, 24), *windows(24, first=26)]
    step = decide(found, [done(IdleAction.WARN, START + 2 * HOUR + 10.0)])
    assert step is not None
    assert step.step.action is IdleAction.WARN


def test_keep_postpones_the_ladder_and_begins_it_anew() -> None:
    until = START + 6 * HOUR + 0.0
    step = decide(windows(36), [done(IdleAction.WARN, START + 2 * HOUR + 1.0)], until)
    assert step is not None
    assert (step.step.action, step.due_at) == (IdleAction.WARN, until)


def test_a_dry_run_does_not_count_once_the_rule_acts() -> None:
    step = decide(windows(30), [done(IdleAction.WARN, START + 2 * HOUR + 1.0, dry_run=True)])
    assert step is not None
    assert step.step.action is IdleAction.WARN


def test_steps_of_another_rule_do_not_count() -> None:
    step = decide(windows(30), [done(IdleAction.WARN, START + 2 * HOUR + 1.0, rule="other")])
    assert step is not None
    assert step.step.action is IdleAction.WARN


def test_the_first_rule_that_selects_a_job_decides() -> None:
    wide = replace(RULE, name="wide")
    narrow = replace(RULE, teams=(TeamName("research"),), pools=(PoolName("a100"),), except_users=(JOB.user,))
    assert RuleSet([narrow, wide], TREE).rule_of(JOB) is None
    assert RuleSet([narrow, wide], TREE).rule_of(replace(JOB, user=UserName("bob"))) == narrow
    assert RuleSet([narrow, wide], TREE).rule_of(replace(JOB, team=TeamName("ads"))) == wide
    assert RuleSet([narrow], TREE).rule_of(replace(JOB, pool=PoolName("h100"))) is None
    low = replace(RULE, priorities=(PriorityName("low"),))
    assert RuleSet([low], TREE).rule_of(JOB) is None
    assert RuleSet([replace(RULE, teams=(TeamName("nlp"),))], TREE).rule_of(replace(JOB, team=None)) is None


def test_exemptions() -> None:
    assert exemption(RULE, JOB) == ""
    assert exemption(RULE, replace(JOB, is_service=True)) == "it is a service"
    assert exemption(replace(RULE, except_services=False), replace(JOB, is_service=True)) == ""
    assert exemption(replace(RULE, except_users=(UserName("ada"),)), JOB) == "ada is exempt"
    assert exemption(replace(RULE, except_jobs=("tr*n",)), JOB) == "jobs named train are exempt"
    assert exemption(replace(RULE, except_jobs=("serve-*",)), JOB) == ""


# --- generated histories ----------------------------------------------------------------------------------

SAMPLE_SECONDS = 15
SAMPLES = WINDOW_SECONDS // SAMPLE_SECONDS


@dataclass
class History:
    """A job's life: for each window and GPU its samples, None where nothing was measured."""

    job: RunningJob
    rule: IdleRule
    samples: list[list[list[float | None]]]
    keeps: list[tuple[float, float]]
    """When somebody asked, and until when."""
    taken: list[tuple[float, int, IdleAction]] = field(default_factory=list)
    """When, the windows read by then, and what."""


def generate(seed: int) -> History:
    rng = random.Random(seed)
    devices = rng.choice((1, 1, 2, 4, 8))
    steps = sorted(rng.sample(list(IdleAction), rng.randint(1, 4)), key=list(IdleAction).index)
    rule = IdleRule(
        "r",
        Decimal(rng.choice(("0.005", "0.01", "0.01", "0.05", "0.2"))),
        rng.choice((600, 900, 1800, 3600)),
        tuple(IdleStep(action, rng.choice((0, 60, 300, 900, 1800))) for action in steps),
        dry_run=False,
    )
    samples: list[list[list[float | None]]] = []
    while len(samples) < 60:
        mood = rng.choice(
            ("idle", "idle", "idle", "busy", "one busy", "barely", "spike", "holes", "dark", "lost")
        )
        samples += [
            [_gpu(rng, mood, gpu, float(rule.below)) for gpu in range(devices)]
            for _ in range(rng.randint(1, 18))
        ]
    keeps = [
        (at, at + rng.choice((600, 3600, 7200)))
        for at in (START + rng.random() * len(samples) * WINDOW_SECONDS for _ in range(rng.randint(0, 2)))
    ]
    started = START - rng.choice((0, 100, 7200))
    return History(replace(JOB, devices=devices, started_at=float(started)), rule, samples, sorted(keeps))


def _gpu(rng: random.Random, mood: str, gpu: int, below: float) -> list[float | None]:
    """Return the samples of a GPU in a window."""
    match mood:
        case "busy":
            found: list[float | None] = [rng.uniform(0.3, 1.0) for _ in range(SAMPLES)]
        case "one busy":
            found = [0.0 if gpu else rng.uniform(2 * below, 1.0) for _ in range(SAMPLES)]
        case "barely":
            found = [below * rng.uniform(0.9, 1.3) for _ in range(SAMPLES)]
        case "spike":
            found = [0.0] * SAMPLES
            found[rng.randrange(SAMPLES)] = rng.choice((0.1, 1.0))
        case _:
            found = [below * rng.choice((0.0, 0.0, 0.1)) for _ in range(SAMPLES)]
    if mood == "holes":
        return [None if rng.random() < 0.15 else value for value in found]
    if mood == "dark":
        return [None] * SAMPLES
    if mood == "lost" and gpu == 0:
        return [None] * SAMPLES
    return [None if rng.random() < 0.01 else value for value in found]


def _window(number: int, gpus: list[list[float | None]]) -> IdleWindow | None:
    """Return a window as it is stored. Returns None if nothing was measured in it."""
    measured = [[v for v in values if v is not None] for values in gpus]
    seen = [values for values in measured if values]
    if not seen:
        return None
    return IdleWindow(
        START + number * WINDOW_SECONDS,
        sum(len(values) for values in seen) * SAMPLE_SECONDS,
        sum(sum(values) for values in seen) * SAMPLE_SECONDS,
        len(seen),
        sum(sum(values) / len(values) < IDLE_RATIO for values in seen),
    )


Decide = Callable[..., NextStep | None]


def play(history: History, decide: Decide = next_step) -> None:
    """Let the rule decide after each window, and record what it does."""
    past: list[PastStep] = []
    found: list[IdleWindow] = []
    for number, gpus in enumerate(history.samples):
        window = _window(number, gpus)
        if window is not None:
            found.append(window)
        read_to = START + (number + 1) * WINDOW_SECONDS
        now = read_to + 70.0
        asked = [until for at, until in history.keeps if at <= now]
        for _ in history.rule.steps:
            step = decide(history.job, history.rule, found, read_to, past, asked[-1] if asked else None)
            if step is None or step.due_at > now:
                break
            past.append(PastStep(history.rule.name, step.step.action, now, dry_run=False))
            history.taken.append((now, number + 1, step.step.action))


def wrongs(history: History) -> Iterator[str]:
    """Yield what a rule did that it must not, judged by the samples."""
    rule, below = history.rule, float(history.rule.below)
    span = -(-rule.for_seconds // WINDOW_SECONDS)
    before: tuple[float, int, IdleAction] | None = None
    for now, read, action in history.taken:
        first = read - span
        if first < 0 or START + first * WINDOW_SECONDS < history.job.started_at:
            yield f"{action} before the job had run for the rule's duration"
            continue
        since = first if before is None or before[1] > first else before[1]
        kept = ([0.0] + [until for at, until in history.keeps if at <= now])[-1]  # the latest one holds
        if now < kept:
            yield f"{action} while the job was kept"
        yield from _worked(history.samples[first:read], below, action)
        order = [step.action for step in rule.steps]
        grace = {step.action: step.after_seconds for step in rule.steps}
        place = order.index(action)
        if place:
            if before is None or before[2] is not order[place - 1]:
                yield f"{action} without the step before it"
            elif now < before[0] + grace[action]:
                yield f"{action} before its grace was over"
            elif before[0] < kept:
                yield f"{action} without a warning after the keep"
            else:
                yield from _worked(history.samples[since:read], below, action)
        before = (now, read, action)


def _worked(samples: list[list[list[float | None]]], below: float, action: IdleAction) -> Iterator[str]:
    """Yield that a GPU worked in a window, or was not measured for much of the time."""
    for gpus in samples:
        for values in gpus:
            seen = [v for v in values if v is not None]
            if not seen:
                yield f"{action} though a GPU was not measured"
            elif sum(seen) / len(seen) >= below:
                yield f"{action} though a GPU worked: {sum(seen) / len(seen):.3f} of {below}"
        if sum(v is None for values in gpus for v in values) > 0.2 * SAMPLES * len(gpus):
            yield f"{action} though much of a window was not measured"


HISTORIES = 2000


def test_no_busy_job_is_touched_in_2000_histories() -> None:
    touched = cancelled = 0
    for seed in range(HISTORIES):
        history = generate(seed)
        play(history)
        found = list(wrongs(history))
        assert not found, (seed, found, history.rule)
        touched += bool(history.taken)
        cancelled += any(action is IdleAction.CANCEL for _, _, action in history.taken)
    assert touched > HISTORIES / 4  # a rule that does nothing would pass otherwise
    assert cancelled > HISTORIES / 10


def _no_threshold(window: IdleWindow, devices: int, below: float) -> bool:
    return window.busy < below * window.measured


def _unmeasured_is_idle(window: IdleWindow, devices: int, below: float) -> bool:
    busy = window.busy * window.gpus < below * max(window.measured, 1.0)
    return busy or (below >= IDLE_RATIO and window.idle_gpus >= window.gpus)


def _idle_gpus_alone(window: IdleWindow, devices: int, below: float) -> bool:
    return window.gpus >= devices and window.idle_gpus > 0


def _skips_gaps(*asked: Any) -> NextStep | None:
    job, rule, found, read_to, past, keep = asked
    moved = [replace(w, start=read_to - (len(found) - n) * WINDOW_SECONDS) for n, w in enumerate(found)]
    return next_step(job, rule, moved, read_to, past, keep)


def _ignores_keep(*asked: Any) -> NextStep | None:
    job, rule, found, read_to, past, _ = asked
    return next_step(job, rule, found, read_to, past, None)


def _ignores_graces(*asked: Any) -> NextStep | None:
    job, rule, found, read_to, past, keep = asked
    hasty = replace(rule, steps=tuple(replace(step, after_seconds=0) for step in rule.steps))
    return next_step(job, hasty, found, read_to, past, keep)


def _halves_duration(*asked: Any) -> NextStep | None:
    job, rule, *rest = asked
    return next_step(job, replace(rule, for_seconds=rule.for_seconds // 2), *rest)


def _remembers_warnings(*asked: Any) -> NextStep | None:
    job, rule, found, read_to, past, keep = asked
    return next_step(job, rule, found, read_to, [replace(one, at=float(read_to)) for one in past], keep)


@pytest.mark.parametrize("fault", [_no_threshold, _unmeasured_is_idle, _idle_gpus_alone])
def test_a_fault_in_what_counts_as_quiet_is_found(
    monkeypatch: pytest.MonkeyPatch, fault: Callable[[IdleWindow, int, float], bool]
) -> None:
    monkeypatch.setattr(idle, "is_quiet", fault)
    assert _found_by(next_step)


@pytest.mark.parametrize(
    "fault", [_skips_gaps, _ignores_keep, _ignores_graces, _halves_duration, _remembers_warnings]
)
def test_a_fault_in_the_decision_is_found(fault: Decide) -> None:
    assert _found_by(fault)


def _found_by(decide: Decide) -> bool:
    for seed in range(HISTORIES):
        history = generate(seed)
        play(history, decide)
        if any(wrongs(history)):
            return True
    return False
