"""Traces are read: every format by its heading, plain and compressed; errors name line and column."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.files.traces.formats import InvalidTrace, TraceFormat
from fairway.files.traces.history import write_trace
from fairway.files.traces.read import read_trace
from fairway.files.traces.table import shape
from fairway.model.names import PriorityName, SliceName, TeamName, UserName, is_name, is_team_name
from fairway.model.trace import TraceJob
from tests.shared_data import shared_data

SWF = """\
; Version: 2.2
; UnixStartTime: 1000000
; MaxProcs: 64
  2   60   5  100  16 -1 -1 16  3600 -1 1  7  2 3 1  1 -1 -1
  1    0  -1    0   1 -1 -1  1    -1 -1 0 -1 -1 -1 -1 -1 -1 -1
  3   90  -1   -1  -1 -1 -1  4    60 -1 5  7  2 3 1  1 -1 -1

  4  120   0   50  -1 -1 -1 12    60 -1 0  7  2 3 1  1 -1 -1
"""
PHILLY = """\
timestamp,duration,num_gpus,gpu_time,cluster
2017-10-09 07:01:55,66.0,1,66.0,11cb48
2017-10-09 06:13:03,2951.0,16,2951.0,6214e9
"""
HELIOS = """\
job_id,user,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue,vc
1,uA12,16,64,2,COMPLETED,2020-05-01 00:00:10,2020-05-01 00:00:20,2020-05-01 00:10:20,600,10,vc6YE
2,uA12,1,4,1,FAILED,2020-05-01 00:00:05,2020-05-01 00:00:20,2020-05-01 00:00:50,30,15,vcJkd
3,u0b,0,4,1,COMPLETED,2020-05-01 00:00:05,2020-05-01 00:00:20,2020-05-01 00:00:50,30,15,vcJkd
4,u0b,8,4,1,CANCELLED,2020-05-01 00:00:05,None,2020-05-01 00:00:50,0,45,vcJkd
"""
OPENB = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
pod-0,12000,16384,1,1000,,LS,Running,0,100,10
pod-1,6000,12288,1,460,V100M16,BE,Failed,5,50,5
pod-2,6000,12288,0,0,,LS,Running,5,50,5
pod-3,6000,12288,8,1000,V100M16|V100M32,LS,Pending,6,,
pod-4,6000,12288,8,1000,V100M16|V100M32,LS,Running,6,20,7
"""
SACCT = """\
JobID|User|Account|Partition|JobName|Submit|Start|End|State|Timelimit|AllocTRES
1|alice|ML_Team|gpu|train|2026-11-01T00:00:00|2026-11-01T00:01:00|2026-11-01T01:01:00|COMPLETED|1-00:00:00|cpu=8,gres/gpu:a100=16,gres/gpu=16,node=2
1.batch||ML_Team|||2026-11-01T00:00:00|2026-11-01T00:01:00|2026-11-01T01:01:00|COMPLETED||cpu=8,gres/gpu=16,node=2
2|bob|ML_Team|gpu|train|2026-11-01T00:00:00|Unknown|Unknown|PENDING|UNLIMITED|
3|bob|ML_Team|gpu|train|2026-11-01T00:00:00|2026-11-01T00:01:00|2026-11-01T01:01:00|FAILED|UNLIMITED|gres/gpu=1,node=1
"""


def written(folder: Path, text: str, name: str = "trace.txt") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_swf(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, SWF))
    jobs = list(trace)
    assert trace.format is TraceFormat.SWF
    assert trace.skipped == {"never ran": 1}
    assert jobs[0] == TraceJob(at=1_000_000, seconds=1, gpus=1, failed=True)
    assert jobs[1] == TraceJob(
        at=1_000_060,
        seconds=100,
        gpus=8,
        nodes=2,
        user=UserName("user-7"),
        team=TeamName("team-2"),
        pool="pool-1",
        name="app-3",
        limit_seconds=3600,
        started=1_000_065,
    )
    assert (jobs[2].gpus, jobs[2].nodes, jobs[2].failed) == (6, 2, True), "requested, as allocated is unknown"


def test_swf_without_comments(tmp_path: Path) -> None:
    jobs = [line for line in SWF.splitlines(keepends=True) if not line.startswith(";")]
    assert [job.at for job in read_trace(written(tmp_path, "".join(jobs)))] == [0, 60, 120]


