"""Format a what-if study as tables of text, for the command line and the pages. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from fairway.wire import what_if as wire

MOST_SCENARIOS: Final = 5
"""In a table with a column for each scenario."""
MOST_TEAMS: Final = 12
_EQUAL: Final = 0.01
"""Two indices of fairness that differ by less count as equal."""


class TextTable(NamedTuple):
    """A table of text: the first column names the row, the others are figures."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


def what_if_tables(found: wire.WhatIf) -> list[TextTable]:
    """Return the tables of a study: waits, use of the GPUs, then p95 waits by team and by size."""
    return [_waits(found), _use(found), *_by_team(found), *_by_size(found)]


def what_if_notes(found: wire.WhatIf) -> list[str]:
    """Return what a reader must know: the time, the seeds, what was left out, and the best scenario."""
    current = current_of(found)
    span = f"{found.begin:%Y-%m-%d %H:%M} to {found.end:%Y-%m-%d %H:%M} UTC"
    notes = [f"{found.jobs:,} jobs of {found.source}, {span}"]
    if found.seeds > 1:
        notes.append(f"means of {found.seeds} seeds, ± the 95 % confidence interval")
    notes += [
        f"left out of {one.name}: {left.jobs:,} jobs ({left.gpu_hours:,.0f} GPU-hours): {left.message}"
        for one in found.scenarios
        if one is current or (one.kind == "changed" and one.left_out != current.left_out)
        for left in one.left_out
    ]
    return [*notes, *found.notes, *best_lines(found)]


def best_lines(found: wire.WhatIf) -> list[str]:
    """Return which scenario waits least at p95 without being less fair than the current file, if any."""
    current = current_of(found)
    fair = current.fairness.mean if current.fairness else 1.0
    better = [
        one
        for one in found.scenarios
        if one.kind == "changed"
        and one.p95_wait_change is not None
        and one.p95_wait_change.mean + (one.p95_wait_change.margin or 0.0) < 0
        and (one.fairness.mean if one.fairness else 1.0) >= fair - _EQUAL
        and sum(left.jobs for left in one.left_out) <= sum(left.jobs for left in current.left_out)
    ]
    if not better:
        return []
    best = min(better, key=lambda one: one.p95_wait_change.mean if one.p95_wait_change else 0.0)
    change = best.p95_wait_change
    return [
        f"shortest p95 wait that is no less fair: {best.name} ({change_text(change)}, "
        f"Jain's index {fair:.3f} -> {best.fairness.mean if best.fairness else 1.0:.3f})"
    ]


def current_of(found: wire.WhatIf) -> wire.ScenarioFigures:
    """Return the scenario of the current file."""
    return next(one for one in found.scenarios if one.kind == "current")


def _waits(found: wire.WhatIf) -> TextTable:
    return TextTable(
        "Waiting times",
        ("SCENARIO", "MEAN", "MEDIAN", "P95", "P95 VS CURRENT", "SLOWDOWN", "NEVER STARTED"),
        [
            [
                one.name,
                duration_text(one.waits.mean_wait),
                duration_text(one.waits.median_wait),
                duration_text(one.waits.p95_wait),
                change_text(one.p95_wait_change),
                number_text(one.waits.slowdown, 1),
                number_text(one.waits.never_started, 0) if one.waits.never_started.mean else "-",
            ]
            for one in found.scenarios
        ],
    )


def _use(found: wire.WhatIf) -> TextTable:
    return TextTable(
        "Use of the GPUs",
        ("SCENARIO", "USED %", "FRAGM. %", "LIMITED %", "PREEMPTED", "LOST GPU-H", "JAIN", found.currency),
        [
            [
                one.name,
                percent_text(one.utilisation),
                percent_text(one.fragmentation),
                percent_text(one.limited),
                number_text(one.preemptions, 0),
                number_text(one.lost_gpu_hours, 0),
                number_text(one.fairness, 3),
                number_text(one.cost, 0, margin=False),
            ]
            for one in found.scenarios
        ],
    )


