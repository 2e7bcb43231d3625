"""Leave a Slurm cluster: save whole records of the accounting, write them back, and lift the guards.

Behaviour of the API, observed on 24.11.5:
- POST associations with a whole record sets everything in it, but an empty list of QOS changes nothing. A
  list is emptied, so that it is inherited again, by naming one QOS and deleting that: slurmdbd then has an
  empty list. slurmctld has one too, and refuses jobs, until the account above is written again, 0.3 s later.
  Where that account inherits its list as well, nothing written reaches the users in slurmctld, neither by the
  API nor by sacctmgr: it has to read the accounting again, which `scontrol reconfigure` makes it do.
- A QOS that is deleted leaves running jobs without QOS, and waiting ones with the reason InvalidQOS.
- slurmctld does not start while a partition names a QOS that does not exist.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlencode

from fairway.engines.slurm.policy import names
from fairway.engines.slurm.policy.activity import WAITING, active_jobs, in_parts, qos_ids
from fairway.engines.slurm.policy.read import CTL, DB, associations_path
from fairway.engines.slurm.policy.site_fields import STOPS, SiteFields
from fairway.engines.slurm.rest.client import SlurmRest
from fairway.model.errors import Refused
from fairway.policy.leave import Leaving, created_objects, restore_change, unsaved_objects
from fairway.policy.objects import (
    Action,
    Advice,
    Change,
    FieldChange,
    FoundPolicy,
    ObjectKey,
    Record,
    SavedObject,
    Value,
)
from fairway.policy.plan import Objection

_KINDS: Final = ("qos", "account", "association")
"""The kinds that are restored, in this order; a user's record is never changed."""
_VOLATILE: Final = frozenset({"id", "lineage", "accounting", "comment"})
_LISTS: Final = frozenset({"qos", "flags", "coordinators", "list"})
_QOS_KEYS: Final = ("QOS", "AllowQos", "DenyQos")
LENT_SUFFIX: Final = "-lent"
_RETURN: Final = "fairway.return"
"""A QOS that exists for a moment, to empty a list of QOS."""


# --- records ----------------------------------------------------------------------------------------------


async def read_records(
    rest: SlurmRest, cluster: str, keys: Collection[ObjectKey]
) -> Mapping[ObjectKey, Record]:
    """Return whole records of these objects, and of the associations inside these accounts."""
    qos, accounts, associations = await asyncio.gather(
        rest.request("GET", f"{DB}/qos/"),
        rest.request("GET", f"{DB}/accounts/"),
        rest.request("GET", associations_path(cluster)),
    )
    described = {a["name"]: a for a in (accounts or {}).get("accounts") or ()}
    wanted = set(keys)
    inside = {k.name for k in keys if k.kind == "account"}
    found: dict[ObjectKey, Record] = {}
    for record in (qos or {}).get("qos") or ():
        key = names.qos_key(record["name"])
        if key in wanted:
            found[key] = _stable(record)
    for record in (associations or {}).get("associations") or ():
        account, user, partition = record["account"], record.get("user") or "", record.get("partition") or ""
        if user:
            key = ObjectKey("association", "/".join(part for part in (account, user, partition) if part))
            if key in wanted or account in inside:
                found[key] = {"association": _stable(record)}
        elif (key := names.account_key(account)) in wanted:
            found[key] = {
                "association": _stable(record),
                "account": {
                    name: described.get(account, {}).get(name) or ""
                    for name in ("description", "organization")
                },
            }
    return found


def _stable(value: Any, key: str = "") -> Any:
    """Return a record without ids, with lists of names in a fixed order."""
    if isinstance(value, Mapping):
        return {name: _stable(below, name) for name, below in value.items() if name not in _VOLATILE}
    if isinstance(value, list):
        items = [_stable(item) for item in value]
        return sorted(items, key=str) if key in _LISTS or (items and isinstance(items[0], dict)) else items
    return value


# --- the plan ---------------------------------------------------------------------------------------------


