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


class ReplyError(msgspec.Struct, frozen=True, gc=False):
    error_number: int = 0
    error: str | None = None
    description: str | None = None
    source: str | None = None
    """The function of slurmrestd that failed."""


class SlurmRelease(msgspec.Struct, frozen=True, gc=False):
    release: str = ""


class ReplyMeta(msgspec.Struct, frozen=True, gc=False):
    slurm: SlurmRelease = SlurmRelease()


class Reply(msgspec.Struct, frozen=True, gc=False):
    """The fields that every reply has."""

    errors: tuple[ReplyError, ...] = ()
    meta: ReplyMeta = ReplyMeta()


class NodesReply(Reply, frozen=True, gc=False):
    nodes: tuple[WireNode, ...] = ()


class SignalError(msgspec.Struct, frozen=True, gc=False):
    """Why one job of a request was not signalled."""

    code: int = 0
    message: str | None = None


class SignalResult(msgspec.Struct, frozen=True, gc=False):
    error: SignalError = SignalError()


class WireJob(msgspec.Struct, frozen=True, gc=False):
    user_id: int = -1
    user_name: str = ""
    name: str = ""
    job_state: tuple[str, ...] = ()
    restart_cnt: int = 0


class JobReply(Reply, frozen=True, gc=False):
    """The reply to any request about jobs; fields that a reply does not have stay empty."""

    job_id: int = 0
    job_submit_user_msg: str | None = None
    status: tuple[SignalResult, ...] = ()
    jobs: tuple[WireJob, ...] = ()


class PartitionsReply(Reply, frozen=True, gc=False):
    partitions: tuple[WirePartition, ...] = ()


class OpenApi(msgspec.Struct, frozen=True, gc=False):
    """The API's OpenAPI document; only the names of paths are read."""

    paths: dict[str, msgspec.Raw]
