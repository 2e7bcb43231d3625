"""Mistakes in teams, priorities and users: one fault each, with its places and a hint that helps."""

from __future__ import annotations

import re
from datetime import date

import pytest

from fairway.files import Severity, location_lines, parse_fleet
from fairway.model.names import TeamName
from fairway.model.team import Move
from tests.unit.files.fleets import FOLDER, SHARED, changed, checked, codes, only_fault

# old text, new text, code, line:column, path, a piece of the hint
TEAM_MISTAKES = [
    ("[bob]", "[4711]", "WrongType", "54:15", "teams.product.members[0]", 'put it in quotes:  "4711"'),
    ("[bob]", '["a,b"]', "BadValue", "54:15", "teams.product.members[0]", "as the engines know them"),
    ("14d", "14", "WrongType", "40:24", "fairness.half_life", "14h"),
    ("14d", "14 days", "BadValue", "40:24", "fairness.half_life", "write 14d"),
    ("14d", "3-12:00:00", "BadValue", "40:24", "fairness.half_life", "write 3d12h"),
    ("14d", "soon", "BadValue", "40:24", "fairness.half_life", "for example 1d12h"),
    ("14d", "12h1d", "BadValue", "40:24", "fairness.half_life", "for example 1d12h"),
    ("14d", "[7d]", "WrongType", "40:24", "fairness.half_life", "for example 1d12h"),
    ("14d", "0s", "OutOfRange", "40:24", "fairness.half_life", "from 1s to 3650d"),
    ("72h", "unlimted", "NotOneOf", "46:38", "teams.research.limits.job.time", "write unlimited"),
    ("72h", "0h", "OutOfRange", "46:38", "teams.research.limits.job.time", "from 1s"),
    (
        "user: { gpus: 24",
        "user: { gpus: 0",
        "OutOfRange",
        "46:59",
        "teams.research.limits.user.gpus",
        "from 1",
    ),
    ("share: 60", "share: 0", "OutOfRange", "43:12", "teams.research.share", "from 1 to"),
    ("share: 60", "share: 1.5", "WrongType", "43:12", "teams.research.share", "a whole number"),
    ("share: 60", "shares: 60", "UnknownKey", "43:5", "teams.research.shares", "did you mean share?"),
    ("share: 2", "budget: 5", "WrongType", "48:22", "teams.research.teams.nlp.budget", "'key: value'"),
    ("share: 2", "budget: {}", "MissingKey", "48:14", "teams.research.teams.nlp.budget.amount", "120000"),
    (
        "share: 2",
        "budget: { amount: 0 }",
        "EmptyBudget",
        "48:32",
        "teams.research.teams.nlp.budget.amount",
        "draining: true",
    ),
    (
        "share: 2",
        "budget: { amount: -1 }",
        "OutOfRange",
        "48:32",
        "teams.research.teams.nlp.budget.amount",
        "from 0",
    ),
    (
        "share: 2",
        "budget: { amount: 9, every: week }",
        "NotOneOf",
        "48:42",
        "teams.research.teams.nlp.budget.every",
        "month",
    ),
    (
        "share: 2",
        "budget: { amount: 9, warn_at: 0.8 }",
        "WrongType",
        "48:44",
        "teams.research.teams.nlp.budget.warn_at",
        "write 80%",
    ),
    (
        "share: 2",
        "budget: { amount: 9, warn_at: 80 }",
        "WrongType",
        "48:44",
        "teams.research.teams.nlp.budget.warn_at",
        "write 80%",
    ),
    (
        "share: 2",
        "budget: { amount: 9, warn_at: most }",
        "BadValue",
        "48:44",
        "teams.research.teams.nlp.budget.warn_at",
        "80%",
    ),
    (
        "share: 2",
        "budget: { amount: 9, warn_at: 101% }",
        "OutOfRange",
        "48:44",
        "teams.research.teams.nlp.budget.warn_at",
        "100%",
    ),
    (
        "share: 2",
        "budget: { amount: 9, at_limit: end }",
        "NotOneOf",
        "48:45",
        "teams.research.teams.nlp.budget.at_limit",
        "low-only",
    ),
    (
        "share: 40",
        "budget: { amount: 9, at_limit: low-only }",
        "NothingIsLow",
        "51:36",
        "teams.product.budget.at_limit",
        "at_limit: stop, or let it use low:  priorities: [..., low]",
    ),
    (
        "borrow: { hpc-a100: 16 }",
        "borrow: 16",
        "WrongType",
        "45:13",
        "teams.research.borrow",
        "'name: value'",
    ),
    (
        "borrow: { hpc-a100: 16",
        "borrow: { hpc-a100: -1",
        "OutOfRange",
        "45:25",
        "teams.research.borrow.hpc-a100",
        "0",
    ),
    (
        "borrow: { hpc-a100: 16",
        "borrow: { hpc-a100: infinite",
        "NotOneOf",
        "45:25",
        "teams.research.borrow.hpc-a100",
        "write unlimited",
    ),
    ("share: 40", "draining: yes", "WrongType", "51:15", "teams.product.draining", "write true"),
    ("share: 40", "draining: perhaps", "WrongType", "51:15", "teams.product.draining", "true or false"),
    ("  product:", "  Product:", "BadName", "50:3", "teams.Product", "write product"),
    ("  product:", "  low:", "ReservedName", "50:3", "teams.low", "team-low"),
    ("  product:", "  kube-system:", "ReservedName", "50:3", "teams.kube-system", "another name"),
    ("  low: {", "  lent: {", "ReservedName", "39:3", "priorities.lent", "another name"),
    ("      vision:", "      product:", "DuplicateTeam", "50:3", "teams.product", "rename one of them"),
    (
        "hpc-a100: 8",
        "hcp-a100: 8",
        "UnknownPool",
        "48:47",
        "teams.research.teams.nlp.guarantee.hcp-a100",
        "hpc-a100?",
    ),
    (
        "hpc-a100: 8",
        "hpc-a100/1g.10gb: 8",
        "WholePool",
        "48:55",
        'teams.research.teams.nlp.guarantee."hpc-a100/1g.10gb"',
        "slices: [1g.10gb]",
    ),
    (
        "hpc-a100: 8",
        "lab-mig: 8",
        "SlicedPool",
        "48:46",
        "teams.research.teams.nlp.guarantee.lab-mig",
        "lab-mig/1g.10gb",
    ),
    (
        "hpc-a100: 8",
        "lab-mig/2g.20gb: 8",
        "UnknownSlice",
        "48:54",
        'teams.research.teams.nlp.guarantee."lab-mig/2g.20gb"',
        "1g.10gb",
    ),
    (
        "hpc-a100: 8",
        "LAB_MIG: 8",
        "BadValue",
        "48:37",
        "teams.research.teams.nlp.guarantee.LAB_MIG",
        "write lab-mig",
    ),
    (
        "{ hpc-a100: 16 }\n    pri",
        "{ hpc-a100: 24 }\n    pri",
        "GuaranteesTooHigh",
        "44:28",
        "teams.research.guarantee.hpc-a100",
        "borrow: { hpc-a100: 8 }",
    ),
    (
        "lab-mig/1g.10gb: 32",
        "lab-mig/1g.10gb: 65",
        "GuaranteesTooHigh",
        "44:49",
        'teams.research.guarantee."lab-mig/1g.10gb"',
        "lower it",
    ),
    (
        "hpc-a100: 8",
        "hpc-a100: 17",
        "AboveParent",
        "48:47",
        "teams.research.teams.nlp.guarantee.hpc-a100",
        "guarantee: { hpc-a100: 17 }",
    ),
    (
        "vision: {",
        "vision: { guarantee: { cloud-h100: 2 },",
        "ParentWithout",
        "49:42",
        "teams.research.teams.vision.guarantee.cloud-h100",
        "guarantee: { cloud-h100: 2 }",
    ),
    (
        "rank: 50, default: true",
        "rank: 50",
        "NotOneDefault",
        "36:1",
        "priorities",
        "default: true  to normal",
    ),
    ("rank: 100", "rank: 100, default: true", "NotOneDefault", "37:3", "priorities.urgent", "keep it at one"),
    ("rank: 100", "rank: 50", "SameRank", "38:3", "priorities.normal", "another rank"),
    ("rank: 100", "rank: 0", "OutOfRange", "37:19", "priorities.urgent.rank", "from 1"),
    ("rank: 10,", "rank: 60,", "PreemptibleTooHigh", "39:3", "priorities.low", "below 50"),
    (
        "default: true",
        "default: true, preemptible: always",
        "PreemptibleTooHigh",
        "38:3",
        "priorities.normal",
        "another priority the default",
    ),
    (
        "preemptible: always",
        "preemptible: true",
        "WrongType",
        "39:33",
        "priorities.low.preemptible",
        "always",
    ),
    (
        "[urgent, normal]",
        "[urgent, norml]",
        "UnknownPriority",
        "53:26",
        "teams.product.priorities[1]",
        "normal?",
    ),
    ("[urgent, normal]", "[]", "CannotRun", "53:17", "teams.product.priorities", "take the key away"),
    (
        "    guarantee: { hpc-a100: 16 }\n    priorities",
        "    priorities",
        "CannotRun",
        "50:3",
        "teams.product",
        "borrow: { hpc-a100: unlimited }",
    ),
    (
        "    guarantee: { hpc-a100: 16 }\n    priorities",
        "    borrow: { hpc-a100: 0 }\n    priorities",
        "CannotRun",
        "50:3",
        "teams.product",
        "guarantee: { hpc-a100: 8 }",
    ),
    (
        "[bob]",
        "[bob, erin]",
        "SeveralTeams",
        "48:69",
        "teams.research.teams.nlp.members[1]",
        "users: { erin: { default_team: nlp } }",
    ),
    (
        "default_team: nlp",
        "default_team: nlpp",
        "UnknownTeam",
        "56:26",
        "users.alice.default_team",
        "mean nlp?",
    ),
    (
        "default_team: nlp",
        "default_team: product",
        "NotAMember",
        "56:26",
        "users.alice.default_team",
        "team: nlp",
    ),
    ("  alice: {", "  zoe: {", "SeveralTeams", "48:62", "teams.research.teams.nlp.members[0]", "alice: {"),
]


