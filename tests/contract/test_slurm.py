"""What only Slurm can do to us, shown on both versions."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from fairway.engines.port import Unreachable
from fairway.engines.slurm import SlurmEngine
from fairway.engines.slurm.rest import versions as rest_versions
from fairway.model.errors import Refused
from fairway.model.fleet import SlurmPlace
from fairway.model.observation import Observation
from tests.contract.addresses import unused_port
from tests.contract.conftest import on
from tests.contract.driver import Driver
from tests.contract.drivers.slurm import SlurmDriver
from tests.contract.looking import look, the_totals
from tests.waiting import Deadline

pytestmark = on("slurm-24", "slurm-26")

SERVED = {"24.11": ("v0.0.40", "v0.0.41", "v0.0.42"), "26.05": ("v0.0.42", "v0.0.43", "v0.0.44", "v0.0.45")}


@pytest.fixture
def slurm(driver: Driver) -> SlurmDriver:
    return cast("SlurmDriver", driver)


async def test_a_partition_that_does_not_exist_is_named(slurm: SlurmDriver) -> None:
    with pytest.raises(Refused) as said:
        await seen_by(SlurmEngine(slurm.cluster, (slurm.pool("lost", SlurmPlace("gqu")),)))

    assert said.value.code == "PartitionMissing"
    assert "pool lost names partition gqu" in said.value.message
    assert "gpu" in said.value.message  # what there is instead
    assert "pools.lost.slurm.partition" in said.value.hint


async def test_a_partition_without_nodes_is_no_fault(slurm: SlurmDriver) -> None:
    empty = f"contract-{os.getpid()}"
    await slurm.run("scontrol", "create", f"PartitionName={empty}")
    try:
        seen = await seen_by(SlurmEngine(slurm.cluster, (slurm.whole, slurm.pool("none", SlurmPlace(empty)))))
    finally:
        await slurm.run("scontrol", "delete", f"PartitionName={empty}")

    assert the_totals(seen, slurm.whole.name).total


async def test_a_pool_without_a_gres_takes_its_whole_partition(slurm: SlurmDriver) -> None:
    seen = await seen_by(SlurmEngine(slurm.cluster, (slurm.pool("all", SlurmPlace("gpu")),)))

    assert (
        the_totals(seen, slurm.pool("all", SlurmPlace("gpu")).name).total
        == (await slurm.counts())[slurm.whole.name, None]
    )


async def test_every_version_served_shows_the_same(
    slurm: SlurmDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Preferring each version in turn; one that is not served must lead to one that is."""
    shown: dict[str, set[Observation]] = {}
    for version in rest_versions.SUPPORTED:
        monkeypatch.setattr(rest_versions, "SUPPORTED", (version, *SERVED[slurm.instance.version]))
        engine = SlurmEngine(slurm.cluster, (slurm.whole, slurm.sliced))
        shown[version] = {await look(engine), await look(engine)}
        await engine.close()

    assert set.intersection(*shown.values()), "no look that all versions share"


async def test_no_version_in_common_is_refused_with_both_sides_named(
    slurm: SlurmDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rest_versions, "SUPPORTED", ("v0.0.7",))

    with pytest.raises(Refused) as said:
        await seen_by(slurm.reached_by(slurm.connection))

    assert said.value.code == "EngineVersionUnknown"
    assert ", ".join(SERVED[slurm.instance.version]) in said.value.message
    assert "v0.0.7" in said.value.message


async def test_a_url_that_is_not_slurmrestd_is_refused(slurm: SlurmDriver) -> None:
    with pytest.raises(Refused) as said:
        await seen_by(slurm.reached_by(replace(slurm.connection, url=f"{slurm.connection.url}/api")))

    assert said.value.code == "NotSlurmrestd"


async def test_a_token_from_a_file_is_enough(slurm: SlurmDriver, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(await slurm.run("scontrol", "token", "lifespan=60", "username=fairway") + "\n")
    assert token.read_text().startswith("SLURM_JWT=")  # kept as it is printed

    seen = await seen_by(
        slurm.reached_by(replace(slurm.connection, jwt_key_file=None, token_file=str(token)))
    )

    assert seen.nodes


async def test_an_expired_token_is_refused_with_the_command_that_makes_a_new_one(
    slurm: SlurmDriver, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text(await slurm.run("scontrol", "token", "lifespan=1", "username=fairway"))
    await asyncio.sleep(2.5)

    with pytest.raises(Refused) as said:
        await seen_by(slurm.reached_by(replace(slurm.connection, jwt_key_file=None, token_file=str(token))))

    assert said.value.code == "CredentialsRejected"
    assert "scontrol token" in said.value.hint


async def test_a_changed_key_is_taken_up_at_the_next_look(slurm: SlurmDriver, tmp_path: Path) -> None:
    key = tmp_path / "jwt.key"
    key.write_bytes(b"the key before it was changed" * 2)
    engine = slurm.reached_by(replace(slurm.connection, jwt_key_file=str(key)))
    try:
        with pytest.raises(Refused):
            await engine.observe()
        assert slurm.connection.jwt_key_file
        shutil.copy(slurm.connection.jwt_key_file, key)
        assert (await engine.observe()).nodes
    finally:
        await engine.close()


async def test_slurmctld_away_behind_a_living_slurmrestd(slurm: SlurmDriver) -> None:
    async with slurmrestd_without_slurmctld(slurm) as url:
        with pytest.raises(Unreachable) as said:
            await seen_by(slurm.reached_by(replace(slurm.connection, url=url)))

    assert said.value.code == "ControllerUnreachable"
    assert "scontrol ping" in said.value.hint


async def test_one_look_costs_one_request(slurm: SlurmDriver) -> None:
    engine = SlurmEngine(slurm.cluster, (slurm.whole, slurm.sliced))
    asked: list[str] = []

    async def note(request: object) -> None:
        asked.append(str(request.url.path))  # type: ignore[attr-defined]

    engine._rest._http.event_hooks["request"].append(note)
    await engine.observe()
    await engine.observe()
    await engine.close()

    assert asked == ["/slurm/v0.0.42/nodes"] * 2


async def seen_by(engine: SlurmEngine) -> Observation:
    try:
        return await look(engine)
    finally:
        await engine.close()


@asynccontextmanager
async def slurmrestd_without_slurmctld(slurm: SlurmDriver) -> AsyncIterator[str]:
    """A second, real slurmrestd whose configuration names a port where no slurmctld is."""
    root = Path(slurm.instance.facts()["root"])
    config = root / "etc/slurm" / f"contract-{os.getpid()}.conf"  # beside the file that it includes
    lines = (root / "etc/slurm/slurm.conf").read_text().splitlines()
    here, nowhere = unused_port(), unused_port()
    config.write_text(
        "\n".join(f"SlurmctldPort={nowhere}" if line.startswith("SlurmctldPort=") else line for line in lines)
    )
    variables = ("SLURM_JWT=daemon", f"SLURM_CONF=/etc/slurm/{config.name}")
    command = slurm.instance.command(
        "env", *variables, "slurmrestd", "-a", "rest_auth/jwt", f"127.0.0.1:{here}", user="slurmrest"
    )
    process = await asyncio.create_subprocess_exec(
        *command.argv, env=dict(command.env or {}), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        await _listening(here)
        yield f"http://127.0.0.1:{here}"
    finally:
        process.kill()
        await process.wait()
        config.unlink()


async def _listening(port: int, seconds: float = 15) -> None:
    deadline = Deadline(seconds)
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            assert not deadline.passed, f"nothing listens on {port}"
            await asyncio.sleep(0.1)
        else:
            writer.close()
            return
