"""Jobs as they travel: the same on both sides, and every size bounded."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fairway.engines.port import LogPart
from fairway.model.job import After, GpuRequest, JobId, JobSpec, Retries, Tolerates, When
from fairway.model.names import PoolName, PriorityName, SliceName, TeamName
from fairway.services.convert.jobs import log_part
from fairway.wire import jobs as wire

WORDS = st.text(st.characters(categories=["L", "N", "P", "Zs"]), min_size=1, max_size=20)
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=50)
NUMBERS = st.integers(1, 1000)


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


GPUS = st.one_of(
    st.builds(GpuRequest, NUMBERS),
    st.builds(GpuRequest, NUMBERS, WORDS),
    st.builds(GpuRequest, NUMBERS, st.none(), st.tuples(st.integers(1, 80), maybe(st.integers(80, 200)))),
    st.builds(GpuRequest, NUMBERS, st.none(), st.none(), WORDS.map(SliceName)),
)
SPECS = st.builds(
    JobSpec,
    name=WORDS,
    gpus=GPUS,
    command=st.lists(TEXTS, min_size=1, max_size=5).map(tuple),
    team=maybe(WORDS.map(TeamName)),
    priority=maybe(WORDS.map(PriorityName)),
    pool=maybe(WORDS.map(PoolName)),
    nodes=NUMBERS,
    cpus=maybe(NUMBERS),
    memory_gb=maybe(NUMBERS),
    time_seconds=maybe(NUMBERS),
    image=maybe(WORDS),
    setup=maybe(TEXTS),
    env=st.dictionaries(st.from_regex(r"[A-Z_]{1,9}", fullmatch=True), TEXTS, max_size=4),
    workdir=maybe(WORDS),
    array=st.lists(st.integers(0, 10**6), unique=True, max_size=5).map(tuple),
    after=st.lists(
        st.builds(After, st.integers(1, 2**60 - 1).map(JobId), st.sampled_from(When)), max_size=3
    ).map(tuple),
    retries=st.builds(Retries, st.integers(0, 9), NUMBERS, NUMBERS),
    tolerates=st.sets(st.sampled_from(Tolerates)).map(frozenset),
    together=st.booleans(),
)


@given(SPECS)
def test_a_spec_travels_unchanged(spec: JobSpec) -> None:
    sent = wire.JobSpec.from_model(spec).model_dump_json()
    assert wire.JobSpec.model_validate_json(sent).to_model() == spec


@pytest.mark.parametrize(
    "wrong",
    [
        {"command": []},
        {"script": "#!/bin/sh\n"},
        {"gpus": {"count": 0}},
        {"gpus": {"count": 1025}},
        {"gpus": {"model": "H100", "slice": "1g.10gb"}},
        {"gpus": {"memory_gb": {"least": 80, "most": 40}}},
        {"name": ""},
        {"name": "two\nlines"},
        {"command": ["with\0nul"]},
        {"command": ["x" * (wire.MAX_TEXT + 1)]},
        {"env": {"not a name": "x"}},
        {"env": {f"V{i}": "" for i in range(1001)}},
        {"array": [1, 1]},
        {"array": list(range(10_001))},
        {"array": [-1]},
        {"after": [{"job": ""}]},
        {"time_seconds": 0},
        {"nodes": 0},
        {"retries": {"count": -1}},
        {"misspelt": 1},
    ],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    good = {"name": "x", "command": ["true"]}
    wire.JobSpec.model_validate(good)
    with pytest.raises(ValidationError):
        wire.JobSpec.model_validate(good | wrong)


def test_a_script_may_be_a_megabyte() -> None:
    wire.JobSpec(name="x", script="x" * wire.MAX_SCRIPT)
    with pytest.raises(ValidationError):
        wire.JobSpec(name="x", script="x" * (wire.MAX_SCRIPT + 1))


def test_a_server_of_0_1_takes_a_job_without_a_manifest() -> None:
    """It rejects keys that it does not know."""
    request = wire.SubmitRequest(jobs=[wire.JobSpec(name="x", command=["true"])])
    assert "manifest" not in request.model_dump_json(by_alias=True)


def test_tasks_count_as_jobs() -> None:
    array = wire.JobSpec(name="x", command=["true"], array=list(range(6000)))
    wire.SubmitRequest(jobs=[array])
    with pytest.raises(ValidationError, match="at most 10000 jobs"):
        wire.SubmitRequest(jobs=[array, array])


@given(TEXTS, st.integers(0, 200))
def test_a_log_in_pieces_is_the_same_text(text: str, cut: int) -> None:
    data = text.encode()
    first = log_part(LogPart(data[:cut], len(data[:cut]), ended=False), 1, 0)
    rest = data[first.next_offset :]
    second = log_part(LogPart(rest, len(data), ended=True), 1, first.next_offset)
    assert first.text + second.text == text
    assert second.next_offset == len(data)


def test_bytes_that_are_no_text_still_show() -> None:
    part = log_part(LogPart(b"ok \xff\xfe \xe2\x82", 8, ended=True), 1, 0)
    assert part.text == "ok \ufffd\ufffd \ufffd"
    assert part.next_offset == 8
