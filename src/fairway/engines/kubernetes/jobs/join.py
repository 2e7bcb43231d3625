"""Join an object, its Workloads and its pods, deleted ones too, into one job with its attempts. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

from fairway.engines.kubernetes.jobs.attempts import (
    MAX_REASON_LENGTH,
    attempts_of,
    earlier_end,
    eviction_ending,
    forgotten_attempt,
    group_by_attempt,
)
from fairway.engines.kubernetes.jobs.labels import PROJECT
from fairway.engines.kubernetes.jobs.objects import PodFacts
from fairway.engines.kubernetes.jobs.observed import Labels, ObservedJob, current_workloads
from fairway.engines.kubernetes.jobs.replicas import (
    GATED,
    replica_attempts,
    replica_state,
    replicas_wanted,
    uncounted,
)
from fairway.engines.kubernetes.nodes.devices import REPLICAS, resources_of, supply_of, supply_on
from fairway.explain.engine_reasons import kueue_code
from fairway.model.fleet import Fleet, KubernetesPlace, Pool
from fairway.model.job import ENDED_JOBS, Attempt, Ending, JobState, SeenJob
from fairway.model.labels import kept_labels
from fairway.model.names import ClusterName, PoolName, PriorityName, TeamName, UserName
from fairway.model.team import Supply


class SupplyLookup:
    """A lookup of the supplies of a fleet by flavor or by labels: computed once, used for every job."""

    def __init__(self, fleet: Fleet, cluster: ClusterName, nodes: Iterable[Labels] = ()) -> None:
        """`nodes` are the labels of each: those tell whether pods share its GPUs."""
        self.teams: Final = frozenset(t.name for t in fleet.teams)
        self.priorities: Final = frozenset(p.name for p in fleet.priorities)
        self.label_keys: Final = fleet.cost.labels
        self._pools: Final = {
            str(p.name): p for p in fleet.pools_of(cluster) if isinstance(p.place, KubernetesPlace)
        }
        self._commonest: Final = self._commonest_labels(nodes)

    def by_flavor(
        self, flavors: Sequence[tuple[str, str]], labels: Mapping[str, str] | None = None
    ) -> Supply | None:
        """Return the supply of the flavors Kueue assigned. A flavor that was recreated is named POOL.2.

        `labels` are those of its node, if it has one.
        """
        for resource, flavor in flavors:
            pool = self._pools.get(flavor) or self._pools.get(flavor.partition(".")[0])
            if pool is not None and supply_of(resource, pool) is not None:
                return self.on_node(resource, pool, labels)
        return None

    def by_node(self, resource: str, labels: Mapping[str, str]) -> Supply | None:
        """Return the supply of a resource on a node with these labels. Returns None if no pool claims it."""
        for pool in self._pools.values():
            supply = supply_on(resource, pool, labels)
            if supply is not None and _labels(pool).items() <= labels.items():
                return supply
        return None

    def by_labels(self, resource: str, labels: Mapping[str, str]) -> Supply | None:
        """Return the supply of what a Job requests. Returns None unless exactly one pool matches."""
        pools = [p for p in self._pools.values() if resource in resources_of(p)]
        if len(pools) > 1:
            pools = [p for p in pools if _labels(p) and _labels(p).items() <= labels.items()]
        return self.on_node(resource, pools[0]) if len(pools) == 1 else None

    def on_node(self, resource: str, pool: Pool, labels: Mapping[str, str] | None = None) -> Supply | None:
        """Return the supply of a resource on a node; None: on a node as most of the pool's are."""
        return supply_on(resource, pool, self._commonest.get(pool.name, {}) if labels is None else labels)

    def _commonest_labels(self, nodes: Iterable[Labels]) -> Mapping[PoolName, Mapping[str, str]]:
        counts: dict[PoolName, Counter[str]] = {}
        for node in nodes:
            labels = dict(node)
            for pool in self._pools.values():
                if _labels(pool).items() <= labels.items():
                    counts.setdefault(pool.name, Counter())[labels.get(REPLICAS, "")] += 1
        return {pool: {REPLICAS: found.most_common(1)[0][0]} for pool, found in counts.items()}


def _labels(pool: Pool) -> Mapping[str, str]:
    return pool.place.node_labels if isinstance(pool.place, KubernetesPlace) else {}


