"""The process of the SuperLink: Flower's own, behind a guard. Started by `master.superlink`: `python -m master.flower.superlinkd`.

Flower 1.42 serves three APIs on one port, and only two of them know who calls: the Fleet API asks for a node's signature, the
Runtime API for a task's token. The Control API takes a run, which is code, from anybody who reaches the port. So it is opened by a
secret that only the master has, and whatever else Flower serves there is closed.

It is one process, and serves who comes in the order in which they come. So looks for messages wait in front of it: see
`master.flower.lookout`.
"""

import hmac
import logging
import sys
from collections.abc import Callable
from typing import Any

from master.flower.lookout import App, Lookout, Receive, Scope, Send
from master.process import take_order

SECRET_HEADER = "x-trunkline-secret"  # noqa: S105
OPEN = ("/v1/fleet/", "/v1/runtime/")
SECRET = "/v1/control/"  # noqa: S105

CONNECTION = "master.connection:MeasuredConnection"  # takes the place of the one that Flower lets uvicorn choose


class Guard:
    """Lets a request through to Flower if its path is open, or if it carries the secret."""

    def __init__(self, app: App, secret: bytes) -> None:
        self.app, self.secret, self._lookout = app, secret, Lookout(app)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http" and self.allows(scope):
            await self._lookout(scope, receive, send)
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 404, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})
        else:
            await send({"type": "websocket.close", "code": 1008})

    def allows(self, scope: Scope) -> bool:
        """Whether this request may pass."""
        path: str = scope["path"]
        if path.startswith(OPEN):
            return True
        shown = dict(scope["headers"]).get(SECRET_HEADER.encode(), b"")
        return path.startswith(SECRET) and hmac.compare_digest(shown, self.secret)


class Only:
    """A middleware that is asked for some paths only; other requests do not pay for it."""

    def __init__(self, app: App, *, prefix: str, middleware: Callable[[App], App]) -> None:
        self.app, self.prefix, self.inner = app, prefix, middleware(app)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        inside = scope["type"] == "http" and scope["path"].startswith(self.prefix)
        await (self.inner if inside else self.app)(scope, receive, send)


def _narrowed(layers: list[Any]) -> list[Any]:
    """Flower's middleware, each in front of the paths it is for. Flower has all in front of all, most of a request's time."""
    from starlette.middleware import Middleware

    prefixes = {"Control": "/v1/control/", "Fleet": "/v1/fleet/", "NodeAuth": "/v1/fleet/"}
    narrowed = []
    for layer in layers:
        prefix = next((path for name, path in prefixes.items() if layer.cls.__name__.startswith(name)), None)
        narrowed.append(
            layer if prefix is None or layer.args or layer.kwargs else Middleware(Only, prefix=prefix, middleware=layer.cls)
        )
    return narrowed


def main() -> None:
    """Run the SuperLink until told to stop."""
    order = take_order()
    import flwr.superlink.main as flower
    from flwr.supercore.logger import update_console_handler
    from flwr.superlink.cli.flower_superlink import flower_superlink
    from uvicorn.config import HTTP_PROTOCOLS

    logging.getLogger("flwr").propagate = False  # it writes to the log itself
    update_console_handler(timestamps=True, colored=False)
    make, layers = flower.create_app, flower._get_middleware

    def guarded(*arguments: Any, **named: Any) -> Any:
        return Guard(make(*arguments, **named), order["secret"].encode())

    flower.create_app, flower._get_middleware = guarded, lambda: _narrowed(layers())  # type: ignore[assignment]
    HTTP_PROTOCOLS["auto"] = CONNECTION
    sys.argv = ["flower-superlink", *order["arguments"]]
    flower_superlink()


if __name__ == "__main__":
    main()
