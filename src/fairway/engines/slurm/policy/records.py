"""Convert between the API's records and the fields of policy objects: one table per kind, both directions.

A field's name is the one `sacctmgr` prints, because that is what an administrator will look for; a limit on
one trackable resource is a field of its own, `GrpTRES.gres/gpu:a100`. Fields that are not set are left out.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

from fairway.engines.slurm.policy import names
from fairway.model.names import TeamName, UserName
from fairway.policy.objects import FieldChange, FoundObject, ObjectKey, Value

Record = dict[str, Any]


class FieldFormat(Enum):
    """How the API encodes a value."""

    NUMBER = auto()
    """{"set", "infinite", "number"}; infinite is "no limit"."""
    COUNT = auto()
    """A bare number, 0 when it is not set."""
    FACTOR = auto()
    """{"set", "number"}, 1 when it is not set."""
    TEXT = auto()
    NAMES = auto()
    """A list of names whose order does not matter."""
    TRES = auto()
    """A list of {"type", "name", "count"}."""


@dataclass(frozen=True, slots=True)
class RecordField:
    """A field of an object, and where the API's record has its value."""

    field: str
    path: tuple[str, ...]
    format: FieldFormat
    unset: Value = None
    """What the API shows when nothing is set, besides an infinite number or an empty list."""


def _columns(
    *rows: tuple[str, str, FieldFormat] | tuple[str, str, FieldFormat, Value],
) -> tuple[RecordField, ...]:
    return tuple(
        RecordField(row[0], tuple(row[1].split(".")), row[2], row[3] if len(row) > 3 else None)
        for row in rows
    )


QOS: Final = _columns(
    ("Priority", "priority", FieldFormat.NUMBER, 0),
    ("Flags", "flags", FieldFormat.NAMES),
    ("Preempt", "preempt.list", FieldFormat.NAMES),
    ("PreemptMode", "preempt.mode", FieldFormat.NAMES),
    ("GraceTime", "limits.grace_time", FieldFormat.COUNT),
    ("GrpJobs", "limits.max.active_jobs.count", FieldFormat.NUMBER),
    ("GrpSubmit", "limits.max.jobs.count", FieldFormat.NUMBER),
    ("GrpWall", "limits.max.wall_clock.per.qos", FieldFormat.NUMBER),
    ("MaxJobsPerAccount", "limits.max.jobs.active_jobs.per.account", FieldFormat.NUMBER),
    ("MaxJobsPerUser", "limits.max.jobs.active_jobs.per.user", FieldFormat.NUMBER),
    ("MaxSubmitPerAccount", "limits.max.jobs.per.account", FieldFormat.NUMBER),
    ("MaxSubmitPerUser", "limits.max.jobs.per.user", FieldFormat.NUMBER),
    ("MaxWall", "limits.max.wall_clock.per.job", FieldFormat.NUMBER),
    ("UsageFactor", "usage_factor", FieldFormat.FACTOR),
    ("GrpTRES", "limits.max.tres.total", FieldFormat.TRES),
    ("GrpTRESMins", "limits.max.tres.minutes.per.qos", FieldFormat.TRES),
    ("MaxTRESPerJob", "limits.max.tres.per.job", FieldFormat.TRES),
    ("MaxTRESPerNode", "limits.max.tres.per.node", FieldFormat.TRES),
    ("MaxTRESPerUser", "limits.max.tres.per.user", FieldFormat.TRES),
    ("MaxTRESPerAccount", "limits.max.tres.per.account", FieldFormat.TRES),
    ("MaxTRESMinsPerJob", "limits.max.tres.minutes.per.job", FieldFormat.TRES),
    ("MinTRESPerJob", "limits.min.tres.per.job", FieldFormat.TRES),
)
ASSOCIATION: Final = _columns(
    ("Fairshare", "shares_raw", FieldFormat.COUNT),
    ("QOS", "qos", FieldFormat.NAMES),
    ("DefaultQOS", "default.qos", FieldFormat.TEXT),
    ("GrpJobs", "max.jobs.per.count", FieldFormat.NUMBER),
    ("GrpSubmit", "max.jobs.per.submitted", FieldFormat.NUMBER),
    ("GrpWall", "max.per.account.wall_clock", FieldFormat.NUMBER),
    ("MaxJobs", "max.jobs.active", FieldFormat.NUMBER),
    ("MaxSubmit", "max.jobs.total", FieldFormat.NUMBER),
    ("MaxWall", "max.jobs.per.wall_clock", FieldFormat.NUMBER),
    ("Priority", "priority", FieldFormat.NUMBER),
    ("GrpTRES", "max.tres.total", FieldFormat.TRES),
    ("GrpTRESMins", "max.tres.group.minutes", FieldFormat.TRES),
    ("GrpTRESRunMins", "max.tres.group.active", FieldFormat.TRES),
    ("MaxTRESPerJob", "max.tres.per.job", FieldFormat.TRES),
    ("MaxTRESPerNode", "max.tres.per.node", FieldFormat.TRES),
    ("MaxTRESMinsPerJob", "max.tres.minutes.per.job", FieldFormat.TRES),
)
ACCOUNT: Final = (*_columns(("Parent", "parent_account", FieldFormat.TEXT)), *ASSOCIATION)

