"""A verb and a noun, as both programs have them: with the common options, and help in one style."""

import difflib
import inspect
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any, get_type_hints

import click
from typer.core import TyperCommand, TyperGroup
from typer.models import ArgumentInfo

from trunkline.console.options import common_options
from trunkline.console.state import here
from trunkline.errors import UsageError


class Command(TyperCommand):
    """A command that takes the common options. While it runs, only its terminal writes to standard output."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes | {"rich_markup_mode": None})
        self.params += self.more_options()

    def more_options(self) -> list[click.Option]:
        """A program adds its own."""
        return common_options()

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        parameters = self.get_params(ctx)
        helps = _argument_helps(self.callback)
        arguments = [(one.make_metavar(ctx), helps.get(str(one.name), "")) for one in parameters if isinstance(one, click.Argument)]
        if arguments:
            with formatter.section("Arguments"):
                formatter.write_dl(arguments)
        records = (click.Option.get_help_record(one, ctx) for one in parameters if isinstance(one, click.Option))
        with formatter.section("Options"):
            formatter.write_dl([record for record in records if record])

    def invoke(self, ctx: click.Context) -> Any:
        with redirect_stdout(here().terminal.stderr):  # what a library prints is no part of the answer
            return super().invoke(ctx)


def _argument_helps(function: Callable[..., Any] | None) -> dict[str, str]:
    """What is said of a command's arguments, by name: read from its signature, since click 8.5 loses what typer 0.20 hands it."""
    if function is None:
        return {}
    hints = get_type_hints(inspect.unwrap(function), include_extras=True)
    infos = ((name, info) for name, hint in hints.items() for info in getattr(hint, "__metadata__", ()))
    return {name: info.help or "" for name, info in infos if isinstance(info, ArgumentInfo)}


class Group(TyperGroup):
    """A noun. Common options may stand before its verb too."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes | {"rich_markup_mode": None, "suggest_commands": False})
        self.params += self.more_options()

    def more_options(self) -> list[click.Option]:
        """A program adds its own."""
        return common_options()

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.format_commands(ctx, formatter)
        click.Command.format_options(self, ctx, formatter)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        if args and not args[0].startswith("-") and args[0] not in known:
            near = difflib.get_close_matches(args[0], known, n=1)
            advice = f"Did you mean `{near[0]}`?" if near else f"There are: {', '.join(known)}."
            raise UsageError(f"`{ctx.command_path}` has no command {args[0]!r}.", hint=advice)
        return super().resolve_command(ctx, args)


class Running(Group):
    """A noun that does something by itself: without one of its verbs, the verb `run` is meant."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, self.meant(args))

    def meant(self, args: list[str]) -> list[str]:
        """What was typed, with the verb that is meant."""
        named = any(arg in self.commands for arg in args)
        return args if named or args[:1] == ["--help"] else ["run", *args]
