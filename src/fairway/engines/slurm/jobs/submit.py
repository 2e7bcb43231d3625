"""Submit, cancel, hold, release and change jobs through slurmrestd, and make the batch script of an order.

Jobs are submitted as their user, and cancelled, held, released and changed as Fairway's user.
"""

from __future__ import annotations

import asyncio
import base64
import re
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from fairway.engines.port import SubmitResult, Unreachable
from fairway.engines.slurm.jobs import change
from fairway.engines.slurm.policy.partitions import SupplySite, sites
from fairway.engines.slurm.policy.read import CTL
from fairway.engines.slurm.rest.client import JobResponse, SlurmRest
from fairway.model.errors import FairwayError, Refused
from fairway.model.fleet import Cluster, Fleet, Folders
from fairway.model.job import EngineId, Order, format_job_id
from fairway.model.job_change import WaitingChange
from fairway.model.labels import comment_words
from fairway.model.names import PriorityName

MAX_CONNECTIONS: Final = 8
"""More of them do not make slurmctld faster."""
PATH: Final = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
_VARIABLE_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LINE_LENGTH: Final = 76
_SHELL: Final = "/bin/bash"

# slurm_errno.h
_OVER: Final = frozenset({2017, 2021, 2084})  # invalid job id, already done, finished
_NO_USER: Final = 6010
# Refused now, and perhaps accepted later: a controller that takes over, a queue that is full
_TEMPORARY: Final = frozenset({11, 2020, 2027, 2095})
_PERMANENT: Final = (range(2000, 3000), range(_NO_USER, _NO_USER + 1), range(9000, 10_000))
_REASONS: Final[Mapping[int, tuple[str, str]]] = {
    2000: ("PartitionMissing", "correct  pools.POOL.slurm.partition  in the fleet file:  sinfo -s"),
    2002: ("NotAllowed", "fairway get teams  shows who may use what; sacctmgr show assoc user=USER"),
    2014: ("CannotFit", "request fewer GPUs, CPUs or less memory per node:  sinfo -o '%P %D %G %c %m'"),
    2015: ("CannotFit", "request fewer nodes or less time:  scontrol show partition"),
    2006: ("CannotFit", "request fewer nodes:  sinfo -s"),
    2025: ("CannotFit", "request fewer nodes:  sinfo -s"),
    2045: ("NotInTeam", "make the user a member of the team and apply:  fairway plan"),
    2050: ("LimitReached", "wait for jobs of the team to end, or raise its limits:  sacctmgr show assoc"),
    2051: ("TimeTooLong", "request less time:  scontrol show partition | grep MaxTime"),
    2066: ("PriorityRefused", "use another priority, or apply the policy with its job_submit.lua"),
    2072: ("GpuTypeUnknown", "correct  pools.POOL.slurm.gres  in the fleet file:  sinfo -o '%P %G'"),
    _NO_USER: ("UserUnknown", "the cluster must know the user as its login nodes do:  getent passwd USER"),
}


@dataclass(frozen=True, slots=True)
class SubmitContext:
    """The context of an order: the site of its supply, the cluster's folders, the default priority."""

    site: SupplySite
    folders: Folders
    default_priority: PriorityName
    account: str | None = None
    """The team's account, where that has another name."""


def log_file(folder: str, order: Order, attempt: int) -> str:
    """Return the file that an attempt (from 1 within this engine job) prints to, below `folder`."""
    return f"{folder.rstrip('/')}/{order.user}/{order.engine_name}.{attempt}.out"


def slurm_log_file(folder: str, order: Order) -> str:
    """Return the file Slurm itself writes to: why a script failed to start, and who ended it."""
    return f"{folder.rstrip('/')}/{order.user}/{order.engine_name}.slurm"


