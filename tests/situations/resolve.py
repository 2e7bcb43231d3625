"""What a new user does who has read the output of `fairway why`, and nothing else.

Each function finds in the output what it does: a command, or a value to change. Where the output asks for a
change of the fleet file, the value comes from it.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.situations.desk import Desk
from tests.situations.kueue import KubernetesDesk, KubernetesTools
from tests.situations.slurm import SlurmDesk, SlurmTools


def command(pattern: str, by: str | None = None) -> Callable[[Desk, str, str], str]:
    """Return what carries out a `fairway` command of the output; the job itself must start then."""

    def resolve(desk: Desk, job: str, transcript: str) -> str:
        desk.fairway(desk.suggested(transcript, pattern), by or desk.people[job])
        return job

    return resolve


def engine_command(pattern: str, user: str | None = None) -> Callable[[SlurmDesk, str, str], str]:
    """Return what carries out a command of Slurm's that the output names; None: as root."""

    def resolve(desk: SlurmDesk, job: str, transcript: str) -> str:
        desk.slurm.instance.run(*desk.suggested(transcript, pattern).split(), user=user)
        return job

    return resolve


def helped(other: Callable[[Desk, str, str], str]) -> Callable[[Desk, str, str], str]:
    """Return what carries out the first line of `What would help`, or, where the output has none, `other`."""

    def resolve(desk: Desk, job: str, transcript: str) -> str:
        if "What would help" not in transcript:
            return other(desk, job, transcript)
        offered = transcript.partition("What would help")[2]
        desk.fairway(
            desk.suggested(offered, rf"fairway (move {job} --\w+|resize {job} --\w+|set-priority {job}) \w+"),
            desk.people[job],
        )
        return job

    return resolve


@helped
def fewer_gpus(desk: Desk, job: str, transcript: str) -> str:
    """Request as many GPUs as one node has free, by the command that the output names."""
    words = desk.suggested(transcript, rf"fairway resize {job} --gpus (N|\d+)")
    free = desk.suggested(transcript, r"(?<=at most )\d+(?= on one)")
    desk.fairway(words.replace("--gpus N", f"--gpus {free}"), desk.people[job])
    return job


def two_at_once(desk: SlurmDesk, job: str, transcript: str) -> str:
    """Let the array run two tasks at once."""
    words = desk.suggested(transcript, r"scontrol update jobid=\w+ arraytaskthrottle=")
    desk.slurm.instance.run(*f"{words}2".split(), user="alice")
    return job


@helped
def raise_borrow(desk: Desk, job: str, transcript: str) -> str:
    """Raise `borrow` of the team that the output names, and apply."""
    desk.suggested(transcript, "raise  borrow  of the team in the fleet file and run  fairway  ?apply")
    team = desk.suggested(transcript, r"(?<=Team )\w+(?= already uses)")
    fleet = desk.fleet()
    fleet["teams"][team]["borrow"]["gpu"] = 4
    desk.undo.callback(desk.apply_own)
    desk.apply(fleet)
    return job


def raise_budget(desk: Desk, job: str, transcript: str) -> str:
    """Raise `budget.amount` of the team, and apply."""
    team = desk.suggested(transcript, r"(?<=of )\w+(?= in the fleet file and run +fairway +apply)")
    fleet = desk.fleet()
    fleet["teams"][team]["budget"] = {"amount": 100_000, "every": "month", "at_limit": "stop"}
    desk.apply(fleet)
    return job


def other_team(desk: Desk, job: str, transcript: str) -> str:
    """Submit the job again for another of the user's teams."""
    return again(
        desk, job, desk.suggested(transcript, r"fairway submit --again \w+ --team").strip() + " research"
    )


def own_image(desk: Desk, job: str, transcript: str) -> str:
    """Submit the job again with an image that is there."""
    words = desk.suggested(transcript, rf"fairway submit --again {job} --image")
    return again(desk, job, f"{words} localhost/python:3")


@helped
def apart(desk: Desk, job: str, transcript: str) -> str:
    """Submit the job again without `together`."""
    desk.suggested(transcript, "remove  together  if the job does not need it")
    desk.cancel(job)
    return desk.submit("research", 8, nodes=2)


def again(desk: Desk, job: str, words: str) -> str:
    """Run `fairway submit --again`; gives the new job."""
    made = desk.line.shown(*words.removeprefix("fairway ").split(), by=desk.people[job])
    new = str(made["jobs"][0]["id"])
    desk.people[new] = desk.people[job]
    desk.cancel(job)
    return new


@helped
def repaired(desk: Desk, job: str, transcript: str) -> str:
    """Return the nodes that the output names to service, as its hint says."""
    names = [node for node in desk.engine.nodes if node in transcript]
    assert names == list(desk.engine.nodes)
    if isinstance(desk.engine, SlurmTools):
        desk.suggested(transcript, "scontrol update nodename=NODE state=resume")
        desk.engine.resume(names)
    else:
        assert isinstance(desk.engine, KubernetesTools)
        desk.suggested(transcript, "kubectl uncordon NODE")
        for name in names:
            desk.engine.instance.run("kubectl", "uncordon", name)
    return job


def reachable(desk: Desk, job: str, transcript: str) -> str:
    """Start what does not answer."""
    desk.suggested(transcript, "fairway get clusters|is running and reachable")
    desk.engine.come_back()
    return job


def apply_again(desk: Desk, job: str, transcript: str) -> str:
    """Apply the fleet file once more: it starts the queue that somebody stopped."""
    desk.suggested(transcript, "fairway  ?apply  starts it again")
    desk.apply_own()
    return job


def in_own_namespace(desk: KubernetesDesk, job: str, transcript: str) -> str:
    """Create the Job in the team's namespace."""
    desk.suggested(transcript, "submit it in your team's namespace")
    return desk.kubectl("research")


def shorter(desk: SlurmDesk, job: str, transcript: str) -> str:
    """Submit it by sbatch again, with the time that the output names."""
    desk.suggested(transcript, "allows 2 h at most")
    return desk.sbatch("research", "--gres=gpu:a100:1", time="2:00:00")


def smaller(desk: Desk, job: str, transcript: str) -> str:
    """Submit it by the engine's tool again, with as many GPUs on a node as the output says a node has."""
    most = desk.suggested(transcript, r"(?<=has more than )\d+|(?<=the largest node has )\d+")
    return desk.native("research", int(most))
