"""What a sighting of an engine job makes of what is kept of it. Values in, values out.

Sightings may come twice, and now and then an old one after a newer one: an engine's records lag behind its
queue. Attempts tell which is which: they are known by when they started, and none is ever unmade.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from fairway.ledger.job_records import Wish
from fairway.ledger.observations import kept
from fairway.model.job import OPEN_JOBS, Attempt, Ending, JobSpec, JobState, SeenJob
from fairway.policy import retrying

SAME_START: Final = timedelta(seconds=5)
"""Starts that are no further apart are of one attempt: engines correct themselves by a second or two."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What changes of a job's row."""

    class_: int
    name: str
    state: JobState
    wish: Wish
    asked: bool
    code: str
    reason: str
    engine_id: str | None
    gpus: int
    nodes: int
    devices: int
    submission: int
    failures: int
    attempts: int
    started_at: datetime | None
    ended_at: datetime | None
    exit_code: int | None
    time_seconds: int | None
    not_before: datetime
    sending_until: datetime | None
    sent_at: datetime | None

    @property
    def open(self) -> bool:
        return self.state in OPEN_JOBS


@dataclass(frozen=True, slots=True)
class Numbered:
    """An attempt with its number."""

    number: int
    attempt: Attempt


@dataclass(frozen=True, slots=True)
class Merged:
    """Attempts of one engine job after a sighting."""

    put: tuple[Numbered, ...]
    """New or changed."""
    gone: tuple[int, ...]
    total: int
    """The number of the last one."""


def is_stale(known: Sequence[Numbered], seen: SeenJob) -> bool:
    """Whether what is kept is certainly newer than the sighting."""
    if not known or not seen.attempts:
        return False
    last, shown = known[-1].attempt, seen.attempts[-1]
    if shown.started_at < last.started_at - SAME_START:
        # Slurm may show a start that comes to nothing, and its accounting never hears of: once the job is
        # over, after that, what it tells is all there was.
        return seen.state in OPEN_JOBS or seen.ended_at is None or seen.ended_at < last.started_at
    same = shown.started_at <= last.started_at + SAME_START
    return same and last.ended_at is not None and shown.ended_at is None


def is_over_for_good(standing: Standing, seen: SeenJob) -> bool:
    """Whether the job is over and this sighting does not show that it began again after that."""
    if standing.open or standing.state is JobState.LOST or seen.state not in OPEN_JOBS:
        return False
    if standing.ended_at is None:
        return True
    began = [seen.submitted_at, *(a.started_at for a in seen.attempts[-1:])]
    return all(moment <= standing.ended_at for moment in began)


def is_another(standing: Standing, seen: SeenJob) -> bool:
    """Whether a job that is over and a sighting have nothing but the engine's id in common: made anew."""
    return (
        not standing.open
        and standing.ended_at is not None
        and seen.submitted_at > standing.ended_at
        and seen.earlier_attempts == 0
        and all(a.started_at > standing.ended_at for a in seen.attempts)
    )


def recalled(known: Sequence[Numbered], seen: SeenJob) -> SeenJob:
    """The sighting, with what is kept of attempts whose place the engine no longer tells of.

    A pod that is gone takes its node and the moment it began along; what is left began a little earlier.
    """
    if all(attempt.nodes for attempt in seen.attempts):
        return seen
    return replace(seen, attempts=tuple(_recalled(known, attempt) for attempt in seen.attempts))


def _recalled(known: Sequence[Numbered], shown: Attempt) -> Attempt:
    if not shown.nodes:
        for kept_one in reversed(known):
            old = kept_one.attempt
            within = shown.ended_at is None or old.started_at <= shown.ended_at
            if old.nodes and shown.started_at <= old.started_at and within:
                return replace(shown, started_at=old.started_at, nodes=old.nodes, devices=old.devices)
    return shown


def merged(known: Sequence[Numbered], before: int, seen: SeenJob) -> Merged:
    """The engine job's attempts as they are now: `before` are the job's attempts before its first.

    What the engine no longer tells of stays. One that was still running then ended somehow.
    """
    if seen.attempts:
        first = seen.attempts[0].started_at - SAME_START
        earlier = [k for k in known if k.attempt.started_at < first]
    else:
        earlier = list(known)
    offset = max([before + seen.earlier_attempts, *(k.number for k in earlier)])
    now = [Numbered(offset + place, _kept(a)) for place, a in enumerate(seen.attempts, 1)]
    if seen.attempts or seen.state is not JobState.RUNNING:
        closed = [
            replace(k, attempt=replace(k.attempt, ending=Ending.LOST))
            for k in earlier
            if k.attempt.ending is None
        ]
        now = [*closed, *now]
    old = {k.number: k.attempt for k in known}
    stays = {k.number for k in earlier} | {n.number for n in now}
    return Merged(
        put=tuple(n for n in now if old.get(n.number) != n.attempt),
        gone=tuple(number for number in old if number not in stays),
        total=offset + len(seen.attempts),
    )