def join(observed: ObservedJob, supplies: SupplyLookup) -> SeenJob:
    """Return the job, with its attempts as far as their pods were observed."""
    job, resource = observed.job, observed.resource()
    if observed.separate:
        attempts = replica_attempts(observed, resource)
        running = any(a.ended_at is None for a in attempts)
    else:
        attempts = attempts_of(observed, group_by_attempt(observed), resource)
        running = bool(attempts) and attempts[-1].ended_at is None
    if observed.service:
        state, reason, code = replica_state(observed, running=running)
    else:
        state, reason, code = _state(observed, running=running)
    if state is JobState.FAILED and attempts and attempts[-1].exit_code:
        # Kubernetes' own message is about our podFailurePolicy, not about the failure.
        reason = attempts[-1].reason or f"exit code {attempts[-1].exit_code}"
    unobserved = state in ENDED_JOBS and not attempts and not observed.watched
    if unobserved and not observed.separate and job.started is not None and job.finished_at is not None:
        # Its pods are gone and were not observed: Kubernetes removes those that ran too long.
        attempts = (forgotten_attempt(job, job.started, job.finished_at),)
    gpus, nodes, devices = _request(observed, resource)
    labels = dict(job.labels)
    # Without pods, nothing tells the labels of an object of another kind.
    unknown = observed.root is not None and not observed.pods and not labels
    return SeenJob(
        engine_id=observed.engine_id,
        name=observed.name,
        user=UserName("" if job.user.startswith("system:") else job.user),
        team=TeamName(observed.namespace) if observed.namespace in supplies.teams else None,
        state=state,
        submitted_at=job.created,
        supply=_supply_of(observed, resource, supplies) if resource else None,
        gpus=gpus,
        nodes=nodes,
        priority=PriorityName(job.priority) if job.priority in supplies.priorities else None,
        time_seconds=job.seconds,
        reason=reason[:MAX_REASON_LENGTH],
        reason_code=code,
        attempts=attempts,
        earlier_attempts=observed.forgotten_attempts,
        earlier_end=earlier_end(observed, attempts),
        ended_at=_ended_at(observed, attempts) if state in ENDED_JOBS else None,
        exit_code=attempts[-1].exit_code if attempts and state in ENDED_JOBS else None,
        kind=observed.kind,
        service=observed.service,
        devices=None if devices == gpus * nodes else devices,
        project=None if unknown else labels.get(PROJECT, ""),
        labels=None if unknown else kept_labels(labels, supplies.label_keys),
    )


def _request(observed: ObservedJob, resource: str) -> tuple[int, int, int]:
    """Return the GPUs of its largest pod, the number of its pods, and the GPUs of all of them."""
    gpus = next((count for name, count in observed.job.devices if name == resource), 0)
    if not observed.kind:
        return gpus, observed.job.pods, gpus * observed.job.pods
    pod_sets = [s for w in current_workloads(observed.workloads) for s in w.pod_sets]
    counts = [(s.count, n) for s in pod_sets for name, n in s.devices if name == resource]
    nodes = replicas_wanted(observed) if observed.service else observed.job.pods
    queued, total = sum(count for count, _ in counts), sum(count * n for count, n in counts)
    return gpus, nodes, total if queued == nodes else gpus * nodes


def _supply_of(observed: ObservedJob, resource: str, supplies: SupplyLookup) -> Supply | None:
    """Return the pool and slice of its devices; of several, the one with the most.

    Kueue's flavors tell, else the nodes that its pods are on, else their node selector.
    """
    flavors = [pair for pair in observed.flavors if pair[0] == resource]
    nodes = Counter(p.facts.node for p in observed.pods if p.facts.node in observed.node_labels)
    labels = dict(observed.node_labels[nodes.most_common(1)[0][0]]) if nodes else None
    if flavors and (supply := supplies.by_flavor(flavors, labels)) is not None:
        return supply
    on = Counter[Supply]()
    for node, count in nodes.items():
        if (found := supplies.by_node(resource, dict(observed.node_labels[node]))) is not None:
            on[found] += count
    if on:
        return on.most_common(1)[0][0]
    return None if nodes else supplies.by_labels(resource, dict(observed.job.selector))


# state


def _state(observed: ObservedJob, *, running: bool) -> tuple[JobState, str, str]:  # noqa: PLR0911
    """Return the state, the reason in Kubernetes' or Kueue's words, and its code if a pod waits."""
    job, workload = observed.job, observed.workload
    if job.finished and not running:
        if job.finished.startswith("Complete"):
            return JobState.DONE, "", ""
        timed_out = job.finished == "Failed/DeadlineExceeded"
        return (JobState.TIMED_OUT if timed_out else JobState.FAILED), job.message, ""
    if observed.deleted_at is not None and not running:
        return JobState.CANCELLED, f"the {observed.kind or 'Job'} was deleted", ""
    live = [p.facts for p in observed.pods if not p.ended]
    pending = next((p for p in live if p.message and not p.gated), None)
    if running:
        return JobState.RUNNING, *((pending.message, pending.code) if pending else uncounted(observed, live))
    if workload is None:
        return JobState.WAITING, *(
            _unqueued_reason(observed, live) if pending is None else (pending.message, pending.code)
        )
    if workload.held:
        if observed.evictions and eviction_ending(observed.evictions[-1][1]) is Ending.TIMED_OUT:
            return JobState.TIMED_OUT, observed.evictions[-1][2], ""  # Kueue's own limit: it stays suspended
        return JobState.HELD, workload.message, "Held" if workload.message else ""
    if pending is not None:
        return JobState.WAITING, pending.message, pending.code
    return JobState.WAITING, workload.message, kueue_code(workload.message, together=job.together)


def _unqueued_reason(observed: ObservedJob, live: Sequence[PodFacts]) -> tuple[str, str]:
    """Return why it waits without a Workload, and the code; empty: Kueue is about to queue it."""
    job = observed.job
    if observed.kind:
        return GATED if any(p.gated for p in live) else uncounted(observed, live)
    if job.suspended:
        return ("suspended", "Held") if not job.ours and not job.priority and not job.queue else ("", "")
    return ("", "") if job.queue else ("no queue", "NotQueued")


def _ended_at(observed: ObservedJob, attempts: Sequence[Attempt]) -> datetime:
    """Return when the last container ended; for a job that never ran, when the Job ended."""
    last = attempts[-1] if attempts else None
    # A Job that neither finished nor was cancelled was back in its queue when it was deleted.
    ended = observed.job.finished or (last and last.ending in {Ending.CANCELLED, Ending.TIMED_OUT})
    if last and last.ended_at is not None and ended:
        return last.ended_at
    return observed.job.finished_at or observed.deleted_at or observed.job.created