@pytest.mark.parametrize(
    ("old", "new", "code", "at", "path", "hint"), TEAM_MISTAKES, ids=lambda v: str(v)[:24]
)
def test_one_mistake_is_one_fault(old: str, new: str, code: str, at: str, path: str, hint: str) -> None:
    faults = checked(changed(old, new, SHARED)).faults
    fault = faults[0]
    assert (fault.code, f"{fault.line}:{fault.column}", fault.path) == (code, at, path)
    assert fault.severity is Severity.ERROR
    assert hint in fault.hint
    if "zoe" not in new:  # which is two: alice lost her default, zoe has one and no team
        assert len(faults) == 1, [(f.code, f.message) for f in faults]


def test_a_sum_shows_all_its_parts_as_the_style_guide_does() -> None:
    fault = only_fault(changed("{ hpc-a100: 16 }\n    pri", "{ hpc-a100: 24 }\n    pri", SHARED))
    assert fault.message == "guarantees on pool hpc-a100 add up to 40 GPUs, but it has 32"
    assert location_lines(fault) == (
        "fleet.yaml:44:28  teams.research.guarantee.hpc-a100   16",
        "fleet.yaml:52:28  teams.product.guarantee.hpc-a100    24",
    )
    assert fault.hint == "lower one of them, or let the team borrow the rest:  borrow: { hpc-a100: 8 }"


