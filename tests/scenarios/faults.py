"""Deliberate faults in what a fleet is translated to. Each must be caught by some scenario."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from fairway.policy.objects import Translation, Value, WantedObject

Spoil = Callable[[WantedObject], WantedObject | None]
"""What becomes of an object; None: it is left out."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing done wrong."""

    what: str
    promises: tuple[str, ...]
    """Where it should show; played in this order until one fails."""
    spoil: Spoil = lambda wanted: wanted
    script: Callable[[str], str] | None = None
    """What becomes of Slurm's rendered script."""

    def spoilt(self, translation: Translation) -> Translation:
        objects = [o for o in map(self.spoil, translation.objects) if o is not None]
        here = {o.key for o in objects}
        kept = (replace(o, after=tuple(k for k in o.after if k in here)) for o in objects)
        return replace(translation, objects=tuple(kept))


def changed(kind: str, name: str, field: str, to: Callable[[Value], Value]) -> Spoil:
    """The fields that match, of the objects that match, have another value; None: not set."""

    def spoil(wanted: WantedObject) -> WantedObject:
        if not re.fullmatch(kind, wanted.key.kind) or not re.fullmatch(name, wanted.key.name):
            return wanted
        fields = {f: to(v) if re.fullmatch(field, f) else v for f, v in wanted.fields.items()}
        return replace(wanted, fields={f: v for f, v in fields.items() if v is not None})

    return spoil


def left_out(kind: str, name: str) -> Spoil:
    """The objects that match are missing."""
    return lambda w: None if w.key.kind == kind and re.fullmatch(name, w.key.name) else w


def more(by: int) -> Callable[[Value], Value]:
    return lambda value: value + by if isinstance(value, int) else value


def only(*values: str) -> Callable[[Value], Value]:
    """Of a list only these."""
    return lambda value: tuple(v for v in value if v in values) if isinstance(value, tuple) else value


def without(pattern: str) -> Callable[[Value], Value]:
    """A list without what matches."""

    def to(value: Value) -> Value:
        if not isinstance(value, tuple):
            return value
        return tuple(v for v in value if not re.fullmatch(pattern, str(v)))

    return to


def set_to(new: Value) -> Callable[[Value], Value]:
    return lambda value: new


def swapped(value: Value) -> Value:
    """Shares 60 and 40 the wrong way round."""
    return {60: 40, 40: 60}.get(value, value) if isinstance(value, int) else value


def without_line(text: str) -> Callable[[str], str]:
    """A script in which the lines that hold `text` are gone."""

    def to(script: str) -> str:
        lines = script.splitlines()
        assert any(text in line for line in lines), f"no line of the script has {text}"
        return "\n".join(line for line in lines if text not in line) + "\n"

    return to


SLURM: Final = (
    Fault(
        "a guarantee one short",
        ("guarantee",),
        changed("qos", r".*\.own", r"GrpTRES\..*", more(-1)),
    ),
    Fault(
        "a guarantee one over",
        ("slices",),
        changed("qos", r".*\.own", r"GrpTRES\..*", more(1)),
    ),
    Fault(
        "a missing Preempt: the guaranteed do not take back what is lent",
        ("guarantee",),
        changed("qos", r".*\.own", "Preempt", only("fairway.low")),
    ),
    Fault(
        "a ceiling one over",
        ("ceiling",),
        changed("account", ".*", r"GrpTRES\..*a100", more(1)),
    ),
    Fault(
        "no gate: what is lent runs in the guaranteed tier too",
        ("guarantee",),
        changed("qos", r"fairway\.gate", "MaxJobsPerAccount", set_to(None)),
    ),
    Fault("shares swapped", ("share",), changed("account", ".*", "Fairshare", swapped)),
    Fault(
        "lent jobs do not take the place of low ones",
        ("low-only-idle",),
        changed("qos", r"fairway\.lent", "Preempt", set_to(("fairway.gate",))),
    ),
    Fault(
        "siblings cannot use what a child leaves",
        ("hierarchy",),
        changed("account|association", ".*", "QOS", without(r".*\.kin")),
    ),
    Fault(
        "what a child leaves is not taken back for its siblings",
        ("hierarchy",),
        changed("qos", r".*\.kin", "Preempt", only("fairway.low")),
    ),
    Fault(
        "a child does not get its guarantee back from its siblings",
        ("hierarchy",),
        changed("qos", r".*\.own", "Preempt", without(r".*\.kin")),
    ),
    Fault(
        "a user's limit left out",
        ("limits",),
        changed("association", ".*", r"GrpTRES\..*", set_to(None)),
    ),
    Fault(
        "draining teams may submit",
        ("removal",),
        changed("account", ".*", "Grp(Jobs|Submit)", set_to(None)),
    ),
    Fault(
        "a spent budget stops nothing",
        ("budget",),
        changed("account", ".*", "(Grp|Max)Jobs", set_to(None)),
    ),
    Fault(
        "low jobs are held with the others",
        ("budget",),
        changed("qos", r"fairway\.low", "GrpJobs", set_to(None)),
    ),
    Fault(
        "the script does not type requests",
        ("native", "ceiling"),
        script=without_line("job[field] = full"),
    ),
    Fault(
        "the script lets everybody onto spot",
        ("tolerance",),
        script=lambda lua: lua.replace('["spot"] = true', '["spot"] = false'),
    ),
)

