"""Writes the reference from the tables in the code: `make reference`. A test fails when a page is out of date."""

from __future__ import annotations

import json
import re
from pathlib import Path

from docs.reference import code_pages, command_pages, shapes
from fairway import __version__
from fairway.api import load
from fairway.api.middleware import REQUESTS
from fairway.api.openapi import document
from fairway.control.metrics import METRICS
from fairway.files import fleet_schema, job_schema
from fairway.files.diagnostics import FaultCode
from fairway.model.gpu_catalogue import CATALOGUE
from fairway.settings import SETTINGS

HERE = Path(__file__).parent
CHART = HERE.parents[1] / "deploy/helm/fairway/Chart.yaml"
FLEET_FILE = (
    "Every key. `NAME` is a name of your own. How they are used: [Say who shares the fleet](../guides/fleet-file.md); `fairway check -f FILE` finds "
    "every fault, `fairway schema` writes the JSON Schema for editors."
)
JOB_FILE = (
    "Every key. How they are used: [Run jobs](../guides/jobs.md); `fairway check -f FILE` finds every fault, `fairway schema job` writes the JSON "
    "Schema for editors."
)
NOTE = "<!-- made by `make reference` from the code; edit there -->\n\n"


def settings() -> str:
    rows = "".join(f"| `{s.name}` | `{s.variable}` | {s.default} | {s.help} |\n" for s in SETTINGS)
    return (
        f"# Settings of the server\n\n{NOTE}"
        "A flag wins over the environment, the environment over the config file (`~/.config/fairway/server.yaml`, or the "
        "file that `FAIRWAY_CONFIG` names), the file over the default.\n\n"
        f"| setting | variable | default | what it is |\n|---|---|---|---|\n{rows}"
    )


def metrics() -> str:
    rows = "".join(
        f"| `{m.name}` | {m.kind} | {', '.join(m.labels)} | {m.help} |\n"
        for m in (*METRICS, REQUESTS, load.RUNNING, load.WAITING, load.SHED)
    )
    return (
        f"# Metrics\n\n{NOTE}"
        "`GET /metrics` needs a viewer's token. In Prometheus: `authorization: { credentials_file: … }`.\n\n"
        f"| metric | kind | labels | what it tells |\n|---|---|---|---|\n{rows}"
    )


def faults() -> str:
    rows = "".join(f"| `{code.value}` | {code.explanation} |\n" for code in FaultCode)
    return (
        f"# Faults of a file\n\n{NOTE}"
        "What can be wrong with a fleet file, a job file, a script or a manifest. `fairway check -o json` gives the code of "
        "each fault; codes are stable.\n\n"
        f"| code | what it means |\n|---|---|\n{rows}"
    )


def gpu_types() -> str:
    rows = "".join(
        f"| {gpu.name} | {gpu.memory_gb} GB | "
        + (", ".join(f"{p.name} ({gpu.fraction(p)})" for p in gpu.profiles if "+" not in p.name) or "no MIG")
        + " |\n"
        for gpu in CATALOGUE.values()
    )
    return (
        f"# GPU types\n\n{NOTE}"
        "Behind each MIG profile stands its part of the GPU (its share of memory slices, see ADR 0011). A type that is "
        "missing is described in the fleet file under `gpu_types`.\n\n"
        f"| name | memory | MIG profiles |\n|---|---|---|\n{rows}"
    )


def chart() -> str:
    """The Helm chart with the version of the package, in the form that Helm wants for pre-releases."""
    semantic = re.sub(r"\.?(dev|rc)(\d+)$", r"-\1.\2", __version__)
    text = CHART.read_text(encoding="utf-8")
    text = re.sub(r"^version: .*$", f"version: {semantic}", text, flags=re.MULTILINE)
    return re.sub(r"^appVersion: .*$", f"appVersion: {__version__}", text, flags=re.MULTILINE)


def pages() -> dict[Path, str]:
    """Every generated file and its text."""
    described = document()
    return {
        HERE / "settings.md": settings(),
        HERE / "metrics.md": metrics(),
        HERE / "faults.md": faults(),
        HERE / "gpu-types.md": gpu_types(),
        HERE / "openapi.json": described,
        HERE / "api.md": shapes.api_page(NOTE, json.loads(described)),
        HERE / "fleet-file.md": shapes.file_page("The fleet file", FLEET_FILE, NOTE, fleet_schema()),
        HERE / "job-file.md": shapes.file_page("The job file", JOB_FILE, NOTE, job_schema()),
        CHART: chart(),
        **code_pages.pages(NOTE),
        **command_pages.pages(NOTE),
        HERE.parents[1] / "examples/fleet.schema.json": json.dumps(fleet_schema(), indent=2) + "\n",
        HERE.parents[1] / "examples/jobs/job.schema.json": json.dumps(job_schema(), indent=2) + "\n",
    }


def write() -> None:
    """Write every page, and delete pages of codes and commands that no longer exist."""
    wanted = pages()
    stale = {HERE / "cli.md", *(HERE / "codes").glob("*.md"), *(HERE / "cli").glob("*.md")} - set(wanted)
    for old in stale:
        old.unlink(missing_ok=True)
    for path, text in wanted.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
