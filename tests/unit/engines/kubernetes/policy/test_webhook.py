"""Whether Kueue answers, by what the API server says of a dry run."""

from __future__ import annotations

import msgspec

from fairway.engines.kubernetes.policy.webhook import webhook_failure

DOWN = (
    'Internal error occurred: failed calling webhook "mresourceflavor.kb.io": failed to call webhook: Post '
    '"https://kueue-webhook-service.kueue-system.svc:443/mutate": dial tcp 127.0.0.1:9443: connect: refused'
)


def status(code: int, message: str) -> bytes:
    return msgspec.json.encode({"kind": "Status", "code": code, "message": message})


def test_a_webhook_that_cannot_be_called_is_kueue_down() -> None:
    assert webhook_failure(500, status(500, DOWN)) == DOWN


def test_no_other_answer_says_that_kueue_is_down() -> None:
    assert webhook_failure(201, b"{}") is None
    assert webhook_failure(403, status(403, "forbidden")) is None
    assert webhook_failure(404, b"404 page not found") is None
    assert webhook_failure(500, status(500, "etcdserver: request timed out")) is None
    assert webhook_failure(503, b"gateway") is None
