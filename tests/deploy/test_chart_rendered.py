"""The chart as it is rendered: valid for Kubernetes 1.36, least rights, no secret, nothing unknown."""

from __future__ import annotations

import json
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from fairway import __version__
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
            secret = [value for value in container["env"] if "://" in value["value"]]
            assert secret == []


def rules_of(objects: Any) -> dict[str, Any]:
    kinds = ("ClusterRole", "Role")
    return {
        one["metadata"]["name"].rpartition("fairway-")[2]: one["rules"]
        for one in objects
        if one["kind"] in kinds
    }


def test_rights_are_those_of_the_documented_manifest_and_no_more() -> None:
    documented = rules_of(yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / "rights.yaml").read_text()))
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
    loops, server = ("fairway", "fw-fairway"), ("fairway", "fw-fairway-server")
    assert given == {
        "observe": [loops, server],
        "govern": [loops],
        "read": [server],
        "kueue-config": [loops, server],
    }


def test_pods_that_only_answer_have_an_account_that_only_reads() -> None:
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
    assert bound == {
        "fairway-run": "system:serviceaccount:fairway:fw-fairway",
        "fairway-logs": "system:serviceaccount:fairway:fw-fairway-server",
    }
    rules = rules_of(example("smallest"))
    read = [*rules["observe"], *rules["read"], *rules["logs"], *rules["kueue-config"]]
    assert {verb for rule in read for verb in rule["verbs"]} == {"get", "list", "watch"}
    everywhere = rendered("--values", EXAMPLES / "smallest.yaml", "--set", "rbac.run=everywhere")
    (own,) = [o for o in everywhere if o["kind"] == "ClusterRoleBinding" and "run" in o["metadata"]["name"]]
    assert [subject["name"] for subject in own["subjects"]] == ["fw-fairway"]


def test_a_server_may_have_credentials_of_its_own() -> None:
    said = ("--set", "credentials={cloud,hpc}", "--set", "server.credentials.cloud=cloud-reads")
    mounted = {
        one["metadata"]["name"]: [
            volume["secret"]["secretName"]
            for volume in one["spec"]["template"]["spec"]["volumes"]
            if volume["name"].startswith("credentials-")
        ]
        for one in rendered("--values", EXAMPLES / "smallest.yaml", *said)
        if one["kind"] == "Deployment"
    }
    assert mounted == {"fw-fairway-server": ["cloud-reads", "hpc"], "fw-fairway-control": ["cloud", "hpc"]}


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
