"""Define every reason for which a job waits: its code, its meaning and a remedy. Pure.

`fairway why`, the reference and the guide all read this table, so they agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class WaitReason:
    """A reason for waiting. In the remedy, `JOB` is the job's id and `ENGINE_ID` its engine id."""

    code: str
    means: str
    remedy: str

    def remedy_for(self, job: str, engine_id: str | None) -> str:
        """Return the remedy with the ids of this job filled in."""
        return self.remedy.replace("ENGINE_ID", engine_id or "ENGINE_ID").replace("JOB", job)


_ALL: Final = (
    WaitReason(
        "AfterAnother",
        "The job comes after another one that has not ended yet.",
        "wait for the other job; fairway describe job JOB  names it",
    ),
    WaitReason(
        "BehindAnother",
        "An older job of the same branch of teams has waited long for a larger place. What becomes free"
        " goes to it first, so that many small jobs cannot keep a large one out for ever.",
        "nothing: it passes when that job has started; fairway get jobs --state waiting  shows who waits",
    ),
    WaitReason(
        "BudgetSpent",
        "The team, or one around it, has spent its budget. Jobs keep their place and start when the "
        "hold goes.",
        "raise  budget.amount  of the team in the fleet file and  fairway apply; fairway get budgets  "
        "says until when",
    ),
    WaitReason(
        "ClusterAway",
        "Fairway cannot reach the job's cluster. What runs there goes on; the job is sent when it "
        "answers again.",
        "fairway get clusters  says since when and why",
    ),
    WaitReason(
        "DependencyFailed",
        "The job was to start after another one, and that one ended in a way that makes it impossible. "
        "It was cancelled without having run.",
        "fairway describe job JOB  names the other one; submit again, with --after ID:ended if it may "
        "follow however the other ends",
    ),
    WaitReason(
        "EngineSays",
        "The engine gives a reason that Fairway has no words of its own for. It is shown as the engine "
        "says it.",
        "fairway describe job JOB  shows where it is; ask whoever runs the cluster what the engine's "
        "words mean",
    ),
    WaitReason(
        "EngineSilent",
        "The engine has the job in its queue and has not said why it waits; most often it has not "
        "looked yet.",
        "ask again in some seconds:  fairway why JOB",
    ),
    WaitReason(
        "GuaranteeInUse",
        "The team's guarantee is in use, and the job may only run within it.",
        "let it name both QOS: the job_submit.lua of  fairway render slurm  does that for every sbatch",
    ),
    WaitReason(
        "Held",
        "Somebody holds the job back, its owner or an operator. It keeps its place and does not start.",
        "fairway release JOB",
    ),
    WaitReason(
        "HeldByAdmin",
        "An administrator of the cluster holds the job back. It keeps its place and does not start.",
        "ask them to let it go:  scontrol release ENGINE_ID",
    ),
    WaitReason(
        "KeptForAnother",
        "Devices are free, but they are being gathered for a job that asked earlier and needs several "
        "at once.",
        "wait until it has started, or name another pool with --pool",
    ),
    WaitReason(
        "NoRackFits",
        "The job asks to have all its nodes in one rack. Enough nodes are free, but not in one rack.",
        "leave  together  out if the job can do without, or wait for a rack to clear",
    ),
    WaitReason(
        "NodesUnavailable",
        "Nodes that the job needs are down, drained or reserved.",
        "fairway get nodes  shows which, and why",
    ),
    WaitReason(
        "NotAdmitted",
        "The job is in a QOS that only admits, and has not been given its team's.",
        "install the job_submit.lua of  fairway render slurm, then submit again",
    ),
    WaitReason(
        "NotEnoughFree",
        "Nothing stands in the way but room: fewer nodes have as many free devices as the job needs on each.",
        "wait, or ask for less on a node; fairway get pools  shows where there is room, and a job that "
        "names no pool goes where it starts soonest",
    ),
    WaitReason(
        "NotItsTurn",
        "Jobs with a higher priority wait for the same GPUs, and go first.",
        "it will be this job's turn; fairway get jobs --state waiting  shows who else waits",
    ),
    WaitReason(
        "NotSent",
        "Fairway has kept the job and has not handed it to its cluster yet.",
        "it takes some seconds; after that,  fairway get clusters  says whether the cluster answers",
    ),
    WaitReason(
        "NotYetTime",
        "The job's time to begin has not come, or it was sent back to the queue a moment ago.",
        "wait some seconds, or until the time it was given",
    ),
    WaitReason(
        "PlacesKept",
        "Places are being kept for this job as they become free, because it has waited long. It is next.",
        "nothing: it starts when the last of its places is free",
    ),
    WaitReason(
        "QosGone",
        "The QOS the job was submitted with is no longer there: the team's policy was changed meanwhile.",
        "give it the team's present one:  scontrol update jobid=ENGINE_ID qos=NAME, or submit it again",
    ),
    WaitReason(
        "QuotaInUse",
        "The team's quota and what it may borrow have no room for the job now: its guarantee is in use,"
        " and others use the rest.",
        "wait, or ask for fewer GPUs; fairway get teams  shows what the team may have, fairway get "
        "pools  what is free",
    ),
    WaitReason(
        "Retry",
        "The job failed, has retries left, and waits for its next try. The wait doubles each time.",
        "nothing: it comes back by itself; fairway cancel JOB  if it should not",
    ),
    WaitReason(
        "TeamAtCeiling",
        "The team holds all it may hold of this pool: its guarantee and what it may borrow beyond it.",
        "wait for a job of the team to end, use another pool, or raise  borrow  of the team in the "
        "fleet file and  fairway apply",
    ),
    WaitReason(
        "TeamDraining",
        "The team is being closed: what runs may end, nothing new starts.",
        "submit for another team; fairway get teams  lists them",
    ),
    WaitReason(
        "TeamHeld",
        "The team is held: it, or a team around it, has spent its budget, or it is being closed.",
        "fairway get budgets  says what is spent and until when; fairway get teams  which teams there are",
    ),
    WaitReason(
        "TimeAbovePartition",
        "The job asks for more time than its partition gives, so it never starts as it is.",
        "submit it again with a shorter time limit; scontrol show partition  shows the longest",
    ),
    WaitReason(
        "UserLimit",
        "This user's running jobs hold all that one user of the team may hold.",
        "wait for one of them to end, or raise  limits.user.gpus  of the team",
    ),
)
REASONS: Final[Mapping[str, WaitReason]] = {reason.code: reason for reason in _ALL}

WAITS_FOR_CAPACITY: Final = frozenset(
    {"KeptForAnother", "NoRackFits", "NotEnoughFree", "NotItsTurn", "PlacesKept"}
)
"""Reasons of a job that would start if enough devices were free; limits and quotas are not among them.

Free devices that such a job cannot use are counted as fragmented.
"""
