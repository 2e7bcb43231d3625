"""Join a Job, its Workload and its pods, deleted ones too, into one job with its attempts. Pure.

An attempt is a set of pods that ran together. It begins when the first of them was accepted by its node and
ends when the last container ended, by the kubelet's own times. A pod that replaces another begins the next
one: after a preemption all of them do, after the loss of a node maybe only one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from fairway.engines.kubernetes.jobs.objects import JobFacts, PodFacts, WorkloadFacts
from fairway.engines.kubernetes.nodes.devices import resources_of, slice_of
from fairway.model.fleet import Fleet, KubernetesPlace, Pool
from fairway.model.job import Attempt, Ending, EngineId, JobState, SeenJob
from fairway.model.names import ClusterName, NodeName, PriorityName, SliceName, TeamName, UserName
from fairway.model.team import Supply

Eviction = tuple[datetime, str, str]
"""When, Kueue's reason, and its message."""

_GRACE: Final = timedelta(seconds=120)
"""How long after an eviction the last container of an attempt may end: pods have time to save."""
_SECOND: Final = timedelta(seconds=1)
"""Times of conditions and of pods are whole seconds, each written by another clock."""
_LAG: Final = timedelta(seconds=10)
"""How long after an eviction the Job controller may still create pods."""
_NODE_GONE: Final = frozenset({"DeletionByTaintManager", "DeletionByPodGC", "TerminationByKubelet"})
_MOST_WORDS: Final = 500


@dataclass(frozen=True, slots=True)
class ObservedPod:
    """A pod as it was last reported, and whether it is still there."""

    facts: PodFacts
    gone: bool = False


@dataclass(frozen=True, slots=True)
class ObservedJob:
    """A Job with its Workload and pods, as the informers or a lookup reported them."""

    namespace: str
    name: str
    job: JobFacts
    gone: datetime | None = None
    """When the Job was deleted; it may have ended long before."""
    workload: WorkloadFacts | None = None
    pods: tuple[ObservedPod, ...] = ()
    evictions: tuple[Eviction, ...] = ()
    earlier: int = 0
    watched: bool = False
    """Since before its end: all pods it had are known."""


@dataclass(frozen=True, slots=True)
class AttemptPods:
    """The pods of one attempt."""

    pods: tuple[ObservedPod, ...]
    follows: bool
    """Another attempt came after it."""

    def pod(self, node: int) -> PodFacts | None:
        """Return the pod of a gang's node. Returns None if there is none."""
        facts = [p.facts for p in self.pods]
        at = next((p for p in facts if p.index == node), None)
        return at or (facts[node] if node < len(facts) and facts[node].index is None else None)


@dataclass(frozen=True, slots=True)
class JoinedJob:
    """A job as users see it, and the pods of its attempts."""

    seen: SeenJob
    runs: tuple[AttemptPods, ...]


class SupplyLookup:
    """Maps devices to supplies of the fleet: computed once, used for every job."""

    def __init__(self, fleet: Fleet, cluster: ClusterName) -> None:
        self.teams: Final = frozenset(t.name for t in fleet.teams)
        self.priorities: Final = frozenset(p.name for p in fleet.priorities)
        self._pools: Final = {
            str(p.name): p for p in fleet.pools_of(cluster) if isinstance(p.place, KubernetesPlace)
        }

    def by_flavor(self, flavors: Sequence[tuple[str, str]]) -> Supply | None:
        """Return the supply of the flavors Kueue assigned. A flavor that was recreated is named POOL.2."""
        for resource, flavor in flavors:
            pool = self._pools.get(flavor) or self._pools.get(flavor.partition(".")[0])
            if pool is not None and resource in resources_of(pool):
                return _supply(pool, resource)
        return None

    def by_labels(self, resource: str, labels: Mapping[str, str]) -> Supply | None:
        """Return the supply of what a Job requests. Returns None unless exactly one pool matches."""
        meant = [p for p in self._pools.values() if resource in resources_of(p)]
        if len(meant) > 1:
            meant = [p for p in meant if _labels(p) and _labels(p).items() <= labels.items()]
        return _supply(meant[0], resource) if len(meant) == 1 else None


def _labels(pool: Pool) -> Mapping[str, str]:
    return pool.place.node_labels if isinstance(pool.place, KubernetesPlace) else {}


