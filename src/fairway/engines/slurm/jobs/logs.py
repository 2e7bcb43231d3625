"""Read job logs from the folder that the cluster and Fairway's server share.

Users own the files and the folders they are in, so nothing there is trusted: no link is followed, only a
regular file with one hard link is read, and only one that belongs to the job's user. Otherwise a user could
name another's file as their own log and have Fairway read it to them.
"""

from __future__ import annotations

import asyncio
import os
import stat
from http import HTTPStatus
from typing import Final

from fairway.engines.port import LogPart
from fairway.engines.slurm.jobs.commands import SlurmCommands
from fairway.engines.slurm.jobs.squeue import job_state
from fairway.engines.slurm.jobs.submit import log_file, slurm_log_file
from fairway.engines.slurm.rest.client import SlurmRest
from fairway.model.errors import Refused
from fairway.model.fleet import Folders
from fairway.model.job import OPEN_JOBS, EngineId, Order

MAX_BYTES: Final = 4 * 2**20
"""Maximum of one answer."""


class SlurmLogReader:
    """Reads the logs of one cluster."""

    def __init__(self, rest: SlurmRest, commands: SlurmCommands, folders: Folders) -> None:
        self._rest = rest
        self._commands = commands
        self._folders = folders
        self._uids: dict[str, int] = {}

    async def read(self, order: Order, engine_id: EngineId, attempt: int, offset: int, limit: int) -> LogPart:
        """Read a piece of an attempt's log; Slurm's own messages, if the attempt ended without printing."""
        if not self._folders.logs:
            raise Refused(
                "LogsNotShared",
                "the cluster has no directory for the output of jobs",
                "add  logs: PATH  to the cluster: a directory that all its nodes share",
            )
        # First the job's state, then its file: what is printed in between must not be taken for the end
        ended = await self._ended(order, engine_id, attempt)
        folder = self._folders.logs_seen_at or self._folders.logs
        owner = await self._owner(order, engine_id)
        paths = [log_file("", order, attempt), slurm_log_file("", order)]
        for path in paths[: 2 if ended else 1]:
            name = path.rpartition("/")[2]
            try:
                data, at_end = await asyncio.to_thread(
                    read_part, folder, order.user, name, owner, offset, limit
                )
            except FileNotFoundError:
                continue
            return LogPart(data, offset + len(data), ended and at_end)
        return LogPart(b"", offset, ended)

    async def _ended(self, order: Order, engine_id: EngineId, attempt: int) -> bool:
        response = await self._rest.request_jobs("GET", f"job/{engine_id}")
        if not response.reply.jobs:
            if response.status not in (HTTPStatus.OK, HTTPStatus.NOT_FOUND):
                self._rest.fail(response)
            return True  # slurmctld keeps jobs for a while after their end: this one is long over
        job = response.reply.jobs[0]
        self._uids[order.user] = job.user_id
        states = [job_state(state, "") for state in job.job_state]
        return all(state not in OPEN_JOBS for state in states) or job.restart_cnt >= attempt

    async def _owner(self, order: Order, engine_id: EngineId) -> int:
        """Return the user's uid on the cluster; this host may not know the user at all."""
        if order.user not in self._uids:
            arguments = ["--noheader", "--allocations", "--parsable2", f"--jobs={engine_id}", "--format=UID"]
            uids = (await self._commands.run("sacct", arguments)).decode().split()
            if not uids or not uids[0].isdecimal():
                raise Refused(
                    "LogsUnreadable", f"Slurm no longer knows job {engine_id}", f"sacct -j {engine_id}"
                )
            self._uids[order.user] = int(uids[0])
        return self._uids[order.user]


def read_part(folder: str, user: str, name: str, owner: int, offset: int, limit: int) -> tuple[bytes, bool]:
    """Read bytes of `folder`/`user`/`name` from `offset`, and whether they reach its end. Blocks.

    Raises FileNotFoundError if nothing was printed there yet.
    """
    for part in (user, name):
        if not part or "/" in part or part in (".", ".."):
            raise _unsafe(name, "its name is no plain name")
    try:
        top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise Refused(
            "LogsUnreadable",
            f"the log directory cannot be read here: {error.strerror}",
            "mount it on Fairway's server, and name it:  logs: PATH, logs_seen_at: PATH",
        ) from error
    try:
        return _read(top, user, name, owner, offset, min(limit, MAX_BYTES))
    except PermissionError as error:
        raise Refused(
            "LogsUnreadable",
            f"Fairway's server may not read {user}/{name}",
            "give its group access to the log directory:  chgrp fairway FOLDER; chmod 3777 FOLDER",
        ) from error
    finally:
        os.close(top)


def _read(top: int, user: str, name: str, owner: int, offset: int, limit: int) -> tuple[bytes, bool]:
    user_folder = _open(user, os.O_DIRECTORY, top, name)
    try:
        if os.fstat(user_folder).st_uid != owner:
            raise _unsafe(name, f"the folder {user} is not the user's own")
        # A pipe must not make the reader wait
        file = _open(name, os.O_NONBLOCK, user_folder, name)
    finally:
        os.close(user_folder)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise _unsafe(name, "it is no plain file")
        if status.st_uid != owner:
            raise _unsafe(name, f"it is not {user}'s own")
        if status.st_nlink != 1:
            raise _unsafe(name, "it has more than one name, or none")
        data = os.pread(file, max(0, limit), offset)
        return data, offset + len(data) >= status.st_size
    finally:
        os.close(file)


def _open(name: str, flags: int, folder: int, log: str) -> int:
    try:
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY | flags, dir_fd=folder)
    except (FileNotFoundError, PermissionError):
        raise
    except OSError as error:  # ELOOP: a link; ENOTDIR: something in a folder's place; ENXIO: a socket
        raise _unsafe(log, error.strerror or "it cannot be opened") from error


def _unsafe(name: str, why: str) -> Refused:
    return Refused("LogUnsafe", f"{name} is not read: {why}", "look at it on the cluster itself:  ls -lR")
