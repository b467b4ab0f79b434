"""What `doctor` looks at on either side: this installation, a folder, the clock. Each check is a row; none of them raises."""

import os
import platform
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Literal

from trunkline.errors import FailedError, TrunklineError
from trunkline.terminal import Result, amount, table

LITTLE, TOO_LITTLE = 5 << 30, 200 << 20
"""Bytes of free space: fewer are told, fewer still are a failure."""

LEAST_DAYS = 30
"""Days that a certificate should still be good for."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    check: str
    status: Literal["ok", "warning", "failed"]
    found: str
    hint: str | None = None


def told(checks: Iterable[Check]) -> Result:
    """All of them as a result; one that failed makes the command fail."""
    rows = [asdict(check) for check in checks]
    failed = [row["check"] for row in rows if row["status"] == "failed"]
    lines = table(rows, ("check", "status", "found", "hint"))
    error = FailedError(f"every check should be ok, found {', '.join(failed)} failed.") if failed else None
    return Result(rows, lines, error=error)


def tried(name: str, look: Callable[[], str]) -> Check:
    """A check whose errors are its finding."""
    try:
        return Check(name, "ok", look())
    except TrunklineError as error:
        return Check(name, "failed", error.message, error.hint)


def installation(distribution: str = "trunkline") -> Iterator[Check]:
    """Python, and each library against its bounds."""
    from packaging.requirements import InvalidRequirement, Requirement

    yield Check("python", "ok", platform.python_version())
    try:
        needs = requires(distribution) or []
    except PackageNotFoundError:
        yield Check("packages", "warning", f"{distribution} is not installed as a package", "Its bounds cannot be read.")
        return
    for text in needs:
        try:
            need = Requirement(text)
        except InvalidRequirement:
            continue
        if need.marker is None or need.marker.evaluate({"extra": ""}):
            yield _package(need.name, str(need.specifier), need.specifier.contains)


def _package(name: str, bounds: str, fits: Callable[..., bool]) -> Check:
    try:
        found = version(name)
    except PackageNotFoundError:
        return Check(name, "failed", f"should be {bounds}, found none", f'pip install "{name}{bounds}"')
    if not fits(found, prereleases=True):
        return Check(name, "failed", f"should be {bounds}, found {found}", f'pip install "{name}{bounds}"')
    return Check(name, "ok", found)


def folder(name: str, path: Path) -> Iterator[Check]:
    """Whether a folder can be written, or made, and how much room there is."""
    place = path
    while not place.exists() and place.parent != place:
        place = place.parent
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        yield Check(name, "failed", f"{place} should be a folder that can be written, found that it is not", "Name another one.")
        return
    yield Check(name, "ok", str(path) if path.exists() else f"{path} will be made")
    free = shutil.disk_usage(place).free
    status: Literal["ok", "warning", "failed"] = "failed" if free < TOO_LITTLE else "warning" if free < LITTLE else "ok"
    yield Check("free space", status, amount(free), None if status == "ok" else "Free some; parameter sets take much.")


def clock(path: Path, now: float | None = None) -> Check:
    """Whether the clock is behind what was written in the folder before."""
    now = time.time() if now is None else now
    newest = max((file.stat().st_mtime for file in path.iterdir() if file.is_file()), default=0.0) if path.is_dir() else 0.0
    stands = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(now))
    if newest > now + 60:
        return Check("clock", "failed", f"{stands} is before the last change in {path}", "Set it; certificates and grants need it.")
    return Check("clock", "ok", stands)


def certificate(name: str, path: Path, now: float | None = None) -> Check:
    """How long a certificate is good for."""
    from cryptography import x509

    now = time.time() if now is None else now
    try:
        found = x509.load_pem_x509_certificate(path.read_bytes())
    except FileNotFoundError:
        return Check(name, "warning", "none yet")
    except (OSError, ValueError) as error:
        return Check(name, "failed", f"{path} should be a certificate, found: {error}")
    days = (found.not_valid_after_utc.timestamp() - now) / 86_400
    if days <= 0 or found.not_valid_before_utc.timestamp() > now:
        return Check(name, "failed", f"good until {found.not_valid_after_utc:%Y-%m-%d}, so not now", "Check the clock.")
    status: Literal["ok", "warning"] = "ok" if days > LEAST_DAYS else "warning"
    return Check(name, status, f"good until {found.not_valid_after_utc:%Y-%m-%d}, {days:.0f} days")