_QUOTA = r".*\[nvidia.com/[^]]*\]\."
KUBERNETES: Final = (
    Fault(
        "a guarantee one short",
        ("guarantee",),
        changed("ClusterQueue", "[^.]*", _QUOTA + "nominalQuota", more(-1)),
    ),
    Fault(
        "a ceiling one over",
        ("ceiling",),
        changed("ClusterQueue|Cohort", ".*", _QUOTA + "borrowingLimit", more(1)),
    ),
    Fault(
        "no limit to borrowing",
        ("borrow", "ceiling"),
        lambda w: (
            changed(w.key.kind, r"(?!.*\.low).*", _QUOTA + "borrowingLimit", set_to(None))(w)
            if w.key.kind != "ResourceQuota"
            else None
        ),
    ),
    Fault(
        "nothing is reclaimed",
        ("guarantee",),
        changed("ClusterQueue", ".*", r"spec\.preemption\.reclaimWithinCohort", set_to("Never")),
    ),
    Fault(
        "urgent jobs take no place of their own team",
        ("priority",),
        changed("ClusterQueue", ".*", r"spec\.preemption\.withinClusterQueue", set_to("Never")),
    ),
    Fault(
        "weights swapped",
        ("share",),
        changed("ClusterQueue", "[^.]*", r"spec\.fairSharing\.weight", swapped),
    ),
    Fault(
        "draining teams may start jobs",
        ("removal",),
        changed("LocalQueue", ".*", r"spec\.stopPolicy", set_to(None)),
    ),
    Fault(
        "a spent budget stops nothing",
        ("budget",),
        changed("LocalQueue", ".*", r"spec\.stopPolicy", set_to(None)),
    ),
    Fault(
        "everybody is a member of every team",
        ("isolation",),
        changed("RoleBinding", ".*", "subjects", set_to(("User/alice", "User/bob", "User/carol"))),
    ),
    Fault(
        "GPU pods outside teams are let in",
        ("native",),
        lambda w: None if w.key.kind.startswith("ValidatingAdmissionPolicy") else w,
    ),
    Fault(
        "low jobs are as good as any",
        ("low-only-idle",),
        lambda w: changed(
            "LocalQueue", ".*/low", r"spec\.clusterQueue", set_to(w.key.name.partition("/")[0])
        )(w),
    ),
    Fault(
        "urgent is no more than normal",
        ("priority",),
        changed("WorkloadPriorityClass", "urgent", "value", set_to(0)),
    ),
)

VIRTUAL: Final = (
    Fault("a guarantee one short", ("guarantee",), changed("grant", ".*", "guarantee", more(-1))),
    Fault("a guarantee one over", ("slices",), changed("grant", ".*", "guarantee", more(1))),
    Fault("a ceiling one over", ("ceiling",), changed("grant", ".*", "borrow", more(1))),
    Fault("no limit to borrowing", ("borrow",), changed("grant", ".*", "borrow", set_to(None))),
    Fault("shares swapped", ("share",), changed("team", ".*", "share", swapped)),
    Fault("a spent budget stops nothing", ("budget",), changed("team", ".*", "hold", set_to(None))),
    Fault("draining is forgotten", ("removal",), changed("team", ".*", "draining", set_to(False))),
    Fault("a user's limit left out", ("limits",), changed("team", ".*", "user_gpus", set_to(None))),
    Fault("a job's limit left out", ("limits",), changed("team", ".*", "job_gpus", set_to(None))),
    Fault(
        "low is not preemptible", ("low-only-idle",), changed("priority", "low", "preemptible", set_to(False))
    ),
    Fault("urgent below normal", ("priority",), changed("priority", "urgent", "rank", set_to(20))),
    Fault("nothing is ever forgiven", ("memory",), changed("fairness", ".*", ".*", set_to(10**9))),
    Fault(
        "children without a parent", ("hierarchy", "ceiling"), changed("team", ".*", "parent", set_to(None))
    ),
    Fault("members left out", ("native", "guarantee"), left_out("member", ".*")),
)

FAULTS: Final = {"slurm": SLURM, "kubernetes": KUBERNETES, "virtual": VIRTUAL}
