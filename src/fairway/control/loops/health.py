"""The step of the health loop: store what is wrong with GPUs, notify people, close nodes by rules.

Reading and acting are apart: a Prometheus that does not answer stops nobody from opening a node again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import structlog

from fairway.engines.port import CordonOutcome, Cordons, Observes
from fairway.ledger import Lease, Ledger
from fairway.ledger.telemetry.gpu_events import GpuEvent, JobOwner
from fairway.model.errors import FairwayError
from fairway.model.fleet import Telemetry
from fairway.model.gpu_health import EventClass, HealthAction, event_words
from fairway.model.job import JobId, format_job_id
from fairway.model.names import ClusterName, NodeName
from fairway.model.notice import Notice
from fairway.model.notice_rules import NoticeKind
from fairway.policy.health import CordonDecision, decide_cordons
from fairway.services.engine_cache import LazyEngine
from fairway.services.fleets import LastApplied
from fairway.telemetry.health import HealthReader
from fairway.telemetry.prometheus import Prometheus
from fairway.telemetry.reader import DEFAULT_INTERVAL, NodeNames

log: structlog.stdlib.BoundLogger = structlog.get_logger("fairway.control")

SETTLED_SCRAPES: Final = 2
"""After so many scrapes, what happened to a GPU is in Prometheus."""
MAX_NOTICES: Final = 20
"""Notices of one round; of more events, operators get one notice with their number."""
_TOLD: Final = (EventClass.HARDWARE, EventClass.RESET)


class WatchHealth:
    """Watches the GPUs of one cluster; the engine is built when the first node is to be closed."""

    def __init__(
        self,
        cluster: ClusterName,
        source: Telemetry | None,
        build: Callable[[], Observes],
        ledger: Ledger,
        applied: LastApplied,
        *,
        clock: Callable[[], float] = time.time,
        prometheus: Callable[[Telemetry], Prometheus] = Prometheus,
    ) -> None:
        self._cluster = cluster
        self._source = source
        self._engine = LazyEngine(build)
        self._ledger = ledger
        self._applied = applied
        self._clock = clock
        self._build = prometheus
        self._prometheus: Prometheus | None = None

    async def __call__(self, lease: Lease) -> None:
        """Read once, store what is new and what lasts, and close or open nodes."""
        failure: FairwayError | None = None
        if self._source is not None:
            try:
                await self._read(lease, self._source)
            except FairwayError as error:
                failure = error
        await self._act(lease)
        if failure is not None:
            raise failure

    async def close(self) -> None:
        """Close the connections; the next step opens new ones."""
        if self._prometheus is not None:
            await self._prometheus.close()
            self._prometheus = None
        await self._engine.close()

    async def _read(self, lease: Lease, source: Telemetry) -> None:
        now = self._clock()
        if self._prometheus is None:
            self._prometheus = self._build(source)
        mark = await self._ledger.gpu_use.mark(self._cluster)
        interval = DEFAULT_INTERVAL if mark is None else mark.interval
        nodes = NodeNames(await self._ledger.gpu_use.nodes(self._cluster))
        known = await self._ledger.gpu_events.known(self._cluster, now)
        sightings = await HealthReader(self._prometheus, source.select, nodes).read(now, known)
        async with self._ledger.writing(lease) as tx:
            new = await tx.gpu_events.record(
                sightings, read_at=now, settled_to=now - SETTLED_SCRAPES * interval
            )
            told = [event for event in new if event.class_ in _TOLD]
            await tx.notices.add(event_notices(told, await tx.gpu_events.owners(told)))

    async def _act(self, lease: Lease) -> None:
        """Close nodes by the fleet's rules, and open those that somebody wants open again."""
        fleet = await self._applied.fleet()
        rules = fleet.health if fleet is not None else ()
        if any(rule.action is HealthAction.CORDON for rule in rules):
            broken = await self._ledger.cordons.broken(self._cluster, self._clock())
            if broken:
                decided = decide_cordons(broken, await self._ledger.cordons.nodes(self._cluster), rules)
                async with self._ledger.writing(lease) as tx:
                    await tx.cordons.add([(d.node, d.reason) for d in decided if d.full is None])
                    await tx.notices.add(cordon_notices(self._cluster, decided, self._clock()))
        open_ = await self._ledger.cordons.open(self._cluster)
        asked = [c.node for c in open_ if c.lift_asked_by is not None]
        to_close = {c.node: c.reason for c in open_ if not c.done and c.lift_asked_by is None}
        if not asked and not to_close:
            return
        engine = self._engine.get()
        if not isinstance(engine, Cordons):
            return
        if to_close:
            outcomes = await engine.cordon(to_close)
            log.info("nodes cordoned", cluster=self._cluster, nodes=_words(outcomes))
            async with self._ledger.writing(lease) as tx:
                await tx.cordons.done([n for n, o in outcomes.items() if o is CordonOutcome.DONE])
                await tx.cordons.lifted([n for n, o in outcomes.items() if o is not CordonOutcome.DONE])
        if asked:
            outcomes = await engine.uncordon(asked)
            log.info("nodes uncordoned", cluster=self._cluster, nodes=_words(outcomes))
            async with self._ledger.writing(lease) as tx:
                await tx.cordons.lifted(list(outcomes))


