"""How the commands of a program are declared: a noun with its verbs, or a module with one command."""

from collections.abc import Callable
from typing import Any, TypeVar

import typer

from trunkline.console.commands import Command, Group

Function = TypeVar("Function", bound=Callable[..., Any])


def noun(about: str, group: type[Group]) -> typer.Typer:
    """A group of commands."""
    app = typer.Typer(cls=group, no_args_is_help=True, add_completion=False, rich_markup_mode=None)
    app.callback(help=about)(_nothing)
    return app


def single() -> typer.Typer:
    """A module with one command."""
    return typer.Typer(add_completion=False, rich_markup_mode=None)


def verb(app: typer.Typer, name: str | None, command: type[Command]) -> Callable[[Function], Function]:
    """A command; what its docstring says is its help."""
    return app.command(name, cls=command)


def _nothing() -> None:
    pass
