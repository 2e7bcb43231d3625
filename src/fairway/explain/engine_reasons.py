"""Map what Slurm, Kueue and kube-scheduler report of a waiting job to codes of `explain.reasons`. Pure.

An engine adapter maps a text once, where it reads its cluster, and passes the code on: nothing else parses an
engine's texts. The virtual engine is not here: it sets the code together with each of its texts.

Every reason of Slurm's own enumeration (`enum job_state_reason`, 24.11 and 26.05) has a code; a test compares
this table with the list that the built libraries print.
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


_SLURM_WORDS: Final[Mapping[str, str]] = {
    "AccountLimit": (
        "AssocGrpCpuLimit AssocGrpMemLimit AssocGrpNodeLimit AssocGrpSubmitJobsLimit AssocMaxSubmitJobLimit"
        " AssocGrpEnergy AssocGrpBB AssocGrpBilling AssocGrpUnknown AssociationJobLimit"
        " AssociationResourceLimit AccountingPolicy"
    ),
    "AccountRefused": "InvalidAccount AccountNotAllowed QOSNotAllowed",
    "AfterAnother": "Dependency",
    "ArrayTaskLimit": "JobArrayTaskLimit",
    "DeadlinePassed": "DeadLine",
    "DependencyNeverMet": "DependencyNeverSatisfied",
    "GettingReady": "BurstBufferStageIn BurstBufferOperation Cleaning FedJobLock Prolog SchedDefer",
    "GuaranteeInUse": "QOSGrpGRES",
    "Held": "JobHeldUser",
    "HeldAfterFailure": "JobHoldMaxRequeue JobLaunchFailure SystemFailure",
    "HeldByAdmin": "JobHeldAdmin",
    "JobAboveLimit": (
        "AssocMaxCpuPerJobLimit AssocMaxNodePerJobLimit AssocMaxCpuPerNode AssocMaxMemPerJob"
        " AssocMaxMemPerNode AssocMaxEnergyPerJob AssocMaxEnergyPerNode AssocMaxGRESPerJob"
        " AssocMaxGRESPerNode AssocMaxLicensePerJob AssocMaxBBPerJob AssocMaxBBPerNode AssocMaxBillingPerJob"
        " AssocMaxBillingPerNode AssocMaxUnknownPerJob AssocMaxUnknownPerNode"
        " AssocMaxCpuMinutesPerJobLimit AssocMaxMemMinutesPerJob AssocMaxNodeMinutesPerJob"
        " AssocMaxEnergyMinutesPerJob AssocMaxGRESMinutesPerJob AssocMaxLicenseMinutesPerJob"
        " AssocMaxBBMinutesPerJob AssocMaxBillingMinutesPerJob AssocMaxUnknownMinutesPerJob"
        " QOSMaxCpuPerJobLimit QOSMaxNodePerJobLimit QOSMaxWallDurationPerJobLimit QOSMaxCpuPerNode"
        " QOSMaxMemoryPerJob QOSMaxMemoryPerNode QOSMaxEnergyPerJob QOSMaxEnergyPerNode QOSMaxGRESPerJob"
        " QOSMaxGRESPerNode QOSMaxLicensePerJob QOSMaxBBPerJob QOSMaxBBPerNode QOSMaxBillingPerJob"
        " QOSMaxBillingPerNode QOSMaxUnknownPerJob QOSMaxUnknownPerNode"
        " QOSMaxCpuMinutesPerJobLimit QOSMaxMemoryMinutesPerJob QOSMaxNodeMinutesPerJob"
        " QOSMaxEnergyMinutesPerJob QOSMaxGRESMinutesPerJob QOSMaxLicenseMinutesPerJob"
        " QOSMaxBillingMinutesPerJob QOSMaxUnknownMinutesPerJob QOSTimeLimit"
    ),
    "JobBelowMinimum": (
        "QOSMinCpuNotSatisfied QOSMinMemory QOSMinEnergy QOSMinNode QOSMinGRES QOSMinLicense QOSMinBB"
        " QOSMinBilling QOSMinUnknown"
    ),
    "JobTimeLimit": "AssocMaxWallDurationPerJobLimit AssociationTimeLimit",
    "LicensesInUse": "Licenses AssocGrpLicense QOSGrpLicense",
    "NoNodeFits": "BadConstraints",
    "NodesUnavailable": "ReqNodeNotAvail NodeDown FrontEndDown Constraints",
    "NotAdmitted": "QOSMaxJobsPerAccountLimit MaxJobsPerAccount",
    "NotEnoughFree": "Resources",
    "NotItsTurn": "Priority",
    "NotYetTime": "BeginTime",
    "OtherResource": "BurstBufferResources MaxPoweredUpNodes MpiPortsBusy NvidiaImexChannels",
    "PartitionClosed": "PartitionDown PartitionInactive",
    "PartitionLimit": "PartitionNodeLimit PartitionConfig MaxMemPerLimit",
    "QosGone": "InvalidQOS",
    "QosLimit": (
        "QOSJobLimit QOSResourceLimit QOSGrpCpuLimit QOSGrpJobsLimit QOSGrpMemLimit QOSGrpNodeLimit"
        " QOSGrpSubmitJobsLimit QOSGrpEnergy QOSGrpBB QOSGrpBilling QOSGrpUnknown QOSMaxCpuPerUserLimit"
        " QOSMaxJobsPerUserLimit QOSMaxNodePerUserLimit QOSMaxSubmitJobPerUserLimit QOSMaxMemoryPerUser"
        " QOSMaxEnergyPerUser QOSMaxLicensePerUser QOSMaxBBPerUser QOSMaxBillingPerUser QOSMaxUnknownPerUser"
        " QOSMaxGRESPerUser MaxBBPerAccount MaxCpuPerAccount MaxEnergyPerAccount MaxGRESPerAccount"
        " MaxNodePerAccount MaxLicensePerAccount MaxMemoryPerAccount MaxUnknownPerAccount"
        " MaxBillingPerAccount MaxSubmitJobsPerAccount"
    ),
    "ReservationGone": "ReservationDeleted ReservationInvalid",
    "ReservationWait": "Reservation",
    "SentBack": (
        "InactiveLimit InvalidReason InvaildReason NonZeroExitCode OutOfMemory RaisedSignal TimeLimit"
    ),
    "TeamAtCeiling": "AssocGrpGRES",
    "TeamHeld": "AssocGrpJobsLimit AssocMaxJobsLimit",
    "TimeAbovePartition": "PartitionTimeLimit",
    "UsageLimit": (
        "AssocGrpCPUMinutesLimit AssocGrpCPURunMinutesLimit AssocGrpWallLimit AssocGrpMemMinutes"
        " AssocGrpMemRunMinutes AssocGrpNodeMinutes AssocGrpNodeRunMinutes AssocGrpEnergyMinutes"
        " AssocGrpEnergyRunMinutes AssocGrpGRESMinutes AssocGrpGRESRunMinutes AssocGrpLicenseMinutes"
        " AssocGrpLicenseRunMinutes AssocGrpBBMinutes AssocGrpBBRunMinutes AssocGrpBillingMinutes"
        " AssocGrpBillingRunMinutes AssocGrpUnknownMinutes AssocGrpUnknownRunMinutes"
        " QOSGrpCPUMinutesLimit QOSGrpCPURunMinutesLimit QOSGrpWallLimit QOSGrpMemoryMinutes"
        " QOSGrpMemoryRunMinutes QOSGrpNodeMinutes QOSGrpNodeRunMinutes QOSGrpEnergyMinutes"
        " QOSGrpEnergyRunMinutes QOSGrpGRESMinutes QOSGrpGRESRunMinutes QOSGrpLicenseMinutes"
        " QOSGrpLicenseRunMinutes QOSGrpBBMinutes QOSGrpBBRunMinutes QOSGrpBillingMinutes"
        " QOSGrpBillingRunMinutes QOSGrpUnknownMinutes QOSGrpUnknownRunMinutes QOSUsageThreshold"
        " MaxBBRunMinsPerAccount MaxBillingRunMinsPerAccount MaxCpuRunMinsPerAccount"
        " MaxEnergyRunMinsPerAccount MaxGRESRunMinsPerAccount MaxNodeRunMinsPerAccount"
        " MaxLicenseRunMinsPerAccount MaxMemoryRunMinsPerAccount MaxUnknownRunMinsPerAccount"
        " MaxBBRunMinsPerUser MaxBillingRunMinsPerUser MaxCpuRunMinsPerUser MaxEnergyRunMinsPerUser"
        " MaxGRESRunMinsPerUser MaxNodeRunMinsPerUser MaxLicenseRunMinsPerUser MaxMemoryRunMinsPerUser"
        " MaxUnknownRunMinsPerUser"
    ),
}
# slurmctld describes some waits in words of its own instead of a reason of the enumeration.
_SLURM_PHRASES: Final = (
    EngineReason("launch failed requeued held", "HeldAfterFailure"),
    EngineReason("launch failure limit exceeded requeued held", "HeldAfterFailure"),
    EngineReason("Nodes required for job are DOWN, DRAINED or reserved …", "NodesUnavailable"),
    EngineReason("Required nodes outside of the reservation", "NoNodeFits"),
    EngineReason("Job's required and excluded node lists overlap", "NoNodeFits"),
)
_PHRASE_STARTS: Final = tuple(
    (reason.shown.partition(" …")[0][:28], reason.code) for reason in _SLURM_PHRASES
)
_SLURM: Final = tuple(
    EngineReason(word, code) for code, words in _SLURM_WORDS.items() for word in words.split()
)

_TOPOLOGY: Final = r"[Tt]opology .*fit"
# Kueue gives every one of these the reason Pending or Inadmissible: only its message tells them apart.
_KUEUE: Final = {
    r"maximum capacity": EngineReason("… > maximum capacity (8)", "AboveQuota"),
    r"insufficient (unused )?quota": EngineReason("insufficient unused quota …", "QuotaInUse"),
    # Until Kueue tries it again.
    r"Preempted to accommodate": EngineReason("Preempted to accommodate a workload …", "QuotaInUse"),
    r"borrowing limit": EngineReason("borrowing limit … exceeded", "TeamAtCeiling"),
    r"namespace doesn't match": EngineReason(
        "workload namespace doesn't match ClusterQueue selector", "NamespaceNotAllowed"
    ),
    r"Queue .*(inactive|stopped)": EngineReason("… is inactive, … is stopped", "QueueInactive"),
    r"Queue .*doesn't exist": EngineReason("LocalQueue … doesn't exist", "QueueMissing"),
    _TOPOLOGY: EngineReason('topology "…" doesn\'t allow to fit …', "NotEnoughFree"),
    r"untolerated taint|doesn't match node affinity|does not support Topology|unavailable in ClusterQueue": (
        EngineReason("… doesn't match node affinity, untolerated taint …", "NoNodeFits")
    ),
    r"resource ?[cC]laims|ResourceClaimTemplate|DeviceClass": EngineReason(
        "DeviceClass … is not mapped, … does not support use of resource claims", "ClaimNotCounted"
    ),
    r"LimitRange": EngineReason("resources didn't satisfy LimitRange constraints …", "NamespaceLimit"),
    r"[Aa]dmission (is gated|check)": EngineReason("Admission is gated by …", "AdmissionCheck"),
    r"[Pp]ending the preemption|waiting for .*preempt": EngineReason(
        "Pending the preemption of …", "NotItsTurn"
    ),
}
_TOTAL_NODES: Final = re.compile(r"Total nodes: (\d+)")
_EXCLUDED: Final = re.compile(r'(\w+)(?: "([^"]*)")?: (\d+)')
_EXCLUDED_TEXTS: Final = {
    "taint": "{count} with the taint {name}, which the job does not tolerate",
    "nodeSelector": "{count} without a label of its node selector",
    "affinity": "{count} outside its node affinity",
    "resource": "{count} with too few free {name}",
}
_POD: Final = EngineReason("Unschedulable: 0/6 nodes are available: …", "NotEnoughFree")
_POD_NEVER: Final = EngineReason("Unschedulable: … didn't match Pod's node affinity/selector", "NoNodeFits")
_POD_CLAIMS: Final = EngineReason("Unschedulable: … cannot allocate all claims …", "ClaimsUnmet")
_CLAIMS: Final = re.compile(r"allocate all claims|resource ?claim")
_SCHEDULER_PART: Final = re.compile(r"(\d+) ([^,:;]+)")
_ABOUT_ROOM: Final = re.compile(r"Insufficient|Too many pods|[Pp]reemption|No preemption")
_CONTAINER: Final = (
    EngineReason("ImagePullBackOff", "ImagePullFailed"),
    EngineReason("ErrImagePull", "ImagePullFailed"),
    EngineReason("ErrImageNeverPull", "ImagePullFailed"),
    EngineReason("InvalidImageName", "ImagePullFailed"),
    EngineReason("ImageInspectError", "ImagePullFailed"),
    EngineReason("RegistryUnavailable", "ImagePullFailed"),
    EngineReason("SignatureValidationFailed", "ImagePullFailed"),
    EngineReason("CrashLoopBackOff", "ContainerFails"),
    EngineReason("CreateContainerConfigError", "ContainerFails"),
    EngineReason("CreateContainerError", "ContainerFails"),
    EngineReason("RunContainerError", "ContainerFails"),
    EngineReason("PostStartHookError", "ContainerFails"),
    EngineReason("ContainerCreating", "ContainerStarting"),
    EngineReason("PodInitializing", "ContainerStarting"),
)
_CONTAINER_CODES: Final = {reason.shown: reason.code for reason in _CONTAINER}

ENGINE_REASONS: Final[Mapping[str, Sequence[EngineReason]]] = {
    "Slurm": (*sorted(_SLURM, key=lambda reason: reason.shown), *_SLURM_PHRASES),
    "Kubernetes and Kueue": (
        *_KUEUE.values(),
        _POD,
        _POD_NEVER,
        _POD_CLAIMS,
        *_CONTAINER,
        EngineReason("exceeded quota: fairway-ceiling …", "TeamAtCeiling"),
        EngineReason("exceeded quota: …", "NamespaceQuota"),
        EngineReason("admission webhook … denied the request", "PodRefused"),
        EngineReason("suspended", "Held"),
    ),
}
_SLURM_CODES: Final = {reason.shown: reason.code for reason in _SLURM}
_FIRST_WORD: Final = re.compile(r"\(?(\w+)")
_QUOTA: Final = re.compile(r"exceeded quota: ([\w.-]+)")
OUR_QUOTA: Final = "fairway-ceiling"
"""The ResourceQuota that Fairway writes for a team's ceiling."""


