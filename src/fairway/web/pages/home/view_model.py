"""Build the view model of the Home page: what needs attention, and what changed since yesterday. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from urllib.parse import quote, urlencode

from fairway.cost.budget_text import money_text, period_text
from fairway.ledger import BudgetEvent
from fairway.ledger.fleet.clusters import NodeChanges
from fairway.model.budget import BudgetOutlook
from fairway.model.job import JobState
from fairway.model.observation import Health
from fairway.model.text import clean, count, first_few
from fairway.views.conditions import condition_text
from fairway.views.jobs import BAD, STATE_WORDS, name_text, note
from fairway.views.slos import tone
from fairway.views.stopped import stopped_text
from fairway.web.pages.home.data import MyJobs, SharedEvents
from fairway.wire import budget_raises as raise_wire
from fairway.wire import budgets as budget_wire
from fairway.wire import fleet as fleet_wire
from fairway.wire import jobs as job_wire
from fairway.wire import policy as policy_wire
from fairway.wire import slos as slo_wire

MAX_NAMED: Final = 3
"""Jobs of one kind that are named; the others are counted."""
MAX_CHANGES: Final = 12
_IDLE_PART: Final = 0.05
"""Below this part of the time, the last five minutes read count as idle."""
_MIN_IDLE_SECONDS: Final = 600
_HEALTH_WORDS: Final = {Health.READY: "ready again or new", Health.DRAINED: "drained", Health.DOWN: "down"}
_TO_WATCH: Final = (BudgetOutlook.SPENT, BudgetOutlook.RUNS_OUT, BudgetOutlook.WARNED)


@dataclass(frozen=True, slots=True)
class Attention:
    """Something that somebody should look at."""

    tone: str
    """`bad` or `warn`."""
    text: str
    href: str


@dataclass(frozen=True, slots=True)
class ChangeEntry:
    """Something that changed."""

    at: datetime
    what: str
    """`policy`, `budget`, `nodes`, `intervention` or `jobs`."""
    text: str
    href: str


@dataclass(frozen=True, slots=True)
class TeamCard:
    """A team of the reader: what it holds of each supply, and its budget."""

    team: policy_wire.Team
    grants: tuple[policy_wire.Grant, ...]
    budget: budget_wire.Budget | None


def team_cards(
    teams: Iterable[policy_wire.Team], own: frozenset[str], budgets: Iterable[budget_wire.Budget]
) -> list[TeamCard]:
    """Return a card for each team of the reader; a team inside another of theirs has none of its own."""
    by_team = {budget.name: budget for budget in budgets}
    return [
        TeamCard(
            team, tuple(g for g in team.grants if g.guarantee or g.held or g.waiting), by_team.get(team.name)
        )
        for team in teams
        if team.name in own and not own.intersection(team.path[:-1])
    ]


def job_attention(jobs: MyJobs, user: str) -> list[Attention]:
    """Return the reader's jobs that failed since yesterday, hold idle GPUs or are on hold."""
    failed = jobs.failed
    found = [Attention("bad", _with_note(job), f"/jobs/{job.id}") for job in failed[:MAX_NAMED]]
    more = sum(number for state, number in jobs.endings.items() if state in BAD) - MAX_NAMED
    if more > 0:
        query = urlencode({"user": user, "state": "wrong", "sort": "-ended"})
        found.append(Attention("bad", f"{count(more, 'more job')} of yours failed", f"/jobs?{query}"))
    for job in jobs.running:
        if holds_idle(job):
            gpus = count(job.devices, f"{job.slice} slice" if job.slice else "GPU")
            found.append(
                Attention("warn", f"{_named(job)} holds {gpus} and does not use them", f"/jobs/{job.id}")
            )
    held = jobs.counts.get(JobState.HELD, 0)
    if held:
        query = urlencode({"user": user, "state": JobState.HELD.value})
        are = "job of yours is" if held == 1 else "jobs of yours are"
        found.append(Attention("warn", f"{held} {are} on hold", f"/jobs?{query}"))
    return found


def holds_idle(job: job_wire.Job) -> bool:
    """Return whether a running job did nothing with its GPUs in the last minutes read."""
    use = job.use
    if use is None or use.latest is None or use.latest.engine is None:
        return False
    return use.latest.engine < _IDLE_PART and use.idle_gpu_seconds >= _MIN_IDLE_SECONDS * job.devices


def budget_attention(budgets: Iterable[budget_wire.Budget]) -> list[Attention]:
    """Return the budgets that are spent, will run out or passed their warning, the worst first."""
    order = {outlook.value: n for n, outlook in enumerate(_TO_WATCH)}
    found = sorted((b for b in budgets if b.outlook in order), key=lambda b: (order[b.outlook or ""], b.name))
    return [
        Attention(
            "warn" if b.outlook == BudgetOutlook.WARNED.value else "bad",
            f"Budget of {b.team}: {b.forecast}" if b.name == b.team else f"Budget {b.name}: {b.forecast}",
            f"/teams/{quote(b.team)}" if b.team else "/cost",
        )
        for b in found
    ]


def slo_attention(slos: Iterable[slo_wire.Slo]) -> list[Attention]:
    """Return the objectives that miss their target or will, the worst first."""
    found = [(tone(slo), slo) for slo in slos]
    return [
        Attention(
            how,
            f"SLO {slo.name}: {slo.outlook}",
            f"/teams/{quote(slo.team)}#slos" if slo.team else "/teams#slos",
        )
        for how, slo in sorted(found, key=lambda one: (one[0], one[1].name))
        if how in ("bad", "warn")
    ]


