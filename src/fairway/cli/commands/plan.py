"""The command `fairway plan`."""

from __future__ import annotations

from pathlib import Path

import click

from fairway.cli import completion
from fairway.cli.connect import connect, server_options
from fairway.cli.output.format import Format, output_option, show_document, show_lines, text_width
from fairway.cli.output.messages import in_context
from fairway.cli.output.plan import plan_lines
from fairway.cli.shared.fleet_file import FleetText, file_option, read_fleet_text
from fairway.cli.shared.plan_file import write_plan
from fairway.model.errors import PermanentError
from fairway.views.plans import objections_of, suggested_name
from fairway.views.removals import confirmation_names
from fairway.wire import policy as wire

CHANGES = 2
"""The exit code of `--detailed-exitcode` if there are changes, as in Terraform."""

_EXAMPLES = """\b
Examples:
  fairway plan -f fleet.yaml                        summarize the changes
  fairway plan -f fleet.yaml -o wide                also list every object and field
  fairway plan -f fleet.yaml --out plan.json        save the plan for `fairway apply plan.json`
  fairway plan -f fleet.yaml --detailed-exitcode    for CI: 0 no changes, 2 changes, 1 error
"""


@click.command(epilog=_EXAMPLES)
@file_option(required=True)
@click.option("--cluster", metavar="NAME", help="Only this cluster.", shell_complete=completion.clusters)
@click.option(
    "--out", metavar="FILE", type=click.Path(path_type=Path), help="Save the plan for `fairway apply FILE`."
)
@click.option("--detailed-exitcode", is_flag=True, help="Exit with 0 (no changes), 2 (changes) or 1 (error).")
@server_options
@output_option
def plan(
    *,
    file: str,
    cluster: str | None,
    out: Path | None,
    detailed_exitcode: bool,
    context: str | None,
    url: str | None,
    output: Format,
) -> None:
    """Show what a fleet file would change on each cluster.

    Planning changes nothing. Fairway never touches objects that it does not manage; it lists those that
    conflict with the fleet file.
    """
    fleet = read_fleet_text(file)
    with connect(context, url) as client:
        planned = client.plan(fleet.text, fleet.source, cluster)
    show_plan(planned, output)
    check_complete(planned, cluster)
    _show_next_step(planned, fleet, file, out)
    if detailed_exitcode and (planned.changes or planned.diff):
        raise click.exceptions.Exit(CHANGES)


def show_plan(plan: wire.Plan, output: Format | None) -> None:
    """Print warnings to stderr and the plan to stdout; with `output` None, print the plan to stderr."""
    from fairway.cli.output.faults import from_wire, show_fault

    for fault in filter(None, map(from_wire, plan.warnings)):
        show_fault(fault)
    if output is None:
        show_lines(plan_lines(plan, None, wide=False), err=True)
        return
    width, wide = text_width(), output is Format.WIDE
    show_document(plan, lambda: plan_lines(plan, width, wide=wide), output)


class IncompletePlan(PermanentError):
    """Raised if a cluster could not be planned; `details` lists further failures."""

    def __init__(self, plan: wire.Plan, cluster: str | None) -> None:
        first, *more = plan.failures
        super().__init__(first.code, f"cannot plan {first.cluster}: {first.message}", first.hint)
        self.details = [f"cannot plan {f.cluster}: {f.message}" for f in more]
        if plan.clusters and cluster is None:
            self.details.append(f"other clusters can be planned alone:  --cluster {plan.clusters[0].cluster}")


def check_complete(plan: wire.Plan, cluster: str | None) -> None:
    """Raise IncompletePlan if the server could not plan every cluster: a partial plan must not be applied."""
    if plan.failures:
        raise IncompletePlan(plan, cluster)


def _show_next_step(plan: wire.Plan, fleet: FleetText, file: str, out: Path | None) -> None:
    """Write the plan file if requested, and print the command to run next."""
    plan_file = write_plan(out, plan, fleet) if out else None
    if not plan.changes and not plan.diff:
        return
    options = {o.option for _, o in objections_of(plan)}
    if "" in options or any(r.refused for r in plan.removals):
        return
    if confirmation_names(plan.removals):
        options.add("--force")
    force = "".join(f" {option}" for option in sorted(options))
    how = "If you want all of these changes:" if options else "Apply it with:"
    if plan_file is not None:
        prompt = how if options else "Apply exactly this with:"
        click.echo(in_context(f"\n{prompt}  fairway apply {plan_file}{force}"), err=True)
    elif file == "-":
        click.echo(f"\nSave the plan to apply exactly this:  --out {suggested_name(plan)}", err=True)
    else:
        steps = (
            f"\n{how}  fairway apply -f {file}{force}\n"
            f"or save exactly this plan:  fairway plan -f {file} --out {suggested_name(plan)}"
        )
        click.echo(in_context(steps), err=True)
