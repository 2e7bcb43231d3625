"""`python -m lab`: what to type."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal as signals
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

import click

from lab import folders
from lab.errors import LabError
from lab.instance import Instance, every, find, obtain
from lab.kinds import MODULES
from lab.progress import step
from lab.versions import SLURM_SUITES

EXAMPLES = """
\b
  python -m lab up slurm --name slurm-26 --version 26.05 --nodes 4
  python -m lab run slurm-26 sinfo
  python -m lab run slurm-26 --as alice sbatch --wrap 'sleep 5'
  python -m lab up kubernetes --real-nodes 1
  python -m lab up kubernetes --name kinds --with jobset,lws,trainer,kuberay
  eval "$(python -m lab env kubernetes)"
  python -m lab kill slurm-26 gpu001; python -m lab up slurm --name slurm-26
  python -m lab down --all
  python -m lab build
"""


@click.group(help=f"Real engines on this machine, on 127.0.0.1 only.\n{EXAMPLES}")
def lab() -> None:
    pass


@lab.command()
@click.argument("kind", type=click.Choice(list(MODULES)))
@click.option("--name", help="What to call it; the kind by default.")
@click.option("--version", help="Which version of the engine.")
@click.option("--nodes", type=click.IntRange(1, 5000), help="How many GPU nodes.")
@click.option("--spot-nodes", type=click.IntRange(0, 50), help="How many nodes of spot capacity.")
@click.option(
    "--dra-nodes", type=click.IntRange(0, 50), help="Kubernetes: how many nodes whose GPUs pods claim."
)
@click.option(
    "--real-nodes", type=click.IntRange(0, 50), help="Kubernetes: how many nodes that run real pods."
)
@click.option("--gpus", type=click.IntRange(1, 64), help="Kubernetes and gpus: how many GPUs a node has.")
@click.option("--mig-nodes", type=click.IntRange(0, 1000), help="gpus: how many nodes with MIG instances.")
@click.option("--interval", type=click.IntRange(1, 300), help="gpus: seconds between two scrapes.")
@click.option("--new-names", is_flag=True, default=None, help="gpus: metrics as DCGM 4.6 names them.")
@click.option("--lower-hostname", is_flag=True, default=None, help="gpus: the label hostname, not Hostname.")
@click.option("--pods", is_flag=True, default=None, help="gpus: labels of pods instead of hpc_job.")
@click.option("--no-hpc-job", is_flag=True, default=None, help="gpus: no label that names a job.")
@click.option("--site", help="Set up as a site has it: a folder in lab/slurm/sites or lab/kubernetes/sites.")
@click.option(
    "--kueue",
    type=click.File(),
    help="Kubernetes: a file whose top-level keys replace Kueue's configuration.",
)
@click.option(
    "--with", "operators", help="Kubernetes: operators, as jobset,lws,trainer,kuberay; kept for good."
)
def up(
    kind: str,
    *,
    name: str | None,
    version: str | None,
    nodes: int | None,
    spot_nodes: int | None,
    dra_nodes: int | None,
    real_nodes: int | None,
    gpus: int | None,
    mig_nodes: int | None,
    interval: int | None,
    new_names: bool | None,
    lower_hostname: bool | None,
    pods: bool | None,
    no_hpc_job: bool | None,
    site: str | None,
    kueue: TextIO | None,
    operators: str | None,
) -> None:
    """Bring an instance up, or heal the daemons of one that is up."""
    options = {
        "nodes": nodes,
        "spot_nodes": spot_nodes,
        "dra_nodes": dra_nodes,
        "real_nodes": real_nodes,
        "gpus": gpus,
        "mig_nodes": mig_nodes,
        "interval": interval,
        "new_names": new_names,
        "lower_hostname": lower_hostname,
        "pods": pods,
        "no_hpc_job": no_hpc_job,
        **_operators(kind, operators),
    }
    instance = obtain(
        kind, name, version, {what: int(count) for what, count in options.items() if count is not None}
    )
    if kueue:
        _keep_kueue(instance, kueue.read())
    if site:
        _choose_site(instance, site)
    before = instance.state
    if before == "up":
        _say(f"{instance.name} is up already")
    elif before == "degraded":
        _say(f"{instance.name}: starting again {_few(instance.dead)}")
    instance.up()
    if before != "up":
        url = re.sub(
            r":[^:@/]+@", "@", instance.facts().get("url", "")
        )  # a password is for `env`, not for logs
        _say(f"{instance.name} is up: {instance.kind} {instance.version}, {url}")
        _say(f"  python -m lab env {instance.name}")


def _operators(kind: str, wanted: str | None) -> dict[str, int]:
    if not wanted:
        return {}
    if kind != "kubernetes":
        raise LabError(f"{kind} takes no --with")
    from lab.kubernetes.operators import chosen

    return dict.fromkeys(chosen(wanted.split(",")), 1)


def _keep_kueue(instance: Instance, text: str) -> None:
    if instance.kind != "kubernetes":
        raise LabError(f"{instance.kind} takes no --kueue")
    from lab.kubernetes.kueue import keep_extra

    keep_extra(instance.folder, text)


def _choose_site(instance: Instance, site: str) -> None:
    if instance.kind not in ("slurm", "kubernetes"):
        raise LabError(f"{instance.kind} takes no --site")
    import_module(f"lab.{instance.kind}.site").Site(site)
    instance.choose_site(site)


@lab.command()
def build() -> None:
    """Build and download what instances need, so that `up` only starts daemons. Cached by version."""
    from lab import gpus, helm, oidc
    from lab.kubernetes import builds, images
    from lab.slurm import root

    def compiled() -> None:
        builds.control_builds()
        builds.operator_builds()
        builds.node_builds()
        helm.program()

    def packaged() -> None:
        for version in SLURM_SUITES:
            root.installed(version)
        images.images()
        gpus.build()
        if oidc.has_node():
            oidc.program()

    # Go keeps every core busy; packages mostly wait for the network and for dpkg.
    with ThreadPoolExecutor() as pool:
        for made in [pool.submit(compiled), pool.submit(packaged)]:
            made.result()


@lab.command()
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def status(output: str) -> None:
    """List the instances and how they are."""
    rows = [_row(instance) for instance in every()]
    if output == "json":
        click.echo(json.dumps(rows, indent=2))
        return
    form = "{:<16} {:<12} {:<10} {:<9} {:>8}  {}"
    click.echo(form.format("NAME", "KIND", "VERSION", "STATE", "DAEMONS", "DEAD"))
    for row in rows:
        total = row["alive"] + len(row["dead"])
        dead = "" if row["state"] == "down" else _few(row["dead"])
        count = f"{row['alive']}/{total}"
        click.echo(form.format(row["name"], row["kind"], row["version"], row["state"], count, dead).rstrip())


def _row(instance: Instance) -> dict[str, Any]:
    alive, dead = instance.alive, instance.dead
    return {
        "name": instance.name,
        "kind": instance.kind,
        "version": instance.version,
        "state": instance.state,
        "options": instance.options,
        "folder": str(instance.folder),
        "ports": {what: [row.start, row.stop - 1] for what, row in instance.rows.items()},
        "alive": len(alive),
        "dead": dead,
    }


@lab.command()
@click.argument("name")
@click.option("-o", "--output", type=click.Choice(["shell", "json"]), default="shell", show_default=True)
@click.option("--with-token", is_flag=True, help="Also a token, fresh and short-lived.")
def env(name: str, output: str, with_token: bool) -> None:
    """Print what a client of NAME needs: URLs, file names, users."""
    instance = _known(name)
    if output == "json":
        click.echo(json.dumps(instance.facts(secrets=with_token), indent=2))
    else:
        for variable, value in instance.env(secrets=with_token).items():
            click.echo(f"export {variable}={shlex.quote(value)}")


@lab.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("name")
@click.argument("words", nargs=-1, required=True, metavar="[--as USER] CMD...", type=click.UNPROCESSED)
def run(name: str, words: Sequence[str]) -> None:
    """Run a command with the engine's own tools, e.g. `run slurm --as alice squeue`."""
    user = None
    if words[0] == "--as":
        if len(words) < 3:
            raise click.UsageError("--as needs a user and a command")
        user, words = words[1], words[2:]
    command = _known(name).command(*words, user=user)
    try:
        done = subprocess.run(list(command.argv), env=command.env, cwd=command.cwd, check=False)
    except FileNotFoundError:
        raise LabError(f"there is no command {words[0]}") from None
    sys.exit(done.returncode if done.returncode >= 0 else 128 - done.returncode)


