"""What the measurements ran on, and how busy it was."""

import os
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

LIBRARIES = ("trunkline", "flwr", "torch", "transformers", "numpy", "httpx", "uvicorn", "sqlalchemy")


def machine() -> dict[str, str]:
    """Processor, cores, memory, system and versions."""
    versions = ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
    return {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "memory": f"{_memory() / 2**30:.1f} GiB",
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "Python": platform.python_version(),
        "versions": versions,
    }


def load() -> str:
    """Load averages over 1, 5 and 15 minutes."""
    return " ".join(f"{value:.2f}" for value in os.getloadavg()) if hasattr(os, "getloadavg") else "not told"


def busy() -> bool:
    """Whether other programs keep this machine's cores so busy that times say little."""
    return hasattr(os, "getloadavg") and os.getloadavg()[0] > 0.5 * (os.cpu_count() or 1) + 1


def loopback() -> int | None:
    """Bytes that the loopback has received since the system's start; None where the system does not tell."""
    try:
        lines = Path("/proc/net/dev").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return received(lines)


def received(lines: list[str]) -> int | None:
    """The loopback's count in `/proc/net/dev`.

    >>> received(["Inter-|   Receive", "    lo: 1234 5 0 0", "  eth0: 9 9 9 9"])
    1234
    """
    found = (line.split(":", 1)[1].split()[0] for line in lines if line.strip().startswith("lo:"))
    return next((int(text) for text in found), None)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return field(lines, "model name") or platform.machine()


def field(lines: list[str], name: str) -> str | None:
    """The first value of a name in `/proc/cpuinfo`.

    >>> field(["model name : Some CPU", "model name : Other"], "model name")
    'Some CPU'
    """
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(name)), None)


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def environment() -> Mapping[str, str]:
    """What every process of a measurement is given, on both sides."""
    return {"FLWR_TELEMETRY_ENABLED": "0", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