def leaving(
    cluster: str, found: FoundPolicy, saved: Sequence[SavedObject], now: Mapping[ObjectKey, Record]
) -> Leaving:
    """Return what is restored, which QOS must stay, and what an administrator does."""
    by_key = {o.key: o for o in found.objects}
    restored = [
        restore_change(o.key, by_key.get(o.key), o, _KINDS.index(o.key.kind))
        for o in saved
        if o.record is not None and o.key.kind in _KINDS and now.get(o.key) != o.record
    ]
    restored += [
        restore_change(o.key, o, None, _KINDS.index(o.key.kind))
        for o in unsaved_objects(found, saved, marked=("qos", "account"))
    ]
    gated = [p for p in _partitions(found) if found.settings.get(f"partition/{p}/QOS") == names.GATE]
    created = created_objects(found, saved)
    needed = {
        names.qos_key(qos): f"partition {', '.join(partitions)} names it"
        for qos, partitions in _named_qos(found).items()
    }
    return Leaving(
        tuple(restored),
        needed | dict(_users_in_use(found, {o.key for o in created})),
        movable=frozenset({"qos"}),
        advice=tuple(_lines_to_remove(cluster, found, gated)),
        objections=tuple(_files_first(cluster, gated)),
    )


def _named_qos(found: FoundPolicy) -> dict[str, list[str]]:
    """Return the QOS that partitions name, with these: slurmctld would not start again without such a QOS."""
    named: dict[str, list[str]] = {}
    for partition in _partitions(found):
        listed = [found.settings.get(f"partition/{partition}/{key}") or "" for key in _QOS_KEYS]
        for qos in sorted({q for text in listed for q in text.split(",") if q}):
            named.setdefault(qos, []).append(partition)
    return named


def _users_in_use(found: FoundPolicy, created: Collection[ObjectKey]) -> Iterator[tuple[ObjectKey, str]]:
    """Yield the users with an association that Fairway did not create."""
    for o in found.objects:
        if o.key.kind == "association" and o.key not in created:
            account, user, *_ = o.key.name.split("/")
            yield ObjectKey("user", user), f"it is in account {account}"


def _partitions(found: FoundPolicy) -> list[str]:
    return sorted(
        key.split("/")[1] for key in found.settings if key.startswith("partition/") and key.endswith("/Nodes")
    )


def _lines_to_remove(cluster: str, found: FoundPolicy, gated: Sequence[str]) -> Iterator[Advice]:
    for partition in gated:
        yield Advice(
            "slurm.conf",
            f"PartitionName={partition} ... QOS={names.GATE}",
            f"QOS={names.GATE}",
            "restore the partition's own line: only QOS of Fairway's pass this one",
            "scontrol reconfigure",
        )
    if gated:
        yield Advice(
            "job_submit.lua",
            "what fairway render slurm gave",
            "",
            "it gives jobs QOS that go; without another job_submit.lua, remove JobSubmitPlugins=lua too",
            "scontrol reconfigure",
        )
    partitions = set(_partitions(found))
    for twin in sorted(p for p in partitions if p.removesuffix(LENT_SUFFIX) in partitions - {p}):
        yield Advice(
            "fairway.conf",
            f"PartitionName={twin}",
            twin,
            f"when its last job has ended (squeue -p {twin}): jobs of a partition that goes end with it",
            f"scontrol reconfigure; fairway leave {cluster}",
        )


def _files_first(cluster: str, gated: Sequence[str]) -> Iterator[Objection]:
    if gated:
        yield Objection(
            "FilesInstalled",
            f"partition {', '.join(gated)} still has QOS={names.GATE}: with it and job_submit.lua installed, "
            "sbatch would be refused once the QOS are gone",
            "first restore slurm.conf and job_submit.lua as below, except for the -lent partitions, then:  "
            f"fairway leave {cluster}",
            forceable=False,
        )


# --- guards -----------------------------------------------------------------------------------------------


