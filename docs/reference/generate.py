"""Generate the reference from the code: `make reference`. A test fails when a page is out of date."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from docs.reference import code_pages, command_pages, shapes
from fairway.api import load
from fairway.api.middleware import REQUESTS
from fairway.api.openapi import document
from fairway.control.metrics import METRICS
from fairway.control.metrics_slos import SLO_METRICS
from fairway.files import fleet_schema, job_schema
from fairway.files.diagnostics import FaultCode
from fairway.model.gpu_catalogue import CATALOGUE
from fairway.settings import SETTINGS

HERE = Path(__file__).parent
FLEET_FILE = (
    "All keys of the fleet file. `NAME` is a name of your choice. See [Write a fleet file](../guides/fleet-file.md) for examples. `fairway check -f FILE` "
    "finds all errors in a file; `fairway schema` prints the JSON Schema for editors."
)
JOB_FILE = (
    "All keys of a job file. See [Run jobs](../guides/jobs.md) for examples. `fairway check -f FILE` finds all errors in a file; `fairway schema job` "
    "prints the JSON Schema for editors."
)
NOTE = "<!-- made by `make reference` from the code; edit there -->\n\n"


def settings() -> str:
    rows = "".join(f"| `{s.name}` | `{s.variable}` | {s.default} | {s.help} |\n" for s in SETTINGS)
    return (
        f"# Settings of the server\n\n{NOTE}"
        "An option overrides the environment, the environment overrides the configuration file (`~/.config/fairway/server.yaml`, or the "
        "file in `FAIRWAY_CONFIG`), and the file overrides the default.\n\n"
        f"| setting | variable | default | description |\n|---|---|---|---|\n{rows}"
    )


def metrics() -> str:
    rows = "".join(
        f"| `{m.name}` | {m.kind} | {', '.join(m.labels)} | {m.help} |\n"
        for m in (*METRICS, *SLO_METRICS, REQUESTS, load.RUNNING, load.WAITING, load.SHED)
    )
    return (
        f"# Metrics\n\n{NOTE}"
        "`GET /metrics` requires a viewer token. In Prometheus, set `authorization: { credentials_file: … }`.\n\n"
        f"| metric | type | labels | description |\n|---|---|---|---|\n{rows}"
    )


def faults() -> str:
    rows = "".join(f"| `{code.value}` | {code.explanation} |\n" for code in FaultCode)
    return (
        f"# File errors\n\n{NOTE}"
        "Errors and warnings for fleet files, job files, scripts and manifests. `fairway check -o json` returns the code of "
        "each one; codes are stable.\n\n"
        f"| code | meaning |\n|---|---|\n{rows}"
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
        "The number after each MIG profile is its part of the GPU (its share of memory slices, see ADR 0011). Define other "
        "types in the fleet file under `gpu_types`.\n\n"
        f"| name | memory | MIG profiles |\n|---|---|---|\n{rows}"
    )


def glossary() -> str:
    loaded = yaml.safe_load((HERE / "glossary.yaml").read_text(encoding="utf-8"))
    parts = [
        f"# Glossary\n\n{NOTE}",
        "One term for each concept, in the command line, the API, the pages and these docs.\n",
    ]
    for subject, terms in loaded["terms"].items():
        parts.append(f"\n## {subject}\n\n| term | meaning | instead of |\n|---|---|---|\n")
        parts += [
            f"| **{term}** | {t['means']} | {', '.join(t['not']) or '–'} |\n" for term, t in terms.items()
        ]
    parts.append(
        "\n## Retired phrases\n\nA test fails if a text that users read has one of these.\n\n| phrase | write |\n|---|---|\n"
    )
    parts += [f"| {r['phrase']} | {r['write']} |\n" for r in loaded["retired"]]
    return "".join(parts)


def pages() -> dict[Path, str]:
    """Every generated file and its text."""
    described = document()
    return {
        HERE / "settings.md": settings(),
        HERE / "metrics.md": metrics(),
        HERE / "faults.md": faults(),
        HERE / "gpu-types.md": gpu_types(),
        HERE / "glossary.md": glossary(),
        HERE / "openapi.json": described,
        HERE / "api.md": shapes.api_page(NOTE, json.loads(described)),
        HERE / "fleet-file.md": shapes.file_page("Fleet file", FLEET_FILE, NOTE, fleet_schema()),
        HERE / "job-file.md": shapes.file_page("Job file", JOB_FILE, NOTE, job_schema()),
        **code_pages.pages(NOTE),
        **command_pages.pages(NOTE),
        HERE.parents[1] / "examples/fleet.schema.json": json.dumps(fleet_schema(), indent=2) + "\n",
        HERE.parents[1] / "examples/jobs/job.schema.json": json.dumps(job_schema(), indent=2) + "\n",
    }


def write() -> None:
    """Write every page, and delete pages of codes and commands that no longer exist."""
    wanted = pages()
    for old in {*(HERE / "codes").glob("*.md"), *(HERE / "cli").glob("*.md")} - set(wanted):
        old.unlink()
    for path, text in wanted.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
