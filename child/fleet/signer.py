"""What goes with each call of a node: its key signs the time, and a call may be told to hurry."""

import logging
from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER

from trunkline.clock import Clock
from trunkline.errors import SettingsError

logger = logging.getLogger(__name__)

CLOSE = 2.0  # seconds; a clock this near to the master's is right


def load_key(key: ec.EllipticCurvePrivateKey | Path) -> ec.EllipticCurvePrivateKey:
    """The node's private key.

    :param key: the key, or a PEM file without a password.
    :raises SettingsError: not an EC P-384 key.
    """
    if isinstance(key, Path):
        try:
            loaded = serialization.load_pem_private_key(key.read_bytes(), None)
        except (OSError, ValueError, TypeError) as error:
            raise SettingsError(f"`{key}` should be the node's private key as PEM, found: {error}.") from None
    else:
        loaded = key
    if not isinstance(loaded, ec.EllipticCurvePrivateKey) or not isinstance(loaded.curve, ec.SECP384R1):
        raise SettingsError("the node's private key should be EC P-384, found another kind.")
    return loaded


def public_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """The public half of a key, as PEM."""
    return key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


class Signer:
    """Signs calls. Flower takes a time at most 5 s ahead and 305 s behind. So where a call is refused, and the SuperLink's own
    time, which comes with every answer, is another, calls are signed by that time: a child whose clock is wrong can take part.
    """

    def __init__(self, key: ec.EllipticCurvePrivateKey, clock: Clock) -> None:
        self._key, self.clock = key, clock
        self._public = b64encode(public_pem(key)).decode()
        self.ahead = 0.0  # seconds to add to this side's clock to get the SuperLink's

    def intercept(self, context: Any, call_next: Callable[[Any], httpx.Response]) -> httpx.Response:
        """Flower's hook around a call."""
        self._sign(context.request)
        answer = call_next(context)
        if answer.status_code == httpx.codes.UNAUTHORIZED and self._learn(answer):
            self._sign(context.request)
            answer = call_next(context)
        return answer

    def _sign(self, request: httpx.Request) -> None:
        stamp = datetime.fromtimestamp(self.clock.now() + self.ahead, UTC).isoformat()
        signature = self._key.sign(stamp.encode("ascii"), ec.ECDSA(hashes.SHA256()))
        request.headers[FLEET_HTTP_PUBLIC_KEY_HEADER] = self._public
        request.headers[TIMESTAMP_HEADER] = stamp
        request.headers[FLEET_HTTP_SIGNATURE_HEADER] = b64encode(signature).decode()

    def _learn(self, answer: httpx.Response) -> bool:
        try:
            theirs = parsedate_to_datetime(answer.headers["date"]).timestamp()
        except (KeyError, ValueError, TypeError):
            return False
        ahead = theirs - self.clock.now()
        if abs(ahead - self.ahead) < CLOSE:
            return False
        logger.warning("this machine's clock is %+.0f s from the master's; calls are signed by the master's", -ahead)
        self.ahead = ahead
        return True


class Hurry:
    """Shortens the wait for an answer, where that is wanted; Flower's client has one wait for all calls."""

    seconds: float | None = None

    def intercept(self, context: Any, call_next: Callable[[Any], httpx.Response]) -> httpx.Response:
        if self.seconds is not None:
            context.request.extensions["timeout"] = httpx.Timeout(self.seconds).as_dict()
        return call_next(context)
