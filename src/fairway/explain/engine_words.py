"""What Slurm, Kueue, kube-scheduler and the virtual engine say of a job that waits, as reasons. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fairway.explain.reasons import REASONS, WaitReason


@dataclass(frozen=True, slots=True)
class EngineWord:
    """Words of an engine by which a reason is known."""

    shown: str
    """As the reference names them."""
    pattern: str
    """A regular expression; it must fit somewhere in what the engine says."""
    code: str
    own: bool = False
    """Whether the engine's sentence is fit for people as it stands: the virtual engine's are ours."""

    @property
    def reason(self) -> WaitReason:
        """What it means."""
        return REASONS[self.code]


def _slurm(word: str, code: str) -> EngineWord:
    return EngineWord(word, rf"^\(?{word}\b", code)


def _virtual(shown: str, pattern: str, code: str) -> EngineWord:
    return EngineWord(shown, pattern, code, own=True)


ENGINE_WORDS: Final[Mapping[str, Sequence[EngineWord]]] = {
    "Slurm": (
        _slurm("Priority", "NotItsTurn"),
        _slurm("Resources", "NotEnoughFree"),
        _slurm("AssocGrpGRES", "TeamAtCeiling"),
        _slurm("QOSGrpGRES", "GuaranteeInUse"),
        _slurm("QOSMaxGRESPerUser", "UserLimit"),
        _slurm("AssocGrpJobsLimit", "TeamHeld"),
        _slurm("AssocMaxJobsLimit", "TeamHeld"),
        _slurm("QOSMaxJobsPerAccountLimit", "NotAdmitted"),
        _slurm("MaxJobsPerAccount", "NotAdmitted"),
        _slurm("Dependency", "AfterAnother"),
        _slurm("BeginTime", "NotYetTime"),
        _slurm("JobHeldUser", "Held"),
        _slurm("JobHeldAdmin", "HeldByAdmin"),
        _slurm("ReqNodeNotAvail", "NodesUnavailable"),
        _slurm("PartitionTimeLimit", "TimeAbovePartition"),
        _slurm("InvalidQOS", "QosGone"),
    ),
    "Kubernetes and Kueue": (
        EngineWord("insufficient unused quota …", r"insufficient (unused )?quota", "QuotaInUse"),
        EngineWord("borrowing limit … exceeded", r"borrowing limit", "TeamAtCeiling"),
        EngineWord("… is inactive, … is stopped", r"(Cluster|Local)Queue .*(inactive|stopped)", "TeamHeld"),
        EngineWord("topology … fit", r"[Tt]opology .*fit", "NoRackFits"),
        EngineWord("0/6 nodes are available: …", r"[0-9]+/[0-9]+ nodes are available", "NotEnoughFree"),
        EngineWord("suspended", r"^suspended$", "Held"),
    ),
    "Virtual": (
        _virtual("somebody holds it back", r"^somebody holds it back", "Held"),
        _virtual("alice holds 8, a user of nlp may hold 8", r", a user of .* may hold", "UserLimit"),
        _virtual("nlp holds 8 of the 8 it may hold …", r" holds .* it may hold of ", "TeamAtCeiling"),
        _virtual("team nlp has long had job 7 …", r" has long had job .* goes first", "BehindAnother"),
        _virtual("team nlp is draining …", r"^team .* is draining", "TeamDraining"),
        _virtual("team nlp is held: …", r"^team .* is held: ", "TeamHeld"),
        _virtual("… are kept for it …", r" are kept for it as they", "PlacesKept"),
        _virtual("no rack has …", r"^no rack has ", "NoRackFits"),
        _virtual(
            "free devices … are kept for job 7", r"^free devices of .* are kept for job", "KeptForAnother"
        ),
        _virtual("… 3 devices are free in all", r" devices are free in all", "NotEnoughFree"),
    ),
}


def read_words(words: str) -> EngineWord | None:
    """What an engine means by its words; None: nobody has written that down yet."""
    for known in ENGINE_WORDS.values():
        for word in known:
            if re.search(word.pattern, words):
                return word
    return None
