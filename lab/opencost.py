"""OpenCost, built by Go from its module: what others count, beside what Fairway counts.

No kind of the lab: it needs a cluster and a Prometheus to look at. `bench/opencost.py` starts it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from lab import Instance, folders, ports
from lab.errors import LabError
from lab.kubernetes.builds import STATIC, STRIPPED, module, tool
from lab.progress import step
from lab.versions import OPENCOST
from lab.waiting import wait_until

MODULE = "github.com/opencost/opencost"
# Where it stands it would ask a cloud's metadata server; the lab's programs talk to this machine only.
PROVIDER = "pkg/cloud/provider/provider.go"
ASKS, ASKS_NOT = "if metadata.OnGCE() || strings.HasPrefix", "if strings.HasPrefix"
GPU_LABEL = "nvidia.com/gpu.product"  # nodes with it have GPUs that cost something
START_SECONDS = 180


@dataclass(frozen=True, slots=True)
class Setting:
    """One OpenCost with a Prometheus of its own."""

    prometheus: Instance
    scrape_seconds: int
    """OpenCost's own manifests say 60."""
    resolution_seconds: int
    """Of nodes' hours, and of pods' where a question says nothing else; OpenCost's own default is 300."""
    gpu_hour: str
    """What a GPU costs; CPU and memory cost nothing, so that only GPUs are compared."""


def program() -> Path:
    """The server, which is its own exporter, and the API that answers `/allocation`."""
    return folders.built("opencost", OPENCOST, _build) / "costmodel"


def _build(out: Path) -> None:
    with step(f"build opencost {OPENCOST}"), tempfile.TemporaryDirectory() as scratch:
        # A copy: what Go has downloaded cannot be changed, and the sums of its own go.sum still hold.
        sources = Path(shutil.copytree(module(MODULE, OPENCOST), Path(scratch) / "opencost"))
        provider = sources / PROVIDER
        asking = provider.read_text()
        if ASKS not in asking:
            raise LabError(f"opencost {OPENCOST} is not what the lab knows", f"{PROVIDER} has changed")
        provider.chmod(0o644)
        provider.write_text(asking.replace(ASKS, ASKS_NOT))
        words = ["-o", f"{out}/", "-ldflags", STRIPPED, "./cmd/costmodel"]
        tool("go", "build", *words, cwd=sources, env=STATIC)


@contextmanager
def running(kubeconfig: Path, setting: Setting, folder: Path) -> Iterator[str]:
    """An OpenCost that watches a cluster and is scraped; its address. It ends with the block."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "default.json").write_text(json.dumps(_prices(setting.gpu_hour)))
    port = ports.spare()[0]
    _scrape(setting, port)
    env = {
        "PATH": os.defpath,
        "HOME": str(folder),
        "KUBECONFIG": str(kubeconfig),
        "CONFIG_PATH": f"{folder}/",
        "API_PORT": str(port),
        "PROMETHEUS_SERVER_ENDPOINT": setting.prometheus.facts()["url"],
        "CLUSTER_ID": "lab",
        "ETL_RESOLUTION_SECONDS": str(setting.resolution_seconds),
        **dict.fromkeys(("ERROR_REPORTING_ENABLED", "PRODUCT_ANALYTICS_ENABLED"), "false"),
        **dict.fromkeys(("VALUES_REPORTING_ENABLED", "LOG_COLLECTION_ENABLED"), "false"),
    }
    with (folder / "log").open("w") as log:
        server = subprocess.Popen([program()], env=env, cwd=folder, stdout=log, stderr=log)
        try:
            _until_answers(server, f"http://127.0.0.1:{port}", folder / "log")
            yield f"http://127.0.0.1:{port}"
        finally:
            server.kill()
            server.wait(30)


def _prices(gpu_hour: str) -> dict[str, str]:
    # Not 0: it takes that for an outlier, and then knows no node's hours.
    nothing = dict.fromkeys(("CPU", "spotCPU", "RAM", "spotRAM", "storage"), "0.0000000001")
    network = dict.fromkeys(("zoneNetworkEgress", "regionNetworkEgress", "internetNetworkEgress"), "0")
    return {
        "provider": "custom",
        "description": "GPUs only",
        "customPricesEnabled": "true",
        "GPU": gpu_hour,
        "gpuLabel": GPU_LABEL,
        **nothing,
        **network,
    }


def _scrape(setting: Setting, port: int) -> None:
    """Tell Prometheus to scrape it, as OpenCost's own manifests say."""
    job = {
        "job_name": "opencost",
        "honor_labels": True,
        "scrape_interval": f"{setting.scrape_seconds}s",
        "scrape_timeout": f"{min(10, setting.scrape_seconds)}s",
        "static_configs": [{"targets": [f"127.0.0.1:{port}"]}],
    }
    told = {"global": {"scrape_interval": "60s"}, "scrape_configs": [job]}
    (setting.prometheus.folder / "prometheus.yml").write_text(yaml.safe_dump(told))
    ask = urllib.request.Request(f"{setting.prometheus.facts()['url']}/-/reload", method="POST")
    with urllib.request.urlopen(ask, timeout=10):
        pass


def _until_answers(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    def answers() -> bool:
        if server.poll() is not None:
            raise LabError("opencost ended at once", log.read_text()[-800:])
        try:
            with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
                return b"node_gpu_hourly_cost{" in answer.read(10_000_000)
        except OSError:
            return False

    wait_until(answers, START_SECONDS, "opencost tells no prices", why=lambda: log.read_text()[-800:])
