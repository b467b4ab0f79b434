"""Who a child is: what its enrolment gave it, kept in its folder. The private key is made here and never leaves.

key.pem         made first, mode 0600; an enrolment that broke off is repeated with the same key, and gives the same node
ca.pem          the authority of the master, the only one that is trusted
identity.json   written last, mode 0600, since it holds the token: without it nobody is enrolled here
"""

import json
import random
from typing import Annotated, Self

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import Field

from child.api import MasterApi, enrol
from child.home import ChildHome
from trunkline.api import Invitation
from trunkline.clock import Clock
from trunkline.errors import Conflict, DamagedFile
from trunkline.files import storage, write_atomically
from trunkline.https import Patience
from trunkline.values import Name, Value

_AGAIN = "Enrol again with a new invitation: trunkline-child enrol --again."


class Identity(Value):
    """A child as its master knows it."""

    name: Name
    url: str  # of the master's API
    token: Annotated[str, Field(min_length=1, repr=False)]  # opens the children's part of the API
    flower: str  # host:port of the SuperLink
    node_id: int  # at the SuperLink
    wire: int  # the newest version that both sides spoke at the enrolment
    ca: Annotated[str, Field(repr=False)]  # PEM of the master's authority; lies in `ca.pem`

    @classmethod
    def read(cls, home: ChildHome) -> Self:
        """The identity in a child's folder.

        :raises NotFound: nobody enrolled here.
        :raises DamagedFile: it is not what `write` wrote.
        :raises StorageFailed: this user may not read it.
        """
        path = home.existing().identity
        with storage(path):
            data = path.read_bytes()
        try:
            return cls.model_validate_json(json.dumps(json.loads(data) | {"ca": _authority(home)}))
        except (ValueError, TypeError):
            raise DamagedFile(f"`{path}` should hold what the enrolment gave, found something else.", hint=_AGAIN) from None

    def write(self, home: ChildHome) -> None:
        """Keep it; only this user can read it.

        :raises StorageFailed: the disk refused.
        """
        write_atomically(home.ca, self.ca.encode("ascii"))
        about = self.model_dump(mode="json", exclude={"ca"})
        write_atomically(home.identity, json.dumps(about, indent=1).encode(), mode=0o600)

    def api(self, clock: Clock, rng: random.Random | None = None, patience: Patience | None = None) -> MasterApi:
        """A connection to the master.

        :param rng: for the jitter of pauses.
        :raises DamagedFile: `ca` is not a certificate.
        """
        return MasterApi(self.url, self.ca, self.token, clock, rng or random.Random(), patience)  # noqa: S311 - jitter, no secret


def private_key(home: ChildHome) -> ec.EllipticCurvePrivateKey:
    """The child's private key, made where there is none yet.

    :raises DamagedFile: the file is not such a key.
    :raises StorageFailed: the disk refused.
    """
    with storage(home.key):
        data = home.key.read_bytes() if home.key.exists() else b""
    if not data:
        key = ec.generate_private_key(ec.SECP384R1())
        form = serialization.PrivateFormat.PKCS8
        pem = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
        write_atomically(home.key, pem, mode=0o600)
        return key
    try:
        found = serialization.load_pem_private_key(data, None)
    except (ValueError, TypeError):
        found = None
    if not isinstance(found, ec.EllipticCurvePrivateKey) or not isinstance(found.curve, ec.SECP384R1):
        raise DamagedFile(f"`{home.key}` should be an EC P-384 key as PEM, found something else.", hint=_AGAIN)
    return found


def _authority(home: ChildHome) -> str:
    with storage(home.ca):
        if not home.ca.exists():
            raise DamagedFile(f"`{home.ca}` should hold the master's certificate, found none.", hint=_AGAIN)
        return home.ca.read_text(encoding="ascii", errors="replace")


def come_in(
    home: ChildHome,
    invitation: str,
    name: str | None,
    clock: Clock,
    rng: random.Random,
    *,
    again: bool = False,
    patience: Patience | None = None,
) -> Identity:
    """Enrol this folder with a master.

    :param name: the name this child would like; the invitation may decide.
    :param again: also where somebody is enrolled already; that identity is replaced once the new one is there.
    :raises Conflict: somebody is enrolled here already.
    :raises UsageError, NotAuthorized, Unreachable: see `child.api.enrol`.
    """
    if home.identity.exists() and not again:
        known = Identity.read(home)
        raise Conflict(
            f"`{home.folder}` should be nobody's folder yet, found child {known.name!r} of {known.url}.",
            hint="Name another --home, or say --again to replace it.",
        )
    Invitation.decode(invitation)  # no key is made for a line that is none
    url, told = enrol(invitation, name, private_key(home), clock, rng, patience)
    identity = Identity(url=url, **told.model_dump())
    identity.write(home)
    return identity
