"""`trunkline-child completion`."""

from typing import Annotated

from typer import Argument

from child.cli.base import verb
from trunkline.console import completion_script, single
from trunkline.terminal import Result

app = single()


@verb(app)
def completion(shell: Annotated[str, Argument(metavar="SHELL", help="bash, zsh, fish or powershell.")]) -> Result:
    """Print what a shell needs to complete commands: `trunkline-child completion bash >> ~/.bashrc`."""
    script = completion_script("trunkline-child", shell)
    return Result({"shell": shell, "script": script}, script.splitlines())