def test_children_together_are_compared_with_their_parent() -> None:
    fault = only_fault(changed("vision: {", "vision: { guarantee: { hpc-a100: 9 },", SHARED))
    assert fault.message == "guarantees on hpc-a100 inside research add up to 17, but research itself has 16"
    assert [spot.value for spot in fault.locations] == ["8", "9", "16"]
    assert codes(changed("vision: {", "vision: { guarantee: { hpc-a100: 8 },", SHARED)) == []


def test_a_capacity_nobody_knows_is_not_compared() -> None:
    assert (
        codes(
            SHARED.replace("    gpus: 32\n", "").replace(
                "hpc-a100: 16 }\n    pri", "hpc-a100: 999 }\n    pri"
            )
        )
        == []
    )


def test_slices_of_a_pool_whose_gpus_are_counted() -> None:
    mig = "  hpc-mig: { cluster: hpc, gpu: A100-80GB, gpus: 4, slices: [1g.10gb, 3g.40gb], capacity: owned, "
    text = changed("priorities:\n", mig + "price: 1, slurm: { partition: mig } }\npriorities:\n", SHARED)
    assert codes(text) == []

    def granted(small: int, large: int) -> str:
        grant = f"guarantee: {{ hpc-mig/1g.10gb: {small}, hpc-mig/3g.40gb: {large}, hpc-a100: 16 }}\n    pri"
        return changed("guarantee: { hpc-a100: 16 }\n    pri", grant, text)

    # Seven of the smallest fit on a GPU, two of the larger; together they share eight memory slices.
    assert codes(granted(28, 0)) == [] and codes(granted(0, 8)) == [] and codes(granted(16, 4)) == []
    assert only_fault(granted(29, 0)).message.endswith("is 29 slices, but its GPUs give at most 28")
    together = only_fault(granted(17, 4))
    assert together.code == "GuaranteesTooHigh"
    assert together.message == "guarantees on the slices of pool hpc-mig take 4.125 GPUs, but it has 4"
    assert len(together.locations) == 2