def followed(standing: Standing, seen: SeenJob, attempts: Merged, class_: int | None) -> Standing:
    """The job as the engine shows it. `class_`: a native one's, which is all the engine's."""
    over = seen.state not in OPEN_JOBS
    wish, asked = _wish(standing, seen.state)
    last = seen.attempts[-1] if seen.attempts else None
    native = {} if class_ is None else _as_told(seen, class_)
    return replace(
        standing,
        state=seen.state,
        wish=wish,
        asked=asked,
        code="",
        reason=kept(seen.reason),
        engine_id=seen.engine_id,
        attempts=attempts.total,
        devices=last.devices if last is not None else native.pop("devices", standing.devices),
        started_at=last.started_at if last is not None else standing.started_at,
        ended_at=seen.ended_at if over else None,
        exit_code=seen.exit_code if over else None,
        sending_until=None,
        sent_at=None if native else standing.sent_at or seen.submitted_at,
        **{name: value for name, value in native.items() if name != "devices"},
    )


def _as_told(seen: SeenJob, class_: int) -> dict[str, Any]:
    """What only the engine knows of a native job."""
    return {
        "class_": class_,
        "name": kept(seen.name),
        "gpus": seen.gpus,
        "nodes": seen.nodes,
        "devices": seen.gpus * seen.nodes,
        "time_seconds": seen.time_seconds,
    }


def brought_back(
    standing: Standing, seen: SeenJob, spec: JobSpec, now: datetime
) -> tuple[Standing, str] | None:
    """The job queued once more, and why, if it ended in a way it comes back from. `standing`: as it ended."""
    if standing.wish is Wish.CANCEL:
        return None
    last = seen.attempts[-1].ending if seen.attempts else None
    again = retrying.comes_back(
        spec, seen.state, last, failures=standing.failures, submission=standing.submission
    )
    if again is None:
        return None
    how = _how(standing, seen, last)
    ended = standing.ended_at or now
    text = f"{how}; comes back" + (f" after {again.after_seconds} s" if again.after_seconds else " at once")
    back = replace(
        standing,
        state=JobState.HELD if standing.wish is Wish.HOLD else JobState.QUEUED,
        asked=False,
        code="Retry",
        reason=kept(text),
        engine_id=None,
        submission=standing.submission + 1,
        failures=again.failures,
        ended_at=None,
        exit_code=None,
        not_before=ended + timedelta(seconds=again.after_seconds),
        sent_at=None,
    )
    return back, text


def _wish(standing: Standing, state: JobState) -> tuple[Wish, bool]:
    """What people ask for, and whether it is still to be done, now that the engine shows this state.

    Who holds or releases a job with the engine's own tool asks for it as well.
    """
    wish, asked = standing.wish, standing.asked
    if state not in OPEN_JOBS:
        return wish, False
    if wish is Wish.CANCEL:
        return wish, True
    if state is JobState.HELD:
        return (wish, asked) if wish is Wish.RUN and asked else (Wish.HOLD, False)
    if wish is Wish.HOLD:
        return (wish, True) if asked else (Wish.RUN, False)
    # A hold that was taken back may still be on its way to the engine; only what follows it tells.
    passed = state is JobState.RUNNING or standing.state is JobState.HELD
    return wish, asked and not passed


def _how(standing: Standing, seen: SeenJob, last: Ending | None) -> str:
    if last is Ending.PREEMPTED:
        return f"attempt {standing.attempts} was preempted"
    if last is Ending.NODE_LOST:
        return f"attempt {standing.attempts} was lost with its node"
    if seen.state is JobState.TIMED_OUT:
        return f"attempt {standing.attempts} ran out of time"
    code = "" if seen.exit_code is None else f" with exit code {seen.exit_code}"
    return f"attempt {standing.attempts} failed{code}"


def _kept(attempt: Attempt) -> Attempt:
    reason = kept(attempt.reason)
    return attempt if reason == attempt.reason else replace(attempt, reason=reason)
