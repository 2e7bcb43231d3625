"""Define the JSON that Alertmanager sends to a webhook, as far as Fairway reads it, and the answer."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field

from fairway.wire.fleet import GivenMoment, RequestBody, Wire

MAX_ALERTS: Final = 1000
MAX_ALERTS_BYTES: Final = 2 * 1024 * 1024

_Name = Annotated[str, Field(min_length=1, max_length=200)]
_Text = Annotated[str, Field(max_length=4000)]
_Labels = Annotated[dict[_Name, _Text], Field(max_length=100)]


class Alert(RequestBody):
    """One alert."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    status: Literal["firing", "resolved"]
    labels: _Labels
    annotations: _Labels = Field(default_factory=dict)
    starts_at: GivenMoment = Field(alias="startsAt")
    fingerprint: str = Field(pattern=r"^[0-9a-f]{1,32}$")


class AlertGroup(RequestBody):
    """What Alertmanager sends: the alerts of one group. Fields that are not listed here are not read."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    alerts: list[Alert] = Field(max_length=MAX_ALERTS)


class AlertsReceived(Wire):
    """What became of them."""

    new: int = Field(description="notices that were not known yet; each is delivered once")
