"""What a child asks of its master over HTTPS: to be let in, training, files, parameter sets. The wire is `trunkline.https`."""

import base64
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import ValidationError

from child.transfer import check_manifest
from trunkline import __version__, transfers
from trunkline.api import Asked, Enrol, Enrolled, Hello, Invitation, Manifest, Welcome, proof_of
from trunkline.clock import Clock
from trunkline.errors import Reason, RefusedValue
from trunkline.https import Https, Patience, fetch_authority
from trunkline.messages import Request
from trunkline.values import Value
from trunkline.wire import nearest_version

Answer = TypeVar("Answer", bound=Value)


class MasterApi:
    """One child's connection to its master; the child's `Transfer` in production.

    :param url: of the master's API.
    :param ca: PEM of the authority that the child enrolled with.
    :param token: the child's own.
    :param clock: for deadlines and pauses.
    :param rng: for the jitter of pauses.
    :raises UsageError: not an https URL.
    :raises DamagedFile: `ca` is not a certificate.
    """

    def __init__(self, url: str, ca: str, token: str, clock: Clock, rng: random.Random, patience: Patience | None = None) -> None:
        self._https = Https(url, ca, token, clock, rng, patience)
        self.moved_down = self.moved_up = 0  # bytes, since the start

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._https.close()

    # -- calls -------------------------------------------------------------------------------------------------------

    def hello(self, told: Hello) -> Welcome:
        """Say that this child is there.

        :raises NotAuthorized: the token is not good, or no longer.
        :raises WireVersionMismatch: no common wire version.
        :raises Unreachable: nothing answers.
        """
        return _read(Welcome, self._https.call("POST", "/v1/hello", json.dumps(told.told(self._wire()))))

    def request(self, wanted: Request) -> Asked:
        """Ask for training: starts a job, or joins the one that is open.

        :raises NotFound, UsageError: no encoder fits, or several do.
        :raises RefusedValue: `sender`: in another child's name.
        """
        return _read(Asked, self._https.call("POST", "/v1/requests", wanted.encode(self._wire())))

    def asked(self, job: str) -> Asked:
        """What became of a request.

        :raises NotFound: no such job.
        """
        return _read(Asked, self._https.call("GET", f"/v1/requests/{job}"))

    def version(self) -> dict[str, Any]:
        """Version and wire versions of the master."""
        return self._https.call("GET", "/v1/version")

    def _wire(self) -> int:
        """The wire version to talk in. It is asked for each time: a master may have been replaced since."""
        return _wire_of(self.version())

    # -- bytes -------------------------------------------------------------------------------------------------------

    def manifest(self, encoder: str, digest: str) -> Mapping[str, tuple[str, int]]:
        """The files of an encoder: name -> (digest, bytes).

        :raises NotFound: no such encoder.
        :raises RefusedValue: `digest`: the encoder is made of other files now; `malformed`: not a list of files.
        """
        told = self._https.call("GET", f"/v1/encoders/{encoder}/manifest")
        found = _read(Manifest, {"files": told.get("files")} if isinstance(told, dict) else told)
        check_manifest(found.encode(), digest)
        return {name: (file.digest, file.size) for name, file in found.files.items()}

    def fetch(self, digest: str, size: int, grant: str | None, to: Path) -> None:
        """See `Transfer.fetch`; resumes where it broke. Parameter sets, hashed before each use, are not flushed to the disk."""
        self.moved_down += transfers.fetch(self._https, digest, size, grant, to, durable=grant is None)

    def send(self, path: Path, digest: str, grant: str, *, check: bool = True) -> None:
        """See `Transfer.send`; resumes where it broke."""
        self.moved_up += transfers.send(self._https, path, digest, grant, check=check)


def enrol(
    invitation: str,
    name: str | None,
    key: ec.EllipticCurvePrivateKey,
    clock: Clock,
    rng: random.Random,
    patience: Patience | None = None,
) -> tuple[str, Enrolled]:
    """Show an invitation. Repeating it with the same key gives the same node again, so an answer that got lost costs nothing.

    :param name: the name this child would like; the invitation may decide.
    :param key: EC P-384; it never leaves this side.
    :returns: the master's address, and what to keep.
    :raises UsageError: not an invitation, or not a key of this kind.
    :raises NotAuthorized: used up, expired, or shown to another master than the one that made it.
    :raises Unreachable: nothing answers at the address in the invitation.
    """
    found = Invitation.decode(invitation)
    ca = fetch_authority(found.url, found.fingerprint, clock, rng, patience)
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    proof = key.sign(proof_of(found.secret), ec.ECDSA(hashes.SHA384()))
    body = Enrol(
        secret=found.secret,
        name=name,
        public_key=public.decode(),
        proof=base64.b64encode(proof).decode(),
        version=__version__,
    )
    with Https(found.url, ca, None, clock, rng, patience) as https:
        wire = _wire_of(https.call("GET", "/v1/version"))
        enrolled = _read(Enrolled, https.call("POST", "/v1/enrol", json.dumps(body.told(wire))))
    return found.url, enrolled.model_copy(update={"ca": ca})  # the one whose fingerprint was checked


def _wire_of(told: Any) -> int:
    """:raises RefusedValue: `malformed`: what a master tells of its versions does not say which it speaks."""
    try:
        oldest, newest = told["wire"]
        return nearest_version((int(oldest), int(newest)))
    except (KeyError, TypeError, ValueError, OverflowError):
        raise RefusedValue(
            Reason.MALFORMED, "the master should tell its wire versions, found something else.", hint="Is it a Trunkline master?"
        ) from None


def _read(model: type[Answer], told: Any) -> Answer:
    """:raises RefusedValue: `malformed`: the answer is not what this side knows."""
    try:
        return model.model_validate_json(json.dumps(told))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        message = f"the master's answer is wrong at `{where}`: {first['msg']}."
        raise RefusedValue(Reason.MALFORMED, message, hint="Is one side older than the other?") from None
