"""Sets that a child makes itself, of an encoder that starts from a seed: nothing of them is fetched."""

import logging
from collections.abc import Sequence
from pathlib import Path

from tasks import starts
from trunkline.errors import FailedError, SpecError
from trunkline.files import sha256_file

logger = logging.getLogger(__name__)


def make(folder: Path, part: starts.Part, digest: str, to: Path, modules: Sequence[Path]) -> bool:
    """Make a set from the seed and put it in place, if it comes out as it should.

    :param folder: files of the encoder, all but its frozen tensors.
    :param digest: of the set that is wanted.
    :param modules: folders with the site's own code.
    :returns: whether it lies there now. If not it has to be fetched, and the log says why it could not be made.
    """
    beside = to.with_name(f".seeded-{digest}")
    try:
        start = starts.read(folder)
        if start is None or start.digest(part) != digest:
            return False
        starts.make(folder, part, beside, modules)
        if (found := sha256_file(beside)) == digest:
            beside.replace(to)
            logger.info("%s %s was made here from the seed", part, digest[:12])
            return True
        why = f"it should come out as {digest[:12]}, found {found[:12]}; other versions of the libraries build another network"
    except (SpecError, FailedError) as error:
        why = str(error)
    finally:
        beside.unlink(missing_ok=True)
    logger.warning("%s cannot be made here from the seed and is fetched: %s", part, why)
    return False
