"""A Reader answers as the Client does: its records show what the wire types show, and errors are the same."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from pydantic import BaseModel

from fairway.cli.output.fleet import clusters_view, pools_view
from fairway.cli.output.format import yaml_text
from fairway.cli.output.jobs import JobGroup, jobs_view, why_lines
from fairway.client.client import Client
from fairway.client.contexts import Target
from fairway.client.http import ServerRefused, ServerUnreachable
from fairway.client.reader import Reader
from fairway.client.records import Record, decode
from fairway.model.job import JobState
from fairway.wire import fleet as fleet_wire
from fairway.wire import gpu_use as gpu_wire
from fairway.wire import jobs as job_wire
from tests.wire_jobs import wire_job

READ: tuple[type[BaseModel], ...] = (
    fleet_wire.Whoami,
    fleet_wire.Cluster,
    fleet_wire.Pool,
    gpu_wire.UseNow,
    job_wire.Job,
    job_wire.TaskCounts,
    job_wire.Why,
)
NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
T = "2026-03-01T11:00:00Z"
SEEN = {"reachable": False, "observed_at": T, "age_seconds": 90}
REASON = {"code": "Unreachable", "message": "no answer", "hint": "look"}
CLUSTER = {
    "name": "hpc",
    **SEEN,
    "engine": "slurm",
    "engine_version": None,
    "reason": REASON,
    "since": T,
    "conditions": [{**REASON, "type": "JobsNotFollowed", "since": T}],
    "pools": ["a"],
    "gpus": {"total": 8, "in_use": 4, "free": 4, "unhealthy": 0},
    "slices": [{"slice": "1g.10gb", "total": 8, "in_use": 4, "free": 4, "unhealthy": 0}],
    "gpus_in_no_pool": 0,
    "lifted": {"state": "left", "by": "root", "since": T},
}
COUNTS = {"total": 8, "in_use": 4, "free": 2, "unhealthy": 2, "nodes": 2, "nodes_drained": 0, "nodes_down": 1}
POOL = {
    "name": "hpc-a100",
    **SEEN,
    "cluster": "hpc",
    "gpu": "A100-80GB",
    "slice_kinds": [],
    "capacity": "on-demand",
    "price_per_gpu_hour": "1.755",
    "currency": "USD",
    "gpus": COUNTS,
    "slices": [{**COUNTS, "slice": "1g.10gb"}],
}
USE = {
    "held_gpu_seconds": 7200.0,
    "measured_gpu_seconds": 3600.0,
    "unmeasured_gpu_seconds": 3600.0,
    "idle_gpu_seconds": 0.0,
    "engine": 0.5,
    "memory_peak_mib": 2048.0,
    "energy_joules": 3.6e6,
    "read_to": T,
    "latest": {"at": T, "engine": 0.7},
}
COST = {"amount": "12.5", "currency": "USD", "per_hour": None, "device_seconds": 7200, "about": True}
WHY = {
    "id": "8f3k",
    "name": "train",
    "state": "done",
    "summary": "train (8f3k) finished",
    "cluster": "hpc",
    "pool": "hpc-a100",
    "slice": None,
    "nodes": ["gpu001"],
    "submitted_at": T,
    "started_at": T,
    "ended_at": T,
    "reasons": [{"code": "TeamAtCeiling", "text": "full", "hint": "wait", "engine": "QOSMax"}],
    "queue": {
        "position": 2,
        "waiting": 3,
        "ahead": [{"id": "8f3j", "name": "big", "user": "bob", "team": "nlp", "devices": 8, "ends_at": None}],
        "ending": [{"id": "8f3a", "name": "old", "user": "eve", "team": "nlp", "devices": 1, "ends_at": T}],
    },
    "expected": {
        "earliest": T,
        "expected": T,
        "latest": T,
        "computed_at": T,
        "age_seconds": 30.0,
        "futures": 24,
        "unknown": "",
    },
    "alternatives": [
        {
            "text": "4 GPUs instead of 8 fit now",
            "command": "fairway cancel 8f3k",
            "pool": "hpc-a100",
            "slice": None,
            "gpus": 4,
            "nodes": 1,
            "price_change": "1.77",
        }
    ],
    "use": USE,
    "cost": COST,
    "diagnosis": {"code": "CpuBound", "text": "t", "evidence": ["e"], "confidence": "high", "hint": "h"},
    "right_size": {
        "pattern": "train-*",
        "jobs": 5,
        "request": "--gpus 1",
        "saved_gpu_hours": 3.0,
        "saved_money": "4.50",
        "saved_wait_seconds": None,
        "text": "ask for 1",
    },
}
JOBS = [
    wire_job("failed", exit_code=3, ended_at=T, started_at=T, cost=COST, use=USE),
    wire_job("waiting", last_seen_at=T),
    wire_job("running", array="0001", array_index=4, started_at=T),
]


def _record(document: dict[str, Any]) -> Any:
    return decode(json.dumps(document).encode())


def _kinds(annotation: Any) -> Iterator[Any]:
    """Yield the classes that an annotation is made of."""
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        yield annotation
    for part in typing.get_args(annotation):
        yield from _kinds(part)


def _models(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield model
    for field in model.model_fields.values():
        for kind in _kinds(field.annotation):
            if issubclass(kind, BaseModel):
                yield from _models(kind)


SAMPLES = {datetime: T, Decimal: "1.50", str: "2026-03-01T11:00:00Z", int: 3, float: 0.5, bool: True}


MODELS = {m.__name__: m for r in READ for m in _models(r)}


@pytest.mark.parametrize("model", [MODELS[name] for name in sorted(MODELS)])
def test_records_convert_the_fields_of_wire_types(model: type[BaseModel]) -> None:
    """A new field of a type that is not converted by its name needs a line in `client/records.py`."""
    for name, field in model.model_fields.items():
        assert not hasattr(dict, name), f"{name} is a method of a record"
        scalars = [
            kind for kind in _kinds(field.annotation) if kind in SAMPLES and not issubclass(kind, Enum)
        ]
        if scalars and typing.get_origin(field.annotation) not in (list, dict):
            value = getattr(Record({name: SAMPLES[scalars[0]]}), name)
            assert isinstance(value, scalars[0]), f"{model.__name__}.{name}"
        if JobState in _kinds(field.annotation) and typing.get_origin(field.annotation) is not dict:
            assert getattr(Record({name: "running"}), name) is JobState.RUNNING


def test_tables_of_records_are_those_of_wire_types() -> None:
    cluster, pool = fleet_wire.Cluster.model_validate(CLUSTER), fleet_wire.Pool.model_validate(POOL)
    for wide in (False, True):
        assert clusters_view([_record(CLUSTER)], NOW, wide=wide) == clusters_view([cluster], NOW, wide=wide)
        assert pools_view([_record(POOL)], wide=wide) == pools_view([pool], wide=wide)

        def shown(of: Callable[[dict[str, Any]], Any], *, wide: bool = wide) -> Any:
            groups = [JobGroup(of(job)) for job in JOBS]
            return jobs_view(groups, NOW, wide=wide, filtered=False, more=True)

        assert shown(_record) == shown(job_wire.Job.model_validate)
    for why in (WHY, WHY | {"state": "waiting", "started_at": None, "ended_at": None}):
        assert why_lines(_record(why), 80) == why_lines(job_wire.Why.model_validate(why), 80)


class Server:
    """Answers every request with the same status and body, and counts them."""

    def __init__(self) -> None:
        self.status, self.body, self.requests = 200, b"{}", list[str]()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                server.requests.append(f"{self.path} {self.headers['authorization']}")
                self.send_response(server.status)
                self.send_header("Content-Length", str(len(server.body)))
                self.end_headers()
                self.wfile.write(server.body)

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        Thread(target=self.http.serve_forever, daemon=True).start()
        self.target = Target(f"http://127.0.0.1:{self.http.server_address[1]}/base", "secret")


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.http.shutdown()
    server.http.server_close()


def test_one_request_and_all_pages(server: Server) -> None:
    server.body = json.dumps({"items": [POOL], "next_cursor": None}).encode()
    with Reader(server.target) as reader:
        assert [pool.name for pool in reader.pools("hpc")] == ["hpc-a100"]
    assert server.requests == ["/base/v1/pools?cluster=hpc Bearer secret"]


def test_an_error_is_that_of_the_client(server: Server) -> None:
    problem = {"type": "t", "title": "t", "status": 404, "detail": "there is no job x", "code": "NoSuchJob"}
    server.status = 404
    server.body = json.dumps({**problem, "hint": "look", "request_id": "1"}).encode()
    with Reader(server.target) as reader, pytest.raises(ServerRefused, match="there is no job x") as told:
        reader.why("hpc/1542")
    assert told.value.code == "NoSuchJob"
    assert server.requests[0] == "/base/v1/jobs/hpc%2F1542/why Bearer secret"
    server.status, server.body = 200, b"<html>"
    with Reader(server.target) as reader, pytest.raises(Exception, match="not a Fairway server") as wrong:
        reader.whoami()
    assert getattr(wrong.value, "code", "") == "NotFairway"
    with Reader(Target("http://127.0.0.1:9", None)) as reader, pytest.raises(ServerUnreachable):
        reader.clusters()


def test_a_proxy_is_left_to_the_client(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    server.body = json.dumps({"items": [POOL], "next_cursor": None}).encode()
    monkeypatch.setenv("http_proxy", server.target.url.removesuffix("/base"))
    with Reader(Target("http://fairway.example.org", "secret")) as reader:
        assert [pool.name for pool in reader.pools()] == ["hpc-a100"]
    assert server.requests == ["http://fairway.example.org/v1/pools Bearer secret"]


def test_completion_asks_once_and_never_fails(server: Server) -> None:
    server.status = 500
    with Reader(server.target, timeout_seconds=1) as reader:
        assert reader.first_page("/v1/pools", []) == ()
    assert len(server.requests) == 1


def test_both_clients_read_the_same(server: Server) -> None:
    server.body = json.dumps({"items": JOBS, "next_cursor": None}).encode()
    with Reader(server.target) as reader, Client(server.target) as client:
        ours, theirs = (
            list(reader.jobs(team="nlp", states=["open"])),
            list(client.jobs(team="nlp", states=["open"])),
        )
    assert [job.model_dump(mode="json") for job in theirs] == [
        job_wire.Job.model_validate(job).model_dump(mode="json") for job in ours
    ]
    assert server.requests[0].split("&limit")[0] == server.requests[1].split("&limit")[0]


def test_records_are_written_as_yaml_like_the_models() -> None:
    body = (
        b'{"name": "hpc", "reason": {"code": "Away", "since": null}, "pools": [{"name": "a"}, {"name": "b"}]}'
    )
    assert yaml_text([decode(body)]) == yaml_text([json.loads(body)])
