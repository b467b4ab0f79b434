"""What is posted to the master's HTTPS API, and what it answers. Its headers and errors are in `api_errors`."""

import base64
import json
from typing import Annotated, Self

from pydantic import Field

from trunkline.errors import Reason, RefusedValue, UsageError
from trunkline.messages import EncoderRef, Machine, TaskCount
from trunkline.values import Count, Digest, Name, Value
from trunkline.wire import SPOKEN, Range

# -- enrolment ---------------------------------------------------------------------------------------------------------


class Invitation(Value):
    """All that a new child needs, in one string that works once."""

    url: Annotated[str, Field(pattern=r"^https://[^\s/@]+$")]  # of the API
    secret: Annotated[str, Field(min_length=16, max_length=128, repr=False)]
    fingerprint: Digest  # of the authority's certificate: so the child knows that it talks to the right master

    def encode(self) -> str:
        """One line that can be pasted: base64url, no padding."""
        body = json.dumps({"u": self.url, "s": self.secret, "f": self.fingerprint}, separators=(",", ":"))
        return base64.urlsafe_b64encode(body.encode()).decode().rstrip("=")

    @classmethod
    def decode(cls, token: str) -> Self:
        """:raises UsageError: not an invitation, or not the whole of one."""
        text = "".join(token.split())
        try:
            body = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
            return cls(url=body["u"], secret=body["s"], fingerprint=body["f"])
        except (ValueError, KeyError, TypeError):
            raise UsageError(
                f"the invitation should be the line that `trunkline node invite` printed, found {len(text)} other characters.",
                hint="Copy it again, or ask for a new one.",
            ) from None


class Enrol(Value):
    """A child shows its invitation. `POST /v1/enrol`; the same key again gives the same node, with a new token."""

    secret: Annotated[str, Field(max_length=128, repr=False)]
    name: Name | None = None  # None: the name that the invitation holds
    public_key: Annotated[str, Field(max_length=2_048)]  # EC P-384, PEM; the private one never leaves the child
    proof: Annotated[str, Field(max_length=512)]  # `proof_of(secret)` signed with the private key (ECDSA, SHA-384), base64
    speaks: Range = SPOKEN
    version: Annotated[str, Field(max_length=64)] = ""  # of Trunkline


def proof_of(secret: str) -> bytes:
    """What an enrolling child signs: so nobody can enrol with a key that is not theirs."""
    return b"trunkline enrol\0" + secret.encode()


class Enrolled(Value):
    """What a child keeps of its enrolment."""

    name: Name
    token: Annotated[str, Field(repr=False)]  # opens the children's part of the API
    node_id: int  # at the SuperLink
    flower: str  # host:port of the SuperLink
    wire: int  # the newest version that both sides speak
    ca: str  # PEM of the authority


# -- a child's greeting ------------------------------------------------------------------------------------------------


class Hello(Value):
    """A child says that it is there and what it can do. `POST /v1/hello`."""

    boot: Annotated[str, Field(max_length=64)]  # random, new with every start of the agent
    machine: Machine | None = None
    tasks: tuple[TaskCount, ...] = ()
    types: tuple[Name, ...] = ()  # the encoder types its tasks are of
    speaks: Range = SPOKEN


class Welcome(Value):
    """What the master answers."""

    name: Name
    node_id: int
    flower: str
    wire: int
    speaks: Range = SPOKEN
    encoders: tuple[EncoderRef, ...] = ()
    version: str = ""  # of Trunkline at the master


class Asked(Value):
    """What became of a request for training. `POST /v1/requests`, `GET /v1/requests/{id}`."""

    id: Annotated[str, Field(max_length=64)]
    job: Name
    state: str  # of the job
    new: bool = False  # whether this request started the job, or joined one that was open


# -- files of an encoder -----------------------------------------------------------------------------------------------


class BlobFile(Value):
    """A file by digest."""

    digest: Digest
    size: Count  # bytes


FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
"""Name of a file of an encoder: no folders, nothing hidden."""


class Manifest(Value):
    """The files that an encoder needs besides its parameter set. Its digest names the encoder in every message."""

    files: dict[FileName, BlobFile]

    def encode(self) -> bytes:
        """The one spelling that is hashed."""
        body = {name: [self.files[name].digest, self.files[name].size] for name in sorted(self.files)}
        return json.dumps(body, separators=(",", ":"), sort_keys=True).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """:raises RefusedValue: `malformed`: not a manifest."""
        try:
            body = json.loads(data)
            return cls(files={name: BlobFile(digest=digest, size=size) for name, (digest, size) in body.items()})
        except (ValueError, TypeError, AttributeError, RecursionError):
            raise RefusedValue(Reason.MALFORMED, "a manifest should list names, digests and sizes, found something else.") from None
