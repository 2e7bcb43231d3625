"""A Slurm cluster of the lab: its daemons, in the order in which they need each other."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from lab import processes
from lab.errors import LabError
from lab.instance import Instance
from lab.kinds import Command
from lab.progress import step
from lab.slurm import config, root, tokens
from lab.slurm.config import Layout
from lab.slurm.site import Site
from lab.versions import SLURM_DEFAULT, SLURM_SUITES
from lab.waiting import listeners, wait_until

SERVICES = ("munged", "mariadbd", "slurmdbd", "slurmctld", "slurmrestd")
PEOPLE = ("alice", "bob", "carol")
SERVICE_USER = "fairway"
DATABASE = "/run/mysqld/mysqld.sock"
LOGS = "/srv/logs"
"""What jobs print, as the nodes see it: shared by all, and what is in it stays its owner's, as in /tmp."""
TOOLS = ("squeue", "sacct")
# Slurm's programs as a host has them that runs none of its daemons: whoever calls shows a token in SLURM_JWT,
# and is nobody otherwise.
TOOL = """\
#!/bin/sh
PATH=$PATH:/usr/sbin:/sbin
[ "$(id -u)" = 0 ] && exec chroot --userspec=nobody {root} /usr/bin/{name} "$@"
exec unshare --map-root-user chroot {root} /usr/bin/{name} "$@"
"""
# So many slurmd start side by side: enough to keep the cores busy, few enough to keep the machine responsive.
NODES_AT_ONCE = 50
REGISTER_SECONDS = 30
PATH = {"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}


class Slurm:
    """The kind `slurm`."""

    versions: Sequence[str] = (SLURM_DEFAULT, *(v for v in SLURM_SUITES if v != SLURM_DEFAULT))
    options: Mapping[str, int] = {"nodes": 4, "spot_nodes": 0}
    variables: Mapping[str, str] = {
        "url": "SLURM_URL",
        "jwt_key_file": "SLURM_JWT_KEY_FILE",
        "user": "SLURM_USER",
        "root": "SLURM_ROOT",
        "tools": "SLURM_TOOLS",
        "logs": "SLURM_LOGS",
        "logs_seen_at": "SLURM_LOGS_SEEN_AT",
        "token": "SLURM_TOKEN",
    }

    def up(self, instance: Instance) -> None:
        if os.geteuid() != 0:
            raise LabError(
                "the lab's Slurm needs root", "it mounts, changes root and runs jobs as several users"
            )
        site = _site(instance)
        nodes = instance.options["nodes"] + 1 + instance.options.get("spot_nodes", 0)
        count = len(site.node_names) if site else nodes
        instance.reserve(control=1, accounting=1, rest=1, nodes=count)
        root.installed(instance.version)
        with step(f"{instance.name}: root and configuration"):
            root.mounted(instance.version, instance.folder)
            _write_files(instance)
            if site:
                _add_site_people(instance, site)
        for service in _services(instance):
            if not instance.daemon(service):
                with step(f"{instance.name}: {service}"):
                    self.start(instance, service)
        if site and not _made(instance, "accounts").exists():
            with step(f"{instance.name}: accounts of {site.name}"):
                _add_accounts(instance, site)
        if not site and not _has_people(instance):
            with step(f"{instance.name}: users and their account"):
                _add_people(instance)
        self._nodes_up(instance)
        if site and not _made(instance, "after").exists():
            for line in site.lines("after"):
                instance.run(*shlex.split(line))
            _made(instance, "after").touch()

    def _nodes_up(self, instance: Instance) -> None:
        names = _layout(instance).node_names
        missing = [name for name in names if not instance.daemon(name)]
        if missing:
            with step(f"{instance.name}: {len(missing)} slurmd"):
                ports = _node_ports(instance)
                for at in range(0, len(missing), NODES_AT_ONCE):
                    batch = missing[at : at + NODES_AT_ONCE]
                    for name in batch:
                        _start_node(instance, name)
                    _wait_for_ports(instance, {name: ports[name] for name in batch})
        with step(f"{instance.name}: {len(names)} nodes respond"):
            wait_until(
                lambda: not _silent(instance), 90, "some nodes do not respond", why=lambda: _silent(instance)
            )

    def down(self, instance: Instance) -> None:
        instance.end("slurmrestd", "slurmctld", patience=30)  # slurmctld saves its state
        instance.end(*_layout(instance).node_names, patience=20)
        instance.end("slurmdbd", patience=20)
        instance.end("mariadbd", patience=30)
        instance.end("munged")

    def daemons(self, instance: Instance) -> Sequence[str]:
        services = _services(instance)
        return [*services, *_layout(instance).node_names] if instance.rows else services

    def start(self, instance: Instance, daemon: str) -> None:
        start = {
            "munged": _start_munged,
            "mariadbd": _start_mariadbd,
            "slurmdbd": _start_slurmdbd,
            "slurmctld": _start_slurmctld,
            "slurmrestd": _start_slurmrestd,
        }.get(daemon)
        if start:
            start(instance)
        else:
            _start_node(instance, daemon)
            _wait_for_ports(instance, {daemon: _node_ports(instance)[daemon]})

    def facts(self, instance: Instance) -> dict[str, str]:
        return {
            "url": f"http://127.0.0.1:{instance.port('rest')}",
            "jwt_key_file": str(_jwt_key(instance)),
            "user": SERVICE_USER,
            "root": str(_root(instance)),
            "tools": str(instance.folder / "tools"),
            "logs": LOGS,
            "logs_seen_at": f"{_root(instance)}{LOGS}",
        }

    def secrets(self, instance: Instance) -> dict[str, str]:
        return {"token": tokens.mint(_jwt_key(instance).read_bytes(), SERVICE_USER)}

    def command(self, instance: Instance, argv: Sequence[str], user: str | None) -> Command:
        if not (_root(instance) / "usr").exists():
            raise LabError(f"{instance.name} is down", hint=f"python -m lab up slurm --name {instance.name}")
        home = f"/home/{user}" if user in root.USERS else "/root" if user in (None, "root") else "/"
        env = {**PATH, "HOME": home, "USER": user or "root", "TERM": os.environ.get("TERM", "dumb")}
        inside = ["/usr/bin/env", f"--chdir={home}", *argv]
        return Command(["chroot", f"--userspec={user or 'root'}", str(_root(instance)), *inside], env)


def _layout(instance: Instance) -> Layout:
    return Layout(
        version=instance.version,
        host=socket.gethostname(),
        gpu_nodes=instance.options["nodes"],
        control_port=instance.port("control"),
        accounting_port=instance.port("accounting"),
        node_ports=instance.rows["nodes"],
        spot_nodes=instance.options.get("spot_nodes", 0),
        site=_site(instance),
        partition_qos=_made(instance, "accounts").exists(),
    )


def _site(instance: Instance) -> Site | None:
    return Site(instance.site) if instance.site else None


def _services(instance: Instance) -> Sequence[str]:
    site = _site(instance)
    if site and not site.has_accounting:
        return [service for service in SERVICES if service not in ("mariadbd", "slurmdbd")]
    return SERVICES


def _made(instance: Instance, what: str) -> Path:
    """A mark that something has been made that is made once."""
    return instance.folder / f"{what}-made"


def _root(instance: Instance) -> Path:
    return instance.folder / "root"


def _jwt_key(instance: Instance) -> Path:
    """Kept beside the root, so that its name is good even while nothing is mounted."""
    return instance.folder / "jwt.key"


def _node_ports(instance: Instance) -> dict[str, int]:
    layout = _layout(instance)
    return dict(zip(layout.node_names, layout.node_ports, strict=False))


def configure(
    instance: Instance, lines: Sequence[str], lua: str | None = None, accounting: Sequence[str] = ()
) -> None:
    """Give the cluster what a policy needs of its files, for good; Slurm runs with it when this returns.

    `lines` of slurm.conf replace what the lab's own say about the same parameter, and add to a partition of
    the same name (none: the lab's own again); of a site, they add to its lists. `accounting` are lines of
    slurmdbd.conf; `lua` is the whole of job_submit.lua (None: as it is). Running jobs go on.
    """
    script = _root(instance) / "etc/slurm/job_submit.lua"
    if lua is not None and not (script.exists() and script.read_text() == lua):
        # Slurm reads the script anew when its time has changed, by whole seconds.
        newer = max(time.time(), script.stat().st_mtime + 2 if script.exists() else 0)
        _place(script, lua.encode(), (0, 0), 0o644)
        os.utime(script, (newer, newer))
    before = _kept(instance)
    site = _site(instance)
    merged = config.beside_site(lines, site) if site else list(lines)
    after = {"slurm.conf": merged, "slurmdbd.conf": list(accounting)}
    if after == before and instance.daemon("slurmctld"):
        return
    try:
        _reconfigure(instance, after, restart_accounting=after["slurmdbd.conf"] != before["slurmdbd.conf"])
    except LabError:  # lines that Slurm does not start with, such as a QOS that is not there yet
        _reconfigure(instance, before, restart_accounting=True)
        raise


def _reconfigure(
    instance: Instance, policy: Mapping[str, Sequence[str]], *, restart_accounting: bool
) -> None:
    (instance.folder / "policy.json").write_text(json.dumps(policy))
    _write_files(instance)
    if restart_accounting:
        instance.end("slurmdbd", patience=20)
        _start_slurmdbd(instance)
    instance.end("slurmctld", patience=30)
    _start_slurmctld(instance)
    # Every slurmd reads it too. A busy controller may answer too late; to be asked again does no harm.
    wait_until(
        lambda: instance.run("scontrol", "reconfigure", check=False).returncode == 0,
        60,
        "scontrol reconfigure fails",
    )
    wait_until(lambda: not _silent(instance), 60, "some nodes do not respond", why=lambda: _silent(instance))


def _kept(instance: Instance) -> dict[str, list[str]]:
    """The lines that `configure` was last given, by file."""
    file = instance.folder / "policy.json"
    none: dict[str, list[str]] = {"slurm.conf": [], "slurmdbd.conf": []}
    return {**none, **json.loads(file.read_text())} if file.exists() else none


# files


def _write_files(instance: Instance) -> None:
    top, layout = _root(instance), _layout(instance)
    slurm, munge = _ids(top, "slurm"), _ids(top, "munge")
    (top / "etc/hosts").write_text(f"127.0.0.1 localhost {layout.host}\n")
    for folder, owner in {
        "run/munge": munge,
        "run/mysqld": _ids(top, "mysql"),
        "run/slurm": slurm,
        "var/lib/mysql": _ids(top, "mysql"),
        "var/spool/slurm": slurm,
        "var/spool/slurm/ctld": slurm,
        "var/spool/slurm/d": (0, 0),
    }.items():
        (top / folder).mkdir(parents=True, exist_ok=True)
        os.chown(top / folder, *owner)
    for name in layout.node_names:
        (top / "var/spool/slurm/d" / name).mkdir(exist_ok=True)

    _secret_once(_jwt_key(instance), 32)
    munge_key = instance.folder / "munge.key"
    _secret_once(munge_key, 128)
    _place(top / "etc/munge/munge.key", munge_key.read_bytes(), munge, 0o400)
    etc = top / "etc/slurm"
    etc.mkdir(exist_ok=True)
    _place(etc / "jwt.key", _jwt_key(instance).read_bytes(), slurm, 0o600)
    kept = _kept(instance)
    policy = kept["slurm.conf"]
    _place(etc / "slurmdbd.conf", config.slurmdbd(layout, kept["slurmdbd.conf"]).encode(), slurm, 0o600)
    _place(etc / "policy.conf", config.policy_file(layout, policy).encode(), (0, 0), 0o644)
    _place(etc / "slurm.conf", config.slurm(layout, policy).encode(), (0, 0), 0o644)
    if topology := config.topology(layout):
        _place(etc / "topology.conf", topology.encode(), (0, 0), 0o644)
    _place(etc / "gres.conf", config.gres(layout).encode(), (0, 0), 0o644)
    _place(etc / "cgroup.conf", config.CGROUP.encode(), (0, 0), 0o644)
    (top / LOGS.lstrip("/")).mkdir(parents=True, exist_ok=True)
    (top / LOGS.lstrip("/")).chmod(0o1777)
    (instance.folder / "tools").mkdir(exist_ok=True)
    for name in TOOLS:
        script = TOOL.format(root=shlex.quote(str(top)), name=name)
        _place(instance.folder / "tools" / name, script.encode(), (0, 0), 0o755)
    script = layout.site.text("job_submit.lua") if layout.site else config.JOB_SUBMIT
    if script and not (etc / "job_submit.lua").exists():  # later ones are somebody's policy
        _place(etc / "job_submit.lua", script.encode(), (0, 0), 0o644)


def _ids(top: Path, user: str) -> tuple[int, int]:
    for line in (top / "etc/passwd").read_text().splitlines():
        name, _, uid, gid, *_ = line.split(":")
        if name == user:
            return int(uid), int(gid)
    raise LabError(f"there is no user {user} in {top}")


def _secret_once(file: Path, size: int) -> None:
    if not file.exists():
        file.touch(mode=0o600)
        file.write_bytes(secrets.token_bytes(size))


def _place(file: Path, content: bytes, owner: tuple[int, int], mode: int) -> None:
    making = file.with_name(f".{file.name}")
    making.touch(mode=0o600)
    making.write_bytes(content)
    os.chown(making, *owner)
    making.chmod(mode)
    making.rename(file)


# daemons


def _launch(instance: Instance, daemon: str, user: str, *command: str, **env: str) -> None:
    inside = ["chroot", f"--userspec={user}", str(_root(instance)), *command]
    instance.launch(daemon, inside, env={**PATH, "HOME": "/", **env})


def _start_munged(instance: Instance) -> None:
    _launch(instance, "munged", "munge", "munged", "--foreground", "--num-threads=8")
    _wait_for_command(instance, "munged", 10, "munge", "--no-input")


def _start_mariadbd(instance: Instance) -> None:
    common = ["--no-defaults", "--user=mysql", "--datadir=/var/lib/mysql"]
    made = instance.folder / "database-made"
    if not made.exists():
        # An `up` that was cut short leaves half a database, and an installer that may still be at work on it.
        munged = instance.daemon("munged")
        strays = [process for process in processes.inside(instance.folder) if process != munged]
        processes.end(strays, ask=signal.SIGKILL)
        for half in (_root(instance) / "var/lib/mysql").iterdir():
            shutil.rmtree(half) if half.is_dir() else half.unlink()
        instance.run("mariadb-install-db", *common, "--skip-test-db", "--force", timeout=300)
        made.touch()
    _launch(
        instance,
        "mariadbd",
        "mysql",
        "mariadbd",
        *common,
        f"--socket={DATABASE}",
        "--pid-file=/run/mysqld/mysqld.pid",
        "--skip-networking",
        "--innodb-buffer-pool-size=512M",
        "--innodb-flush-log-at-trx-commit=2",
        "--innodb-lock-wait-timeout=900",
    )
    _wait_for_database(instance)


def _wait_for_database(instance: Instance) -> None:
    _wait_for_command(instance, "mariadbd", 60, "mariadb", f"--socket={DATABASE}", "-e", "select 1")


def _start_slurmdbd(instance: Instance) -> None:
    statements = (
        "create database if not exists slurm_acct_db;"
        "create user if not exists slurm@localhost identified via unix_socket;"
        "grant all on slurm_acct_db.* to slurm@localhost"
    )
    _wait_for_database(instance)  # an `up` that was cut short may have left it starting
    instance.run("mariadb", f"--socket={DATABASE}", "-e", statements)
    _launch(instance, "slurmdbd", "slurm", "slurmdbd", "-D")
    _wait_for_ports(instance, {"slurmdbd": instance.port("accounting")})
    if instance.daemon("slurmctld"):  # it registers again when it notices that its connection is gone
        wait_until(lambda: _registered(instance), REGISTER_SECONDS, "slurmctld did not register again")


def _start_slurmctld(instance: Instance) -> None:
    """The first time twice: only a proper end writes every state file that a start after a crash asks for."""
    if "slurmdbd" not in _services(instance):
        _launch(instance, "slurmctld", "slurm", "slurmctld", "-D")
        _wait_for_command(instance, "slurmctld", 60, "scontrol", "ping")
        return
    _wait_for_ports(instance, {"slurmdbd": instance.port("accounting")})
    # It refuses to start for a cluster that slurmdbd does not know.
    if not instance.run("sacctmgr", "-nP", "show", "cluster", "format=cluster").stdout.strip():
        instance.run("sacctmgr", "-i", "add", "cluster", "fairway")
    usage = _root(instance) / "var/spool/slurm/ctld/assoc_usage"
    for _ in range(1 if usage.exists() else 2):
        _start_registered(instance)


def _start_registered(instance: Instance) -> None:
    """Start slurmctld anew, and return when slurmdbd knows where it listens.

    slurmdbd clears the address of a cluster when the connection of its slurmctld closes. If the next
    slurmctld has registered by then, its address is lost for good, and every `sacctmgr modify` that slurmctld
    must hear of fails. So the next one starts only when slurmdbd has noticed the end of the last one.
    """
    instance.end("slurmctld", patience=30)
    with suppress(LabError):  # if slurmdbd was killed as well, no connection closes, and the address stays
        wait_until(lambda: not _registered(instance), REGISTER_SECONDS, "slurmdbd keeps its address")
    _launch(instance, "slurmctld", "slurm", "slurmctld", "-D")
    _wait_for_command(instance, "slurmctld", 60, "scontrol", "ping")
    wait_until(lambda: _registered(instance), REGISTER_SECONDS, "slurmdbd has no address of slurmctld")


def _registered(instance: Instance) -> bool:
    """Whether slurmdbd knows where slurmctld listens."""
    said = instance.run("sacctmgr", "-nP", "show", "cluster", "format=controlhost,controlport", check=False)
    return said.stdout.strip() == f"127.0.0.1|{instance.port('control')}"


def _start_slurmrestd(instance: Instance) -> None:
    port = instance.port("rest")
    # Without a database slurmrestd does not load what asks slurmdbd.
    loaded = () if "slurmdbd" in _services(instance) else ("-s", "openapi/slurmctld")
    arguments = ("-a", "rest_auth/jwt", *loaded, f"127.0.0.1:{port}")
    _launch(
        instance,
        "slurmrestd",
        "slurmrest",
        "slurmrestd",
        *arguments,
        SLURM_JWT="daemon",
        SLURMRESTD_JSON="compact",
    )
    _wait_for_ports(instance, {"slurmrestd": port})


def _start_node(instance: Instance, name: str) -> None:
    _launch(instance, name, "root", "nice", "-n", "5", "slurmd", "-D", "-N", name)


def _wait_for_ports(instance: Instance, daemons: Mapping[str, int]) -> None:
    """Return when each daemon listens on its port."""
    missing = set(daemons)

    def ready() -> bool:
        heard = listeners()
        missing.intersection_update(name for name, port in daemons.items() if port not in heard)
        for name in missing:
            _must_live(instance, name)
        return not missing

    wait_until(ready, 60, "some daemons do not listen", why=lambda: instance.last_words(min(missing)))


def _wait_for_command(instance: Instance, daemon: str, seconds: float, *command: str) -> None:
    def ready() -> bool:
        _must_live(instance, daemon)
        return instance.run(*command, check=False).returncode == 0

    wait_until(ready, seconds, f"{daemon} does not answer", why=lambda: instance.last_words(daemon))


def _must_live(instance: Instance, daemon: str) -> None:
    if not instance.daemon(daemon):
        raise LabError(f"{daemon} ended at once", instance.last_words(daemon), f"see {instance.log(daemon)}")


def _silent(instance: Instance) -> str:
    """Nodes that slurmctld has not heard of: their state is unknown, or ends with an asterisk."""
    said = instance.run("sinfo", "--noheader", "--format=%t %N", check=False).stdout
    return "\n".join(line for line in said.splitlines() if line.startswith("unk") or "*" in line.split()[0])


# people


def _has_people(instance: Instance) -> bool:
    said = instance.run("sacctmgr", "-nP", "show", "user", SERVICE_USER, "format=adminlevel")
    return "Administrator" in said.stdout


def _add_people(instance: Instance) -> None:
    """Everybody may submit under the account `lab`; Fairway's user may change policy."""
    instance.run("sacctmgr", "-i", "add", "account", "lab", check=False)
    instance.run("sacctmgr", "-i", "add", "user", ",".join(PEOPLE), "account=lab", check=False)
    instance.run("sacctmgr", "-i", "add", "user", SERVICE_USER, "account=lab", "adminlevel=Administrator")


def _add_site_people(instance: Instance, site: Site) -> None:
    """Users of the operating system and their groups, as the site has them."""
    top = _root(instance)
    users = {line.split(":")[0] for line in (top / "etc/passwd").read_text().splitlines()}
    groups = {line.split(":")[0] for line in (top / "etc/group").read_text().splitlines()}
    for line in site.lines("people"):
        name, *its_groups = line.split()
        for group in its_groups:
            if group not in groups:
                instance.run("groupadd", group)
                groups.add(group)
        if name not in users:
            instance.run("useradd", "--create-home", name)
        if its_groups:
            instance.run("usermod", "--append", "--groups", ",".join(its_groups), name)


def _add_accounts(instance: Instance, site: Site) -> None:
    """What the site has in its database, and the QOS that its partitions name."""
    if site.has_accounting:
        for line in site.lines("accounts"):
            instance.run("sacctmgr", "-i", *shlex.split(line))
        instance.run(
            "sacctmgr", "-i", "add", "user", SERVICE_USER, "account=root", "adminlevel=Administrator"
        )
    _made(instance, "accounts").touch()
    _write_files(instance)
    instance.end("slurmctld", patience=30)
    _start_slurmctld(instance)
