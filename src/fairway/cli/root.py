"""The verbs, by name. A verb's module is imported when the verb runs, not before."""

from __future__ import annotations

import importlib
from typing import Final, NamedTuple

import click

from fairway import __version__


class Verb(NamedTuple):
    """Where a verb lives, and what `fairway --help` says of it without importing it."""

    module: str
    summary: str
    function: str | None = None
    """What it is called there, if not by its own name: Python keeps some words for itself."""


# The summaries are the first sentence of each verb's docstring; a test compares them.
VERBS: Final[dict[str, Verb]] = {
    "adopt": Verb("fairway.cli.adopt", "Put Fairway's mark on objects that somebody else made."),
    "apply": Verb("fairway.cli.apply", "Make the clusters what a plan, or a fleet file, says."),
    "cancel": Verb("fairway.cli.cancel", "End jobs, whether they run or wait."),
    "check": Verb("fairway.cli.check", "Check a fleet or job file and report every fault at once."),
    "context": Verb("fairway.cli.context", "Say which server and which token to use."),
    "demo": Verb("fairway.cli.demo", "Try Fairway without a cluster: two virtual ones, busy with jobs."),
    "describe": Verb(
        "fairway.cli.describe",
        "Show a job: what was asked, where it went and why, its attempts and events in order.",
    ),
    "export": Verb("fairway.cli.export", "Write charges as files for other tools."),
    "get": Verb("fairway.cli.get", "Show jobs, clusters, pools, nodes, teams, budgets, drift or nudges."),
    "history": Verb("fairway.cli.history", "Show what was applied: who, when, before and after."),
    "hold": Verb("fairway.cli.hold", "Keep jobs from starting; what runs goes on."),
    "import": Verb(
        "fairway.cli.import_", "Write a fleet file from what people made on a cluster by hand.", "import_"
    ),
    "ledger": Verb(
        "fairway.cli.ledger", "Bring the ledger's tables forward or back, and make its first admin."
    ),
    "logs": Verb("fairway.cli.joblogs", "Print what JOB printed."),
    "plan": Verb("fairway.cli.plan", "Show what a fleet file would change on each cluster."),
    "price": Verb(
        "fairway.cli.price", "Say what GPUs cost: of the fleet, bought by yourself, or on a spot market."
    ),
    "release": Verb("fairway.cli.release", "Let held jobs start."),
    "render": Verb("fairway.cli.render", "Write files of an engine that Fairway does not write itself."),
    "report": Verb(
        "fairway.cli.report",
        "Show what was used, what it cost, what was wasted, and what each team is charged.",
    ),
    "run": Verb("fairway.cli.run", "Run a command on GPUs, wherever the fleet serves it best."),
    "schema": Verb("fairway.cli.schema", "Print the JSON Schema of fleet or job files, for editors."),
    "server": Verb("fairway.cli.server", "Run the server: observe the fleet and answer the API."),
    "submit": Verb("fairway.cli.submit", "Submit job files, scripts with #SBATCH lines, or Kubernetes Jobs."),
    "token": Verb("fairway.cli.token", "Make, list and revoke the tokens that open the API."),
    "top": Verb("fairway.cli.top", "Show pools and jobs live, as they change."),
    "version": Verb("fairway.cli.version", "Print the version of Fairway."),
    "why": Verb("fairway.cli.why", "Say why a job waits, and what would help."),
}

_EXAMPLES: Final = """\b
Examples:
  fairway demo                    two virtual clusters full of jobs, to try everything on
  fairway server -f fleet.yaml    a server; examples/quickstart.yaml has a virtual cluster
  fairway get pools               GPUs by pool: in use, free, unhealthy
  fairway check -f fleet.yaml     every fault of a fleet file, with a hint
  fairway plan -f fleet.yaml      what it would change, cluster by cluster
  fairway why 8f3k                why a job waits, and what would help
"""


class LazyGroup(click.Group):
    """A group that knows its verbs by name and loads one only to run it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        verb = VERBS.get(cmd_name)
        if verb is None:
            return None
        command = getattr(importlib.import_module(verb.module), verb.function or cmd_name)
        if not isinstance(command, click.Command):
            raise TypeError(f"{verb.module}.{cmd_name} is not a click command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """A verb that is not there is answered with the one that was probably meant."""
        if args and not args[0].startswith("-") and args[0] not in VERBS:
            from fairway.model.spelling import nearest

            close = nearest(args[0], sorted(VERBS))
            meant = f". Did you mean {' or '.join(map(repr, close))}?" if close else ""
            raise click.UsageError(f"No such command '{args[0]}'{meant}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl([(name, VERBS[name].summary) for name in self.list_commands(ctx)])


@click.group(cls=LazyGroup, epilog=_EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="fairway", message="%(prog)s %(version)s")
def root() -> None:
    """Keep shared GPU clusters fair, full and accounted for."""
