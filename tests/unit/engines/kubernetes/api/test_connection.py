"""The wrapper's own logic: connects once, connects anew after a 401, maps failures, closes."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from fairway.engines.kubernetes.api.connection import ApiConnection, lacks_right
from fairway.engines.kubernetes.api.errors import ApiCall
from fairway.engines.port import Unreachable
from fairway.model.errors import FairwayError, Refused
from fairway.model.fleet import Cluster, SlurmConnection
from fairway.model.names import ClusterName
from tests.unit.engines.kubernetes.api.connections import CLUSTER, SERVER, Connections, connection

NO_RIGHT = Refused("Forbidden", 'User "fairway" cannot list resource "jobs"', "add a rule")


async def ask(through: ApiConnection, path: str = "/") -> msgspec.Raw:
    async with through.use(5) as api:
        return await api.get(path, {}, msgspec.Raw, ApiCall(SERVER, "get"), timeout_seconds=5)


async def test_nothing_is_connected_before_the_first_use() -> None:
    made = Connections()
    through = connection(made)
    assert not made.made

    async with through.use() as api:
        assert api is made.made[0]


async def test_many_at_once_connect_once() -> None:
    made = Connections()
    made.seconds = 0.05
    through = connection(made)

    await asyncio.gather(*(ask(through) for _ in range(20)))

    assert len(made.made) == 1


async def test_a_failure_to_connect_is_no_connection() -> None:
    made = Connections()
    made.failure = Refused("BadKubeconfig", "no such file", "write it")
    through = connection(made)
    with pytest.raises(Refused, match="no such file"):
        await ask(through)

    made.failure = None

    await ask(through)
    assert len(made.made) == 1


async def test_after_a_401_the_next_use_connects_anew() -> None:
    made = Connections()
    through = connection(made)
    made.status = 401
    with pytest.raises(Refused) as said:
        await ask(through)
    assert said.value.code == "Unauthorized"
    assert made.is_closed(made.made[0])

    made.status = 200  # the kubeconfig was renewed

    await ask(through)
    assert len(made.made) == 2
    assert not made.is_closed(made.made[1])


@pytest.mark.parametrize("status", [403, 404, 429, 500])
async def test_other_refusals_keep_the_connection(status: int) -> None:
    made = Connections()
    through = connection(made)
    made.status = status
    with pytest.raises(FairwayError):
        await ask(through)

    made.status = 200

    await ask(through)
    assert len(made.made) == 1


@pytest.mark.parametrize("code", ["CredentialsFailed", "TlsFailed"])
async def test_so_do_credentials_that_cannot_be_had_and_certificates_that_ended(code: str) -> None:
    made = Connections()
    through = connection(made)
    with pytest.raises(Refused):
        async with through.use():
            raise Refused(code, "no", "renew them")

    await ask(through)

    assert len(made.made) == 2


async def test_a_late_401_does_not_end_the_connection_that_came_after() -> None:
    made = Connections()
    through = connection(made)

    async def refused_late() -> None:
        async with through.use():
            await asyncio.sleep(0.05)
            raise Refused("Unauthorized", "no", "renew them")

    late = asyncio.create_task(refused_late())
    await asyncio.sleep(0)
    made.status = 401
    with pytest.raises(Refused):
        await ask(through)
    made.status = 200
    await ask(through)

    with pytest.raises(Refused):
        await late

    await ask(through)
    assert len(made.made) == 2
    assert not made.is_closed(made.made[1])


async def test_who_loses_a_connection_to_anothers_401_is_told_to_come_again() -> None:
    made = Connections()
    through = connection(made)
    with pytest.raises(Unreachable) as said:
        async with through.use() as api:
            await through.discard(api)
            await api.get("/", {}, msgspec.Raw, ApiCall(SERVER, "get"), timeout_seconds=5)

    assert said.value.code == "ConnectionFailed"
    assert "closed while it was in use" in said.value.message


async def test_a_block_is_bounded_in_time() -> None:
    through = connection(Connections())

    with pytest.raises(Unreachable) as said:
        async with through.use(0.05):
            await asyncio.sleep(60)

    assert said.value.code == "TimedOut"
    assert SERVER in said.value.message
    assert "0.05 s" in said.value.message


async def test_connecting_counts_against_the_time_of_a_block() -> None:
    made = Connections()
    made.seconds = 60
    through = connection(made)

    with pytest.raises(Unreachable) as said:
        async with through.use(0.05):
            pass

    assert said.value.code == "TimedOut"
    assert "cloud did not respond" in said.value.message


async def test_without_a_limit_connecting_is_bounded_and_the_block_is_not() -> None:
    made = Connections()
    through = connection(made, timeout_seconds=0.05)
    async with through.use():
        await asyncio.sleep(0.1)

    made.seconds = 60
    with pytest.raises(Unreachable, match=r"within 0\.05 s"):
        async with connection(made, timeout_seconds=0.05).use():
            pass


async def test_a_defect_is_raised_in_the_ports_words() -> None:
    through = connection(Connections())

    with pytest.raises(Unreachable) as said:
        async with through.use():
            raise KeyError("spec")

    assert said.value.code == "ClientFailed"
    assert "KeyError: 'spec'" in said.value.message
    assert isinstance(said.value.__cause__, KeyError)


async def test_the_ports_own_errors_go_through_unchanged() -> None:
    through = connection(Connections())

    with pytest.raises(Refused) as said:
        async with through.use():
            raise NO_RIGHT

    assert said.value is NO_RIGHT


async def test_a_cancelled_use_stays_cancelled() -> None:
    through = connection(Connections())

    async def use() -> None:
        async with through.use(60):
            await asyncio.sleep(60)

    task = asyncio.create_task(use())
    await asyncio.sleep(0.01)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


async def test_what_was_closed_stays_closed() -> None:
    made = Connections()
    through = connection(made)
    await ask(through)

    await through.close()
    await through.close()

    assert made.is_closed(made.made[0])
    with pytest.raises(Refused) as said:
        await ask(through)
    assert said.value.code == "Closed"


async def test_closed_while_connecting_leaves_nothing_open() -> None:
    made = Connections()
    made.seconds = 0.05
    through = connection(made)
    asking = asyncio.create_task(ask(through))
    await asyncio.sleep(0.01)

    await through.close()

    with pytest.raises(Refused) as said:
        await asking
    assert said.value.code == "Closed"
    assert [made.is_closed(api) for api in made.made] == [True]


async def test_another_engines_cluster_is_refused() -> None:
    slurm = Cluster(ClusterName("hpc"), SlurmConnection("http://127.0.0.1:1"))

    with pytest.raises(Refused) as said:
        async with ApiConnection(slurm, 5, connect=Connections().connect).use():
            pass

    assert said.value.code == "WrongEngine"


def test_a_right_that_was_there_a_moment_ago_is_waited_for() -> None:
    now = 1000.0
    through = ApiConnection(CLUSTER, 5, connect=Connections().connect, clock=lambda: now)
    assert through.as_warm_up(NO_RIGHT) is NO_RIGHT  # never allowed: it is missing

    through.note_allowed()
    now += 59
    warming = through.as_warm_up(NO_RIGHT)
    assert isinstance(warming, Unreachable)
    assert warming.code == "WarmingUp"
    assert warming.message == NO_RIGHT.message

    now += 2
    assert through.as_warm_up(NO_RIGHT) is NO_RIGHT


def test_a_refused_object_is_no_missing_right() -> None:
    refused = Refused("Forbidden", "denied request: the team may hold no more", "ask for fewer")
    through = connection(Connections())
    through.note_allowed()

    assert lacks_right(NO_RIGHT)
    assert not lacks_right(refused)
    assert through.as_warm_up(refused) is refused
