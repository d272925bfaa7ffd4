"""`heliograph route` as an operator uses it, beside a worker and a supplier."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from heliograph.base.database.pool import Pool
from tests.journeys.test_cli import Cli
from tests.load import Client
from tests.processes import SECRET_KEY, installation, until_true
from tests.rules.factories import SUM_DAYS, status_of

TO = "+258841230001"


async def test_a_route_decides_is_explained_and_is_taken_back(pool: Pool, database_url: str, tmp_path: Path) -> None:
    cli = Cli(HELIOGRAPH_DATABASE_URL=database_url, HELIOGRAPH_SECRET_KEY=SECRET_KEY)
    async with (
        installation(database_url, tmp_path) as made,
        made.serving(),
        made.working(),
        Client(made.base_url, made.key) as client,
    ):
        (name,) = [one["name"] for one in (await cli("supplier", "list", "--json")).data]
        other = ("--host", "127.0.0.1", "--port", "9", "--no-tls", "--system-id", "x", "--password", "x")
        cheap = await cli("supplier", "add", "smpp", "cheap", "--priority", "1", *other)
        assert cheap.status == 0, cheap.err
        without = (await cli("route", "explain", TO, "--json")).data
        assert without["route"] is None
        assert without["decision"].startswith("no route: the suppliers' own prefixes, priorities and weights")

        added = await cli(
            *("route", "add", "codes", "--prefix", "258", "--class", "otp", "--org", "acme", "--json"),
            *("--supplier", "cheap", "--supplier", name, "--note", "while cheap is tried"),
        )
        assert added.status == 0, added.err
        assert (added.data["destination"], added.data["organization"], added.data["class"]) == ("258", "Acme", "otp")
        assert added.data["suppliers"] == ["cheap:10:1", f"{name}:20:1"]
        for taken in ("codes", "Codes", "codes "):
            again = await cli("route", "add", taken, "--supplier", name)
            assert (again.status, "already a route" in again.err) == (1, True), again.err
        # The second has more digits than Python reads.
        for priority, said in (("9" * 20, "a priority is 0 to 1000"), ("9" * 5000, "is not NAME[:PRIORITY[:WEIGHT]]")):
            wrong = await cli("route", "add", "long", "--supplier", f"{name}:{priority}")
            assert (wrong.status, said in wrong.err) == (2, True), wrong.err
        # They are found in the same way.
        named = await cli("route", "set", "CODES", "--supplier", "Cheap", "--supplier", name, "--dry-run", "--json")
        assert named.status == 0, named.err
        assert (await cli("supplier", "show", "CHEAP", "--json")).data["name"] == "cheap"

        says = (await cli("route", "explain", TO, "--class", "otp", "--json")).data
        assert says["decision"].startswith(
            f"prefix 258, organization Acme, class otp (route codes): {name}; cheap skip"
        )
        assert (says["route"], says["suppliers"]) == ("codes", [name])
        assert says["network"] == "643-04 (by its range)"
        assert (await cli("route", "explain", TO, "--json")).data["route"] is None

        changed = await cli("route", "set", "codes", "--class", "any", "--country", "MZ", "--supplier", name, "--json")
        assert changed.data | {"prefix": None, "country": "MZ", "class": None, "note": "while cheap is tried"} == (
            changed.data
        )
        id = await client.send(TO)
        await until_true(lambda: _is(pool, id, "delivered"))
        # Yesterday's traffic: the dry run reports what it would move, and changes no table.
        organization_id = await pool.fetchval("SELECT id FROM organizations WHERE name = 'Acme'")
        await pool.executemany(
            "INSERT INTO traffic VALUES ($1, date_trunc('day', now(), 'UTC') - interval '3 hours', 'sms', 'live', $2,"
            " 'HELIOGRAPH', $3, 'delivered', $4, $4, '{}', '{}')",
            [(organization_id, "MZ", organization_id, 30), (organization_id, "ZA", organization_id, 70)],
        )
        await pool.execute(SUM_DAYS)
        tried = (await cli("route", "pause", "codes", "--dry-run", "--json")).data
        assert (tried["messages"], tried["least"], tried["most"]) == (100, 0.3, 0.3)
        assert tried["dry_run"] == "these rules move 30% of yesterday's traffic (100 messages)"
        part = ("--prefix", "2588", "--supplier", "cheap", "--class", "otp", "--dry-run", "--json")
        some = (await cli("route", "set", "codes", *part)).data
        assert (some["least"], some["most"]) == (0.3, 0.3)
        narrow = ("--prefix", "2779", "--supplier", name, "--dry-run", "--json")
        maybe = (await cli("route", "add", "narrow", *narrow)).data
        assert (maybe["least"], maybe["most"]) == (0.0, 0.7)
        assert [one["state"] for one in (await cli("route", "list", "--json")).data] == ["active"]
        assert (await cli("route", "pause", "codes", "--json")).data["state"] == "paused"
        # What changes nothing is not recorded.
        recorded = (await cli("route", "history", "--json")).data
        for nothing in (("pause", "codes"), ("set", "codes"), ("set", "codes", "--country", "mz")):
            assert (await cli("route", *nothing)).status == 0
        assert (await cli("route", "history", "--json")).data == recorded
        assert (await cli("route", "explain", TO, "--json")).data["route"] is None
        assert (await cli("route", "resume", "codes", "--json")).data["state"] == "active"
        listed = await cli("route", "list")
        assert ("codes" in listed.out, "MZ" in listed.out) == (True, True)
        assert (await cli("route", "remove", "codes", "--yes", "--json")).data["state"] == "removed"
        assert (await cli("route", "list", "--json")).data == []
        acts = [one["action"] for one in (await cli("audit", "list", "--json")).data]
        assert [one for one in reversed(acts) if one.startswith("route.")] == [
            *("route.added", "route.changed", "route.changed", "route.changed", "route.removed")
        ]
        # The change is described in words, and undone by its id.
        told = (await cli("route", "history", "--json")).data
        assert [one["action"] for one in told] == ["removed", "changed", "changed", "changed", "added"]
        assert "state: active → paused" in told[2]["changes"], told[2]
        assert f"choices: cheap:10:1, {name}:20:1 → {name}:10:1" in told[3]["changes"], told[3]
        assert "state: active → paused" in (await cli("route", "history", "--limit", "3")).out
        tried = (await cli("route", "undo", told[0]["id"], "--dry-run", "--json")).data
        assert "dry_run" in tried
        assert (await cli("route", "list", "--json")).data == []
        back = (await cli("route", "undo", told[0]["id"], "--json")).data
        assert (back["name"], back["country"], back["suppliers"]) == ("codes", "MZ", [f"{name}:10:1"])
        gone = await cli("route", "undo", told[4]["id"])
        assert (gone.status, "cannot be undone" in gone.err) == (1, True), gone.err
    for network, is_warned in (("643-04", False), ("338-50", True)):
        tried = await cli("route", "add", "x", "--supplier", name, "--network", network, "--dry-run")
        assert (tried.status, "cannot be checked" in tried.err) == (0, is_warned), tried.err
    assert (await cli("supplier", "set", "cheap", "prefixes=351")).status == 0
    for country, is_skipped in (("MZ", True), ("PT", False)):
        tried = await cli("route", "add", "x", "--supplier", "cheap", "--country", country, "--dry-run")
        assert (tried.status, "the route decides nothing" in tried.err) == (0, is_skipped), tried.err
    for wrong, word in (
        (("add", "x", "--supplier", "nobody"), "no supplier 'nobody'"),
        (("add", "x"), "needs a supplier"),
        (("add", "x", "--supplier", name, "--prefix", "+258"), "digits without +"),
        (("add", "x", "--supplier", name, "--prefix", "258", "--country", "MZ"), "one destination"),
        (("add", "x", "--supplier", name, "--network", "64304"), "MCC-MNC"),
        (("explain", "+258841234567", "--network", "643-4"), "did you mean 643-04?"),
        (("add", "x", "--supplier", name, "--country", "XX"), "not a country"),
        (("add", "x", "--supplier", f"{name}:1:0"), "a weight is"),
        (("add", "x", "--supplier", f"{name}:high"), "NAME[:PRIORITY[:WEIGHT]]"),
        (("pause", "x"), "no such route"),
        (("explain", "84"), "country code"),
        (("explain", "841234567"), "+ and country code"),
    ):
        refused = await cli("route", *wrong)
        assert (refused.status in (1, 2), word in " ".join(refused.err.split())) == (True, True), (wrong, refused.err)


async def _is(pool: Pool, id: str, status: str) -> bool:
    return await status_of(pool, UUID(id)) == status
