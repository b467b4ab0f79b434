"""Tokens of workers on other machines: each opens one stream, for parameters and gradients alone, until it is revoked.

Only hashes are kept, in `workers.json` of the stream's folder, by the label that a token was made under.
"""

import hmac
import threading
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from master.streams import Streams
from master.tokens import hash_token, new_token
from trunkline.errors import Conflict, DamagedFile, NotFound
from trunkline.files import storage, write_atomically
from trunkline.values import Digest, Name, Value

MOST = 1000
"""Tokens of one stream."""


class _Known(Value):
    hash: Digest
    made: float  # seconds since the epoch


class _File(Value):
    tokens: Annotated[dict[Name, _Known], Field(max_length=MOST)]


class WorkerTokens:
    """All streams' tokens. Any thread may use it."""

    def __init__(self, streams: Streams) -> None:
        self._streams, self._lock = streams, threading.Lock()

    def make(self, stream: str, label: str) -> str:
        """A new token; it is never told again. One of this label that there was opens nothing any more.

        :raises NotFound: no such stream.
        :raises Conflict: there are too many.
        """
        path, token = self._path(stream), new_token()
        with self._lock:
            known = dict(self._read(path))
            known[label] = _Known(hash=hash_token(token), made=self._streams.clock.now())
            if len(known) > MOST:
                raise Conflict(f"a stream should have at most {MOST} tokens of workers, found as many.", hint="Revoke some.")
            self._write(path, known)
        return token

    def revoke(self, stream: str, label: str) -> None:
        """Its next call is refused.

        :raises NotFound: no such stream, or label.
        """
        path = self._path(stream)
        with self._lock:
            known = dict(self._read(path))
            if known.pop(label, None) is None:
                raise NotFound(f"the label should be one of {', '.join(known) or 'none yet'}, found {label!r}.")
            self._write(path, known)

    def labels(self, stream: str) -> dict[str, float]:
        """Of all tokens, with when they were made, in seconds since the epoch.

        :raises NotFound: no such stream.
        """
        return {label: one.made for label, one in self._read(self._path(stream)).items()}

    def opens(self, stream: str, token: str) -> bool:
        """Whether a token is one of this stream's workers."""
        found = hash_token(token)
        return any([hmac.compare_digest(found, one.hash) for one in self._read(self._path(stream)).values()])  # noqa: C419

    def _path(self, stream: str) -> Path:
        return self._streams.home(stream).folder / "workers.json"

    def _read(self, path: Path) -> dict[str, _Known]:
        try:
            with storage(path):
                return _File.model_validate_json(path.read_bytes()).tokens
        except FileNotFoundError:
            return {}
        except ValidationError:
            raise DamagedFile(f"`{path}` should hold tokens of workers, found something else.", hint="Delete it.") from None

    def _write(self, path: Path, known: dict[str, _Known]) -> None:
        write_atomically(path, _File(tokens=known).model_dump_json(indent=1).encode(), mode=0o600)