def body(order: Order, context: SubmitContext) -> dict[str, Any]:
    """Return the body to POST to job/submit; the same in every API version from v0.0.40 on."""
    _check(order)
    spec, site, folders = order.spec, context.site, context.folders
    job: dict[str, Any] = {
        "name": str(order.engine_name),
        "account": context.account or str(order.team),
        "partition": site.partition,
        "tres_per_node": f"{site.tres}:{spec.gpus.count}",
        "minimum_nodes": spec.nodes,
        "maximum_nodes": spec.nodes,
        "tasks": spec.nodes,
        "environment": [f"PATH={PATH}", f"FAIRWAY_JOB_ID={format_job_id(order.job)}"],
        # slurmd goes to /tmp by itself where a folder is missing, but never to somebody's home without a name
        "current_working_directory": "/tmp",  # noqa: S108 - the script goes on from there
        "standard_output": slurm_log_file(folders.logs, order) if folders.logs else "/dev/null",
        "open_mode": ["APPEND"],
        # A preempted job goes back to the queue: without this it would be cancelled
        "requeue": True,
        "comment": _comment(order, site),
        "script": script(order, context),
    }
    if order.priority != context.default_priority:  # by name; job_submit.lua makes it the team's QOS
        job["qos"] = str(order.priority)
    if spec.time_seconds is not None:
        job["time_limit"] = {"set": True, "number": max(1, -(-spec.time_seconds // 60))}
    if spec.cpus is not None:
        job["cpus_per_task"] = spec.cpus
    if spec.memory_gb is not None:
        job["memory_per_node"] = {"set": True, "number": spec.memory_gb * 1024}
    if spec.together:
        job["required_switches"] = {"set": True, "number": 1}
    if order.avoid:
        job["excluded_nodes"] = list(order.avoid)
    if order.hold:
        job["hold"] = True
    return {"job": job}


def _comment(order: Order, site: SupplySite) -> str:
    """Return the job's comment. A wckey would be refused where a site enforces its own list of them."""
    words = (
        f"fairway:{format_job_id(order.job)}",
        change.TOLERATES_LOSS if site.spot else "",
        comment_words(order.spec.project, order.spec.labels),
    )
    return " ".join(filter(None, words))


def script(order: Order, context: SubmitContext) -> str:
    """Return the batch script: the environment, the log, the folder, the setup, then the user's program."""
    spec, folders = order.spec, context.folders
    lines = [f"#!{_SHELL} -l", f"# {order.engine_name}: made by Fairway for {order.user}"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in spec.env.items()]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in _variables(order)]
    lines.append(f"export FAIRWAY_ATTEMPT=$(( {order.attempts_before} + ${{SLURM_RESTART_COUNT:-0}} + 1 ))")
    if folders.logs:
        lines += _open_log(f"{folders.logs.rstrip('/')}/{order.user}", order)
    if folders.checkpoints:
        lines += _make_checkpoint_folder(folders.checkpoints.rstrip("/"), order)
    lines.append("export HOME=~")
    if spec.workdir is not None:
        lines.append(f"cd -- {shlex.quote(spec.workdir)} || exit 1")
    else:
        lines.append("cd -- ~ 2>/dev/null || cd /tmp || exit 1")
    if spec.setup:
        lines.append(f'eval "$(base64 -d <<< {_encoded(spec.setup)})" || exit $?')
    lines += _program(order)
    return "\n".join(lines) + "\n"


def _open_log(folder: str, order: Order) -> list[str]:
    """Return the lines that print into the attempt's own file, or end the job if others could read it.

    Slurm makes the user's folder, in one that everybody may write to: somebody else may have made it before.
    Its group may read the file, as Fairway's server does: see docs/engines/slurm.md.
    """
    return [
        f"fairway_logs={shlex.quote(folder)}",
        '[ -O "$fairway_logs" ] && [ ! -L "$fairway_logs" ] \\',
        '  || { echo "fairway: $fairway_logs is not your own: an admin must remove it" >&2; exit 1; }',
        f"fairway_log=$fairway_logs/{order.engine_name}.$(( ${{SLURM_RESTART_COUNT:-0}} + 1 )).out",
        'fairway_umask=$(umask); umask 027; ( set -C; : > "$fairway_log" ) 2>/dev/null',
        '[ -f "$fairway_log" ] && [ -O "$fairway_log" ] && [ ! -L "$fairway_log" ] \\',
        '  && exec >> "$fairway_log" 2>&1 \\',
        '  || { echo "fairway: cannot make $fairway_log, or it is not your own" >&2; exit 1; }',
        'umask "$fairway_umask"; unset fairway_logs fairway_log fairway_umask',
    ]


def _make_checkpoint_folder(top: str, order: Order) -> list[str]:
    """Return the lines that make USER/ID below the shared folder, or end the job if it is another's.

    Checkpoints are pickles: who can replace one runs code as its reader. Nobody can rename a user's folder in
    a sticky one that an admin owns, as they could in one for each team, which its first user would own.
    """
    return [
        f"fairway_user={shlex.quote(f'{top}/{order.user}')}",
        f"export FAIRWAY_CHECKPOINT_DIR=$fairway_user/{format_job_id(order.job)}",
        'fairway_own() { mkdir -m 700 -- "$1" 2>/dev/null \\',
        '  || { [ -d "$1" ] && [ -O "$1" ] && [ ! -L "$1" ]; }; }',
        # A shared file system may show what another task of the user just made a moment later
        'fairway_own "$fairway_user" || { sleep 1; fairway_own "$fairway_user"; } \\',
        '  || { echo "fairway: $fairway_user is not your own: an admin must remove it" >&2; exit 1; }',
        'fairway_own "$FAIRWAY_CHECKPOINT_DIR" \\',
        '  || { echo "fairway: $FAIRWAY_CHECKPOINT_DIR is not your own" >&2; exit 1; }',
        "unset -f fairway_own; unset fairway_user",
    ]


def preview(order: Order, context: SubmitContext) -> str:
    """Return the script with `#SBATCH` options, for users to read."""
    job = body(order, context)["job"]
    first, *rest = job["script"].splitlines()
    return "\n".join([first, *(f"#SBATCH {option}" for option in _options(job)), *rest]) + "\n"


def _options(job: dict[str, Any]) -> Iterable[str]:
    options = {
        "job-name": job["name"],
        "account": job["account"],
        "partition": job["partition"],
        "qos": job.get("qos"),
        "gres": job["tres_per_node"].removeprefix("gres/"),
        "nodes": job["minimum_nodes"],
        "ntasks": job["tasks"],
        "cpus-per-task": job.get("cpus_per_task"),
        "mem": f"{job['memory_per_node']['number']}M" if "memory_per_node" in job else None,
        "time": job["time_limit"]["number"] if "time_limit" in job else None,
        "switches": 1 if "required_switches" in job else None,
        "exclude": ",".join(job.get("excluded_nodes", ())) or None,
        "output": job["standard_output"],
        "open-mode": "append",
        "comment": job["comment"],
    }
    for name, value in options.items():
        if value is not None:
            yield f"--{name}={shlex.quote(str(value))}"
    yield "--requeue"
    if job.get("hold"):
        yield "--hold"


def _variables(order: Order) -> Iterable[tuple[str, str]]:
    """Yield the variables that describe a job to itself, except the attempt."""
    yield "FAIRWAY_JOB_ID", format_job_id(order.job)
    yield "FAIRWAY_JOB_NAME", order.spec.name
    yield "FAIRWAY_TEAM", order.team
    if order.array is not None:
        yield "FAIRWAY_ARRAY_ID", format_job_id(order.array)
    if order.array_index is not None:
        yield "FAIRWAY_ARRAY_INDEX", str(order.array_index)


def _program(order: Order) -> list[str]:
    """Return the last lines: the shell execs the program, so that signals and exit code are its own."""
    spec = order.spec
    if spec.script is not None:
        # Runs on the first node and starts the others by srun, as any batch script
        first = spec.script.split("\n", 1)[0]
        shebang = first[2:].split(maxsplit=1) if first.startswith("#!") else []
        encoded = _encoded(spec.script)
        lines = [encoded[at : at + _LINE_LENGTH] for at in range(0, len(encoded), _LINE_LENGTH)]
        shell = shlex.join(shebang) or _SHELL
        return [f"exec {shell} /dev/fd/9 9< <(base64 -d << 'END'", "\n".join(lines), "END", ")"]
    command = shlex.join(spec.command)
    if spec.nodes > 1:
        # As many as the job has when it starts: it may be changed while it waits
        counts = '--nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1'
        return [f"exec srun {counts} --kill-on-bad-exit=1 -- {command}"]
    return [f"exec -- {command}"]


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _check(order: Order) -> None:
    """Raise Refused for text that no shell or environment can carry."""
    spec = order.spec
    if (spec.script is None) == (not spec.command):
        raise Refused(
            "CommandMissing", "a job needs either a command or a script", "set exactly one of the two"
        )
    texts = [*spec.command, spec.script, spec.setup, spec.workdir, spec.name, *spec.env.values()]
    if any("\0" in text or not _encodable(text) for text in texts if text):
        raise Refused(
            "TextUnsendable",
            "a command, script or variable contains a character that cannot be passed to a program",
            "remove NUL characters and unpaired surrogates",
        )
    for name in spec.env:
        if not _VARIABLE_NAME.fullmatch(name):
            raise Refused(
                "VariableUnsendable",
                f"{name!r} is not a valid variable name",
                "use letters, digits and _, not starting with a digit",
            )


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class SlurmRunner:
    """Submits, cancels, holds and releases the jobs of one cluster."""

    def __init__(self, rest: SlurmRest, cluster: Cluster) -> None:
        self._rest = rest
        self._cluster = cluster
        self._connections = asyncio.Semaphore(MAX_CONNECTIONS)
        self._settings: dict[str, str] | None = None
        """The GRES types of the cluster's partitions, once read."""
        self._knows_slurm_user = False

    def preview(self, order: Order, fleet: Fleet) -> str:
        return preview(order, self._context(order, fleet))

    async def submit(self, orders: Sequence[Order], fleet: Fleet) -> AsyncIterator[SubmitResult]:
        """Submit several orders at a time; if one fails as unreachable, those under way are awaited."""
        if not self._knows_slurm_user:
            await self._rest.find_slurm_user()
            self._knows_slurm_user = True
        if self._settings is None and any(order.supply.slice is not None for order in orders):
            # The cluster's names of its slices: `1g.10gb`, or `a100_1g.10gb`
            reply = await self._rest.partitions()
            self._settings = {f"partition/{p.name}/TRES": p.tres.configured for p in reply.partitions}
        waiting = iter(orders)
        tasks: set[asyncio.Task[SubmitResult]] = set()
        failure: FairwayError | None = None
        try:
            while True:
                while failure is None and len(tasks) < MAX_CONNECTIONS and (order := next(waiting, None)):
                    tasks.add(asyncio.create_task(self._submit(order, fleet)))
                if not tasks:
                    break
                done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    try:
                        result = task.result()
                    except FairwayError as error:
                        failure = failure or error
                        continue
                    yield result
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if failure is not None:
            raise failure

    async def cancel(self, ids: Sequence[EngineId]) -> Mapping[EngineId, Refused]:
        return await self._each(ids, lambda job: self._change("DELETE", job))

    async def hold(self, ids: Sequence[EngineId]) -> Mapping[EngineId, Refused]:
        return await self._each(ids, lambda job: self._set_hold(job, hold=True))

    async def release(self, ids: Sequence[EngineId]) -> Mapping[EngineId, Refused]:
        return await self._each(ids, lambda job: self._set_hold(job, hold=False))

    def check_change(self, before: Order, after: Order, fleet: Fleet) -> None:
        """Return if a pending job can be changed so. Pure. Raises Refused otherwise."""
        body(after, self._context(after, fleet))
        change.check_change(before, after, fleet)

    async def change(self, changes: Sequence[WaitingChange], fleet: Fleet) -> Mapping[EngineId, Refused]:
        wanted = {one.engine_id: one for one in changes}

        async def change_one(job: EngineId) -> Refused | None:
            one = wanted[job]
            try:
                self.check_change(one.before, one.after, fleet)
                current = await self._rest.get_if_served(f"{CTL}/job/{job}")
                update = change.update(one, self._context(one.after, fleet).site, current)
            except Refused as refusal:
                return refusal
            return await self._change("POST", job, update) if update else None

        return await self._each(list(wanted), change_one)

    async def _submit(self, order: Order, fleet: Fleet) -> SubmitResult:
        try:
            self._rest.tokens.require_person(order.user)
            request = body(order, self._context(order, fleet))
        except Refused as refusal:
            return SubmitResult(order, None, refusal)
        response = await self._rest.request_jobs("POST", "job/submit", request, user=order.user)
        if response.status == HTTPStatus.OK and response.reply.job_id and not response.reply.errors:
            return SubmitResult(order, EngineId(str(response.reply.job_id)))
        return SubmitResult(order, None, _refusal(response))

    async def _set_hold(self, job: EngineId, *, hold: bool) -> Refused | None:
        if not job.isdecimal():
            return Refused(
                "TaskOfArray",
                f"Slurm's API holds and releases whole arrays only, and {job} is a task of one",
                f"scontrol {'hold' if hold else 'release'} {job}",
            )
        return await self._change("POST", job, {"hold": hold})

    async def _change(self, method: str, job: EngineId, request: object = None) -> Refused | None:
        response = await self._rest.request_jobs(method, f"job/{job}", request)
        numbers = _error_numbers(response)
        if numbers <= _OVER and (numbers or response.status == HTTPStatus.OK):
            return None
        return _refusal(response)

    async def _each(
        self, ids: Sequence[EngineId], change: Callable[[EngineId], Awaitable[Refused | None]]
    ) -> Mapping[EngineId, Refused]:
        async def one(job: EngineId) -> tuple[EngineId, Refused | None]:
            async with self._connections:
                return job, await change(job)

        tasks = [asyncio.create_task(one(job)) for job in ids]
        try:
            done = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return {job: refusal for job, refusal in done if refusal is not None}

    def _context(self, order: Order, fleet: Fleet) -> SubmitContext:
        for site in sites(fleet, self._cluster.name, self._settings or {}):
            if site.supply == order.supply:
                account = next((t.account for t in fleet.teams if t.name == order.team), None)
                return SubmitContext(site, self._cluster.folders, fleet.default_priority.name, account)
        raise Refused(
            "PoolMissing",
            f"{order.supply} is not on cluster {self._cluster.name}",
            "fairway get pools",
        )


def _error_numbers(response: JobResponse) -> set[int]:
    """Return the errors of slurm_errno.h. A refused DELETE is answered 200, with the error in `status`."""
    codes = {result.error.code for result in response.reply.status if result.error.code}
    return codes | {error.error_number for error in response.reply.errors}


def _refusal(response: JobResponse) -> Refused:
    """Return why Slurm refused one job. Raises Unreachable if it may accept it later."""
    numbers = _error_numbers(response)
    texts = [error.error or error.description for error in response.reply.errors]
    texts += [result.error.message for result in response.reply.status if result.error.code]
    texts.append(response.reply.job_submit_user_msg)
    message = "; ".join(dict.fromkeys(text.strip() for text in texts if text and text.strip()))
    permanent = any(number in some for number in numbers for some in _PERMANENT)
    if numbers & _TEMPORARY or not (permanent or 400 <= response.status < 500):
        raise Unreachable(
            "EngineFailed",
            f"Slurm rejected a request ({response.status}): {message or 'it says nothing'}",
            "journalctl -u slurmrestd -u slurmctld",
        )
    for number in sorted(numbers):
        if number in _REASONS:
            code, hint = _REASONS[number]
            return Refused(code, f"Slurm: {message}", hint)
    return Refused(
        "EngineRefused", f"Slurm: {message or f'HTTP {response.status}'}", "journalctl -u slurmctld"
    )
