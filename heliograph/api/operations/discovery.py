"""Discovery: index, health and the OpenAPI document. None of them needs a key."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from heliograph.api.door.health import Checks
from heliograph.api.door.operation import Call, operation
from heliograph.api.shapes.fields import Success
from heliograph.base.database import clock
from heliograph.base.errors import Unavailable
from heliograph.http.static import Answer


class ApiIndex(msgspec.Struct):
    """The service index."""

    success: Success
    name: Annotated[Literal["Heliograph"], Meta(description="Name of the service.")]
    version: Annotated[Literal["v1"], Meta(description="Version of the API.")]
    docs: Annotated[str, Meta(description="Path of the interactive documentation.")]
    openapi: Annotated[str, Meta(description="Path of the OpenAPI document.")]
    health: Annotated[str, Meta(description="Path of the health snapshot.")]


class Health(msgspec.Struct):
    """A snapshot of the service's health."""

    success: Success
    status: Annotated[
        Literal["ok", "degraded"],
        Meta(description="`degraded` if a check other than `whatsapp` is not `ok`. Requests are served either way."),
    ]
    version: Annotated[Literal["v1"], Meta(description="Version of the API.")]
    time: Annotated[str, Meta(description="When the snapshot was taken.", extra_json_schema={"format": "date-time"})]
    checks: Annotated[Checks, Meta(description="Result of each check.")]


class OpenApiDocument(msgspec.Struct):
    """An OpenAPI 3.1 document."""

    openapi: Annotated[str, Meta(description="Version of OpenAPI.")]
    info: Annotated[dict[str, Any], Meta(description="Title, version and summary.")]
    paths: Annotated[dict[str, Any], Meta(description="Operations by path and method.")]


async def get_api_index(call: Call) -> ApiIndex:
    """Get the service index."""
    return index()


def index() -> ApiIndex:
    """The service index."""
    return ApiIndex(True, "Heliograph", "v1", docs="/docs", openapi="/v1/openapi.json", health="/v1/health")


@operation(is_probe=True)
async def get_health(call: Call) -> Health:
    """Get a health snapshot.

    Returns 200 even when degraded, and 503 once this process is shutting down, so that load balancers send traffic
    elsewhere.
    """
    if call.services.is_draining():
        raise Unavailable
    checks = await call.services.health.read()
    return Health(True, "ok" if checks.is_ok else "degraded", "v1", clock.iso(clock.now()), checks)


async def get_open_api_document(call: Call) -> Annotated[Answer, OpenApiDocument]:
    """Get this document."""
    return await call.services.document.answer(call.headers)
