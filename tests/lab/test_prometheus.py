"""Real Prometheus in the lab."""

from __future__ import annotations

import json
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import Instance
from tests.lab.driving import LOOPBACK, addresses_of, assert_nothing_is_left, lab, ports, status, up

pytestmark = [pytest.mark.lab, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def prometheus() -> Iterator[Instance]:
    instance = up("prometheus", "prom")
    yield instance
    instance.wipe()
    assert_nothing_is_left(instance)


def query(instance: Instance, expression: str, wanted: str, seconds: float = 30) -> None:
    """Ask until the first value is the one wanted."""
    url = f"{instance.env()['PROMETHEUS_URL']}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with urllib.request.urlopen(url, timeout=5) as answer:
            found = json.load(answer)["data"]["result"]
        if found and found[0]["value"][1] == wanted:
            return
        time.sleep(0.3)
    raise AssertionError(f"{expression} is {found}")


def test_it_watches_itself(prometheus: Instance) -> None:
    query(prometheus, 'up{job="prometheus"}', "1")
    assert addresses_of(prometheus) == {prometheus.port("http"): LOOPBACK}


def test_targets_are_added_by_a_file(prometheus: Instance) -> None:
    targets = Path(prometheus.env()["PROMETHEUS_TARGETS"])
    here = f"127.0.0.1:{prometheus.port('http')}"
    (targets / "one.json").write_text(json.dumps([{"targets": [here], "labels": {"node": "gpu001"}}]))
    query(prometheus, 'up{node="gpu001"}', "1")


def test_promtool_is_at_hand(prometheus: Instance) -> None:
    assert "SUCCESS" in lab("run", "prom", "promtool", "check", "config", "prometheus.yml")


def test_killed_it_comes_back_with_its_samples(prometheus: Instance) -> None:
    query(prometheus, 'up{job="prometheus"}', "1")
    before = time.time()
    lab("kill", "prom", "prometheus")
    assert status("prom")["state"] == "down"
    up("prometheus", "prom")
    query(prometheus, f'count_over_time(up{{job="prometheus"}}[30s] @ {before:.0f}) > bool 0', "1")


def test_two_live_side_by_side(prometheus: Instance) -> None:
    other = up("prometheus", "prom-too")
    try:
        assert not ports(prometheus) & ports(other)
        query(other, "count(up)", "1")  # not the other's targets
    finally:
        lab("wipe", "prom-too")
    assert_nothing_is_left(other)
    lab("down", "prom")
    assert_nothing_is_left(prometheus)
    up("prometheus", "prom")
