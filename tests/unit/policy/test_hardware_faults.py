"""Broken hardware is blamed for the end of a job only where it explains it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from fairway.model.job import Ending, GpuRequest, JobId, JobSpec, JobState, Retries
from fairway.model.names import NodeName
from fairway.policy.retry import (
    MAX_SPARED,
    HardwareFault,
    Resubmission,
    Suspect,
    blame,
    decide_resubmission,
    must_wait,
)

NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)
ME, OTHER = JobId(1), JobId(2)
N1 = NodeName("n1")


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def fault(
    begins: float, last: float | None = None, holder: JobId | None = ME, code: str = "xid-79"
) -> HardwareFault:
    return HardwareFault(N1, "3", code, at(begins), at(begins if last is None else last), holder)


SUSPECT = Suspect(ME, 1, (N1,), at(0), at(3600))


@pytest.mark.parametrize(
    ("broken", "blamed"),
    [
        (fault(3596), True),
        (fault(3630), True),  # seen after the job's end
        (fault(3000), True),  # its peers waited
        (fault(2000, 3600), False),  # it went on for long
        (fault(3700), False),
        (fault(3596, holder=OTHER), False),
        (fault(3596, holder=None), True),
        (fault(3000, holder=None), False),
        (fault(3596, code="xid-31"), False),
        (fault(3596, code="xid-63"), False),
        (fault(3596, code="xid-94"), True),
        (fault(-500, -400), False),
    ],
)
def test_blame(broken: HardwareFault, blamed: bool) -> None:
    assert (blame(SUSPECT, [broken]) is not None) is blamed


@pytest.mark.parametrize("holder", [None, OTHER])
def test_a_gpu_that_was_broken_before_fails_the_next_job_at_once(holder: JobId | None) -> None:
    soon = Suspect(ME, 1, (N1,), at(0), at(20))
    assert blame(soon, [fault(-500, 10, holder)]) is not None
    assert blame(SUSPECT, [fault(-500, 3600, holder)]) is None


def test_the_words() -> None:
    assert fault(3596).text(at(3600)) == "GPU 3 of n1 fell off the bus (XID 79) 4 s before it ended"
    assert fault(3603).text(at(3600)) == "GPU 3 of n1 fell off the bus (XID 79) when it ended"


def decide(
    retries: int, failures: int, spared: int, state: JobState = JobState.FAILED
) -> Resubmission | None:
    spec = JobSpec("train", GpuRequest(), ("true",), retries=Retries(retries))
    return decide_resubmission(
        spec, state, Ending.FAILED, failures=failures, submission=1, hardware=True, spared=spared
    )


def test_hardware_uses_up_no_retry() -> None:
    assert decide(2, 2, 0) == Resubmission(0, 2)
    assert decide(2, 0, MAX_SPARED - 1) == Resubmission(0, 0)


def test_it_does_so_a_few_times_only() -> None:
    assert decide(2, 2, MAX_SPARED) is None
    assert decide(2, 1, MAX_SPARED) == Resubmission(60, 2)


def test_a_job_that_asked_for_no_retry_gets_none() -> None:
    assert decide(0, 0, 0) is None
    assert decide(1, 0, 0, JobState.DONE) is None


def test_the_decision_waits_for_what_exporters_say_but_not_for_long() -> None:
    assert must_wait(at(3590), at(3600), at(3610))
    assert not must_wait(at(3600), at(3600), at(3610))
    assert not must_wait(None, at(3600), at(3610))
    assert not must_wait(at(3590), at(3600), at(3600 + 121))
