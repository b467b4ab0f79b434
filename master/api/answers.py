"""Reading bodies, and turning errors into answers. Nothing that a caller sends is echoed into a log."""

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import AfterValidator, BaseModel, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from master.jobs import MOST
from trunkline.api_errors import ERROR_HEADER, STATUS, error_body
from trunkline.errors import (
    Conflict,
    DeadlineExceeded,
    NotAuthorized,
    NotFound,
    Reason,
    RefusedValue,
    TrunklineError,
    UsageError,
    WireVersionMismatch,
)
from trunkline.settings import explain
from trunkline.wire import common_version

Model = TypeVar("Model", bound=BaseModel)

API_VERSION = "v1"
"""Where every path begins."""

BODY_SECONDS = 60.0
"""A caller may take so long to send the body of a call (blobs have their own measure)."""

Number = Annotated[int, Field(ge=0, le=MOST)]
"""Of a round or a version, in a path or a query: no larger than what a ledger has room for."""


def _finite(table: dict[str, Any]) -> dict[str, Any]:
    try:
        json.dumps(table, allow_nan=False)
    except ValueError:
        raise ValueError("every number in it should be finite") from None
    return table


Free = Annotated[dict[str, Any], AfterValidator(_finite)]
"""A part of a body whose keys are checked by itself later; it is JSON as the ledger can keep it."""

log = logging.getLogger(__name__)


def answer(error: TrunklineError, request: Request) -> Response:
    """An error of ours as an answer."""
    body = error_body(error)
    response = JSONResponse(body, STATUS[type(error)])
    if request.method == "HEAD":
        body["error"]["message"] = error.message[:1_000]
        response.headers[ERROR_HEADER] = json.dumps(body)
    if request.method == "PUT":
        response.headers["Connection"] = "close"  # or the rest of a refused upload would have to be read
    if isinstance(error, NotAuthorized):
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def install(app: FastAPI) -> None:
    """Every error leaves as JSON of one shape."""

    async def ours(request: Request, error: Exception) -> Response:
        assert isinstance(error, TrunklineError)
        if STATUS[type(error)] >= 500 or isinstance(error, WireVersionMismatch):
            log.warning("%s %s: %s", request.method, request.url.path, error.message)
        return answer(error, request)

    async def framework(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return answer(_of_http(error, request), request)

    async def parameters(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:])
        return answer(UsageError(f"`{where}` is wrong: {first['msg']}."), request)

    async def unforeseen(request: Request, error: Exception) -> Response:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return answer(TrunklineError("the master failed inside.", hint="Its log says why."), request)

    async def hung_up(request: Request, error: Exception) -> Response:
        return Response(status_code=400)  # nobody hears it

    app.add_exception_handler(ClientDisconnect, hung_up)
    app.add_exception_handler(TrunklineError, ours)
    app.add_exception_handler(HTTPException, framework)
    app.add_exception_handler(RequestValidationError, parameters)
    app.add_exception_handler(Exception, unforeseen)


def _of_http(error: HTTPException, request: Request) -> TrunklineError:
    what = f"`{request.method} {request.url.path}`"
    version = request.url.path.split("/")[1]
    if error.status_code == 404 and re.fullmatch(r"v[0-9]{1,3}", version) and version != API_VERSION:
        return WireVersionMismatch(
            f"the version of the master's API should be {API_VERSION}, found that {version} was asked for.",
            hint="Upgrade the older side.",
        )
    if error.status_code in (404, 405):
        return NotFound(f"{what} should be a part of the API, found none.", hint="Is one side older than the other?")
    if error.status_code == 409:
        return Conflict(f"{what} is in the way of something: {error.detail}.")
    return UsageError(f"{what} is wrong: {error.detail}.")


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
                    raise RefusedValue(Reason.SIZE, f"the body should have at most {limit} bytes, found more.")
    except TimeoutError:
        raise DeadlineExceeded(f"waited {BODY_SECONDS:g} s for the body of a call.") from None
    return bytes(data)


def body_of(model: type[Model], limit: int, sender: str = "the caller") -> Callable[[Request], Awaitable[Model]]:
    """A dependency: the JSON body as a checked value.

    :param sender: who sends it, for the errors.
    :raises UsageError: names the key, what should be and what was found.
    :raises WireVersionMismatch: it cannot be read, and says that it is of no wire version of this side.
    """

    async def read(request: Request) -> Model:
        data = await read_body(request, limit)
        try:
            return model.model_validate_json(data)
        except ValidationError as error:
            _check_version(data, sender)
            raise UsageError(explain(model, error, "the body")) from None

    return read


def _check_version(data: bytes, sender: str) -> None:
    """:raises WireVersionMismatch: a body says that its sender speaks no wire version of this side."""
    try:
        oldest, newest = json.loads(data)["speaks"]
        theirs = (int(oldest), int(newest))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return
    common_version(theirs, names=(sender, "the master"))


def table(value: Any) -> Any:
    """A record of the ledger as JSON can say it; bytes are left out."""
    if is_dataclass(value) and not isinstance(value, type):
        pairs = ((one.name, getattr(value, one.name)) for one in fields(value))
        return {name: table(inner) for name, inner in pairs if not isinstance(inner, bytes)}
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, dict):
        return {str(key): table(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [table(inner) for inner in value]
    return value