def slurm_code(reason: str) -> str:
    """Return the code of a Reason that squeue prints; empty if it has none.

    Some carry more: `ReqNodeNotAvail, UnavailableNodes:gpu001`.
    """
    phrase = reason.lstrip("(").replace("_", " ")
    for start, code in _PHRASE_STARTS:
        if phrase.startswith(start):
            return code
    first = _FIRST_WORD.match(reason)
    return _SLURM_CODES.get(first[1], "") if first else ""


def kueue_code(message: str, *, together: bool = False) -> str:
    """Return the code of Kueue's message about a Workload without quota; empty if it has none.

    Kueue places every pod by topology, so a topology without room means a rack only for a job that asked to
    have its nodes `together`.
    """
    pattern = next((pattern for pattern in _KUEUE if re.search(pattern, message)), None)
    if pattern == _TOPOLOGY:
        return "NoRackFits" if together else _topology_code(message)
    return _KUEUE[pattern].code if pattern else ""


def _topology_code(message: str) -> str:
    """Tell a topology without room from one in which no node could ever take the pod."""
    total, excluded = _excluded_nodes(message)
    never = sum(count for kind, _, count in excluded if kind != "resource")
    return "NoNodeFits" if excluded and never >= total else "NotEnoughFree"


def topology_text(message: str) -> str:
    """Return why Kueue leaves out which nodes, from its message; empty if it does not say."""
    total, excluded = _excluded_nodes(message)
    parts = [
        _EXCLUDED_TEXTS.get(kind, "{count} by {kind} {name}").format(kind=kind, name=name, count=count)
        for kind, name, count in excluded
    ]
    return f"Kueue excludes, of {total} nodes, " + ", ".join(parts) if parts else ""


