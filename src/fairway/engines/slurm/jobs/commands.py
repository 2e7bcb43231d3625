"""Run `squeue` and `sacct`: the token in the environment, never as a flag; time and output limited."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from fairway.engines.port import Unreachable
from fairway.engines.slurm.rest.client import Tokens
from fairway.model.errors import Refused
from fairway.model.fleet import SlurmConnection

MAX_OUTPUT_BYTES: Final = 1024 * 2**20
"""A job is about 300 bytes: room for three million of them."""
_PASSED_VARIABLES: Final = ("SLURM_CONF", "SLURM_CONF_SERVER", "LD_LIBRARY_PATH")
"""Variables of the server's environment by which Slurm's programs find their cluster."""
# In stderr when the daemon is down or unreachable; any other failure is taken for a permanent one
_UNREACHABLE: Final = (
    "unable to contact",
    "connection refused",
    "connection timed out",
    "communication connection failure",
    "zero bytes were transmitted",
    "socket timed out",
    "connection reset",
    "unexpected message received",
    "sending persistconninit",
    "unable to register",
    "problem talking to the database",
    "slurmdbd",
    "backup controller",
    "in standby mode",
    "resource temporarily unavailable",
)
_REJECTED: Final = ("authentication", "credential", "auth_g_", "access/permission denied")


class SlurmCommands:
    """The Slurm programs of one cluster."""

    def __init__(self, connection: SlurmConnection, tokens: Tokens, *, timeout_seconds: float) -> None:
        self._folder = connection.tools
        self._user = connection.user
        self._tokens = tokens
        self._timeout_seconds = timeout_seconds

    async def run(self, name: str, arguments: Sequence[str], env: Mapping[str, str] | None = None) -> bytes:
        """Run a program and return its output. Raises Unreachable or Refused, nothing else."""
        program = shutil.which(name, path=self._folder)
        if program is None:
            raise _missing(name, f"not found in {self._folder or 'PATH'}")
        token = await asyncio.to_thread(self._tokens.current)
        environment = {
            **{key: os.environ[key] for key in _PASSED_VARIABLES if key in os.environ},
            "PATH": os.environ.get("PATH", os.defpath),
            "LC_ALL": "C.UTF-8",
            "TZ": "UTC",
            "SLURM_JWT": token,
            "SLURM_TIME_FORMAT": "%s",
            **(env or {}),
        }
        try:
            process = await asyncio.create_subprocess_exec(
                program,
                *arguments,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=2**20,
            )
        except OSError as error:
            raise _missing(name, str(error)) from error
        try:
            async with asyncio.timeout(self._timeout_seconds):
                stdout, stderr = await asyncio.gather(_read(process.stdout), _read(process.stderr))
                code = await process.wait()
        except TimeoutError as error:
            raise Unreachable(
                "ClusterUnreachable",
                f"{name} did not respond within {self._timeout_seconds:g} s",
                "on its host:  scontrol ping; sdiag",
            ) from error
        finally:
            await _end(process)
        if code or stderr:
            self._check(name, code, stderr.decode(errors="replace").strip())
        return stdout

    def _check(self, name: str, code: int, message: str) -> None:
        text = message.lower()
        unreachable = any(part in text for part in _UNREACHABLE)
        if code == 0 and not unreachable:
            return  # a warning beside complete output
        if any(part in text for part in _REJECTED) and "connection" not in text:
            self._tokens.forget()
            raise Refused(
                "CredentialsRejected",
                f"{name} was rejected as {self._user}: {message}",
                "the key must be the cluster's own, and both clocks right:  "
                "scontrol show config | grep AuthAlt; timedatectl",
            )
        if unreachable:
            raise Unreachable(
                "ControllerUnreachable" if name == "squeue" else "AccountingUnreachable",
                f"{name}: {message}",
                "scontrol ping" if name == "squeue" else "systemctl status slurmdbd",
            )
        raise Unreachable(
            "EngineFailed", f"{name} failed ({code}): {message or 'it says nothing'}", f"{name} -V"
        )


def _missing(name: str, why: str) -> Refused:
    return Refused(
        "ToolMissing",
        f"{name} cannot be run: {why}",
        "install slurm-client on Fairway's server, or name its folder:  tools: /opt/slurm/bin",
    )


async def _read(stream: asyncio.StreamReader | None) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while stream is not None and (chunk := await stream.read(2**20)):
        chunks.append(chunk)
        size += len(chunk)
        if size > MAX_OUTPUT_BYTES:
            raise Refused(
                "ReplyTooLarge", f"more than {MAX_OUTPUT_BYTES // 2**20} MiB came", "squeue -h | wc -c"
            )
    return b"".join(chunks)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill the process if it still runs, so that none is left behind."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
            await process.wait()
