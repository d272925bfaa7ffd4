"""The OpenAPI document against the server, by a judge that is not ours: schemathesis, all checks, with and without key.

Long form: `HELIOGRAPH_FAULTS=long`.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from heliograph.base.db import Pool

from .conftest import make_tenant, running

EXAMPLES = 20_000 if os.environ.get("HELIOGRAPH_FAULTS") == "long" else 25
CONFIG = Path(__file__).with_name("schemathesis.toml")
UNLIMITED = dict.fromkeys(("rate_sms_send", "rate_campaigns", "rate_mutations", "rate_reads", "rate_failures"), 10**9)


@pytest.mark.timeout(7200 if EXAMPLES > 1000 else 120)
@pytest.mark.parametrize("keyed", [False, True])
async def test_the_server_does_what_its_document_says(
    database_url: str, pool: Pool, tmp_path: Path, keyed: bool
) -> None:
    tenant = await make_tenant(pool, amount=10**9)
    async with running(database_url, **UNLIMITED) as api:
        process = await asyncio.create_subprocess_exec(
            Path(sys.executable).with_name("schemathesis"),
            *("--config-file", CONFIG, "run", api.base_url + "/v1/openapi.json"),
            *("--checks", "all", "--max-examples", str(EXAMPLES), "--no-color", "--warnings", "off"),
            *(["-H", f"x-api-key: {tenant.secret}"] if keyed else []),
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
