"""Jobs broken at random: always a report, never a traceback, and what is accepted passes the schema."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import jsonschema
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairway.files import (
    InvalidFile,
    JobReport,
    check_job_bytes,
    check_jobs,
    job_schema,
    location_lines,
)
from fairway.files.diagnostics import MAX_FAULTS
from fairway.wire import jobs as job_wire
from tests.tier import examples
from tests.unit.files.fleet.test_fuzz import SNIPPETS
from tests.unit.files.yaml_values import plain

JOBS = Path(__file__).parents[4] / "examples/jobs"
TEXTS = {
    p.name: re.sub(r"(^|\s+)# .*", "", p.read_text()) for p in sorted(JOBS.iterdir()) if p.suffix != ".json"
}
SCHEMA = jsonschema.Draft202012Validator(job_schema())
SOME = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=examples(300),
)
WORDS = st.one_of(
    SNIPPETS,
    st.text(max_size=5),
    st.sampled_from(
        [
            "8",
            "0",
            "-1",
            "1e9",
            "A100",
            "H100:8",
            "40GB..",
            "1g.10gb",
            "0-99",
            "0-9%3",
            "8f3k",
            "90",
            "72h",
            "1-12:00:00",
            "gpu:4",
            "bash",
            "[]",
            "{}",
            "~",
            "spot",
            "rack",
            "--gres=gpu:a100:8",
            "--mem=0",
            "-N",
            "-n#SBATCH",
            "afterok:",
            "nvidia.com/gpu",
            "valueFrom:",
            "null",
            "64Gi",
            "500m",
        ]
    ),
)


def examined(report: JobReport) -> bool:
    """What holds of every report, whatever the file."""
    for fault in report.faults:
        assert fault.line >= 1 and fault.column >= 1
        assert fault.message.strip() and fault.hint.strip() and fault.code.explanation
        said = "\n".join((fault.message, fault.hint, fault.expected, *location_lines(fault)))
        assert said.replace("\n", "").isprintable(), said
        assert len(said) < 5000
    assert len(report.faults) <= MAX_FAULTS + 1
    refused = any(f.severity == "error" for f in report.faults)
    assert refused == (report.jobs is None)
    if refused:
        assert InvalidFile(report.source, report.faults).details
    for job in report.jobs or ():
        # What a file may say, the server takes.
        assert job_wire.JobSpec.from_model(job).to_model() == job
    return not refused


@st.composite
def broken(draw: st.DrawFn) -> str:
    text = draw(st.sampled_from(list(TEXTS.values())))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(text)))
        end = min(len(text), at + draw(st.integers(0, 10)))
        if draw(st.booleans()):
            spans = [m.span() for m in re.finditer(r"[A-Za-z0-9_./+:=-]+", text)]
            at, end = draw(st.sampled_from(spans)) if spans else (at, end)
        text = text[:at] + draw(WORDS) + text[end:]
    return text


def test_broken_files() -> None:
    outcomes: Counter[bool] = Counter()

    @SOME
    @given(broken())
    def run(text: str) -> None:
        report = check_jobs(text, "job.yaml")
        outcomes[examined(report)] += 1
        own = text.count("fairway/v1alpha1") == 1 and "batch/v1" not in text and "---" not in text
        if report.jobs and len(report.jobs) == 1 and own and "#SBATCH" not in text:
            assert list(SCHEMA.iter_errors(plain(text))) == []

    run()
    # Hypothesis also draws constants of the modules that happen to be loaded, so the share varies.
    assert min(outcomes.values()) > SOME.max_examples // 10


@settings(SOME, max_examples=examples(100))
@given(st.sampled_from(sorted(TEXTS.values())), st.integers(0, 1500), st.binary(max_size=4))
def test_broken_bytes(text: str, at: int, junk: bytes) -> None:
    data = text.encode()
    examined(check_job_bytes(data[:at] + junk + data[at + len(junk) :], "job.yaml"))


OPTION = st.builds(
    lambda name, sign, value: f"#SBATCH {name}{sign}{value}",
    st.sampled_from(
        [
            "--gres",
            "-G",
            "--gpus",
            "--gpus-per-node",
            "-N",
            "-n",
            "-t",
            "--mem",
            "--mem-per-cpu",
            "--export",
            "-d",
            "--dependency",
            "-a",
            "-c",
            "-p",
            "--x",
            "-1",
        ]
    ),
    st.sampled_from(["=", " ", ""]),
    st.one_of(WORDS, st.from_regex(r"[a-z0-9:,=%+@.-]{0,12}", fullmatch=True)),
)


@SOME
@given(st.lists(OPTION, max_size=6), st.text(max_size=30))
def test_any_options(options: list[str], body: str) -> None:
    examined(check_jobs("\n".join(["#!/bin/bash", *options, body]), "x.sh"))


@settings(SOME, max_examples=examples(100))
@given(st.text())
def test_any_text(text: str) -> None:
    examined(check_jobs(text, "x"))
    examined(check_jobs("#!" + text, "x"))
