"""The command trees of the two programs, and whether a command line in the documentation would be understood."""

import importlib
import shlex
from collections.abc import Iterator

import click

from trunkline.console import Running

PROGRAMS = {"trunkline": "master.cli", "trunkline-child": "child.cli"}


def tree(program: str) -> click.Command:
    """The whole command tree of a program."""
    return importlib.import_module(PROGRAMS[program]).app()


def check(words: list[str]) -> str | None:
    """What is wrong with a command line, or None. Values are not looked at: they name what the reader has, and we have not."""
    program, *rest = words
    context = click.Context(tree(program), info_name=program)
    while isinstance(context.command, click.Group):
        if isinstance(context.command, Running):
            rest = context.command.meant(rest)
        rest, wrong = _own_options(context, rest)
        if wrong or not rest:
            return wrong
        command = context.command.get_command(context, rest[0])
        if command is None:
            return f"`{context.command_path}` has no command {rest[0]!r}: {', '.join(context.command.list_commands(context))}"
        context, rest = click.Context(command, info_name=rest[0], parent=context), rest[1:]
    try:
        given, left, _ = context.command.make_parser(context).parse_args(list(rest))
    except click.UsageError as error:
        return f"`{context.command_path}`: {error.format_message()}"
    if left:
        return f"`{context.command_path}` takes no further {left}"
    if "--help" in rest:
        return None
    missing = [name for parameter in context.command.params if parameter.required and not given.get(name := str(parameter.name))]
    return f"`{context.command_path}` needs {', '.join(missing)}" if missing else None


def _own_options(context: click.Context, words: list[str]) -> tuple[list[str], str | None]:
    """A group's own options come before the name of its command."""
    try:
        _, left, _ = context.command.make_parser(context).parse_args(list(words))
    except click.UsageError as error:
        return words, f"`{context.command_path}`: {error.format_message()}"
    return left, None


def lines(block: str, *, prompt: bool) -> Iterator[str]:
    """Commands of a block; in a console block those after the prompt, the rest is output."""
    joined = block.replace("\\\n", " ")
    for line in joined.splitlines():
        if prompt and not line.startswith("$ "):
            continue
        command = line.removeprefix("$ ").strip()
        if command and not command.startswith("#"):
            yield command


def simple(command: str) -> Iterator[list[str]]:
    """The simple commands in a shell line, without what is set before them and where their output goes."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = "#"
    words: list[str] = []
    skip = False
    for token in [*lexer, ";"]:
        if set(token) <= set("<>&") and set(token) & set("<>"):
            if words and words[-1].isdigit():
                words.pop()  # the number of a stream
            skip = True  # and the file that follows
        elif set(token) <= set(";&|()"):
            if words:
                yield words
            words = []
        elif skip:
            skip = False
        elif words or "=" not in token:
            words.append(token)


def every(program: str) -> Iterator[tuple[str, click.Command]]:
    """Each command and noun of a program with its path."""

    def walk(context: click.Context) -> Iterator[tuple[str, click.Command]]:
        yield context.command_path, context.command
        if isinstance(context.command, click.Group):
            for name in context.command.list_commands(context):
                command = context.command.get_command(context, name)
                assert command is not None, f"{context.command_path} {name}"
                yield from walk(click.Context(command, info_name=name, parent=context))

    yield from walk(click.Context(tree(program), info_name=program))
