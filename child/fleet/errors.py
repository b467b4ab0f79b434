"""What can go wrong on the Fleet API, and what Flower's HTTP client says, in our words."""

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from flwr.supercore.error import ApiErrorCode, FlowerError

from trunkline.errors import ConnectionFailed, FailedError, NotAuthorized, StateError, TrunklineError, Unreachable

_AWAY = {408, 425, 429, 500, 502, 503, 504}
"""HTTP answers of a SuperLink that may be better in a moment."""


class RunGone(StateError):
    """Nobody waits for this answer any more: its run was stopped, its time is over, or it was answered already."""

    code = "run_gone"


class NotKnown(NotAuthorized):
    """The SuperLink does not know this key, or forgot this session."""

    code = "not_known"


class LinkLost(Unreachable):
    """The SuperLink could not be reached."""

    code = "link_lost"


class NotYet(Unreachable):
    """Something is on its way but not there yet."""


class Refused(StateError):
    """The SuperLink would not take or let go this node as things stand."""


@contextmanager
def translated(address: str) -> Iterator[None]:
    """What Flower's HTTP client says, in our words."""
    try:
        yield
    except httpx.HTTPStatusError as error:
        raise _from_status(address, error.response) from None
    except httpx.TransportError as error:
        raise _from_transport(address, error) from None
    except (ValueError, httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        raise LinkLost(f"the SuperLink at {address} should answer in Flower's protocol, found: {error!r}.") from None


def _from_transport(address: str, error: httpx.TransportError) -> TrunklineError:
    told = f"{error} {error.__cause__}".lower()
    if "certificate" in told or "ssl" in told or "tls" in told:
        return ConnectionFailed(
            f"the SuperLink at {address} should show a certificate of the master's authority, found: {error}.",
            hint="Check the address, and enrol again if the master was set up anew.",
        )
    return LinkLost(
        f"the SuperLink at {address} should answer, found: {error!r}.",
        hint="Check that the master runs and that its port is reachable from here.",
    )


def _from_status(address: str, response: httpx.Response) -> TrunklineError:
    told = FlowerError.from_json(response.text)
    code, text = (told.code, told.message) if told else (0, response.text[:200])
    found = f"found {response.status_code} ({text})"
    if response.status_code == 403:
        return RunGone(f"a message's run should be running, {found}.")
    if response.status_code == 401:
        return NotKnown(f"the SuperLink at {address} should know this node, {found}.")
    if code in (ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED, ApiErrorCode.FLEET_NODE_DEACTIVATION_FAILED):
        return Refused(f"the SuperLink at {address} should take this node now, {found}.")
    if code == ApiErrorCode.PUBLIC_KEY_ALREADY_IN_USE:
        return Refused(f"a key should be registered once, {found}.")
    if code == ApiErrorCode.RUNTIME_VERSION_INCOMPATIBLE:
        return ConnectionFailed(f"both sides should have the same Flower version, {found}.", hint="Install the same one.")
    if response.status_code in _AWAY:
        return LinkLost(f"the SuperLink at {address} should answer, {found}.")
    return FailedError(f"the SuperLink at {address} should take this request, {found}.")
