"""A program whose commands are loaded when they are asked for, so that it starts without what takes long."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module

import click
import typer

from trunkline.console.commands import Group


@dataclass(frozen=True, slots=True)
class Lazy:
    """A command that is loaded when it is asked for. Its module has `app`, a `typer.Typer`."""

    module: str
    help: str


class Root(Group):
    """The program itself: a list of commands by name; their modules are loaded when they are used."""

    lazy: Mapping[str, Lazy] = {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return None
        command = typer.main.get_command(import_module(self.lazy[cmd_name].module).app)
        command.name = cmd_name
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.help) for name, command in self.lazy.items()])
