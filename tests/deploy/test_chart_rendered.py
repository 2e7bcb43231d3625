"""The chart as it is rendered: valid for Kubernetes 1.36, least rights, no secret, nothing unknown."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from fairway import __version__
from fairway.server.listen import ServerOptions, check_engine_server
from fairway.settings import SETTINGS, read_settings
from lab import helm
from lab.kubernetes import Cluster
from tests.deploy.release import CHART, EXAMPLES

ROOT = Path(__file__).parents[2]
NAMED = sorted(file.stem for file in EXAMPLES.glob("*.yaml"))
GIVEN_BY_THE_CHART = {
    "database_url",
    "database_url_file",
    "listen_host",
    "listen_port",
    "state_dir",
    "serve",
    "migrate",
    "engine_server",
    "engine_server_ca",
}
OPERATORS = {"ServiceMonitor"}
"""Kinds that somebody else's operator brings."""

pytestmark = [pytest.mark.lab, pytest.mark.kubernetes, pytest.mark.timeout(900)]


def run_helm(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in (helm.program(), *words)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def rendered(*more: str | Path) -> list[dict[str, Any]]:
    done = run_helm("template", "fw", CHART, "--namespace", "fairway", *more)
    assert done.returncode == 0, done.stderr
    return [found for found in yaml.safe_load_all(done.stdout) if found]


@cache
def example(name: str) -> tuple[dict[str, Any], ...]:
    return tuple(rendered("--values", EXAMPLES / f"{name}.yaml"))


def pods(objects: tuple[dict[str, Any], ...]) -> list[dict[str, Any]]:
    return [one["spec"]["template"]["spec"] for one in objects if one["kind"] in ("Deployment", "Job")]


@pytest.mark.parametrize("name", NAMED)
def test_helm_finds_no_fault(name: str) -> None:
    done = run_helm("lint", "--strict", CHART, "--values", EXAMPLES / f"{name}.yaml")
    assert done.returncode == 0, done.stdout


def schemas(cluster: Cluster) -> dict[str, Any]:
    """Kinds of the real API server by apiVersion and kind, each as a JSON Schema that stands by itself."""
    found: dict[str, Any] = {}
    for path in cluster.api.get("/openapi/v3")["paths"]:
        if not re.fullmatch(r"apis?/(.+/)?v[0-9]+", path):
            continue
        parts = strict(cluster.api.get(f"/openapi/v3/{path}")["components"])
        for name, schema in parts["schemas"].items():
            for kind in schema.get("x-kubernetes-group-version-kind", []):
                version = "/".join(filter(None, (kind["group"], kind["version"])))
                whole = {"$ref": f"#/components/schemas/{name}", "components": parts}
                found[f"{version} {kind['kind']}"] = whole
    return found


def strict(parts: Any) -> Any:
    """Nothing that is not named: what an API server would drop in silence is a fault here."""
    for schema in parts["schemas"].values():
        if schema.get("properties") and "additionalProperties" not in schema:
            schema["additionalProperties"] = False
    return parts


def test_every_object_keeps_to_the_schemas_of_the_real_api_server(cluster: Cluster) -> None:
    known = schemas(cluster)
    checked = 0
    for name in NAMED:
        for one in example(name):
            if one["kind"] in OPERATORS:
                continue
            schema = known[f"{one['apiVersion']} {one['kind']}"]
            jsonschema.Draft202012Validator(schema).validate(one)
            checked += 1
    assert checked > 50
    broken = json.loads(json.dumps(example("smallest")[-1]))
    broken["spec"]["template"]["spec"]["hostNetwrok"] = True
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(known[f"{broken['apiVersion']} {broken['kind']}"]).validate(broken)


@pytest.mark.parametrize("name", NAMED)
def test_the_real_api_server_would_take_it(cluster: Cluster, name: str) -> None:
    api = cluster.api
    for one in example(name):
        if one["kind"] in OPERATORS:
            continue
        where = {} if one["kind"].startswith("Cluster") else {"namespace": "fairway"}
        wanted = {**one, "metadata": {**where, **one["metadata"]}}
        path = api.path_of(wanted)
        query = "?dryRun=All&fieldManager=test&fieldValidation=Strict&force=true"
        api.call("PATCH", f"{path}{query}", wanted, content="application/apply-patch+yaml")


@pytest.mark.parametrize("name", NAMED)
def test_pods_are_closed(name: str) -> None:
    found = pods(example(name))
    assert len(found) == 3
    for pod in found:
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not pod.get("hostNetwork")
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "privileged": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["limits"]["memory"]
            urls = {value["name"]: value["value"] for value in container["env"] if "://" in value["value"]}
            assert "@" not in urls.pop("FAIRWAY_ENGINE_SERVER", "")  # values.schema.json refuses it, too
            assert urls == {}


def rules_of(objects: Any) -> dict[str, Any]:
    kinds = ("ClusterRole", "Role")
    return {
        one["metadata"]["name"].rpartition("fairway-")[2]: one["rules"]
        for one in objects
        if one["kind"] in kinds
    }


def test_the_right_to_cordon_is_given_where_it_is_asked_for() -> None:
    documented = rules_of(
        yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / "cordon-rights.yaml").read_text())
    )
    more = ("--values", EXAMPLES / "smallest.yaml", "--set", "rbac.cordon=true")
    assert rules_of(rendered(*more))["cordon"] == documented["cordon"]


