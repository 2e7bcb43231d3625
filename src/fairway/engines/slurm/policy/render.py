"""The files an administrator installs: lines of slurm.conf and job_submit.lua, made from a fleet. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from fairway.engines.slurm.policy import names, settings
from fairway.engines.slurm.policy.script import SCRIPT
from fairway.engines.slurm.policy.wanted import Ground
from fairway.model.fleet import Fleet, SlurmConnection
from fairway.model.team import Team

NUDGE_JOB: Final = "fairway-nudge"
"""What Fairway's own small jobs are called; the script lets them through."""

_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


def render_slurm(
    fleet: Fleet, cluster: str, version: str = "", found: Mapping[str, str] = _NOTHING
) -> Mapping[str, str]:
    """Each file's text by its name. `found` are the cluster's settings (FoundPolicy.settings), if known.

    Both supported versions read the same files; `version` only stands in their first line.
    """
    ground = Ground.of(fleet, cluster, found)
    about = f"{fleet.name}, cluster {cluster}{f', {version}' if version else ''}"
    return {
        settings.SLURM_CONF: _conf(ground, settings.SLURM_CONF, about, found),
        settings.SLURMDBD_CONF: _conf(ground, settings.SLURMDBD_CONF, about, found),
        settings.LUA_FILE: _lua(ground, cluster, about),
    }


def conf_lines(text: str) -> tuple[str, ...]:
    """The lines of a rendered file that are not comments."""
    return tuple(line for line in text.splitlines() if line and not line.startswith("#"))


def _conf(ground: Ground, file: str, about: str, found: Mapping[str, str]) -> str:
    lines = [
        f"# What the policy of {about} needs of {file}: `fairway render slurm`.",
        "# Apply the policy first: Slurm does not start with a partition whose QOS does not exist.",
    ]
    lines += [need.line for need in settings.needs(ground) if need.file == file]
    if file == settings.SLURM_CONF:
        for _, line, why in settings.partition_lines(ground, found):
            lines += [f"# {why}", line]
    return "\n".join(lines) + "\n"


def _lua(ground: Ground, cluster: str, about: str) -> str:
    return "\n".join([f"-- {about}: made by `fairway render slurm`.", *_tables(ground, cluster), "", SCRIPT])


def _tables(ground: Ground, cluster: str) -> Iterator[str]:
    fleet = ground.fleet
    connection = fleet.cluster(cluster).connection
    service = connection.user if isinstance(connection, SlurmConnection) else ""
    default = fleet.default_priority
    shared = (names.LENT, names.LOW, names.WAITING_URGENT)
    yield f"local LENT, LOW, WAITING_URGENT = {', '.join(map(_text, shared))}"
    yield f"local SERVICE_USER, NUDGE_JOB = {_text(service)}, {_text(NUDGE_JOB)}"
    yield f"local DEFAULT_WORD = {_text(default.name)}"
    yield "local WORDS = { -- what --qos may say"
    for priority in fleet.priorities:
        what = {
            "rank": str(priority.rank),
            "preemptible": _bool(priority.preemptible),
            "urgent": _bool(not priority.preemptible and priority.rank > default.rank),
        }
        yield f"  [{_text(priority.name)}] = {_table(what)},"
    yield "}"
    yield from _pools(ground)
    yield "local TEAMS = { -- account -> what it may use, and the QOS of its jobs by pool"
    for team in ground.teams:
        yield f"  [{_text(team.name)}] = {_team(ground, team)},"
    yield "}"
    here = {team.name for team in ground.teams}
    yield "local DEFAULT_TEAM = { -- of a job that names no account"
    for user, name in sorted(fleet.default_teams().items()):
        if name in here:
            yield f"  [{_text(user)}] = {_text(name)},"
    yield "}"


def _pools(ground: Ground) -> Iterator[str]:
    partitions = dict.fromkeys(site.partition for site in ground.sites)
    yield "local POOLS = { -- partition -> its GPU types, each with its pool"
    for partition in partitions:
        here = [s for s in ground.sites if s.partition == partition]
        types = {site.gres or "": _text(str(site.supply)) for site in here}
        what = {
            "lent": _text(here[0].lent_partition),
            "only": _text(here[0].gres or "") if len(here) == 1 else "nil",  # "": GPUs have no type here
            "spot": _bool(any(site.spot for site in here)),
            "types": _table(types),
        }
        yield f"  [{_text(partition)}] = {_table(what)},"
    yield "}"
    yield "local OWN_PARTITION = { -- second partition -> the pool's own"
    for partition in partitions:
        yield f"  [{_text(f'{partition}-lent')}] = {_text(partition)},"
    yield "}"


def _team(ground: Ground, team: Team) -> str:
    lists = {
        str(site.supply): _text(",".join(ground.qos(team, site.supply)))
        for site in ground.sites
        if ground.may_use(team, site.supply)
    }
    what = {
        "pools": _table(lists),
        "words": _set(team.priorities),
        "low": _bool(ground.has_low(team)),
        "members": _set(team.members),
    }
    return _table(what)


def _set(words: Iterable[str]) -> str:
    return _table(dict.fromkeys(words, "true"))


def _table(entries: Mapping[str, str]) -> str:
    return "{ " + ", ".join(f"[{_text(key)}] = {value}" for key, value in entries.items()) + " }"


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _text(value: str) -> str:
    """A Lua string. Names come from checked files, yet nothing may end the string early."""
    escaped = "".join(c if c.isalnum() or c in "-_.+, /@" else f"\\{ord(c):03}" for c in value)
    return f'"{escaped}"'
