"""Reasons for waiting: each has words and a remedy, and what engines say is known by its code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from docs.reference.collect import collect
from fairway.explain.engine_reasons import (
    ENGINE_REASONS,
    EngineReason,
    container_code,
    kueue_code,
    pod_code,
    refused_pod_code,
    slurm_code,
    topology_text,
)
from fairway.explain.reasons import REASONS, WAITS_FOR_CAPACITY

Reads = Callable[[str], str]
FOLDER = Path(__file__).parent
# What Slurm, Kueue and kube-scheduler were heard to say in the lab.
HEARD = [
    (slurm_code, "Priority", "NotItsTurn"),
    (slurm_code, "(Resources)", "NotEnoughFree"),
    (slurm_code, "AssocGrpGRES", "TeamAtCeiling"),
    (slurm_code, "AssocGrpJobsLimit", "TeamHeld"),
    (slurm_code, "QOSMaxGRESPerUser", "QosLimit"),
    (slurm_code, "PartitionDown", "PartitionClosed"),
    (slurm_code, "AssocMaxWallDurationPerJobLimit", "JobTimeLimit"),
    (slurm_code, "launch failed requeued held", "HeldAfterFailure"),
    (slurm_code, "(launch_failure_limit_exceeded_requeued_held)", "HeldAfterFailure"),
    (
        slurm_code,
        "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
        "NodesUnavailable",
    ),
    (slurm_code, "QOSGrpGRES", "GuaranteeInUse"),
    (slurm_code, "JobHeldUser", "Held"),
    (slurm_code, "JobHeldAdmin", "HeldByAdmin"),
    (slurm_code, "ReqNodeNotAvail, UnavailableNodes:gpu001", "NodesUnavailable"),
    (
        kueue_code,
        "couldn't assign flavors: insufficient unused quota for nvidia.com/gpu in flavor a, 8 more",
        "QuotaInUse",
    ),
    (
        kueue_code,
        "insufficient quota for nvidia.com/gpu in flavor F, previously considered podsets requests (0) + "
        "current podset request (9) > maximum capacity (8)",
        "AboveQuota",
    ),
    (kueue_code, "ClusterQueue research is inactive", "QueueInactive"),
    (kueue_code, "LocalQueue main doesn't exist", "QueueMissing"),
    (kueue_code, "workload namespace doesn't match ClusterQueue selector", "NamespaceNotAllowed"),
    (kueue_code, "flavor F doesn't match node affinity", "NoNodeFits"),
    (kueue_code, "untolerated taint {fairway/spot true NoSchedule <nil>} in flavor F", "NoNodeFits"),
    (kueue_code, "resources didn't satisfy LimitRange constraints: spec.podSets[0]", "NamespaceLimit"),
    (kueue_code, "Admission is gated by: fairway.dev/budget", "AdmissionCheck"),
    (kueue_code, 'topology "racks" doesn\'t allow to fit any of 2 pod(s)', "NotEnoughFree"),
    (
        kueue_code,
        'topology "t" allows to fit only 0 out of 1 pod(s). Total nodes: 9; '
        'excluded: resource "nvidia.com/gpu": 9',
        "NotEnoughFree",
    ),
    (
        kueue_code,
        'topology "real" doesn\'t allow to fit any of 1 pod(s). Total nodes: 1; excluded: nodeSelector: 1',
        "NoNodeFits",
    ),
    (pod_code, "Unschedulable", "NotEnoughFree"),
    (container_code, "ImagePullBackOff", "ImagePullFailed"),
    (container_code, "CrashLoopBackOff", "ContainerFails"),
    (container_code, "ContainerCreating", "ContainerStarting"),
    (
        refused_pod_code,
        'pods "x" is forbidden: exceeded quota: fairway-ceiling, requested: requests.nvidia.com/gpu=8',
        "TeamAtCeiling",
    ),
    (refused_pod_code, 'pods "x" is forbidden: exceeded quota: site, requested: cpu=8', "NamespaceQuota"),
    (refused_pod_code, 'admission webhook "w.example" denied the request: no', "PodRefused"),
    (
        kueue_code,
        "KueueDRAIntegration feature does not support use of resource claims",
        "ClaimNotCounted",
    ),
    (
        kueue_code,
        "spec.podSets[0].template.spec.resourceClaims[0].resourceClaimTemplateName: Not found: "
        '"DeviceClass nic.example.com is not mapped in DRA configuration for podset main"',
        "ClaimNotCounted",
    ),
]


@pytest.mark.parametrize(("read", "words", "code"), HEARD)
def test_what_engines_say_is_known(read: Reads, words: str, code: str) -> None:
    assert read(words) == code


@pytest.mark.parametrize("version", ["24.11", "26.05"])
def test_every_reason_of_slurms_enumeration_has_a_code(version: str) -> None:
    """The list is what job_state_reason_string() of the built libslurmfull.so returns for 0 to 259."""
    words = (FOLDER / "slurm_reasons" / f"{version}.txt").read_text().split()
    assert len(words) > 200
    assert [word for word in words if not slurm_code(word)] == ["None"]  # it gives no reason


def test_nodes_that_kueue_leaves_out_are_counted_with_the_cause() -> None:
    message = (
        'topology "real" doesn\'t allow to fit any of 1 pod(s). Total nodes: 3; excluded: '
        'taint "site.example/repair=yes:NoSchedule": 1, resource "nvidia.com/gpu": 2'
    )
    assert kueue_code(message) == "NotEnoughFree"
    assert topology_text(message) == (
        "Kueue excludes, of 3 nodes, 1 with the taint site.example/repair=yes:NoSchedule, which the job does "
        "not tolerate, 2 with too few free nvidia.com/gpu"
    )
    assert kueue_code(message.replace("nodes: 3", "nodes: 1")) == "NoNodeFits"
    assert topology_text("insufficient unused quota") == ""


def test_a_topology_means_a_rack_only_for_a_job_that_asked_for_one() -> None:
    message = 'topology "racks" doesn\'t allow to fit any of 2 pod(s)'
    assert kueue_code(message, together=True) == "NoRackFits"


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("0/6 nodes are available: 6 Insufficient nvidia.com/gpu.", "NotEnoughFree"),
        ("0/6 nodes are available: 6 cannot allocate all claims.", "ClaimsUnmet"),
        (
            "0/7 nodes are available: 1 Insufficient nvidia.com/gpu, 6 node(s) had untolerated taint(s).",
            "NotEnoughFree",
        ),
        (
            "0/7 nodes are available: 7 node(s) didn't match Pod's node affinity/selector. preemption: 0/7 "
            "nodes are available: 7 Preemption is not helpful for scheduling.",
            "NoNodeFits",
        ),
        ("0/2 nodes are available: 2 node(s) had untolerated taint {x: y}.", "NoNodeFits"),
    ],
)
def test_the_scheduler_tells_room_from_never(message: str, code: str) -> None:
    assert pod_code("Unschedulable", message) == code


@pytest.mark.parametrize("read", [slurm_code, kueue_code, pod_code, container_code, refused_pod_code])
@pytest.mark.parametrize("words", ["", "None", "PriorityOfTheMoon", "something nobody has heard of"])
def test_what_nobody_wrote_down_is_not_guessed(read: Reads, words: str) -> None:
    assert read(words) == ""


@given(word=st.sampled_from(ENGINE_REASONS["Slurm"]), more=st.from_regex(r"(\W.*)?", fullmatch=True))
def test_whatever_slurm_adds_to_a_reason_its_code_stays(word: EngineReason, more: str) -> None:
    assert slurm_code(f"{word.shown}{more}") == word.code


def test_every_wait_of_the_virtual_engine_has_its_code_from_the_start() -> None:
    waits = {name for name, code in collect().items() if "engines" in code.rooms and "wait" in code.kinds}
    assert len(waits) >= 10
    assert waits <= REASONS.keys()


def test_every_reason_has_words_and_a_remedy() -> None:
    for code, reason in REASONS.items():
        assert reason.code == code
        assert reason.means.endswith(".") and len(reason.means.split()) > 4, code
        assert len(reason.remedy) > 12 and not reason.remedy.endswith("."), code
    assert list(REASONS) == sorted(REASONS)


def test_every_engine_word_stands_for_a_reason() -> None:
    for words in ENGINE_REASONS.values():
        for word in words:
            assert word.code in REASONS


@pytest.mark.parametrize(
    ("code", "wants_room"),
    [
        (slurm_code("Resources"), True),
        (slurm_code("Priority"), True),
        (pod_code("Unschedulable"), True),
        (
            kueue_code('couldn\'t assign flavors to pod set main: topology "racks" allows to fit only 1'),
            True,
        ),
        (kueue_code('topology "racks" allows to fit only 1', together=True), True),
        # The virtual engine's own.
        ("NotEnoughFree", True),
        ("NoRackFits", True),
        ("NodesReserved", True),
        ("ReservedForAnother", True),
        ("TeamAtCeiling", False),
        ("BehindAnother", False),
        (slurm_code("QOSMaxJobsPerUserLimit"), False),
        (slurm_code("AssocGrpGRES"), False),
        (slurm_code("Dependency"), False),
        (slurm_code("BeginTime"), False),
        (
            kueue_code(
                "couldn't assign flavors: insufficient unused quota for nvidia.com/gpu in flavor a, 8 more"
            ),
            False,
        ),
        ("", False),
    ],
)
def test_who_waits_for_room(code: str, wants_room: bool) -> None:
    assert (code in WAITS_FOR_CAPACITY) is wants_room


def test_only_reasons_are_for_want_of_room() -> None:
    assert REASONS.keys() > WAITS_FOR_CAPACITY


def test_a_remedy_names_the_job() -> None:
    assert REASONS["Held"].remedy_for("8f3k", "17") == "fairway release 8f3k"
    assert REASONS["HeldByAdmin"].remedy_for("8f3k", "17").endswith("scontrol release 17")
