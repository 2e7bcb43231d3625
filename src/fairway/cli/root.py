"""The root command `fairway` and its subcommands, whose modules are imported only when they run."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from fairway import __version__
from fairway.cli.group import Group

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class CommandEntry(NamedTuple):
    """The summary of a subcommand for `fairway --help`, which does not import it, and where to import it."""

    summary: str
    module: str | None = None
    """The module in `commands`, if its name differs from the command's."""
    function: str | None = None
    """The function in the module, if its name differs from the command's, e.g. because it is a keyword."""


# The summaries are the first sentence of each verb's docstring; a test compares them.
VERBS: Final[dict[str, CommandEntry]] = {
    "adopt": CommandEntry("Let Fairway manage objects that already exist on a cluster."),
    "apply": CommandEntry("Apply a plan or a fleet file to the clusters."),
    "budget": CommandEntry("Request, approve and deny raises of team budgets."),
    "cancel": CommandEntry("Cancel running or waiting jobs.", "jobs_change"),
    "check": CommandEntry("Check a fleet file or a job file for errors."),
    "completion": CommandEntry("Print the completion script for your shell."),
    "context": CommandEntry("Manage the servers that you connect to."),
    "count": CommandEntry("Report the steps, tokens or other units that a job has done."),
    "demo": CommandEntry("Try Fairway on two simulated clusters."),
    "describe": CommandEntry("Show a job: request, placement, attempts, events and cost."),
    "export": CommandEntry("Export charges as FOCUS files, and jobs as traces."),
    "get": CommandEntry("List jobs, pools, nodes, teams, budgets and other resources."),
    "history": CommandEntry("Show past applies: who, when and what changed."),
    "hold": CommandEntry("Hold waiting jobs. Running jobs continue.", "jobs_change"),
    "import": CommandEntry("Create a fleet file from a cluster's existing policy.", "import_", "import_"),
    "keep": CommandEntry("Exempt jobs from idle rules for some time.", "jobs_change"),
    "leave": CommandEntry("Restore a cluster to its state before Fairway."),
    "ledger": CommandEntry("Migrate the database and create the first admin."),
    "login": CommandEntry("Sign in to a server with your organisation's account."),
    "logout": CommandEntry("Sign out and revoke the token of this machine.", "login"),
    "logs": CommandEntry("Print the output of a job."),
    "move": CommandEntry("Move a waiting job to another pool.", "jobs_edit"),
    "notices": CommandEntry("List notices, and choose which of them you get."),
    "plan": CommandEntry("Show what a fleet file would change on each cluster."),
    "plan-capacity": CommandEntry(
        "Find how many GPUs meet the objectives as demand grows.",
        "plan_capacity",
        "plan_capacity",
    ),
    "price": CommandEntry("Show, compute and import GPU prices."),
    "release": CommandEntry("Release jobs that are on hold.", "jobs_change"),
    "release-all": CommandEntry("Lift all limits on a cluster, in an emergency.", "leave", "release_all"),
    "render": CommandEntry("Write configuration files for Slurm and Prometheus."),
    "report": CommandEntry("Report cost, usage, waste, efficiency, forecasts and chargeback."),
    "resize": CommandEntry("Change how many GPUs or nodes a waiting job requests.", "jobs_edit"),
    "rollback": CommandEntry("Plan and apply an earlier revision of the fleet file."),
    "run": CommandEntry("Run a command on GPUs."),
    "schema": CommandEntry("Print the JSON Schema of fleet files or job files."),
    "server": CommandEntry("Run the Fairway server."),
    "session": CommandEntry("List and end sign-ins to the web pages."),
    "set-priority": CommandEntry("Change the priority of a waiting job.", "jobs_edit", "set_priority"),
    "set-time": CommandEntry("Change the time limit of a waiting job.", "jobs_edit", "set_time"),
    "simulate": CommandEntry("Replay past jobs under a changed fleet file."),
    "submit": CommandEntry("Submit job files, #SBATCH scripts or Kubernetes manifests.", "run"),
    "token": CommandEntry("Create, list and revoke API tokens."),
    "top": CommandEntry("Show pools and jobs live."),
    "uncordon": CommandEntry("Reopen a node that Fairway cordoned for a broken GPU."),
    "version": CommandEntry("Print the version of Fairway."),
    "why": CommandEntry("Explain why a job is waiting and what would help."),
}

ALIASES: Final[dict[str, tuple[str, ...]]] = {"ps": ("get", "jobs"), "stop": ("cancel",)}
"""Other names of commands. `help` is handled separately."""

