"""Faults planted in what keeps a site unharmed: the probes must find each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from fairway.engines.slurm.policy import partition_lines, render
from fairway.engines.slurm.policy.site_fields import SiteFields
from tests.lab.driving import up
from tests.unharmed.leave_site import imported_site
from tests.unharmed.probes import Outcome, Probe, harms, play, probes_of
from tests.unharmed.slurm_site import install, is_governed, uninstall

if TYPE_CHECKING:
    from lab.instance import Instance

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(900),
    pytest.mark.nightly("a cluster of its own; unit tests have each rule in CI"),
]


def without(*options: str) -> tuple[str, ...]:
    """What second partitions copy, without these options."""
    return tuple(option for option in partition_lines._COPIED if option not in options)


def script(old: str, new: str) -> str:
    assert old in render.SCRIPT, old
    return render.SCRIPT.replace(old, new)


Fault = Callable[[pytest.MonkeyPatch], None]


def no_site_fields(patch: pytest.MonkeyPatch) -> None:
    def keep(self: SiteFields, wanted: Any, *_: Any, **__: Any) -> tuple[Any, ...]:
        return tuple(wanted)

    patch.setattr(SiteFields, "keep", keep)


FAULTS: dict[str, Fault] = {
    "accounts lose the site's QOS (F2)": no_site_fields,
    "no time limit in second partitions (F3)": lambda patch: patch.setattr(
        partition_lines, "_COPIED", without("MaxTime")
    ),
    "no access list in second partitions (F4)": lambda patch: patch.setattr(
        partition_lines, "_COPIED", without("AllowAccounts")
    ),
    "no default time in second partitions (F4)": lambda patch: patch.setattr(
        partition_lines, "_COPIED", without("DefaultTime")
    ),
    "no QOS list in second partitions (F4)": lambda patch: patch.setattr(
        partition_lines, "_qos_access", lambda context, partition: {}
    ),
    "a team's GPU jobs use partitions that their QOS may not (F4)": lambda patch: patch.setattr(
        render, "denied_qos", lambda context, partition: frozenset()
    ),
    "jobs without GPUs are governed (F2)": lambda patch: patch.setattr(
        render, "SCRIPT", script("if not is_gpu and job.shared ~= 0 and", "if false and")
    ),
    "the script refuses accounts that are no team (F6)": lambda patch: patch.setattr(
        render, "SCRIPT", script("if not is_gpu or OTHER_ACCOUNTS", "if false and OTHER_ACCOUNTS")
    ),
}


@pytest.fixture(scope="module")
def campus() -> Iterator[tuple[Instance, dict[Probe, Outcome]]]:
    """The site, and what people can do there before Fairway."""
    instance = up("slurm", "planted-campus", "--site", "campus")
    try:
        yield instance, play(instance, probes_of(instance))
    finally:
        instance.wipe()


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_planted_harm_is_found(
    fault: str, campus: tuple[Instance, dict[Probe, Outcome]], monkeypatch: pytest.MonkeyPatch
) -> None:
    instance, before = campus
    async with imported_site(instance) as governed:
        fleet = governed.fleet
        if "no team" in fault:  # an account that nobody made a team of
            fleet = replace(fleet, teams=tuple(team for team in fleet.teams if team.name != "biology"))
        FAULTS[fault](monkeypatch)
        await governed.govern(fleet)
        await install(instance, governed)
        found = harms(before, play(instance, list(before)), partial(is_governed, fleet))
        monkeypatch.undo()
        uninstall(instance)
        await governed.leave()
    assert found != [], "no probe has found it"