def _excluded_nodes(message: str) -> tuple[int, list[tuple[str, str, int]]]:
    """Return the number of nodes that Kueue looked at, and by what, with its name, it left out how many."""
    total = _TOTAL_NODES.search(message)
    _, _, excluded = message.partition("excluded:")
    found = [(kind, name, int(count)) for kind, name, count in _EXCLUDED.findall(excluded)]
    return (int(total[1]), found) if total else (0, [])


def pod_code(reason: str, message: str = "") -> str:
    """Return the code of the reason in a pod's condition PodScheduled; empty if it has none."""
    if reason == "SchedulingGated":
        return "AdmissionCheck"
    if reason != "Unschedulable":
        return ""
    if _CLAIMS.search(message):
        return _POD_CLAIMS.code
    _, found, parts = message.partition("nodes are available:")
    parts = parts.partition("preemption:")[0]
    reasons = [what for _, what in _SCHEDULER_PART.findall(parts)]
    if found and reasons and not any(_ABOUT_ROOM.search(what) for what in reasons):
        return _POD_NEVER.code
    return _POD.code


def container_code(reason: str) -> str:
    """Return the code of the reason for which a container of a bound pod does not run; empty if none."""
    return _CONTAINER_CODES.get(reason, "")


def refused_pod_code(message: str) -> str:
    """Return the code of the event of a Job whose pods the API server refuses to create; empty if none."""
    if (quota := _QUOTA.search(message)) is not None:
        return "TeamAtCeiling" if quota[1] == OUR_QUOTA else "NamespaceQuota"
    return "PodRefused" if "forbidden" in message or "denied" in message else ""