def test_philly(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, PHILLY))
    assert trace.format is TraceFormat.PHILLY
    assert list(trace) == [
        TraceJob(at=1507529583, seconds=2951, gpus=8, nodes=2, team=TeamName("team-6214e9")),
        TraceJob(at=1507532515, seconds=66, gpus=1, team=TeamName("team-11cb48")),
    ]


def test_helios(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, HELIOS))
    first, second = trace
    assert trace.format is TraceFormat.HELIOS
    assert trace.skipped == {"without GPUs": 1, "never ran": 1}
    assert first.failed
    assert second == TraceJob(
        at=1588291210,
        seconds=600,
        gpus=8,
        nodes=2,
        user=UserName("ua12"),
        team=TeamName("vc6ye"),
        started=1588291220,
    )


def test_openb(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, OPENB))
    whole, part, several = trace
    assert trace.format is TraceFormat.OPENB
    assert trace.skipped == {"without GPUs": 1, "never ran": 1}
    assert whole == TraceJob(at=0, seconds=90, name="pod-0", started=10)
    assert (part.slice, part.gpus, part.pool) == (SliceName("shared-2"), 1, "v100m16")
    assert (part.tolerates_loss, part.failed) == (True, True)
    assert (several.gpus, several.pool) == (8, "")


def test_sacct(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, SACCT))
    first, second = trace
    assert trace.format is TraceFormat.SACCT
    assert (first.gpus, first.nodes, first.limit_seconds, first.team) == (8, 2, 86_400, "ml-team")
    assert (second.failed, second.limit_seconds, second.user, second.name) == (True, None, "bob", "train")
    assert trace.skipped == {"never ran": 1, "steps of jobs": 1}


def test_public_philly() -> None:
    trace = read_trace(shared_data("philly/philly.csv.zst"))
    assert len(trace) == 82_247
    hours = sum(job.seconds * job.devices for job in trace) / 3600
    assert hours == pytest.approx(978_078, rel=1e-3)
    assert len(trace.distinct("team")) == 15
    assert all(is_team_name(team) for team in trace.distinct("team"))


def test_public_supercloud() -> None:
    path = shared_data("mit-supercloud/slurm-log-queueing-clean.csv.zst")
    trace = read_trace(path)
    assert (trace.format, len(trace), trace.skipped) == (TraceFormat.SLURM, 2401, {"without GPUs": 7227})
    assert sum(job.seconds * job.devices for job in trace) / 3600 == pytest.approx(43_847, rel=0.01)
    assert all(is_name(user) for user in trace.distinct("user"))
    everything = read_trace(path, keep_cpu_jobs=True)
    assert (len(everything), len(everything.distinct("user"))) == (9628, 322)


def test_public_openb() -> None:
    trace = read_trace(shared_data("openb/openb_pod_list_default.csv"))
    assert len(trace) + trace.skipped["never ran"] == 7064
    untimed = read_trace(shared_data("openb/pods/openb_pod_list_multigpu20.csv.zst"))
    assert untimed.span == (0, len(untimed) - 1)


def test_public_traces_without_jobs_of_any_known_format_are_refused() -> None:
    with pytest.raises(InvalidTrace, match="no trace that Fairway knows"):
        read_trace(shared_data("helios/Earth_gpu_number.csv"))


