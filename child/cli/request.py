"""`trunkline-child request`."""

from typing import Annotated

from typer import Option

from child.cli.base import open_home, single, verb
from trunkline.console import here
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
    from trunkline.https import Patience
    from trunkline.messages import Request
    from trunkline.settings import build

    limit = here().timeout
    identity = Identity.read(open_home())
    wanted = {"child": identity.name, "encoder": encoder, "type": type_, "tasks": tuple(task or ())}
    patience = Patience(connect=min(10.0, limit or 10.0), answer=min(60.0, limit or 60.0), progress=limit or 5.0)
    with identity.api(SystemClock(), patience=patience) as api:
        asked = api.request(build(Request, wanted, "the request"))
    return Result(asked.table(), [f"job {asked.job} {'started' if asked.new else 'is open already'} ({asked.state})"])