@lab.command()
@click.argument("names", nargs=-1)
@click.option("--all", "all_of_them", is_flag=True, help="Every instance.")
def down(names: Sequence[str], all_of_them: bool) -> None:
    """End what NAMES started; data stay for the next `up`."""
    for instance in _chosen(names, all_of_them):
        with step(f"{instance.name}: down"):
            instance.down()


@lab.command()
@click.argument("names", nargs=-1)
@click.option("--all", "all_of_them", is_flag=True, help="Every instance.")
@click.option("--builds", is_flag=True, help="Also what was built or downloaded.")
def wipe(names: Sequence[str], all_of_them: bool, builds: bool) -> None:
    """Bring NAMES down and remove their data."""
    for instance in [] if builds and not names and not all_of_them else _chosen(names, all_of_them):
        with step(f"{instance.name}: wipe"):
            instance.wipe()
    if builds:
        if left := [instance.name for instance in every()]:
            raise LabError(
                "the builds stay", f"{', '.join(left)} stand on them", "python -m lab wipe --all --builds"
            )
        with step("remove the builds"):
            folders.remove(folders.builds())


@lab.command()
@click.argument("name")
@click.argument("daemon")
@click.option(
    "--signal", "number", type=click.IntRange(1, 64), default=int(signals.SIGKILL), show_default=True
)
def kill(name: str, daemon: str, number: int) -> None:
    """Send DAEMON of NAME a signal, e.g. `kill slurm gpu001`."""
    _known(name).kill(daemon, number)


