"""What a shell needs to complete commands."""

import os

from trunkline.errors import UsageError

SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")


def completion_script(program: str, shell: str) -> str:
    """What a shell needs to complete this program's commands.

    :raises UsageError: not a shell that is known.
    """
    from typer._completion_shared import get_completion_script

    if shell not in SHELLS:
        raise UsageError(f"`SHELL` should be one of {', '.join(SHELLS)}, found {shell!r}.")
    return get_completion_script(prog_name=program, complete_var=variable(program), shell=shell)


def variable(program: str) -> str:
    """The environment variable in which a shell asks for completions."""
    return f"_{program.replace('-', '_').upper()}_COMPLETE"


def prepare(program: str) -> None:
    """Make ready to answer a shell that asks for completions now."""
    if variable(program) in os.environ:
        from typer._completion_classes import completion_init

        completion_init()