def raise_attention(requests: Iterable[raise_wire.BudgetRaise]) -> list[Attention]:
    """Return the requests for raises that the reader may approve."""
    return [
        Attention(
            "warn",
            f"{one.team} requests {money_text(one.amount, like=one.amount)} {one.currency} more for "
            f"{period_text(one.period, one.every)}",
            f"/teams/{quote(one.team)}#raises",
        )
        for one in requests
        if one.may_approve
    ]


def fleet_attention(
    clusters: Iterable[fleet_wire.Cluster], events: SharedEvents, nodes_down: int, now: datetime
) -> list[Attention]:
    """Return what is wrong with the fleet, for operators."""
    found = []
    for cluster in clusters:
        if cluster.reachable is False:
            why = f": {clean(cluster.reason.message)}" if cluster.reason else ""
            found.append(Attention("bad", f"Cluster {cluster.name} is not reachable{why}", "/fleet"))
        found += [
            Attention("warn", _sentence(condition_text(cluster.name, c, now)), "/policy")
            for c in cluster.conditions
        ]
    found += [
        Attention("bad", _sentence(stopped_text(s)), f"/policy/history/{s.apply}") for s in events.stopped
    ]
    drifted = Counter(cluster for cluster, _, _ in {(d.cluster, d.kind, d.name) for d in events.drift})
    for name, objects in sorted(drifted.items()):
        differ = "object differs" if objects == 1 else "objects differ"
        found.append(
            Attention("warn", f"Drift on {name}: {objects} {differ} from the applied policy", "/policy#drift")
        )
    if nodes_down:
        found.append(
            Attention(
                "bad", f"{count(nodes_down, 'node')} {'is' if nodes_down == 1 else 'are'} down", "/fleet"
            )
        )
    if events.cordons:
        closed = first_few([c.node for c in events.cordons], MAX_NAMED)
        found.append(Attention("warn", f"Closed because of broken GPUs: {closed}", "/fleet"))
    return found


def changes(
    events: SharedEvents,
    applies: Iterable[policy_wire.ApplyDetail],
    jobs: MyJobs,
    teams: frozenset[str] | None,
    user: str,
) -> list[ChangeEntry]:
    """Return what changed since yesterday, the newest first; `teams` are the reader's, None is all."""
    found = [entry for apply in applies if (entry := _apply_entry(apply, teams)) is not None]
    found += [_budget_entry(e) for e in events.budget_events if teams is None or e.team in teams]
    found += [_node_entry(n) for n in events.nodes]
    found += _intervention_entries(events.interventions)
    if jobs.endings:
        ended = sum(jobs.endings.values())
        parts = ", ".join(f"{n} {STATE_WORDS[state]}" for state, n in Counter(jobs.endings).most_common())
        last = max(job.ended_at for job in jobs.ended if job.ended_at is not None)
        query = urlencode({"user": user, "state": "ended", "sort": "-ended"})
        found.append(
            ChangeEntry(last, "jobs", f"{count(ended, 'job')} of yours ended: {parts}", f"/jobs?{query}")
        )
    return sorted(found, key=lambda entry: entry.at, reverse=True)[:MAX_CHANGES]


def _apply_entry(apply: policy_wire.ApplyDetail, teams: frozenset[str] | None) -> ChangeEntry | None:
    diff = [d for d in apply.diff if teams is None or d.team is None or d.team in teams]
    if not diff:
        return None
    touched = first_few(sorted({d.team or "the fleet" for d in diff}), MAX_NAMED)
    text = f"{clean(apply.created_by)} applied {count(len(diff), 'change')} to {touched}"
    return ChangeEntry(apply.created_at, "policy", text, f"/policy/history/{apply.id}")


def _budget_entry(event: BudgetEvent) -> ChangeEntry:
    text = f"{event.team}: {clean(event.text)}"
    return ChangeEntry(event.at, "budget", text, f"/teams/{quote(event.team)}")


def _node_entry(change: NodeChanges) -> ChangeEntry:
    named = first_few(change.names, MAX_NAMED) if change.nodes <= MAX_NAMED else change.names[0]
    more = f" and {change.nodes - 1} more" if change.nodes > MAX_NAMED else ""
    are = "is" if change.nodes == 1 else "are"
    return ChangeEntry(
        change.last,
        "nodes",
        f"{named}{more} on {change.cluster} {are} {_HEALTH_WORDS[change.health]}",
        "/fleet",
    )


def _intervention_entries(found: Sequence[policy_wire.Intervention]) -> list[ChangeEntry]:
    """Group interventions by cluster and promise: a busy day has many alike."""
    groups: dict[tuple[str, str], list[policy_wire.Intervention]] = {}
    for one in found:
        groups.setdefault((one.cluster, one.promise), []).append(one)
    return [
        ChangeEntry(
            group[0].at,
            "intervention",
            f"{count(len(group), 'intervention')} on {cluster} to keep the promise “{promise}”",
            "/policy#interventions",
        )
        for (cluster, promise), group in groups.items()
    ]


def _named(job: job_wire.Job) -> str:
    return f"{name_text(job)} ({job.id})"


def _with_note(job: job_wire.Job) -> str:
    why = clean(note(job))
    return f"{_named(job)} {STATE_WORDS[job.state]}" + (f": {why}" if why else "")


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