def _words(outcomes: Mapping[NodeName, CordonOutcome]) -> dict[str, str]:
    return {str(node): outcome.value for node, outcome in outcomes.items()}


def event_notices(told: Sequence[GpuEvent], owners: Mapping[JobId, JobOwner]) -> list[Notice]:
    """Return notices of broken hardware: to operators, and to the owner of the job that held the GPU."""
    if len(told) > MAX_NOTICES:
        first = told[0]
        text = f"{len(told)} GPU events at once on cluster {first.cluster}.\n\nSee  fairway get gpu-events"
        key = f"gpu-events/{first.cluster}/{first.at.isoformat()}"
        subject = f"{len(told)} GPU events on {first.cluster}"
        return [Notice(NoticeKind.HEALTH, key, subject, text, operators=True)]
    notices = []
    for event in told:
        owner = None if event.job is None else owners.get(event.job)
        subject = f"GPU {event.gpu} of {event.node} {event_words(event.code)}"
        lines = [f"{subject} on cluster {event.cluster} at {event.at:%Y-%m-%d %H:%M:%S} UTC."]
        if event.job is not None and owner is not None:
            whose = f"Job {owner.name} ({format_job_id(event.job)}) of {owner.user}"
            lines.append(f"{whose} held it: this is not its program's fault.")
        lines.append(f"See  fairway get gpu-events --cluster {event.cluster} --node {event.node}")
        key = f"gpu-event/{event.cluster}/{event.node}/{event.gpu}/{event.code}/{event.at.isoformat()}"
        team, user, job = (None, None, None) if owner is None else (owner.team, owner.user, event.job)
        body = "\n".join(lines)
        notices.append(Notice(NoticeKind.HEALTH, key, subject, body, team, user, job, operators=True))
    return notices


def cordon_notices(cluster: str, decided: Sequence[CordonDecision], now: float) -> list[Notice]:
    """Return notices to operators of nodes that are closed, and of a limit that keeps others open."""
    notices = [
        Notice(
            NoticeKind.HEALTH,
            f"cordon/{cluster}/{one.node}/{int(now)}",
            f"node {one.node} is closed to new jobs",
            f"{one.reason}: rule {one.rule} closes node {one.node} of cluster {cluster} to new jobs; running "
            f"ones go on.\n\nOpen it again with  fairway uncordon {one.node} --cluster {cluster}",
            operators=True,
        )
        for one in decided
        if one.full is None
    ]
    full: dict[str, list[CordonDecision]] = {}
    for one in decided:
        if one.full is not None:
            full.setdefault(one.full, []).append(one)
    for pool, kept in full.items():
        names = ", ".join(one.node for one in kept[:MAX_NOTICES])
        text = (
            f"Pool {pool} has as many closed nodes as rule {kept[0].rule} allows, so these stay open with "
            f"broken GPUs: {names}.\n\nRepair nodes, or raise max_share in the fleet file."
        )
        key = f"cordon-limit/{cluster}/{pool}/{int(now) // 3600}"
        subject = f"broken nodes of pool {pool} stay open"
        notices.append(Notice(NoticeKind.HEALTH, key, subject, text, operators=True))
    return notices
