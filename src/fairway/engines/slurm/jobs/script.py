"""Convert an order to Slurm's submit request and batch script. Pure.

No user input ever reaches the shell unquoted: words and variables by `shlex`, a script and the setup lines in
base64. Each attempt prints into its own file, opened by the script: Slurm's own filename patterns do not know
attempts, and it would truncate the file of the first when the second starts.
"""

from __future__ import annotations

import base64
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from fairway.engines.port import Refused
from fairway.engines.slurm.policy.partitions import SupplySite
from fairway.model.fleet import Folders
from fairway.model.job import Order, format_job_id
from fairway.model.names import PriorityName

PATH: Final = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
TOLERATES_LOSS: Final = "tolerates-loss"
"""What job_submit.lua looks for in the comment of a job on spot nodes."""
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LINE: Final = 76
_SHELL: Final = "/bin/bash"


@dataclass(frozen=True, slots=True)
class SubmitTerms:
    """The context of an order: the site of its supply, the cluster's folders, the default priority."""

    site: SupplySite
    folders: Folders
    default_priority: PriorityName


def log_file(folder: str, order: Order, attempt: int) -> str:
    """Return the file that an attempt (from 1 within this engine job) prints to, below `folder`."""
    return f"{folder.rstrip('/')}/{order.user}/{order.engine_name}.{attempt}.out"


def slurm_log_file(folder: str, order: Order) -> str:
    """Return the file Slurm itself writes to: why a script failed to start, and who ended it."""
    return f"{folder.rstrip('/')}/{order.user}/{order.engine_name}.slurm"


