"""GPUs and times as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairway.files import gpus_text, parse_gpus
from fairway.files.job.durations import MAX_SECONDS, parse_time, slurm_seconds
from fairway.files.job.gpus import MAX_GPUS, model_of_product
from fairway.files.schema.values import SLICE, Problem
from fairway.model.gpu_catalogue import CATALOGUE
from fairway.model.job import GpuRequest
from fairway.model.names import SliceName
from fairway.model.text import duration_text
from tests.tier import examples

SOME = settings(max_examples=examples(300), deadline=None, derandomize=True, database=None)

COUNTS = st.integers(1, MAX_GPUS)
MEMORY = st.integers(1, 9_999)
REQUESTS = st.one_of(
    st.builds(GpuRequest, COUNTS),
    st.builds(GpuRequest, COUNTS, st.sampled_from(sorted(CATALOGUE))),
    st.builds(GpuRequest, COUNTS, st.sampled_from(["H100", "A100", "V100", "My-GPU_1.5"])),
    st.builds(lambda n, least: GpuRequest(n, memory_gb=(least, None)), COUNTS, MEMORY),
    st.builds(lambda n, gb: GpuRequest(n, memory_gb=(min(gb), max(gb))), COUNTS, st.tuples(MEMORY, MEMORY)),
    st.builds(
        lambda n, name: GpuRequest(n, slice=SliceName(name)), COUNTS, st.sampled_from(SLICE.suggestions)
    ),
)


@SOME
@given(REQUESTS)
def test_a_request_reads_back_from_its_text(request: GpuRequest) -> None:
    assert parse_gpus(gpus_text(request))[0] == request


@SOME
@given(st.one_of(st.text(max_size=20), st.from_regex(r"[0-9A-Za-z.:x*+/-]{0,16}", fullmatch=True)))
def test_any_text_is_a_request_that_reads_back_or_a_problem_with_a_hint(text: str) -> None:
    request, problem = parse_gpus(text)
    assert request or problem
    if problem:
        assert problem.message.isprintable() and problem.hint.isprintable() and problem.hint
    if request:
        assert parse_gpus(gpus_text(request))[0] == request
        assert gpus_text(request).lower().startswith(text.lower().split(":", maxsplit=1)[0])


@pytest.mark.parametrize(
    ("text", "request_", "again"),
    [
        ("A100-80GB:8", GpuRequest(8, "A100-80GB"), "A100-80GB:8"),
        ("a100-80gb:8", GpuRequest(8, "A100-80GB"), "A100-80GB:8"),
        ("h100", GpuRequest(1, "H100"), "H100"),
        ("A10", GpuRequest(1, "A10"), "A10"),
        ("8", GpuRequest(8), "8"),
        ("40GB..80GB", GpuRequest(1, memory_gb=(40, 80)), "40GB..80GB"),
        ("40gb..80gb:2", GpuRequest(2, memory_gb=(40, 80)), "40GB..80GB:2"),
        ("40GB..:1", GpuRequest(1, memory_gb=(40, None)), "40GB.."),
        ("1G.10GB:2", GpuRequest(2, slice=SliceName("1g.10gb")), "1g.10gb:2"),
        ("1g.10gb+me", GpuRequest(1, slice=SliceName("1g.10gb+me")), "1g.10gb+me"),
    ],
)
def test_what_people_write(text: str, request_: GpuRequest, again: str) -> None:
    assert parse_gpus(text) == (request_, None)
    assert gpus_text(request_) == again


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("8xA100", "write A100:8"),
        ("8 x H100", "write H100:8"),
        ("gpu:a100:4", "write A100:4"),
        ("gres/gpu:a100:4", "write A100:4"),
        ("gpu:4", "write 4"),
        ("A100,8", "write A100:8"),
        ("80GB", "write 80GB..  for at least that much memory"),
        (">=40GB", "write 40GB..  for at least that much memory"),
        ("40-80GB", "write 40GB..80GB"),
        ("40..80GB", "write 40GB..80GB"),
        ("..80GB", "write 1GB..80GB"),
        ("A100:0", "request at least one"),
        ("", "write GPUs for each node"),
        ("1g.9gb", "did you mean"),
    ],
)
def test_what_was_probably_meant(text: str, hint: str) -> None:
    request, problem = parse_gpus(text)
    assert request is None and problem is not None
    assert problem.hint.startswith(hint)


@pytest.mark.parametrize(
    ("text", "near"), [("A100-80G", "A100-80GB"), ("MI300", "MI300X"), ("H200-14GB", "H200-141GB")]
)
def test_the_nearest_type_of_the_catalogue(text: str, near: str) -> None:
    request, problem = parse_gpus(text)
    assert request == GpuRequest(1, text) and problem is not None
    assert problem.severity == "warning" and near in problem.hint


def test_products_of_the_driver() -> None:
    assert model_of_product("NVIDIA-A100-SXM4-80GB") == "A100-80GB"
    assert model_of_product("NVIDIA-A1") is None


# --- times ------------------------------------------------------------------------------------------------


@SOME
@given(st.integers(1, MAX_SECONDS))
def test_a_time_reads_back(seconds: int) -> None:
    assert parse_time(duration_text(seconds)) == seconds
    days, rest = divmod(seconds, 86400)
    clock = f"{rest // 3600:02}:{rest % 3600 // 60:02}:{rest % 60:02}"
    assert parse_time(f"{days}-{clock}") == slurm_seconds(f"{days}-{clock}") == seconds


@SOME
@given(st.one_of(st.text(max_size=20), st.from_regex(r"[0-9:dhms-]{0,12}", fullmatch=True)))
def test_any_text_is_a_time_or_a_problem(text: str) -> None:
    read = parse_time(text)
    assert isinstance(read, Problem) or 1 <= read <= MAX_SECONDS
    slurm_seconds(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        ("10:30", 630),
        ("1:00:00", 3600),
        ("2-12", 216000),
        ("2-12:30", 217800),
        ("x", None),
        ("1:2:3:4", None),
    ],
)
def test_times_as_slurm_reads_them(text: str, seconds: int | None) -> None:
    assert slurm_seconds(text) == seconds
