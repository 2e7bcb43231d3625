"""Jobs sent to a virtual cluster: made, ended, held, and what they print."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import Final

from fairway.engines.port import LogPart, Refused, Sent
from fairway.engines.virtual.cluster import Life
from fairway.engines.virtual.jobs.script import interpret
from fairway.engines.virtual.simulator.jobs import ENDED, JobRequest, SimAttempt, SimEnding
from fairway.model.fleet import Fleet
from fairway.model.job import EngineId, EngineName, Order, Tolerates

_BREATH: Final = 100
"""Jobs made before others get a turn."""
_LAST_WORDS: Final = {
    SimEnding.CANCELLED: "CANCELLED",
    SimEnding.TIMEOUT: "CANCELLED DUE TO TIME LIMIT",
    SimEnding.RECLAIMED: "CANCELLED DUE TO PREEMPTION",
    SimEnding.OUTRANKED: "CANCELLED DUE TO PREEMPTION",
    SimEnding.NODE_LOST: "CANCELLED DUE TO NODE FAILURE",
    SimEnding.EVICTED: "REQUEUED",
}


class VirtualJobs:
    """Runs jobs, on the simulator. What a job does is `script`'s: its command is not run."""

    unique_names: bool = True

    _life: Life

    def preview(self, order: Order, fleet: Fleet) -> str:
        """The request in words. Raises Refused if this cluster could never run it."""
        request = request_of(order)
        self._life.simulator.check(request)
        told = {
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
        lines = (f"{name + ':':<12}{value}" for name, value in told.items() if value is not None)
        return "# a virtual job: nothing is run\n" + "\n".join(lines) + "\n"

    async def submit(self, orders: Sequence[Order], fleet: Fleet) -> AsyncIterator[Sent]:
        """Make jobs, each at its own moment; a name that exists makes no second one."""
        for number, order in enumerate(orders, 1):
            yield self._send(order)
            if number % _BREATH == 0:
                await asyncio.sleep(0)

    def _send(self, order: Order) -> Sent:
        life = self._life
        life.follow()
        number = life.named(order.engine_name)
        if number is None:
            try:
                number = life.simulator.submit(request_of(order), held=order.hold)
            except Refused as refusal:
                return Sent(order, None, refusal)
            life.name(order.engine_name, number)
        return Sent(order, life.engine_id(number))

    def submit_natively(self, request: JobRequest) -> EngineId:
        """A job that did not come through Fairway, as `sbatch` and `kubectl` make them. Raises Refused."""
        self._life.follow()
        return self._life.engine_id(self._life.simulator.submit(request))

    async def find(self, names: Collection[EngineName]) -> Mapping[EngineName, EngineId]:
        found = ((name, self._life.named(name)) for name in names)
        return {name: self._life.engine_id(number) for name, number in found if number is not None}

    async def cancel(self, ids: Sequence[EngineId]) -> Mapping[EngineId, Refused]:
        return self._each(ids, self._life.simulator.cancel)

    async def hold(self, ids: Sequence[EngineId]) -> Mapping[EngineId, Refused]:
        return self._each(ids, self._life.simulator.hold)

    async def release(self, ids: Sequence[EngineId]) -> Mapping[EngineId, Refused]:
        return self._each(ids, self._life.simulator.release)

    def _each(self, ids: Sequence[EngineId], verb: Callable[[int], None]) -> Mapping[EngineId, Refused]:
        """Nothing is refused: what is over or gone is no refusal, and Fairway is the administrator here."""
        self._life.follow()
        for engine_id in ids:
            number = self._life.number(engine_id)
            if number is not None and self._life.simulator.remembers(number):
                verb(number)
        return {}

    async def read_log(
        self, order: Order, engine_id: EngineId, attempt: int, offset: int, limit: int, node: int = 0
    ) -> LogPart:
        """What it would have printed by now. Nothing is kept: it is made anew for each look."""
        life = self._life
        life.follow()
        number = life.number(engine_id)
        if number is None or not life.simulator.remembers(number):
            raise Refused(
                "LogGone",
                f"this cluster no longer remembers job {engine_id}",
                "a virtual cluster forgets old jobs, and all of them when its server ends",
            )
        runs = life.simulator.attempts(number)
        if attempt > len(runs):
            over = life.simulator.job(number).state in ENDED
            return LogPart(b"", offset, ended=over)
        run = runs[attempt - 1]
        text = self._text(order, engine_id, run, node).encode()
        data = text[offset : offset + max(0, limit)]
        after = offset + len(data)
        return LogPart(data, after, ended=run.ended is not None and after >= len(text))

    def _text(self, order: Order, engine_id: EngineId, run: SimAttempt, node: int) -> str:
        lasted = (self._life.simulator.now if run.ended is None else run.ended) - run.started
        text = interpret(order, run.number).printed(lasted) if node == 0 else ""
        if run.ended is not None and run.ending in _LAST_WORDS:
            at = self._life.moment(run.ended).strftime("%Y-%m-%dT%H:%M:%SZ")
            text += f"virtual: *** JOB {engine_id} {_LAST_WORDS[run.ending]} AT {at} ***\n"
        return text


def request_of(order: Order) -> JobRequest:
    """The same order always makes the same request."""
    spec, played = order.spec, interpret(order)
    return JobRequest(
        order.user,
        order.supply.pool,
        gpus=spec.gpus.count,
        nodes=spec.nodes,
        slice=order.supply.slice,
        team=order.team,
        seconds=played.seconds,
        limit_seconds=spec.time_seconds,
        priority=order.priority,
        tolerates_loss=Tolerates.SPOT in spec.tolerates,
        together=spec.together,
        name=order.engine_name,
        exit_code=played.exit_code,
    )