NO_LIMIT: Final = {"set": False, "infinite": True, "number": 0}
# `sacctmgr`'s names of flags that Fairway sets; others are shown as the API has them
_FLAGS: Final = {
    "OVERRIDE_PARTITION_QOS": "OverPartQOS",
    "NO_RESERVE": "NoReserve",
    "DENY_LIMIT": "DenyOnLimit",
}
_API_FLAGS: Final = {name: flag for flag, name in _FLAGS.items()}
_NO_MODE: Final = "DISABLED"


def found_qos(record: Record) -> FoundObject:
    """Convert a QOS record to a FoundObject. It must be deleted before the QOS it preempts."""
    description = record.get("description") or ""
    fields = read_fields(QOS, record)
    if record["name"] == names.GATE:
        # No job ever runs as it, so this means nothing; and the API has no way to empty the list.
        fields.pop("Preempt", None)
    preempted = fields.get("Preempt") or ()
    return FoundObject(
        names.qos_key(record["name"]),
        fields,
        ours=names.is_marked(description),
        after=tuple(names.qos_key(str(name)) for name in (preempted if isinstance(preempted, tuple) else ())),
        team=names.marked_team(description),
    )


def found_association(record: Record, marked: Container[str], created: Container[str] = ()) -> FoundObject:
    """Convert an association record: an account's own one is the account, a user's is an association.

    The mark is in the account's description (`marked` are the accounts with it, `created` those of them that
    Fairway made) and covers its members: a
    user who was added to a team by hand is drift, not unmanaged. An association's own comment would not do,
    because the API sets it only when it creates one.
    """
    account, user, partition = record["account"], record.get("user") or "", record.get("partition") or ""
    ours = account in marked
    team = TeamName(account) if ours else None
    if not user:
        fields = read_fields(ACCOUNT, record)
        parent = fields.get("Parent")
        qos = fields.get("QOS") or ()
        after = (
            *((names.account_key(str(parent)),) if parent not in (None, names.ROOT_ACCOUNT) else ()),
            *(names.qos_key(str(q)) for q in (qos if isinstance(qos, tuple) else ())),
        )
        return FoundObject(
            names.account_key(account), fields, ours, after=after, team=team, created=account in created
        )
    name = "/".join(part for part in (account, user, partition) if part)
    after = (names.account_key(account), names.user_key(UserName(user)))
    return FoundObject(
        ObjectKey("association", name),
        read_fields(ASSOCIATION, record),
        ours,
        after=after,
        team=team,
        created=account in created,
    )


def found_user(record: Record) -> FoundObject:
    """Convert a user record: shared by all accounts, never Fairway's."""
    return FoundObject(ObjectKey("user", record["name"]), {}, ours=False)


