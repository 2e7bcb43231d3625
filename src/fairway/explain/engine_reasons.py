"""Map what Slurm, Kueue and kube-scheduler report of a waiting job to codes of `explain.reasons`. Pure.

An engine adapter maps a text once, where it reads its cluster, and passes the code on: nothing else parses an
engine's texts. The virtual engine is not here: it sets the code together with each of its texts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fairway.explain.reasons import REASONS, WaitReason


@dataclass(frozen=True, slots=True)
class EngineReason:
    """A text of an engine that identifies a WaitReason."""

    shown: str
    """The text as listed in the reference."""
    code: str

    @property
    def reason(self) -> WaitReason:
        return REASONS[self.code]


_SLURM: Final = (
    EngineReason("Priority", "NotItsTurn"),
    EngineReason("Resources", "NotEnoughFree"),
    EngineReason("AssocGrpGRES", "TeamAtCeiling"),
    EngineReason("QOSGrpGRES", "GuaranteeInUse"),
    EngineReason("QOSMaxGRESPerUser", "UserLimit"),
    EngineReason("AssocGrpJobsLimit", "TeamHeld"),
    EngineReason("AssocMaxJobsLimit", "TeamHeld"),
    EngineReason("QOSMaxJobsPerAccountLimit", "NotAdmitted"),
    EngineReason("MaxJobsPerAccount", "NotAdmitted"),
    EngineReason("Dependency", "AfterAnother"),
    EngineReason("BeginTime", "NotYetTime"),
    EngineReason("JobHeldUser", "Held"),
    EngineReason("JobHeldAdmin", "HeldByAdmin"),
    EngineReason("ReqNodeNotAvail", "NodesUnavailable"),
    EngineReason("PartitionTimeLimit", "TimeAbovePartition"),
    EngineReason("InvalidQOS", "QosGone"),
)
# Kueue gives every one of these the reason Pending or Inadmissible: only its message tells them apart.
_KUEUE: Final = {
    r"insufficient (unused )?quota": EngineReason("insufficient unused quota …", "QuotaInUse"),
    r"borrowing limit": EngineReason("borrowing limit … exceeded", "TeamAtCeiling"),
    r"(Cluster|Local)Queue .*(inactive|stopped)": EngineReason("… is inactive, … is stopped", "TeamHeld"),
    r"[Tt]opology .*fit": EngineReason("topology … fit", "NoRackFits"),
}
_POD: Final = EngineReason("Unschedulable: 0/6 nodes are available: …", "NotEnoughFree")

ENGINE_REASONS: Final[Mapping[str, Sequence[EngineReason]]] = {
    "Slurm": _SLURM,
    "Kubernetes and Kueue": (*_KUEUE.values(), _POD, EngineReason("suspended", "Held")),
}
_SLURM_CODES: Final = {reason.shown: reason.code for reason in _SLURM}
_FIRST_WORD: Final = re.compile(r"\(?(\w+)")


def slurm_code(reason: str) -> str:
    """Return the code of a Reason that squeue prints; empty if it has none.

    Some carry more: `ReqNodeNotAvail, UnavailableNodes:gpu001`.
    """
    first = _FIRST_WORD.match(reason)
    return _SLURM_CODES.get(first[1], "") if first else ""


def kueue_code(message: str) -> str:
    """Return the code of Kueue's message about a Workload without quota; empty if it has none."""
    return next((reason.code for pattern, reason in _KUEUE.items() if re.search(pattern, message)), "")


def pod_code(reason: str) -> str:
    """Return the code of the reason in a pod's condition PodScheduled; empty if it has none."""
    return _POD.code if reason == "Unschedulable" else ""
