"""Where the two programs start: check the installation, then load the one that was asked for.

Its packages are named by text, not imported, so that a foreign `master.py` or `child.py` is met by `check_installation` with an
error that names it, not by a traceback.
"""

import json
import sys
from collections.abc import Sequence
from importlib import import_module

from trunkline.errors import UsageError
from trunkline.installation import check_installation
from trunkline.terminal import Result


def admin() -> int | None:
    """`trunkline`: the master's command line."""
    return _start("master.cli")


def agent() -> int | None:
    """`trunkline-child`: the child's command line and daemon."""
    return _start("child.cli")


def _start(module: str) -> int | None:
    try:
        check_installation()
    except UsageError as error:
        return _refuse(error, sys.argv[1:])
    return import_module(module).main()


def _refuse(error: UsageError, arguments: Sequence[str]) -> int:
    """Say it in the way that the command lines do, which cannot be loaded."""
    joined = " ".join(arguments)
    if "--output json" in joined or "--output=json" in joined:
        print(json.dumps(Result(error=error).envelope()))
    else:
        print(f"error: {error}", file=sys.stderr)
    return error.exit_code
