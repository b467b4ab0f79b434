"""`trunkline-child enrol`."""

import os
import random
import sys
from pathlib import Path
from typing import Annotated

from typer import Option

from child.cli.base import open_home, patience, verb
from trunkline.console import here, single
from trunkline.errors import UsageError
from trunkline.files import storage
from trunkline.terminal import Result, pairs

app = single()

VARIABLE = "TRUNKLINE_CHILD_TOKEN"


@verb(app)
def enrol(
    token: Annotated[str | None, Option(help="The invitation. Others on this machine can see it; --token-file hides it.")] = None,
    token_file: Annotated[str | None, Option(metavar="FILE", help="A file that holds it; - reads standard input.")] = None,
    name: Annotated[str | None, Option(help="The name this child would like; the invitation may decide.")] = None,
    again: Annotated[bool, Option("--again", help="Replace the identity that is here.")] = False,
) -> Result:
    """Become a child of the master that made the invitation. Without a flag, TRUNKLINE_CHILD_TOKEN holds it."""
    invitation = _invitation(token, token_file)
    home = open_home(make=True)
    from child.identity import come_in
    from trunkline.clock import SystemClock

    rng = random.Random()  # noqa: S311 - jitter, no secret
    identity = come_in(home, invitation, name, SystemClock(), rng, again=again, patience=patience())
    data = {
        "name": identity.name,
        "master": identity.url,
        "superlink": identity.flower,
        "node_id": identity.node_id,
        "home": str(home.folder),
    }
    here().note("next: trunkline-child task add FILE, then trunkline-child run")
    return Result(data, pairs(data))


def _invitation(token: str | None, file: str | None) -> str:
    if token is not None and file is not None:
        raise UsageError("an invitation should come one way, found `--token` and `--token-file`.")
    if token is not None:
        return token
    if file == "-":
        return sys.stdin.read()
    if file is not None:
        path = Path(file).expanduser()
        with storage(path):
            if not path.is_file():
                raise UsageError(f"`--token-file` should be a file, found none at {path}.")
            return path.read_text(encoding="utf-8", errors="replace")
    if not (found := os.environ.get(VARIABLE)):
        hint = "Ask the admin for one: trunkline node invite NAME."
        raise UsageError(f"an invitation should be given by `--token`, `--token-file` or {VARIABLE}, found none.", hint=hint)
    return found
