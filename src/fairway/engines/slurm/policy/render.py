"""Render the files an administrator installs from a fleet: lines of slurm.conf, and job_submit.lua.

What is wholly Fairway's is in files of its own, beside the site's: fairway.conf, which slurm.conf includes,
and fairway.lua, which a site's own job_submit.lua calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from importlib.resources import files
from types import MappingProxyType
from typing import Final

from fairway.engines.slurm.policy import advice, names
from fairway.engines.slurm.policy.installed import ANSWER, PROBE_JOB, table_digests
from fairway.engines.slurm.policy.partition_lines import denied_qos, partition_lines
from fairway.engines.slurm.policy.translate import PolicyContext
from fairway.model.fleet import ExistingWorkloads, Fleet, SlurmConnection
from fairway.model.team import Team

INCLUDED_FILE: Final = "fairway.conf"
"""The second partitions, which slurm.conf includes."""

MODULE_FILE: Final = "fairway.lua"
"""The script as a module that a site's own job_submit.lua calls."""

SCRIPT: Final = (files("fairway.engines.slurm.policy") / "job_submit.lua").read_text(encoding="utf-8")
"""The part of job_submit.lua that is the same for every fleet; the fleet's tables are written before it.

Three rules of Slurm shape it. If the script fails, Slurm submits the job unchanged: in a pool's own partition
it then waits at the gate. Reading `job.assoc_qos` ends slurmctld 24.11 when the
user has no association in the account named, so everything comes from tables. Limits by GRES type do not see
requests without a type, so each request gets one.
"""


def render_slurm(
    fleet: Fleet, cluster: str, version: str = "", found: Mapping[str, str] = MappingProxyType({})
) -> Mapping[str, str]:
    """Return each file's text by its name. `found` are the cluster's settings, if known.

    Both supported versions read the same files; `version` is only shown in their first line.
    """
    context = PolicyContext.of(_without_holds(fleet), cluster, found)
    about = f"{fleet.name}, cluster {cluster}{f', {version}' if version else ''}"
    return {
        advice.SLURM_CONF: _conf(context, advice.SLURM_CONF, about),
        INCLUDED_FILE: _included(context, about),
        advice.SLURMDBD_CONF: _conf(context, advice.SLURMDBD_CONF, about),
        advice.LUA_FILE: _lua(context, cluster, about),
        MODULE_FILE: _module(_lua(context, cluster, about)),
    }


def script_digests(fleet: Fleet, cluster: str, found: Mapping[str, str]) -> Mapping[str, str]:
    """Return the digests of the job_submit.lua that `render_slurm` writes: see `installed`."""
    return table_digests(_tables(PolicyContext.of(_without_holds(fleet), cluster, found), cluster), SCRIPT)


def _module(script: str) -> str:
    """Return the script as a Lua module, for a site that has a job_submit.lua of its own."""
    functions = ("slurm_job_submit", "slurm_job_modify")
    for name in functions:
        script = script.replace(f"function {name}(", f"function M.{name}(")
    return "\n".join(
        [
            "-- For a job_submit.lua of the site's own; install this file beside it. Add to that script",
            '--   local fairway = dofile("/etc/slurm/fairway.lua")',
            "-- and, as the last line of each of its two functions instead of  return slurm.SUCCESS",
            "--   return fairway.slurm_job_submit(job_desc, part_list, submit_uid)",
            "--   return fairway.slurm_job_modify(job_desc, job_rec, part_list, modify_uid)",
            "-- Slurm reads it again when job_submit.lua changes:  touch job_submit.lua",
            "local M = {}",
            script.rstrip(),
            "",
            "return M",
            "",
        ]
    )


def _without_holds(fleet: Fleet) -> Fleet:
    """Return the fleet as it is written in its file: a spent budget asks for no new script."""
    return replace(fleet, teams=tuple(replace(team, hold=None) for team in fleet.teams))


def _lua(context: PolicyContext, cluster: str, about: str) -> str:
    tables = list(_tables(context, cluster))
    digests = {name: _text(digest) for name, digest in table_digests(tables, SCRIPT).items()}
    return "\n".join(
        [
            f"-- {about}: made by `fairway render slurm`.",
            *tables,
            f"local PROBE_JOB, PROBE_ANSWER = {_text(PROBE_JOB)}, {ANSWER}",
            "local INSTALLED = { -- what `fairway plan` compares",
            # As written in the tables: names are quoted already.
            *(f'  ["{name}"] = {digest},' for name, digest in digests.items()),
            "}",
            "",
            SCRIPT,
        ]
    )


def _conf(context: PolicyContext, file: str, about: str) -> str:
    lines = [
        f"# What the policy of {about} needs of {file}: `fairway render slurm`.",
        "# Apply the policy first: Slurm does not start with a partition whose QOS does not exist.",
    ]
    for need in advice.required_lines(context):
        if need.file == file:
            lines += [f"# {note}" for note in _notes(need)] + [need.line]
    if file == advice.SLURM_CONF:
        for wanted in partition_lines(context):
            if not wanted.is_second:
                lines += [f"# {wanted.why}", wanted.line]
        lines += [
            f"# the second partitions; install {INCLUDED_FILE} beside slurm.conf",
            f"Include {INCLUDED_FILE}",
        ]
    return "\n".join(lines) + "\n"


