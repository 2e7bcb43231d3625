"""Define every reason for which a job waits: its code, its meaning and a remedy. Pure.

`fairway why`, the reference and the guide all read this table, so they agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class WaitReason:
    """A reason for which a job waits. In the remedy, `JOB` is the job's id and `ENGINE_ID` its engine id."""

    code: str
    means: str
    remedy: str

    def remedy_for(self, job: str, engine_id: str | None) -> str:
        """Return the remedy with the ids of this job filled in."""
        return self.remedy.replace("ENGINE_ID", engine_id or "ENGINE_ID").replace("JOB", job)


_ALL: Final = (
    WaitReason(
        "AboveQuota",
        "The job requests more GPUs than its team's quota and borrowing limit allow together, so it can "
        "never start as it is.",
        "submit it again with fewer GPUs; fairway get teams  shows the team's limits",
    ),
    WaitReason(
        "AccountLimit",
        "A limit of the site on the job's account or user is reached: CPUs, memory, nodes or jobs. Fairway "
        "did not set it.",
        "wait for jobs of the account to end; show the limits with:  sacctmgr show assoc "
        "format=account,user,grptres,grpjobs",
    ),
    WaitReason(
        "AccountRefused",
        "The job's account or QOS is not allowed in its partition or no longer exists, so the job can never "
        "start as it is.",
        "submit it again for one of your teams:  fairway get teams; scontrol show job ENGINE_ID  shows its "
        "account and QOS",
    ),
    WaitReason(
        "AdmissionCheck",
        "An admission check or scheduling gate of the cluster has not admitted the job yet.",
        "find the check with kubectl describe workload in the job's namespace, and ask its owner",
    ),
    WaitReason(
        "AfterAnother",
        "The job depends on another job that has not ended yet.",
        "wait for the other job; fairway describe job JOB  names it",
    ),
    WaitReason(
        "ArrayTaskLimit",
        "The array already runs as many tasks at once as it allows (the number after % in --array).",
        "wait for a task to end, or raise the limit:  scontrol update jobid=ENGINE_ID "
        "arraytaskthrottle=NUMBER",
    ),
    WaitReason(
        "BehindAnother",
        "An older job of the same team or its parent has waited long for more GPUs. GPUs that become free "
        "go to that job first, so that small jobs cannot starve it.",
        "nothing to do: the job can start once the older job has started; fairway get jobs --state waiting  "
        "shows the queue",
    ),
    WaitReason(
        "BudgetSpent",
        "The team or one of its parent teams has spent its budget. Jobs keep their place in the queue and "
        "start when the hold is lifted.",
        "raise  budget.amount  of the team in the fleet file and run  fairway apply, or let a lead request "
        "more until the period ends:  fairway budget raise TEAM AMOUNT --reason TEXT; fairway get budgets  "
        "shows when it ends",
    ),
    WaitReason(
        "ClaimNotCounted",
        "Kueue cannot count what the job claims, so it never starts it: a claim by its name, a DeviceClass "
        "that is in none of Kueue's mappings, or a form of request that Kueue does not know (alternatives, "
        "all devices, access of administrators).",
        "claim a number of devices of a pool's class by a template (resourceClaimTemplateName), or let  "
        "fairway run  do it; the cluster's classes:  kubectl get deviceclasses",
    ),
    WaitReason(
        "ClaimsUnmet",
        "The job has its quota, and no node has enough free GPUs for all its resource claims now. Kueue "
        "does not choose nodes for claims: the free GPUs may be on several nodes.",
        "wait for a job on one node to end, or request fewer GPUs per node; kubectl describe resourceclaim  "
        "in its namespace shows the request",
    ),
    WaitReason(
        "ClusterAway",
        "Fairway cannot reach the job's cluster. Running jobs continue; this job is sent when the cluster "
        "is reachable again.",
        "fairway get clusters  shows since when and why",
    ),
    WaitReason(
        "ClusterNotGoverned",
        "Fairway no longer manages the job's cluster and sends no jobs there. The job keeps its place in "
        "the queue until the cluster is managed again.",
        "fairway cancel JOB, and submit it with the cluster's own tools or to another pool; or manage the "
        "cluster again:  fairway apply -f fleet.yaml",
    ),
    WaitReason(
        "ContainerFails",
        "The job has a node, but its container does not start or fails repeatedly.",
        "correct the command, image or environment and submit again; fairway logs JOB  shows its output",
    ),
    WaitReason(
        "ContainerStarting",
        "The job has a node and is starting: the image is being pulled or volumes are being attached.",
        "wait a minute; if it does not start, inspect the pod:  kubectl describe pod",
    ),
    WaitReason(
        "DeadlinePassed",
        "The job cannot end before its deadline and is about to be cancelled.",
        "submit it again with a later --deadline, or without one",
    ),
    WaitReason(
        "DependencyFailed",
        "The job depended on another job that did not end as required. It was cancelled without running.",
        "fairway describe job JOB  names the other job; submit again, with --after ID:ended if it may start "
        "however the other job ends",
    ),
    WaitReason(
        "DependencyNeverMet",
        "The job depends on another job that did not end as required, so it can never start as it is.",
        "cancel it, or remove the dependency:  scontrol update jobid=ENGINE_ID dependency=",
    ),
    WaitReason(
        "EngineSays",
        "The engine gives a reason that Fairway does not know. It is shown as reported.",
        "fairway describe job JOB  shows where the job is; ask the cluster's administrators what the reason "
        "means",
    ),
    WaitReason(
        "EngineSilent",
        "The job is in the engine's queue, and the engine has not reported a reason yet. This is usual in "
        "the first seconds.",
        "try again in a few seconds:  fairway why JOB",
    ),
    WaitReason(
        "GettingReady",
        "The cluster is preparing the job: its nodes are being cleaned or set up, or its data is being "
        "staged in.",
        "wait a few seconds and try again:  fairway why JOB",
    ),
    WaitReason(
        "GpuEvent",
        "A GPU of the running job reported an error.",
        "fairway get gpu-events --job JOB  shows all of them; if the job makes no progress, cancel it and "
        "submit it again",
    ),
    WaitReason(
        "GpuFailed",
        "A GPU of the job failed. The job's program did not cause it.",
        "nothing to do if the job has retries: this failure does not count as one; otherwise submit it "
        "again with --retries 1",
    ),
    WaitReason(
        "GuaranteeInUse",
        "The team's guarantee is in use, and the job's QOS does not allow borrowing.",
        "submit it with both QOS: the job_submit.lua of  fairway render slurm  does that for every sbatch",
    ),
    WaitReason(
        "Held",
        "On hold by its owner or an operator. The job keeps its place in the queue and does not start until "
        "it is released.",
        "fairway release JOB",
    ),
    WaitReason(
        "HeldAfterFailure",
        "The job failed to launch, so the cluster put it on hold instead of trying again.",
        "find the cause in slurmctld's log, then release the job:  scontrol release ENGINE_ID",
    ),
    WaitReason(
        "HeldByAdmin",
        "On hold by an administrator of the cluster. The job keeps its place in the queue and does not "
        "start until it is released.",
        "ask an administrator to release it:  scontrol release ENGINE_ID",
    ),
    WaitReason(
        "ImagePullFailed",
        "The job has a node, but its container image cannot be pulled: the name is wrong, or the registry "
        "refuses or does not respond.",
        "submit it again with an image that exists:  fairway submit --again JOB --image IMAGE; fairway "
        "cancel JOB",
    ),
    WaitReason(
        "JobAboveLimit",
        "The job requests more than its account or QOS allows for one job, so it can never start as it is.",
        "request less: fairway get teams  shows the team's limits, sacctmgr show assoc, qos  those of the "
        "site",
    ),
    WaitReason(
        "JobBelowMinimum",
        "The job requests less than its QOS requires of one job, so it can never start as it is.",
        "request more, or use another QOS; show the minimum with:  sacctmgr show qos format=name,mintres",
    ),
    WaitReason(
        "JobTimeLimit",
        "The job requests more time than one job of the team may have, so it can never start as it is.",
        "submit it again with a shorter time limit, or raise  limits.job.time  of the team and run  fairway "
        "apply",
    ),
    WaitReason(
        "LicensesInUse",
        "The licenses that the job requests are in use.",
        "wait for a job that uses them to end:  scontrol show licenses",
    ),
    WaitReason(
        "NamespaceLimit",
        "The job violates a LimitRange of its namespace, so it can never start as it is.",
        "kubectl describe limitrange  in its namespace shows the limits; submit it again within them",
    ),
    WaitReason(
        "NamespaceNotAllowed",
        "The job's queue does not serve its namespace: the namespace belongs to no team of the fleet, or to "
        "another team.",
        "submit it in your team's namespace, or add the namespace's team to the fleet file and run  fairway "
        "apply",
    ),
    WaitReason(
        "NamespaceQuota",
        "A ResourceQuota of the site on the job's namespace is used up. Fairway did not set it.",
        "wait for pods there to end, or ask the quota's owner to raise it:  kubectl describe resourcequota",
    ),
    WaitReason(
        "NoNodeFits",
        "No node of the pool can ever satisfy the job's request per node, so it can never start as it is.",
        "submit it again with a smaller request per node or other features; fairway get nodes  shows what "
        "the nodes have",
    ),
    WaitReason(
        "NoRackFits",
        "The job requests all its nodes in one rack. Enough nodes are free, but not in one rack.",
        "remove  together  if the job does not need it, or wait for nodes of one rack to become free",
    ),
    WaitReason(
        "NodesReserved",
        "The job has waited long and is next: nodes are reserved for it as they become free.",
        "nothing to do: it starts when the last of its nodes is free",
    ),
    WaitReason(
        "NodesUnavailable",
        "Nodes that the job needs are down, drained or reserved.",
        "wait until they are back, or use other nodes; fairway get nodes  shows all of them. Administrators "
        "return a repaired node to service with  scontrol update nodename=NODE state=resume  or  kubectl "
        "uncordon NODE",
    ),
    WaitReason(
        "NotAdmitted",
        "The job is in a QOS that only admits jobs and has not been moved to its team's QOS.",
        "install the job_submit.lua of  fairway render slurm, then submit again",
    ),
    WaitReason(
        "NotConsidered",
        "Kueue has not decided on the job yet: it has not put it in a queue, or has not tried to start it.",
        "this takes a few seconds; after that, read Kueue's log:  kubectl --namespace kueue-system logs "
        "deployment/kueue-controller-manager",
    ),
    WaitReason(
        "NotEnoughFree",
        "Not enough GPUs are free: too few nodes have as many free GPUs as the job needs on each.",
        "wait, or request fewer GPUs per node:  fairway resize JOB --gpus N; fairway get pools  shows where "
        "GPUs are free, and a job without --pool goes to the pool where it starts soonest",
    ),
    WaitReason(
        "NotItsTurn",
        "Jobs with a higher priority wait for the same GPUs and start first.",
        "wait: fairway get jobs --state waiting  shows the queue",
    ),
    WaitReason(
        "NotQueued",
        "The job names no queue and is in no team's namespace, so no queue admits it and the fleet's policy "
        "refuses its GPU pods.",
        "submit it in your team's namespace with a queue name:  fairway get teams  lists the teams",
    ),
    WaitReason(
        "NotSent",
        "Fairway has stored the job and has not sent it to its cluster yet.",
        "this takes a few seconds; after that, check that the cluster is reachable:  fairway get clusters",
    ),
    WaitReason(
        "NotYetTime",
        "The job's begin time has not been reached, or it was requeued a moment ago.",
        "wait a few seconds, or until its begin time",
    ),
    WaitReason(
        "OtherResource",
        "The job waits for something other than GPUs: burst buffers, MPI ports, IMEX channels or nodes that "
        "can be powered up.",
        "wait for it; scontrol show job ENGINE_ID  shows what the job requests",
    ),
    WaitReason(
        "PartitionClosed",
        "The job's partition is down or inactive, so no job starts there.",
        "ask the cluster's administrators to open it:  scontrol update partitionname=NAME state=up",
    ),
    WaitReason(
        "PartitionLimit",
        "The job requests more nodes or memory than its partition allows for one job, so it can never start "
        "as it is.",
        "request less, or use another partition; scontrol show partition  shows the limits",
    ),
    WaitReason(
        "PodRefused",
        "The cluster refuses to create the job's pods: an admission policy or webhook denies them.",
        "find out which one and why:  kubectl describe job; then correct the job, or ask the owner of that "
        "policy",
    ),
    WaitReason(
        "QosGone",
        "The QOS that the job was submitted with no longer exists: the team's policy was changed.",
        "set the team's current QOS:  scontrol update jobid=ENGINE_ID qos=NAME, or submit it again",
    ),
    WaitReason(
        "QosLimit",
        "A limit of the job's QOS is reached, in total, for this user or for this account. The site set it, "
        "not Fairway.",
        "wait for jobs under that QOS to end; show the limits with:  sacctmgr show qos "
        "format=name,grptres,maxtrespu,maxjobspu",
    ),
    WaitReason(
        "QueueBroken",
        "The team's queue is inactive because a part of it is missing: a flavor, a topology or an admission "
        "check.",
        "fairway get drift  shows what was removed;  fairway apply  creates it again",
    ),
    WaitReason(
        "QueueInactive",
        "The team's queue is inactive: it was stopped, or a part of it is missing.",
        "fairway get drift  shows changes made outside Fairway, fairway get budgets  a spent budget",
    ),
    WaitReason(
        "QueueMissing",
        "The queue that the job names does not exist.",
        "use the team's own queue: set the label  kueue.x-k8s.io/queue-name  to a name that  kubectl get "
        "localqueue  shows",
    ),
    WaitReason(
        "QueueStopped",
        "The team's queue was stopped outside Fairway, so none of its jobs start.",
        "fairway get drift  shows who stopped it and when;  fairway apply  starts it again",
    ),
    WaitReason(
        "QuotaInUse",
        "The team's guarantee is in use, and no GPUs are left for it to borrow.",
        "wait, or request fewer GPUs; fairway get teams  shows the team's limits, fairway get pools  what "
        "is free",
    ),
    WaitReason(
        "ReservationGone",
        "The reservation that the job was submitted to was deleted, so the cluster put the job on hold.",
        "remove the job from the reservation and release it:  scontrol update jobid=ENGINE_ID reservation= "
        "; scontrol release ENGINE_ID",
    ),
    WaitReason(
        "ReservationWait",
        "The job waits for its reservation, which has not begun or is in use.",
        "scontrol show reservation  shows when it begins and what it includes",
    ),
    WaitReason(
        "ReservedForAnother",
        "GPUs are free, but they are reserved for a job that is ahead in the queue and needs several at "
        "once.",
        "wait until that job has started, or choose another pool with --pool",
    ),
    WaitReason(
        "Retry",
        "The job failed, has retries left and waits for the next attempt. The delay doubles each time.",
        "nothing to do: it starts again by itself; to prevent that:  fairway cancel JOB",
    ),
    WaitReason(
        "SentBack",
        "The job ran, ended and was put back into the queue.",
        "nothing to do: it starts again in its turn; fairway describe job JOB  shows how each attempt ended",
    ),
    WaitReason(
        "TeamAtCeiling",
        "The team uses all GPUs of this pool that it may use: its guarantee and what it may borrow.",
        "wait for a job of the team to end, use another pool, or raise  borrow  of the team in the fleet "
        "file and run  fairway apply",
    ),
    WaitReason(
        "TeamDraining",
        "The team is being closed: running jobs may end, and no new jobs start.",
        "submit it for another team:  fairway submit --again JOB --team TEAM; fairway get teams  lists them",
    ),
    WaitReason(
        "TeamHeld",
        "The team is on hold: it or a parent team has spent its budget, or the team is being closed.",
        "fairway get budgets  shows what is spent and when the period ends; fairway get teams  lists the "
        "teams",
    ),
    WaitReason(
        "TimeAbovePartition",
        "The job requests more time than its partition allows, so it can never start as it is.",
        "submit it again with a shorter time limit; scontrol show partition  shows the maximum",
    ),
    WaitReason(
        "UsageLimit",
        "The job's account, user or QOS has used all the GPU, CPU or other minutes it may use over time. "
        "The site set this limit.",
        "wait until past usage has decayed, or ask for a higher limit:  sacctmgr show assoc "
        "format=account,user,grptresmins",
    ),
    WaitReason(
        "UserLimit",
        "This user's running jobs use all GPUs that one user of the team may use.",
        "wait for one of them to end, or raise  limits.user.gpus  of the team",
    ),
)
REASONS: Final[Mapping[str, WaitReason]] = {reason.code: reason for reason in _ALL}

WAITS_FOR_CAPACITY: Final = frozenset(
    {"NoRackFits", "NodesReserved", "NotEnoughFree", "NotItsTurn", "ReservedForAnother"}
)
"""Reasons of a job that would start if enough GPUs were free; limits and quotas are not among them.

Free GPUs that such a job cannot use are counted as fragmented.
"""
