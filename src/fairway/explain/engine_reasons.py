"""What Slurm, Kueue and kube-scheduler say of a job that waits, as codes of `explain.reasons`. Pure.

An engine asks here once, where it reads its cluster, and passes the code on: nothing else reads an engine's
words. The virtual engine is not here: it gives each of its sentences its code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fairway.explain.reasons import REASONS, WaitReason


@dataclass(frozen=True, slots=True)
class EngineWord:
    """A pattern of an engine's text that identifies a WaitReason."""

    shown: str
    """The text as listed in the reference."""
    code: str

    @property
    def reason(self) -> WaitReason:
        """Return the WaitReason of this pattern."""
        return REASONS[self.code]


_SLURM: Final = (
    EngineWord("Priority", "NotItsTurn"),
    EngineWord("Resources", "NotEnoughFree"),
    EngineWord("AssocGrpGRES", "TeamAtCeiling"),
    EngineWord("QOSGrpGRES", "GuaranteeInUse"),
    EngineWord("QOSMaxGRESPerUser", "UserLimit"),
    EngineWord("AssocGrpJobsLimit", "TeamHeld"),
    EngineWord("AssocMaxJobsLimit", "TeamHeld"),
    EngineWord("QOSMaxJobsPerAccountLimit", "NotAdmitted"),
    EngineWord("MaxJobsPerAccount", "NotAdmitted"),
    EngineWord("Dependency", "AfterAnother"),
    EngineWord("BeginTime", "NotYetTime"),
    EngineWord("JobHeldUser", "Held"),
    EngineWord("JobHeldAdmin", "HeldByAdmin"),
    EngineWord("ReqNodeNotAvail", "NodesUnavailable"),
    EngineWord("PartitionTimeLimit", "TimeAbovePartition"),
    EngineWord("InvalidQOS", "QosGone"),
)
# Kueue gives every one of these the reason Pending or Inadmissible: only its message tells them apart.
_KUEUE: Final = {
    r"insufficient (unused )?quota": EngineWord("insufficient unused quota …", "QuotaInUse"),
    r"borrowing limit": EngineWord("borrowing limit … exceeded", "TeamAtCeiling"),
    r"(Cluster|Local)Queue .*(inactive|stopped)": EngineWord("… is inactive, … is stopped", "TeamHeld"),
    r"[Tt]opology .*fit": EngineWord("topology … fit", "NoRackFits"),
}
_POD: Final = EngineWord("Unschedulable: 0/6 nodes are available: …", "NotEnoughFree")

ENGINE_WORDS: Final[Mapping[str, Sequence[EngineWord]]] = {
    "Slurm": _SLURM,
    "Kubernetes and Kueue": (*_KUEUE.values(), _POD, EngineWord("suspended", "Held")),
}
_SLURM_CODES: Final = {word.shown: word.code for word in _SLURM}
_FIRST_WORD: Final = re.compile(r"\(?(\w+)")


def slurm_code(reason: str) -> str:
    """Return the code of a Reason that squeue prints; empty if it has none.

    Some carry more: `ReqNodeNotAvail, UnavailableNodes:gpu001`.
    """
    word = _FIRST_WORD.match(reason)
    return _SLURM_CODES.get(word[1], "") if word else ""


def kueue_code(message: str) -> str:
    """Return the code of what Kueue says of a Workload without quota; empty if it has none."""
    return next((word.code for pattern, word in _KUEUE.items() if re.search(pattern, message)), "")


def pod_code(reason: str) -> str:
    """Return the code of the reason that a pod's condition PodScheduled gives; empty if it has none."""
    return _POD.code if reason == "Unschedulable" else ""
