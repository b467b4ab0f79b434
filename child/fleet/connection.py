"""The HTTP client below a session."""

import ssl
from collections.abc import Sequence
from typing import Any

import httpx
from flwr.supernode.fleet_http_client import FleetHttpClient

from trunkline.errors import SettingsError

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
CALL = 30.0  # seconds to wait for an answer


def connect(address: str, ca: bytes | None, calls: Sequence[Any]) -> FleetHttpClient:
    """A client for one SuperLink. A site's proxy is used, but never for the loopback.

    :param address: `host:port`.
    :param ca: PEM of the only authority that is trusted; None talks without TLS.
    :param calls: what goes with each call, in Flower's form.
    :raises SettingsError: no such address, or not a certificate.
    """
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        raise SettingsError(f"the SuperLink's address should be host:port, found {address!r}.")
    client = FleetHttpClient(f"{'https' if ca else 'http'}://{address}", interceptors=calls)
    client.close()  # Flower makes its own below; this one trusts one authority, and looks whether there is a proxy in between
    client._client = httpx.Client(verify=_context(ca) if ca else True, timeout=CALL, trust_env=host not in LOOPBACK)
    return client


def _context(ca: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # nothing is trusted yet, least of all the system's authorities
    try:
        context.load_verify_locations(cadata=ca.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise SettingsError(f"the authority's certificate should be PEM, found: {error}.") from None
    return context
