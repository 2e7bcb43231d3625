"""Write changes of one stage: many records per request, one by one to find a refused one.

Surprising behaviour of the API, each observed on 24.11.5 and 26.05.5:
- POST associations creates no account: one with `user: ""` that does not exist yet becomes a record outside
  the tree. Accounts are created by POST accounts_association, all those of one parent at once.
- POST associations for an account that does not exist answers 200 and does nothing.
- POST associations for a user that names no QOS stores the list it inherits, which nothing empties again: so
  its list is always named.
- DELETE association of a user's default account fails while the user has another account.
- DELETE account deletes every account inside it too; with active jobs it answers 304 and does nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Final
from urllib.parse import quote, urlencode

from fairway.engines.slurm.policy import names, records, restore
from fairway.engines.slurm.policy.read import (
    CTL,
    DB,
    associations_path,
    cluster_of,
    marked_accounts,
)
from fairway.engines.slurm.policy.records import Record
from fairway.engines.slurm.rest.client import SlurmRest
from fairway.model.errors import Refused
from fairway.policy.objects import Action, Change

RECORDS_A_REQUEST: Final = 200
"""About two seconds of slurmdbd's time: far from any timeout, and soon a sign of progress."""

_ORDER: Final = (
    *((kind, Action.UPDATE) for kind in ("qos", "account", "user", "association")),
    *((kind, Action.ADOPT) for kind in ("qos", "account", "association", "user")),
    *((kind, Action.RESTORE) for kind in ("qos", "account", "association")),
    *((kind, Action.DELETE) for kind in ("association", "user", "account", "qos")),
)


