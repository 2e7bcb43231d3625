"""What the next job should request follows from what all past jobs of its name used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.advise.right_size import PastJob, RightSize, name_pattern, right_sizes
from fairway.model.gpu_catalogue import CATALOGUE
from fairway.model.names import SliceName
from fairway.model.telemetry import GpuFigures, JobFigures
from tests.unit.advise.figures import HOUR, gpu, job

A100 = CATALOGUE["A100-80GB"]
UNUSED = gpu(engine=0.0, sm=0.0, memory_used_mib=4, memory_peak_mib=4)


def small(peak_gib: float = 8.6, engine: float = 0.06, sm: float | None = 0.02) -> GpuFigures:
    return gpu(engine=engine, sm=sm, memory_used_mib=peak_gib * 900, memory_peak_mib=peak_gib * 1024)


def past(figures: JobFigures, jobs: int = 12, name: str = "finetune") -> list[PastJob]:
    return [PastJob(f"{name}-{number}", figures) for number in range(jobs, 0, -1)]


def one(jobs: Sequence[PastJob], price: str | None = None) -> RightSize | None:
    found = right_sizes(jobs, A100, Decimal(price) if price else None)
    assert len(found) <= 1
    return found[0] if found else None


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("finetune-12", "finetune-*"),
        ("finetune_0012", "finetune_*"),
        ("train-20261117-3", "train-*"),
        ("eval.7", "eval.*"),
        ("sweep-3f9a2c1", "sweep-*"),
        ("train-llm", "train-llm"),
        ("resnet50", "resnet50"),
        ("bert-facade", "bert-facade"),  # a word, although all its letters are hexadecimal digits
        ("12", "12"),
        ("", ""),
    ],
)
def test_counters_dates_and_hashes_are_no_part_of_a_name(name: str, pattern: str) -> None:
    assert name_pattern(name) == pattern


def test_advice_names_the_slice_that_would_have_done_and_what_it_would_have_saved() -> None:
    advice = one(past(job(small(), UNUSED, UNUSED, UNUSED)), "2.00")

    assert advice is not None
    assert (advice.pattern, advice.jobs, advice.request) == ("finetune-*", 12, "--gpus 1g.10gb")
    assert (advice.gpus_used, advice.gpus_held) == (1, 4)
    assert advice.held_gpu_hours == 12 * 2 * 4
    needed = 12 * 2 / 8 * (0.94 + 0.02 * 7)  # an eighth of a GPU, for a little longer
    assert advice.saved_gpu_hours == pytest.approx(96 - needed)
    assert advice.saved_money is not None
    assert float(advice.saved_money) == pytest.approx(2 * (96 - needed))
    assert advice.sentence("$186") == (
        "your last 12 finetune-* jobs used 9 of 80 GB and 1 of 4 GPUs; --gpus 1g.10gb would have saved $186"
    )
    assert advice.sentence().endswith("would have saved 93 GPU-hours")


def test_a_slice_of_a_price_of_its_own_is_paid_by_that() -> None:
    jobs, price = past(job(small(), UNUSED)), {SliceName("1g.10gb"): Decimal("0.50")}
    (advice,) = right_sizes(jobs, A100, Decimal("2.00"), price)
    assert advice.saved_money is not None
    assert float(advice.saved_money) == pytest.approx(2 * 48 - 0.5 * 24 * 1.08)


@pytest.mark.parametrize(
    ("figures", "request_"),
    [
        (job(small(8.6)), "--gpus 1g.10gb"),
        (job(small(9.0)), "--gpus 1g.20gb"),  # 9 of 9.6 GiB leaves no margin
        (job(small(30.0)), "--gpus 3g.40gb"),
        (job(small(40.0)), None),
        (job(small(engine=0.9, sm=0.8)), None),  # a slice would take seven times as long
        (job(small(engine=0.3, sm=0.2)), "--gpus 4g.40gb"),  # memory is not all that a job needs
        (job(small(engine=0.3, sm=None)), None),  # its kernels may fill the GPU
        (job(gpu(), UNUSED, UNUSED, UNUSED), "--gpus 1"),
        (job(gpu(), gpu(), UNUSED, UNUSED), "--gpus 2"),
        (job(gpu(), gpu()), None),
        (job(gpu(), UNUSED, gpu(), UNUSED, nodes=2), "--nodes 2 --gpus 1"),
        (job(gpu(), gpu(), UNUSED, UNUSED, nodes=2), "--gpus 2"),
        (job(small(), small()), None),  # processes cannot exchange gradients between slices
    ],
)
def test_the_smallest_request_that_would_have_fitted(figures: JobFigures, request_: str | None) -> None:
    advice = one(past(figures))
    assert (advice.request if advice else None) == request_


def test_only_slices_of_the_pool_are_advised() -> None:
    jobs = past(job(small()))
    (advice,) = right_sizes(jobs, A100, slices=[SliceName("3g.40gb")])
    assert advice.request == "--gpus 3g.40gb"
    assert right_sizes(jobs, A100, slices=[]) == ()
    assert right_sizes(jobs, CATALOGUE["L40S"]) == ()


def test_fewer_than_five_jobs_say_nothing() -> None:
    assert one(past(job(small()), jobs=4)) is None
    assert one(past(job(small()), jobs=5)) is not None


@pytest.mark.parametrize(
    "figures",
    [
        job(small(), seconds=500),
        job(small(), coverage=0.7),
        job(replace(small(), memory_peak_mib=None)),
        job(replace(small(), engine=None)),
        job(small(), is_service=True),
        job(small(), is_slice=True),
    ],
)
def test_jobs_that_say_little_do_not_count(figures: JobFigures) -> None:
    assert one([*past(figures), *past(job(small()), jobs=4)]) is None


def test_one_job_that_needed_more_is_enough_to_advise_more() -> None:
    jobs = [*past(job(small())), PastJob("finetune-99", job(small(16.0)))]
    advice = one(jobs)
    assert advice is not None
    assert (advice.request, advice.jobs) == ("--gpus 1g.20gb", 13)
    assert one([*jobs, PastJob("finetune-100", job(gpu()))]) is None


def test_only_the_latest_request_counts() -> None:
    four = past(job(gpu(), UNUSED, UNUSED, UNUSED), jobs=6)
    assert one([*past(job(gpu()), jobs=5), *four]) is None  # its user asks for one by now
    advice = one([*four, *past(job(gpu()), jobs=5)])
    assert advice is not None
    assert (advice.jobs, advice.request) == (6, "--gpus 1")


def test_names_are_advised_apart_and_the_largest_saving_first() -> None:
    jobs = [
        *past(job(small()), name="eval"),
        *past(job(small(), UNUSED), name="finetune"),
        *past(job(gpu()), name="good"),
    ]
    assert [advice.pattern for advice in right_sizes(jobs, A100)] == ["finetune-*", "eval-*"]


@given(
    st.lists(
        st.tuples(st.floats(0.1, 80), st.floats(0, 1), st.floats(0, 1), st.floats(0.2, 20)),
        min_size=5,
        max_size=12,
    )
)
def test_advice_holds_for_every_job_and_saves_something(
    used: list[tuple[float, float, float, float]],
) -> None:
    jobs = [
        PastJob(f"a-{n}", job(small(gib, engine, min(sm, engine)), UNUSED, seconds=hours * HOUR))
        for n, (gib, engine, sm, hours) in enumerate(used)
    ]
    advice = one(jobs, "1.00")
    assert advice is not None  # the second GPU at least
    assert 0 < advice.saved_gpu_hours < advice.held_gpu_hours
    assert advice.saved_money is not None
    assert float(advice.saved_money) == pytest.approx(advice.saved_gpu_hours)
    profile = A100.profile(advice.request.removeprefix("--gpus "))
    if profile is not None:
        assert profile.memory_mib >= 1.1 * 1024 * max(gib for gib, *_ in used)
