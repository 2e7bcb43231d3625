"""The step of the problems loop: notify operators of what does not work, and of its end.

It reads what other loops recorded: drift, clusters that cannot be reached, conditions, objectives, and how
old the state of clusters and budgets is. A problem is open while there is a notice of it without one of its
end, so that nothing is kept in memory, and any server can continue.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from fairway.ledger import Lease, Ledger, StoredBudgetStatus
from fairway.ledger.notices import StoredNotice
from fairway.ledger.policy.drift import DriftSummary
from fairway.ledger.records.fleet import ClusterState, StoredCondition
from fairway.ledger.slos.counts import StoredSlo
from fairway.model.condition import ConditionType
from fairway.model.names import ClusterName, TeamName
from fairway.model.notice import Notice
from fairway.model.notice_rules import NoticeKind
from fairway.model.slo import Slo
from fairway.model.text import count, first_few
from fairway.policy.slo_alerts import alert_text, budget_text
from fairway.services.fleets import Fleets
from fairway.services.slos import status_of

PATIENCE: Final = timedelta(minutes=5)
"""How long something must not work before it is reported: engines restart, and networks have hiccups."""
STALE: Final = timedelta(minutes=15)
"""How old the state of a cluster or of budgets may be: their loops write it every minute or so."""
MAX_OPEN: Final = 2000
_PREFIX: Final = "problem/"
_END: Final = "/resolved"
_NOT_PROBLEMS: Final = frozenset({ConditionType.INSTALL_PENDING})
"""Conditions that are an administrator's task and not a failure."""
_MAX_NAMED: Final = 10


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that does not work now."""

    kind: NoticeKind
    identity: str
    """What it is about: while a problem with this identity is there, it has not ended."""
    since: datetime
    """When it began, or last became worse: then it is reported again."""
    subject: str
    text: str
    patience: timedelta = PATIENCE
    team: TeamName | None = None
    """Goes to this team, too."""

    def notice(self) -> Notice:
        key = f"{_PREFIX}{self.identity}@{self.since.isoformat()}"
        return Notice(self.kind, key, self.subject, self.text, self.team, operators=True)


class ReportProblems:
    """Notifies operators of problems of the fleet, and teams of their objectives."""

    def __init__(self, ledger: Ledger, fleets: Fleets) -> None:
        self._ledger = ledger
        self._fleets = fleets

    async def __call__(self, lease: Lease) -> None:
        """Read what there is, and write notices of what is new and of what has ended."""
        ledger = self._ledger
        fleet = await self._fleets.current()
        clusters = frozenset(cluster.name for cluster in fleet.clusters)
        now = (await ledger.notices.pending()).now
        problems = [
            *cluster_problems(await ledger.clusters.all(), clusters, now),
            *condition_problems(await ledger.conditions.all(), clusters),
            *drift_problems(await ledger.drift.summary(), clusters),
            *budget_problems(await ledger.budgets.statuses(), now),
            *slo_problems(await ledger.slos.statuses(), {slo.name: slo for slo in fleet.slos}),
        ]
        new, ended, implied = changes(problems, await ledger.notices.open(_PREFIX, _END, MAX_OPEN), now)
        if new or ended or implied:
            async with ledger.writing(lease) as tx:
                await tx.notices.add([*new, *ended])
                await tx.notices.add(implied, silent=True)


def changes(
    problems: Iterable[Problem], reported: Sequence[StoredNotice], now: datetime
) -> tuple[list[Notice], list[Notice], list[Notice]]:
    """Return notices of new problems, of ended ones, and ends that are not sent.

    The last are of problems that were reported more than once: their end is sent once.
    """
    current = {problem.identity: problem for problem in problems}
    known = {one.notice.key for one in reported}
    due = (one.notice() for one in current.values() if one.since + one.patience <= now)
    new = [notice for notice in due if notice.key not in known]
    ended: list[Notice] = []
    implied: list[Notice] = []
    seen: set[str] = set()
    for one in reversed(reported):
        identity = one.notice.key.removeprefix(_PREFIX).rpartition("@")[0]
        if identity in current:
            continue
        subject = f"resolved: {one.notice.subject}"
        text = f"It began at {one.created_at:%Y-%m-%d %H:%M} UTC, and has ended."
        kind, key, team = one.notice.kind, f"{one.notice.key}{_END}", one.notice.team
        end = Notice(kind, key, subject, text, team, operators=True)
        (implied if identity in seen else ended).append(end)
        seen.add(identity)
    return new, ended, implied


def cluster_problems(
    states: Iterable[ClusterState], clusters: frozenset[ClusterName], now: datetime
) -> Iterator[Problem]:
    """Yield clusters that cannot be reached, or that no server observes."""
    for state in states:
        name = state.cluster
        if name not in clusters:
            continue
        if not state.reachable:
            text = (
                f"{state.message}\n{_hint(state.hint)}\nIts jobs and GPUs are shown as they were last seen."
            )
            subject = f"cluster {name} cannot be reached"
            yield Problem(NoticeKind.HEALTH, f"unreachable/{name}", state.since, subject, text)
        elif state.attempted_at is not None and state.attempted_at + STALE <= now:
            text = (
                f"The last observation of {name} was at {state.attempted_at:%Y-%m-%d %H:%M} UTC.\n"
                "hint: read the logs of the servers;  fairway get clusters"
            )
            subject = f"cluster {name} is not observed"
            yield Problem(NoticeKind.HEALTH, f"not-observed/{name}", state.attempted_at, subject, text)


def condition_problems(
    conditions: Iterable[StoredCondition], clusters: frozenset[ClusterName]
) -> Iterator[Problem]:
    """Yield the conditions of clusters that are failures."""
    for one in conditions:
        condition = one.condition
        if one.cluster in clusters and condition.type not in _NOT_PROBLEMS:
            text = f"{condition.message}\n{_hint(condition.hint)}"
            subject = f"cluster {one.cluster}: {condition.type}"
            identity = f"{condition.type}/{one.cluster}"
            yield Problem(NoticeKind.HEALTH, identity, one.since, subject, text)


def drift_problems(found: Iterable[DriftSummary], clusters: frozenset[ClusterName]) -> Iterator[Problem]:
    """Yield clusters that differ from what was applied."""
    for one in found:
        if one.cluster in clusters:
            objects = count(one.objects, "object")
            text = (
                f"{objects} of cluster {one.cluster} differ from the applied fleet: "
                f"{first_few(one.names, _MAX_NAMED)}.\n  fairway get drift --cluster {one.cluster}"
            )
            subject = f"drift on cluster {one.cluster}: {objects}"
            identity = f"drift/{one.cluster}"
            yield Problem(NoticeKind.DRIFT, identity, one.newest, subject, text, timedelta())


def budget_problems(statuses: Iterable[StoredBudgetStatus], now: datetime) -> Iterator[Problem]:
    """Yield that spending is not summed, so that no budget is enforced."""
    checked = max((s.checked_at for s in statuses if s.checked_at is not None), default=None)
    if checked is not None and checked + STALE <= now:
        text = (
            f"Spending was last summed at {checked:%Y-%m-%d %H:%M} UTC: budgets neither warn nor hold.\n"
            "hint: read the logs of the servers for the loop budget"
        )
        yield Problem(NoticeKind.HEALTH, "budgets", checked, "budgets are not checked", text)


def slo_problems(statuses: Iterable[StoredSlo], slos: Mapping[str, Slo]) -> Iterator[Problem]:
    """Yield objectives that miss their target, or that spend their error budget fast."""
    for stored in statuses:
        slo = slos.get(stored.name)
        if slo is None or slo.digest != stored.digest or stored.alert_since is None:
            continue
        status = status_of(slo, stored)
        if (said := alert_text(stored.alert, status)) is not None:
            text = f"{slo.text}.\n{budget_text(status)}\n  fairway get slos"
            yield Problem(
                NoticeKind.SLO,
                f"slo/{slo.name}/{stored.alert}",
                stored.alert_since,
                f"SLO {slo.name}: {said}",
                text,
                team=slo.team,
            )


def _hint(hint: str) -> str:
    return f"hint: {hint}" if hint else ""
