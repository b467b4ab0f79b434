"""The child's handlers as an ordinary Flower ClientApp, for a stock `flower-supernode`.

The node says where the child's folder lies: `flower-supernode --node-config 'home="/var/lib/trunkline-child"'`, or the environment
variable TRUNKLINE_CHILD_HOME. Such a node starts a process for every message and takes seconds for each, and it runs whatever app a
master sends, so its owner trusts the master. `trunkline-child run` does neither.
"""

import importlib
import os
from pathlib import Path
from typing import Any

from trunkline.installation import check_installation

check_installation()  # the first line of ours that runs at a stock node, whose search path begins with what the master sent

from flwr.app import Context, Message  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402

from child.fleet.content import pack, unpack  # noqa: E402
from child.talk import Answers, talk  # noqa: E402
from trunkline.errors import SettingsError  # noqa: E402

OPEN = "child.handlers:open_child"

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """An instruction; the answer is a confirmation."""
    return _answer(message, context)


@app.train()
def train(message: Message, context: Context) -> Message:
    """An initial set; the answer is an update."""
    return _answer(message, context)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """A request for a report; the answer is a report."""
    return _answer(message, context)


def _answer(message: Message, context: Context) -> Message:
    child = _open(home(context.node_config))
    return Message(pack(*talk(child, *unpack(message.content))), reply_to=message)


def home(node_config: Any) -> Path:
    """The child's folder.

    :raises SettingsError: nobody said where it is.
    """
    found = node_config.get("home") or os.environ.get("TRUNKLINE_CHILD_HOME")
    if not found:
        raise SettingsError(
            "`home` should name the child's folder, found nothing.",
            hint="Start the node with --node-config 'home=\"FOLDER\"', or set TRUNKLINE_CHILD_HOME.",
        )
    return Path(str(found))


def _open(folder: Path) -> Answers:
    """The child, opened late: torch is loaded when there is something to do. TRUNKLINE_CHILD_OPEN names another opener (tests)."""
    module, _, name = os.environ.get("TRUNKLINE_CHILD_OPEN", OPEN).partition(":")
    return getattr(importlib.import_module(module), name)(folder)