def test_a_sum_of_very_many_shows_the_largest() -> None:
    many = "".join(f"  t{i}: {{ guarantee: {{ hpc-a100: {i + 1} }}, members: [u{i}] }}\n" for i in range(100))
    fault = only_fault(changed("users:\n", many + "users:\n", SHARED))
    assert fault.message == "guarantees on pool hpc-a100 add up to 5082 GPUs, but it has 32"
    assert [spot.value for spot in fault.locations] == [str(n) for n in range(93, 101)]


def test_a_fault_is_said_of_the_whole_branch_once() -> None:
    nothing = changed(
        "    guarantee: { hpc-a100: 16, lab-mig/1g.10gb: 32 }\n    borrow: { hpc-a100: 16 }\n", "", SHARED
    )
    nothing = nothing.replace("guarantee: { hpc-a100: 8 }, ", "").replace(
        "borrow: { lab-mig/1g.10gb: 0 }, ", ""
    )
    assert only_fault(nothing).message == (
        "team research can never run anything: it is granted nothing on any pool"
    )


def test_a_faulty_pool_is_not_also_an_unknown_one() -> None:
    assert codes(changed("cluster: hpc\n    gpu: A100-80GB", "cluster: hpc\n    gpu: A100", SHARED)) == [
        "UnknownGpuType"
    ]
    assert codes(changed("slices: [1g.10gb, 3g.40gb]", "slices: [7x]", SHARED)) == ["BadValue"]


def test_a_faulty_team_is_not_also_an_unknown_one() -> None:
    assert codes(changed("nlp: { share: 2", "nlp: { share: 0", SHARED)) == ["OutOfRange"]
    assert codes(changed("members: [alice, erin]", "members: [alice, 3]", SHARED)) == ["WrongType"]
    assert codes(changed("teams:\n      nlp: {", "teams:\n      NLP: {", SHARED)) == ["BadName"]


# --- warnings ---------------------------------------------------------------------------------------------

WARNINGS = [
    ("[urgent, normal]", "[low]", "DefaultNotAllowed", "teams.product.priorities", "add normal"),
    ("[bob]", "[]", "NoMembers", "teams.product", "members: [alice]"),
    (
        "borrow: { lab-mig/1g.10gb: 0 }",
        "borrow: { hpc-a100: 33 }",
        "CeilingAboveParent",
        "teams.research.teams.vision.borrow.hpc-a100",
        "borrow: { hpc-a100: 32 }",
    ),
    (
        "members: [bob]",
        "members: [bob]\n    borrow: { hpc-a100: 0 }\n    limits: { job: { gpus: 17 } }",
        "LimitAboveCeiling",
        "teams.product.limits.job.gpus",
        "lower it to 16",
    ),
    (
        "members: [bob]",
        "members: [bob]\n    borrow: { hpc-a100: 8 }\n    limits: { user: { gpus: 25 } }",
        "LimitAboveCeiling",
        "teams.product.limits.user.gpus",
        "lower it to 24",
    ),
]


@pytest.mark.parametrize(("old", "new", "code", "path", "hint"), WARNINGS, ids=lambda v: str(v)[:24])
def test_what_has_no_effect_is_warned_of(old: str, new: str, code: str, path: str, hint: str) -> None:
    fault = only_fault(changed(old, new, SHARED))
    assert (fault.severity, fault.code, fault.path) == (Severity.WARNING, code, path)
    assert hint in fault.hint
    assert checked(changed(old, new, SHARED)).fleet is not None


