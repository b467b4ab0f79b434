"""Bodies and queries in, JSON out; errors as the master's API tells them."""

import asyncio
import json
import logging
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from trunkline.api_errors import STATUS, error_body
from trunkline.errors import DeadlineExceeded, NotFound, Reason, RefusedValue, TrunklineError, UsageError
from trunkline.settings import build

Model = TypeVar("Model", bound=BaseModel)

BODY_SECONDS = 60.0
"""A caller may take so long to send a body."""

JSON_LIMIT = 1 << 20
"""Bytes of a JSON body."""

log = logging.getLogger(__name__)


async def read_body(request: Request, limit: int) -> bytes:
    """The body, never more of it than allowed.

    :raises RefusedValue: `size`: it is longer.
    :raises DeadlineExceeded: it does not come.
    """
    data = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                data += chunk
                if len(data) > limit:
                    raise RefusedValue(Reason.SIZE, f"the body should have at most {limit} bytes, found more.", hint="Push fewer.")
    except TimeoutError:
        raise DeadlineExceeded(f"waited {BODY_SECONDS:g} s for the body of a call.") from None
    return bytes(data)


async def body_of(request: Request, model: type[Model]) -> Model:
    """The JSON body as a checked value.

    :raises UsageError: names the key, what should be and what was found.
    """
    data = await read_body(request, JSON_LIMIT)
    try:
        table = json.loads(data) if data else {}
    except (ValueError, RecursionError):
        raise UsageError("the body should be a JSON object, found something else.") from None
    if not isinstance(table, dict):
        raise UsageError(f"the body should be a JSON object, found {type(table).__name__}.")
    return build(model, table, "the body")


def number(request: Request, name: str, default: int) -> int:
    """A whole number behind the `?`.

    :raises UsageError: it is none.
    """
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) <= 16):
        raise UsageError(f"`{name}` should be a whole number, found {text!r}.")
    return int(text)


async def told(request: Request, error: Exception) -> Response:
    """Any error, as an answer."""
    if isinstance(error, HTTPException):
        what = f"`{request.method} {request.url.path}`"
        error = NotFound(f"{what} should be a part of the API, found none.", hint="Is one side older than the other?")
    if not isinstance(error, TrunklineError):
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        error = TrunklineError("the server of the stream failed inside.", hint="Its log says why.")
    return JSONResponse(error_body(error), STATUS[type(error)])


HANDLERS: Mapping[Any, Any] = {TrunklineError: told, HTTPException: told, Exception: told}
