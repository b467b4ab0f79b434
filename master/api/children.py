"""The children's part: coming in, greeting, asking for training, and what an encoder consists of."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from fastapi import Request as Call

from master import nodes
from master.api.access import child_only
from master.api.answers import body_of, read_body
from master.api.files import Files
from master.api.parts import Parts
from master.records import Encoder, Node
from trunkline import __version__
from trunkline.api import Asked, Enrol, Enrolled, Hello, Welcome
from trunkline.errors import Conflict, NotFound, Reason, RefusedValue, UsageError
from trunkline.messages import EncoderRef, Request
from trunkline.wire import common_version


def routes(parts: Parts, files: Files) -> APIRouter:
    """What a child may call."""
    router = APIRouter(prefix="/v1")
    ledger, limit = parts.ledger, parts.settings.max_body_bytes
    caller = child_only(parts)

    @router.get("/ca")
    def authority() -> dict[str, str]:
        """The authority's certificate, for a child that knows its fingerprint. It is no secret."""
        return {"ca": parts.ca}

    @router.post("/enrol", status_code=201)
    def enrol(asked: Annotated[Enrol, Depends(body_of(Enrol, 16_384, "the child"))]) -> dict[str, Any]:
        made = nodes.enrol(ledger, asked, parts.register, parts.clock)
        assert made.node.flower_id is not None
        answer = Enrolled(
            name=made.node.name, token=made.token, node_id=made.node.flower_id, flower=parts.flower, wire=made.wire, ca=parts.ca
        )
        return answer.told(made.wire)

    async def greeting(call: Call, child: Annotated[Node, Depends(caller)]) -> Hello:
        return await body_of(Hello, limit, f"child {child.name!r}")(call)

    @router.post("/hello")
    def hello(child: Annotated[Node, Depends(caller)], told: Annotated[Hello, Depends(greeting)]) -> dict[str, Any]:
        wire = common_version(told.speaks, names=(f"child {child.name!r}", "the master"))
        machine = told.machine.model_dump(mode="json") if told.machine else {}
        tasks = [task.model_dump(mode="json") for task in told.tasks]
        ledger.set_node(child.name, boot=told.boot, machine=machine, tasks=tasks, speaks=told.speaks, seen=parts.clock.now())
        node = nodes.registered(ledger, child, parts.register)
        assert node.flower_id is not None
        refs = tuple(ref(one) for one in ledger.encoders() if not told.types or one.type in told.types)
        answer = Welcome(name=node.name, node_id=node.flower_id, flower=parts.flower, wire=wire, encoders=refs, version=__version__)
        return answer.told(wire)

    @router.post("/requests", status_code=201)
    def ask(child: Annotated[Node, Depends(caller)], request: Annotated[Request, Depends(request_body(limit))]) -> dict[str, Any]:
        if request.child != child.name:
            raise RefusedValue(Reason.SENDER, f"`child` should be {child.name!r}, found {request.child!r}.")
        return _ask(parts, request).told(common_version(child.speaks))

    @router.get("/requests/{job_id}")
    def asked(child: Annotated[Node, Depends(caller)], job_id: str) -> dict[str, Any]:
        job = ledger.job(job_id)
        return Asked(id=job.id, job=job.id, state=job.state).told(common_version(child.speaks))

    @router.get("/encoders/{name}/manifest")
    def manifest(child: Annotated[Node, Depends(caller)], name: str) -> dict[str, Any]:
        encoder = ledger.encoder(name)
        return {"digest": encoder.manifest, "files": files.manifest(encoder.manifest).model_dump(mode="json")["files"]}

    return router


def ref(encoder: Encoder) -> EncoderRef:
    """An encoder as messages name it."""
    return EncoderRef(name=encoder.name, type=encoder.type, manifest=encoder.manifest)


def request_body(limit: int) -> Callable[[Call], Awaitable[Request]]:
    """A dependency: the body as a Request in the wire version of its sender."""

    async def read(call: Call) -> Request:
        return Request.decode(await read_body(call, limit))

    return read


def _ask(parts: Parts, request: Request) -> Asked:
    """Start a job for a child, or let it join the one that is open: the ledger decides in one transaction."""
    ledger = parts.ledger
    encoder = _wanted(parts, request)
    noted = ledger.add_request(request.child, encoder=encoder.name, type=encoder.type, tasks=request.tasks)
    spec = parts.settings.job_on_request(encoder.name)
    job, new = ledger.start_job(encoder.name, spec, requested_by=request.child)
    with suppress(Conflict):  # the same request came twice at once, and the other was attached to a job that has ended since
        ledger.attach_request(noted.id, job.id)
    if new:
        parts.actions.wake(job.id)
    return Asked(id=job.id, job=job.id, state=job.state, new=new)


def _wanted(parts: Parts, request: Request) -> Encoder:
    """:raises NotFound, UsageError: no encoder fits the request, or several do."""
    if request.encoder is not None:
        encoder = parts.ledger.encoder(request.encoder)
        if request.type not in (None, encoder.type):
            raise UsageError(f"encoder {encoder.name!r} should be of type {request.type!r}, found {encoder.type!r}.")
        return encoder
    if request.type is None:
        raise UsageError("a request should name an encoder or a type, found neither.")
    fitting = parts.ledger.encoders_of_type(request.type)
    if not fitting:
        raise NotFound(f"an encoder of type {request.type!r} should exist, found none.", hint="Ask the admin to create one.")
    if len(fitting) > 1:
        names = ", ".join(encoder.name for encoder in fitting)
        raise UsageError(f"type {request.type!r} should have one encoder, found {names}.", hint="Name the one you want.")
    return fitting[0]
