"""The command `fairway import`."""

from __future__ import annotations

from pathlib import Path

import click

from fairway.cli import completion
from fairway.cli.connect import connect, server_options
from fairway.cli.output.format import count
from fairway.cli.output.messages import show_hint
from fairway.cli.output.report_files import not_written
from fairway.client.private_file import write_private
from fairway.model.errors import PermanentError

_EXAMPLES = """\b
Examples:
  fairway import hpc                       print the fleet file
  fairway import hpc --out fleet.yaml      save it for review
  fairway plan -f fleet.yaml               then see what Fairway would change: little or nothing
  fairway import cloud --merge fleet.yaml --out both.yaml      add a second cluster
"""


@click.command("import", epilog=_EXAMPLES)
@click.argument("cluster", shell_complete=completion.clusters)
@click.option(
    "--out", metavar="FILE", type=click.Path(path_type=Path), help="Write to this file.  [default: stdout]"
)
@click.option("--overwrite", is_flag=True, help="Replace FILE if it exists.")
@click.option(
    "--merge",
    metavar="FLEET",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Add the cluster to this fleet file, and keep the rest of it.",
)
@server_options
def import_(
    *,
    cluster: str,
    out: Path | None,
    overwrite: bool,
    merge: Path | None,
    context: str | None,
    url: str | None,
) -> None:
    """Create a fleet file from a cluster's existing policy.

    Slurm accounts, QOS and limits, or Kueue objects and Kubernetes quotas, become teams. Settings that
    Fairway does not support become comments. Importing changes nothing on the cluster. With --merge, teams
    of the same name become one team.
    """
    if out is not None and out.exists() and not overwrite:
        raise PermanentError(
            "FileExists", f"{out} exists", "replace it with --overwrite, or choose another --out FILE"
        )
    with connect(context, url) as client:
        found = client.import_policy(cluster)
    text = found.fleet if merge is None else _merged(merge, found.fleet)
    if out is None:
        click.echo(text, nl=False)
    else:
        try:
            write_private(out, text)
        except OSError as error:
            raise not_written(out, error) from error
    comments = count(found.remarks, "comment")
    remarks = f"; review its {comments}: assumptions, and settings that Fairway does not support"
    done = f"wrote {out}" if out else f"cluster {cluster} as a fleet file"
    click.echo(done + (remarks if found.remarks else ""), err=True)
    if out is not None:
        _show_gaps(text, out)
        click.echo(f"\nSee what this would change:  fairway plan -f {out}", err=True)


def _merged(path: Path, added: str) -> str:
    """Return the fleet file at `path` with an imported cluster in it, and both files' comments."""
    from fairway.files import compose_fleet, parse_fleet, read_fleet
    from fairway.files.fleet.merge import comments_of, merge_fleets

    base, new = read_fleet(path), parse_fleet(added, "imported")
    merged, remarks = merge_fleets(base, new)
    names = {str(team.name) for team in merged.teams} | {str(pool.name) for pool in merged.pools}
    comments = [*comments_of(path.read_text(encoding="utf-8-sig"), names), *comments_of(added, names)]
    return compose_fleet(merged, remarks, comments)


def _show_gaps(text: str, out: Path) -> None:
    """Print hints for what an engine does not know: prices of GPUs, and teams if it has none."""
    from fairway.files import FaultCode, check_text

    report = check_text(text, str(out), Path.cwd())
    unpriced = [fault.path.split(".")[1] for fault in report.faults if fault.code is FaultCode.NO_PRICE]
    if unpriced:
        has = "has" if len(unpriced) == 1 else "have"
        show_hint(
            f"{', '.join(unpriced)} {has} no price yet, so cost would be 0: add the price of a GPU-hour "
            f"to {out}, as in  price: 1.90;  fairway price owned  computes it for GPUs that you own"
        )
    if report.fleet is not None and report.fleet.pools and not report.fleet.teams:
        pool = report.fleet.pools[0].name
        show_hint(
            f"the cluster has no teams yet: add them to {out}, as in  "
            f"teams: {{ research: {{ guarantee: {{ {pool}: 4 }}, members: [alice] }} }}"
        )
