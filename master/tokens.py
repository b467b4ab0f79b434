"""Tokens: short-lived ones that let one child move one blob in one round, and long ones that say who somebody is.

A grant is `payload.signature`: the payload is JSON in base64url, the signature HMAC-SHA256 over that text with a secret that
only the master has. Nothing is stored, so the API can check it in any process. A set's bytes leave the master only against such a
token, and it is made the moment the child's confirmation was accepted: that is how the order of a round is enforced.
"""

import base64
import hashlib
import hmac
import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trunkline.clock import Clock
from trunkline.errors import DamagedFile, NotAuthorized, SettingsError
from trunkline.files import storage, sync_folder, write_atomically

Direction = Literal["down", "up"]

SECRET_BYTES = 32
_VERSION = 1
_LIMIT = 2048  # characters; what is longer was not made here
_CONTEXT = b"trunkline grant 1\0"  # the same secret signs nothing else by accident


@dataclass(frozen=True, slots=True)
class Grant:
    """What a token allows: `child` may move one blob.

    Down: the blob `digest`. Up: any one blob of at most `size` bytes, as the update of the round whose base is `digest`.
    """

    child: str
    job: str
    round: int
    digest: str
    direction: Direction
    size: int  # bytes; down: of the blob, up: at most
    expires: float  # seconds since the epoch


class Gate:
    """Makes and checks grants.

    :param secret: at least 32 bytes; who knows it can make grants.
    :raises SettingsError: the secret is shorter.
    """

    def __init__(self, secret: bytes, clock: Clock) -> None:
        if len(secret) < SECRET_BYTES:
            raise SettingsError(f"`secret` should have at least {SECRET_BYTES} bytes, found {len(secret)}.")
        self._secret, self._clock = secret, clock

    def issue(self, child: str, job: str, round: int, digest: str, direction: Direction, size: int, seconds: float) -> str:
        """A token that is good for so many seconds."""
        payload = {
            "v": _VERSION,
            "child": child,
            "job": job,
            "round": round,
            "digest": digest,
            "way": direction,
            "size": size,
            "until": self._clock.now() + seconds,
        }
        text = _encode(json.dumps(payload, separators=(",", ":"), sort_keys=True).encode())
        return f"{text}.{self._sign(text)}"

    def check(self, token: str, *, digest: str | None, direction: Direction, child: str | None = None) -> Grant:
        """What a token allows.

        :param digest: down: of the blob that is asked for; up: of the round's base, or None where it is not known.
        :param direction: what is about to happen.
        :param child: who shows the token, where that is known.
        :raises NotAuthorized: it was not made here, was changed, is too old, or allows something else.
        """
        grant = self._read(token)
        if self._clock.now() >= grant.expires:
            raise NotAuthorized("the token should be fresh, found an expired one.", hint="Ask for the round's message again.")
        if grant.direction != direction:
            raise NotAuthorized(f"the token should be good for going {direction}, found one for going {grant.direction}.")
        if (digest is None and direction == "down") or (digest is not None and grant.digest != digest):
            raise NotAuthorized(f"the token should be for blob {digest}, found one for another digest.")
        if child is not None and grant.child != child:
            raise NotAuthorized(f"the token should be that of {child!r}, found one of another child.")
        return grant

    def _read(self, token: str) -> Grant:
        text, _, signature = token.partition(".") if len(token) <= _LIMIT else ("", "", "")
        # The signature is compared as text: several base64 texts may stand for the same bytes, and only one of them is ours.
        if not hmac.compare_digest(signature.encode("utf-8", "replace"), self._sign(text).encode()):
            raise NotAuthorized("the token should be one of this master, found one that was made or changed elsewhere.")
        payload = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        if payload["v"] != _VERSION:
            raise NotAuthorized(f"the token should be of version {_VERSION}, found {payload['v']}.", hint="Ask for a new one.")
        return Grant(
            payload["child"],
            payload["job"],
            payload["round"],
            payload["digest"],
            payload["way"],
            payload["size"],
            payload["until"],
        )

    def _sign(self, text: str) -> str:
        return _encode(hmac.new(self._secret, _CONTEXT + text.encode("utf-8", "replace"), hashlib.sha256).digest())


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def new_token() -> str:
    """A long random token that can be typed into a shell: 256 bits."""
    return secrets.token_urlsafe(SECRET_BYTES)


def hash_token(token: str) -> str:
    """What is stored of a token: SHA-256 in hex. A token has 256 random bits, so a slow hash would add nothing."""
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


def new_secret(path: Path) -> bytes:
    """The secret in a file, made at the first call: 32 random bytes, readable by its owner alone. Later calls read it.

    :raises DamagedFile: the file is shorter than a secret.
    :raises StorageFailed: it can be neither made nor read.
    """
    with storage(path):
        if not path.exists():
            _put_if_absent(path, secrets.token_bytes(SECRET_BYTES))
        found = path.read_bytes()
    if len(found) < SECRET_BYTES:
        raise DamagedFile(
            f"`{path}` should hold {SECRET_BYTES} bytes, found {len(found)}.", hint="Delete it; children enrol again."
        )
    return found


def _put_if_absent(path: Path, data: bytes) -> None:
    """Of two processes that start at once one wins, and both use its secret."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    write_atomically(beside, data, mode=0o600)
    try:
        os.link(beside, path)
        sync_folder(path.parent)
    except FileExistsError:
        pass
    except OSError:  # no hard links on this disk
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
