"""The end of a stream: its folder, and the server of its queues, which outlives whoever was killed."""

import shutil

from queues.stream.home import StreamHome
from trunkline.files import storage


def remove(home: StreamHome) -> None:
    """Delete all that a stream has. A Redis that was named by its address keeps what it has.

    :raises AlreadyRunning: its server runs.
    :raises StorageFailed: the disk refused.
    """
    from queues.embedded import EmbeddedServer

    lock = home.lock()
    try:
        EmbeddedServer(home.redis).stop()
        gone = home.folder.with_name(f".{home.folder.name}.gone")
        with storage(home.folder):
            shutil.rmtree(gone, ignore_errors=True)  # of a removal that was broken off
            home.folder.replace(gone)
            home.socket.unlink(missing_ok=True)
            shutil.rmtree(gone)
    finally:
        lock.release()