def test_rights_are_those_of_the_documented_manifest_and_no_more() -> None:
    documented = rules_of(yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / "rights.yaml").read_text()))
    # Those of servers that only answer and ask clusters themselves: here control does that for them.
    del documented["read"], documented["logs"]
    for rule in documented["govern"]:
        if rule["resources"] == ["clusterroles"]:
            rule["resourceNames"].remove("fairway-logs")
    assert rules_of(example("smallest")) == documented
    assert rules_of(example("other-clusters")) == {}
    assert not any(pod["automountServiceAccountToken"] for pod in pods(example("other-clusters")))
    given = {
        one["roleRef"]["name"].rpartition("fairway-")[2]: [
            (subject["namespace"], subject["name"]) for subject in one["subjects"]
        ]
        for one in example("smallest")
        if one["kind"].endswith("Binding")
    }
    loops = ("fairway", "fw-fairway")
    assert given == {"observe": [loops], "govern": [loops], "kueue-config": [loops]}


def test_pods_that_only_answer_have_an_account_without_rights() -> None:
    """Jobs are made, and logs read, by whom an apply binds in the namespaces of teams."""
    accounts = {
        one["metadata"]["labels"]["app.kubernetes.io/component"]: one["spec"]["template"]["spec"][
            "serviceAccountName"
        ]
        for one in example("smallest")
        if one["kind"] == "Deployment"
    }
    assert accounts == {"server": "fw-fairway-server", "control": "fw-fairway"}
    bound = {
        one["metadata"]["name"]: one["metadata"]["annotations"]["fairway.dev/bind-to"]
        for one in example("smallest")
        if one["kind"] == "ClusterRole" and "annotations" in one["metadata"]
    }
    assert bound == {"fairway-run": "system:serviceaccount:fairway:fw-fairway"}
    everywhere = rendered("--values", EXAMPLES / "smallest.yaml", "--set", "rbac.run=everywhere")
    (own,) = [o for o in everywhere if o["kind"] == "ClusterRoleBinding" and "run" in o["metadata"]["name"]]
    assert [subject["name"] for subject in own["subjects"]] == ["fw-fairway"]


def part_of(objects: Iterable[dict[str, Any]], kind: str, part: str) -> dict[str, Any]:
    (found,) = [
        one
        for one in objects
        if one["kind"] == kind and one["metadata"]["labels"].get("app.kubernetes.io/component") == part
    ]
    return found


def pod_of(objects: Iterable[dict[str, Any]], part: str) -> dict[str, Any]:
    pod: dict[str, Any] = part_of(objects, "Deployment", part)["spec"]["template"]["spec"]
    return pod


@pytest.mark.parametrize("name", NAMED)
def test_pods_that_only_answer_carry_nothing_of_a_cluster(name: str) -> None:
    """Not even what Kubernetes itself would mount."""
    given = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    own = {"fairway-database"} | {given["tls"].get("existingSecret")} - {None}
    own |= set(given.get("server", {}).get("credentials", []))
    server, control = (pod_of(example(name), part) for part in ("server", "control"))
    assert server["automountServiceAccountToken"] is False
    mounted = [
        {volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume}
        for pod in (server, control)
    ]
    assert mounted[0] == own
    assert set(given.get("credentials", [])) <= mounted[1]
    assert not set(given.get("credentials", [])) & mounted[0]
    # Nor by a way that the line above does not know.
    assert {kind for volume in server["volumes"] for kind in volume} <= {
        "name",
        "emptyDir",
        "configMap",
        "secret",
    }
    assert all("valueFrom" not in value for value in server["containers"][0]["env"])


