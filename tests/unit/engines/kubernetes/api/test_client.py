"""Connecting to an API server, as far as that needs none."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from lightkube.config.kubeconfig import KubeConfig

from fairway.engines.kubernetes.api.client import connect
from fairway.model.fleet import KubernetesConnection

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: here
contexts: [{name: here, context: {cluster: here, user: me}}]
clusters: [{name: here, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: me, user: {token: x}}]
"""


async def test_kubeconfigs_are_read_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads at once in msgspec's first conversion crash the process."""
    path = tmp_path / "kubeconfig"
    path.write_text(KUBECONFIG)
    real, inside, most = KubeConfig.from_file, 0, 0
    count = threading.Lock()
    second = threading.Event()

    def read(fname: str) -> KubeConfig:
        nonlocal inside, most
        with count:
            inside += 1
            most = max(most, inside)
            if inside > 1:
                second.set()
        second.wait(0.2)  # so that another one could come in
        found = real(fname)
        with count:
            inside -= 1
        return found

    monkeypatch.setattr(KubeConfig, "from_file", read)
    connections = [connect(KubernetesConnection(kubeconfig=str(path), context=None)) for _ in range(3)]
    for server in await asyncio.gather(*connections):
        await server.close()
    assert most == 1