@lab.command()
@click.argument("name")
@click.argument("daemon")
def start(name: str, daemon: str) -> None:
    """Start DAEMON of NAME, unless it runs."""
    _known(name).start(daemon)


@lab.command()
@click.argument("name")
@click.argument("daemon")
def restart(name: str, daemon: str) -> None:
    """End DAEMON of NAME and start it again."""
    _known(name).restart(daemon)


@lab.command()
@click.argument("name")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
def configure(name: str, folder: Path) -> None:
    """Give a Slurm cluster what `fairway render slurm --out FOLDER` wrote, and have Slurm read it."""
    from lab.slurm import cluster

    def lines(file: str) -> list[str]:
        path = folder / file
        written = path.read_text().splitlines() if path.exists() else []
        return [line for line in written if not line.startswith(("#", "Include "))]

    script = folder / "job_submit.lua"
    cluster.configure(
        _known(name),
        [*lines("slurm.conf"), *lines("fairway.conf")],
        script.read_text() if script.exists() else None,
        lines("slurmdbd.conf"),
    )


def _known(name: str) -> Instance:
    if instance := find(name):
        return instance
    names = ", ".join(instance.name for instance in every()) or "none yet; python -m lab up --help"
    raise LabError(f"there is no instance {name}", hint=f"known: {names}")


def _chosen(names: Sequence[str], all_of_them: bool) -> list[Instance]:
    if not names and not all_of_them:
        raise LabError("which instance?", hint="name some, or --all")
    return list(every()) if all_of_them else [_known(name) for name in names]


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _say(text: str) -> None:
    click.echo(text, err=True)


def main() -> None:
    try:
        lab(prog_name="python -m lab")
    except LabError as error:
        _say(f"error: {error}")
        sys.exit(1)
    except subprocess.TimeoutExpired as error:
        _say(f"error: {os.fspath(error.cmd[0])} took longer than {error.timeout:.0f} s")
        sys.exit(1)
