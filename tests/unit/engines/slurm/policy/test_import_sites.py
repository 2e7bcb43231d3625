"""The lab's sites, as a real slurmrestd showed them, become fleets in which nothing is lost silently."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairway.engines.port import ImportedPolicy
from fairway.engines.slurm import SlurmEngine
from fairway.engines.slurm.policy.import_ import import_policy
from fairway.engines.slurm.policy.partition_settings import PARTITION_PARAMETERS
from fairway.files import Severity, check_text
from fairway.files.fleet.write import compose_fleet
from fairway.model.fleet import SlurmPlace
from fairway.model.names import ClusterName
from fairway.model.team import Grant, Supply, TeamTree
from fairway.policy.objects import FoundObject, FoundPolicy, ObjectKey, Value
from tests.tier import examples
from tests.unit.engines.slurm.policy.made import fleet
from tests.unit.engines.slurm.sites import SITES, found_at

SOME = settings(
    max_examples=examples(60),
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def imported(found: FoundPolicy) -> ImportedPolicy:
    return import_policy(replace(fleet(""), pools=()), ClusterName("hpc"), found)


def text_of(done: ImportedPolicy) -> str:
    return compose_fleet(done.fleet, [(r.about, r.text) for r in done.remarks])


@pytest.mark.parametrize("site", SITES)
def test_a_site_is_imported_without_a_fault(site: str) -> None:
    done = imported(found_at(site))
    report = check_text(text_of(done), "imported.yaml")
    assert report.fleet == done.fleet
    assert [f for f in report.faults if f.severity is Severity.ERROR or f.code != "NoPrice"] == []
    assert done.fleet.pools
    assert bool(done.fleet.teams) == (site != "standalone")


def test_untyped_accounting_gives_pools_from_the_nodes() -> None:
    done = imported(found_at("department"))
    (pool,) = done.fleet.pools
    assert pool.place == SlurmPlace("gpu", "a100")
    teams = TeamTree(done.fleet.teams)
    supply = Supply(pool.name)
    assert teams["vision"].grants == (Grant(supply, 0, 16),)
    assert teams["speech"].limits.user_gpus == 6
    said = " ".join(r.text for r in done.remarks)
    assert "AccountingStorageTRES=gres/gpu,gres/gpu:a100" in said


def test_partitions_that_share_nodes_are_one_pool() -> None:
    (pool,) = imported(found_at("campus")).fleet.pools
    assert pool.place == SlurmPlace("short", "a100", ("long", "vip", "interactive"))
    (mixed,) = imported(found_at("mixed")).fleet.pools
    assert mixed.place == SlurmPlace("gpu", "h100", ("all",))
    assert [p.place for p in imported(found_at("zoo")).fleet.pools] == [
        SlurmPlace("main", "a100"),
        SlurmPlace("main", "a40"),
        SlurmPlace("slices"),
    ]


def test_every_account_name_becomes_a_team() -> None:
    done = imported(found_at("faculties"))
    assert {t.account_name: t.name for t in done.fleet.teams if t.account} == {
        "ml_team": "ml-team",
        "astro_2024": "astro-2024",
        "teaching.intro": "teaching-intro",
    }
    assert done.fleet.chosen_teams == {"alice": "hep", "carol": "teaching-intro"}
    assert TeamTree(done.fleet.teams)["astro-2024"].parent == "physics"


def test_users_with_different_limits_are_named_at_their_team() -> None:
    lines = text_of(imported(found_at("faculties"))).splitlines()
    at = next(i for i, line in enumerate(lines) if line.strip() == "ml-team:")
    assert "user bob, team ml-team: GrpTRES=gres/gpu=6 MaxSubmit=100" in lines[at - 1]


@pytest.mark.parametrize("site", SITES)
def test_a_sites_every_field_is_expressed_or_named(site: str) -> None:
    found = found_at(site)
    assert list(silent_fields(found)) == []
    for key, value in found.settings.items():
        parameter = key.rpartition("/")[2]
        if key.startswith("partition/") and parameter in PARTITION_PARAMETERS and value:
            without = {k: v for k, v in found.settings.items() if k != key}
            partition = key.split("/")[1]
            governed = any(partition in _partitions(p.place) for p in imported(found).fleet.pools)
            same = imported(replace(found, settings=without)) == imported(found)
            assert same != governed, key


def _partitions(place: object) -> tuple[str, ...]:
    return place.partitions if isinstance(place, SlurmPlace) else ()


def silent_fields(found: FoundPolicy) -> Iterator[str]:
    """Yield the fields whose absence would change neither the fleet nor a remark."""
    everything = imported(found)
    left_out = {r.about for r in everything.remarks if "it is no team" in r.text}
    for i, o in enumerate(found.objects):
        if f"account {o.key.name.split('/')[0]}" in left_out:
            continue  # the whole account is named, and stays
        for field, value in o.fields.items():
            if _is_usual(o, field, value, found):
                continue
            fields = {k: v for k, v in o.fields.items() if k != field}
            objects = (*found.objects[:i], replace(o, fields=fields), *found.objects[i + 1 :])
            if imported(replace(found, objects=objects)) == everything:
                yield f"{o.key} {field}={value}"


def _is_usual(o: FoundObject, field: str, value: Value, found: FoundPolicy) -> bool:
    """Return whether a field says nothing: every association has a share of 1, and its account's QOS."""
    if field == "Parent":
        return value == "root"
    if o.key.kind != "association":
        return False
    account = next(a for a in found.objects if a.key.name == o.key.name.split("/")[0])
    return (field, value) in (("Fairshare", 1), ("QOS", account.fields.get("QOS")))


