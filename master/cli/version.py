"""`trunkline version`."""

import platform
from typing import Any

from master.cli.base import open_master, verb
from trunkline import __version__
from trunkline.console import here, single
from trunkline.errors import TrunklineError
from trunkline.terminal import Result, pairs

app = single()


@verb(app)
def version() -> Result:
    """Versions of this installation; with `--url` also of the master there."""
    data: dict[str, Any] = {"trunkline": __version__, "python": platform.python_version()}
    if here().option("url", "TRUNKLINE_URL") is not None:
        data["master"] = _of_master()
    return Result(data, pairs(data))


def _of_master() -> dict[str, Any]:
    with open_master() as https:
        told = https.call("GET", "/v1/version")
        if not isinstance(told, dict):
            raise TrunklineError("the master should tell its version, found something else.")
        return told