def _included(context: PolicyContext, about: str) -> str:
    lines = [f"# The second partitions of {about}, for slurm.conf to include: `fairway render slurm`."]
    for wanted in partition_lines(context):
        if wanted.is_second:
            lines += [f"# {wanted.why}", f"# {wanted.note}", wanted.line]
    return "\n".join(lines) + "\n"


def _notes(need: advice.ConfLine) -> Iterator[str]:
    if need.is_list:
        yield f"{need.why}; add it to the list that your line has already"
    else:
        yield need.why
    if need.optional:
        yield f"optional: {need.optional}"


def _tables(context: PolicyContext, cluster: str) -> Iterator[str]:
    fleet = context.fleet
    connection = fleet.cluster(cluster).connection
    service = connection.user if isinstance(connection, SlurmConnection) else ""
    shared = (names.LENT, names.LOW, names.WAITING_URGENT)
    yield f"local LENT, LOW, WAITING_URGENT = {', '.join(map(_text, shared))}"
    yield f"local SERVICE_USER, INTERVENTION_JOB = {_text(service)}, {_text(names.INTERVENTION_JOB)}"
    yield f"local DEFAULT_WORD = {_text(fleet.default_priority.name)}"
    yield "local WORDS = { -- what --qos may say"
    for priority in fleet.priorities:
        fields = {
            "rank": str(priority.rank),
            "preemptible": _bool(priority.preemptible),
            "urgent": _bool(context.is_urgent(priority.name)),
        }
        yield f"  [{_text(priority.name)}] = {_table(fields)},"
    yield "}"
    yield from _pools(context)
    yield "local TEAMS = { -- account -> what it may use, and the QOS of its jobs by pool"
    for team in context.teams:
        yield f"  [{_text(team.account_name.lower())}] = {_team(context, team)},"
    yield "}"
    accounts = {team.name: team.account_name for team in context.teams}
    yield "local DEFAULT_TEAM = { -- the account of a GPU job that has none"
    for user, name in sorted(fleet.default_teams().items()):
        if name in accounts:
            yield f"  [{_text(user)}] = {_text(accounts[name].lower())},"
    yield "}"
    teams = {account.lower() for account in accounts.values()}
    found = (k.removeprefix(names.SITE_ACCOUNT) for k in context.settings if k.startswith(names.SITE_ACCOUNT))
    leaves = (
        isinstance(connection, SlurmConnection) and connection.existing_workloads is ExistingWorkloads.LEAVE
    )
    others = [account for account in found if account not in teams] if leaves else []
    yield f"local OTHER_ACCOUNTS = {_set(sorted(others))} -- no teams: their jobs run as before"
    walls = {
        key.removeprefix(names.QOS_WALL): value
        for key, value in sorted(context.settings.items())
        if key.startswith(names.QOS_WALL)
    }
    yield f"local MAX_WALL = {_table(walls)} -- minutes, of the site's QOS"
    site_qos = filter(None, context.settings.get(names.SITE_QOS, "").split(","))
    yield f"local SITE_QOS = {_set(site_qos)} -- what --qos may say for a job that is not governed"


def _pools(context: PolicyContext) -> Iterator[str]:
    yield "local POOLS = { -- partition -> the QOS it denies, and its GPU types with their pools"
    for partition in context.partitions:
        sites = [s for s in context.sites if partition in s.partitions]
        fields = {
            "lent": _text(names.lent_partition(partition)),
            "spot": _bool(any(site.spot for site in sites)),
            "default_time": context.settings.get(f"partition/{partition}/DefaultTime", "nil"),
            "denied": _set(sorted(denied_qos(context, partition))),
            "types": _table({site.kind: _text(str(site.supply)) for site in sites}),  # "": of no type
        }
        yield f"  [{_text(partition)}] = {_table(fields)},"
    yield "}"
    yield "local OWN_PARTITION = { -- second partition -> the pool's own"
    for partition in context.partitions:
        yield f"  [{_text(names.lent_partition(partition))}] = {_text(partition)},"
    yield "}"


def _team(context: PolicyContext, team: Team) -> str:
    qos_lists = {
        str(site.supply): _text(",".join(context.qos(team, site.supply)))
        for site in context.sites
        if context.may_use(team, site.supply)
    }
    fields = {
        "pools": _table(qos_lists),
        "words": _set(team.priorities),
        "low": _bool(context.has_low(team)),
        "members": _set(team.members),
    }
    if listed := context.settings.get(f"{names.SITE_ACCOUNT}{team.account_name}"):
        fields["site"] = _set(listed.split(","))
        fields["default"] = _text(context.settings.get(f"{names.DEFAULT_QOS_OF}{team.account_name}", ""))
    if team.limits.job_seconds is not None:
        fields["wall"] = "true"  # the fleet has a limit, and it counts instead of a QOS's
    return _table(fields)


def _set(items: Iterable[str]) -> str:
    return _table(dict.fromkeys(items, "true"))


def _table(entries: Mapping[str, str]) -> str:
    return "{ " + ", ".join(f"[{_text(key)}] = {value}" for key, value in entries.items()) + " }"


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _text(value: str) -> str:
    """Quote a Lua string. Names come from checked files, yet nothing may end the string early."""
    escaped = "".join(c if c.isalnum() or c in "-_.+, /@" else f"\\{ord(c):03}" for c in value)
    return f'"{escaped}"'
