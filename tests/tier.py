"""The two tiers of tests: CI's, which every change runs, and the nightly one, which `make nightly` adds.

A test belongs in CI's tier if it catches a fault that no other test there catches. Scale, rare races,
hundreds of kills and more cases of the same property are nightly. A whole test is nightly by its marker,
`@pytest.mark.nightly("why")`; a test that only has a larger size there calls this module.
"""

from __future__ import annotations

import os
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, settings

Size = TypeVar("Size")

NIGHTLY = os.environ.get("FAIRWAY_TESTS") == "nightly"


def sized(*, ci: Size, nightly: Size) -> Size:
    """Choose the size of a test by the tier it runs in."""
    return nightly if NIGHTLY else ci


def examples(count: int) -> int:
    """How many cases a property test draws: all of them nightly, a quarter of them in CI."""
    return sized(ci=min(count, max(10, count // 4)), nightly=count)


# For tests that name no number. How long an example takes depends on the machine's load: no time is judged.
settings.register_profile(
    "tier",
    settings(),
    max_examples=examples(100),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("tier")


_OTHER_SLURM = (
    "CI runs it on the other Slurm; what differs between versions, the contract suite finds on both"
)
_BY_SCENARIO = (
    "CI runs it on the virtual engine; the scenario `budget` holds and releases a team on every engine"
)
ON_SOME_ENGINES: dict[str, str] = {
    "test_warned_lowered_requeued_from_a_checkpoint_and_cancelled[slurm-26]": _OTHER_SLURM,
    "test_exempt_kept_and_busy_jobs_and_a_dry_run_change_nothing[slurm-24]": "CI runs it on Kubernetes",
    "test_exempt_kept_and_busy_jobs_and_a_dry_run_change_nothing[slurm-26]": "CI runs it on Kubernetes",
    "test_low_only_lets_only_low_jobs_start_until_the_budget_is_raised[slurm-24]": _BY_SCENARIO,
    "test_low_only_lets_only_low_jobs_start_until_the_budget_is_raised[slurm-26]": _BY_SCENARIO,
    "test_low_only_lets_only_low_jobs_start_until_the_budget_is_raised[kubernetes]": _BY_SCENARIO,
    "test_stop_lets_nothing_start_a_kill_changes_nothing_and_what_runs_can_be_ended[slurm-24]": _OTHER_SLURM,
    "test_a_lead_requests_a_raise_and_the_job_starts_once_it_is_approved[slurm-24]": _OTHER_SLURM,
    "test_a_time_limit_ends_it[slurm-26]": _OTHER_SLURM,
    "test_hold_release_cancel_and_the_time_limit[slurm-24]": _OTHER_SLURM,
    "test_the_mirror_equals_the_accounting_to_the_second[slurm-26-60]": _OTHER_SLURM,
    "test_what_comes_back_has_every_attempt[slurm-24]": _OTHER_SLURM,
    "test_the_accounting_away_is_made_up_for[slurm-24]": _OTHER_SLURM,
    "test_slurmctld_away_loses_nothing[slurm-26]": _OTHER_SLURM,
    "test_fairway_away_while_jobs_run_end_and_are_forgotten[slurm-26]": _OTHER_SLURM,
    "test_promise[ceiling-slurm-24]": _OTHER_SLURM,
    "test_promise[least-harm-slurm-24]": _OTHER_SLURM,
    "test_promise[memory-slurm-26]": _OTHER_SLURM,
    "test_promise[no-starvation-slurm-26]": _OTHER_SLURM,
    "test_promise[share-slurm-24]": _OTHER_SLURM,
    "test_promise[time-slurm-26]": _OTHER_SLURM,
}
"""Tests with an engine as their parameter that wait long, and that CI runs on some engines only."""


def reason(item: pytest.Item) -> str:
    """Why a test is nightly, as its marker states it."""
    mark = item.get_closest_marker("nightly")
    return str(mark.args[0]) if mark and mark.args else ""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out nightly tests, unless FAIRWAY_TESTS=nightly asks for them."""
    for item in items:
        if why := ON_SOME_ENGINES.get(item.name):
            item.add_marker(pytest.mark.nightly(why))
    if unexplained := [
        item.nodeid for item in items if item.get_closest_marker("nightly") and not reason(item)
    ]:
        raise pytest.UsageError(f"a marker without a reason: {', '.join(unexplained)}")
    if not NIGHTLY and (left_out := [item for item in items if item.get_closest_marker("nightly")]):
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]
