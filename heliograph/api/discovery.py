"""Discovery: index, health and the OpenAPI document. None of them needs a key."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from heliograph.api.operation import Call
from heliograph.api.vitals import Checks
from heliograph.base import clock
from heliograph.base.errors import Unavailable


class Index(msgspec.Struct):
    """Where everything is."""

    success: Literal[True]
    name: Literal["Heliograph"]
    version: Literal["v1"]
    docs: str
    openapi: str
    health: str


class Health(msgspec.Struct):
    """A snapshot of how the service is."""

    success: Literal[True]
    status: Literal["ok", "degraded"]
    version: Literal["v1"]
    time: Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
    checks: Checks


class Document(msgspec.Struct):
    """An OpenAPI 3.1 document."""

    openapi: str
    info: dict[str, Any]
    paths: dict[str, Any]


async def get_index(call: Call) -> Index:
    """GET /"""
    return Index(True, "Heliograph", "v1", docs="/docs", openapi="/v1/openapi.json", health="/v1/health")


async def get_health(call: Call) -> Health:
    """GET /health. 200 also when degraded; 503 once this process is going down, so that traffic goes elsewhere."""
    if call.services.is_draining():
        raise Unavailable
    checks = await call.services.vitals.read()
    is_ok = checks == Checks("ok", "ok", "ok")
    return Health(True, "ok" if is_ok else "degraded", "v1", clock.iso(clock.now()), checks)


async def get_openapi_document(call: Call) -> bytes:
    """GET /openapi.json"""
    return call.services.document
