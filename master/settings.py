"""Settings of the master. A TOML file, `TRUNKLINE_*` in the environment, flags; read by `load`, checked when made, frozen."""

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from master.home import DEFAULT_STATE
from trunkline import settings

Positive = Annotated[float, Field(gt=0, le=10 * 366 * 86_400, allow_inf_nan=False)]
"""Seconds of a wait or a lifetime: never zero, never negative, never for ever."""

Port = Annotated[int, Field(ge=1, le=65_535)]
"""A fixed one: it stands in invitations, and children come back to it."""

PREFIX = "TRUNKLINE"
FILE = "trunkline.toml"


class MasterSettings(BaseModel):
    """What an admin can decide about a master."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    # -- where
    state: Path = Path(DEFAULT_STATE)  # the state folder, see master/home.py
    ledger: str | None = None  # SQLAlchemy URL; None: SQLite in the state folder
    host: str = "127.0.0.1"  # the address to listen on; 0.0.0.0 opens it to other machines
    port: Port = 8440  # HTTPS API
    superlink_port: Port = 8441  # Flower's SuperLink, for the children's messages
    names: tuple[str, ...] = ()  # names and addresses under which children reach the master; the first goes into invitations

    # -- how long
    invite_seconds: Positive = 7 * 86_400  # an invitation that nobody used ends after this
    idle_seconds: Positive = 60  # a transfer that moves no byte for this long is cut; it can be resumed
    poll_seconds: Positive = 25  # the longest wait of one `job watch` call; proxies often cut at 30
    stop_seconds: Positive = 10  # what runs at a stop may finish within this

    # -- how much
    max_blob_bytes: Annotated[int, Field(ge=1 << 10)] = 16 << 30  # the largest parameter set or encoder file
    max_body_bytes: Annotated[int, Field(ge=1 << 10)] = 4 << 20  # the largest JSON body
    max_connections: Annotated[int, Field(ge=8)] = 2_000

    # -- what is started when a child asks for training: encoder name, or "*", -> keys of a job's file
    on_request: dict[str, dict[str, Any]] = {}

    log_level: Annotated[str, Field(pattern="^(debug|info|warning|error)$")] = "info"

    @model_validator(mode="after")
    def _ports_differ(self) -> Self:
        if self.port == self.superlink_port:
            raise ValueError(f"`superlink_port` should differ from `port`, found {self.port} for both")
        return self

    def job_on_request(self, encoder: str) -> dict[str, Any]:
        """The job that a child's request for an encoder starts, as the ledger keeps it.

        :raises SettingsError: `on_request` is wrong; the daemon asks at its start, for every encoder.
        """
        from master.jobs import JobSpec

        table = self.on_request.get("*", {}) | self.on_request.get(encoder, {}) | {"encoder": encoder}
        return settings.build(JobSpec, table, f"`on_request.{encoder}`").model_dump(mode="json")

    def reached_as(self) -> str:
        """The name or address that goes into invitations."""
        if self.names:
            return self.names[0]
        return "127.0.0.1" if _unspecified(self.host) else self.host

    def reached_here(self) -> str:
        """The address at which commands on this machine reach it, whatever its names resolve to here."""
        if not _unspecified(self.host):
            return self.host
        return "localhost" if ":" in self.host else "127.0.0.1"

    def certificate_names(self) -> tuple[str, ...]:
        """Every name and address that the server certificate is good for; the loopback always is."""
        listen = () if _unspecified(self.host) else (self.host,)
        return tuple(dict.fromkeys((*self.names, *listen, "localhost", "127.0.0.1", "::1")))


def _unspecified(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def load(
    path: Path | None = None, flags: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None
) -> MasterSettings:
    """Settings by precedence: flags, `TRUNKLINE_*`, the file, defaults.

    :param path: the settings file; a file that is not there counts as empty.
    :raises SettingsError: names the key, what should be and what was found.
    """
    return settings.load(MasterSettings, path, PREFIX, flags, environ)
