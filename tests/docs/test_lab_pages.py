"""The start pages, typed in as they stand against the lab's real Slurm and Kubernetes."""

from __future__ import annotations

import getpass
import os
import shlex
import sys
from pathlib import Path

import pytest

from lab import Instance, find
from tests.contract.driver import absent
from tests.docs.desk import Desk
from tests.docs.reading import ROOT, blocks
from tests.integration.server_process import temporary_home

pytestmark = pytest.mark.timeout(900)

LAB = ("HOME", "XDG_CACHE_HOME", "FAIRWAY_LAB_INSTANCES")
"""What the lab finds its instances by; the reader's own home is another."""


def running(name: str) -> Instance:
    instance = find(os.environ.get(f"FAIRWAY_DOCS_{name.split('-', maxsplit=1)[0].upper()}", name))
    return instance if instance is not None else absent(name, "make lab-up")


def follow(page: Path, desk: Desk, **replaced: str) -> None:
    """Type the page in, with the lab's addresses where the page has example ones."""
    for block in blocks(page):
        if not block.typed:
            continue
        text = block.text
        for shown, real in zip(replaced["shown"].split(), replaced["real"].split(), strict=True):
            text = text.replace(shown, real)
        desk.follow(type(block)(block.page, block.line, block.language, block.title, text, block.said))


@pytest.mark.slurm
@pytest.mark.parametrize("name", ["slurm-24"])
def test_slurm_from_nothing_to_a_plan(name: str) -> None:
    instance = running(name)
    facts = instance.facts()
    kept = [f"{key}={shlex.quote(os.environ[key])}" for key in LAB if key in os.environ]
    run = " ".join([*kept, shlex.quote(sys.executable), "-m lab run", instance.name])
    with temporary_home() as home:
        desk = Desk(home, USER=getpass.getuser())
        # Slurm's tools are the lab's, where the user is there already; the reader's own host is this one.
        lab = f'cd {shlex.quote(str(ROOT))} && {run} "$@" || true'
        desk.tool("sudo", f'if [ "$1" = install ]; then exec "$@"; fi; {lab}')
        try:
            follow(
                ROOT / "docs/start/slurm.md",
                desk,
                shown="http://127.0.0.1:6820 /etc/slurm/jwt_hs256.key /etc/fairway/hpc.jwt",
                real=f"{facts['url']} {facts['jwt_key_file']} {desk.folder}/hpc.jwt",
            )
        finally:
            desk.close()
        assert "partition" in (desk.folder / "fleet.yaml").read_text()


@pytest.mark.kubernetes
@pytest.mark.parametrize("name", ["kubernetes"])
def test_kubernetes_from_nothing_to_a_plan(name: str) -> None:
    instance = running(name)
    with temporary_home() as home:
        desk = Desk(home, KUBECONFIG=str(instance.facts()["kubeconfig"]))
        desk.bring("deploy")
        try:
            follow(ROOT / "docs/start/kubernetes.md", desk, shown="", real="")
        finally:
            desk.close()
        assert "engine: kubernetes" in (desk.folder / "fleet.yaml").read_text()


@pytest.mark.kubernetes
def test_a_drained_node_may_say_why() -> None:
    instance = running("kubernetes")
    page = ROOT / "docs/engines/kubernetes.md"
    (block,) = [block for block in blocks(page) if block.says("runs") == "kubernetes-lab"]
    with temporary_home() as home:
        desk = Desk(home, KUBECONFIG=str(instance.facts()["kubeconfig"]))
        # Nodes of tests that run beside this one come and go; the lab's are there before them and stay.
        _, came = desk.run("kubectl get nodes -o name --sort-by=.metadata.creationTimestamp")
        node = came.split()[0].removeprefix("node/")
        for one in block.commands:
            code, came = desk.run(one.command.replace("NODE", node))
            assert code == 0, came
        _, said = desk.run(f"kubectl get node {node} -o yaml")
        assert "fairway.dev/drain-reason: check the fan" in said and "fairway.dev/drained-by: dana" in said
        desk.run(f"kubectl annotate node {node} fairway.dev/drain-reason- fairway.dev/drained-by-")
