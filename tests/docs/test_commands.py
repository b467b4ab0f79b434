"""Every command says what it does, and no option means two things."""

import click
import pytest

from tests.docs import commands

EVERY = [found for program in commands.PROGRAMS for found in commands.every(program)]


@pytest.mark.parametrize(("path", "command"), EVERY, ids=[path for path, _ in EVERY])
def test_a_command_says_what_it_does_and_no_option_means_two_things(path: str, command: click.Command) -> None:
    assert command.help
    assert command.help.rstrip().endswith(".")
    words = [word for parameter in command.params for word in (*parameter.opts, *parameter.secondary_opts)]
    assert sorted(words) == sorted(set(words))
