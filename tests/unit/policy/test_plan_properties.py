"""What holds for every plan, whatever the policy and the cluster."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from fairway.model.apply import DriftKind
from fairway.policy.drift import find_drift
from fairway.policy.objects import Action, FoundObject, ObjectKey, Value, WantedObject
from fairway.policy.plan import compute_changes
from tests.unit.policy.clusters import KEYS, Situation, fields, made, patient, set_fields, situations


@patient
@given(situations)
def test_the_changes_make_the_cluster_what_is_wanted(situation: Situation) -> None:
    wanted, found = situation.wanted, situation.found
    after = made(found, compute_changes(wanted, found))
    strangers = {o.key: o for o in found.objects if not o.ours}
    asked = {o.key: o for o in wanted.objects}
    has = {o.key: o for o in after.objects}
    assert set(has) == set(asked) | set(strangers)
    for key, want in asked.items():
        if key not in strangers and not want.shared:
            assert set_fields(has[key].fields) == set_fields(want.fields)


@patient
@given(situations)
def test_then_there_is_nothing_left_to_do(situation: Situation) -> None:
    after = made(situation.found, compute_changes(situation.wanted, situation.found))
    assert compute_changes(situation.wanted, after) == ()


@patient
@given(situations, st.integers(0, 20))
def test_from_any_point_on_the_way_the_rest_is_what_was_left(situation: Situation, done: int) -> None:
    """A resumed apply: what is made no longer differs, and nothing else came to it."""
    changes = compute_changes(situation.wanted, situation.found)
    midway = made(situation.found, changes[:done])
    again = compute_changes(situation.wanted, midway)
    assert [(c.key, c.action, c.wanted) for c in again] == [
        (c.key, c.action, c.wanted) for c in changes[done:]
    ]


@patient
@given(situations)
def test_everything_is_written_after_what_it_needs_and_goes_before_it(situation: Situation) -> None:
    changes = compute_changes(situation.wanted, situation.found)
    stage = {c.key: c.stage for c in changes}
    writes = [c for c in changes if c.action is not Action.DELETE]
    deletions = [c for c in changes if c.action is Action.DELETE]
    assert [c.stage for c in changes] == sorted(c.stage for c in changes)
    assert all(w.stage < d.stage for w in writes for d in deletions)
    needs = {o.key: o.after for o in situation.wanted.objects}
    for change in writes:
        for need in needs[change.key]:
            assert need not in stage or stage[need] < change.stage or need in {d.key for d in deletions}
    leans = {o.key: o.after for o in situation.found.objects}
    for change in deletions:
        for need in leans[change.key]:
            if any(d.key == need for d in deletions):
                assert stage[need] > change.stage


@patient
@given(situations)
def test_an_object_without_our_mark_is_never_changed(situation: Situation) -> None:
    plan = situation.plan()
    strangers = {o.key for o in situation.found.objects if not o.ours}
    assert not strangers & {c.key for c in plan.changes}
    asked = {o.key for o in situation.wanted.objects if not o.shared}
    assert {o.key for o in plan.in_the_way} == strangers & asked
    assert bool(plan.in_the_way) == any(o.code == "InTheWay" and not o.forceable for o in plan.objections)


@patient
@given(situations)
def test_what_must_only_exist_is_made_and_never_touched_again(situation: Situation) -> None:
    shared = {o.key for o in situation.wanted.objects if o.shared}
    changes = compute_changes(situation.wanted, situation.found)
    assert {c.action for c in changes if c.key in shared} <= {Action.CREATE}


@patient
@given(situations)
def test_no_plan_without_objection_takes_an_object_from_its_jobs(situation: Situation) -> None:
    plan = situation.plan()
    jobs = {c.key for c in plan.changes if c.action is Action.DELETE and _has_jobs(situation, c.key)}
    ends = [o for o in plan.objections if o.code in {"TeamHasJobs", "WouldEndJobs"}]
    assert bool(jobs) == bool(ends)
    assert all(o.forceable and "draining" in o.hint for o in ends)


@patient
@given(situations)
def test_drift_names_exactly_what_would_be_changed(situation: Situation) -> None:
    changes = compute_changes(situation.wanted, situation.found)
    entries = find_drift(situation.wanted, situation.found, changes)
    unmarked = {e.key for e in entries if e.kind is DriftKind.UNMARKED}
    assert unmarked == {o.key for o in situation.plan().in_the_way}
    assert {e.key for e in entries} - unmarked == {c.key for c in changes}
    assert len({(e.key, e.field) for e in entries}) == len(entries)


@patient
@given(situations, st.sampled_from(KEYS), fields)
def test_the_fingerprint_is_another_one_when_something_governed_changes(
    situation: Situation, key: ObjectKey, other: dict[str, Value]
) -> None:
    found = {o.key: o for o in situation.found.objects}
    asked = {o.key: o for o in situation.wanted.objects}
    before = situation.plan().fingerprint
    have, ours = found.get(key), FoundObject(key, other, ours=True)
    was_ours = have is not None and have.ours
    # Of a thing that must merely exist, its fields are nobody's business.
    merely = key in asked and asked[key].shared
    if not was_ours or (have and not merely and set_fields(have.fields) != set_fields(other)):
        moved = replace(situation.found, objects=tuple((found | {key: ours}).values()))
        assert replace(situation, found=moved).plan().fingerprint != before
    if key not in asked or merely or set_fields(asked[key].fields) != set_fields(other):
        rewritten = tuple((asked | {key: WantedObject(key, other)}).values())
        wanted = replace(situation.wanted, objects=rewritten)
        assert replace(situation, wanted=wanted).plan().fingerprint != before


@patient
@given(situations, fields, st.randoms())
def test_the_fingerprint_stays_whatever_else_changes(
    situation: Situation, other: dict[str, Value], chance: Random
) -> None:
    found = {o.key: o for o in situation.found.objects}
    asked = {o.key for o in situation.wanted.objects}
    # Strangers come, go nowhere, and change, except where a wanted name was free.
    for key in KEYS:
        if not (found[key].ours if key in found else key in asked):
            found[key] = FoundObject(key, other, ours=False, changed_by="root")
    objects = list(found.values())
    chance.shuffle(objects)
    moved = replace(situation.found, objects=tuple(objects), settings={"half-life": "7-0"})
    assert replace(situation, found=moved, jobs={}).plan().fingerprint == situation.plan().fingerprint


def _has_jobs(situation: Situation, key: ObjectKey) -> bool:
    jobs = situation.jobs.get(key)
    return jobs is not None and bool(jobs.running or jobs.waiting)
