"""`fairway render alerts`: a file of rules for each cluster with telemetry, written without a server."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from fairway.cli.commands.render import render
from fairway.files import InvalidFile
from fairway.model.errors import PermanentError

FLEET = """\
apiVersion: fairway/v1alpha1
kind: Fleet
name: acme
currency: USD
clusters:
  one: { engine: virtual, telemetry: { prometheus: "http://127.0.0.1:9090" } }
  two: { engine: virtual, telemetry: { prometheus: "http://127.0.0.1:9091", select: 'site="b",kind!="x"' } }
  dark: { engine: virtual }
"""


def run(tmp_path: Path, text: str, *words: str) -> str:
    file = tmp_path / "fleet.yaml"
    file.write_text(text)
    done = CliRunner().invoke(render, ["alerts", "-f", str(file), *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_each_cluster_with_telemetry_has_rules_of_its_own(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(tmp_path, FLEET, "--out", str(out), "--token-file", "/etc/t")
    names = ["alertmanager.yml", "fairway-gpus-one.rules.yaml", "fairway-gpus-two.rules.yaml"]
    assert sorted(file.name for file in out.iterdir()) == names
    for name, matchers in (("one", "{}"), ("two", '{site="b",kind!="x"}')):
        text = (out / f"fairway-gpus-{name}.rules.yaml").read_text()
        rules = [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]
        assert {rule["labels"]["cluster"] for rule in rules} == {name}
        assert f"DCGM_FI_DEV_FB_USED{matchers}" in text
    config = yaml.safe_load((out / "alertmanager.yml").read_text())
    operators, fairway = config["receivers"]
    assert list(operators) == ["name"]
    (webhook,) = fairway["webhook_configs"]
    assert webhook["url"] == "http://127.0.0.1:8470/v1/alerts"
    assert webhook["http_config"]["authorization"]["credentials_file"] == "/etc/t"


def test_files_that_somebody_changed_are_left(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(tmp_path, FLEET, "--out", str(out))
    run(tmp_path, FLEET, "--out", str(out))  # the same again
    (out / "alertmanager.yml").write_text("ours")
    with pytest.raises(PermanentError, match=r"already has alertmanager\.yml"):
        run(tmp_path, FLEET, "--out", str(out))
    assert (out / "alertmanager.yml").read_text() == "ours"
    run(tmp_path, FLEET, "--out", str(out), "--overwrite")
    assert "route:" in (out / "alertmanager.yml").read_text()


def test_they_are_printed_without_a_folder(tmp_path: Path) -> None:
    printed = run(tmp_path, FLEET)
    assert "# fairway-gpus-two.rules.yaml\n" in printed
    assert "# alertmanager.yml\n" in printed


def test_a_fleet_without_telemetry_has_nothing_to_alert_on(tmp_path: Path) -> None:
    with pytest.raises(PermanentError, match=r"no cluster in .* has telemetry"):
        run(tmp_path, "\n".join([*FLEET.splitlines()[:5], "  dark: { engine: virtual }"]))
    with pytest.raises(InvalidFile):
        run(tmp_path, FLEET + "nonsense: 1\n")
