"""A real engine of the lab with a fleet of ours, and a server of its own before it; for benchmarks."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from bench.fleets import A100, PRODUCT, teams_of
from fairway.client.client import Client
from fairway.engines.slurm.policy.render import render_slurm
from fairway.files.fleet.write import compose_fleet
from fairway.model.fleet import (
    Capacity,
    Cluster,
    Connection,
    Fleet,
    Folders,
    KubernetesConnection,
    KubernetesPlace,
    Place,
    Pool,
    SlurmConnection,
    SlurmPlace,
)
from fairway.model.names import ClusterName, PoolName, UserName
from fairway.server import build_engine
from fairway.services.plans import blocking, plan_cluster, raise_if_blocked, write_plan
from lab import Instance
from lab.kubernetes.cluster import Cluster as LabKubernetes
from lab.kubernetes.kwok import SPOT_LABEL, SPOT_TAINT
from lab.slurm import configure
from lab.slurm.config import JOB_SUBMIT
from tests.slurm_conf import conf_lines, slurm_lines

NAME: Final = ClusterName("bench")
USER: Final = UserName("alice")
WAIT_SECONDS: Final = 900
SPOT_PLACE: Final = KubernetesPlace(SPOT_LABEL, (SPOT_TAINT["key"],))
"""Where the spot nodes of the lab's Kubernetes are."""


def lab_fleet(instance: Instance, *, spot: bool = False) -> Fleet:
    """The lab's pool of whole GPUs, and with `spot` the pool of its spot nodes, which cost less."""
    facts = instance.facts()
    connection: Connection
    place: Place
    folders = Folders()
    if instance.kind == "slurm":
        connection = SlurmConnection(
            facts["url"], facts["user"], jwt_key_file=facts["jwt_key_file"], tools=facts["tools"]
        )
        place = SlurmPlace("gpu", "a100")
        folders = Folders(facts["logs"], facts["logs_seen_at"])
    else:
        connection = KubernetesConnection(kubeconfig=facts["fairway_kubeconfig"])
        place = KubernetesPlace(PRODUCT)
    pools = [Pool(PoolName("gpu"), NAME, A100, Capacity.OWNED, Decimal("1.90"), place)]
    if spot:
        place = SlurmPlace("spot", "a100") if instance.kind == "slurm" else SPOT_PLACE
        pools.append(Pool(PoolName("spot"), NAME, A100, Capacity.SPOT, Decimal("0.60"), place))
    cluster = Cluster(NAME, connection, folders)
    teams = tuple(replace(t, members=(USER,)) for t in teams_of(1, tuple(pools), (USER,)))
    return Fleet("bench", "USD", (cluster,), tuple(pools), teams)


def gpu_nodes(instance: Instance) -> int:
    """How many nodes the pool of whole GPUs has."""
    if instance.kind != "slurm":
        return int(instance.options.get("nodes", 4))
    said = instance.run("sinfo", "--noheader", "--partition=gpu", "--format=%D").stdout.split()
    return sum(map(int, said))


async def apply_policy(instance: Instance, fleet: Fleet) -> None:
    """The policy, and on Slurm the files that go with it."""
    engine = build_engine(fleet.clusters[0], fleet.pools)
    try:
        plan = await plan_cluster(engine, fleet, NAME)
        raise_if_blocked(blocking(plan, force=True))
        applied = await write_plan(engine, plan, force=True)
        if applied.refusal is not None:
            raise applied.refusal
    finally:
        await engine.close()
    if instance.kind == "slurm":
        said = await asyncio.to_thread(instance.run, "sinfo", "--noheader", "--format=%R %N")
        rows = dict(line.split() for line in said.stdout.splitlines())
        found = {f"partition/{name}/Nodes": nodes for name, nodes in rows.items()}
        files = render_slurm(fleet, NAME, found=found) if fleet.teams else {}
        lines = slurm_lines(files) if files else []
        accounting = conf_lines(files["slurmdbd.conf"]) if files else []
        lua = files.get("job_submit.lua", JOB_SUBMIT)
        await asyncio.to_thread(configure, instance, lines, lua, accounting)


@contextmanager
def server(fleet: Fleet, **settings: str) -> Iterator[tuple[str, str]]:
    """A server with a ledger of its own; its address and an admin's token."""
    with tempfile.TemporaryDirectory(prefix="fw-", ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        home.chmod(0o711)
        (home / "fleet.yaml").write_text(compose_fleet(fleet))
        log = home / "log"
        command = [sys.executable, "-m", "fairway.cli", "server", "-f", str(home / "fleet.yaml")]
        env = os.environ | {
            "FAIRWAY_STATE_DIR": folder,
            "FAIRWAY_CONFIG_DIR": folder,
            "HOME": folder,
            **settings,
        }
        with (
            log.open("wb") as out,
            subprocess.Popen(
                [*command, "--listen", "127.0.0.1:0"], env=env, stdout=out, stderr=out
            ) as process,
        ):
            try:
                for _ in range(600):
                    found = re.search(r" on (https?://\S+)$", log.read_text(), re.MULTILINE)
                    if found or process.poll() is not None:
                        break
                    time.sleep(0.1)
                if not found:
                    raise RuntimeError(f"the server did not start: {log.read_text()[-2000:]}")
                yield found[1], (home / "admin.token").read_text().strip()
            finally:
                process.terminate()
                process.wait(30)


def apply_by(client: Client, fleet: Fleet) -> None:
    """Let the server know what is applied; on the cluster nothing is left to change."""
    text = compose_fleet(fleet)
    plan = client.plan(text, "fleet.yaml")
    made = client.apply(text, "fleet.yaml", {c.cluster: c.fingerprint for c in plan.clusters}, force=True)
    deadline = time.monotonic() + 120
    while any(c.state in ("waiting", "running") for c in client.apply_progress(made.id).clusters):
        if time.monotonic() > deadline:
            raise TimeoutError("the fleet was not applied")
        time.sleep(0.1)


async def cancel_all(instance: Instance, users: Sequence[UserName] = (USER,)) -> None:
    """No job of these users is left in the engine's queue."""
    if instance.kind == "slurm":
        for user in users:
            await asyncio.to_thread(instance.run, "scancel", f"--user={user}", timeout=WAIT_SECONDS)
        whose = f"--user={','.join(users)}"
        for _ in range(300):
            said = await asyncio.to_thread(instance.run, "squeue", "-h", whose, "-t", "PD,R,CG")
            if not said.stdout.strip():
                return
            await asyncio.sleep(1)
        raise TimeoutError("jobs were not gone in time")
    api = LabKubernetes(instance).api

    def remove() -> bool:
        jobs = api.get("/apis/batch/v1/jobs")["items"]
        api.each(lambda job: api.call("DELETE", job_path(job), {"propagationPolicy": "Background"}), jobs)
        return bool(jobs)

    for _ in range(60):
        if not await asyncio.to_thread(remove):
            return
        await asyncio.sleep(1)
    raise TimeoutError("jobs were not gone in time")


def job_path(job: Mapping[str, Any]) -> str:
    return f"/apis/batch/v1/namespaces/{job['metadata']['namespace']}/jobs/{job['metadata']['name']}"
