"""The API as one application. Nothing is documented at a URL: an open port should tell strangers little."""

from typing import Any

from fastapi import APIRouter, Depends, FastAPI

from master.api import admin_encoders, admin_jobs, admin_nodes, admin_rules, answers, blobs, children, streams, workers
from master.api.access import admin_only
from master.api.files import Files
from master.api.parts import Parts
from master.worker_tokens import WorkerTokens
from trunkline import __version__
from trunkline.wire import SPOKEN


def make_app(parts: Parts) -> FastAPI:
    """Everything a master answers over HTTPS."""
    app = FastAPI(title="Trunkline", version=__version__, docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    app.state.stopping = parts.stopping
    answers.install(app)
    files = Files(parts.ledger, parts.blobs)
    app.include_router(_health(parts))
    app.include_router(children.routes(parts, files))
    app.include_router(blobs.routes(parts, files))
    admins = (admin_nodes.routes(parts), admin_encoders.routes(parts, files), admin_jobs.routes(parts), admin_rules.routes(parts))
    for admin in admins:
        app.include_router(admin, prefix="/v1/admin", dependencies=[Depends(admin_only(parts))])
    if parts.streams is not None:
        admin = streams.routes(parts, files, parts.streams)
        app.include_router(admin, prefix="/v1/admin", dependencies=[Depends(admin_only(parts))])
        app.include_router(streams.pushes(parts, parts.streams))
        tokens = WorkerTokens(parts.streams)
        app.include_router(workers.admin(parts, tokens), prefix="/v1/admin", dependencies=[Depends(admin_only(parts))])
        app.include_router(workers.routes(parts, parts.streams, tokens))
    return app


def _health(parts: Parts) -> APIRouter:
    router = APIRouter()

    @router.get("/healthz")
    def alive() -> dict[str, Any]:
        """The process answers."""
        return {"status": "ok"}

    @router.get("/readyz")
    def ready() -> dict[str, Any]:
        """It can do its work: the ledger and the disk answer. Otherwise the error says what does not."""
        parts.ledger.events(limit=1)
        return {"status": "ok", "free_bytes": parts.blobs.free()}

    @router.get("/v1/version")
    def version() -> dict[str, Any]:
        return {"version": __version__, "wire": list(SPOKEN)}

    return router
