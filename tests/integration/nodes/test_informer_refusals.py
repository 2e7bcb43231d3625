"""What a real API server says no to, and what the engine makes of it."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairway.engines.kubernetes.engine import KubernetesEngine
from fairway.model.errors import Refused
from fairway.model.fleet import Cluster, KubernetesConnection
from fairway.model.names import ClusterName
from lab import Instance, find
from lab.kubernetes.cluster import Cluster as LabCluster
from tests.contract.driver import absent

pytestmark = pytest.mark.kubernetes

Change = Callable[[dict[str, Any], dict[str, Any]], None]
"""What is different about a kubeconfig: its cluster, its user."""


@pytest.fixture
def instance() -> Instance:
    found = find("kubernetes")
    if found is None or found.state == "down":
        absent("kubernetes", "python -m lab up kubernetes")
    return found


@pytest.fixture
async def engine_of(instance: Instance, tmp_path: Path) -> AsyncIterator[Callable[..., KubernetesEngine]]:
    opened: list[KubernetesEngine] = []

    def make(person: str, change: Change | None = None) -> KubernetesEngine:
        config = yaml.safe_load(Path(instance.facts()[f"{person}_kubeconfig"]).read_text())
        if change:
            change(config["clusters"][0]["cluster"], config["users"][0]["user"])
        file = tmp_path / f"kubeconfig-{len(opened)}"
        file.write_text(yaml.safe_dump(config))
        connection = KubernetesConnection(str(file))
        opened.append(KubernetesEngine(Cluster(ClusterName("lab"), connection), (), timeout_seconds=10))
        return opened[-1]

    yield make
    for engine in opened:
        await engine.close()


async def test_no_right_to_list(engine_of: Callable[..., KubernetesEngine]) -> None:
    with pytest.raises(Refused) as said:
        await engine_of("alice").observe()

    assert said.value.code == "Forbidden"
    assert 'User "alice" cannot list resource' in said.value.message
    assert "verbs: [list, watch]" in said.value.hint


async def test_a_right_to_list_but_not_to_watch(
    instance: Instance, engine_of: Callable[..., KubernetesEngine]
) -> None:
    api = LabCluster(instance).api
    rbac = {"apiGroup": "rbac.authorization.k8s.io"}
    name = "informer-refusals-list-only"
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name},
        "rules": [{"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["list"]}],
    }
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {**rbac, "kind": "ClusterRole", "name": name},
        "subjects": [{**rbac, "kind": "User", "name": "carol"}],
    }
    api.apply(role)
    api.apply(binding)
    engine = engine_of("carol")
    try:
        for _ in range(3):  # and not every other time: a list alone is no answer
            with pytest.raises(Refused) as said:
                await engine.observe()
            assert said.value.code == "Forbidden"
            assert "missing: watch" in said.value.hint or "missing: list" in said.value.hint
        assert "missing: watch" in said.value.hint
        api.apply({**role, "rules": [{**role["rules"][0], "verbs": ["list", "watch"]}]})  # type: ignore[index]
        await until_it_sees_nodes(engine)  # the same engine, once the right is there
    finally:
        api.delete(api.path_of(binding))
        api.delete(api.path_of(role))


async def until_it_sees_nodes(engine: KubernetesEngine) -> None:
    for _ in range(20):  # a new right takes the API server a moment
        try:
            assert (await engine.observe()).nodes
        except Refused:
            await asyncio.sleep(0.25)
        else:
            return
    pytest.fail("the right to watch was given, and still refused")


async def test_a_server_that_another_authority_vouches_for(
    instance: Instance, engine_of: Callable[..., KubernetesEngine], tmp_path: Path
) -> None:
    other = LabCluster(instance).pki.folder  # any valid certificate that did not sign the server's
    foreign = base64.b64encode((other / "server.crt").read_bytes()).decode()

    def distrust(cluster: dict[str, Any], user: dict[str, Any]) -> None:
        cluster["certificate-authority-data"] = foreign

    with pytest.raises(Refused) as said:
        await engine_of("fairway", distrust).observe()

    assert said.value.code == "TlsFailed"


async def test_an_exec_plugin_brings_the_token(
    engine_of: Callable[..., KubernetesEngine], tmp_path: Path
) -> None:
    plugin = tmp_path / "get-token"

    def by_plugin(cluster: dict[str, Any], user: dict[str, Any]) -> None:
        api_version = "client.authentication.k8s.io/v1"
        status = {"token": user["token"]}
        answer = json.dumps({"apiVersion": api_version, "kind": "ExecCredential", "status": status})
        plugin.write_text(
            f"#!/bin/sh\ncase \"$KUBERNETES_EXEC_INFO\" in *{api_version}*) echo '{answer}';; esac\n"
        )
        plugin.chmod(0o700)
        user.clear()
        user["exec"] = {"apiVersion": api_version, "command": str(plugin), "interactiveMode": "Never"}

    assert (await engine_of("fairway", by_plugin).observe()).nodes


async def test_plain_http_on_a_tls_port(engine_of: Callable[..., KubernetesEngine]) -> None:
    def plain(cluster: dict[str, Any], user: dict[str, Any]) -> None:
        cluster["server"] = cluster["server"].replace("https:", "http:")

    with pytest.raises(Refused) as said:
        await engine_of("fairway", plain).observe()

    assert said.value.code == "BadRequest"