def guards(found: FoundPolicy) -> tuple[Change, ...]:
    """Return the changes that open the gate and lift holds of teams: drains, and spent budgets."""
    changes: list[Change] = []
    site = SiteFields.of(found.objects, found.settings)
    for o in found.objects:
        if not o.ours:
            continue
        after: Mapping[str, Value] = {}
        if o.key == names.qos_key(names.GATE):
            stops = [f for f in o.fields if f.startswith("Max") and o.fields[f] == 0]
        elif o.key.kind == "account":
            after = {} if o.created else site.site_stops(o)  # what the site had there comes back
            stops = [f for f in STOPS if o.fields.get(f) == 0 and after.get(f) != 0]
        else:
            continue
        if stops:
            wanted = {name: value for name, value in o.fields.items() if name not in stops}
            wanted |= {name: after[name] for name in stops if name in after}
            fields = tuple(FieldChange(name, 0, after.get(name)) for name in stops)
            changes.append(Change(Action.UPDATE, o.key, fields, wanted, team=o.team))
    return tuple(changes)


# --- writing ----------------------------------------------------------------------------------------------


async def write_restored(rest: SlurmRest, cluster: str, changes: Sequence[Change]) -> None:
    """Write the saved records of one kind back; where nothing was saved, take only the mark off."""
    unsaved = [c for c in changes if c.record is None]
    if unsaved:
        await _unmark(rest, changes[0].key.kind, {c.key.name for c in unsaved})
    saved = [(c, c.record) for c in changes if c.record is not None]
    if not saved:
        return
    if changes[0].key.kind == "qos":
        await _restore_qos(rest, [record for _, record in saved])
    else:
        await _restore_associations(rest, cluster, saved)


async def _restore_qos(rest: SlurmRest, records: Sequence[Record]) -> None:
    reply = await rest.request("GET", f"{DB}/qos/")
    now = {q["name"]: q for q in reply["qos"]}
    bodies = [_clear_tres(record, now.get(record["name"], {})) for record in records]
    await rest.request("POST", f"{DB}/qos/", {"qos": bodies})


def _clear_tres(record: Any, now: Any) -> Any:
    """Return the record with a count of -1 for each TRES that is limited now and was not."""
    if isinstance(record, Mapping):
        below = now if isinstance(now, Mapping) else {}
        return {key: _clear_tres(value, below.get(key)) for key, value in record.items()}
    if (
        isinstance(record, list)
        and isinstance(now, list)
        and now
        and isinstance(now[0], dict)
        and "type" in now[0]
    ):
        had = {(t["type"], t.get("name")) for t in record}
        return [*record, *({**t, "count": -1} for t in now if (t["type"], t.get("name")) not in had)]
    return record


async def _restore_associations(
    rest: SlurmRest, cluster: str, saved: Sequence[tuple[Change, Record]]
) -> None:
    keys = [change.key for change, _ in saved]
    now = await read_records(rest, cluster, keys)
    accounts = {
        change.key.name: record["account"] for change, record in saved if change.key.kind == "account"
    }
    missing = [
        change.key.name for change, _ in saved if change.key.kind == "account" and change.key not in now
    ]
    for name in missing:
        record = next(r for c, r in saved if c.key.name == name)
        body = {
            "association_condition": {
                "accounts": [name],
                "clusters": [cluster],
                "association": {"parent": record["association"].get("parent_account") or names.ROOT_ACCOUNT},
            },
            "account": accounts[name],
        }
        await rest.request("POST", f"{DB}/accounts_association/", body)
    if accounts:
        bodies = [{"name": name, **fields} for name, fields in accounts.items()]
        await rest.request("POST", f"{DB}/accounts/", {"accounts": bodies})
    written = [{**record["association"], "cluster": cluster} for _, record in saved]
    await rest.request("POST", f"{DB}/associations/", {"associations": written})
    named = [
        body
        for body, (change, _) in zip(written, saved, strict=True)
        if not body.get("qos") and (change.key not in now or now[change.key]["association"].get("qos"))
    ]
    if named:
        await _inherit_qos(rest, cluster, named)
    defaults = [
        {"name": a["user"], "default": {"account": a["account"]}}
        for (change, record) in saved
        if (a := record["association"]).get("user")
        and a.get("is_default")
        and not (now.get(change.key) or {}).get("association", {}).get("is_default")
    ]
    if defaults:
        await rest.request("POST", f"{DB}/users/", {"users": defaults})