def _supply(pool: Pool, resource: str) -> Supply:
    slice_ = slice_of(resource)
    return Supply(pool.name, SliceName(slice_) if slice_ is not None and pool.slices else None)


def engine_id(namespace: str, name: str, job: JobFacts) -> EngineId:
    """Return a Job's permanent id. A name of Fairway's is used once; users may reuse theirs."""
    return EngineId(f"{namespace}/{name}" if job.ours else f"{namespace}/{name}/{job.uid[:8]}")


def join(known: ObservedJob, places: SupplyLookup) -> JoinedJob:
    """Return the job, with its attempts as far as they are still known."""
    job = known.job
    runs = runs_of(known)
    attempts = _attempts(known, runs)
    over = attempts and attempts[-1].ended_at is not None
    state, reason, code = _state(known, running=bool(attempts) and not over)
    if state is JobState.FAILED and attempts and attempts[-1].exit_code:
        # Kubernetes' own words tell of our rule for failures, not of the failure.
        reason = attempts[-1].reason or f"exit code {attempts[-1].exit_code}"
    unseen = state in _OVER and not attempts and not known.watched
    if unseen and job.started is not None and job.finished_at is not None:
        # Its pods are gone, and nobody looked at the time: Kubernetes removes those that ran too long.
        attempts = (_forgotten(job, job.started, job.finished_at),)
    team = TeamName(known.namespace) if known.namespace in places.teams else None
    resource, gpus = job.devices[0] if job.devices else ("", 0)
    seen = SeenJob(
        engine_id=engine_id(known.namespace, known.name, job),
        name=known.name,
        user=UserName("" if job.user.startswith("system:") else job.user),
        team=team,
        state=state,
        submitted_at=job.created,
        supply=_supply_of(known, resource, places) if resource else None,
        gpus=gpus,
        nodes=job.pods,
        priority=PriorityName(job.priority) if job.priority in places.priorities else None,
        time_seconds=job.seconds,
        reason=reason[:_MOST_WORDS],
        reason_code=code,
        attempts=attempts,
        earlier_attempts=known.earlier,
        ended_at=_ended_at(known, attempts) if state in _OVER else None,
        exit_code=attempts[-1].exit_code if attempts and state in _OVER else None,
    )
    return JoinedJob(seen, runs)


_OVER: Final = frozenset({JobState.DONE, JobState.FAILED, JobState.TIMED_OUT, JobState.CANCELLED})


def _supply_of(known: ObservedJob, resource: str, places: SupplyLookup) -> Supply | None:
    if known.workload is not None and (given := places.by_flavor(known.workload.flavors)) is not None:
        return given
    return places.by_labels(resource, dict(known.job.selector))


# attempts


def runs_of(known: ObservedJob) -> tuple[AttemptPods, ...]:
    """Group the pods that started into sets that ran together."""
    started = [p for p in known.pods if p.facts.started is not None]
    started.sort(key=lambda p: (p.facts.created, p.facts.name))
    runs: list[tuple[ObservedPod, ...]] = []
    current: list[ObservedPod] = []
    for pod in started:
        if any(_replaces(pod.facts, other, known.job.pods) for other in current):
            runs.append(tuple(current))
            current = [p for p in current if not _is_over(p) and p.facts.index != pod.facts.index]
        current.append(pod)
    if current:
        runs.append(tuple(current))
    return tuple(AttemptPods(pods, i < len(runs) - 1) for i, pods in enumerate(runs))


def _replaces(pod: PodFacts, other: ObservedPod, at_a_time: int) -> bool:
    """Return whether a pod replaced another that did not succeed."""
    before = other.facts
    if pod.index is not None and pod.index == before.index:
        return True
    if not _is_over(other) or before.phase == "Succeeded":
        return False
    end = before.ended or before.told_to_go
    return at_a_time == 1 or (end is not None and end < pod.created)


def _is_over(pod: ObservedPod) -> bool:
    return pod.gone or pod.facts.ended is not None


def _attempts(known: ObservedJob, runs: Sequence[AttemptPods]) -> tuple[Attempt, ...]:
    attempts: list[Attempt] = []
    for before, run, after in zip((None, *runs), runs, (*runs[1:], None), strict=False):
        waits_since = attempts[-1].ended_at if attempts else None
        attempts.append(_attempt(known, before, run, after, waits_since or known.job.created))
    return tuple(attempts)