def test_what_is_just_as_high_as_it_may_be_is_not_warned_of() -> None:
    assert codes(changed("borrow: { lab-mig/1g.10gb: 0 }", "borrow: { hpc-a100: 32 }", SHARED)) == []
    limits = (
        "members: [bob]\n    borrow: { hpc-a100: 8 }\n    limits: { job: { gpus: 24 }, user: { gpus: 24 } }"
    )
    assert codes(changed("members: [bob]", limits, SHARED)) == []


def test_a_child_that_is_guaranteed_all_its_parent_may_hold_cannot_borrow() -> None:
    web = "{ guarantee: { hpc-a100: 16 }, borrow: { hpc-a100: 4 }, members: [zoe] }"
    inner = f"members: [bob]\n    borrow: {{ hpc-a100: 0 }}\n    teams: {{ web: {web} }}"
    fault = only_fault(changed("members: [bob]", inner, SHARED))
    assert (fault.code, fault.hint[:30]) == ("CeilingAboveParent", "write  borrow: { hpc-a100: 0 }")


def test_a_priority_that_no_team_may_use_is_warned_of() -> None:
    text = SHARED.replace("    share: 60\n", "    share: 60\n    priorities: [normal, low]\n")
    assert codes(text) == []
    fault = only_fault(text.replace("[urgent, normal]", "[normal]"))
    assert (fault.code, fault.severity, fault.path) == ("UnusedPriority", "warning", "priorities.urgent")
    assert "add urgent to the priorities of a team" in fault.hint
    # Without teams nobody may use anything yet, and that is no fault.
    assert codes(re.sub(r"teams:\n(.|\n)*", "", SHARED)) == []


def test_a_team_inside_a_draining_one_drains() -> None:
    text = changed("    share: 60\n", "    share: 60\n    draining: true\n", SHARED)
    assert codes(text) == []
    fault = only_fault(text.replace("vision: {", "vision: { draining: false,"))
    assert (fault.code, fault.severity) == ("StillDraining", "warning")


def test_a_draining_team_needs_neither_grants_nor_members() -> None:
    gone = "  product:\n    draining: true\n"
    assert codes(re.sub(r"  product:\n(    .*\n)+", gone, SHARED)) == []


@pytest.mark.parametrize("user", ["root", "slurm", "munge", '"0"', "fairway", "system:anonymous"])
def test_no_member_is_a_user_of_the_system_or_fairway_itself(user: str) -> None:
    text = changed("members: [bob]", f"members: [bob, {user}]", SHARED)
    fault = only_fault(text)
    assert (fault.code, fault.severity, fault.path) == ("SystemUser", "error", "teams.product.members[1]")
    assert fault.hint == f"take {user.strip(chr(34))} out of the members"
    # Stored by an earlier release: the server reads it, and refuses such jobs.
    stored = parse_fleet(text, "fleet revision 7", FOLDER, stored=True)
    assert stored.is_reserved(user.strip('"')) and not stored.is_reserved("bob")


def test_fairways_own_user_is_that_of_the_file() -> None:
    text = changed("credentials: {", "credentials: { user: svc,", SHARED)
    assert codes(text.replace("members: [bob]", "members: [bob, fairway]")) == []
    assert codes(text.replace("members: [bob]", "members: [bob, svc]")) == ["SystemUser"]


def test_the_past_of_a_team_is_read_and_belongs_to_one() -> None:
    text = changed("    share: 60\n", "    share: 60\n    renamed_from: science\n", SHARED)
    text = text.replace("vision: {", "vision: { moved: { from: product, since: 2026-11-01 },")
    teams = {team.name: team for team in parse_fleet(text, "fleet.yaml", folder=FOLDER).teams}
    assert teams[TeamName("research")].renamed_from == "science"
    assert teams[TeamName("vision")].moved == Move(TeamName("product"), date(2026, 11, 1))
    for taken in ("product", "nlp"):
        fault = only_fault(text.replace("science", taken))
        assert (fault.code, fault.path) == ("NameInUse", "teams.research.renamed_from")
    fault = only_fault(text.replace("vision: {", "vision: { renamed_from: science,"))
    assert (fault.code, fault.path) == ("NameInUse", "teams.research.teams.vision.renamed_from")
    fault = only_fault(text.replace("from: product", "from: research"))
    assert (fault.code, fault.severity) == ("NoEffect", "warning")
