"""Rules and dashboards: every alert fires and is silent when it should, every query means something real."""

from __future__ import annotations

import importlib.util
import json
import re
import urllib.parse
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from lab import apt, folders
from lab.instance import Instance, obtain
from lab.versions import PROMETHEUS_PACKAGE
from tests.integration.server_process import Home, temporary_home
from tests.waiting import until

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "rules.yaml"
TESTS = RULES.with_name("rules.test.yaml")
GRAFANA = ROOT / "deploy" / "grafana"
FOREIGN = {"process_resident_memory_bytes"}
"""What every Python process tells."""
QUIET = {"Failed rounds", "Applies and interventions", "Days until a budget is spent"}
"""Panels that are empty where nothing fails, no engine needs help and no budget runs out."""

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", GRAFANA / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    import sys

    module = importlib.util.module_from_spec(spec)
    sys.modules["generate"] = module  # dataclasses ask for it
    spec.loader.exec_module(module)
    return module


def alerts() -> dict[str, dict[str, Any]]:
    told = yaml.safe_load(RULES.read_text())
    return {rule["alert"]: rule for group in told["groups"] for rule in group["rules"]}


def queries() -> list[tuple[str, str]]:
    """(where it stands, the question) of every alert and panel on what Fairway tells of itself."""
    found = [(name, rule["expr"]) for name, rule in alerts().items()]
    return found + [panel for panel in panels() if metrics_of(panel[1])]


def panels() -> list[tuple[str, str]]:
    found = []
    for file in sorted(GRAFANA.glob("*.json")):
        for panel in json.loads(file.read_text())["panels"]:
            found += [(panel["title"], query["expr"]) for query in panel.get("targets", [])]
    return found


def metrics_of(expr: str) -> set[str]:
    named = set(re.findall(r"\b(?:fairway|process)_[a-z_]+", re.sub(r'"[^"]*"', "", expr)))
    return {re.sub(r"_(bucket|count|sum)$", "", name) for name in named}


def documented() -> set[str]:
    text = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    return set(re.findall(r"^\| `(fairway_[a-z_]+)`", text, re.MULTILINE))


def promtool(*words: str) -> str:
    from lab.programs import output_of

    version = apt.candidate(PROMETHEUS_PACKAGE).partition("+")[0].partition("-")[0]

    def make(folder: Path) -> None:
        apt.unpack([PROMETHEUS_PACKAGE], folder)

    return output_of(folders.built("prometheus", version, make) / "usr/bin/promtool", *words)


def test_every_alert_fires_and_is_silent_when_it_should() -> None:
    assert f"{len(alerts())} rules found" in promtool("check", "rules", str(RULES))
    assert "SUCCESS" in promtool("test", "rules", str(TESTS))


def test_every_alert_has_both_tests_and_says_what_to_do() -> None:
    cases = [case for test in yaml.safe_load(TESTS.read_text())["tests"] for case in test["alert_rule_test"]]
    for name, rule in alerts().items():
        own = [bool(case["exp_alerts"]) for case in cases if case["alertname"] == name]
        assert sorted(own) == [False, True], name
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert set(rule["annotations"]) == {"summary", "description"}


def test_only_metrics_that_exist_are_asked_for() -> None:
    for file in GRAFANA.glob("fairway-*.json"):
        for panel in json.loads(file.read_text())["panels"]:
            assert all(metrics_of(query["expr"]) for query in panel.get("targets", [])), panel["title"]
    for where, expr in queries():
        assert metrics_of(expr) <= documented() | FOREIGN, where
    assert metrics_of('sum(fairway_api_request_seconds_bucket{le="1"})') == {"fairway_api_request_seconds"}


def test_the_dashboards_are_what_the_code_makes() -> None:
    made = generator()
    assert {file.name for file in GRAFANA.glob("*.json")} == set(made.DASHBOARDS)
    for name in made.DASHBOARDS:
        assert (GRAFANA / name).read_text() == made.text(name), "run deploy/grafana/generate.py"


