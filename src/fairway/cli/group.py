"""The class of all command groups: without arguments they print their help; names are forgiving."""

from __future__ import annotations

import click


class Group(click.Group):
    """A click group that prints its help if it is given nothing, and accepts a noun in singular or plural."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; without any, print the help and exit with 0."""
        if not args and not self.invoke_without_command and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), color=ctx.color)
            ctx.exit()
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a subcommand in singular or plural; for an unknown name, suggest what was meant."""
        if args and not args[0].startswith("-"):
            known = self.list_commands(ctx)
            args = [self.meant(args[0], known), *args[1:]]
            if args[0] not in known:
                raise click.UsageError(f"No such command '{args[0]}'{self.suggestion(args[0], known)}", ctx)
        return super().resolve_command(ctx, args)

    def meant(self, name: str, known: list[str]) -> str:
        """Return the subcommand of this name, if only an `s` at its end is missing or too much."""
        if name in known:
            return name
        return next((other for other in (f"{name}s", name.removesuffix("s")) if other in known), name)

    def suggestion(self, name: str, known: list[str]) -> str:
        """Return the end of the error for an unknown name: the subcommands that are spelt most like it."""
        from fairway.model.text import nearest

        close = nearest(name, known)
        return f". Did you mean {' or '.join(map(repr, close))}?" if close else ""
