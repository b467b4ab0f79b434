"""`trunkline-child version`."""

import platform

from child.cli.base import verb
from trunkline import __version__
from trunkline.console import single
from trunkline.terminal import Result, pairs

app = single()


@verb(app)
def version() -> Result:
    """Versions of this installation."""
    data = {"trunkline": __version__, "python": platform.python_version()}
    return Result(data, pairs(data))
