"""Receive alerts from Alertmanager: find whose job it is, store a notice once, and record what failed.

Labels carry no team. The job that held the GPU when an alert began is looked up in the ledger, by what the
exporter names or by node and GPU, and with it its user and team.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from fairway.ledger import Ledger
from fairway.ledger.records.jobs import JobRow
from fairway.model.fleet import Fleet
from fairway.model.gpu_health import EventClass, EventCode, GpuSighting, class_of, xid_code
from fairway.model.job import JobId, format_job_id
from fairway.model.names import TeamName, UserName
from fairway.model.notice import Notice
from fairway.model.notice_rules import NoticeKind
from fairway.model.team import TeamTree
from fairway.services.fleets import Fleets
from fairway.telemetry.reader import NodeNames
from fairway.wire import alerts as wire

_TEAM: Final = "team"
"""The severity of alerts that are for the owners of a job alone."""
HEALTH_SECONDS: Final = 300
"""If the health loop has read a cluster's metrics within this, it is the one that tells of broken GPUs."""
_MAX_LINES: Final = 20
_CODES: Final = {
    "FairwayGpuEccDoubleBit": EventCode.ECC,
    "FairwayGpuRowRemapFailed": EventCode.ROW_REMAP,
    "FairwayGpuRowRemapPending": EventCode.ROW_PENDING,
    "FairwayGpuNvlinkErrors": EventCode.NVLINK,
    "FairwayGpuHot": EventCode.HOT,
    "FairwayGpuOverheated": EventCode.HOT,
    "FairwayGpuMissing": EventCode.GONE,
}
"""Alerts on GPUs that are events of a GPU's history; those with an XID have the code of that."""


@dataclass(frozen=True, slots=True)
class _Found:
    """An alert, and what it is about."""

    alert: wire.Alert
    job: JobRow | None
    team: TeamName | None

    @property
    def name(self) -> str:
        return self.alert.labels.get("alertname", "alert")

    @property
    def subject(self) -> str:
        return self.alert.annotations.get("summary") or self.name

    @property
    def is_resolved(self) -> bool:
        return self.alert.status == "resolved"

    @property
    def event(self) -> str:
        """Identifies the alert as long as it fires; when it fires again, it is another one."""
        return f"alert/{self.alert.fingerprint}/{self.alert.starts_at.timestamp():.3f}"


class AlertServices:
    """Receives alerts."""

    def __init__(self, ledger: Ledger, fleets: Fleets, clock: Callable[[], float] = time.time) -> None:
        self._ledger = ledger
        self._fleets = fleets
        self._clock = clock

    async def receive(self, alerts: Sequence[wire.Alert]) -> wire.AlertsReceived:
        """Store notices for alerts that are not known, and events of GPUs. Safe to repeat."""
        fleet = await self._fleets.in_force()
        clusters = {cluster.name for cluster in fleet.clusters}
        by_cluster: dict[str, list[wire.Alert]] = {}
        for alert in alerts:
            cluster = alert.labels.get("cluster", "")
            by_cluster.setdefault(cluster if cluster in clusters else "", []).append(alert)
        found = [one for item in by_cluster.items() for one in await self._of_cluster(fleet, *item)]
        known = await self._ledger.notices.known([_key(one.event, to) for one in found for to in _TO])
        groups: dict[object, list[Notice]] = {}
        for one in found:
            for notice in _notices(one, known):
                # Alerts of one name, to the same people, are told together.
                together = (one.name, one.is_resolved, notice.team, notice.user, notice.job, notice.operators)
                groups.setdefault(together, []).append(notice)
        return wire.AlertsReceived(new=await self._ledger.notices.add_groups(groups.values(), combined))

    async def _of_cluster(self, fleet: Fleet, cluster: str, alerts: Sequence[wire.Alert]) -> list[_Found]:
        tree = TeamTree(fleet.teams)
        jobs: dict[int, JobRow] = {}
        told: set[int] = set()
        """Alerts on what the health loop reads by itself: it tells the same people, and knows more."""
        if cluster:
            nodes = NodeNames(await self._ledger.gpu_use.nodes(cluster))
            now = self._clock()
            sightings = [_sighting(alert, nodes, now) for alert in alerts]
            held = await self._ledger.gpu_events.holders(cluster, sightings)
            rows = {row.id: row for row in await self._ledger.jobs.rows(sorted(set(held.values())))}
            jobs = {number: rows[job] for number, job in held.items() if job in rows}
            if await self._ledger.gpu_events.is_read(cluster, HEALTH_SECONDS):
                told = {number for number, sighting in enumerate(sightings) if _is_broken(sighting)}
            else:
                # When it began is not certain: a rule may be younger than what it finds. No job is blamed.
                await self._ledger.gpu_events.report(
                    cluster,
                    [
                        replace(sighting, onset_known=False, holders=frozenset())
                        for sighting, alert in zip(sightings, alerts, strict=True)
                        if sighting.code and sighting.gpu and alert.status == "firing"
                    ],
                )

        def team(number: int, alert: wire.Alert) -> TeamName | None:
            if number in jobs:
                return jobs[number].team
            named = alert.labels.get("team", "")
            return TeamName(named) if named in tree else None

        return [_Found(alert, jobs.get(n), team(n, alert)) for n, alert in enumerate(alerts) if n not in told]


