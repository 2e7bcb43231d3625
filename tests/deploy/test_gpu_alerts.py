"""Alerts on GPUs: promtool sees each fire and be silent when it should, amtool where they are routed."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from fairway.cli.commands.render import render
from fairway.model.gpu_health import EventClass, class_of, xid_code
from fairway.telemetry import alerts
from lab.gpus import KIND, unpacked
from lab.programs import output_of
from tests.deploy.gpu_alert_cases import CASES, DAY, Case
from tests.deploy.test_monitoring import promtool

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "prometheus"
RULES = FOLDER / "gpu-rules.yaml"

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]


def rules() -> dict[str, dict[str, Any]]:
    found = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    return {rule["alert"]: rule for rule in found if "alert" in rule}


def rendered(text: str, labels: dict[str, str], value: str) -> str:
    """As Prometheus fills in the few forms that the rules use."""
    text = re.sub(r"{{ \$labels\.(\w+) }}", lambda found: labels.get(found[1], ""), text)
    text = text.replace(
        "{{ or $labels.exported_pod $labels.pod }}", labels.get("exported_pod", labels.get("pod", ""))
    )
    text = text.replace("{{ $value | humanizePercentage }}", value)
    return text.replace("{{ $value }}", value)


def promtool_case(case: Case) -> dict[str, Any]:
    rule = rules()[case.alert]
    fired = []
    if case.fires is not None:
        labels = case.fires | rule["labels"]
        told = {key: rendered(text, labels, case.value) for key, text in rule["annotations"].items()}
        fired = [{"exp_labels": labels, "exp_annotations": told}]
    series = [{"series": name, "values": values} for name, values in case.series.items()]
    interval = "5m" if case in DAY else "1m"
    wanted = {"eval_time": case.at, "alertname": case.alert, "exp_alerts": fired}
    return {
        "name": f"{case.alert} {'fires' if fired else 'is silent'}: {case.says}",
        "interval": interval,
        "input_series": series,
        "alert_rule_test": [wanted],
    }


@pytest.mark.parametrize(("cases", "interval"), [(CASES, "1m"), (DAY, "5m")])
def test_every_alert_fires_and_is_silent_when_it_should(
    cases: list[Case], interval: str, tmp_path: Path
) -> None:
    """Of the rules only the groups that the cases are about: promtool evaluates all of them all the time."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    own = [group for group in groups if (group["interval"] in ("5m", "10m")) is (cases is DAY)]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": own}))
    tests = [promtool_case(case) for case in cases]
    told = {"rule_files": ["rules.yaml"], "evaluation_interval": interval, "tests": tests}
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump(told, sort_keys=False))
    assert "SUCCESS" in promtool("test", "rules", str(file))


def test_every_alert_has_both_tests() -> None:
    assert "SUCCESS" in promtool("check", "rules", str(RULES))
    for name, rule in rules().items():
        own = {case.fires is not None for case in (*CASES, *DAY) if case.alert == name}
        assert own == {True, False}, name
        assert rule["labels"]["severity"] in ("page", "ticket", "team")
        assert rule["labels"]["fairway"] == "gpu"


def test_the_files_are_what_the_command_writes(tmp_path: Path) -> None:
    words = ["-f", str(FOLDER / "fleet.yaml"), "--fairway", "https://fairway.example.org"]
    done = CliRunner().invoke(render, ["alerts", *words, "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "fairway-gpus-hpc.rules.yaml").read_text() == RULES.read_text()
    assert (tmp_path / "alertmanager.yml").read_text() == (FOLDER / "alertmanager.yml").read_text()


def test_xids_have_the_class_that_health_gives_them() -> None:
    classes = {
        EventClass.HARDWARE: (*alerts.GONE_XIDS, *alerts.MEMORY_XIDS, *alerts.NVLINK_XIDS),
        EventClass.RESET: alerts.CONTAINED_XIDS,
        EventClass.APPLICATION: alerts.PROGRAM_XIDS,
    }
    known = {xid: class_of(xid_code(xid)) for xid in range(1, 1000)}
    for of_class, xids in classes.items():
        assert {xid for xid, found in known.items() if found is of_class} == set(xids)


def amtool(*words: str) -> str:
    return output_of(_alertmanager() / "usr/bin/amtool", *words)


@cache
def _alertmanager() -> Path:
    return unpacked(KIND.versions[0])[1]


def test_alertmanager_takes_the_configuration_and_routes_by_it() -> None:
    file = str(FOLDER / "alertmanager.yml")
    assert "SUCCESS" in amtool("check-config", file)

    def receivers(**labels: str) -> str:
        words = [f"{name}={value}" for name, value in labels.items()]
        return amtool("config", "routes", "test", f"--config.file={file}", *words).strip()

    for labels in {tuple(rule["labels"].items()) for rule in rules().values()}:
        assert receivers(**dict(labels)) == "fairway"
    assert receivers(alertname="FairwayDown", severity="page") == "operators"
    assert receivers(alertname="SomethingElse") == "operators"
