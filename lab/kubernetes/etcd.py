"""Compaction of etcd: old resource versions expire as in a cluster that has run for long."""

from __future__ import annotations

import http.client
import json
import ssl
from typing import Any

from lab.errors import LabError
from lab.kubernetes.control_plane import LOOPBACK
from lab.kubernetes.pki import Pki

CALL_SECONDS = 30


def compact(port: int, pki: Pki) -> int:
    """Forget every revision before the present one; which one that is."""
    seen = _ask(port, pki, "/v3/kv/range", {"key": "AA==", "limit": 1})  # any read tells the revision
    revision = int(seen["header"]["revision"])
    _ask(port, pki, "/v3/kv/compaction", {"revision": revision, "physical": True})
    return revision


def _ask(port: int, pki: Pki, path: str, body: dict[str, Any]) -> dict[str, Any]:
    tls = ssl.create_default_context(cafile=str(pki.ca))
    tls.load_cert_chain(pki.crt("server"), pki.key("server"))
    connection = http.client.HTTPSConnection(LOOPBACK, port, timeout=CALL_SECONDS, context=tls)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer: dict[str, Any] = json.loads(response.read() or b"{}")
    finally:
        connection.close()
    if response.status != http.HTTPStatus.OK:
        raise LabError(f"etcd refused {path}", str(answer.get("message", response.status)))
    return answer