def _attempt(
    known: ObservedJob,
    before: AttemptPods | None,
    run: AttemptPods,
    after: AttemptPods | None,
    waits_since: datetime,
) -> Attempt:
    facts = [p.facts for p in run.pods]
    earlier = {p.facts.uid for p in before.pods} if before else set()
    started = min(f.started for f in facts if f.started is not None and f.uid not in earlier)
    stayed = {p.facts.uid for p in after.pods} if after else set()
    left = [p for p in run.pods if p.facts.uid not in stayed] or list(run.pods)
    ended = None
    if after is not None or (all(_is_over(p) for p in run.pods) and not _more_to_come(known, run)):
        next_one = (
            min((p.facts.created for p in after.pods if p not in run.pods), default=None) if after else None
        )
        ended = max(started, *(_pod_end(known, p, next_one) for p in left))
    nodes = tuple(NodeName(n) for n in sorted({f.node for f in facts if f.node}))
    devices = sum(n for f in facts for _, n in f.devices[:1])
    if ended is None:
        return Attempt(started, nodes, devices)
    ending, reason = _ending(known, left, started, ended, waits_since, last=after is None)
    worst = _failure(left) or (left[0].facts if left else None)
    code = worst.exit_code if worst else None
    if ending is Ending.DONE:
        code = 0
    return Attempt(
        started, nodes, devices, ended, ending, code,
        worst.signal if worst and ending is not Ending.DONE else None, reason[:_MOST_WORDS],
    )  # fmt: skip


def _more_to_come(known: ObservedJob, run: AttemptPods) -> bool:
    """Return whether an attempt of ended pods goes on: others have not begun, or more are to be created."""
    if known.gone or known.job.finished or known.job.suspended:
        return False
    if known.job.ours and _failure(run.pods) is not None:
        return True  # the Job is about to be over: no second try is made of ours
    return all(p.facts.phase == "Succeeded" for p in run.pods)


def _pod_end(known: ObservedJob, pod: ObservedPod, next_one: datetime | None) -> datetime:
    """Return when a pod ended: by the kubelet; else by the earliest known time at which it was ended."""
    facts = pod.facts
    end = facts.ended or facts.told_to_go
    if end is None:
        since = facts.started or facts.created
        sent_back = [at for at, _, _ in known.evictions if at >= since]
        ends = [*sent_back, *(t for t in (next_one, known.job.finished_at, known.gone) if t is not None)]
        end = min(ends, default=since)
    return end


def _failure(pods: Iterable[ObservedPod]) -> PodFacts | None:
    """Return a pod that failed by itself, before it was told to terminate. Returns None if none did."""
    for pod in pods:
        facts = pod.facts
        by_itself = facts.told_to_go is None or (facts.ended is not None and facts.ended < facts.told_to_go)
        if facts.exit_code and not facts.disrupted and by_itself:
            return facts
    return None


def _ending(  # noqa: PLR0911  (one line for each way)
    known: ObservedJob,
    left: Sequence[ObservedPod],
    started: datetime,
    ended: datetime,
    waits_since: datetime,
    *,
    last: bool,
) -> tuple[Ending, str]:
    job = known.job
    if last and job.finished.startswith("Complete"):
        return Ending.DONE, ""
    if last and job.finished == "Failed/DeadlineExceeded":
        return Ending.TIMED_OUT, job.words
    if last and not job.finished and known.gone is not None and ended >= known.gone:
        return Ending.CANCELLED, ""  # whatever its pods said when they were told to go
    if (failed := _failure(left)) is not None:
        return Ending.FAILED, failed.words
    made = min((p.facts.created for p in left), default=started)  # it may be sent back before it begins
    if (sent_back := _evicted(known, min(made, started), ended)) is not None:
        return sent_back
    disrupted = next((p.facts for p in left if p.facts.disrupted), None)
    if disrupted is not None:
        return _DISRUPTED.get(disrupted.disrupted, Ending.NODE_LOST), disrupted.disrupted
    if known.gone is not None and last and not job.finished:
        return Ending.CANCELLED, ""
    if last and job.finished:
        return Ending.FAILED, job.words
    if all(p.facts.phase == "Succeeded" for p in left):
        return Ending.DONE, ""
    if any(p.facts.phase == "Failed" and p.facts.told_to_go is None for p in left):
        return Ending.FAILED, next((p.facts.words for p in left if p.facts.words), "")
    # Where the Job controller lags, a Job is sent back even before its pods are made.
    return _evicted(known, max(made - _LAG, waits_since + _SECOND), ended) or (
        Ending.REQUEUED,
        "its pods were deleted",
    )