def _by_team(found: wire.WhatIf) -> list[TextTable]:
    current, shown = current_of(found), shown_scenarios(found)
    teams = sorted(current.teams, key=lambda team: -team.gpu_hours.mean)[:MOST_TEAMS]
    if not teams:
        return []
    waits = TextTable(
        "P95 wait by team",
        ("TEAM", "JOBS", *map(column_name, shown)),
        [
            [team.team, f"{team.waits.jobs:,}", *(_team_wait(one, team.team) for one in shown)]
            for team in teams
        ],
    )
    replayed = [one for one in shown if one.kind != "observed"]
    service = TextTable(
        "GPUs held, in % of those that its share gives the team, while jobs waited",
        ("TEAM", "SHARE %", "USED %", *map(column_name, replayed)),
        [
            [
                team.team,
                "-" if team.share_part is None else f"{100 * team.share_part:.1f}",
                f"{100 * team.used_part:.1f}",
                *(_service(one, team.team) for one in replayed),
            ]
            for team in teams
        ],
    )
    return [waits, service]


def _by_size(found: wire.WhatIf) -> list[TextTable]:
    current, shown = current_of(found), shown_scenarios(found)
    return [
        TextTable(
            "P95 wait by GPUs of the job",
            ("GPUS", "JOBS", *map(column_name, shown)),
            [
                [size.size, f"{size.waits.jobs:,}", *(_size_wait(one, size.size) for one in shown)]
                for size in current.sizes
            ],
        )
    ]


def shown_scenarios(found: wire.WhatIf) -> list[wire.ScenarioFigures]:
    """Return the scenarios with a column of their own: all, or those with the shortest waits."""
    if len(found.scenarios) <= MOST_SCENARIOS:
        return list(found.scenarios)
    fixed = [one for one in found.scenarios if one.kind != "changed"]
    changed = sorted(
        (one for one in found.scenarios if one.kind == "changed"), key=lambda one: one.waits.p95_wait.mean
    )[: MOST_SCENARIOS - len(fixed)]
    return [one for one in found.scenarios if one in fixed or one in changed]


def column_name(one: wire.ScenarioFigures) -> str:
    """Return a short name: of each setting the last part of its key, `gpu=16`."""
    return (
        " ".join(
            setting.rsplit(".", 1)[-1] if "." in setting.split("=")[0] else setting
            for setting in one.settings
        )
        or one.name
    )


def _team_wait(one: wire.ScenarioFigures, name: str) -> str:
    return next((duration_text(t.waits.p95_wait) for t in one.teams if t.team == name), "-")


def _service(one: wire.ScenarioFigures, name: str) -> str:
    team = next((t for t in one.teams if t.team == name), None)
    return percent_text(team.service, digits=0) if team else "-"


def _size_wait(one: wire.ScenarioFigures, size: str) -> str:
    return next((duration_text(s.waits.p95_wait) for s in one.sizes if s.size == size), "-")


def duration_text(found: wire.Estimate) -> str:
    """Format seconds with their margin in one unit: `3.6 h ±0.4`."""
    for size, unit, least, digits in ((86400, "d", 172800, 1), (3600, "h", 5400, 1), (60, "min", 90, 0)):
        if found.mean >= least:
            return f"{found.mean / size:.{digits}f}{_margin(found, digits, 1 / size)} {unit}"
    return f"{found.mean:.0f}{_margin(found, 0, 1.0)} s"


def percent_text(found: wire.Estimate | None, *, digits: int = 1) -> str:
    """Format a part as a percentage without its sign; a dash if it is not known."""
    return "-" if found is None else f"{100 * found.mean:.{digits}f}{_margin(found, digits, 100)}"


def number_text(found: wire.Estimate | None, digits: int, *, margin: bool = True) -> str:
    """Format a number; a dash if it is not known."""
    if found is None:
        return "-"
    return f"{found.mean:,.{digits}f}{_margin(found, digits, 1.0) if margin else ''}"


def change_text(found: wire.Estimate | None) -> str:
    """Format a relative change as a percentage: `-29 %`."""
    return "-" if found is None else f"{100 * found.mean:+.0f}{_margin(found, 0, 100)} %"


def _margin(found: wire.Estimate, digits: int, scale: float) -> str:
    return "" if found.margin is None else f"±{found.margin * scale:,.{digits}f}"
