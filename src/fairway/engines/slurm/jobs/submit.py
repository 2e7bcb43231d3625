"""Submit and change jobs through slurmrestd: sent as the user, held and cancelled as Fairway's user."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Final

from fairway.engines.port import Refused, Sent, Unreachable
from fairway.engines.slurm.jobs import script
from fairway.engines.slurm.jobs.script import SubmitTerms
from fairway.engines.slurm.policy.partitions import sites
from fairway.engines.slurm.rest.client import RestAnswer, SlurmRest
from fairway.model.errors import FairwayError
from fairway.model.fleet import Cluster, Fleet
from fairway.model.job import EngineId, Order

AT_ONCE: Final = 8
"""Connections: more of them do not make slurmctld faster."""

# slurm_errno.h
_INVALID_JOB: Final = 2017
_ALREADY_DONE: Final = 2021
_FINISHED: Final = 2084
_OVER: Final = frozenset({_INVALID_JOB, _ALREADY_DONE, _FINISHED})
_NO_USER: Final = 6010
# Says no now and may say yes later: a controller that takes over, a queue that is full
_LATER: Final = frozenset({11, 2020, 2027, 2095})
_FOR_GOOD: Final = (range(2000, 3000), range(_NO_USER, _NO_USER + 1), range(9000, 10_000))
_REASONS: Final[Mapping[int, tuple[str, str]]] = {
    2000: ("PartitionMissing", "correct  pools.POOL.slurm.partition  in the fleet file:  sinfo -s"),
    2002: ("NotAllowed", "fairway get teams  shows who may use what; sacctmgr show assoc user=USER"),
    2014: ("CannotFit", "ask for fewer GPUs, CPUs or less memory on a node:  sinfo -o '%P %D %G %c %m'"),
    2015: ("CannotFit", "ask for fewer nodes or less time:  scontrol show partition"),
    2006: ("CannotFit", "ask for fewer nodes:  sinfo -s"),
    2025: ("CannotFit", "ask for fewer nodes:  sinfo -s"),
    2045: ("NotInTeam", "make the user a member of the team and apply:  fairway plan"),
    2050: ("LimitReached", "wait for jobs of the team to end, or raise its limits:  sacctmgr show assoc"),
    2051: ("TimeTooLong", "ask for less time:  scontrol show partition | grep MaxTime"),
    2066: ("PriorityRefused", "take another priority, or apply the policy with its job_submit.lua"),
    2072: ("GpuTypeUnknown", "correct  pools.POOL.slurm.gres  in the fleet file:  sinfo -o '%P %G'"),
    _NO_USER: ("UserUnknown", "the cluster must know the user as its login nodes do:  getent passwd USER"),
}


class SlurmRunner:
    """Submits, cancels, holds and releases the jobs of one cluster."""

    def __init__(self, rest: SlurmRest, cluster: Cluster) -> None:
        self._rest = rest
        self._cluster = cluster
        self._places = asyncio.Semaphore(AT_ONCE)
        self._types: dict[str, str] | None = None

    def preview(self, order: Order, fleet: Fleet) -> str:
        return script.preview(order, self._terms(order, fleet))

    async def submit(self, wanted: Sequence[Order], fleet: Fleet) -> AsyncIterator[Sent]:
        """Submit several orders at a time; if one fails as unreachable, those under way are awaited."""
        if self._types is None and any(order.supply.slice is not None for order in wanted):
            await self._learn_types()
        waiting = iter(wanted)
        under_way: set[asyncio.Task[Sent]] = set()
        failure: FairwayError | None = None
        try:
            while True:
                while failure is None and len(under_way) < AT_ONCE and (order := next(waiting, None)):
                    under_way.add(asyncio.create_task(self._submit(order, fleet)))
                if not under_way:
                    break
                done, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    try:
                        sent = task.result()
                    except FairwayError as error:
                        failure = failure or error
                        continue
                    yield sent
        finally:
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)
        if failure is not None:
            raise failure

    async def cancel(self, ids: Sequence[EngineId]) -> Mapping[EngineId, Refused]:
        return await self._each(ids, self._cancel)

    async def hold(self, ids: Sequence[EngineId]) -> Mapping[EngineId, Refused]:
        return await self._each(ids, lambda job: self._update(job, hold=True))

    async def release(self, ids: Sequence[EngineId]) -> Mapping[EngineId, Refused]:
        return await self._each(ids, lambda job: self._update(job, hold=False))

    async def _submit(self, order: Order, fleet: Fleet) -> Sent:
        try:
            body = script.body(order, self._terms(order, fleet))
        except Refused as refusal:
            return Sent(order, None, refusal)
        answer = await self._rest.act("POST", "job/submit", body, user=order.user)
        if answer.status == HTTPStatus.OK and answer.reply.job_id and not answer.reply.errors:
            return Sent(order, EngineId(str(answer.reply.job_id)))
        return Sent(order, None, self._refusal(answer))

    async def _cancel(self, job: EngineId) -> Refused | None:
        answer = await self._rest.act("DELETE", f"job/{job}")
        # A refused DELETE is answered 200, with the error inside
        codes = {signalled.error.code for signalled in answer.reply.status if signalled.error.code}
        codes |= {fault.error_number for fault in answer.reply.errors}
        if codes <= _OVER and (codes or answer.status == HTTPStatus.OK):
            return None
        return self._refusal(answer)

    async def _update(self, job: EngineId, *, hold: bool) -> Refused | None:
        if not job.isdecimal():
            return Refused(
                "TaskOfArray",
                f"Slurm's API holds and releases whole arrays only, and {job} is a task of one",
                f"scontrol {'hold' if hold else 'release'} {job}",
            )
        answer = await self._rest.act("POST", f"job/{job}", {"hold": hold})
        codes = {fault.error_number for fault in answer.reply.errors}
        if codes <= _OVER and (codes or answer.status == HTTPStatus.OK):
            return None
        return self._refusal(answer)

    async def _each(
        self, ids: Sequence[EngineId], do: Callable[[EngineId], Awaitable[Refused | None]]
    ) -> Mapping[EngineId, Refused]:
        async def one(job: EngineId) -> tuple[EngineId, Refused | None]:
            async with self._places:
                return job, await do(job)

        tasks = [asyncio.create_task(one(job)) for job in ids]
        try:
            done = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return {job: refusal for job, refusal in done if refusal is not None}

    def _terms(self, order: Order, fleet: Fleet) -> SubmitTerms:
        for site in sites(fleet, self._cluster.name, self._types or {}):
            if site.supply == order.supply:
                return SubmitTerms(site, self._cluster.folders, fleet.default_priority.name)
        raise Refused(
            "PoolMissing",
            f"{order.supply} is not on cluster {self._cluster.name}",
            "fairway get pools",
        )

    async def _learn_types(self) -> None:
        """Read the cluster's names of its slices: `1g.10gb`, or `a100_1g.10gb`."""
        reply = await self._rest.partitions()
        self._types = {f"partition/{p.name}/TRES": p.tres.configured for p in reply.partitions}

    def _refusal(self, answer: RestAnswer) -> Refused:
        """Return why Slurm refused one job. Raises Unreachable if it may accept it later."""
        verdicts = [signalled.error for signalled in answer.reply.status if signalled.error.code]
        numbers = {fault.error_number for fault in answer.reply.errors} | {v.code for v in verdicts}
        words = [fault.error or fault.description for fault in answer.reply.errors]
        words += [verdict.message for verdict in verdicts]
        words.append(answer.reply.job_submit_user_msg)
        said = "; ".join(dict.fromkeys(word.strip() for word in words if word and word.strip()))
        for_good = any(number in some for number in numbers for some in _FOR_GOOD)
        if numbers & _LATER or not (for_good or 400 <= answer.status < 500):
            raise Unreachable(
                "EngineFailed",
                f"Slurm did not take a request ({answer.status}): {said or 'it says nothing'}",
                "journalctl -u slurmrestd -u slurmctld",
            )
        for number in sorted(numbers):
            if number in _REASONS:
                code, hint = _REASONS[number]
                return Refused(code, f"Slurm: {said}", hint)
        return Refused(
            "EngineRefused", f"Slurm: {said or f'HTTP {answer.status}'}", "journalctl -u slurmctld"
        )