async def _inherit_qos(rest: SlurmRest, cluster: str, bodies: Sequence[Record]) -> None:
    """Make associations inherit their QOS again."""
    qos = {"name": _RETURN, "description": f"{names.MARK}: deleted at once"}
    await rest.request("POST", f"{DB}/qos/", {"qos": [qos]})
    # A user's default too: 26.05 refuses a list without the default, also where that is inherited.
    emptied = [
        {**body, "qos": [_RETURN], "default": {"qos": _RETURN if body.get("user") else ""}} for body in bodies
    ]
    await rest.request("POST", f"{DB}/associations/", {"associations": emptied})
    await rest.request("DELETE", f"{DB}/qos/{_RETURN}")
    above = {body["account"] if body.get("user") else body["parent_account"] for body in bodies}
    reply = await rest.request("GET", associations_path(cluster))
    accounts = [a for a in reply["associations"] if not a.get("user") and a["account"] in above]
    await rest.request("POST", f"{DB}/associations/", {"associations": list(bodies)})
    await rest.request("POST", f"{DB}/associations/", {"associations": accounts})
    if any(not account.get("qos") for account in accounts):
        await rest.request("GET", f"{CTL}/reconfigure/")


async def _unmark(rest: SlurmRest, kind: str, wanted: Collection[str]) -> None:
    resource = "qos" if kind == "qos" else "accounts"
    reply = await rest.request("GET", f"{DB}/{resource}/")
    bodies = []
    for record in reply[resource]:
        description = record.get("description") or ""
        if record["name"] in wanted and names.is_marked(description):
            own = description.removeprefix(names.MARK).removeprefix(":").strip()
            others = (
                {"flags": record["flags"]} if kind == "qos" else {"organization": record.get("organization")}
            )
            bodies.append({"name": record["name"], "description": own or record["name"], **others})
    if bodies:
        await rest.request("POST", f"{DB}/{resource}/", {resource: bodies})


async def requeue_waiting(rest: SlurmRest, cluster: str, keys: Collection[ObjectKey]) -> None:
    """Give waiting jobs under these QOS the default QOS of their association, in the site's partitions."""
    ids = await qos_ids(rest, {k.name for k in keys if k.kind == "qos"})
    if not ids:
        return
    jobs = [job for part in in_parts(ids) for job in await active_jobs(rest, WAITING, qos=",".join(part))]
    for job in jobs:
        partitions = [p for p in str(job.get("partition") or "").split(",") if p]
        own = list(dict.fromkeys(p.removesuffix(LENT_SUFFIX) for p in partitions))
        query = urlencode({"cluster": cluster, "account": job["account"], "user": job["user"]})
        reply = await rest.request("GET", f"{DB}/associations/?{query}")
        found = (reply or {}).get("associations") or [{}]
        allowed = sorted(q for q in found[0].get("qos") or () if not _is_ours(q))
        if not allowed:  # of an account that Fairway created, which stays with its QOS while it has jobs
            continue
        default = (found[0].get("default") or {}).get("qos") or ("normal" if "normal" in allowed else "")
        qos = default or allowed[0]
        body: dict[str, object] = {"qos": qos}
        if own and own != partitions:
            body["partition"] = ",".join(own)
        with suppress(Refused):  # it has started or ended meanwhile
            await rest.request("POST", f"{CTL}/job/{job['job_id']}", body)


def _is_ours(qos: str) -> bool:
    return qos.startswith("fairway.") or qos.endswith((".own", ".kin"))
