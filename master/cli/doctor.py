"""`trunkline doctor`."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from master.cli.base import open_master, settings, verb, where
from trunkline import checkup
from trunkline.checkup import Check
from trunkline.console import here, single
from trunkline.errors import SettingsError, TrunklineError
from trunkline.terminal import Result, amount

if TYPE_CHECKING:
    from master.home import MasterHome
    from master.settings import MasterSettings

app = single()


@verb(app)
def doctor(
    encoder: Annotated[Path | None, Option(metavar="FOLDER", help="Also whether an encoder can start from this folder.")] = None,
) -> Result:
    """Look at the installation, the state folder, ports, certificates, the daemon. Succeeds where the master answers."""
    checks = [*checkup.installation(), *_here(), *_daemon()]
    if encoder is not None:
        checks.append(_encoder(encoder.expanduser()))
    return checkup.told(checks)


def _here() -> Iterator[Check]:
    """What lies on this machine; nothing where the master is on another."""
    if here().option("url", "TRUNKLINE_URL") is not None:
        return
    try:
        chosen = settings()
    except SettingsError as error:
        yield Check("settings", "failed", error.message, error.hint)
        return
    yield Check("settings", "ok", f"state {chosen.state}")
    from master.home import MasterHome

    home = MasterHome(chosen.state)
    yield from checkup.folder("state folder", home.folder)
    yield checkup.clock(home.folder)
    yield checkup.certificate("authority", home.tls / "ca.pem")
    yield checkup.certificate("server certificate", home.tls / "server.pem")
    yield from _ports(chosen, home)


def _ports(chosen: "MasterSettings", home: "MasterHome") -> Iterator[Check]:
    try:
        running = home.daemon()
    except TrunklineError as error:
        yield Check("daemon.json", "failed", error.message, error.hint)
        return
    for name, port in (("port", chosen.port), ("superlink port", chosen.superlink_port)):
        if running is not None:
            yield Check(name, "ok", f"the master's own, process {running.pid}")
        else:
            yield _free(name, chosen.host, port)


def _free(name: str, host: str, port: int) -> Check:
    try:
        with socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET):
            return Check(name, "ok", f"{port} is free")
    except OSError as error:
        return Check(name, "failed", f"{port} of {host} should be free, found: {error.strerror}", f"Set another `{name}`.")


def _daemon() -> Iterator[Check]:
    """Whether the master answers, takes this token, and can do its work."""
    try:
        with open_master() as https:
            ready: dict[str, Any] = https.call("GET", "/readyz")
            yield Check("master", "ok", f"{https.url} answers, {amount(ready['free_bytes'])} free")
            encoders: list[dict[str, Any]] = https.call("GET", where("encoders"))
            yield Check("encoders", "ok", ", ".join(one["name"] for one in encoders) or "none yet")
            nodes: list[dict[str, Any]] = https.call("GET", where("nodes"))
            online = sum(bool(node["online"]) for node in nodes)
            yield Check("children", "ok", f"{online} of {len(nodes)} online")
    except TrunklineError as error:
        yield Check("master", "failed", error.message, error.hint)


def _encoder(folder: Path) -> Check:
    """What a Hugging Face folder needs, without loading it."""
    if not folder.is_dir():
        return Check("encoder folder", "failed", f"{folder} should be a folder, found none")
    missing = [name for name in ("config.json", "tokenizer.json") if not (folder / name).is_file()]
    if not any(folder.glob("*.safetensors")):
        missing.append("weights as safetensors")
    if missing:
        return Check("encoder folder", "failed", f"{folder} should hold {', '.join(missing)}, found none")
    return Check("encoder folder", "ok", str(folder))
