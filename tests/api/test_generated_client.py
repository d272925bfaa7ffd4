"""A client that a public generator makes of the OpenAPI document, against the server. Neither is told of the other."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec
import pytest

from heliograph.base.db import Pool

from .conftest import make_tenant, running

PEERS = Path(__file__).resolve().parents[2] / ".peers" / "bin"
SCRIPT = Path(__file__).parent / "peers" / "use_client.py"


async def run(*command: str | Path, place: Path) -> bytes:
    """What it prints. It must end well and find no fault."""
    assert (PEERS / "python").exists(), "`make .peers/stamp` makes the environment of the generator"
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=place,
        env=os.environ | {"PATH": f"{PEERS}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(place)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    assert process.returncode == 0, (out + err).decode()
    return out


@pytest.mark.timeout(150)
async def test_a_generated_client_does_everything(database_url: str, pool: Pool, tmp_path: Path) -> None:
    tenant = await make_tenant(pool)
    async with running(database_url) as api:
        async with api.session.get(api.base_url + "/v1/openapi.json") as answer:
            (tmp_path / "openapi.json").write_bytes(await answer.read())
        generate = ("generate", "--path", "openapi.json", "--meta", "none", "--output-path", "heliograph_client")
        # A warning fails it: an operation or a shape that it cannot read would be left out.
        await run(PEERS / "openapi-python-client", *generate, "--fail-on-warning", place=tmp_path)
        out = await run(PEERS / "python", SCRIPT, api.base_url, tenant.secret, place=tmp_path)
    assert msgspec.json.decode(out) == {
        "index": "Heliograph",
        "health": "v1",
        "send": ["accepted", 1, 999],
        "replayed": ["replayed", True],
        "conflict": [409, "idempotency_conflict"],
        "preview": 1,
        "pages": [2, 2, 1],
        "references": ["order-1", "order-2", "order-3", "order-4", "order-5"],
        "read": ["Hello", "+258841234567", None, "accepted"],
        "canceled": "canceled",
        "contacts": [["Ana Silva", ["vip"]]],
        "campaign": 0,
        "campaign_end": "canceled",
        "deleted": True,
        "keys": ["shop", "test"],
        "scope": [403, "api_key_scope_required"],
        "revoked": "revoked",
        "senders": [["HELIOGRAPH", "approved", True], ["ACME", "pending", False]],
        "secret": True,
        "attempts": [],
        "disabled": "disabled",
        "quota": 1000,
        "ledger": ["grant", "refund", "usage"],
        "events": True,
        "no key": [401, "unauthorized"],
    }
