"""The command group `fairway notices`: list notices, and choose which to get."""

from __future__ import annotations

import click

from fairway.cli import completion
from fairway.cli.connect import connect, server_options
from fairway.cli.group import Group
from fairway.cli.output.format import Format, Listing, output_option, show
from fairway.cli.output.notices import notices_view, rules_view
from fairway.cli.parameter import ParsedParam
from fairway.model.notice_rules import PERSON_KINDS, NoticeKind, SendWhen, parse_quiet_hours
from fairway.wire import notices as wire

_KINDS = [kind.value for kind in PERSON_KINDS]


def _parse_choice(text: str) -> tuple[NoticeKind, SendWhen]:
    kind, _, send = text.partition("=")
    if kind not in _KINDS or send not in list(SendWhen):
        raise ValueError(f"{text!r}: use KIND=WHEN; kinds: {', '.join(_KINDS)}; when: {', '.join(SendWhen)}")
    return NoticeKind(kind), SendWhen(send)


def _parse_quiet(text: str) -> str | None:
    if text == "none":
        return None
    quiet = parse_quiet_hours(text)
    if quiet is None:
        raise ValueError(f"{text!r} are no hours; use 20:00-07:00, or none")
    return str(quiet)


@click.group(
    cls=Group,
    epilog="""\b
Examples:
  fairway notices list --kind anomaly             days on which a team spent unusually much
  fairway notices rules --set job-end=at-once     get a mail when your jobs end
  fairway notices test                            try whether mail reaches you
""",
)
def notices() -> None:
    """List notices, and choose which of them you get."""


@notices.command(
    "list",
    epilog="""\b
Examples:
  fairway notices list
  fairway notices list --kind anomaly --limit 10
  fairway notices list -o json | jq '.[] | select(.deliveries[].state == "given-up")'
""",
)
@click.option("--kind", type=click.Choice([k.value for k in NoticeKind]), help="Only notices of this kind.")
@click.option(
    "--limit",
    type=click.IntRange(1, 500),
    default=50,
    show_default=True,
    metavar="N",
    help="Show at most N rows.",
)
@output_option
@server_options
def list_(kind: str | None, limit: int, context: str | None, url: str | None, output: Format) -> None:
    """List the newest notices: what happened, and by which channels it was sent.

    Members and leads see the notices of their own teams and their own.
    """
    with connect(context, url) as client:
        found = client.notices(None if kind is None else NoticeKind(kind), limit)
    show(Listing(found.notices, notices_view(found, wide=output is Format.WIDE)), output)


@notices.command(
    epilog="""\b
Examples:
  fairway notices rules
  fairway notices rules --set job-end=at-once --set budget=daily
  fairway notices rules --quiet 20:00-07:00 --digest-hour 9
"""
)
@click.option(
    "--set",
    "chosen",
    type=ParsedParam("rule", _parse_choice),
    multiple=True,
    metavar="KIND=WHEN",
    help=f"Send a kind at-once, hourly, daily or never (repeatable). Kinds: {', '.join(_KINDS)}.",
)
@click.option(
    "--quiet",
    type=ParsedParam("hours", _parse_quiet),
    metavar="HOURS",
    help="Send only urgent kinds in these hours, such as 20:00-07:00; none: at any time.",
)
@click.option("--digest-hour", type=click.IntRange(0, 23), metavar="HOUR", help="Hour of daily digests.")
@output_option
@server_options
@click.pass_context
def rules(
    click_context: click.Context,
    chosen: tuple[tuple[NoticeKind, SendWhen], ...],
    quiet: str | None,
    digest_hour: int | None,
    context: str | None,
    url: str | None,
    output: Format,
) -> None:
    """Show or change which notices you get by mail, and when.

    Without options, nothing is changed. Teams and operators have their rules in the fleet file.
    """
    given = click_context.get_parameter_source("quiet") is not click.core.ParameterSource.DEFAULT
    with connect(context, url) as client:
        found = client.notice_rules()
        if chosen or given or digest_hour is not None:
            wanted = wire.NoticeRules(
                kinds=found.kinds | dict(chosen),
                quiet=quiet if given else found.quiet,
                digest_hour=found.digest_hour if digest_hour is None else digest_hour,
            )
            found = client.put_notice_rules(wanted)
    show(Listing([found], rules_view(found)), output)


@notices.command(
    epilog="""\b
Examples:
  fairway notices test                    a mail to yourself
  fairway notices test --team research    by every channel of the team
"""
)
@click.option(
    "--team", metavar="NAME", help="Send it to the channels of this team.", shell_complete=completion.teams
)
@server_options
def test(team: str | None, context: str | None, url: str | None) -> None:
    """Send a test notice to yourself, or to the channels of a team."""
    with connect(context, url) as client:
        client.test_notice(team)
    click.echo("sent within seconds; see what came of it:  fairway notices list --kind test", err=True)
