"""Whatever happens to the replicas of a service: what is delivered adds up to the pods' own times."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from fairway.engines.kubernetes.api.wire import Owner
from fairway.model.job import Ending
from tests.unit.engines.kubernetes.jobs.cluster_events import T0, Events, condition, ref

STEPS = ("up", "start", "down", "preempt", "crash", "collect", "deliver", "lose", "start again")


@dataclass
class Pod:
    """A pod as it really is."""

    name: str
    created: float
    started: float | None = None
    ended: float | None = None
    ending: Ending | None = None
    deletion: float | None = None
    gone: bool = False


class Service:
    """A Deployment whose pods come and go, a mirror of it, and what a ledger would have stored."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pods: list[Pod] = []
        self.stored: dict[tuple[str, datetime], tuple[datetime | None, Ending | None, int]] = {}
        self.begin()

    def begin(self) -> None:
        """A mirror that starts: it knows what the API server has."""
        self.events = Events()
        self.owner: Owner = self.events.known(ref("ReplicaSet", "chat-1"), ref("Deployment", "chat"))
        for pod in self.pods:
            if not pod.gone:
                self.report(pod)

    def report(self, pod: Pod) -> None:
        stopped = condition(
            "TerminationTarget", when=pod.deletion or 0, reason="WorkloadEvictedDueToPreempted", message="!"
        )
        codes = {Ending.DONE: 143, Ending.PREEMPTED: 143, Ending.FAILED: 1}
        self.events.pod(
            pod.name, self.owner, created=pod.created, started=pod.started, ended=pod.ended,
            code=codes.get(pod.ending or Ending.LOST, 0),
            deletion=pod.deletion, conditions=(stopped,) if pod.ending is Ending.PREEMPTED else (),
            workload=f"w-{pod.name}", gated=pod.started is None, restarts=True,
        )  # fmt: skip

    def step(self, what: str, which: int) -> None:
        self.now += 1
        running = [p for p in self.pods if p.started is not None and p.ended is None]
        match what:
            case "up":
                self.pods.append(Pod(f"chat-{len(self.pods)}", self.now))
                self.report(self.pods[-1])
            case "start":
                if waiting := [p for p in self.pods if p.started is None and p.ended is None]:
                    pod = waiting[which % len(waiting)]
                    pod.started = self.now
                    self.report(pod)
            case "down" | "preempt" | "crash" if running:
                pod = running[which % len(running)]
                pod.ended = self.now
                pod.ending = {"down": Ending.DONE, "preempt": Ending.PREEMPTED}.get(what, Ending.FAILED)
                pod.deletion = None if what == "crash" else self.now - 1
                self.report(pod)
            case "collect":
                for pod in self.pods:
                    if pod.ended is not None and not pod.gone:
                        pod.gone = True
                        self.events.gone("Pod", pod.name)
            case "deliver":
                self.deliver()
                self.events.confirm()
            case "lose":
                self.events.seen()  # a batch that is never stored: everything is asked for again
                self.events.mirror._ended_pods.clear()
                self.events.mirror._delivered.clear()
                pods = [stored.value for (kind, _), stored in self.events.stored() if kind == "Pod"]
                self.events.records.deliver_again(pods)
            case "start again":
                self.deliver()
                self.begin()

    def deliver(self) -> None:
        for job in self.events.seen().values():
            assert (job.kind, job.service) == ("Deployment", True)
            for attempt in job.attempts:
                key = (attempt.replica, attempt.started_at)
                before = self.stored.get(key)
                assert before is None or before[0] in {None, attempt.ended_at}, "an end does not change"
                self.stored[key] = (attempt.ended_at, attempt.ending, attempt.devices)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 50)), max_size=120))
def test_replica_seconds_are_the_pods_own(steps: list[tuple[str, int]]) -> None:
    service = Service()
    for what, which in steps:
        service.step(what, which)
    service.deliver()
    ran = {
        (p.name, T0 + timedelta(seconds=p.started)): (
            None if p.ended is None else T0 + timedelta(seconds=p.ended), p.ending, 2,
        )
        for p in service.pods
        if p.started is not None
    }  # fmt: skip
    assert service.stored == ran
