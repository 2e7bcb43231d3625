"""Define the JSON of clusters, pools, nodes, tokens and errors, and the types that all of `wire` shares.

Times are UTC with a Z; an unknown value is null, never 0. Server and client use the same types, so that
they cannot disagree.
"""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, Generic, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer, WithJsonSchema

from fairway.model.access import Role
from fairway.model.apply import Lifted
from fairway.model.condition import ConditionType
from fairway.model.fleet import Capacity, EngineKind
from fairway.model.names import NAME_PATTERN
from fairway.model.observation import Health

MAX_PER_PAGE = 500
PER_PAGE = 100
USER_PATTERN = r"^[A-Za-z_][A-Za-z0-9_.@-]*$"
"""As the members of a team are written in a fleet file."""


def zulu(moment: datetime) -> str:
    """Format a time as `2026-01-31T12:00:00Z`, to the second: no reader needs more, and it sorts as text."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


Moment = Annotated[
    datetime,
    PlainSerializer(zulu, return_type=str),
    WithJsonSchema({"type": "string", "format": "date-time", "examples": ["2026-01-31T12:00:00Z"]}),
]
_FIRST, _END = datetime(1970, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)


def _in_range(moment: datetime) -> datetime:
    # Compared in the moment's own zone: near the ends of the calendar, UTC may not have it.
    if moment.tzinfo is None or not _FIRST <= moment < _END:
        raise ValueError("is not a time with a zone from 1970 to 8999")
    return moment


GivenMoment = Annotated[Moment, AfterValidator(_in_range)]
"""A time that a caller gives."""
# A price is exact: as a JSON number it would pass through somebody's float.
Price = Annotated[Decimal, PlainSerializer(str, return_type=str)]


class Wire(BaseModel):
    """Closed on the way out, open on the way in: an older client must survive a newer server's fields."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="ignore")

    def shown(self) -> dict[str, Any]:
        """Return what a row of a table in a Python session shows of it."""
        from fairway.wire.tables import record  # noqa: PLC0415 - only Python sessions need it

        return record(self)

    def _repr_html_(self) -> str:
        from fairway.wire.tables import html_fields  # noqa: PLC0415

        return html_fields(self.shown())


class RequestBody(BaseModel):
    """What a caller sends. Unknown fields are refused: a misspelt `retries` must not mean none.

    Built at once, unlike our answers: FastAPI silences a warning about a body's alias only while it makes
    the route.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")


Item = TypeVar("Item")


class Page(Wire, Generic[Item]):
    """A part of a list. Ask again with `cursor=next_cursor` until that is null."""

    items: list[Item]
    next_cursor: str | None = Field(default=None, description="null: this was the last page")


class Reason(Wire):
    """Why something is not as it should be, and what to do."""

    code: str = Field(examples=["Unreachable"])
    message: str
    hint: str


class Condition(Reason):
    """A problem of a cluster other than being unreachable: not observed, or not installed."""

    type: ConditionType
    since: Moment
    detail: str = Field(default="", description="more lines, e.g. a diff; empty: none")


class Counts(Wire):
    """GPUs, or slices of one kind. Always `total == in_use + free + unhealthy`."""

    total: int
    in_use: int
    free: int
    unhealthy: int = Field(description="nobody holds them and nobody can get them")


class SliceCounts(Counts):
    """Slices of one MIG profile."""

    slice: str = Field(examples=["1g.10gb"])


class PoolCounts(Counts):
    """GPUs, or slices of one kind, of a pool, and the nodes they are on."""

    nodes: int
    nodes_drained: int
    nodes_down: int
    waiting: int | None = Field(default=None, description="what waiting jobs request; null: not counted")


class PoolSliceCounts(PoolCounts):
    """Slices of one MIG profile of a pool, and the nodes they are on."""

    slice: str = Field(examples=["1g.10gb"])


class Seen(Wire):
    """Something observed, and how fresh that is. Facts of an unreachable cluster are its last known state."""

    name: str
    reachable: bool | None = Field(
        description="whether the cluster answered last time; null: not observed yet"
    )
    observed_at: Moment | None = Field(description="when it last answered; null: it never did")
    age_seconds: int | None = Field(description="how old the facts are")


class LiftedPolicy(Wire):
    """A policy that is no longer enforced on a cluster."""

    state: Lifted
    by: str
    since: Moment


class Cluster(Seen):
    """One engine's domain."""

    engine: EngineKind
    engine_version: str | None
    reason: Reason | None = Field(description="why it is not reachable, or not observed yet")
    since: Moment | None = Field(description="since when it is reachable, or is not")
    conditions: list[Condition] = Field(
        default_factory=list,
        description="what could not be read, and what an administrator must still install",
    )
    pools: list[str]
    gpus: Counts | None = Field(description="whole GPUs; null: not observed yet")
    slices: list[SliceCounts] | None
    gpus_in_no_pool: int | None = Field(description="part of gpus.total that no pool of the fleet claims")
    lifted: LiftedPolicy | None = Field(
        default=None, description="why the policy that was last applied is no longer enforced; null: it is"
    )


