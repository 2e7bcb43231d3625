"""What the engine says when the kubeconfig is of no use; that it looks well is for the contract suite."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from fairway.engines.kubernetes.api.informer import LineSplitter
from fairway.engines.kubernetes.engine import KubernetesEngine
from fairway.engines.port import Unreachable
from fairway.model.errors import Refused
from fairway.model.fleet import Cluster, Connection, KubernetesConnection, SlurmConnection
from fairway.model.names import ClusterName

GOOD = dedent("""\
    clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
    users: [{name: u, user: {token: t}}]
    contexts:
      - {name: here, context: {cluster: c, user: u}}
      - {name: nobody, context: {cluster: c}}
      - {name: nowhere, context: {cluster: gone, user: u}}
    current-context: here
    """)


def engine(connection: Connection) -> KubernetesEngine:
    return KubernetesEngine(Cluster(ClusterName("cloud"), connection), (), timeout_seconds=5)


@pytest.mark.parametrize(
    ("text", "context"),
    [
        (None, None),
        ("", None),
        ("[]", None),
        (": : :", None),
        ("\x00\xff", None),
        ("clusters: 5", None),
        (GOOD.replace("current-context: here", ""), None),
        (GOOD, "missing"),
        (GOOD, "nobody"),
        (GOOD, "nowhere"),
        (GOOD.replace("server:", "certificate-authority: /nowhere/ca.crt, server:"), None),
        (GOOD.replace("server:", "certificate-authority-data: bm90IGEgY2VydA==, server:"), None),
        (GOOD.replace("server:", "certificate-authority-data: '%%%', server:"), None),
        (GOOD.replace("token: t", "client-certificate: gone.crt, client-key: gone.key"), None),
        (GOOD.replace("token: t", "auth-provider: {name: old}"), None),
    ],
)
async def test_a_kubeconfig_of_no_use_is_refused(
    tmp_path: Path, text: str | None, context: str | None
) -> None:
    file = tmp_path / "kubeconfig"
    if text is not None:
        file.write_text(text)

    with pytest.raises(Refused) as said:
        await engine(KubernetesConnection(str(file), context)).observe()

    assert said.value.code == "BadKubeconfig"
    assert str(file) in said.value.message
    assert f"kubectl --kubeconfig {file}" in said.value.hint


async def test_a_kubeconfig_that_was_mended_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    cloud = engine(KubernetesConnection(str(file)))
    with pytest.raises(Refused):
        await cloud.observe()

    file.write_text(GOOD)

    with pytest.raises(Unreachable) as said:  # nothing listens on port 1, but the file is fine now
        await cloud.observe()
    assert said.value.code == "ConnectionFailed"
    await cloud.close()


async def test_outside_a_pod_there_is_no_service_account() -> None:
    with pytest.raises(Refused) as said:
        await engine(KubernetesConnection()).observe()
    assert "name a kubeconfig" in said.value.hint


async def test_an_exec_plugin_that_is_missing_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    plugin = "exec: {apiVersion: client.authentication.k8s.io/v1, command: /nowhere/get-token}"
    file.write_text(GOOD.replace("token: t", plugin))
    cloud = engine(KubernetesConnection(str(file)))

    with pytest.raises(Refused) as said:
        await cloud.observe()

    assert said.value.code == "CredentialsFailed"
    await cloud.close()


async def test_another_engines_cluster_is_refused() -> None:
    with pytest.raises(Refused):
        await engine(SlurmConnection("http://127.0.0.1:1")).observe()


async def test_a_closed_engine_stays_closed(tmp_path: Path) -> None:
    cloud = engine(KubernetesConnection(str(tmp_path / "kubeconfig")))
    await cloud.close()
    await cloud.close()

    with pytest.raises(Refused, match="closed"):
        await cloud.observe()


def test_lines_are_put_together_from_any_pieces() -> None:
    text = b'{"a":1}\n{"b":2}\n\n{"c":3}\n{"half'
    for size in range(1, len(text) + 1):
        lines = LineSplitter(max_length=100)
        pieces = [text[i : i + size] for i in range(0, len(text), size)]

        assert [x for p in pieces for x in lines.feed(p)] == [b'{"a":1}', b'{"b":2}', b'{"c":3}']


def test_a_line_without_end_is_not_collected_for_ever() -> None:
    lines = LineSplitter(max_length=10)
    lines.feed(b"1234567890")

    with pytest.raises(ValueError, match="more than 10 bytes"):
        lines.feed(b"1")
