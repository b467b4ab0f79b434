"""`trunkline-child request`."""

from typing import Annotated

from typer import Option

from child.cli.base import open_home, patience, verb
from trunkline.console import single
from trunkline.errors import UsageError
from trunkline.terminal import Result

app = single()


@verb(app)
def request(
    encoder: Annotated[str | None, Option(help="The encoder to train, by name.")] = None,
    type_: Annotated[str | None, Option("--type", help="Or its type, where the master has one of it.")] = None,
    task: Annotated[list[str] | None, Option(help="For this task; may be repeated.")] = None,
) -> Result:
    """Ask the master for training. A job that is open already is joined; two requests start one job."""
    if encoder is None and type_ is None:
        raise UsageError("`--encoder` or `--type` should be given, found neither.")
    from child.identity import Identity
    from trunkline.clock import SystemClock
    from trunkline.messages import Request
    from trunkline.settings import build

    identity = Identity.read(open_home())
    wanted = {"child": identity.name, "encoder": encoder, "type": type_, "tasks": tuple(task or ())}
    with identity.api(SystemClock(), patience=patience()) as api:
        asked = api.request(build(Request, wanted, "the request"))
    return Result(asked.table(), [f"job {asked.job} {'started' if asked.new else 'is open already'} ({asked.state})"])
