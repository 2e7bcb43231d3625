"""Define the conditions of a cluster: what Fairway cannot do there, or an administrator has yet to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from fairway.model.errors import FairwayError


class ConditionType(StrEnum):
    """What is wrong with a cluster beside not being reachable.

    Named as the conditions of Kubernetes' nodes are: to have one is the problem.
    """

    DRIFT_NOT_CHECKED = "DriftNotChecked"
    """The cluster could not be compared with what was applied to it."""
    JOBS_NOT_FOLLOWED = "JobsNotFollowed"
    """The jobs of the cluster could not be read: those shown are as they were last seen."""
    INSTALL_PENDING = "InstallPending"
    """An administrator has yet to install lines of configuration that the applied policy needs."""
    ACCOUNTING_DETACHED = "AccountingDetached"
    """What the accounting database stores does not reach the scheduler."""
    QUEUES_DOWN = "QueuesDown"
    """The queue controller does not answer: jobs can be neither created nor started."""
    GPUS_NOT_MEASURED = "GpusNotMeasured"
    """The metrics of the cluster's GPUs cannot be read, or lack something."""
    PRICE_FEED_STOPPED = "PriceFeedStopped"
    """Spot prices of a pool came regularly, and come no more."""
    USAGE_ABOVE_CAPACITY = "UsageAboveCapacity"
    """Jobs were metered for more devices of a pool than it had."""
    TOO_MANY_LABEL_VALUES = "TooManyLabelValues"
    """Jobs had so many new projects, or values of a label, that further ones count as `(other)`."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition of a cluster, in the form of an error: code, message and hint."""

    type: ConditionType
    code: str
    message: str
    hint: str
    detail: str = ""
    """More lines to show on demand, e.g. a diff; empty if there are none."""


def error_condition(type_: ConditionType, error: FairwayError) -> Condition:
    """Return the condition of a cluster on which an error was raised."""
    return Condition(type_, error.code, error.message, error.hint)
