"""Convert the columns of public traces and of Slurm's accounting to the fields of TraceJob."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import polars as pl

from fairway.files.traces.table import TraceTable, shape

Columns = Mapping[str, pl.Expr]

NO_GPUS: Final = "without GPUs"
NEVER_RAN: Final = "never ran"
_LEAST_SECONDS: Final = 1.0
"""Traces count whole seconds: what ran for 0 of them ran for less than one."""

_SLURM_ERRORS: Final = (5, 7, 11)
"""FAILED, NODE_FAIL and OUT_OF_MEMORY in slurmdbd's table; 6 is TIMEOUT, which the limit tells."""
_SACCT_ERRORS: Final = r"^(FAILED|NODE_FAIL|OUT_OF_MEMORY|BOOT_FAIL)"
_UNLIMITED: Final = 2**32 - 3
"""Slurm stores INFINITE as 2^32-1 and NO_VAL as 2^32-2."""
_GPU_TRES: Final = r"\b(?:1001|1002)=(\d+)"
"""TRES ids of GPUs in slurmdbd's table: the first ids a site defines, here gres/gpu and its type."""
_NODES_TRES: Final = r"(?:^|,)4=(\d+)"


def _ran(seconds: pl.Expr) -> pl.Expr:
    return pl.max_horizontal(seconds, pl.lit(_LEAST_SECONDS))


def philly(table: TraceTable, gpus_per_node: int) -> Columns:
    """Return the jobs of Philly: submit time, duration, GPUs and virtual cluster are known."""
    table.need("timestamp", "duration", "num_gpus")
    table.times("timestamp")
    table.numbers("duration", "num_gpus", least=0)
    table.required("timestamp", "duration", "num_gpus")
    table.skip(pl.col("num_gpus") < 1, NO_GPUS)
    gpus, nodes = shape(pl.col("num_gpus"), gpus_per_node)
    team = table.team_names("cluster") if table.has("cluster") else pl.lit("")
    return {
        "at": pl.col("timestamp"),
        "seconds": _ran(pl.col("duration")),
        "gpus": gpus,
        "nodes": nodes,
        "team": team,
    }


def helios(table: TraceTable, gpus_per_node: int) -> Columns:
    """Return the jobs of Helios; those that never started are left out."""
    table.need("user", "gpu_num", "node_num", "state", "submit_time", "start_time", "duration", "vc")
    table.times("submit_time", "start_time")
    table.numbers("gpu_num", "node_num", "duration", least=0)
    table.required("submit_time", "gpu_num", "node_num", "duration")
    table.skip(pl.col("gpu_num") < 1, NO_GPUS)
    table.skip(pl.col("start_time").is_null(), NEVER_RAN)
    even = (pl.col("node_num") >= 1) & (pl.col("gpu_num") % pl.col("node_num") == 0)
    gpus, nodes = shape(pl.col("gpu_num"), gpus_per_node)
    return {
        "at": pl.col("submit_time"),
        "seconds": _ran(pl.col("duration")),
        "gpus": pl.when(even).then(pl.col("gpu_num") / pl.col("node_num")).otherwise(gpus),
        "nodes": pl.when(even).then(pl.col("node_num")).otherwise(nodes),
        "user": table.names("user", "user"),
        "team": table.team_names("vc"),
        "failed": pl.col("state").str.to_uppercase().is_in(["FAILED", "NODE_FAIL"]),
        "started": pl.col("start_time"),
    }


def openb(table: TraceTable, gpus_per_node: int) -> Columns:
    """Return the pods of openb. A part of a GPU becomes a slice: 460 of 1,000 becomes `shared-2`, half a GPU.

    The variants without times become jobs that are submitted one second apart and run for an hour.
    """
    table.need("name", "num_gpu", "gpu_milli")
    table.numbers("num_gpu", "gpu_milli", least=0)
    table.required("num_gpu", "gpu_milli")
    timed = table.has("creation_time")
    if timed:
        table.need("deletion_time", "scheduled_time")
        table.numbers("creation_time", "deletion_time", "scheduled_time", least=0)
        table.required("creation_time")
    table.skip(pl.col("num_gpu") < 1, NO_GPUS)
    if timed:
        table.skip(pl.col("scheduled_time").is_null() | pl.col("deletion_time").is_null(), NEVER_RAN)
    part = (pl.col("num_gpu") == 1) & (pl.col("gpu_milli") > 0) & (pl.col("gpu_milli") <= 500)
    replicas = (1000 / pl.col("gpu_milli")).floor().cast(pl.Int32)
    gpus, nodes = shape(pl.col("num_gpu"), gpus_per_node)
    spec = pl.col("gpu_spec").fill_null("") if table.has("gpu_spec") else pl.lit("")
    known: dict[str, pl.Expr] = {
        "at": pl.col("creation_time") if timed else pl.int_range(pl.len()),
        "seconds": _ran(pl.col("deletion_time") - pl.col("scheduled_time")) if timed else pl.lit(3600.0),
        "gpus": gpus,
        "nodes": nodes,
        "slice": pl.when(part).then(pl.concat_str(pl.lit("shared-"), replicas)),
        "name": pl.col("name").fill_null(""),
        # Of several models that would do, none is the pool.
        "pool": pl.when(spec.str.contains("|", literal=True))
        .then(pl.lit(""))
        .otherwise(spec.str.to_lowercase()),
    }
    if timed:
        known["started"] = pl.col("scheduled_time")
        known["failed"] = pl.col("pod_phase").fill_null("") == "Failed"
        known["tolerates_loss"] = pl.col("qos").fill_null("") == "BE"
    return known


