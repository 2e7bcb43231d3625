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
        "AboveQuota",
        "The job asks for more than its team's quota and borrowing together could ever give, so "
        "it never starts as it is.",
        "submit it again with fewer GPUs; fairway get teams  shows what the team may have",
    ),
    WaitReason(
        "AccountLimit",
        "A limit that the site set on the job's account or user is reached, of CPUs, memory, "
        "nodes or jobs. It is no limit of Fairway's.",
        "wait for jobs of the account to end; the limits:  sacctmgr show assoc "
        "format=account,user,grptres,grpjobs",
    ),
    WaitReason(
        "AccountRefused",
        "The job's account or QOS is not allowed in its partition, or is no longer there, so it "
        "never starts as it is.",
        "submit it again for a team of yours:  fairway get teams; scontrol show job ENGINE_ID  "
        "names its account and QOS",
    ),
    WaitReason(
        "AdmissionCheck",
        "An admission check or a gate of the cluster has not let the job pass yet.",
        "kubectl describe the job's Workload: it names the check; ask whoever runs it",
    ),
    WaitReason(
        "AfterAnother",
        "The job comes after another one that has not ended yet.",
        "wait for the other job; fairway describe job JOB  names it",
    ),
    WaitReason(
        "ArrayTaskLimit",
        "As many tasks of this array run as it asked to have at once (the number after % in --array).",
        "wait for a task to end, or raise it:  scontrol update jobid=ENGINE_ID arraytaskthrottle=NUMBER",
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
        "ClaimsUnmet",
        "The job asks for devices by resource claims, and no node has free devices that match all of them:"
        " others use them, or there are none. Fairway does not count such devices.",
        "kubectl describe resourceclaim  in its namespace shows what is asked for; ask for GPUs in the "
        "limits, not by claims",
    ),
    WaitReason(
        "ClusterAway",
        "Fairway cannot reach the job's cluster. What runs there goes on; the job is sent when it "
        "answers again.",
        "fairway get clusters  says since when and why",
    ),
    WaitReason(
        "ClusterNotGoverned",
        "Fairway has left the job's cluster, so it sends no jobs there. The job keeps its place until the "
        "cluster is governed again.",
        "fairway cancel JOB, and submit it with the cluster's own tools or to another pool; or govern the "
        "cluster again:  fairway apply -f fleet.yaml",
    ),
    WaitReason(
        "ContainerFails",
        "The job has its node, but its container does not start or fails again and again.",
        "correct the command, image or environment and submit again; fairway logs JOB  shows what it printed",
    ),
    WaitReason(
        "ContainerStarting",
        "The job has its node and is being prepared there: its image is pulled, its volumes are attached.",
        "wait a minute; if it stays so, describe the pod:  kubectl describe pod",
    ),
    WaitReason(
        "DeadlinePassed",
        "The job cannot end before the deadline it was submitted with, so it is about to be cancelled.",
        "submit it again with a later --deadline, or without one",
    ),
    WaitReason(
        "DependencyFailed",
        "The job was to start after another one, and that one ended in a way that makes it impossible. "
        "It was cancelled without having run.",
        "fairway describe job JOB  names the other one; submit again, with --after ID:ended if it may "
        "follow however the other ends",
    ),
    WaitReason(
        "DependencyNeverMet",
        "The job was to start after another one that ended in a way that makes it impossible, so "
        "it never starts as it is.",
        "cancel it, or take the dependency away:  scontrol update jobid=ENGINE_ID dependency=",
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
        "GettingReady",
        "The cluster prepares the job: its nodes are being cleaned or set up, or its data is brought in.",
        "wait some seconds, and ask again:  fairway why JOB",
    ),
    WaitReason(
        "GpuEvent",
        "Something went wrong with a GPU of the running job.",
        "fairway get gpu-events --job JOB  shows all of it; if the job makes no progress, end it and submit "
        "it again",
    ),
    WaitReason(
        "GpuFailed",
        "A GPU of the job failed; its program is not to blame.",
        "nothing if the job has retries: such a failure uses up none; otherwise submit it again with "
        "--retries 1",
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
        "HeldAfterFailure",
        "The job was started and its launch failed, so the cluster holds it back instead of trying for ever.",
        "find the cause in slurmctld's log, then let it go:  scontrol release ENGINE_ID",
    ),
    WaitReason(
        "HeldByAdmin",
        "An administrator of the cluster holds the job back. It keeps its place and does not start.",
        "ask them to let it go:  scontrol release ENGINE_ID",
    ),
    WaitReason(
        "ImagePullFailed",
        "The job has its node, but its container image cannot be pulled: the name is wrong, or "
        "the registry refuses or does not answer.",
        "correct the image and submit again:  fairway cancel JOB",
    ),
    WaitReason(
        "JobAboveLimit",
        "The job asks for more than one job may have by a limit on its account or QOS, so it "
        "never starts as it is.",
        "ask for less: fairway get teams  shows the team's limits, sacctmgr show assoc, qos  "
        "those of the site",
    ),
    WaitReason(
        "JobBelowMinimum",
        "The job asks for less than the least that its QOS demands of one job, so it never starts as it is.",
        "ask for more, or use another QOS; the least:  sacctmgr show qos format=name,mintres",
    ),
    WaitReason(
        "JobTimeLimit",
        "The job asks for more time than one job of the team may have, so it never starts as it is.",
        "submit it again with a shorter time limit, or raise  limits.job.time  of the team and  "
        "fairway apply",
    ),
    WaitReason(
        "KeptForAnother",
        "Devices are free, but they are being gathered for a job that asked earlier and needs several "
        "at once.",
        "wait until it has started, or name another pool with --pool",
    ),
    WaitReason(
        "LicensesInUse",
        "The licenses that the job asks for are in use.",
        "wait for a job that holds them to end:  scontrol show licenses",
    ),
    WaitReason(
        "NamespaceLimit",
        "The job breaks a LimitRange of its namespace, so it never starts as it is.",
        "kubectl describe limitrange  in its namespace shows the limits; submit it again within them",
    ),
    WaitReason(
        "NamespaceNotAllowed",
        "The job is in a namespace that its queue does not serve: the namespace belongs to no "
        "team of the fleet, or not to this queue's.",
        "submit it in the namespace of your team, or add the namespace's team to the fleet file "
        "and  fairway apply",
    ),
    WaitReason(
        "NamespaceQuota",
        "A ResourceQuota that the site set on the job's namespace is used up. It is no limit of Fairway's.",
        "wait for pods there to end, or ask its owner to raise it:  kubectl describe resourcequota",
    ),
    WaitReason(
        "NoNodeFits",
        "No node of the pool has what the job asks for on one node, whether busy or not, so it "
        "never starts as it is.",
        "submit it again with less on a node, or other features; fairway get nodes  shows what there is",
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
        "The job waits only for free GPUs; too few nodes have as many free as it needs on each.",
        "wait, or ask for less on a node; fairway get pools  shows where there is room, and a job that "
        "names no pool goes where it starts soonest",
    ),
    WaitReason(
        "NotItsTurn",
        "Jobs with a higher priority wait for the same GPUs, and go first.",
        "it will be this job's turn; fairway get jobs --state waiting  shows who else waits",
    ),
    WaitReason(
        "NotQueued",
        "The job names no queue and is in no team's namespace, so no queue has it, and the "
        "fleet's policy refuses its GPU pods.",
        "submit it in the namespace of your team with a queue name:  fairway get teams  lists them",
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
        "OtherResource",
        "The job waits for something other than GPUs that is in use: burst buffers, MPI ports, "
        "IMEX channels or nodes that may be powered up.",
        "wait for it; scontrol show job ENGINE_ID  shows what the job asks for",
    ),
    WaitReason(
        "OwnerHoldsIt",
        "The job was made by another object, which starts it when its turn comes: it has no place"
        " in a queue of its own.",
        "look at its owner instead:  kubectl describe  of the object that made it",
    ),
    WaitReason(
        "PartitionClosed",
        "The job's partition is down or inactive: nothing starts there, whatever is free.",
        "ask whoever runs the cluster to open it:  scontrol update partitionname=NAME state=up",
    ),
    WaitReason(
        "PartitionLimit",
        "The job asks for more nodes or memory than its partition gives to one job, so it never "
        "starts as it is.",
        "ask for less, or use another partition; scontrol show partition  shows the limits",
    ),
    WaitReason(
        "PlacesKept",
        "Places are being kept for this job as they become free, because it has waited long. It is next.",
        "nothing: it starts when the last of its places is free",
    ),
    WaitReason(
        "PodRefused",
        "The cluster refuses to create the job's pods: an admission policy or webhook denies them.",
        "read who denies it and why:  kubectl describe job; then correct the job, or ask the "
        "owner of that policy",
    ),
    WaitReason(
        "QosGone",
        "The QOS the job was submitted with is no longer there: the team's policy was changed meanwhile.",
        "give it the team's present one:  scontrol update jobid=ENGINE_ID qos=NAME, or submit it again",
    ),
    WaitReason(
        "QosLimit",
        "A limit of the job's QOS is reached, for all, for this user or for this account. It is a"
        " limit of the site, not of Fairway.",
        "wait for jobs under that QOS to end; the limits:  sacctmgr show qos "
        "format=name,grptres,maxtrespu,maxjobspu",
    ),
    WaitReason(
        "QueueBroken",
        "The team's queue is inactive, because something it is made of is missing: a flavor, a "
        "topology or an admission check.",
        "fairway get drift  shows what was removed;  fairway apply  makes it again",
    ),
    WaitReason(
        "QueueInactive",
        "The team's queue is inactive: it was stopped, or something it is made of is missing.",
        "fairway get drift  shows a change by hand, fairway get budgets  a spent budget",
    ),
    WaitReason(
        "QueueMissing",
        "The queue that the job names does not exist.",
        "use the team's own queue: the label  kueue.x-k8s.io/queue-name  with the name that  "
        "kubectl get localqueue  shows",
    ),
    WaitReason(
        "QueueStopped",
        "The team's queue was stopped by hand: nothing of it starts.",
        "fairway get drift  shows who stopped it and when;  fairway apply  starts it again",
    ),
    WaitReason(
        "QuotaInUse",
        "The team's quota and what it may borrow have no room for the job now: its guarantee is in use,"
        " and others use the rest.",
        "wait, or ask for fewer GPUs; fairway get teams  shows what the team may have, fairway get "
        "pools  what is free",
    ),
    WaitReason(
        "ReservationGone",
        "The reservation that the job was submitted to was deleted, so the cluster holds the job back.",
        "take it out of the reservation and let it go:  scontrol update jobid=ENGINE_ID "
        "reservation= ; scontrol release ENGINE_ID",
    ),
    WaitReason(
        "ReservationWait",
        "The job waits for its reservation: it has not begun, or what it holds is in use.",
        "scontrol show reservation  shows when it begins and what it holds",
    ),
    WaitReason(
        "Retry",
        "The job failed, has retries left, and waits for its next try. The wait doubles each time.",
        "nothing: it comes back by itself; fairway cancel JOB  if it should not",
    ),
    WaitReason(
        "SentBack",
        "The job ran, ended and was put back into the queue.",
        "nothing: it starts again in its turn; fairway describe job JOB  shows how each attempt ended",
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
        "UsageLimit",
        "What the job's account, user or QOS may use over time is used up, in GPU, CPU or other "
        "minutes. It is a limit of the site.",
        "wait until past use has decayed, or ask for more:  sacctmgr show assoc "
        "format=account,user,grptresmins",
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
