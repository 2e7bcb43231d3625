"""Check idle rules: names that do not exist, ladders without a step or longer than windows are stored."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fairway.files.diagnostics import FaultCode, Faults, Severity, did_you_mean, listed
from fairway.files.fleet import schema as fs
from fairway.files.fleet import schema_idle as si
from fairway.files.fleet import schema_teams as ts
from fairway.files.fleet.build import TeamSection, idle_steps_of, priorities_of
from fairway.files.schema.containers import Section
from fairway.files.schema.values import ParsedValue
from fairway.model.idle import LONGEST_SECONDS
from fairway.model.text import duration_text


def check_idle(file: Section, teams: Sequence[TeamSection], faults: Faults) -> None:
    """Run all checks of idle rules."""
    idle = file.get(si.IDLE)
    rules = [found.value for found in ((idle.get(si.RULES) if idle else None) or {}).values()]
    pools = file.names_in(fs.POOLS)
    known_teams = [team.name for team in teams]
    priorities = [str(p.name) for p in priorities_of(file)]
    for rule in rules:
        _has_steps(rule, faults)
        _known(rule, "pool", rule.get(si.POOLS), pools, FaultCode.UNKNOWN_POOL, faults)
        _known(rule, "team", rule.get(si.TEAMS), known_teams, FaultCode.UNKNOWN_TEAM, faults)
        if file.valid(ts.PRIORITIES):
            named = rule.get(si.PRIORITIES)
            _known(rule, "priority", named, priorities, FaultCode.UNKNOWN_PRIORITY, faults)
    if rules:
        _has_telemetry(file, rules[0], faults)


def _has_steps(rule: Section, faults: Faults) -> None:
    do = rule.found(si.DO)
    if do is None or not rule.valid(si.DO):
        return
    steps = idle_steps_of(rule)
    if not steps:
        faults.add(
            FaultCode.MISSING_KEY,
            do.location,
            f"idle rule {rule.name} does nothing",
            expected="at least one of warn, lower, requeue, cancel",
            hint="write  do: { warn: 0s }",
        )
    total = (rule.get(si.FOR) or 0) + sum(step.after_seconds for step in steps)
    if total > LONGEST_SECONDS:
        faults.add(
            FaultCode.OUT_OF_RANGE,
            do.location,
            f"idle rule {rule.name} takes {duration_text(total)} to its last step",
            expected=f"at most {duration_text(LONGEST_SECONDS)}, of which windows of GPU use are stored",
            hint="shorten for, or a step's grace",
        )


def _known(
    rule: Section,
    what: str,
    named: tuple[ParsedValue[str], ...] | None,
    known: Collection[str],
    code: FaultCode,
    faults: Faults,
) -> None:
    for item in named or ():
        if item.value not in known:
            faults.add(
                code,
                item.location,
                f"idle rule {rule.name} names {what} {item.value}, which the fleet does not have",
                expected=f"one of {listed(known)}" if known else f"a {what} of the fleet",
                hint=did_you_mean(item.value, known, f"name a {what} of the fleet, or take it away"),
            )


def _has_telemetry(file: Section, rule: Section, faults: Faults) -> None:
    clusters = file.get(fs.CLUSTERS) or {}
    measured = any(found.value.found(fs.TELEMETRY) is not None for found in clusters.values())
    if measured or not file.valid(fs.CLUSTERS):
        return
    faults.add(
        FaultCode.IDLE_UNMEASURED,
        rule.location,
        f"idle rule {rule.name} never applies: no cluster of this fleet has telemetry",
        hint="add to a cluster:  telemetry: { prometheus: https://prometheus.example.org:9090 }",
        severity=Severity.WARNING,
    )
