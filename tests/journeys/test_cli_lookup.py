"""`heliograph lookup`, with a worker that looks numbers up before it sends to them."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from heliograph.base.database.pool import Pool
from heliograph.simulators.aggregators.simulator import Aggregator, Options
from tests.journeys.test_cli import Cli
from tests.load import Client
from tests.processes import SECRET_KEY, installation, until_true
from tests.rules.factories import status_of

#: In Vodacom's range; Movitel has it.
PORTED = "+258841230001"


async def test_a_number_is_looked_up_before_it_is_sent_to(pool: Pool, database_url: str, tmp_path: Path) -> None:
    cli = Cli(HELIOGRAPH_DATABASE_URL=database_url, HELIOGRAPH_SECRET_KEY=SECRET_KEY)
    supplier = Aggregator(Options(profile="infobip", secret="its key", networks={PORTED[1:]: "64303"}))
    await supplier.start()
    try:
        async with installation(database_url, tmp_path) as made:
            (name,) = [one["name"] for one in (await cli("supplier", "list", "--json")).data]
            other = ("--host", "127.0.0.1", "--port", "9", "--no-tls", "--system-id", "x", "--password", "x")
            assert (await cli("supplier", "add", "smpp", "dead", *other)).status == 0
            for route in (("movitel", "--network", "643-03", "--supplier", name), ("rest", "--supplier", "dead")):
                assert (await cli("route", "add", *route)).status == 0
            settings = (f"base_url={supplier.base_url}", "price=0.003", "countries=mz", "wait_seconds=10")
            missing = await cli("lookup", "add", "mnp", "infobip", *settings, "--password", "its key")
            assert (missing.status, "currency" in missing.err) == (1, True), missing.err
            unknown = await cli("lookup", "add", "mnp", "infobip", "colour=red", "--password", "its key")
            assert (unknown.status, "colour" in unknown.err) == (2, True), unknown.err
            given = (*settings, "currency=EUR", "--password", "its key", "--json")
            added = await cli("lookup", "add", "mnp", "infobip", *given)
            assert added.status == 0, added.err
            assert (added.data["worth_it"], added.data["countries"], "its key" in added.out) == (True, "MZ", False)
            async with made.serving(), made.working(), Client(made.base_url, made.key) as client:
                id = await client.send(PORTED)
                await until_true(lambda: _is(pool, id, "delivered"))
        assert supplier.looked_up == [PORTED[1:]]
        (shown,) = (await cli("lookup", "list", "--json")).data
        assert (shown["this_month"], shown["found_this_month"], shown["cost_this_month"]) == (1, 1, "0.003000 EUR")
        explained = (await cli("route", "explain", PORTED, "--json")).data
        assert (explained["network"], explained["route"]) == ("643-03 (known from a look-up)", "movitel")
        tried = (await cli("lookup", "try", "MNP", PORTED, "--json")).data
        assert tried == {"number": PORTED, "network": "643-03", "lookup": "mnp"}
        changed = (await cli("lookup", "set", "mnp", "reuses=1", "countries=", "--json")).data
        assert (changed["worth_it"], changed["countries"]) == (False, "")
        assert (await cli("lookup", "pause", "Mnp", "--json")).data["state"] == "paused"
        assert (await cli("lookup", "resume", "mnp", "--json")).data["state"] == "active"
        listed = {one["setting"] for one in (await cli("lookup", "options", "infobip", "--json")).data}
        assert {"price", "reuses", "wait_seconds"} <= listed
        assert (await cli("lookup", "remove", "mnp", "--yes")).status == 0
        assert (await cli("lookup", "list", "--json")).data == []
        refused = await cli("lookup", "try", "MNP", PORTED)
        assert (refused.status, "no such look-up supplier" in refused.err) == (1, True), refused.err
    finally:
        await supplier.stop()


async def _is(pool: Pool, id: UUID, status: str) -> bool:
    return await status_of(pool, id) == status
