from __future__ import annotations

import itertools

import pytest

from fairway.engines.slurm.nodes.observe import DOWN, DRAINED, health
from fairway.model.observation import Health

# words that keep nobody away: listed to show that they were weighed
READY = frozenset(
    {
        "ALLOCATED",
        "BLOCKED",  # next to a job that wants its switch alone: full, not unwell
        "CLOUD",
        "COMPLETING",
        "DYNAMIC_FUTURE",
        "DYNAMIC_NORM",
        "IDLE",
        "MIXED",
        "PLANNED",  # the backfill scheduler keeps it for a waiting job
        "POWERED_DOWN",  # slurmctld powers it up for the next job
        "POWERING_UP",
        "POWER_UP",
        "REBOOT_CANCELED",
        "REBOOT_REQUESTED",  # reboots when idle, takes work until then
        "RESERVED",  # open to those the reservation names
        "RESUME",
        "UNDRAIN",
    }
)

# every word that v0.0.42's own description lists for a node's state, on 24.11.5 and 26.05.5
SLURM_SAYS = {
    "INVALID",
    "UNKNOWN",
    "DOWN",
    "IDLE",
    "ALLOCATED",
    "ERROR",
    "MIXED",
    "FUTURE",
    "RESERVED",
    "UNDRAIN",
    "CLOUD",
    "RESUME",
    "DRAIN",
    "COMPLETING",
    "NOT_RESPONDING",
    "POWERED_DOWN",
    "FAIL",
    "POWERING_UP",
    "MAINTENANCE",
    "REBOOT_REQUESTED",
    "REBOOT_CANCELED",
    "POWERING_DOWN",
    "DYNAMIC_FUTURE",
    "REBOOT_ISSUED",
    "PLANNED",
    "INVALID_REG",
    "POWER_DOWN",
    "POWER_UP",
    "POWER_DRAIN",
    "DYNAMIC_NORM",
}


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ("IDLE", Health.READY),
        ("MIXED", Health.READY),
        ("ALLOCATED COMPLETING", Health.READY),
        ("IDLE PLANNED", Health.READY),
        ("IDLE RESERVED", Health.READY),
        ("IDLE CLOUD POWERED_DOWN", Health.READY),
        ("ALLOCATED CLOUD NOT_RESPONDING POWERING_UP", Health.READY),
        ("IDLE DRAIN", Health.DRAINED),
        ("MIXED DRAIN", Health.DRAINED),
        ("IDLE FAIL", Health.DRAINED),
        ("IDLE RESERVED MAINTENANCE", Health.DRAINED),
        ("IDLE CLOUD NOT_RESPONDING POWERING_DOWN", Health.DRAINED),
        ("IDLE REBOOT_ISSUED", Health.DRAINED),
        ("DOWN", Health.DOWN),
        ("DOWN NOT_RESPONDING", Health.DOWN),
        ("IDLE NOT_RESPONDING", Health.DOWN),
        ("DOWN CLOUD POWERED_DOWN", Health.DOWN),
        ("DOWN DRAIN", Health.DOWN),
        ("IDLE DRAIN INVALID_REG", Health.DOWN),
        ("UNKNOWN", Health.DOWN),
        ("", Health.DOWN),
        ("IDLE SOME_FLAG_OF_2030", Health.READY),
    ],
)
def test_what_states_mean(states: str, expected: Health) -> None:
    found, words = health(states.split())

    assert found is expected
    assert bool(words) == (expected is not Health.READY)


def test_every_word_of_slurm_was_weighed_once() -> None:
    for one, other in itertools.combinations((DOWN.keys(), DRAINED.keys(), READY), 2):
        assert not one & other
    assert DOWN.keys() | DRAINED.keys() | READY >= SLURM_SAYS