def test_panels_do_not_cover_each_other() -> None:
    for file in GRAFANA.glob("*.json"):
        taken: set[tuple[int, int]] = set()
        for panel in json.loads(file.read_text())["panels"]:
            place = panel["gridPos"]
            columns = range(place["x"], place["x"] + place["w"])
            cells = {(x, y) for x in columns for y in range(place["y"], place["y"] + place["h"])}
            assert not taken & cells, panel["title"]
            assert max(columns) < 24
            taken |= cells


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    with temporary_home() as made:
        yield made


@pytest.fixture(scope="module")
def prometheus(home: Home) -> Iterator[Instance]:
    """A real Prometheus that scrapes a real server, as docs/operating/monitoring.md says."""
    import os

    quickstart = yaml.safe_load((ROOT / "examples" / "quickstart.yaml").read_text())
    quickstart["teams"]["research"]["budget"] = {"amount": 1000, "every": "month"}
    fleet = str(home.folder / "with-a-budget.yaml")
    Path(fleet).write_text(yaml.safe_dump(quickstart, sort_keys=False))
    server = home.start("-f", fleet, "--listen", "127.0.0.1:0")
    for words in (
        ("apply", "-f", fleet, "--yes"),
        ("run", "--as", "alice", "--team", "research", "--gpus", "1", "--", "sleep", "2"),
    ):
        done = home.fairway(*words)
        assert done.returncode == 0, done.stderr
    instance = obtain("prometheus", f"test-{os.getpid()}-deploy-prom", None, {})
    try:
        instance.up()
        job = {
            "job_name": "fairway",
            "authorization": {"credentials_file": str(home.token_file)},
            "static_configs": [{"targets": [server.url.partition("//")[2]]}],
        }
        told = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": [job]}
        (instance.folder / "prometheus.yml").write_text(yaml.safe_dump(told))
        reload = urllib.request.Request(f"{instance.facts()['url']}/-/reload", method="POST")
        with urllib.request.urlopen(reload, timeout=10):
            pass
        yield instance
    finally:
        instance.wipe()
        server.stop()


def asked(prometheus: Instance, expr: str) -> list[Any]:
    plain = re.sub(r"\$(cluster|team|job|pod)", ".*", expr)
    url = f"{prometheus.facts()['url']}/api/v1/query?{urllib.parse.urlencode({'query': plain})}"
    with urllib.request.urlopen(url, timeout=20) as answer:
        told = json.load(answer)
    assert told["status"] == "success"
    assert "warnings" not in told, told
    return list(told["data"]["result"])


def test_a_real_prometheus_answers_every_query(prometheus: Instance) -> None:
    until(lambda: len(asked(prometheus, "fairway_capacity_devices")) > 0, 90, "the meter's first round")
    for name in ("fairway_loop_duration_seconds_count", "fairway_api_request_seconds_count"):
        until(partial(asked, prometheus, f"rate({name}[5m]) > 0"), 60, f"two samples of {name}")
    for name in ("fairway_used_device_seconds_total", "fairway_drift_objects", "fairway_jobs_sent_total"):
        until(partial(asked, prometheus, f"rate({name}[5m])"), 90, f"two samples of {name}")
    until(partial(asked, prometheus, "fairway_budget_limit"), 90, "the first count of budgets")
    answers = [(where, asked(prometheus, expr)) for where, expr in queries()]  # none is refused
    silent = {where for where, _ in answers} - {where for where, found in answers if found}
    assert silent - set(alerts()) <= QUIET
    # Of the few requests so far a single slow one is a twentieth; an alert fires if it continues for minutes.
    until(lambda: not pending(prometheus), 240, f"the end of {pending(prometheus)}", pause=1)


def pending(prometheus: Instance) -> set[str]:
    """The alerts that would fire if it stayed as it is."""
    return {name for name, rule in alerts().items() if asked(prometheus, rule["expr"])}


def test_the_server_tells_every_metric_that_is_documented(prometheus: Instance) -> None:
    url = f"{prometheus.facts()['url']}/api/v1/metadata"
    with urllib.request.urlopen(url, timeout=20) as answer:
        known = set(json.load(answer)["data"])
    missing = {
        name for name in documented() if name not in known and name.removesuffix("_total") not in known
    }
    assert missing == set()