def read_fields(columns: Iterable[RecordField], record: Record) -> dict[str, Value]:
    """Return the fields of a record that are set."""
    fields: dict[str, Value] = {}
    for column in columns:
        raw: Any = record
        for part in column.path:
            raw = raw.get(part) if isinstance(raw, dict) else None
        if column.format is FieldFormat.TRES:
            for entry in raw or ():
                tres = f"{entry['type']}/{entry['name']}" if entry.get("name") else entry["type"]
                fields[f"{column.field}.{tres}"] = entry["count"]
        else:
            value = _decode(column, raw)
            if value is not None:
                fields[column.field] = value
    return fields


def to_record(
    columns: tuple[RecordField, ...],
    fields: Mapping[str, Value],
    changes: Iterable[FieldChange] = (),
    *,
    clear_tres: bool,
) -> Record:
    """Return the record that gives an object these fields.

    `changes` list what must be unset, explicitly: fields that a record does not have stay as they are. Only
    lists of TRES differ: an association's is replaced whole, a QOS's entry is removed by a count of -1
    (`clear_tres`). Flags are always in the record: a QOS record without them loses them.
    """
    record: Record = {}
    unset = {c.field for c in changes if c.after is None and c.before is not None}
    counts = {name: count for name, count in sorted(fields.items()) if count is not None}
    if clear_tres:
        counts |= dict.fromkeys(sorted(unset), -1)
    for column in columns:
        if column.format is FieldFormat.TRES:
            prefix = f"{column.field}."
            entries = [
                _tres(name.removeprefix(prefix), count)
                for name, count in counts.items()
                if name.startswith(prefix)
            ]
            if entries or not clear_tres:
                _put(record, column.path, entries)
        elif (value := fields.get(column.field)) is not None:
            _put(record, column.path, _encode(column, value))
        elif column.field in unset or column.field == "Flags":
            _put(record, column.path, _encode_unset(column))
    return record


def _decode(column: RecordField, raw: Any) -> Value:
    if raw is None:
        return None
    match column.format:
        case FieldFormat.NUMBER:
            number = int(raw["number"]) if raw.get("set") and not raw.get("infinite") else None
            return None if number == column.unset else number
        case FieldFormat.FACTOR:
            number = raw["number"] if raw.get("set") and not raw.get("infinite") else 1
            return None if number == 1 else f"{number:g}"
        case FieldFormat.COUNT:
            return int(raw) or None
        case FieldFormat.TEXT:
            return raw or None
        case _:
            listed = sorted({_FLAGS.get(name, name) for name in raw} - {_NO_MODE, "NOT_SET"})
            return tuple(listed) or None


def _encode(column: RecordField, value: Value) -> Any:
    match column.format:
        case FieldFormat.NUMBER:
            return _number(value)
        case FieldFormat.FACTOR:
            return _number(float(str(value)))
        case FieldFormat.NAMES:
            return [_API_FLAGS.get(str(name), name) for name in (value if isinstance(value, tuple) else ())]
        case _:
            return value


def _encode_unset(column: RecordField) -> Any:
    match column.format:
        case FieldFormat.NUMBER:
            return NO_LIMIT if column.unset is None else _number(column.unset)
        case FieldFormat.FACTOR:
            return _number(1.0)
        case FieldFormat.COUNT:
            return 0
        case FieldFormat.TEXT:
            return ""
        case _:
            return [_NO_MODE] if column.field == "PreemptMode" else []


def _number(value: Value | float) -> Record:
    return {"set": True, "infinite": False, "number": value}


def _tres(name: str, count: Value) -> Record:
    kind, _, rest = name.partition("/")
    return {"type": kind, "name": rest, "count": count}


def _put(record: Record, path: tuple[str, ...], value: Any) -> None:
    for part in path[:-1]:
        record = record.setdefault(part, {})
    record[path[-1]] = value