def slurm(table: TraceTable, gpus_per_node: int, *, keep_cpu_jobs: bool) -> Columns:
    """Return the jobs of slurmdbd's table: users, limits, partitions, states and starts are known.

    A job without GPUs is left out, or with `keep_cpu_jobs` counts as one with a GPU on each node.
    """
    table.need("id_user", "time_submit", "time_start", "time_end", "tres_alloc", "timelimit", "state")
    table.numbers("time_submit", "time_start", "time_end", "timelimit", "state", least=0)
    table.required("time_submit", "time_start", "time_end")
    table.skip((pl.col("time_start") == 0) | (pl.col("time_end") < pl.col("time_start")), NEVER_RAN)
    tres = pl.col("tres_alloc").fill_null("")
    devices = (
        tres.str.extract_all(_GPU_TRES)
        .list.eval(pl.element().str.extract(r"=(\d+)").cast(pl.Float64, strict=False))
        .list.max()
        .fill_null(0.0)
    )
    if not keep_cpu_jobs:
        table.skip(devices < 1, NO_GPUS)
    across = tres.str.extract(_NODES_TRES).cast(pl.Float64, strict=False).fill_null(1.0).clip(1.0)
    limit = pl.col("timelimit")
    known: dict[str, pl.Expr] = {
        "at": pl.col("time_submit"),
        "seconds": _ran(pl.col("time_end") - pl.col("time_start")),
        "gpus": pl.max_horizontal((devices / across).ceil(), pl.lit(1.0)),
        "nodes": across,
        "user": table.names("id_user", "user"),
        "limit_seconds": pl.when((limit > 0) & (limit < _UNLIMITED)).then(limit * 60),
        "failed": pl.col("state").cast(pl.Int64).is_in(_SLURM_ERRORS),
        "started": pl.col("time_start"),
    }
    if table.has("partition"):
        known["pool"] = table.names("partition", "pool")
    if table.has("account"):
        known["team"] = table.team_names("account")
    if table.has("job_name"):
        known["name"] = pl.col("job_name").fill_null("")
    return known


def sacct(table: TraceTable, gpus_per_node: int, *, keep_cpu_jobs: bool) -> Columns:
    """Return the jobs of `sacct --parsable2 --allocations`; times are read as UTC: set TZ=UTC."""
    table.rows = table.rows.rename({c: c.lower() for c in table.rows.columns})
    table.need("submit", "start", "end", "alloctres", "state", "user")
    table.times("submit", "start", "end")
    table.required("submit")
    table.skip(pl.col("start").is_null() | pl.col("end").is_null(), NEVER_RAN)
    if table.has("jobid"):
        table.skip(pl.col("jobid").str.contains(".", literal=True), "steps of jobs")
    tres = pl.col("alloctres").fill_null("")
    devices = tres.str.extract(r"gres/gpu=(\d+)").cast(pl.Float64, strict=False).fill_null(0.0)
    if not keep_cpu_jobs:
        table.skip(devices < 1, NO_GPUS)
    across = tres.str.extract(r"\bnode=(\d+)").cast(pl.Float64, strict=False).fill_null(1.0).clip(1.0)
    known: dict[str, pl.Expr] = {
        "at": pl.col("submit"),
        "seconds": _ran(pl.col("end") - pl.col("start")),
        "gpus": pl.max_horizontal((devices / across).ceil(), pl.lit(1.0)),
        "nodes": across,
        "user": table.names("user", "user"),
        "failed": pl.col("state").fill_null("").str.contains(_SACCT_ERRORS),
        "started": pl.col("start"),
    }
    if table.has("account"):
        known["team"] = table.team_names("account")
    if table.has("partition"):
        known["pool"] = table.names("partition", "pool")
    if table.has("jobname"):
        known["name"] = pl.col("jobname").fill_null("")
    if table.has("timelimit"):
        known["limit_seconds"] = _sacct_limit(pl.col("timelimit"))
    return known


def _sacct_limit(text: pl.Expr) -> pl.Expr:
    """Return seconds of `[D-]HH:MM:SS`; null for anything else, such as UNLIMITED."""
    parts = text.str.extract_groups(r"^(?:(\d+)-)?(\d+):(\d+):(\d+)$").struct
    days, hours, minutes, seconds = (parts.field(str(n)).cast(pl.Float64, strict=False) for n in range(1, 5))
    return days.fill_null(0.0) * 86_400 + hours * 3600 + minutes * 60 + seconds