_OPERATORS: Final = "operators"
_TO: Final = (_TEAM, _OPERATORS)


def _key(event: str, to: str) -> str:
    return f"{event}/{to}"


def _notices(one: _Found, known: frozenset[str]) -> Iterator[Notice]:
    """Yield the notices of an alert: to the owners of the job and, unless it is theirs alone, the operators.

    The end of an alert is told to those who were told of its beginning; that of a program's fault to nobody.
    """
    labels, job = one.alert.labels, one.job
    for_team_only = labels.get("severity") == _TEAM
    to = ([_TEAM] if one.team is not None else []) + ([] if for_team_only else [_OPERATORS])
    subject = one.subject
    if one.is_resolved:
        to = [who for who in to if _key(one.event, who) in known and not for_team_only]
        subject = f"resolved: {subject}"
    for who in to:
        key = _key(one.event, who) + ("/resolved" if one.is_resolved else "")
        text = "" if one.is_resolved else one.alert.annotations.get("description", "")
        if who == _OPERATORS:
            yield Notice(
                NoticeKind.ALERT, key, subject, _lines(text, _where(labels), _held_by(job)), operators=True
            )
        else:
            user = UserName(job.user) if job is not None and job.user else None
            about = None if job is None else JobId(job.id)
            lines = _lines(text, _where(labels), _held_by(job))
            yield Notice(NoticeKind.ALERT, key, subject, lines, one.team, user, about)


def combined(notices: Sequence[Notice]) -> Notice:
    """Return one notice that tells of all, with the key and the text of the first."""
    first = notices[0]
    if len(notices) == 1:
        return first
    others = [notice.subject for notice in notices[1:]]
    listed = [f"- {subject}" for subject in others[:_MAX_LINES]]
    if len(others) > _MAX_LINES:
        listed.append(f"- and {len(others) - _MAX_LINES} more")
    return replace(
        first,
        subject=f"{first.subject} (and {len(others)} more)",
        text=_lines(first.text, "Also:", *listed),
    )


def _lines(*lines: str) -> str:
    return "\n".join(line for line in lines if line)


def _where(labels: Mapping[str, str]) -> str:
    words = [f"{name} {labels[name]}" for name in ("cluster", "node", "gpu") if labels.get(name)]
    return f"Where: {', '.join(words)}." if words else ""


def _held_by(job: JobRow | None) -> str:
    if job is None:
        return ""
    team = f", team {job.team}" if job.team else ""
    return f"Job: {format_job_id(job.id)} ({job.name}) of {job.user or 'an unknown user'}{team}."


def _sighting(alert: wire.Alert, nodes: NodeNames, now: float) -> GpuSighting:
    labels = alert.labels
    host = labels.get("node") or labels.get("Hostname") or labels.get("hostname") or ""
    xid = labels.get("xid", "")
    code = (
        xid_code(int(xid))
        if re.fullmatch(r"[0-9]{1,4}", xid)
        else _CODES.get(labels.get("alertname", ""), "")
    )
    began = alert.starts_at.timestamp()
    return GpuSighting(
        node=nodes.node(host),
        gpu=labels.get("gpu", ""),
        code=code,
        at=began,
        seen_at=max(began, now),
        uuid=labels.get("UUID", ""),
        model=labels.get("modelName", ""),
        holders=frozenset(filter(None, [_holder(labels)])),
        onset_known=True,
    )


def _is_broken(sighting: GpuSighting) -> bool:
    broken = class_of(sighting.code) in (EventClass.HARDWARE, EventClass.RESET)
    return bool(sighting.code and sighting.gpu) and broken


def _holder(labels: Mapping[str, str]) -> str:
    """Return what the exporter calls the job: a Slurm job id, `namespace/pod`, or nothing."""
    if labels.get("hpc_job"):
        return labels["hpc_job"]
    if labels.get("exported_pod"):
        return f"{labels.get('exported_namespace', '')}/{labels['exported_pod']}"
    return f"{labels.get('namespace', '')}/{labels['pod']}" if labels.get("pod") else ""