class SlurmPolicyWriter:
    """Writes to one cluster's accounting."""

    def __init__(self, rest: SlurmRest) -> None:
        self._rest = rest
        self._cluster = ""

    async def cluster(self) -> str:
        """Return the cluster's name in the accounting."""
        if not self._cluster:
            self._cluster = cluster_of(await self._rest.request("GET", f"{CTL}/ping/"))
        return self._cluster

    async def write(self, changes: Sequence[Change]) -> AsyncIterator[Change]:
        """Make the changes, in any order; yield each once it is made."""
        await self.cluster()
        for kind, action in _ORDER:
            matching = [c for c in changes if c.key.kind == kind and _request_action(c) == action]
            for at in range(0, len(matching), RECORDS_A_REQUEST):
                async for change in self._batch(kind, action, matching[at : at + RECORDS_A_REQUEST]):
                    yield change

    async def _batch(self, kind: str, action: Action, batch: list[Change]) -> AsyncIterator[Change]:
        refused = False
        try:
            await self._send(kind, action, batch)
        except Refused:
            if len(batch) == 1:
                raise
            refused = True
        for change in batch:
            if refused:  # one by one, to find which one it was: the API does not say
                try:
                    await self._send(kind, action, [change])
                except Refused as refusal:
                    raise Refused(
                        refusal.code, f"{change.action} {change.key}: {refusal.message}", refusal.hint
                    ) from refusal
            yield change

    async def _send(self, kind: str, action: Action, batch: list[Change]) -> None:
        match kind, action:
            case "qos", Action.UPDATE:
                await self._rest.request("POST", f"{DB}/qos/", {"qos": [_qos(c) for c in batch]})
            case "account", Action.UPDATE:
                await self._create_accounts([c for c in batch if c.action is Action.CREATE])
                await self._write_associations(batch)
            case "user", Action.UPDATE:
                await self._rest.request(
                    "POST", f"{DB}/users/", {"users": [{"name": c.key.name} for c in batch]}
                )
            case "association", Action.UPDATE:
                await self._write_associations(batch)
            case "qos", Action.ADOPT:
                await self._adopt("qos", {c.key.name for c in batch})
            case "account", Action.ADOPT:
                await self._adopt("accounts", {c.key.name for c in batch})
            case _, Action.RESTORE:
                await restore.write_restored(self._rest, self._cluster, batch)
            case ("association", Action.ADOPT) | ("user", Action.ADOPT):
                pass  # an account's mark covers its associations; a user's record is shared
            case _, Action.DELETE:
                if kind == "association":
                    await self._move_defaults(batch)
                for change in batch:
                    await self._delete(change)

    # create and update

    async def _create_accounts(self, changes: Iterable[Change]) -> None:
        families: dict[str, list[str]] = {}
        for change in changes:
            families.setdefault(str((change.wanted or {})["Parent"]), []).append(change.key.name)
        for parent, accounts in families.items():
            body = {
                "association_condition": {
                    "accounts": accounts,
                    "clusters": [self._cluster],
                    "association": {"parent": parent},
                },
                "account": {"description": names.MARK, "organization": "fairway"},
            }
            await self._rest.request("POST", f"{DB}/accounts_association/", body)

    async def _write_associations(self, changes: Iterable[Change]) -> None:
        bodies = [self._association(c) for c in changes]
        if new := [c for c in changes if c.action is Action.CREATE and c.key.kind == "association"]:
            await self._set_defaults(new, bodies)
        await self._rest.request("POST", f"{DB}/associations/", {"associations": bodies})

    def _association(self, change: Change) -> Record:
        account, user, partition = (*change.key.name.split("/"), "", "")[:3]
        columns = records.ASSOCIATION if user else records.ACCOUNT
        return {
            **records.to_record(columns, change.wanted or {}, change.fields, clear_tres=False),
            "account": account,
            "user": user,
            **({"partition": partition} if partition else {}),
            "cluster": self._cluster,
        }

    async def _set_defaults(self, new: Sequence[Change], bodies: Iterable[Record]) -> None:
        """Make a user's first account its default; a user who has one already keeps it."""
        found = await self._associations_of({c.key.name.partition("/")[2] for c in new})
        with_default = {a["user"] for a in found if a.get("is_default")}
        for body in bodies:
            if body["user"] and body["user"] not in with_default:
                body["is_default"] = True
                with_default.add(body["user"])

    async def _associations_of(self, users: Iterable[str]) -> list[Any]:
        query = urlencode({"cluster": self._cluster, "user": ",".join(sorted(users))})
        reply = await self._rest.request("GET", f"{DB}/associations/?{query}")
        return list((reply or {}).get("associations") or ())

    # adopt: our mark, and nothing else

    async def _adopt(self, resource: str, wanted: set[str]) -> None:
        reply = await self._rest.request("GET", f"{DB}/{resource}/")
        adopted = []
        for record in reply[resource]:
            description = record.get("description") or ""
            if record["name"] not in wanted or names.is_marked(description):
                continue
            mark = names.adopted_mark(description)
            others = (
                {"flags": record["flags"]}
                if resource == "qos"
                else {"organization": record.get("organization") or ""}
            )
            adopted.append({"name": record["name"], "description": mark, **others})
        if adopted:
            await self._rest.request("POST", f"{DB}/{resource}/", {resource: adopted})

    # delete

    async def _move_defaults(self, deletions: Sequence[Change]) -> None:
        """Move users' default accounts: Slurm refuses to delete a default while there is another account."""
        pairs = {(account, user) for c in deletions for account, _, user in [c.key.name.partition("/")]}
        found = await self._associations_of({user for _, user in pairs})
        staying = [a for a in found if (a["account"], a["user"]) not in pairs]
        ours = marked_accounts(await self._rest.request("GET", f"{DB}/accounts/"))
        others = {a["user"]: a["account"] for a in sorted(staying, key=lambda a: a["account"] in ours)}
        losing = [a["user"] for a in found if a.get("is_default") and (a["account"], a["user"]) in pairs]
        moved = [{"name": u, "default": {"account": others[u]}} for u in losing if u in others]
        if moved:
            await self._rest.request("POST", f"{DB}/users/", {"users": moved})

    async def _delete(self, change: Change) -> None:
        name = change.key.name
        match change.key.kind:
            case "qos":
                await self._rest.request("DELETE", f"{DB}/qos/{quote(name, safe='')}")
            case "association":
                account, user, *partition = name.split("/")
                where = {"cluster": self._cluster, "account": account, "user": user}
                query = urlencode(where | ({"partition": partition[0]} if partition else {}))
                deleted = await self._rest.request("DELETE", f"{DB}/association/?{query}")
                if deleted is None and await self._inside(account, user):
                    raise _busy(change)
            case "account":
                await self._delete_account(change)
            case "user":
                await self._rest.request("DELETE", f"{DB}/user/{quote(name, safe='')}")

    async def _delete_account(self, change: Change) -> None:
        name = change.key.name
        others = sorted(
            f"user {a['user']}" if a["user"] else f"account {a['account']}"
            for a in await self._inside(name)
            if a["user"] or a["account"] != name
        )
        if others:
            raise Refused(
                "AccountNotEmpty",
                f"account {name} still has {', '.join(others[:5])}, which would go with it",
                f"move them first:  sacctmgr show association account={name} tree",
            )
        deleted = await self._rest.request("DELETE", f"{DB}/account/{quote(name, safe='')}")
        if deleted is None and await self._inside(name):
            raise _busy(change)

    async def _inside(self, account: str, user: str | None = None) -> list[Any]:
        """Return the associations of an account, and of the accounts directly inside it."""
        filters = {"account": account} | ({"user": user} if user else {})
        reply = await self._rest.request("GET", associations_path(self._cluster, **filters))
        found = list((reply or {}).get("associations") or ())
        if user is None:
            path = associations_path(self._cluster, parent_account=account)
            children = await self._rest.request("GET", path)
            found += [a for a in (children or {}).get("associations") or () if a["account"] != account]
        return found


def _request_action(change: Change) -> Action:
    """Map CREATE to UPDATE: both are one request with the wanted fields."""
    return Action.UPDATE if change.action is Action.CREATE else change.action


def _qos(change: Change) -> Record:
    record = records.to_record(records.QOS, change.wanted or {}, change.fields, clear_tres=True)
    return {**record, "name": change.key.name, "description": names.mark(change.team)}


def _busy(change: Change) -> Refused:
    return Refused(
        "TeamBusy",
        f"Slurm keeps {change.key}: jobs of it are still active",
        f"wait for them, or end them:  squeue --account={change.key.name.partition('/')[0]}",
    )
