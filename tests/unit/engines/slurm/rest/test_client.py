"""Peers that are broken, and replies that the lab's clusters cannot be made to give."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from fairway.engines.port import Unreachable
from fairway.engines.slurm import SlurmEngine
from fairway.engines.slurm.rest import client
from fairway.model.errors import FairwayError, Refused
from fairway.model.fleet import Cluster, SlurmConnection
from fairway.model.job import GpuRequest, JobId, JobSpec, Order, engine_name
from fairway.model.names import ClusterName, PoolName, PriorityName, TeamName, UserName
from fairway.model.team import Supply
from tests.unit.engines.slurm.policy.made import fleet
from tests.unit.engines.slurm.test_replies import recorded

Answer = Callable[[str], bytes]


def http(status: int, body: bytes) -> bytes:
    return f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body


@asynccontextmanager
async def answering(answer: Answer) -> AsyncIterator[str]:
    """A port that answers each request line with these bytes, then hangs up."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()[0]
        writer.write(answer(asked))
        with suppress(ConnectionError):  # the other side may have had enough
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    file = tmp_path / "jwt.key"
    file.write_bytes(b"k" * 32)
    return file


async def told(key_file: Path, answer: Answer, timeout_seconds: float = 5) -> FairwayError:
    """What observe() raises for these answers."""
    async with answering(answer) as url:
        connection = SlurmConnection(url, jwt_key_file=str(key_file))
        engine = SlurmEngine(Cluster(ClusterName("hpc"), connection), (), timeout_seconds=timeout_seconds)
        with pytest.raises(FairwayError) as said:
            await engine.observe()
        await engine.close()
    assert said.value.hint
    return said.value


def fault(number: int, text: str, source: str = "") -> bytes:
    error = {"error_number": number, "error": text, "source": source}
    return json.dumps({"errors": [error], "nodes": []}).encode()


@pytest.mark.parametrize(
    ("status", "body", "kind", "code"),
    [
        (200, fault(1007, "Protocol authentication error"), Refused, "CredentialsRejected"),
        (200, fault(2002, "Access/permission denied"), Refused, "RightMissing"),
        (200, fault(-1, "Unspecified error"), Unreachable, "EngineFailed"),
        (401, b"Authentication failure", Refused, "CredentialsRejected"),
        (403, b"", Refused, "RightMissing"),
        (422, fault(9000, "Query empty"), Refused, "EngineRefused"),
        (500, fault(-1, "Unspecified error"), Unreachable, "EngineFailed"),
        (500, fault(1802, "Zero Bytes were transmitted or received"), Unreachable, "ControllerUnreachable"),
        (502, fault(7000, "Unable to connect to database"), Unreachable, "AccountingUnreachable"),
        (500, fault(111, "Connection refused", "slurmdb_tres_get"), Unreachable, "AccountingUnreachable"),
        (502, b"<html>Bad Gateway</html>", Unreachable, "ControllerUnreachable"),
        (200, b"<html>Welcome</html>", Refused, "NotSlurmrestd"),
        (200, b'{"nodes": 3}', Refused, "NotSlurmrestd"),
        (200, b'{"nodes": [{"name": "\xff"}]}', Refused, "NotSlurmrestd"),
        (404, b"not here", Refused, "NotSlurmrestd"),
        (302, b"", Unreachable, "EngineFailed"),
    ],
)
async def test_every_no_is_told_apart(
    key_file: Path, status: int, body: bytes, kind: type[FairwayError], code: str
) -> None:
    error = await told(key_file, lambda _: http(status, body))

    assert (type(error), error.code) == (kind, code)


@pytest.mark.parametrize("version", ["24.11.5", "26.05.5"])
async def test_the_rejection_each_version_sends(key_file: Path, version: str) -> None:
    status, body = recorded(version, "rejected")

    error = await told(key_file, lambda _: http(status, body))

    assert error.code == "CredentialsRejected"
    assert "Protocol authentication error" in error.message


async def test_a_reply_without_end_is_cut_off(key_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MAX_REPLY_BYTES", 2**20)

    error = await told(key_file, lambda _: http(200, b" " * 2**22))

    assert error.code == "ReplyTooLarge"


async def test_a_reply_that_trickles_in_ends_with_the_time_allowed(key_file: Path) -> None:
    """Each byte is in time; all of them together are not."""

    async def trickle(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 X\r\nContent-Length: 999\r\n\r\n")
        with suppress(ConnectionError):
            while True:
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.1)

    server = await asyncio.start_server(trickle, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    connection = SlurmConnection(url, jwt_key_file=str(key_file))
    engine = SlurmEngine(Cluster(ClusterName("hpc"), connection), (), timeout_seconds=0.5)
    with pytest.raises(Unreachable):  # at a byte in 0.1 s the whole would take 100 s
        await asyncio.wait_for(engine.observe(), 20)
    await engine.close()
    server.close()


async def test_a_connection_that_breaks_off(key_file: Path) -> None:
    error = await told(key_file, lambda _: http(200, b"{}" * 100)[:-50])

    assert (type(error), error.code) == (Unreachable, "ClusterUnreachable")


async def test_what_is_not_http(key_file: Path) -> None:
    error = await told(key_file, lambda _: b"SSH-2.0-OpenSSH_9.2\r\n")

    assert isinstance(error, Unreachable)


async def test_an_address_that_is_none(key_file: Path) -> None:
    for url in ("slurm:6820", "ftp://host", "http://[::1", "not a url"):
        connection = SlurmConnection(url, jwt_key_file=str(key_file))
        engine = SlurmEngine(Cluster(ClusterName("hpc"), connection), (), timeout_seconds=3)
        with pytest.raises((Refused, Unreachable)):
            await engine.observe()
        await engine.close()


async def test_no_job_is_sent_as_who_can_become_anybody(key_file: Path) -> None:
    """SlurmUser is read from the cluster; the others' jobs are sent all the same."""
    asked: list[str] = []

    def answer(request: str) -> bytes:
        asked.append(request.split()[1])
        body = {"slurm_conf": {"SlurmUser": "hpcadm(64030)"}} if "/conf" in request else {"job_id": 7}
        return http(200, json.dumps(body).encode())

    def order_of(user: str) -> Order:
        spec = JobSpec(name="train", gpus=GpuRequest(1), command=("true",))
        name = engine_name("mark", JobId(7), 1, spec.name)
        supply = Supply(PoolName("gpu"))
        return Order(
            JobId(7), 1, name, spec, UserName(user), TeamName("product"), PriorityName("normal"), supply
        )

    users = ("hpcadm", "fairway", "root", "64030", "alice")
    base = fleet()
    orders = [order_of(user) for user in users]
    async with answering(answer) as url:
        connection = SlurmConnection(url, jwt_key_file=str(key_file))
        engine = SlurmEngine(Cluster(ClusterName("hpc"), connection), base.pools)
        results = {result.order.user: result async for result in engine.submit(orders, base)}
        await engine.close()

    assert {u: r.refusal.code for u, r in results.items() if r.refusal} == dict.fromkeys(
        users[:-1], "SystemUser"
    )
    assert results[UserName("alice")].engine_id == "7"
    assert [path.rpartition("/")[2] for path in asked] == ["conf", "submit"]
