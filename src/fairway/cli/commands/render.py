"""The command group `fairway render`: write engine files that Fairway does not manage itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from fairway.cli.connect import connect, server_options
from fairway.cli.output.format import count
from fairway.cli.shared.fleet_file import file_option, read_fleet_text
from fairway.cli.shared.installed_files import differences, read_installed
from fairway.files import parse_fleet
from fairway.model.errors import PermanentError
from fairway.model.text import first_few
from fairway.telemetry.alerts import alertmanager_text, rules_text
from fairway.telemetry.counters import FILE_NAME, counters_text


@click.group(
    epilog="""\b
Examples:
  fairway render slurm -f fleet.yaml --cluster hpc --out slurm/
  fairway render alerts -f fleet.yaml --out alerts/
  fairway render counters --out /etc/dcgm-exporter
"""
)
def render() -> None:
    """Write files of an engine, or of Prometheus, that Fairway does not write itself."""


@render.command(
    epilog="""\b
Examples:
  fairway render slurm -f fleet.yaml --cluster hpc              to read them
  fairway render slurm -f fleet.yaml --cluster hpc --out DIR    to copy them to the controller
  fairway render slurm -f fleet.yaml --cluster hpc --check  compare with /etc/slurm
"""
)
@file_option(required=True)
@click.option("--cluster", required=True, metavar="NAME", help="A Slurm cluster of the fleet.")
@click.option(
    "--out",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder to write to.  [prints them]",
)
@click.option("--overwrite", is_flag=True, help="Replace files of DIR that differ.")
@click.option("--check", is_flag=True, help="Compare with installed files; exit with 1 if they differ.")
@click.option(
    "--installed",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("/etc/slurm"),
    show_default=True,
    help="The folder of slurm.conf, for --check.",
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
    """Write what a Slurm cluster needs beside the policy: job_submit.lua and lines of slurm.conf.

    The script gives a plain `sbatch` its team's QOS list. Read the files; add the lines of slurm.conf to
    yours, and copy the others beside it. slurm.conf includes fairway.conf. A site with a job_submit.lua of
    its own installs fairway.lua instead and calls that: its first lines say how.
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
  fairway render alerts -f fleet.yaml                                              to read them
  fairway render alerts -f fleet.yaml --out DIR --fairway https://fairway.example.org
"""
)
@file_option(required=True)
@click.option(
    "--out",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder to write to.  [prints them]",
)
@click.option("--overwrite", is_flag=True, help="Replace files of DIR that differ.")
@click.option(
    "--fairway",
    metavar="URL",
    default="http://127.0.0.1:8470",
    show_default=True,
    help="Where Alertmanager reaches Fairway.",
)
@click.option(
    "--token-file",
    metavar="FILE",
    default="/etc/alertmanager/fairway.token",
    show_default=True,
    help="Alertmanager's file with a token of the role alerts.",
)
def alerts(*, file: str, out: Path | None, overwrite: bool, fairway: str, token_file: str) -> None:
    """Write Prometheus rules for the GPUs of each cluster, and an Alertmanager configuration.

    Rules are written for each cluster with `telemetry:`, for the Prometheus that it names. Alertmanager sends
    their alerts to Fairway, which knows whose job it is and where its team is reached. Asks no server.
    """
    given = read_fleet_text(file)
    fleet = parse_fleet(given.text, given.source, None if file == "-" else Path(file).absolute().parent)
    clusters = [cluster for cluster in fleet.clusters if cluster.telemetry is not None]
    if not clusters:
        raise PermanentError(
            "NoTelemetry",
            f"no cluster of {given.source} says where the metrics of its GPUs are",
            "write  telemetry: { prometheus: http://HOST:9090 }  at a cluster in the fleet file",
        )
    files = {f"fairway-gpus-{cluster.name}.rules.yaml": rules_text(cluster) for cluster in clusters}
    files["alertmanager.yml"] = alertmanager_text(fleet, fairway, token_file)
    _put(files, out, overwrite=overwrite)


@render.command(
    epilog="""\b
Examples:
  fairway render counters                                 to read it
  fairway render counters --out /etc/dcgm-exporter        on every node with GPUs
"""
)
@click.option(
    "--out",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder to write to.  [prints it]",
)
@click.option("--overwrite", is_flag=True, help="Replace a file of DIR that differs.")
def counters(*, out: Path | None, overwrite: bool) -> None:
    """Write the counters file of dcgm-exporter: every metric that Fairway reads.

    Start dcgm-exporter with it as --collectors. Asks no server.
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
        click.echo(f"{folder} has everything", err=True)
        return
    click.echo("\n".join(lines))
    raise click.exceptions.Exit(1)


def _require_new(folder: Path, files: Mapping[str, str]) -> None:
    """Raise PermanentError if a file is there with another content: it may be the site's own."""
    existing = [n for n, text in files.items() if Path(n).name == n and _differs(folder / n, text)]
    if existing:
        raise PermanentError(
            "FileExists",
            f"{folder} has {first_few(existing, 5)} already, with another content",
            "leave out --out to print what it would write; then choose another --out DIR, or replace them "
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
            "BadFileName", f"the server named a file {name!r}", "look at the server:  fairway context list"
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
