"""How the admin CLI reaches the daemon that runs on a state folder."""

import random

from master.home import MasterHome
from trunkline.clock import Clock
from trunkline.errors import NotFound, Unreachable
from trunkline.files import storage
from trunkline.https import Https, Patience

PATIENCE = Patience(connect=5.0, answer=60.0, progress=3.0)
"""A person waits: a daemon that does not answer is told at once."""


def open_admin(home: MasterHome, clock: Clock, rng: random.Random, patience: Patience = PATIENCE) -> Https:
    """A connection with the admin's token; blobs move through it by `trunkline.transfers` without a grant.

    :raises Unreachable: no daemon runs on this folder.
    :raises NotFound: no master was ever started on it.
    :raises StorageFailed: this user may not read its secrets.
    """
    token = home.admin_token()
    info = home.daemon()
    if info is None:
        raise Unreachable(f"a master should be running on `{home.folder}`, found none.", hint="Start it: trunkline serve.")
    path = home.tls / "ca.pem"
    with storage(path):
        if not path.exists():
            raise NotFound(f"`{path}` should be there, found none.", hint="Start the master once: trunkline serve.")
        ca = path.read_text(encoding="ascii", errors="replace")
    return Https(info.url, ca, token, clock, rng, patience)