class Pool(Seen):
    """Like GPUs on one cluster under one price and capacity kind."""

    cluster: str
    gpu: str = Field(examples=["A100-80GB"])
    slice_kinds: list[str] = Field(description="MIG profiles its GPUs are cut into; empty: whole GPUs")
    capacity: Capacity
    price_per_gpu_hour: Price = Field(description="list price today, before discounts and commitments")
    currency: str
    gpus: PoolCounts | None = Field(description="whole GPUs; null: not observed yet")
    slices: list[PoolSliceCounts] | None

    def shown(self) -> dict[str, Any]:
        """Return what a table of pools shows of it."""
        gpus = self.gpus
        return {
            "pool": self.name,
            "cluster": self.cluster,
            "gpu": self.gpu,
            "slices": ", ".join(self.slice_kinds),
            "capacity": self.capacity.value,
            "gpus": gpus.total if gpus else None,
            "in_use": gpus.in_use if gpus else None,
            "free": gpus.free if gpus else None,
            "unhealthy": gpus.unhealthy if gpus else None,
            "waiting": gpus.waiting if gpus else None,
            "per_gpu_hour": f"{self.price_per_gpu_hour} {self.currency}",
        }


class Devices(Counts):
    """The GPUs, or slices of one kind, that a node gives to a pool."""

    pool: str | None = Field(description="null: no pool of the fleet claims them")
    kind: str = Field(description="the engine's own word", examples=["gpu:a100"])
    slice: str | None = Field(description="null: whole GPUs")


class Node(Seen):
    """One machine, as its engine sees it."""

    cluster: str
    health: Health
    reason: str = Field(description="the engine's words for why it is not ready; empty when it is")
    since: Moment = Field(description="when its health became what it is")
    devices: list[Devices]


class Token(Wire):
    """A bearer token, without its secret: that is shown once, when it is made."""

    name: str
    role: Role
    user: str = Field(description="the person behind it, as engines and teams know them")
    created_at: Moment
    created_by: str
    expires_at: Moment | None = Field(description="null: never")
    revoked_at: Moment | None = Field(description="null: not revoked")
    last_used_at: Moment | None = Field(description="to the minute; null: never")


class Session(Wire):
    """Somebody who is signed in to the pages."""

    id: str = Field(description="to tell sessions apart", examples=["9f86d081884c"])
    user: str
    role: Role
    token: str | None = Field(description="the token it was made with and ends with; null: single sign-on")
    issuer: str = Field(description="the identity provider, for single sign-on; empty: a token")
    created_at: Moment
    expires_at: Moment


class EndedSessions(Wire):
    """How many sessions of a user were ended."""

    user: str
    ended: int
    tokens: int = Field(default=0, description="tokens of `fairway login` that were revoked")


class Loop(Wire):
    """A loop of Fairway's servers on one cluster: which server runs it, and how it is doing."""

    loop: str = Field(examples=["observe"])
    cluster: str | None = Field(description="null: one for the whole fleet")
    server: str | None = Field(description="the server that runs it; null: none does")
    is_here: bool = Field(description="whether the server that answers runs it")
    lease_expires_at: Moment = Field(description="when its lease expires, or expired")
    age_seconds: float | None = Field(
        description="time since its last success; null, as what follows, if another server runs it"
    )
    mean_seconds: float | None = Field(description="mean duration of a round")
    errors: int | None = Field(description="rounds that failed since the server started")


class NewToken(RequestBody):
    """What to make. Unknown fields are refused: a misspelt `expires_in_seconds` must not mean for ever."""

    name: str = Field(pattern=NAME_PATTERN, examples=["grafana"])
    role: Role
    user: str | None = Field(
        default=None,
        min_length=1,
        max_length=64,
        pattern=USER_PATTERN,
        description="the person behind it, as engines and teams know them; null: called as the token is",
    )
    expires_in_seconds: int | None = Field(
        default=None, ge=60, le=10 * 366 * 86400, description="null: never"
    )


class MadeToken(Token):
    """The only answer that ever holds the secret."""

    secret: str = Field(examples=["fw_…"], repr=False)


class Whoami(Wire):
    """Who the server takes you for."""

    name: str
    role: Role
    user: str = Field(description="whose jobs are yours")
    expires_at: Moment | None
    server_version: str
    fleet: str | None = Field(description="name of the fleet; null: none was given to this server yet")


class Spot(Wire):
    """A place in a file that was sent, and what stands there."""

    line: int
    column: int
    path: str
    found: str


class FileSpot(Spot):
    """Where in a file a fault is, and all that `fairway check` says of it."""

    source: str
    severity: str = Field(examples=["error"])
    code: str = Field(examples=["UnknownKey"])
    expected: str
    hint: str
    related: list[Spot]


class Fault(Wire):
    """One thing wrong with a request."""

    where: str = Field(examples=["query.limit"])
    message: str
    file: FileSpot | None = Field(default=None, description="of a fault in a file that was sent")


class Problem(Wire):
    """Any error, as RFC 9457 wants it, with a code for programs and a hint for people."""

    type: str = Field(examples=["urn:fairway:problem:TokenExpired"])
    title: str
    status: int
    detail: str
    code: str = Field(examples=["TokenExpired"])
    hint: str
    request_id: str = Field(description="the same id stands in the server's log")
    faults: list[Fault] = Field(
        default_factory=list, description="each thing wrong with the request, if it was that"
    )


class Status(Wire):
    """All is well; anything else is a problem."""

    status: str = Field(examples=["ok"])
