"""The few fields that Fairway reads of slurmrestd's replies; msgspec skips all others while decoding.

`gc=False`: replies are trees without cycles, the garbage collector need not walk them.
"""

from __future__ import annotations

import msgspec


class Stamp(msgspec.Struct, frozen=True, gc=False):
    """A time that may be unset, in seconds since 1970."""

    set: bool = False
    number: float = 0


class WireNode(msgspec.Struct, frozen=True, gc=False):
    name: str
    state: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    gres: str = ""
    gres_used: str = ""
    reason: str = ""
    reason_set_by_user: str = ""
    reason_changed_at: Stamp = Stamp()
    reservation: str = ""


class WireTres(msgspec.Struct, frozen=True, gc=False):
    configured: str = ""


class WirePartition(msgspec.Struct, frozen=True, gc=False):
    name: str
    tres: WireTres = WireTres()


class Fault(msgspec.Struct, frozen=True, gc=False):
    error_number: int = 0
    error: str | None = None
    description: str | None = None


class Slurm(msgspec.Struct, frozen=True, gc=False):
    release: str = ""


class Meta(msgspec.Struct, frozen=True, gc=False):
    slurm: Slurm = Slurm()


class Reply(msgspec.Struct, frozen=True, gc=False):
    """What every reply carries, whatever else it does."""

    errors: tuple[Fault, ...] = ()
    meta: Meta = Meta()


class NodesReply(Reply, frozen=True, gc=False):
    nodes: tuple[WireNode, ...] = ()


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """Why one job of a request was not signalled."""

    code: int = 0
    message: str | None = None


class Signalled(msgspec.Struct, frozen=True, gc=False):
    error: Verdict = Verdict()


class WireJob(msgspec.Struct, frozen=True, gc=False):
    user_id: int = -1
    user_name: str = ""
    name: str = ""
    job_state: tuple[str, ...] = ()
    restart_cnt: int = 0


class JobReply(Reply, frozen=True, gc=False):
    """To any request about jobs; what a reply does not have stays empty."""

    job_id: int = 0
    job_submit_user_msg: str | None = None
    status: tuple[Signalled, ...] = ()
    jobs: tuple[WireJob, ...] = ()


class PartitionsReply(Reply, frozen=True, gc=False):
    partitions: tuple[WirePartition, ...] = ()


class OpenApi(msgspec.Struct, frozen=True, gc=False):
    """The API's own description; only the paths' names are looked at."""

    paths: dict[str, msgspec.Raw]
