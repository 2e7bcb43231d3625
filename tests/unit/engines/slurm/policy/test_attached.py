"""Whether slurmctld gets what slurmdbd stores. The replies are as Slurm 24.11.5 gives them."""

from __future__ import annotations

from typing import Any, cast

import pytest

from fairway.engines.port import Unreachable
from fairway.engines.slurm.policy import attached
from fairway.engines.slurm.policy.attached import address_in, confirm, missing_changes
from fairway.engines.slurm.rest.client import SlurmRest
from fairway.policy.objects import Action, Change, ObjectKey

META = {"meta": {"slurm": {"cluster": "fairway"}}}


def clusters(host: str, port: int) -> dict[str, Any]:
    other = {"name": "other", "controller": {"host": "10.0.0.1", "port": 6817}}
    return META | {"clusters": [other, {"name": "fairway", "controller": {"host": host, "port": port}}]}


def row(name: str, parent: str, shares: int, *, user: bool = False) -> dict[str, Any]:
    number = {"set": True, "infinite": False, "number": shares}
    return {"name": name, "parent": parent, "shares": number, "type": ["USER" if user else "ASSOCIATION"]}


SHARES = {"shares": {"shares": [row("research", "root", 60), row("alice", "research", 1, user=True)]}}


class Rest:
    def __init__(self, host: str, port: int) -> None:
        self.replies = {attached._CLUSTERS: clusters(host, port), attached._SHARES: META | SHARES}

    async def get_if_served(self, path: str) -> Any:
        return self.replies.get(path)


def update(kind: str, name: str, share: int, action: Action = Action.UPDATE) -> Change:
    return Change(action, ObjectKey(kind, name), wanted={"Fairshare": share})


def test_the_address_is_that_of_the_cluster_which_replied() -> None:
    assert address_in(clusters("127.0.0.1", 20042)) == "127.0.0.1:20042"
    assert address_in(clusters("", 0)) == ""
    assert address_in(META | {"clusters": []}) is None


async def test_nothing_is_confirmed_while_slurmdbd_has_no_address_of_slurmctld() -> None:
    with pytest.raises(Unreachable) as raised:
        await confirm(cast("SlurmRest", Rest("", 0)), ())
    assert raised.value.code == "AccountingDetached"
    await confirm(cast("SlurmRest", Rest("127.0.0.1", 20042)), ())


async def test_changes_that_slurmctld_does_not_have_are_named() -> None:
    rest = cast("SlurmRest", Rest("127.0.0.1", 20042))
    await confirm(rest, [update("account", "research", 60), update("association", "research/alice", 1)])
    with pytest.raises(Unreachable) as raised:
        await confirm(rest, [update("account", "research", 61)])
    assert raised.value.code == "ControllerBehind"
    assert "account research" in raised.value.message


def test_what_was_deleted_must_be_gone_and_what_was_created_there() -> None:
    gone = update("account", "research", 60, Action.DELETE)
    new = update("account", "nlp", 2, Action.CREATE)
    assert missing_changes(SHARES, [gone, new]) == ["account research", "account nlp"]
    assert missing_changes({"shares": {"shares": []}}, [gone]) == []


async def test_a_cluster_without_accounting_confirms_everything() -> None:
    rest = Rest("", 0)
    rest.replies = {}
    await confirm(cast("SlurmRest", rest), [update("account", "research", 60)])
