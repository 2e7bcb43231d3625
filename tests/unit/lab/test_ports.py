"""Ports are free, kept, and nobody else's, whoever asks at the same time."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab import LabError, ports
from lab.instance import Instance, find


def reserved(name: str, **counts: int) -> Instance:
    instance = Instance("postgres", name, "15")
    instance.reserve(**counts)
    return instance


@contextmanager
def listening(port: int) -> Iterator[None]:
    with socket.create_server(("127.0.0.1", port)):
        yield


def test_a_row_steps_over_what_is_promised_and_what_listens() -> None:
    first = ports.choose(4, set())
    with listening(first[1]):
        row = ports.choose(3, {first[3]})
    assert len(row) == 3
    assert first[1] not in row
    assert first[3] not in row
    assert row.start > first[1]


def test_a_spare_port_is_none_that_an_instance_will_want_back() -> None:
    kept = reserved("one", rest=1, nodes=5).rows  # nothing listens: its daemons are down
    spare = [ports.spare(2) for _ in range(50)]
    assert not {port for row in spare for port in row} & {port for row in kept.values() for port in row}
    assert len({row.start for row in spare}) > 40, "two who choose at the same time"


def test_no_row_is_long_enough() -> None:
    with pytest.raises(LookupError):
        ports.choose(70_000, set())
    with pytest.raises(LabError, match="finds no ports"):
        reserved("greedy", nodes=70_000)


def test_ports_stay_below_those_of_outgoing_connections() -> None:
    first_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert ports.choose(10, set()).stop <= max(first_outgoing, ports.LOWEST + 5_000)


def test_chosen_once_and_kept() -> None:
    before = reserved("one", rest=1, nodes=5).rows
    again = find("one")
    assert again is not None
    again.reserve(rest=1, nodes=5)
    assert again.rows == before


def test_a_longer_row_is_chosen_anew_and_the_others_stay() -> None:
    instance = reserved("one", rest=1, nodes=5)
    rest, nodes = instance.rows["rest"], instance.rows["nodes"]
    instance.reserve(rest=1, nodes=9)
    assert instance.rows["rest"] == rest
    assert len(instance.rows["nodes"]) == 9
    assert instance.rows["nodes"] != nodes
    assert rest.start not in instance.rows["nodes"]


def test_ports_that_someone_took_meanwhile_are_chosen_anew() -> None:
    instance = reserved("one", rest=1)
    taken = instance.port("rest")
    with listening(taken):
        instance.reserve(rest=1)
    assert instance.port("rest") != taken


def test_instances_that_are_down_keep_their_ports() -> None:
    assert reserved("one", nodes=20).rows["nodes"].stop <= reserved("two", nodes=20).rows["nodes"].start


def test_instances_in_another_folder_count_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = set(reserved("one", nodes=20).rows["nodes"])
    monkeypatch.setenv("FAIRWAY_LAB_INSTANCES", str(tmp_path / "elsewhere"))
    there = set(reserved("one", nodes=20).rows["nodes"])
    assert not here & there


RACER = """
import json, pathlib, sys, time
from lab.instance import Instance
instance = Instance("postgres", sys.argv[1], "15")
while not pathlib.Path(sys.argv[2]).exists():
    time.sleep(0.001)
instance.reserve(rest=1, nodes=7)
print(json.dumps([port for row in instance.rows.values() for port in row]))
"""


def test_a_race_gives_everyone_ports_of_their_own(tmp_path: Path) -> None:
    go = tmp_path / "go"
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, f"racer-{number}", str(go)],
            cwd=Path(__file__).parents[3],
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(6)
    ]
    time.sleep(0.5)
    go.touch()
    everyone = [port for racer in racers for port in json.loads(racer.communicate(timeout=60)[0])]
    assert len(everyone) == 6 * 8
    assert len(set(everyone)) == len(everyone)
