"""What leaving restores, deletes and leaves in place."""

from __future__ import annotations

from fairway.policy.leave import Leaving, compute_return, restore_change, unsaved_objects
from fairway.policy.objects import Action, Activity, FoundObject, FoundPolicy, ObjectKey, SavedObject

QUEUE, LOCAL, SPACE, GUARD = (
    ObjectKey("ClusterQueue", "vision"),
    ObjectKey("LocalQueue", "vision/main"),
    ObjectKey("Namespace", "vision"),
    ObjectKey("Binding", "pods"),
)


def policy(*objects: FoundObject) -> FoundPolicy:
    return FoundPolicy("toy", objects, {})


def ours(key: ObjectKey, *after: ObjectKey) -> FoundObject:
    return FoundObject(key, {"value": 1}, ours=True, after=after)


def created(*keys: ObjectKey) -> list[SavedObject]:
    return [SavedObject(key, {}, None) for key in keys]


def test_what_fairway_created_goes_in_the_order_in_which_it_refers_to_each_other() -> None:
    found = policy(ours(QUEUE), ours(LOCAL, QUEUE), ours(GUARD))
    leaving = Leaving((), {}, first=frozenset({"Binding"}))
    returned = compute_return(found, created(QUEUE, LOCAL, GUARD), leaving, {})
    assert [c.key for c in returned.changes] == [GUARD, LOCAL, QUEUE]
    assert {c.action for c in returned.changes} == {Action.DELETE}


def test_a_queue_with_waiting_jobs_stays_with_all_it_needs() -> None:
    found = policy(ours(QUEUE), ours(LOCAL, QUEUE, SPACE), ours(SPACE), ours(GUARD))
    saved = [*created(QUEUE, LOCAL, GUARD), SavedObject(SPACE, {}, {"metadata": {}})]
    restored = (restore_change(SPACE, found.objects[2], saved[-1]),)
    leaving = Leaving(restored, {}, deferred=frozenset({"Namespace"}))
    returned = compute_return(found, saved, leaving, {LOCAL: Activity(waiting=2)})
    assert [c.key for c in returned.changes] == [GUARD]
    assert returned.staying.keys() == {LOCAL, QUEUE, SPACE}
    assert returned.staying[LOCAL] == "2 waiting"


def test_waiting_jobs_that_can_be_moved_do_not_keep_an_object() -> None:
    leaving = Leaving((), {}, movable=frozenset({"ClusterQueue"}))
    returned = compute_return(policy(ours(QUEUE)), created(QUEUE), leaving, {QUEUE: Activity(waiting=2)})
    assert [c.key for c in returned.changes] == [QUEUE]
    busy = {QUEUE: Activity(running=1)}
    assert compute_return(policy(ours(QUEUE)), created(QUEUE), leaving, busy).changes == ()


def test_an_object_that_people_made_is_never_deleted() -> None:
    found = policy(ours(QUEUE))
    assert compute_return(found, [], Leaving((), {}), {}).changes == ()
    assert [o.key for o in unsaved_objects(found, [], marked=("ClusterQueue",))] == [QUEUE]


def test_the_plan_names_each_field_that_comes_back() -> None:
    saved = SavedObject(QUEUE, {"value": 3, "other": "x"}, {})
    change = restore_change(QUEUE, ours(QUEUE), saved)
    fields = {(f.field, f.before, f.after) for f in change.fields}
    assert fields == {("Fairway's mark", "yes", None), ("value", 1, 3), ("other", None, "x")}