names = st.from_regex(r"[a-z]([a-z0-9-]{0,10}[a-z0-9])?", fullmatch=True)
seconds = st.floats(0, 1e10)
trace_jobs = st.builds(
    TraceJob,
    at=seconds,
    seconds=seconds,
    gpus=st.integers(1, 16),
    nodes=st.integers(1, 16),
    user=names.map(UserName),
    team=names.map(TeamName) | st.just(TeamName("")),
    pool=names | st.just(""),
    slice=st.none() | st.just(SliceName("1g.10gb")),
    name=st.text(st.characters(exclude_categories=["C"]), max_size=20).map(str.strip),
    limit_seconds=st.none() | seconds,
    priority=st.none() | names.map(PriorityName),
    failed=st.booleans(),
    started=st.none() | seconds,
    preemptions=st.integers(0, 9),
    tolerates_loss=st.booleans(),
    together=st.booleans(),
)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_what_is_written_is_read_again(suffix: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("own") / f"trace{suffix}"

    @given(st.lists(trace_jobs, max_size=8))
    def round_trip(jobs: list[TraceJob]) -> None:
        assert write_trace(jobs, path) == len(jobs)
        assert list(read_trace(path, TraceFormat.FAIRWAY)) == sorted(jobs, key=lambda job: job.at)

    round_trip()


def test_own_trace_with_the_required_columns_only(tmp_path: Path) -> None:
    assert list(read_trace(written(tmp_path, "at,seconds,user\n5,9,alice\n1,2,\n"))) == [
        TraceJob(at=1, seconds=2),
        TraceJob(at=5, seconds=9, user=UserName("alice")),
    ]


def test_compressed_files_are_read(tmp_path: Path) -> None:
    plain = list(read_trace(written(tmp_path, PHILLY)))
    packed = tmp_path / "trace.csv.gz"
    packed.write_bytes(gzip.compress(PHILLY.encode()))
    assert list(read_trace(packed)) == plain
    swf = tmp_path / "trace.swf.gz"
    swf.write_bytes(gzip.compress(SWF.encode()))
    assert len(read_trace(swf)) == 3


WRONG = {
    "a number": (PHILLY.replace("2951.0,16", "2951.0,many"), ":3: column num_gpus is many, not a number"),
    "a time": (
        PHILLY.replace("2017-10-09 06", "9.10.2017 06"),
        ":3: column timestamp is 9.10.2017 06:13:03",
    ),
    "negative": (PHILLY.replace("66.0,1,", "-66.0,1,"), ":2: column duration is -66.0, not a number of at"),
    "empty": (PHILLY.replace("66.0,1,", ",1,"), ":2: column duration is empty"),
    "not a number": (PHILLY.replace("66.0,1,", "inf,1,"), ":2: column duration is inf"),
    "cells": (PHILLY.replace("6214e9", "6214e9,more"), ":3: 6 cells, but the heading has 5"),
    "column": (HELIOS.replace("node_num", "nodes"), ":1: column node_num is missing"),
    "fields": (SWF.replace("16  3600", "16"), ":4: 17 fields instead of 18"),
    "swf value": (SWF.replace("16  3600", "16  x"), ":4: column limit is x"),
    "own column": ("at,seconds,gpu\n1,2,3\n", ":1: unknown column gpu"),
    "own value": ("at,seconds,failed\n1,2,maybe\n", ":2: column failed is maybe, not true or false"),
    "own gpus": ("at,seconds,gpus\n1,2,1\n1,2,0\n", ":3: column gpus is 0"),
    "other": ("a,b\n1,2\n", " is no trace that Fairway knows"),
    "nothing": ("", " is empty"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named(case: str, tmp_path: Path) -> None:
    text, message = WRONG[case]
    path = written(tmp_path, text)
    with pytest.raises(InvalidTrace) as caught:
        read_trace(path)
    assert f"{path}{message}" in caught.value.message
    assert caught.value.hint


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidTrace, match="No such file"):
        read_trace(tmp_path / "none.csv")
    with pytest.raises(InvalidTrace, match="cannot read"):
        read_trace(tmp_path)
    for name, content in {"a.zst": b"\x28\xb5\x2f\xfdgarbage", "b.parquet": b"PAR1garbage"}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InvalidTrace, match="cannot read"):
            read_trace(tmp_path / name)
    write_trace([], tmp_path / "c.parquet")
    with pytest.raises(InvalidTrace, match="is a Parquet file"):
        read_trace(tmp_path / "c.parquet", TraceFormat.SWF)


def test_names_that_would_collide_stay_apart(tmp_path: Path) -> None:
    text = PHILLY.replace("11cb48", "ML_Team").replace("6214e9", "ml-team")
    assert read_trace(written(tmp_path, text)).distinct("team") == ["ml-team", "ml-team-2"]


@given(st.integers(1, 600), st.integers(1, 16))
def test_shapes_hold_all_gpus_and_hardly_more(devices: int, per_node: int) -> None:
    gpus, nodes = shape(pl.col("n"), per_node)
    width, count = pl.DataFrame({"n": [devices]}).select(gpus.alias("g"), nodes.alias("c")).row(0)
    assert 1 <= width <= per_node
    assert devices <= width * count < devices + per_node


def test_part_of_a_trace(tmp_path: Path) -> None:
    jobs = [TraceJob(at=float(n), seconds=1) for n in range(10)]
    write_trace([replace(job, user=UserName("alice")) for job in jobs], tmp_path / "t.parquet")
    trace = read_trace(tmp_path / "t.parquet")
    assert [job.at for job in trace.between(3, 5)] == [3, 4]
    assert [job.at for job in trace.first(2)] == [0, 1]
    assert trace.span == (0, 9)
    assert trace.between(20, 30).span == (0, 0)
