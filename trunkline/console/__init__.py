"""What both command lines have in common: options that every command takes, errors and signals as exit codes, lazy commands.

    0 ok · 1 operation failed · 2 usage · 3 timeout · 4 connection, authorisation · 5 not found, conflict · 6 partial success
    70 internal · 130 SIGINT · 143 SIGTERM

A command is a function that returns a `Result`, or raises an error of `trunkline.errors`; how that is printed is decided here.
"""

from trunkline.console.commands import Command, Group, Running
from trunkline.console.completion import completion_script
from trunkline.console.declare import single
from trunkline.console.failures import CRASH_LOG
from trunkline.console.lazy import Lazy, Root
from trunkline.console.options import common
from trunkline.console.running import run
from trunkline.console.state import Console, here

__all__ = [
    "CRASH_LOG",
    "Command",
    "Console",
    "Group",
    "Lazy",
    "Root",
    "Running",
    "common",
    "completion_script",
    "here",
    "run",
    "single",
]
