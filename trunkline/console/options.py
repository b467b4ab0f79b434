"""The options that every command takes. Each may stand before the verb too; what was given is kept in the run's `Console`."""

from typing import Any

import click

from trunkline.console.state import META, Console
from trunkline.terminal import FORMS


def _keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value is not None and value is not False:
        console: Console = context.meta[META]
        console.given[str(parameter.name)] = value
        _tune(console)


def _tune(console: Console) -> None:
    terminal, given = console.terminal, console.given
    terminal.form = given.get("output", terminal.form)
    terminal.quiet = bool(given.get("quiet", terminal.quiet))
    terminal.color = terminal.color and not given.get("no_color")


def common(*flags: str, **attributes: Any) -> click.Option:
    """An option whose value is kept in `Console.given`."""
    return click.Option(list(flags), expose_value=False, callback=_keep, **attributes)


def common_options() -> list[click.Option]:
    """New ones, for one command."""
    return [
        common("--output", "-o", type=click.Choice(FORMS), help="How to print what was found or done.  [default: table]"),
        common("--quiet", "-q", is_flag=True, help="Nothing on standard error but errors."),
        common("--yes", "-y", is_flag=True, help="Do not ask."),
        common("--timeout", type=float, metavar="SECONDS", help="How long to wait for an answer, or for an end."),
        common("--no-color", is_flag=True, help="No colours."),
    ]