def _evicted(known: ObservedJob, since: datetime, ended: datetime) -> tuple[Ending, str] | None:
    """Return how the last eviction since then ended an attempt. Returns None if there was none."""
    for at, why, words in reversed(known.evictions):
        if max(since, ended - _GRACE) <= at <= ended + _SECOND:
            return _sent_back(why), words
    return None


def _sent_back(why: str) -> Ending:
    if why == "Preempted":
        return Ending.PREEMPTED
    if why == "NodeFailures":
        return Ending.NODE_LOST
    if why.endswith("MaximumExecutionTimeExceeded"):
        return Ending.TIMED_OUT
    return Ending.REQUEUED


_DISRUPTED: Final = {
    **dict.fromkeys(_NODE_GONE, Ending.NODE_LOST),
    "PreemptionByScheduler": Ending.PREEMPTED,
    "PreemptionByKubeScheduler": Ending.PREEMPTED,
    "EvictionByEvictionAPI": Ending.REQUEUED,
}


def _forgotten(job: JobFacts, started: datetime, ended: datetime) -> Attempt:
    ending = Ending.DONE if job.finished.startswith("Complete") else Ending.FAILED
    if job.finished == "Failed/DeadlineExceeded":
        ending = Ending.TIMED_OUT
    devices = job.pods * (job.devices[0][1] if job.devices else 0)
    code = 0 if ending is Ending.DONE else None
    return Attempt(started, (), devices, ended, ending, code, None, job.words[:_MOST_WORDS])


def with_forgotten(known: ObservedJob) -> ObservedJob:
    """Add the number of attempts of which no pods are left.

    Kueue counts how often it evicted a Job, and Kubernetes how many of its pods failed; the pods may
    be gone. One that was evicted before its pods began counts too: it held its GPUs.
    """
    visible = len(runs_of(known))
    lost_pods = known.job.failed_pods if known.job.pods == 1 else 0
    behind = known.workload.evictions if known.workload else 0
    now = any(p.facts.started is not None and not p.facts.told_to_go for p in known.pods)
    total = behind + max(lost_pods - (1 if known.job.finished.startswith("Failed") else 0), 0)
    total += 1 if now or known.job.finished else 0
    return replace(known, earlier=max(0, total - max(visible, 1 if known.job.finished else 0)))


# state


def _state(known: ObservedJob, *, running: bool) -> tuple[JobState, str, str]:  # noqa: PLR0911
    """Return where the job is, why in Kubernetes' or Kueue's words, and their code if it waits."""
    job, workload = known.job, known.workload
    if job.finished and not running:
        if job.finished.startswith("Complete"):
            return JobState.DONE, "", ""
        timed_out = job.finished == "Failed/DeadlineExceeded"
        return (JobState.TIMED_OUT if timed_out else JobState.FAILED), job.words, ""
    if known.gone is not None and not running:
        return JobState.CANCELLED, "the Job was deleted", ""
    waits = next((p.facts for p in known.pods if not _is_over(p) and p.facts.words), None)
    if running:
        return JobState.RUNNING, waits.words if waits else "", ""
    if workload is None:
        held = job.suspended and not job.ours and not job.priority
        return (JobState.WAITING, "suspended", "Held") if held else (JobState.WAITING, "", "")
    if workload.held:
        if known.evictions and _sent_back(known.evictions[-1][1]) is Ending.TIMED_OUT:
            return JobState.TIMED_OUT, known.evictions[-1][2], ""  # Kueue's own limit: it stays suspended
        return JobState.HELD, workload.words, "Held" if workload.words else ""
    why = waits or workload
    return JobState.WAITING, why.words, why.code


def _ended_at(known: ObservedJob, attempts: Sequence[Attempt]) -> datetime:
    """Return when its last container ended; of one that never ran, when it was ended."""
    if attempts and (last := attempts[-1].ended_at) is not None and not _ended_waiting(known, attempts[-1]):
        return last
    return known.job.finished_at or known.gone or known.job.created


def _ended_waiting(known: ObservedJob, last: Attempt) -> bool:
    """Return whether it was back in its queue when it was ended."""
    return not known.job.finished and last.ending not in {Ending.CANCELLED, Ending.TIMED_OUT}