GROUPS: Final[dict[str, tuple[str, ...]]] = {
    "Jobs": (
        "run",
        "submit",
        "ps",
        "why",
        "describe",
        "logs",
        "cancel",
        "hold",
        "release",
        "move",
        "resize",
        "set-time",
        "set-priority",
        "keep",
        "count",
    ),
    "Fleet": ("get", "top", "notices", "uncordon"),
    "Policy": (
        "check",
        "plan",
        "apply",
        "simulate",
        "plan-capacity",
        "history",
        "rollback",
        "import",
        "adopt",
        "render",
        "schema",
        "leave",
        "release-all",
    ),
    "Money": ("report", "export", "price", "budget"),
    "Admin": (
        "demo",
        "login",
        "logout",
        "context",
        "completion",
        "server",
        "ledger",
        "token",
        "session",
        "version",
        "help",
    ),
}
"""The sections of `fairway --help`; a test finds every command in one of them."""

_OTHERS: Final = {"ps": "List jobs (same as `get jobs`).", "help": "Show help for a command."}

# What people type who know Slurm, Kubernetes or other tools.
_MEANT: Final[dict[str, str]] = {
    **dict.fromkeys(("delete", "kill", "scancel", "qdel", "rm", "remove", "terminate"), "cancel"),
    **dict.fromkeys(("squeue", "qstat", "ls", "list", "status", "queue", "sacct"), "get jobs"),
    **dict.fromkeys(("sbatch", "qsub", "create"), "submit"),
    **dict.fromkeys(("srun", "exec", "launch", "start"), "run"),
    **dict.fromkeys(("show", "info", "inspect", "scontrol"), "describe"),
    **dict.fromkeys(("explain", "reason"), "why"),
    **dict.fromkeys(("log", "output", "tail"), "logs"),
    **dict.fromkeys(("cost", "usage", "waste", "efficiency", "chargeback"), "report"),
    "sinfo": "get nodes",
    "sshare": "get teams",
    "nvidia-smi": "top",
    "diff": "plan",
    **dict.fromkeys(("what-if", "replay", "sweep"), "simulate"),
    "validate": "check",
    "init": "import",
    "undo": "rollback",
    "use": "context use",
    "config": "context",
    "tour": "demo tour",
    "focus": "export focus",
}

_EXAMPLES: Final = """\b
Examples:
  fairway demo                         two simulated clusters, to try everything on
  fairway run --gpus 1 -- nvidia-smi   run a command
  fairway why 8f3k                     why is my job waiting?
  fairway get pools                    free GPUs by pool
  fairway plan -f fleet.yaml           what a policy would change
\b
Run `fairway help COMMAND` for details.
"""


class LazyGroup(Group):
    """The root group: it lists its subcommands without importing them and imports one only to run it."""

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

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; `help COMMAND` is `COMMAND --help`, and an alias what it stands for."""
        if args and args[0] == "help":
            args = [*args[1:], "--help"]
        if args and args[0] in ALIASES:
            args = [*ALIASES[args[0]], *args[1:]]
        return super().parse_args(ctx, args)

    def suggestion(self, name: str, known: list[str]) -> str:
        """Suggest the command of that purpose, the resource of that name, or a similar name."""
        word = name.lower()
        if word in _MEANT:
            command = f"report {word}" if _MEANT[word] == "report" else _MEANT[word]
            return f". Did you mean '{command}'?"
        get = self.get_command(click.Context(self), "get")
        if isinstance(get, Group) and (noun := get.meant(word, list(get.commands))) in get.commands:
            return f". Did you mean 'get {noun}'?"
        return super().suggestion(name, known)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name, self._summary(name)) for name in names], col_max=14)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete a command or an option; without importing the commands, as click would."""
        from click.shell_completion import CompletionItem

        names = sorted({*VERBS, *ALIASES, "help"})
        found = [CompletionItem(n, help=self._summary(n)) for n in names if n.startswith(incomplete)]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def _summary(self, name: str) -> str:
        if name == "cancel":
            return "Cancel running or waiting jobs (also `stop`)."
        if name in ALIASES and name not in _OTHERS:
            return f"Same as `{' '.join(ALIASES[name])}`."
        return _OTHERS.get(name) or VERBS[name].summary


@click.group(
    cls=LazyGroup,
    epilog=_EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="fairway", message="%(prog)s %(version)s")
def root() -> None:
    """Share GPU clusters fairly across Slurm and Kubernetes: run jobs, set policy, account for cost."""
