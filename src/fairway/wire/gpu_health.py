"""Define the JSON of what goes wrong with GPUs."""

from __future__ import annotations

from pydantic import Field

from fairway.model.gpu_health import EventClass
from fairway.wire.fleet import Moment, RequestBody, Wire


class GpuEvent(Wire):
    """Something that went wrong with a GPU; what lasts is one event."""

    cluster: str
    node: str
    gpu: str = Field(description="its index, as the driver counts")
    uuid: str = Field(description="empty: not known")
    serial: str = Field(description="empty: the exporter does not tell it")
    model: str
    code: str = Field(examples=["xid-79", "ecc", "hot", "gone"])
    class_: EventClass = Field(alias="class", description="what it says about the GPU")
    text: str = Field(description="what happened, for people")
    at: Moment = Field(description="when it began, or was first seen")
    last_seen: Moment
    job: str | None = Field(description="who held the GPU when it began; null: nobody, or nobody knows")
    attempt: int | None


class FailingGpu(Wire):
    """A GPU whose hardware failed, with its history wherever it was."""

    uuid: str
    serial: str
    model: str
    cluster: str = Field(description="where it was at its last event")
    node: str
    gpu: str
    text: str = Field(description="its last event")
    events: int
    weeks: int = Field(description="in how many weeks it failed")
    jobs: int = Field(description="how many jobs held it when it failed")
    first_at: Moment
    last_seen: Moment


class Cordon(Wire):
    """A node that Fairway closed to new jobs."""

    cluster: str
    node: str
    at: Moment
    reason: str
    done: bool = Field(description="whether the engine has done it")
    lift_asked_by: str | None = Field(description="who asked to open it again; null: nobody")


class UncordonRequest(RequestBody):
    """Open a node again that Fairway closed."""

    cluster: str = Field(min_length=1, max_length=253)
    node: str = Field(min_length=1, max_length=253)
