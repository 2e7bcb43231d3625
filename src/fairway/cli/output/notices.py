"""Format notices and rules as tables. Pure: wire types in, a TableView out."""

from __future__ import annotations

from fairway.cli.output.format import Column, Fit, TableView, moment
from fairway.wire import notices as wire


def notices_view(found: wire.Notices, *, wide: bool) -> TableView:
    """Return a table with one row for each notice; -o wide adds its text and why deliveries failed."""
    columns = [
        Column("WHEN"),
        *Column.names("KIND", "FOR"),
        Column("WHAT", fit=Fit.END),
        Column("SENT", fit=Fit.END),
    ]
    if wide:
        columns += [Column("TEXT", fit=Fit.END), Column("ERROR", fit=Fit.END, hide_if_empty=True)]
    rows = []
    for one in found.notices:
        whom = [x for x in (one.team, one.user, "operators" if one.operators else None) if x]
        sent = [f"{d.channel}{'' if d.state == 'delivered' else f' ({d.state})'}" for d in one.deliveries]
        row = [
            moment(one.at, ""),
            one.kind.value,
            ", ".join(whom),
            one.subject,
            ", ".join(sent) or "no channel",
        ]
        if wide:
            row += [" ".join(one.text.split()), "; ".join(d.error for d in one.deliveries if d.error)]
        rows.append(row)
    return TableView(
        columns,
        rows,
        empty="no notices",
        hint="channels of teams and operators are in the fleet file; yours:  fairway notices rules",
        alarming=frozenset(
            i for i, one in enumerate(found.notices) if any(d.state == "given-up" for d in one.deliveries)
        ),
    )


def rules_view(found: wire.OwnNoticeRules) -> TableView:
    """Return a table with one row for each kind."""
    notes = [f"daily digests at {found.digest_hour:02}:00, {found.timezone}"]
    if found.quiet is not None:
        notes.append(f"only urgent notices from {found.quiet.replace('-', ' to ')}, {found.timezone}")
    return TableView(
        Column.names("KIND", "SENT"),
        [[kind.value, send.value] for kind, send in found.kinds.items()],
        empty="no kinds",
        hint="",
        notes=notes,
    )