TRES = st.sampled_from(("cpu", "gres/gpu", "gres/gpu:a100", "gres/gpu:h100", "license/ansys"))
LIMITS = st.dictionaries(
    st.one_of(
        st.sampled_from(("MaxJobs", "MaxSubmit", "MaxWall", "GrpJobs", "GrpSubmit", "GrpWall", "Priority")),
        st.builds("{}.{}".format, st.sampled_from(("GrpTRES", "MaxTRESPerJob", "GrpTRESMins")), TRES),
    ),
    st.integers(0, 40),
    max_size=4,
)


@st.composite
def policies(draw: st.DrawFn) -> FoundPolicy:
    """Accounts of any legal name in up to three levels, with users, limits and QOS."""
    name = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,8}", fullmatch=True)
    accounts = draw(st.lists(name, min_size=1, max_size=5, unique_by=str.lower))
    objects: list[FoundObject] = []
    for i, account in enumerate(accounts):
        parent = draw(st.sampled_from(("root", *accounts[:i])))
        share = draw(st.sampled_from((1, 3, 2**31 - 1)))
        fields: dict[str, Value] = {"Parent": parent, "Fairshare": share, **draw(LIMITS)}
        if draw(st.booleans()):
            fields["QOS"] = ("fast", "normal")
        objects.append(FoundObject(ObjectKey("account", account), fields, ours=False))
        for user in draw(st.sets(st.sampled_from(("ann", "ben", "cy")))):
            own: dict[str, Value] = {"Fairshare": draw(st.sampled_from((1, 5))), **draw(LIMITS)}
            objects.append(FoundObject(ObjectKey("association", f"{account}/{user}"), own, ours=False))
    objects.append(FoundObject(ObjectKey("qos", "fast"), draw(LIMITS), ours=False))
    types = draw(st.sampled_from(("gres/gpu:a100=16", "gres/gpu:a100=8,gres/gpu:h100=8")))
    return FoundPolicy("slurm 24.11.5", tuple(objects), {"nodes/gpu,short": f"node=2,gres/gpu=16,{types}"})


@SOME
@given(policies())
def test_nothing_set_is_dropped_silently(found: FoundPolicy) -> None:
    assert list(silent_fields(found)) == []


@SOME
@given(policies())
def test_any_policy_is_imported_without_an_error(found: FoundPolicy) -> None:
    done = imported(found)
    report = check_text(text_of(done), "imported.yaml")
    assert [f for f in report.faults if f.severity is Severity.ERROR] == []
    assert report.fleet == done.fleet
    accounts = {o.key.name for o in found.objects if o.key.kind == "account"}
    assert {t.account_name for t in done.fleet.teams} <= accounts
    no_team = {re.sub("^account ", "", r.about) for r in done.remarks if "it is no team" in r.text}
    assert accounts == {t.account_name for t in done.fleet.teams} | no_team


def test_a_cluster_without_accounting_is_left_alone() -> None:
    found = found_at("standalone")
    done = imported(found)
    assert any("no accounts here" in r.text for r in done.remarks)
    engine = SlurmEngine(fleet().clusters[0], fleet().pools)
    wanted = engine.translate(fleet(), found)
    assert (wanted.objects, [n.code for n in wanted.notices]) == ((), ["NoAccounting"])


def test_limits_by_type_wait_until_accounting_has_the_type() -> None:
    found = found_at("department")
    done = imported(found).fleet
    engine = SlurmEngine(done.clusters[0], done.pools)
    wanted = engine.translate(done, found)
    # slurmdbd would drop them without a word, so that every plan would show them again
    assert [f for o in wanted.objects for f in o.fields if f.startswith("GrpTRES.gres/gpu:")] == []
    account = next(o for o in wanted.objects if o.key == ObjectKey("account", "vision"))
    assert account.fields["GrpTRES.gres/gpu"] == 16  # the site's own stays
    assert "TypeNotTracked" in {n.code for n in wanted.notices}
    typed = {k: v.replace("gres/gpu=24", "gres/gpu=24,gres/gpu:a100=24") for k, v in found.settings.items()}
    again = engine.translate(done, replace(found, settings=typed))
    account = next(o for o in again.objects if o.key == ObjectKey("account", "vision"))
    assert account.fields["GrpTRES.gres/gpu:a100"] == 16


@pytest.mark.parametrize("site", SITES)
def test_what_is_imported_changes_no_account_but_its_qos_list(site: str) -> None:
    found = found_at(site)
    done = imported(found).fleet
    wanted = {o.key: o for o in SlurmEngine(done.clusters[0], done.pools).translate(done, found).objects}
    for o in found.objects:
        if (now := wanted.get(o.key)) is not None and site != "standalone":
            fields = o.fields.keys() - {"QOS"}
            assert {f: now.fields.get(f) for f in fields} == {f: o.fields.get(f) for f in fields}, o.key
            qos = o.fields.get("QOS") or ()
            assert set(qos if isinstance(qos, tuple) else ()) <= set(now.fields.get("QOS") or ())  # type: ignore[arg-type]
