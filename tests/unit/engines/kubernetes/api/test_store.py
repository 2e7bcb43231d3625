from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairway.engines.kubernetes.api.store import Added, Change, Deleted, Key, Modified, Store, StoredObject

A: Key = ("x", "a")
B: Key = ("x", "b")


def held(version: int, uid: str = "u1") -> StoredObject[str]:
    return StoredObject(uid, version, f"{uid}@{version}")


class Follower:
    """A consumer that knows only the changes it was told."""

    def __init__(self, store: Store[str]) -> None:
        self.changes: list[Change[str]] = []
        self.state: dict[Key, StoredObject[str]] = {}
        store.subscribe(self)

    def __call__(self, change: Change[str]) -> None:
        self.changes.append(change)
        match change:
            case Added(key, now):
                assert key not in self.state
                self.state[key] = now
            case Modified(key, before, now):
                assert self.state[key] == before
                assert (before.uid, before.version) < (now.uid, now.version)
                self.state[key] = now
            case Deleted(key, before):
                assert self.state.pop(key) == before


def test_add_modify_delete() -> None:
    store: Store[str] = Store()
    told = Follower(store)

    store.put(A, held(1))
    store.put(A, held(2))
    store.remove(A, "u1", 3)

    assert told.changes == [Added(A, held(1)), Modified(A, held(1), held(2)), Deleted(A, held(2))]
    assert len(store) == 0


def test_old_and_repeated_states_change_nothing() -> None:
    store: Store[str] = Store()
    store.put(A, held(5))
    told = Follower(store)

    store.put(A, held(5))
    store.put(A, held(4))
    store.remove(A, "u1", 4)
    store.remove(A, "another uid", 9)
    store.remove(B, "u1", 9)
    store.replace({A: held(4)}, 4)
    store.replace({}, 4)

    assert told.changes == [Added(A, held(5))]


def test_an_object_made_again_under_its_name_is_another_object() -> None:
    store: Store[str] = Store()
    store.put(A, held(1))
    told = Follower(store)

    store.replace({A: held(7, "u2")}, 8)
    store.put(A, held(9, "u3"))

    assert told.changes[1:] == [
        Deleted(A, held(1)),
        Added(A, held(7, "u2")),
        Deleted(A, held(7, "u2")),
        Added(A, held(9, "u3")),
    ]


def test_a_relist_tells_only_what_differs() -> None:
    store: Store[str] = Store()
    store.replace({A: held(1), B: held(2), ("x", "c"): held(3)}, 3)
    told = Follower(store)
    before = len(told.changes)

    store.replace({B: held(2), ("x", "c"): held(5), ("x", "d"): held(6)}, 6)

    assert told.changes[before:] == [
        Deleted(A, held(1)),
        Modified(("x", "c"), held(3), held(5)),
        Added(("x", "d"), held(6)),
    ]


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(["write", "delete", "miss", "relist"])), max_size=60
    )
)
def test_whatever_is_missed_a_relist_makes_good(steps: list[tuple[str, str]]) -> None:
    """A cluster of three names lives; the store misses some of it; after a relist all agree."""
    truth: dict[Key, StoredObject[str]] = {}
    store: Store[str] = Store()
    told = Follower(store)
    version, missed = 0, False
    for name, step in steps:
        key = ("", name)
        version += 1
        if step == "relist":
            store.replace(dict(truth), version)
            missed = False
        elif step == "miss":
            missed = True  # from here the watch is broken until the next relist
        elif step == "delete":
            gone = truth.pop(key, None)
            if gone and not missed:
                store.remove(key, gone.uid, version)
        else:
            uid = truth[key].uid if key in truth else f"u{version:03d}"
            truth[key] = held(version, uid)
            if not missed:
                store.put(key, truth[key])
    store.replace(dict(truth), version + 1)

    assert dict(store.items()) == truth == told.state