@pytest.mark.parametrize("name", NAMED)
def test_pods_that_only_answer_ask_control(name: str) -> None:
    objects = example(name)
    environment = {v["name"]: v["value"] for v in pod_of(objects, "server")["containers"][0]["env"]}
    service = part_of(objects, "Service", "control")
    (port,) = service["spec"]["ports"]
    assert service["spec"]["type"] == "ClusterIP"
    scheme = "https" if "tls" in [v["name"] for v in pod_of(objects, "server")["volumes"]] else "http"
    url = f"{scheme}://{service['metadata']['name']}:{port['port']}"
    assert environment["FAIRWAY_ENGINE_SERVER"] == url
    assert ("FAIRWAY_ENGINE_SERVER_CA" in environment) == (scheme == "https")
    options = {"HOME": "/nowhere", "XDG_CONFIG_HOME": "/nowhere"}
    settings = read_settings({}, {"FAIRWAY_SERVE": "api", "FAIRWAY_ENGINE_SERVER": url} | options)
    check_engine_server(ServerOptions(settings, insecure_listen=scheme == "http"))
    control = {v["name"] for v in pod_of(objects, "control")["containers"][0]["env"]}
    assert "FAIRWAY_ENGINE_SERVER" not in control


def test_only_pods_that_answer_and_prometheus_reach_control() -> None:
    server = {**part_of(example("smallest"), "Deployment", "server")["spec"]["selector"]}
    for name, more in (("smallest", 0), ("whole", 1)):
        walls = {
            part: part_of(example(name), "NetworkPolicy", part)["spec"] for part in ("server", "control")
        }
        (way_in,) = walls["control"]["ingress"]
        assert way_in["from"][0] == {"podSelector": server}
        assert len(way_in["from"]) == 1 + more
        assert way_in["ports"] == [{"port": 8471, "protocol": "TCP"}]
        out = walls["server"]["egress"][-1]
        assert out["ports"] == way_in["ports"]
        assert out["to"] == [{"podSelector": walls["control"]["podSelector"]}]


def test_two_of_each_with_a_budget_and_a_wall() -> None:
    kinds = [
        (one["kind"], one["metadata"]["name"].removeprefix("fw-fairway-")) for one in example("smallest")
    ]
    for part in ("server", "control"):
        assert ("PodDisruptionBudget", part) in kinds
        assert ("NetworkPolicy", part) in kinds
        (one,) = [
            o
            for o in example("smallest")
            if o["kind"] == "Deployment" and o["metadata"]["name"].endswith(part)
        ]
        assert one["spec"]["replicas"] == 2
    (job,) = [one for one in example("smallest") if one["kind"] == "Job"]
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    # What it mounts must be there before the release is.
    assert [
        volume.get("secret", {}).get("secretName") for volume in job["spec"]["template"]["spec"]["volumes"]
    ] == [
        None,
        "fairway-database",
    ]


@pytest.mark.parametrize(
    ("said", "refused"),
    [
        ((), "database.existingSecret"),
        (("--set", "database.existingSecret=x"), "tls"),
        (("--set", "database.url=postgresql://a:b@c/d"), "url"),
        (("--set", "settings.database_url=x"), "database_url"),
        (("--set", "server.replicas=0"), "replicas"),
        (("--set", "server.engineServer=https://a:b@c"), "engineServer"),
        (("--set", "setings.log_level=debug"), "setings"),
    ],
)
def test_what_would_not_work_is_refused(said: tuple[str, ...], refused: str) -> None:
    done = run_helm("template", "fw", CHART, *said)
    assert done.returncode != 0
    assert refused in done.stderr


def test_settings_are_those_of_fairway() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    own = {setting.name for setting in SETTINGS} - GIVEN_BY_THE_CHART
    assert set(schema["properties"]["settings"]["properties"]) == own
    for name in NAMED:
        (text,) = [
            one["data"]["server.yaml"] for one in example(name) if "server.yaml" in one.get("data", {})
        ]
        given = {f"FAIRWAY_{key.upper()}": str(value) for key, value in yaml.safe_load(text).items()}
        settings = read_settings({}, given | {"HOME": "/nowhere", "XDG_CONFIG_HOME": "/nowhere"})
        assert settings.log_format == "json"


def test_pages_behind_an_ingress_know_their_address() -> None:
    said = ("--set", "ingress.enabled=true", "--set", "ingress.host=gpus.acme.test")
    for more, address in ((("--set", "ingress.tlsSecret=tls"), "https://gpus.acme.test"), ((), None)):
        objects = rendered("--values", EXAMPLES / "smallest.yaml", *said, *more)
        (text,) = [one["data"]["server.yaml"] for one in objects if "server.yaml" in one.get("data", {})]
        assert yaml.safe_load(text).get("public_url") == address


def test_the_chart_is_this_release() -> None:
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == __version__
