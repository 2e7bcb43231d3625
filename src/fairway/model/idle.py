"""Define idle rules: what happens to running jobs whose GPUs do nothing for a long time."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Final

from fairway.model.names import PoolName, PriorityName, TeamName, UserName

LONGEST_SECONDS: Final = 86_400
"""A rule's duration and all its graces together: windows of a job are stored for a day."""


class IdleAction(StrEnum):
    """What a rule does to an idle job, the mildest first; a rule's steps are always in this order."""

    WARN = "warn"
    """Notify its owner and its team."""
    LOWER = "lower"
    """Give it the lowest priority, so that it gives way before others do."""
    REQUEUE = "requeue"
    """Send it back to the queue, if it says that it can resume."""
    CANCEL = "cancel"


DONE_WORDS: Final = {
    IdleAction.WARN: "warned about",
    IdleAction.LOWER: "lowered",
    IdleAction.REQUEUE: "requeued",
    IdleAction.CANCEL: "cancelled",
}
"""What has been done to a job, for sentences: `it is cancelled`."""


class IdleOutcome(StrEnum):
    """How a step ended."""

    DONE = "done"
    DRY_RUN = "dry-run"
    """Recorded only: the rule is in dry run."""
    SKIPPED = "skipped"
    """Not possible for this job, for example a requeue of one that cannot resume."""
    REFUSED = "refused"
    """The engine refused it."""
    EXPIRED = "expired"
    """Not done in time, for example because no server ran: it is decided anew."""


@dataclass(frozen=True, slots=True)
class IdleStep:
    """One step of a rule."""

    action: IdleAction
    after_seconds: int
    """The grace after the step before; of the first step, after the rule's duration."""


@dataclass(frozen=True, slots=True)
class IdleRule:
    """A rule on idle jobs. The first rule of a fleet that selects a job decides, with its exemptions."""

    name: str
    below: Decimal
    """No GPU of the job reaches this ratio of busy time in any window."""
    for_seconds: int
    steps: tuple[IdleStep, ...]
    pools: tuple[PoolName, ...] = ()
    """Empty selects any, as for the next two."""
    teams: tuple[TeamName, ...] = ()
    """With the teams inside them."""
    priorities: tuple[PriorityName, ...] = ()
    except_users: tuple[UserName, ...] = ()
    except_jobs: tuple[str, ...] = ()
    """Names of jobs, with * and ?."""
    except_services: bool = True
    dry_run: bool = True
    """Record what would be done, and do nothing."""

    def step_after(self, action: IdleAction) -> IdleStep | None:
        """Return the step after an action. Returns None if it is the last."""
        order = list(IdleAction)
        later = (step for step in self.steps if order.index(step.action) > order.index(action))
        return next(later, None)


@dataclass(frozen=True, slots=True)
class IdleRules:
    """The idle rules of a fleet, in file order."""

    rules: tuple[IdleRule, ...] = ()
    longest_keep_seconds: int = 86_400
    """How long `fairway keep` may postpone them at most, from now."""


DEFAULT_IDLE: Final = IdleRules()
