"""Submit jobs to a virtual cluster, cancel, hold and release them, and read their logs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import Final

from fairway.engines.port import LogPart, SubmitResult
from fairway.engines.virtual.cluster import ClusterInstance
from fairway.engines.virtual.jobs.script import interpret
from fairway.model.errors import Refused
from fairway.model.fleet import Fleet
from fairway.model.job import EngineId, EngineName, Order, Tolerates
from fairway.model.job_change import WaitingChange
from fairway.model.names import UserName
from fairway.simulate.cluster.jobs import ENDED, JobRequest, SimAttempt, SimEnding

_YIELD_EVERY: Final = 100
"""Jobs to submit before yielding to other tasks."""
_END_MESSAGES: Final = {
    SimEnding.CANCELLED: "CANCELLED",
    SimEnding.TIMEOUT: "CANCELLED DUE TO TIME LIMIT",
    SimEnding.RECLAIMED: "CANCELLED DUE TO PREEMPTION",
    SimEnding.OUTRANKED: "CANCELLED DUE TO PREEMPTION",
    SimEnding.NODE_LOST: "CANCELLED DUE TO NODE FAILURE",
    SimEnding.EVICTED: "REQUEUED",
}


class VirtualRunner:
    """The part of the virtual engine that runs jobs. Commands are interpreted by `script`, not executed."""

    unique_names: bool = True

    _instance: ClusterInstance

    def preview(self, order: Order, fleet: Fleet) -> str:
        """Format the request for users. Raises Refused if this cluster could never run it."""
        request = request_of(order, self._instance.script_settings(order))
        self._instance.simulator.check(request)
        fields = {
            "job": request.name,
            "user": request.user,
            "team": request.team,
            "priority": request.priority,
            "supply": request.supply,
            "gpus": f"{request.gpus} on each of {request.nodes} nodes" if request.nodes > 1 else request.gpus,
            "together": "in one rack" if request.together else None,
            "time limit": None if request.limit_seconds is None else f"{request.limit_seconds:g} s",
            "lasts": f"{request.seconds:g} s, then exit status {request.exit_code}",
        }
        lines = (f"{name + ':':<12}{value}" for name, value in fields.items() if value is not None)
        return "# a virtual job: nothing is run\n" + "\n".join(lines) + "\n"

    async def submit(self, orders: Sequence[Order], fleet: Fleet) -> AsyncIterator[SubmitResult]:
        """Submit jobs one by one; a name that exists creates no second job."""
        for number, order in enumerate(orders, 1):
            yield self._submit_one(order)
            if number % _YIELD_EVERY == 0:
                await asyncio.sleep(0)

    def _submit_one(self, order: Order) -> SubmitResult:
        instance = self._instance
        instance.sync()
        number = instance.find_by_name(order.engine_name)
        if number is None:
            try:
                number = instance.simulator.submit(
                    request_of(order, instance.script_settings(order)), held=order.hold
                )
            except Refused as refusal:
                return SubmitResult(order, None, refusal)
            instance.register_name(order.engine_name, number)
        return SubmitResult(order, instance.engine_id(number))

    def submit_natively(self, request: JobRequest) -> EngineId:
        """Submit a job past Fairway, as users do with `sbatch` and `kubectl`. Raises Refused."""
        self._instance.sync()
        return self._instance.engine_id(self._instance.simulator.submit(request))

    def set_outcome(self, user: UserName, name: str, *, seconds: float, exits: str) -> None:
        """Set the duration of jobs of this user and name, and their exit code or one for each attempt."""
        settings = {"VIRTUAL_SECONDS": f"{seconds:.1f}", "VIRTUAL_EXIT": exits}
        self._instance.set_script_settings(user, name, settings)

    async def find(self, names: Collection[EngineName]) -> Mapping[EngineName, EngineId]:
        found = ((name, self._instance.find_by_name(name)) for name in names)
        return {name: self._instance.engine_id(number) for name, number in found if number is not None}

    async def cancel(self, ids: Sequence[EngineId]) -> Mapping[EngineId, Refused]:
        return self._for_each(ids, self._instance.simulator.cancel)

    async def hold(self, ids: Sequence[EngineId]) -> Mapping[EngineId, Refused]:
        return self._for_each(ids, self._instance.simulator.hold)

    async def release(self, ids: Sequence[EngineId]) -> Mapping[EngineId, Refused]:
        return self._for_each(ids, self._instance.simulator.release)

    def check_change(self, before: Order, after: Order, fleet: Fleet) -> None:
        """Raise Refused if the changed job could never run here. Pure."""
        self._instance.simulator.check(request_of(after, self._instance.script_settings(after)))

    async def change(self, changes: Sequence[WaitingChange], fleet: Fleet) -> Mapping[EngineId, Refused]:
        """Change waiting jobs, one by one; those of another instance are gone."""
        instance, refused = self._instance, {}
        instance.sync()
        for one in changes:
            number = instance.job_number(one.engine_id)
            if number is None:
                continue
            try:
                instance.simulator.change(number, request_of(one.after, instance.script_settings(one.after)))
            except Refused as refusal:
                refused[one.engine_id] = refusal
        return refused

    def _for_each(self, ids: Sequence[EngineId], action: Callable[[int], None]) -> Mapping[EngineId, Refused]:
        """Call `action` for each job. Nothing is refused: unknown jobs are skipped, Fairway is the admin."""
        self._instance.sync()
        for engine_id in ids:
            number = self._instance.job_number(engine_id)
            if number is not None:
                action(number)
        return {}

    async def read_log(
        self,
        order: Order,
        engine_id: EngineId,
        attempt: int,
        offset: int,
        limit: int,
        node: int = 0,
        replica: str = "",
    ) -> LogPart:
        """Read the log. It is not stored: each call generates what the job has printed by now."""
        instance = self._instance
        instance.sync()
        number = instance.job_number(engine_id)
        if number is None:
            raise Refused(
                "LogGone",
                f"this cluster no longer has job {engine_id}",
                "a virtual cluster forgets old jobs, and all jobs when its server stops",
            )
        runs = instance.simulator.attempts(number)
        if attempt > len(runs):
            return LogPart(b"", offset, ended=instance.simulator.job(number).state in ENDED)
        run = runs[attempt - 1]
        text = self._log_text(order, engine_id, run, node).encode()
        data = text[offset : offset + max(0, limit)]
        after = offset + len(data)
        return LogPart(data, after, ended=run.ended is not None and after >= len(text))

    def _log_text(self, order: Order, engine_id: EngineId, run: SimAttempt, node: int) -> str:
        seconds = (self._instance.simulator.now if run.ended is None else run.ended) - run.started
        result = interpret(order, run.number, self._instance.script_settings(order))
        text = result.printed(seconds) if node == 0 else ""
        if run.ended is not None and run.ending in _END_MESSAGES:
            at = self._instance.wall_time(run.ended).strftime("%Y-%m-%dT%H:%M:%SZ")
            text += f"virtual: *** JOB {engine_id} {_END_MESSAGES[run.ending]} AT {at} ***\n"
        return text


def request_of(order: Order, settings: Mapping[str, str]) -> JobRequest:
    """Convert an order to a request, deterministically. Nodes to avoid are not: nothing breaks here."""
    spec, result = order.spec, interpret(order, settings=settings)
    return JobRequest(
        order.user,
        order.supply.pool,
        gpus=spec.gpus.count,
        nodes=spec.nodes,
        slice=order.supply.slice,
        team=order.team,
        seconds=result.seconds,
        limit_seconds=spec.time_seconds,
        priority=order.priority,
        tolerates_loss=Tolerates.SPOT in spec.tolerates,
        together=spec.together,
        name=order.engine_name,
        exit_code=result.exit_code,
        project=spec.project or "",
        labels=tuple(sorted(spec.labels.items())),
    )