def body(order: Order, terms: SubmitTerms) -> dict[str, Any]:
    """Return the body to POST to job/submit; the same in every API version from v0.0.40 on."""
    _check(order)
    spec, site, folders = order.spec, terms.site, terms.folders
    job: dict[str, Any] = {
        "name": str(order.engine_name),
        "account": str(order.team),
        "partition": site.partition,
        "tres_per_node": f"gres/gpu:{site.gres}:{spec.gpus.count}"
        if site.gres
        else f"gres/gpu:{spec.gpus.count}",
        "minimum_nodes": spec.nodes,
        "maximum_nodes": spec.nodes,
        "tasks": spec.nodes,
        "environment": [f"PATH={PATH}", f"FAIRWAY_JOB_ID={format_job_id(order.job)}"],
        # slurmd goes to /tmp by itself where a folder is missing, but never to somebody's home without a name
        "current_working_directory": "/tmp",  # noqa: S108 - the script goes on from there
        "standard_output": slurm_log_file(folders.logs, order) if folders.logs else "/dev/null",
        "open_mode": ["APPEND"],
        # What takes its place gives it back: without this a preempted job would be gone
        "requeue": True,
        "comment": _comment(order, site),
        "script": script(order, terms),
    }
    if order.priority != terms.default_priority:  # the word; job_submit.lua makes it the team's QOS
        job["qos"] = str(order.priority)
    if spec.time_seconds is not None:
        job["time_limit"] = {"set": True, "number": max(1, -(-spec.time_seconds // 60))}
    if spec.cpus is not None:
        job["cpus_per_task"] = spec.cpus
    if spec.memory_gb is not None:
        job["memory_per_node"] = {"set": True, "number": spec.memory_gb * 1024}
    if spec.together:
        job["required_switches"] = {"set": True, "number": 1}
    if order.hold:
        job["hold"] = True
    return {"job": job}


def script(order: Order, terms: SubmitTerms) -> str:
    """Return the batch script: the environment, the log, the folder, the setup, then the user's program."""
    spec, folders = order.spec, terms.folders
    lines = [f"#!{_SHELL} -l", f"# {order.engine_name}: made by Fairway for {order.user}"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in spec.env.items()]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in _told(order)]
    lines.append(f"export FAIRWAY_ATTEMPT=$(( {order.attempts_before} + ${{SLURM_RESTART_COUNT:-0}} + 1 ))")
    if folders.logs:
        log = shlex.quote(f"{folders.logs.rstrip('/')}/{order.user}/{order.engine_name}")
        # The group of the folder may read it, as Fairway's server does: see docs/engines/slurm.md
        lines.append(f"fairway_log={log}.$(( ${{SLURM_RESTART_COUNT:-0}} + 1 )).out")
        lines.append('fairway_umask=$(umask); umask 027; { : >> "$fairway_log"; } 2>/dev/null \\')
        lines.append('  && exec >> "$fairway_log" 2>&1; umask "$fairway_umask"')
        lines.append("unset fairway_log fairway_umask")
    if folders.checkpoints:
        folder = f"{folders.checkpoints.rstrip('/')}/{order.team}/{format_job_id(order.job)}"
        lines.append(f"export FAIRWAY_CHECKPOINT_DIR={shlex.quote(folder)}")
        # The team's folder is as /tmp: whoever comes first makes it, and the others write there too
        lines.append(f"mkdir -m 1777 -- {shlex.quote(folder.rpartition('/')[0])} 2>/dev/null")
        lines.append(
            'mkdir -p -- "$FAIRWAY_CHECKPOINT_DIR" || { sleep 1; mkdir -p -- "$FAIRWAY_CHECKPOINT_DIR"; } \\'
        )
        lines.append("  || exit 1")
    lines.append("export HOME=~")
    if spec.workdir is not None:
        lines.append(f"cd -- {shlex.quote(spec.workdir)} || exit 1")
    else:
        lines.append("cd -- ~ 2>/dev/null || cd /tmp || exit 1")
    if spec.setup:
        lines.append(f'eval "$(base64 -d <<< {_encoded(spec.setup)})" || exit $?')
    lines += _program(order)
    return "\n".join(lines) + "\n"


def preview(order: Order, terms: SubmitTerms) -> str:
    """Return the script with `#SBATCH` options, for users to read."""
    job = body(order, terms)["job"]
    first, *rest = job["script"].splitlines()
    return "\n".join([first, *(f"#SBATCH {option}" for option in _options(job)), *rest]) + "\n"


def _options(job: dict[str, Any]) -> Iterable[str]:
    said = {
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
        "output": job["standard_output"],
        "open-mode": "append",
        "comment": job["comment"],
    }
    for name, value in said.items():
        if value is not None:
            yield f"--{name}={shlex.quote(str(value))}"
    yield "--requeue"
    if job.get("hold"):
        yield "--hold"


def _told(order: Order) -> Iterable[tuple[str, str]]:
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
        runs = shlex.join(first[2:].split(maxsplit=1)) if first.startswith("#!") and first[2:].strip() else ""
        text = "\n".join(_wrapped(spec.script))
        return [f"exec {runs or _SHELL} /dev/fd/9 9< <(base64 -d << 'END'", text, "END", ")"]
    words = shlex.join(spec.command)
    if spec.nodes > 1:
        counts = f"--nodes={spec.nodes} --ntasks={spec.nodes} --ntasks-per-node=1"
        return [f"exec srun {counts} --kill-on-bad-exit=1 -- {words}"]
    return [f"exec -- {words}"]


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _wrapped(text: str) -> list[str]:
    encoded = _encoded(text)
    return [encoded[at : at + _LINE] for at in range(0, len(encoded), _LINE)]


def _comment(order: Order, site: SupplySite) -> str:
    word = f"fairway:{format_job_id(order.job)}"
    return f"{word} {TOLERATES_LOSS}" if site.spot else word


def _check(order: Order) -> None:
    """Raise Refused for text that no shell or environment can carry."""
    spec = order.spec
    if (spec.script is None) == (not spec.command):
        raise Refused("CommandMissing", "a job has either a command or a script", "give one of the two")
    texts = [*spec.command, spec.script, spec.setup, spec.workdir, spec.name, *spec.env.values()]
    if any("\0" in text or not _encodable(text) for text in texts if text):
        raise Refused(
            "TextUnsendable",
            "a command, script or variable has a character that no program can be given",
            "take out what is not text: NUL and lone surrogates",
        )
    for name in spec.env:
        if not _VARIABLE.fullmatch(name):
            raise Refused(
                "VariableUnsendable",
                f"{name!r} is no name of a variable",
                "use letters, digits and _, and no digit in front",
            )


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
