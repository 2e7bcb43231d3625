"""The command group `fairway render`: write engine files that Fairway does not manage itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from fairway.cli import completion
from fairway.cli.connect import connect, server_options
from fairway.cli.group import Group
from fairway.cli.output.format import count
from fairway.cli.shared.fleet_file import file_option, read_fleet_text
from fairway.cli.shared.installed_files import differences, read_installed
from fairway.files import parse_fleet
from fairway.model.errors import PermanentError
from fairway.model.text import first_few
from fairway.telemetry.alerts import alertmanager_text, rules_text
from fairway.telemetry.counters import FILE_NAME, counters_text


@click.group(
    cls=Group,
    epilog="""\b
Examples:
  fairway render slurm -f fleet.yaml --cluster hpc --out slurm/
  fairway render alerts -f fleet.yaml --out alerts/
  fairway render counters --out /etc/dcgm-exporter
""",
)
def render() -> None:
    """Write configuration files for Slurm and Prometheus.

    These are files that an administrator installs; Fairway does not write them to the clusters itself.
    """


@render.command(
    epilog="""\b
Examples:
  fairway render slurm -f fleet.yaml --cluster hpc              print the files
  fairway render slurm -f fleet.yaml --cluster hpc --out DIR    write them, to copy them
  fairway render slurm -f fleet.yaml --cluster hpc --check      compare them with /etc/slurm
"""
)
@file_option(required=True)
@click.option(
    "--cluster",
    required=True,
    metavar="NAME",
    help="A Slurm cluster of the fleet.",
    shell_complete=completion.clusters,
)
@click.option(
    "--out",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory to write to.  [default: stdout]",
)
@click.option("--overwrite", is_flag=True, help="Replace files in DIR that differ.")
@click.option("--check", is_flag=True, help="Compare with the installed files; exit with 1 if they differ.")
@click.option(
    "--installed",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("/etc/slurm"),
    show_default=True,
    help="Directory of slurm.conf, for --check.",
)
@server_options
def slurm(
    *,
    file: str,
    cluster: str,
    out: Path | None,
    overwrite: bool,
    check: bool,
    installed: Path,
    context: str | None,
    url: str | None,
) -> None:
    """Write job_submit.lua and the lines of slurm.conf that a policy needs.

    job_submit.lua gives each `sbatch` job the QOS of its team. Review the files, add the lines to your
    slurm.conf, and copy the other files beside it; slurm.conf includes fairway.conf. If you already have a
    job_submit.lua, install fairway.lua instead and call it as its first lines explain.
    """
    fleet = read_fleet_text(file)
    with connect(context, url) as client:
        rendered = client.render(fleet.text, fleet.source, cluster)
    if check:
        _check(rendered.files, installed)
        return
    _put(rendered.files, out, overwrite=overwrite)


@render.command(
    epilog="""\b
Examples:
  fairway render alerts -f fleet.yaml                                              print the files
  fairway render alerts -f fleet.yaml --out DIR --fairway https://fairway.example.org
"""
)
@file_option(required=True)
@click.option(
    "--out",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory to write to.  [default: stdout]",
)
@click.option("--overwrite", is_flag=True, help="Replace files in DIR that differ.")
@click.option(
    "--fairway",
    metavar="URL",
    default="http://127.0.0.1:8470",
    show_default=True,
    help="URL at which Alertmanager reaches Fairway.",
)
@click.option(
    "--token-file",
    metavar="FILE",
    default="/etc/alertmanager/fairway.token",
    show_default=True,
    help="File with a token of the role alerts, on Alertmanager's host.",
)
def alerts(*, file: str, out: Path | None, overwrite: bool, fairway: str, token_file: str) -> None:
    """Write Prometheus alerting rules for GPUs, and an Alertmanager configuration.

    There is a rule file for each cluster with `telemetry:` in the fleet file. Alertmanager sends the alerts
    to Fairway, which adds the affected job and notifies its team. This needs no server.
    """
    given = read_fleet_text(file)
    fleet = parse_fleet(given.text, given.source, None if file == "-" else Path(file).absolute().parent)
    clusters = [cluster for cluster in fleet.clusters if cluster.telemetry is not None]
    if not clusters:
        raise PermanentError(
            "NoTelemetry",
            f"no cluster in {given.source} has telemetry",
            "add  telemetry: { prometheus: http://HOST:9090 }  to a cluster in the fleet file",
        )
    files = {f"fairway-gpus-{cluster.name}.rules.yaml": rules_text(cluster) for cluster in clusters}
    files["alertmanager.yml"] = alertmanager_text(fleet, fairway, token_file)
    _put(files, out, overwrite=overwrite)


@render.command(
    epilog="""\b
Examples:
  fairway render counters                                 print the file
  fairway render counters --out /etc/dcgm-exporter        on every GPU node
"""
)
@click.option(
    "--out",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory to write to.  [default: stdout]",
)
@click.option("--overwrite", is_flag=True, help="Replace a file in DIR that differs.")
def counters(*, out: Path | None, overwrite: bool) -> None:
    """Write the counters file of dcgm-exporter, with every metric that Fairway reads.

    Pass the file to dcgm-exporter as --collectors. This needs no server.
    """
    _put({FILE_NAME: counters_text()}, out, overwrite=overwrite)


def _put(files: Mapping[str, str], folder: Path | None, *, overwrite: bool) -> None:
    """Write files to a folder, or print them if there is none."""
    if folder is None:
        for name, text in files.items():
            click.echo(f"# {name}\n{text.rstrip()}\n")
        return
    if not overwrite:
        _require_new(folder, files)
    for name, text in files.items():
        _write(folder, name, text)
    click.echo(f"wrote {count(len(files), 'file')} to {folder}: {', '.join(files)}", err=True)


def _check(rendered: Mapping[str, str], folder: Path) -> None:
    """Print how the installed files differ. Exits with 1 if they do."""
    lines = differences(rendered, read_installed(folder))
    if not lines:
        click.echo(f"All files in {folder} are up to date.", err=True)
        return
    click.echo("\n".join(lines))
    raise click.exceptions.Exit(1)


def _require_new(folder: Path, files: Mapping[str, str]) -> None:
    """Raise PermanentError if a file is there with another content: it may be the site's own."""
    existing = [n for n, text in files.items() if Path(n).name == n and _differs(folder / n, text)]
    if existing:
        raise PermanentError(
            "FileExists",
            f"{folder} already has {first_few(existing, 5)} with other content",
            "print the new files by leaving out --out; then choose another --out DIR, or replace them "
            "with --overwrite",
        )


def _differs(path: Path, text: str) -> bool:
    try:
        return path.read_text(encoding="utf-8", errors="replace") != text
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _write(folder: Path, name: str, text: str) -> None:
    """Write one file, rejecting names that would write outside the folder: the server chooses them."""
    if Path(name).name != name or name in ("", ".", ".."):
        raise PermanentError(
            "BadFileName", f"the server named a file {name!r}", "check the server:  fairway context list"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise PermanentError(
            "FileNotWritten",
            f"cannot write {folder / name}: {error.strerror or error}",
            "choose another --out DIR",
        ) from error
