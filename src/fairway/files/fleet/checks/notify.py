"""Check channels for notices: rules without a channel, or for one that is not configured."""

from __future__ import annotations

from collections.abc import Sequence

from fairway.files.diagnostics import FaultCode, Faults, listed
from fairway.files.fleet import schema_notify as ns
from fairway.files.fleet.build import TeamSection
from fairway.files.schema.containers import Section

_CHANNELS = (ns.WEBHOOK, ns.SLACK, ns.MAIL)


def check_notify(file: Section, teams: Sequence[TeamSection], faults: Faults) -> None:
    """Run all checks of channels."""
    sections = [file.get(ns.NOTIFY), *(team.section.get(ns.TEAM_NOTIFY) for team in teams)]
    for notify in sections:
        if notify is not None and notify.valid(*_CHANNELS):
            _has_channels(notify, faults)


def _has_channels(notify: Section, faults: Faults) -> None:
    present = [key.name for key in _CHANNELS if notify.get(key) is not None]
    rules = notify.get(ns.RULES)
    timed = notify.get(ns.QUIET) is not None or notify.get(ns.DIGEST) is not None
    if not present and (rules is not None or timed):
        faults.add(
            FaultCode.MISSING_KEY,
            notify.location,
            "notify has rules, but no channel to which they apply",
            expected="at least one of webhook, slack, mail",
            hint="add:  mail: { to: [gpu-ops@example.org] }",
        )
        return
    named = [(key, rules.get(key)) for key in ns.KINDS.values()] if rules else []
    for key, rule in named:
        for channel in (rule.get(ns.TO) if rule else None) or ():
            if channel.value not in present:
                faults.add(
                    FaultCode.NOT_ONE_OF,
                    channel.location,
                    f"the rule for {key.name} names {channel.value}, which is not configured here",
                    expected=f"one of {listed(present)}",
                    hint=f"take {channel.value} away, or configure it under notify",
                )
