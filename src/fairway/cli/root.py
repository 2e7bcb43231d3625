"""The root command `fairway` and its subcommands, whose modules are imported only when they run."""

from __future__ import annotations

import importlib
from typing import Final, NamedTuple

import click

from fairway import __version__


class CommandEntry(NamedTuple):
    """The summary of a subcommand for `fairway --help`, which does not import it, and where to import it."""

    summary: str
    module: str | None = None
    """The module in `commands`, if its name differs from the command's."""
    function: str | None = None
    """The function in the module, if its name differs from the command's, e.g. because it is a keyword."""


# The summaries are the first sentence of each verb's docstring; a test compares them.
VERBS: Final[dict[str, CommandEntry]] = {
    "adopt": CommandEntry("Put Fairway's mark on objects that somebody else made."),
    "apply": CommandEntry("Make the clusters what a plan, or a fleet file, says."),
    "cancel": CommandEntry("End jobs, whether they run or wait.", "jobs_change"),
    "check": CommandEntry("Check a fleet or job file and report every fault at once."),
    "context": CommandEntry("Say which server and which token to use."),
    "demo": CommandEntry("Try Fairway without a cluster: two virtual ones, busy with jobs."),
    "describe": CommandEntry(
        "Show a job: what was asked, where it went and why, its attempts and events in order."
    ),
    "export": CommandEntry("Write charges as files for other tools."),
    "get": CommandEntry(
        "Show jobs, clusters, pools, nodes, teams, GPU events, budgets, drift, interventions or the fleet."
    ),
    "history": CommandEntry("Show what was applied: who, when, before and after."),
    "hold": CommandEntry("Keep jobs from starting; what runs goes on.", "jobs_change"),
    "import": CommandEntry(
        "Write a fleet file from what people made on a cluster by hand.", "import_", "import_"
    ),
    "keep": CommandEntry("Have idle rules leave jobs alone for a while.", "jobs_change"),
    "leave": CommandEntry("Return a cluster to its state before Fairway."),
    "ledger": CommandEntry("Bring the ledger's tables forward or back, and make its first admin."),
    "logs": CommandEntry("Print what JOB printed."),
    "plan": CommandEntry("Show what a fleet file would change on each cluster."),
    "price": CommandEntry("Say what GPUs cost: of the fleet, bought by yourself, or on a spot market."),
    "release": CommandEntry("Let held jobs start.", "jobs_change"),
    "release-all": CommandEntry(
        "Lift every guard of a cluster at once, in an emergency.", "leave", "release_all"
    ),
    "render": CommandEntry("Write files of an engine, or of Prometheus, that Fairway does not write itself."),
    "report": CommandEntry(
        "Show what was used, how well, what it cost, what was wasted, and what each team is charged."
    ),
    "rollback": CommandEntry("Plan an old revision of the fleet file, and apply it."),
    "run": CommandEntry("Run a command on GPUs, wherever the fleet serves it best."),
    "schema": CommandEntry("Print the JSON Schema of fleet or job files, for editors."),
    "server": CommandEntry("Run the server: observe the fleet and answer the API."),
    "session": CommandEntry("List who is signed in to the pages, and sign them out."),
    "submit": CommandEntry("Submit job files, scripts with #SBATCH lines, or Kubernetes Jobs.", "run"),
    "token": CommandEntry("Make, list and revoke the tokens that open the API."),
    "top": CommandEntry("Show pools and jobs live, as they change."),
    "uncordon": CommandEntry("Open a node again that Fairway closed because of a broken GPU."),
    "version": CommandEntry("Print the version of Fairway."),
    "why": CommandEntry("Say why a job waits, and what would help."),
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
    """A click group that lists its subcommands without importing them and imports one only to run it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        verb = VERBS.get(cmd_name)
        if verb is None:
            return None
        module = importlib.import_module(f"fairway.cli.commands.{verb.module or cmd_name}")
        command = getattr(module, verb.function or cmd_name)
        if not isinstance(command, click.Command):
            raise TypeError(f"{module.__name__}.{cmd_name} is not a click command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a subcommand; for an unknown name, suggest the closest ones."""
        if args and not args[0].startswith("-") and args[0] not in VERBS:
            from fairway.model.text import nearest

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
