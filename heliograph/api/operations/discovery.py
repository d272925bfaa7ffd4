"""Discovery: index, health and the OpenAPI document. None of them needs a key."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from heliograph.api.door.health import Checks
from heliograph.api.door.operation import Call, operation
from heliograph.api.door.static import Answer
from heliograph.api.shapes.fields import Success
from heliograph.base import clock
from heliograph.base.errors import Unavailable


class ApiIndex(msgspec.Struct):
    """Where everything is."""

    success: Success
    name: Annotated[Literal["Heliograph"], Meta(description="Name of the service.")]
    version: Annotated[Literal["v1"], Meta(description="Version of the API.")]
    docs: Annotated[str, Meta(description="Address of the page for people.")]
    openapi: Annotated[str, Meta(description="Address of the OpenAPI document.")]
    health: Annotated[str, Meta(description="Address of the health snapshot.")]


class Health(msgspec.Struct):
    """A snapshot of how the service is."""

    success: Success
    status: Annotated[
        Literal["ok", "degraded"],
        Meta(description="`degraded`: a check is not `ok`. Requests are taken."),
    ]
    version: Annotated[Literal["v1"], Meta(description="Version of the API.")]
    time: Annotated[str, Meta(description="When this was said.", extra_json_schema={"format": "date-time"})]
    checks: Annotated[Checks, Meta(description="Each part.")]


class OpenApiDocument(msgspec.Struct):
    """An OpenAPI 3.1 document."""

    openapi: Annotated[str, Meta(description="Version of OpenAPI.")]
    info: Annotated[dict[str, Any], Meta(description="Title, version and summary.")]
    paths: Annotated[dict[str, Any], Meta(description="Operations by path and method.")]


async def get_api_index(call: Call) -> ApiIndex:
    """Version and addresses."""
    return index()


def index() -> ApiIndex:
    """Where everything is."""
    return ApiIndex(True, "Heliograph", "v1", docs="/docs", openapi="/v1/openapi.json", health="/v1/health")


@operation(is_probe=True)
async def get_health(call: Call) -> Health:
    """Health snapshot."""
    if call.services.is_draining():
        raise Unavailable
    checks = await call.services.health.read()
    return Health(True, "ok" if checks.is_ok else "degraded", "v1", clock.iso(clock.now()), checks)


async def get_open_api_document(call: Call) -> Annotated[Answer, OpenApiDocument]:
    """This document."""
    return await call.services.document.answer(call.headers)
