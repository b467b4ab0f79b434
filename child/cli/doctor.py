"""`trunkline-child doctor`."""

import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from child.cli.base import folder, open_home, settings, verb
from trunkline import checkup
from trunkline.checkup import Check
from trunkline.console import here, single
from trunkline.errors import NotFound, TrunklineError, Unreachable
from trunkline.terminal import Result

if TYPE_CHECKING:
    from child.home import ChildHome
    from child.identity import Identity

app = single()


@verb(app)
def doctor() -> Result:
    """Look at the installation, the child's folder, its tasks, and whether the master answers."""
    path = folder(here())
    checks = [*checkup.installation(), *checkup.folder("home", path), checkup.clock(path)]
    if path.is_dir():
        checks += _inside(open_home())
    else:
        checks.append(Check("enrolled", "failed", f"no child in {path}", "Begin: trunkline-child enrol."))
    return checkup.told(checks)


def _inside(home: "ChildHome") -> Iterator[Check]:
    yield checkup.tried("settings", lambda: f"threads {settings(home).threads or 'all'}, device {settings(home).device}")
    yield from _tasks(home)
    from child.identity import Identity

    try:
        identity = Identity.read(home)
    except TrunklineError as error:
        yield Check("enrolled", "failed", error.message, error.hint)
        return
    yield Check("enrolled", "ok", f"as {identity.name} with {identity.url}")
    yield checkup.certificate("authority", home.ca)
    yield checkup.tried("master", lambda: _master(identity))
    yield checkup.tried("superlink", lambda: _superlink(identity.flower))


def _tasks(home: "ChildHome") -> Iterator[Check]:
    from child.registry import Registry

    registry = Registry(home)
    try:
        specs = registry.all()
    except TrunklineError as error:
        yield Check("tasks", "failed", error.message, error.hint)
        return
    if not specs:
        yield Check("tasks", "warning", "none declared", "trunkline-child task add FILE --task NAME …")
    for spec in specs:
        yield checkup.tried(f"task {spec.name}", lambda spec=spec: _rows(registry.count(spec)))


def _rows(counts: dict[str, int]) -> str:
    return ", ".join(f"{split} {count}" for split, count in counts.items())


def _master(identity: "Identity") -> str:
    """Whether it answers, and takes this child's token.

    :raises Unreachable, NotAuthorized: no.
    """
    from trunkline.clock import SystemClock
    from trunkline.https import Patience

    limit = here().timeout or 3.0
    with identity.api(SystemClock(), patience=Patience(connect=min(5.0, limit), answer=10.0, progress=limit)) as api:
        version = api.version()["version"]
        with suppress(NotFound):  # no such job: that it says so shows that the token is good
            api.asked("doctor")
        return f"{identity.url} answers, version {version}"


def _superlink(address: str) -> str:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=5.0):
            return f"{address} answers"
    except (OSError, ValueError) as error:
        raise Unreachable(
            f"the SuperLink at {address} should answer, found: {error}.", hint="Is its port open from here?"
        ) from None
