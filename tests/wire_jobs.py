"""A job as the API writes it, for tests of those who read it: `train` of alice, on a pool of 8 GPUs."""

from __future__ import annotations

from typing import Any


def wire_job(state: str = "running", **other: Any) -> dict[str, Any]:
    """Every field of `wire.Job`; `other` says what is different about it."""
    return {
        "id": "8f3k",
        "name": "train",
        "cluster": "hpc",
        "user": "alice",
        "team": "nlp",
        "priority": "normal",
        "pool": "hpc-a100",
        "slice": None,
        "kind": "",
        "service": False,
        "replicas": None,
        "gpus": 8,
        "nodes": 1,
        "devices": 8,
        "state": state,
        "desired_state": "run",
        "code": "",
        "reason": "",
        "engine_reason": "",
        "native": False,
        "engine_id": "17",
        "array": None,
        "array_index": None,
        "attempt_count": 1,
        "submitted_at": "2026-01-01T00:00:00Z",
        "started_at": None,
        "ended_at": None,
        "exit_code": None,
        "time_seconds": None,
        **other,
    }
