"""The chart's ServiceMonitor against the schema that the Prometheus operator itself publishes for it."""

from __future__ import annotations

import copy
from typing import Any

import jsonschema
import pytest
import yaml

from lab.errors import LabError
from lab.kubernetes.builds import module
from lab.versions import PROMETHEUS_OPERATOR
from tests.deploy.release import EXAMPLES
from tests.deploy.test_chart_rendered import rendered

FILE = "example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml"
TLS = ("--set", "tls.existingSecret=fairway-tls", "--set", "serviceMonitor.interval=15s")

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    """Of the operator's Go module, from Go's cache or proxy."""
    try:
        sources = module("github.com/prometheus-operator/prometheus-operator", PROMETHEUS_OPERATOR)
    except LabError as error:
        pytest.skip(f"the operator's module cannot be had here, so nothing was checked: {error}")
    told = yaml.safe_load((sources / FILE).read_text())
    (served,) = [version for version in told["spec"]["versions"] if version["name"] == "v1"]
    found: dict[str, Any] = closed(served["schema"]["openAPIV3Schema"])
    found["properties"]["metadata"] = {"type": "object"}  # the API server's own
    return found


def closed(schema: Any) -> Any:
    """Nothing that is not named: an API server would drop it in silence."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: closed(value) for name, value in schema.items()}
    if isinstance(made.get("properties"), dict) and made.get("type") == "object":
        made.setdefault("additionalProperties", False)
    return made


def monitor(*more: str) -> dict[str, Any]:
    (found,) = [
        one for one in rendered("--values", EXAMPLES / "whole.yaml", *more) if one["kind"] == "ServiceMonitor"
    ]
    return found


@pytest.mark.parametrize("more", [(), TLS], ids=["plain", "tls"])
def test_it_keeps_to_the_operators_schema(schema: dict[str, Any], more: tuple[str, ...]) -> None:
    found = monitor(*more)
    assert found["apiVersion"] == "monitoring.coreos.com/v1"
    jsonschema.Draft202012Validator(schema).validate(found)
    (endpoint,) = found["spec"]["endpoints"]
    assert endpoint.get("scheme") == ("https" if more else endpoint.get("scheme"))
    assert ("tlsConfig" in endpoint) == (endpoint.get("scheme") == "https")


@pytest.mark.parametrize(
    ("key", "value"),
    [("pathh", "/metrics"), ("interval", "often"), ("scheme", "gopher"), ("authorization", {"token": "x"})],
)
def test_a_planted_fault_is_found(schema: dict[str, Any], key: str, value: object) -> None:
    broken = copy.deepcopy(monitor())
    broken["spec"]["endpoints"][0][key] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(schema).validate(broken)


def test_it_selects_the_services_that_the_chart_makes() -> None:
    objects = rendered("--values", EXAMPLES / "whole.yaml")
    (found,) = [one for one in objects if one["kind"] == "ServiceMonitor"]
    wanted = found["spec"]["selector"]["matchLabels"].items()
    ports = [endpoint["port"] for endpoint in found["spec"]["endpoints"]]
    services = [
        one for one in objects if one["kind"] == "Service" and wanted <= one["metadata"]["labels"].items()
    ]
    assert services
    for service in services:
        assert set(ports) <= {port["name"] for port in service["spec"]["ports"]}
