"""The OpenAPI document and the server, checked by an independent tool: schemathesis, all checks, all phases, with and
without a key. `make test` generates the same requests each time; `make faults` (`HELIOGRAPH_FAULTS=long`) finds new
ones.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path
from uuid import UUID

import msgspec
import pytest

from heliograph.api.document import openapi
from heliograph.base.database.pool import Pool
from tests.house.project import ROOT
from tests.rules import whatsapp_factories

from .conftest import Api, Tenant, make_tenant, running

LONG = os.environ.get("HELIOGRAPH_FAULTS") == "long"
#: The least number of cases of the two tests; and the most that schemathesis makes of an operation in one phase.
#: Without a key nearly all of it is refused before anything else, so that the hundredth case says what the first did.
CASES, EXAMPLES = (50_000, 1_000) if LONG else (2_600, 4)
REFUSED_CASES, REFUSED_EXAMPLES = (CASES, EXAMPLES) if LONG else (1_500, 3)
CONFIG = Path(__file__).with_name("schemathesis.toml")
UNLIMITED = dict.fromkeys(("rate_sms_send", "rate_campaigns", "rate_mutations", "rate_reads", "rate_failures"), 10**9)

#: By contract, what a DELETE by path ends can still be read: it is canceled, revoked or disabled.
KEPT = ("--exclude-checks", "use_after_free")
#: A key that revokes itself is refused from then on, so that part has keys of its own.
PARTS = (
    ("--exclude-operation-id", "revokeApiKey"),
    ("--include-operation-id-regex", "ApiKey"),
)


@pytest.mark.lasts(50)
@pytest.mark.timeout(7200 if LONG else 1800)
async def test_with_a_key_the_server_does_what_its_document_says(database_url: str, pool: Pool, tmp_path: Path) -> None:
    async with running(database_url, **UNLIMITED) as api:
        cases = rounds = 0
        while cases < CASES:
            rounds += 1
            for part in PARTS:
                tenant = await make_tenant(pool, amount=10**9)
                await make_whatsapp(pool, tenant)
                # Both headers, spelled like this: a missing one would be made up, and two different ones are refused.
                key = ("-H", f"x-api-key: {tenant.secret}", "-H", f"Authorization: Bearer {tenant.secret}")
                cases += await judge(api, tmp_path, rounds, *part, *key, *KEPT)
    # It would mostly be refused before anything is checked.
    assert await pool.fetchval("SELECT count(*) FROM messages") > 4
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_messages WHERE client_reference IS NOT NULL") > 4


async def make_whatsapp(pool: Pool, tenant: Tenant) -> None:
    """An account whose number has the id in the document's example, and something to list."""
    number = UUID(openapi.EXAMPLES["sendWhatsAppMessage"].request["phoneNumberId"])
    made = await whatsapp_factories.made(pool, organization_id=tenant.id, balance=10**15)
    await pool.execute("UPDATE whatsapp_numbers SET id = $2 WHERE organization_id = $1", tenant.id, number)
    made = msgspec.structs.replace(made, number_id=number)
    await whatsapp_factories.conversation(pool, made)
    await whatsapp_factories.message(pool, made, queued=False)
    await whatsapp_factories.campaign(pool, made)


@pytest.mark.lasts(50)
@pytest.mark.timeout(7200 if LONG else 1800)
async def test_without_a_key_the_server_does_what_its_document_says(database_url: str, tmp_path: Path) -> None:
    async with running(database_url, **UNLIMITED) as api:
        cases = rounds = 0
        while cases < REFUSED_CASES:
            rounds += 1
            cases += await judge(api, tmp_path, rounds, examples=REFUSED_EXAMPLES)


async def judge(api: Api, place: Path, number: int, *options: str, examples: int = EXAMPLES) -> int:
    """How many cases were tried. None may fail."""
    seed = int.from_bytes(os.urandom(4), "big") if LONG else number
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.api.run_schemathesis"),
        *("--config-file", CONFIG, "run", api.base_url + "/v1/openapi.json", "--seed", str(seed)),
        *("--checks", "all", "--max-examples", str(examples), "--no-color", "--warnings", "off"),
        *("--generation-database", "none", *options),
        cwd=place,
        # Its Unicode tables take seconds to compute, and are cached for the next run.
        env=os.environ | {"HYPOTHESIS_STORAGE_DIRECTORY": str(ROOT / ".hypothesis")},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    text = output.decode()
    assert process.returncode == 0, text
    # Each phase had something to do: it finds links between operations by itself.
    for phase in ("Examples", "Coverage", "Fuzzing", "Stateful"):
        assert f"{phase} (in" in text, text
    found = re.search(r"([\d,]+) generated", text)
    assert found, text
    return int(found[1].replace(",", ""))
