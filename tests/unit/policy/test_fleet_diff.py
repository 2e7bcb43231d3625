"""What changes between two fleets, as a person would say it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fairway.files import parse_fleet
from fairway.model.fleet import Fleet
from fairway.model.names import PoolName, PriorityName, TeamName, UserName
from fairway.model.team import Grant, Limits, Supply, Team
from fairway.policy.fleet_diff import FieldDiff, TeamDiff, describe, is_budget_field
from tests.growth import grows_at_most
from tests.unit.files.fleets import SHARED, changed

BEFORE = parse_fleet(SHARED, "fleet.yaml", Path("/etc"))


def said(after: str, before: str = SHARED) -> list[tuple[str | None, str]]:
    """Every change as one line, beside its team."""
    fleets = [parse_fleet(text, "fleet.yaml", Path("/etc")) for text in (before, after)]
    return [(group.team, line(c)) for group in describe(*fleets) for c in group.changes]


def line(change: FieldDiff) -> str:
    values = " → ".join(v for v in (change.before, change.after) if v is not None)
    return f"{change.sign} {change.what} {values}".strip()


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("hpc-a100: 8", "hpc-a100: 12", [("nlp", "~ guarantee on hpc-a100 8 → 12")]),
        ("share: 60", "share: 50", [("research", "~ share 60 → 50")]),
        (
            "share: 2,",
            "share: 2, budget: { amount: 120000, at_limit: low-only, running: end },",
            [
                ("nlp", "+ budget 120,000 a month"),
                ("nlp", "+ at budget limit low-only, and what runs is ended"),
            ],
        ),
        ("[bob]", "[bob, dana]", [("product", "+ member dana")]),
        (
            "share: 2,",
            "share: 2, notify: { slack: { url_file: /s }, mail: { to: [a@b.org, c@d.org] } },",
            [("nlp", "+ notices go to slack by /s, mail to a@b.org c@d.org")],
        ),
        (
            "fairness:",
            "notify: { webhook: { url: https://a.org/, token_file: /t } }\nfairness:",
            [(None, "+ operators' notices go to webhook https://a.org/, with /t")],
        ),
        ("[bob]", "[dana]", [("product", "+ member dana"), ("product", "- member bob")]),
        (
            "borrow: { hpc-a100: 16 }",
            "borrow: { hpc-a100: unlimited }",
            [("research", "~ borrow on hpc-a100 16 → unlimited")],
        ),
        ("[bob]", "[bob]\n    borrow: { cloud-h100: 4 }", [("product", "+ borrow on cloud-h100 4")]),
        (
            ", lab-mig/1g.10gb: 32 }",
            " }",
            [("research", "- guarantee on lab-mig/1g.10gb 32")],
        ),
        # What vision says of it goes with the parent's grant: nothing of its own changes.
        ("borrow: { lab-mig/1g.10gb: 0 }, ", "", [("vision", "+ borrow on lab-mig/1g.10gb unlimited")]),
        ("time: 72h", "time: 36h", [("research", "~ time of a job 3d → 1d12h")]),
        ("job: { gpus: 32, ", "job: { ", [("research", "~ GPUs of a job 32 → unlimited")]),
        ("user: { gpus: 24 }", "user: { gpus: 8 }", [("research", "~ GPUs of a user 24 → 8")]),
        ("nlp: {", "nlp: { limits: { job: { gpus: 4 } },", [("nlp", "~ GPUs of a job 32 → 4")]),
        ("[urgent, normal]", "[normal]", [("product", "~ priorities urgent, normal → normal")]),
        ("share: 60", "share: 60\n    draining: true", [("research", "~ draining no → yes")]),
        ("half_life: 14d", "half_life: 36h", [(None, "~ half-life 14d → 1d12h")]),
        ("rank: 100", "rank: 90", [(None, "~ rank of priority urgent 100 → 90")]),
        (
            "rank: 100 }",
            "rank: 100 }\n  nightly: { rank: 5, preemptible: always }",
            [(None, "+ priority nightly")],
        ),
        (
            "50, default: true }\n  low: { rank: 10, preemptible: always",
            "50 }\n  low: { rank: 10, default: true",
            [(None, "~ priority low always preemptible yes → no"), (None, "~ default priority normal → low")],
        ),
        ("default_team: nlp", "default_team: vision", [(None, "~ default team of alice nlp → vision")]),
        ("price: 3.67", "price: 3.5", [(None, "~ price of pool cloud-h100 3.67 → 3.5")]),
        ("gpus: 32\n", "gpus: 40\n", [(None, "~ size of pool hpc-a100 32 GPUs → 40 GPUs")]),
        (
            "gres: a100",
            "gres: a",
            [(None, "~ place of pool hpc-a100 partition gpu, gres a100 → partition gpu, gres a")],
        ),
        ("nodes: 2,", "nodes: 9,", None),
        (
            "kubeconfig: /etc/fairway/cloud.kubeconfig",
            "context: b",
            [(None, "~ cluster cloud /etc/fairway/cloud.kubeconfig → the pod's service account, context b")],
        ),
    ],
    ids=lambda v: str(v)[:24],
)
def test_one_edit_is_said_in_its_own_words(
    old: str, new: str, expected: list[tuple[str | None, str]] | None
) -> None:
    found = said(changed(old, new, SHARED))
    if expected is None:
        assert [team for team, _ in found] == [None]
    else:
        assert found == expected


def test_nothing_changed_is_nothing_said() -> None:
    assert describe(BEFORE, BEFORE) == ()
    assert said(SHARED.replace("[alice, erin]", "[erin, alice]")) == []


def test_a_new_team_says_what_it_has_and_not_what_it_inherits() -> None:
    eyes = "eyes: { share: 3, guarantee: { lab-mig/1g.10gb: 2 }, borrow: { hpc-a100: 0 }, members: [zoe] }"
    assert said(changed("      nlp: {", f"      {eyes}\n      nlp: {{", SHARED)) == [
        ("eyes", "+ team eyes"),
        ("eyes", "+ parent research"),
        ("eyes", "+ share 3"),
        ("eyes", "+ borrow on hpc-a100 0"),
        ("eyes", "+ guarantee on lab-mig/1g.10gb 2"),
        ("eyes", "+ member zoe"),
    ]


def test_a_team_that_goes_comes_last() -> None:
    text = changed("      vision: { borrow: { lab-mig/1g.10gb: 0 }, members: [alice, carol] }\n", "", SHARED)
    assert said(text.replace("share: 40", "share: 41")) == [
        ("product", "~ share 40 → 41"),
        ("vision", "- team vision"),
    ]


def test_a_team_that_moves() -> None:
    vision = "      vision: { borrow: { lab-mig/1g.10gb: 0 }, members: [alice, carol] }\n"
    text = changed(vision, "", SHARED).replace(
        "    members: [bob]\n", "    members: [bob]\n    teams: { vision: { members: [alice, carol] } }\n"
    )
    assert said(text)[0] == ("vision", "~ parent research → product")


def test_the_first_fleet_is_all_new() -> None:
    groups = describe(None, BEFORE)
    assert [group.team for group in groups] == [None, "research", "nlp", "vision", "product"]
    assert {change.sign for group in groups for change in group.changes} == {"+"}
    lines = [line(c) for c in groups[0].changes]
    assert lines[:3] == ["+ fleet acme", "+ currency USD", "+ cluster hpc"]
    assert "+ default team of alice nlp" in lines


def many(teams: int) -> Fleet:
    supply = Supply(PoolName("hpc-a100"))
    found = []
    for i in range(teams // 10):
        parent = Team(TeamName(f"p{i}"), None, 1, (Grant(supply, 10),), Limits(8), (PriorityName("normal"),))
        found.append(parent)
        found += [
            Team(
                TeamName(f"p{i}-c{j}"),
                parent.name,
                1,
                (Grant(supply, 1),),
                Limits(8),
                parent.priorities,
                tuple(UserName(f"u{i}-{j}-{k}") for k in range(4)),
            )
            for j in range(9)
        ]
    return replace(BEFORE, teams=tuple(found), chosen_teams={})


def test_describing_grows_with_the_teams_and_not_faster() -> None:
    def raised(before: Fleet) -> Fleet:
        return replace(before, teams=tuple(replace(t, share=t.share + 1) for t in before.teams))

    few, all_ = many(500), many(5000)
    few_after, all_after = raised(few), raised(all_)
    # Ten times as much; a quadratic part would make it a hundred.
    assert grows_at_most(10 * 3, lambda: describe(few, few_after), lambda: describe(all_, all_after))
    groups = describe(all_, all_after)
    assert len(groups) == 5000
    assert groups[0] == TeamDiff(TeamName("p0"), (FieldDiff("~", "share", "1", "2"),))


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ("{ amount: 150000 }", ["~ budget 120,000 a month → 150,000"]),
        ("{ amount: 300000, every: quarter }", ["~ budget 120,000 a month → 300,000 a quarter"]),
        ("{ amount: 120000, warn_at: 62.5% }", ["~ budget warning at 80 % → 62.5 %"]),
        ("{ amount: 120000, at_limit: stop }", ["~ at budget limit warn → stop"]),
        ("{ amount: 120000 }", []),
        (None, ["- budget 120,000 a month"]),
    ],
)
def test_a_budget_that_changes_is_said_in_its_own_words(after: str | None, expected: list[str]) -> None:
    before = changed("share: 2,", "share: 2, budget: { amount: 120000 },", SHARED)
    now = SHARED if after is None else changed("share: 2,", f"share: 2, budget: {after},", SHARED)
    assert said(now, before) == [("nlp", text) for text in expected]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (None, "{ amount: 5000 }", "+ budget: cloud 5,000 a month, warns at 80 %, of the fleet"),
        (
            "{ amount: 5000 }",
            "{ amount: 6000, team: nlp, capacity: [spot] }",
            "~ budget: cloud 5,000 a month, warns at 80 %, of the fleet"
            " → 6,000 a month, warns at 80 %, of team nlp, spot capacity",
        ),
        ("{ amount: 5000 }", None, "- budget: cloud 5,000 a month, warns at 80 %, of the fleet"),
    ],
)
def test_a_budget_of_the_fleet_is_a_line_that_not_everybody_may_see(
    before: str | None, after: str | None, expected: str
) -> None:
    texts = [SHARED if b is None else f"{SHARED}budgets:\n  cloud: {b}\n" for b in (before, after)]
    assert said(texts[1], texts[0]) == [(None, expected)]
    assert is_budget_field("budget: cloud") and is_budget_field("budget") and not is_budget_field("share")
