"""A second cluster's import joins a fleet file, which keeps what it says."""

from __future__ import annotations

from fairway.files import Severity, check_text, parse_fleet
from fairway.files.fleet.merge import comments_of, merge_fleets
from fairway.files.fleet.write import compose_fleet
from fairway.model.fleet import Fleet
from fairway.model.team import Supply, TeamTree
from tests.unit.files.fleets import FOLDER, SHARED

ADDED = """\
apiVersion: fairway/v1alpha1
kind: Fleet
name: acme
currency: USD
partial: true
clusters:
  edge: { engine: slurm, url: "https://edge.example.org:6820", credentials: { token_file: /etc/edge } }
pools:
  # pool hpc-a100: A100-80GB is a guess
  hpc-a100: { cluster: edge, gpu: A100-80GB, capacity: owned, price: 0, slurm: { partition: gpu } }
  edge-h100: { cluster: edge, gpu: H100-80GB, capacity: owned, price: 0, slurm: { partition: h100 } }
teams:
  # account Product: MaxJobs=5 has no word here and stays as it is
  product: { account: Product, share: 7, guarantee: { edge-h100: 4 }, members: [bob, dora] }
  nlp: { guarantee: { hpc-a100: 2 }, members: [alice] }
  physics: { borrow: { hpc-a100: unlimited }, members: [bob] }
users:
  bob: { default_team: physics }
"""


def merged() -> tuple[Fleet, Fleet, list[tuple[str, str]]]:
    base = parse_fleet(SHARED, "base", FOLDER)
    together, remarks = merge_fleets(base, parse_fleet(ADDED, "added", FOLDER))
    return base, together, remarks


def test_what_the_file_says_stays() -> None:
    base, together, _ = merged()
    assert together.clusters[:3] == base.clusters and together.clusters[3].name == "edge"
    assert together.pools[:3] == base.pools
    tree, before = TeamTree(together.teams), TeamTree(base.teams)
    for team in base.teams:
        now = tree[team.name]
        assert (now.share, now.limits, now.parent) == (team.share, team.limits, team.parent)
        assert now.grants[: len(team.grants)] == before[team.name].grants
        assert set(now.members) >= set(team.members)
    assert not together.partial


def test_teams_of_one_name_are_one_and_pools_of_one_name_are_two() -> None:
    _, together, remarks = merged()
    assert [p.name for p in together.pools[3:]] == ["edge-hpc-a100", "edge-h100"]
    tree = TeamTree(together.teams)
    assert tree["product"].members == ("bob", "dora")
    assert tree["product"].account == "Product"
    edge = Supply(together.pools[3].name)
    # A child's guarantee is part of its parent's.
    assert [tree[name].grant(edge).guarantee for name in ("nlp", "research")] == [2, 2]  # type: ignore[union-attr]
    assert together.chosen_teams["bob"] == "physics"  # type: ignore[index]
    said = " ".join(f"{about}: {text}" for about, text in remarks)
    assert "team product: is on cluster edge too" in said and "its share there differ" in said


def test_the_merged_file_has_no_fault_and_both_files_comments() -> None:
    _, together, remarks = merged()
    names = {str(t.name) for t in together.teams} | {str(p.name) for p in together.pools}
    mine = SHARED.replace("  product:\n", "  # talk to bob first\n  product:\n")
    text = compose_fleet(together, remarks, [*comments_of(mine, names), *comments_of(ADDED, names)])
    report = check_text(text, "both.yaml", FOLDER)
    assert [f for f in report.faults if f.severity is Severity.ERROR] == []
    assert report.fleet == together
    above = text[: text.index("\n  product:")].splitlines()[-6:]
    assert "  # talk to bob first" in above
    assert any("MaxJobs=5" in line for line in above)


def test_merging_a_cluster_again_changes_nothing() -> None:
    _, together, _ = merged()
    again, _ = merge_fleets(together, parse_fleet(ADDED.replace("hpc-a100", "edge-hpc-a100"), "x", FOLDER))
    assert again == together
