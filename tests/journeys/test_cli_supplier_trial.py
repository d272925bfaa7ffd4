"""`heliograph supplier test`: one message through an account, and the output that an operator sees."""

from __future__ import annotations

from pathlib import Path

from heliograph.base.database.pool import Pool
from heliograph.simulators.smsc.simulator import Smsc, SmscOptions
from tests.journeys.test_cli import Cli, Done
from tests.processes import installation, until_true
from tests.suppliers.test_http_whole_way import SECRET, supply

TO = "+258841230000"
#: The receipt arrives at once, however slowly a busy machine processes it.
WAIT = ("--wait", "300")


def _of(environment: dict[str, str]) -> Cli:
    return Cli(**{name: value for name, value in environment.items() if name.startswith("HELIOGRAPH_")})


def _states(done: Done) -> list[str]:
    return [one["state"] for one in done.data["receipts"]]


async def test_a_message_goes_out_and_its_receipt_is_shown(database_url: str, pool: Pool, tmp_path: Path) -> None:
    async with supply("vonage", database_url, tmp_path, pool) as one:
        cli = _of(one.made.environment)
        done = await cli("supplier", "test", "http", "--to", TO, "--text", "Olá", "--from", "ACME", *WAIT, "--json")
        assert (done.data["verdict"], [found["state"] for found in done.data["receipts"]]) == (
            "accepted",
            ["delivered"],
        )
        assert done.data["ids"] == [found["id"] for found in done.data["receipts"]]
        (asked,) = [taken.submitted for taken in one.supplier.taken]
        assert (asked.to, asked.sender, asked.text) == (TO[1:], "ACME", "Olá")
        (request,), (answer,) = done.data["requests"], done.data["answers"]
        assert request["url"] == f"{one.supplier.base_url}/sms/json"
        assert "api_secret=%28hidden%29" in request["body"]
        assert (answer["status"], '"message-id"' in answer["body"]) == (200, True)
        # Neither the account's secret nor that in the address of its callbacks.
        token = one.supplier.options.callback.rpartition("/")[2]
        assert SECRET not in done.out + done.err
        assert "a+secret+of" not in done.out
        assert token not in done.out

        refused = await cli("supplier", "test", "http", "--to", "+258841230100")
        assert (refused.status, "refused" in refused.out) == (1, True)
        shown = await cli("supplier", "test", "http", "--json")
        assert (shown.data["verdict"], shown.data["answers"]) == (None, [])
        assert "12025550123" in shown.data["requests"][0]["body"]
        assert len(one.supplier.taken) == 1
        # It is nobody's message: no quota, no row, and three entries in the log.
        assert await pool.fetchval("SELECT count(*) FROM messages") == 0
        audited = await pool.fetch("SELECT after FROM audit_log WHERE action = 'supplier.tested' ORDER BY id")
        assert ["accepted" in row["after"] for row in audited] == [True, False, False]
        assert all(TO not in row["after"] for row in audited)


async def test_an_account_over_smpp_is_bound_and_tried(database_url: str) -> None:
    smsc = Smsc(SmscOptions(port=0, systems={"acme": "geheim"}))
    await smsc.start()
    try:
        cli = Cli(HELIOGRAPH_DATABASE_URL=database_url)
        add = ("supplier", "add", "smpp", "main", "--host", "127.0.0.1", "--no-tls", "--system-id", "acme")
        await cli(*add, "--port", str(smsc.port), "--password", "geheim")
        bound = await cli("supplier", "test", "main", "--json")
        assert (bound.data["answers"], bound.data["verdict"]) == ([{"bind": "accepted"}], None)
        sent = await cli("supplier", "test", "main", "--to", TO, "--from", "ACME", "--text", "a" * 200, "--json")
        assert sent.data["verdict"] == "accepted"
        assert [one["destination_addr"] for one in sent.data["requests"]] == [TO[1:]] * 2
        assert [one.get("segment") for one in sent.data["answers"]] == [None, 1, 2]
        assert "no worker is running" in sent.data["note"]
        tabbed = await cli("supplier", "test", "main", "--to", TO, "-o", "tsv")
        rows = [line.split("\t") for line in tabbed.out.splitlines()]
        assert {len(row) for row in rows} == {2}, tabbed.out
        assert ["verdict", "accepted"] in rows
        assert {"request", "answer"} <= {row[0] for row in rows}
        await cli("supplier", "set", "main", "--password", "wrong")
        wrong = await cli("supplier", "test", "main", "--to", TO)
        assert (wrong.status, "not bound" in wrong.out or "bind" in wrong.out) == (1, True)
        assert "wrong" not in wrong.out
        for arguments, words in (
            (("nobody",), "no supplier"),
            (("main", "--to", "841230000"), "--to"),
            (("main", "--to", TO, "--text", ""), "--text"),
            (("main", "--from", "a name that is too long"), "--from"),
        ):
            done = await cli("supplier", "test", *arguments)
            assert (done.status in (1, 2), words in done.err) == (True, True), done.err
    finally:
        await smsc.stop()


async def test_no_session_is_bound_that_the_account_may_not_allow(
    database_url: str, pool: Pool, tmp_path: Path
) -> None:
    async with installation(database_url, tmp_path) as made, made.working():

        async def is_bound() -> bool:
            return bool(await pool.fetchval("SELECT bool_and(bound) FROM supplier_sessions"))

        await until_true(is_bound)
        cli = _of(made.environment)
        full = await cli("supplier", "test", "main", "--to", TO)
        assert (full.status, "--extra-session" in full.err) == (1, True)
        done = await cli("supplier", "test", "main", "--to", TO, "--extra-session", *WAIT, "--json")
        assert (done.data["verdict"], _states(done)) == ("accepted", ["delivered"]), done.data
