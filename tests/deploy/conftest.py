"""A real cluster with a real node, a real PostgreSQL, and two releases of Fairway as images on the node."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairway.ledger import migrate
from lab import ports
from lab.instance import obtain
from lab.kubernetes import Cluster
from lab.kubernetes.wheel_image import write_wheel_image
from tests.deploy.release import NAMESPACE, Release

ROOT = Path(__file__).parents[2]
IMAGE = "localhost/fairway"
NODE = "real-0000"
NEXT_STEP = "9000"
FLEET = """\
apiVersion: fairway/v1alpha1
kind: Fleet
name: acme
currency: USD
clusters:
  cloud: { engine: kubernetes, kubeconfig: /etc/fairway/credentials/cloud-kubeconfig/config }
pools:
  real:
    cluster: cloud
    gpu: A100-80GB
    capacity: owned
    price: 1.90
    kubernetes: { node_labels: { type: real } }
"""
MIGRATION = """\
\"\"\"What the release after this one might bring.\"\"\"

from alembic import op

revision = "{step}"
down_revision = "{head}"
LOSES = ""


def upgrade() -> None:
    op.execute("ALTER TABLE job ADD COLUMN next_release text NOT NULL DEFAULT ''")
    op.execute("CREATE INDEX fleet_revision_created_at_idx ON fleet_revision (created_at)")


def downgrade() -> None:
    op.execute("DROP INDEX fleet_revision_created_at_idx")
    op.execute("ALTER TABLE job DROP COLUMN next_release")
"""


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """FAIRWAY_DEPLOY_CLUSTER names one that is up already, for those who try often."""
    given = os.environ.get("FAIRWAY_DEPLOY_CLUSTER")
    options = {"nodes": 1, "real_nodes": 1}
    instance = obtain("kubernetes", given or f"test-{os.getpid()}-deploy", None, options)
    try:
        instance.up()
        yield Cluster(instance)
    finally:
        if not given:
            instance.wipe()


@pytest.fixture(scope="session")
def ledger_url() -> Iterator[str]:
    instance = obtain("postgres", f"test-{os.getpid()}-deploy-sql", None, {})
    try:
        instance.up()
        yield instance.facts()["url"]
    finally:
        instance.wipe()


def head() -> str:
    """The newest step of this Fairway."""
    return max(file.name[1:5] for file in (migrate.FOLDER / "versions").glob("m*.py"))


@pytest.fixture(scope="session")
def images(cluster: Cluster) -> None:
    """`1` is the wheel of this checkout, `2` the release after it: one migration more."""
    with tempfile.TemporaryDirectory(prefix="fairway-deploy-") as scratch:
        folder = Path(scratch)
        words = ["uv", "build", "--quiet", "--wheel", "--out-dir", str(folder)]
        subprocess.run(words, cwd=ROOT, check=True, timeout=300)
        (wheel,) = folder.glob("*.whl")
        step = MIGRATION.format(step=NEXT_STEP, head=head()).encode()
        added = {f"fairway/ledger/migrations/versions/m{NEXT_STEP}_next_release.py": step}
        for tag, extra in (("1", {}), ("2", added)):
            archive = folder / "image.tar"
            write_wheel_image(f"{IMAGE}:{tag}", wheel, archive, extra)
            cluster.nodes.load_image(NODE, archive)


@pytest.fixture(scope="session")
def release(cluster: Cluster, ledger_url: str, images: None) -> Iterator[Release]:
    own = dict(zip(("server", "control"), ports.spare(2), strict=True))
    small = {"nodeSelector": {"type": "real"}, "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}}}
    # Pods reach this machine's PostgreSQL and API server by its own network only; two would want one port.
    values = {
        "database": {"existingSecret": "fairway-database"},
        "tls": {"plainHttp": True},
        "hostNetwork": True,
        "listenHost": "127.0.0.1",
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
        "preStopSeconds": 0,
        "settings": {"lease_seconds": 5, "observe_seconds": 1},
        "credentials": ["cloud-kubeconfig"],
        "rbac": {"member": False, "run": False},  # the lab's cluster has these roles
        "fleet": {"content": FLEET},
        "migrations": small,
        "control": {"replicas": 1, "port": own["control"], **small},
        "server": {
            "replicas": 1,
            "port": own["server"],
            "engineServer": f"http://127.0.0.1:{own['control']}",
            **small,
        },
    }
    release = Release(cluster, own, IMAGE, values)
    release.kubectl("create", "namespace", NAMESPACE)
    try:
        kubeconfig = cluster.instance.facts()["fairway_kubeconfig"]
        release.kubectl("create", "secret", "generic", "fairway-database", f"--from-literal=url={ledger_url}")
        release.kubectl("create", "secret", "generic", "cloud-kubeconfig", f"--from-file=config={kubeconfig}")
        yield release
    finally:
        release.run_down()
