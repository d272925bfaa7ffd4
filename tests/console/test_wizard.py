"""The wizard: a supplier is added step by step with a simulated SMSC, and a button fixes its ids."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest

from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.base.process.settings import Settings
from heliograph.console.suppliers import wizard
from heliograph.routes import rules
from heliograph.routes.lookup import Choice, Route
from heliograph.simulators.smsc.simulator import Smsc, SmscOptions
from heliograph.sms.dispatch import routing, suppliers
from heliograph.sms.management import drafts, following, long_messages, trying
from heliograph.sms.management.drafts import Trial
from heliograph.sms.management.following import Followed, TrialReceipt
from heliograph.suppliers import probing
from tests.api.conftest import Tenant
from tests.meanwhile import after, before, in_this_loop

from .conftest import Browser, Page, yesterday

PASSWORD = "geheim!"


@pytest.fixture
async def smsc() -> AsyncIterator[Smsc]:
    """It writes ids in hex in its responses, and in decimal in receipts."""
    made = Smsc(SmscOptions(port=0, systems={"acme": PASSWORD}, resp_base="hex", dlr_base="dec", form="text"))
    await made.start()
    yield made
    await made.stop()


async def begin_draft(root: Browser, smsc: Smsc, secret: str = PASSWORD) -> tuple[str, Page]:
    """(path of the draft, page of its test)"""
    page = await root.submit(
        await root.get("/console/suppliers/new"), "/console/suppliers/new", name="main", kind="smpp"
    )
    path = page.path.removesuffix("/connection")
    typed = {"option.host": "127.0.0.1", "option.port": str(smsc.port), "option.system_id": "acme"}
    page = await root.submit(page, f"{path}/connection", **typed, **{"option.tls": "false"}, secret=secret)
    assert page.path == f"{path}/test", page.words
    return path, page


async def until(root: Browser, path: str, *said: str) -> Page:
    """Its page, once it contains one of these texts."""
    while True:
        page = await root.get(path)
        if any(one in page.words for one in said):
            return page
        await asyncio.sleep(0.05)


async def test_what_was_tested_of_another_connection_is_not_said_of_this_one(
    pool: Pool, root: Browser, smsc: Smsc
) -> None:
    path, page = await begin_draft(root, smsc)
    page = await root.submit(page, f"{path}/test")
    assert "Sign in (bind)" in page.words
    # Opened, and left unchanged: it has been tested.
    page = await root.submit(await root.get(f"{path}/connection"), f"{path}/connection")
    assert "Sign in (bind)" in page.words
    for changed in ({"secret": "another"}, {"option.host": "127.0.0.2"}):
        page = await root.submit(await root.get(f"{path}/connection"), f"{path}/connection", **changed)
        assert "It has not been tried yet." in page.words, changed
        page = await root.submit(page, f"{path}/test")
        assert "It has not been tried yet." not in page.words


async def test_a_supplier_is_added_and_its_ids_are_mended(
    pool: Pool, root: Browser, settings: Settings, smsc: Smsc
) -> None:
    async with pool.acquire() as conn:
        toy = await suppliers.add(
            conn, suppliers.seal_key(settings), name="toy", kind="smpp", settings={}, secret="x", simulated=True
        )
    path, page = await begin_draft(root, smsc)
    page = await root.submit(page, f"{path}/test")
    for step in ("Resolve the address", "Connect", "Sign in (bind)", "enquire_link", "Sign out (unbind)"):
        assert step in page.words, step
    assert "wrong" not in page.words
    page = await root.submit(
        await root.get(f"{path}/limits"), f"{path}/limits", sessions="2", **{"option.window": "25"}
    )
    assert page.path == f"{path}/dialect", page.words
    page = await root.submit(page, f"{path}/dialect")
    assert page.path == f"{path}/message", page.words
    assert "data-live" not in page.text, "nothing is followed before it was sent"
    page = await root.submit(page, f"{path}/message", to="+258 84 123 4567")
    page = await until(root, f"{path}/message", "the same number, written in another base")
    assert "names another id" in page.words
    assert "+258841234567" not in page.text
    # Coming back continues where it was.
    assert (await root.get("/console/suppliers")).words.count("Not finished") == 1
    assert (await root.get(path)).path == f"{path}/message"
    page = await root.submit(page, f"{path}/cure")
    assert "Saved: answer and receipt" in page.words
    assert "names the same id" in page.words
    async with pool.acquire() as conn:
        assert [one.name for one in await routing.load(conn)] == ["toy"], "a draft carries nothing"
    page = await root.submit(await root.get(f"{path}/place"), f"{path}/place", priority="5", pause_simulators="yes")
    assert "main is added" in page.words
    async with pool.acquire() as conn:
        found = {one.name: one for one in await routing.load(conn)}
        assert await drafts.list_all(conn) == []
    made = found["main"]
    # Back, to a step of what has become a supplier, leads to it.
    for step in ("", "/connection", "/place"):
        page = await root.get(f"{path}{step}")
        assert (page.status, page.path) == (200, f"/console/suppliers/{made.id}"), step
    assert found["toy"].state == "paused"
    assert found["toy"].id == toy
    assert (made.sessions, made.priority, made.state, made.simulated) == (2, 5, "active", False)
    assert made.settings | {"resp_id_base": "hex"} == made.settings
    assert made.settings["window"] == 25
    assert suppliers.open_secret(suppliers.seal_key(settings), made) == PASSWORD
    # With the button's setting, the next message's receipt has its id.
    account = following.Account(made.id, made.settings, PASSWORD, "")

    async def told(_: following.Followed) -> None:
        """Nobody watches."""

    followed = await following.follow("smpp", account, following.submission("+258841234567", "x", "ACME"), told)
    assert (followed.cure, [one.fits for one in followed.receipts]) == ({}, [True])
    actions = [row["action"] for row in await pool.fetch("SELECT action FROM audit_log ORDER BY id")]
    assert {"supplier.tested", "supplier.added", "supplier.state_changed"} <= set(actions)


async def test_before_it_carries_it_is_said_that_it_was_not_reached(
    pool: Pool, root: Browser, smsc: Smsc, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, page = await begin_draft(root, smsc)
    untried, failed = "It has not been tried yet.", "Its test failed: its messages wait"
    assert untried in (await root.get(f"{path}/place")).words
    await root.submit(page, f"{path}/test")
    place = (await root.get(f"{path}/place")).words
    assert untried not in place
    assert failed not in place
    page = await root.submit(await root.get(f"{path}/connection"), f"{path}/connection", secret="wrong")
    await root.submit(page, f"{path}/test")
    place = (await root.get(f"{path}/place")).words
    assert failed in place
    assert "the password is wrong: enter the one that the supplier gave you: ESME_RINVPASWD (0x0000000E)" in place
    # Nor is an error of this machine all that is shown.
    found, errors = socket.getaddrinfo, {"nowhere.invalid": socket.EAI_NONAME, "later.invalid": socket.EAI_AGAIN}

    def getaddrinfo(host: Any, *given: Any, **options: Any) -> Any:
        if host in errors:
            raise socket.gaierror(errors[host], "nobody is asked")
        return found(host, *given, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    for typed, what in (
        ({"option.tls": "true"}, "the server does not speak TLS: check the port, or choose a connection without TLS"),
        ({"option.host": "nowhere.invalid"}, "there is no such host: check its name, and this machine's DNS"),
        (
            {"option.host": "later.invalid"},
            "its name cannot be resolved now: check this machine's DNS, and try again",
        ),
    ):
        page = await root.submit(await root.get(f"{path}/connection"), f"{path}/connection", **typed)
        assert what in (await root.submit(page, f"{path}/test")).words, what


async def test_a_new_supplier_is_added_to_the_routes_that_are_ticked(
    pool: Pool, tenant: Tenant, root: Browser, settings: Settings, smsc: Smsc
) -> None:
    async with pool.acquire() as conn:
        key = suppliers.seal_key(settings)
        old = await suppliers.add(conn, key, name="old", kind="smpp", settings={}, secret="x")
        routes = [
            await rules.add(conn, Route(id=uuid7(), name=name, country=country, choices=(Choice(old),)), note="kept")
            for name, country in (("moz", "MZ"), ("por", "PT"))
        ]
    path, _ = await begin_draft(root, smsc)
    page = await root.get(f"{path}/place")
    assert "Where a route decides, only its own suppliers carry messages." in page.words
    assert "it carries messages from now on" not in page.words
    # The effects are shown first, and nothing is created.
    chosen = {"priority": "5", "weight": "3", f"route-{routes[0].id}": "yes"}
    for country, count in (("MZ", 300), ("PT", 100)):
        await yesterday(pool, tenant, country, count)
    page = await root.submit(page, f"{path}/place", **chosen)
    assert "It moves 75 % of yesterday's 400 messages." in page.words
    assert "300 from old to main" in page.words
    assert await pool.fetchval("SELECT count(*) FROM suppliers") == 1
    again = await root.submit(page, f"{path}/place", do="again")
    typed = again.form(f"{path}/place")
    assert (typed["priority"], typed["weight"]) == ("5", "3")
    assert [f'name="route-{one.id}" value="yes" checked' in again.text for one in routes] == [True, False]
    page = await root.submit(page, f"{path}/place", do="save")
    assert "Added to these routes: moz." in page.words
    async with pool.acquire() as conn:
        moz, por = [await rules.find(conn, route=name) for name in ("moz", "por")]
        made = next(one for one in await routing.load(conn) if one.name == "main")
    assert {(one.supplier_id, one.priority, one.weight) for one in moz.route.choices} == {
        (old, 10, 1),
        (made.id, 5, 3),
    }
    assert (moz.note, [one.supplier_id for one in por.route.choices]) == ("kept", [old])
    told = await pool.fetchval("SELECT who FROM audit_log WHERE action = 'route.changed'")
    assert told == "operator"


async def test_a_long_message_is_followed_to_the_receipts_of_all_parts_and_joined_in_another_way(
    pool: Pool, root: Browser, smsc: Smsc
) -> None:
    smsc.configure(resp_base="dec")
    path, page = await begin_draft(root, smsc)
    page = await root.get(f"{path}/long")
    assert page.status == 200, page.words
    wrong = await root.submit(page, f"{path}/long", to="nobody")
    assert wrong.status == 422
    page = await root.submit(wrong, f"{path}/long", to="+258 84 123 4567", sender="ACME")
    assert page.path == f"{path}/long", page.words
    page = await until(root, f"{path}/long", "Each of its 3 parts has a receipt.")
    assert page.words.count("names the same id") == 3
    assert "parts=" not in page.text
    assert "+258841234567" not in page.text
    # It did not show a short message
    assert "names the same id" not in (await root.get(f"{path}/message")).words
    assert (await root.get(path)).path == f"{path}/long"
    page = await root.submit(page, f"{path}/long/arrived", arrived="joined")
    assert "Its parts are joined, by udh8." in page.words
    page = await root.submit(page, f"{path}/long/arrived", arrived="apart")
    assert "not joined by udh8" in page.words
    page = await root.submit(page, f"{path}/long/joining")
    assert "Send the message again" in page.words
    assert "What it showed" not in page.words, "it went by another setting"
    async with pool.acquire() as conn:
        (draft,) = await drafts.list_all(conn)
    assert draft.settings["long_messages"] == "sar"


async def test_the_receipts_that_come_decide_once_the_button_is_pressed(pool: Pool, root: Browser, smsc: Smsc) -> None:
    path, _ = await begin_draft(root, smsc)
    id = UUID(path.rpartition("/")[2])
    heard = (TrialReceipt(("c",), "delivered", "", True),)
    found = Followed(phase="done", verdict="accepted", ids=("a", "b", "c"), parts=3, receipts=heard)
    async with pool.acquire() as conn:
        at = await drafts.ends(conn, 60.0)
        await drafts.start_trial(conn, id, Trial("…4567", at, found, True))
    page = await root.get(f"{path}/long")
    assert "Only the last of its 3 parts has a receipt." in page.words
    page = await root.submit(page, f"{path}/long/parts")
    assert "the receipts that arrive decide" in page.words
    assert "parts=" not in page.text
    async with pool.acquire() as conn:
        assert (await drafts.get(conn, id)).place["parts"] == "last"
    page = await root.submit(await root.get(f"{path}/place"), f"{path}/place", priority="10")
    async with pool.acquire() as conn:
        (made,) = await routing.load(conn)
    assert made.parts == "last"


@pytest.mark.parametrize(
    ("options", "settings", "seen", "parts"),
    [
        ({}, {}, "each", ""),
        ({"parts": "first"}, {}, "first", "first"),
        ({"parts": "last"}, {}, "last", "last"),
        ({"parts": "summary"}, {}, "summary", ""),
        ({}, {"long_messages": "sar"}, "each", ""),
        ({"constant_id": "7"}, {}, "same", "any"),
        ({"receipt_mix": {"UNDELIV": 1.0}}, {}, "failed", ""),
        ({"parts": "last"}, {"long_messages": "payload"}, "whole", ""),
        ({"receipts": False}, {}, "", ""),
    ],
)
async def test_what_receipts_of_parts_show(smsc: Smsc, options: Any, settings: Any, seen: str, parts: str) -> None:
    smsc.configure(resp_base="dec", **options)
    account = following.Account(
        UUID(int=1),
        {"host": "127.0.0.1", "port": smsc.port, "system_id": "acme", "tls": False} | settings,
        PASSWORD,
        "",
    )
    said: list[Followed] = []

    async def told(one: Followed) -> None:
        said.append(one)

    message = following.submission("+258841234567", long_messages.TEXT, "ACME")
    # Those that come are all there is; where none comes, that is so after any time.
    wait = 60.0 if options.get("receipts", True) else 0.2
    rest = 0.2 if seen in ("first", "last") else 60.0
    found = await following.follow("smpp", account, message, told, wait=wait, rest=rest)
    reported = long_messages.reported(found, "all")
    assert (reported.seen, reported.parts) == (seen, parts)
    assert not any(long_messages.reported(one, "all").seen for one in said), "nothing is said before it has ended"


@pytest.mark.parametrize(
    ("parts", "named", "seen", "wanted"),
    [
        ("any", ("a", "b", "c"), "each", "all"),
        ("all", ("b",), "some", "any"),
        ("any", ("b",), "some", ""),
        ("first", ("a",), "first", ""),
        ("all", ("x",), "", ""),
    ],
)
def test_the_setting_of_parts_that_fits(parts: str, named: tuple[str, ...], seen: str, wanted: str) -> None:
    heard = tuple(TrialReceipt((one,), "delivered") for one in named)
    found = Followed(phase="done", verdict="accepted", ids=("a", "b", "c"), parts=3, receipts=heard)
    reported = long_messages.reported(found, parts)
    assert (reported.seen, reported.parts) == (seen, wanted)


def test_each_way_of_joining_is_tried_in_turn() -> None:
    settings: dict[str, Any] = {}
    tried = []
    for _ in range(4):
        tried.append(long_messages.joining("smpp", settings, "apart"))
        settings = {"long_messages": tried[-1]}
    assert tried == ["sar", "udh16", "payload", "udh8"]
    assert long_messages.joining("smpp", {}, "joined") == ""
    assert long_messages.joining("twilio", {}, "apart") == ""
    assert len(long_messages.TEXT) == 459


async def test_a_supplier_that_carries_is_tested_and_its_ids_are_mended(
    pool: Pool, root: Browser, settings: Settings, smsc: Smsc
) -> None:
    options = {"host": "127.0.0.1", "port": smsc.port, "system_id": "acme", "tls": False}
    async with pool.acquire() as conn:
        key = suppliers.seal_key(settings)
        id = await suppliers.add(conn, key, name="main", kind="smpp", settings=options, secret=PASSWORD)
    here = f"/console/suppliers/{id}"
    page = await root.get(f"{here}/test")
    # A national number of Mozambique is one of Viet Nam with a + before it.
    guess = await root.submit(page, f"{here}/test", to="841234567", text="hello")
    assert (guess.status, "Enter a number with + and country code" in guess.words) == (422, True)
    wrong = await root.submit(page, f"{here}/test", to="12", sender=" ", text=" ")
    assert (wrong.status, "country code" in wrong.words) == (422, True)
    assert "A sender must have 1 to 16 characters." in wrong.words
    assert "A test message must have 1 to 160 characters." in wrong.words
    # A worker has its one session.
    await pool.execute(
        "INSERT INTO supplier_sessions SELECT id, 0, $1, now() + interval '1 minute', true, true FROM suppliers", id
    )
    wrong = await root.submit(page, f"{here}/test", to="+258841234567")
    assert (wrong.status, "Workers hold all of its sessions" in wrong.words) == (422, True)
    await root.submit(wrong, f"{here}/test", to="+258841234567", session="more")
    page = await until(root, f"{here}/test", "waits for the receipt")
    assert "+258841234567" not in page.text
    wrong = await root.submit(page, f"{here}/test", to="+258841234567", session="more")
    assert (wrong.status, "is still being followed" in wrong.words) == (422, True)
    # Its receipt comes to a worker, and matches nothing there.
    (answered,) = (await _tested(pool, id)).ids
    await pool.execute(
        "INSERT INTO receipts (received_on, supplier_id, fingerprint, keys, state, error, recipient, sender,"
        " received_at, next_try_at) VALUES (current_date, $1, $1, $2, 'delivered', '000', '258841234567', 'x', now(),"
        " now() + interval '1 hour')",
        id,
        [str(int(answered, 16))],
    )
    page = await until(root, f"{here}/test", "the same number, written in another base")
    assert "names another id" in page.words
    page = await root.submit(page, f"{here}/cure")
    assert "Saved: answer and receipt" in page.words
    assert "names the same id" in page.words
    async with pool.acquire() as conn:
        (made,) = await routing.load(conn)
    assert made.settings["resp_id_base"] == "hex"
    page = await root.get(here)
    assert f"{here}/test" in page.text
    await until(root, "/console/audit?action=supplier.tested", "Supplier tested")


async def test_a_supplier_that_carries_is_connected_to_and_nothing_is_sent(
    pool: Pool, root: Browser, settings: Settings, smsc: Smsc
) -> None:
    options = {"host": "127.0.0.1", "port": smsc.port, "system_id": "acme", "tls": False}
    async with pool.acquire() as conn:
        key = suppliers.seal_key(settings)
        id = await suppliers.add(conn, key, name="main", kind="smpp", settings=options, secret=PASSWORD)
    here = f"/console/suppliers/{id}/reach"
    assert here in (await root.get(f"/console/suppliers/{id}/test")).text
    page = await root.get(here)
    assert "Nothing is sent" in page.words
    page = await root.submit(page, here)
    for step in ("Resolve the address", "Connect", "Sign in (bind)", "enquire_link", "Sign out (unbind)"):
        assert step in page.words, step
    assert "wrong" not in page.words
    # A worker has its one session.
    await pool.execute(
        "INSERT INTO supplier_sessions SELECT id, 0, $1, now() + interval '1 minute', true, true FROM suppliers", id
    )
    page = await root.submit(page, here)
    assert (page.status, "Workers hold all of its sessions" in page.words) == (422, True)
    await smsc.stop()
    page = await root.submit(page, here, session="more")
    assert (page.status, "error" in page.words, "Sign in (bind)" in page.words) == (200, True, False)
    assert "nothing is listening there: check host and port" in page.words
    rows = await pool.fetch("SELECT after FROM audit_log WHERE action = 'supplier.tested' ORDER BY id")
    assert [json.loads(row["after"]) for row in rows] == [
        {"verdict": "reached", "code": ""},
        {"verdict": "not reached", "code": "connect"},
    ]
    assert smsc.counters.submits == 0


async def test_a_long_message_goes_through_a_supplier_that_carries_and_what_it_shows_is_set(
    pool: Pool, root: Browser, settings: Settings, smsc: Smsc
) -> None:
    options = {"host": "127.0.0.1", "port": smsc.port, "system_id": "acme", "tls": False}
    async with pool.acquire() as conn:
        key = suppliers.seal_key(settings)
        id = await suppliers.add(conn, key, name="main", kind="smpp", settings=options, secret=PASSWORD)
    here = f"/console/suppliers/{id}"
    assert f"{here}/long" in (await root.get(f"{here}/test")).text
    page = await root.get(f"{here}/long")
    wrong = await root.submit(page, f"{here}/long", to="nobody")
    assert (wrong.status, "country code" in wrong.words) == (422, True)
    page = await root.submit(page, f"{here}/long", to="+258841234567")
    assert page.path == f"{here}/long", page.words
    page = await until(root, f"{here}/long", "waits for the receipt")
    assert "+258841234567" not in page.text
    # What it shows is no short message's, which has to wait for it all the same.
    page = await root.get(f"{here}/test")
    assert "waits for the receipt" not in page.words
    assert (await root.submit(page, f"{here}/test", to="+258841234567")).status == 422
    # The receipts of its parts come to a worker one after the other, and match nothing there.
    ids = (await _tested(pool, id)).ids
    assert len(ids) == 3
    for number, one in enumerate(ids):
        await pool.execute(
            "INSERT INTO receipts (received_on, supplier_id, fingerprint, keys, state, error, recipient, sender,"
            " received_at, next_try_at) VALUES (current_date, $1, $2, $3, 'delivered', '000', '258841234567', 'x',"
            " now(), now() + interval '1 hour')",
            id,
            UUID(int=number),
            [one],
        )
    page = await until(root, f"{here}/long", "Each of its 3 parts has a receipt.")
    page = await root.submit(page, f"{here}/long/arrived", arrived="apart")
    assert "not joined by udh8" in page.words
    page = await root.submit(page, f"{here}/long/joining")
    assert "Send the message again" in page.words
    assert "What it showed" not in page.words, "it went by another setting"
    async with pool.acquire() as conn:
        (made,) = await routing.load(conn)
        assert made.settings["long_messages"] == "sar"
        # Nobody may set what nothing has shown.
        assert not await trying.join(conn, key, supplier_id=id)
        assert not await trying.decide(conn, key, supplier_id=id)
        heard = (TrialReceipt(("c",), "delivered", "", True),)
        found = Followed(phase="done", verdict="accepted", ids=("a", "b", "c"), parts=3, receipts=heard)
        await trying.start(conn, Trial("…4567", await drafts.ends(conn, 60.0), found, True), supplier_id=id)
    page = await root.submit(await root.get(f"{here}/long"), f"{here}/long/parts")
    assert "the receipts that arrive decide" in page.words
    assert "parts=" not in page.text
    async with pool.acquire() as conn:
        (made,) = await routing.load(conn)
    assert (made.parts, made.settings["long_messages"]) == ("last", "sar")
    actions = [
        row["action"] for row in await pool.fetch("SELECT action FROM audit_log WHERE who = 'operator' ORDER BY id")
    ]
    assert actions.count("supplier.changed") == 2
    assert actions.count("supplier.tested") == 1


async def _tested(pool: Pool, id: UUID) -> following.Followed:
    async with pool.acquire() as conn:
        one = await trying.last(conn, supplier_id=id)
    assert one is not None
    return one.followed


async def test_a_simulator_that_is_added_is_one_and_stays_when_simulators_are_paused(
    pool: Pool, root: Browser, settings: Settings, smsc: Smsc
) -> None:
    async with pool.acquire() as conn:
        key = suppliers.seal_key(settings)
        await suppliers.add(conn, key, name="toy", kind="smpp", settings={}, secret="x", simulated=True)
    path, _ = await begin_draft(root, smsc)
    page = await root.get(f"{path}/place")
    assert page.form(f"{path}/place")["simulated"] == "false"
    wrong = await root.submit(page, f"{path}/place", simulated="true", priority="many")
    assert (wrong.status, wrong.form(f"{path}/place")["simulated"]) == (422, "true"), wrong.words
    page = await root.submit(wrong, f"{path}/place", priority="10", pause_simulators="yes")
    assert "main is added" in page.words
    assert "tag simulated" in page.text
    async with pool.acquire() as conn:
        found = {one.name: (one.simulated, one.state) for one in await routing.load(conn)}
    assert found == {"toy": (True, "active"), "main": (True, "active")}


async def test_what_cannot_be_reached_says_where_it_stops(root: Browser, smsc: Smsc) -> None:
    path, page = await begin_draft(root, smsc, secret="wrong")
    page = await root.submit(page, f"{path}/test")
    assert "ESME_RINVPASWD" in page.words
    assert "enquire_link" not in page.words
    page = await root.submit(await root.get(f"{path}/connection"), f"{path}/connection", secret=PASSWORD)
    page = await root.submit(page, f"{path}/test")
    assert "ESME_RINVPASWD" not in page.words
    page = await root.submit(await root.get(f"{path}/connection"), f"{path}/connection", **{"option.tls": "true"})
    page = await root.submit(page, f"{path}/test")
    assert "Negotiate TLS" in page.words
    assert "Sign in (bind)" not in page.words


async def test_what_is_wrong_is_said_at_its_field(root: Browser, smsc: Smsc) -> None:
    new = await root.get("/console/suppliers/new")
    for typed in ({"name": ""}, {"name": "x", "kind": "pigeon"}):
        assert (await root.submit(new, "/console/suppliers/new", **typed)).status == 422, typed
    page = await root.submit(new, "/console/suppliers/new", name="", kind="pigeon")
    assert ("1 to 200 characters" in page.words, "Choose one of these kinds." in page.words) == (True, True)
    path, _ = await begin_draft(root, smsc)
    for step, typed in (
        ("connection", {"option.port": "many"}),
        ("limits", {"sessions": "0"}),
        ("limits", {"option.window": "0"}),
        ("message", {"to": "nobody"}),
        ("message", {"to": "+258841234567", "sender": ""}),
        ("place", {"prefixes": "MZ"}),
        ("place", {"name": ""}),
    ):
        page = await root.submit(await root.get(f"{path}/{step}"), f"{path}/{step}", **typed)
        assert page.status == 422, (step, typed)
    # In the reader's language, too.
    for step, field, text, said in (
        ("connection", "option.port", "many", "port tem de ser um número inteiro"),
        ("connection", "option.port", "70000", "port tem de ser 65535 ou menos"),
        ("limits", "option.window", "0", "window tem de ser 1 ou mais"),
        ("limits", "sessions", "many", "sessions tem de ser um número inteiro"),
    ):
        form = (await root.get(f"{path}/{step}")).form(f"{path}/{step}") | {field: text}
        wrong = await root.post(f"{path}/{step}", form, accept_language="pt")
        assert (wrong.status, said in wrong.words) == (422, True), (field, text, wrong.words)
    done = await root.submit(page, f"{path}/discard")
    assert "It is discarded." in done.words
    again = await root.submit(page, f"{path}/discard")  # a double click
    assert (again.status, again.path, "There is no such draft" in again.words) == (200, "/console/suppliers", True)
    assert (await root.get(f"{path}/place")).status == 404


async def test_a_draft_outlives_the_secret_key(pool: Pool, root: Browser, smsc: Smsc) -> None:
    path, page = await begin_draft(root, smsc)
    placing, writing = await root.get(f"{path}/place"), await root.get(f"{path}/message")
    await pool.execute("UPDATE supplier_drafts SET secret = '\\x01'::bytea || gen_random_uuid()::text::bytea")
    said = "sealed with another secret key. Replace it."
    refused = await root.submit(page, f"{path}/test")
    assert (refused.status, said in refused.words, 'href="#secret"' in refused.text) == (422, True, True), refused.words
    refused = await root.submit(writing, f"{path}/message", to="+258841234567")
    assert (refused.status, said in refused.words) == (422, True), refused.words
    refused = await root.submit(placing, f"{path}/place", do="save")
    assert (refused.status, said in refused.words) == (422, True), refused.words
    form = await root.get(f"{path}/connection")
    refused = await root.submit(form, f"{path}/connection")
    assert (refused.status, "The connection needs its password." in refused.words) == (422, True), refused.words
    page = await root.submit(form, f"{path}/connection", secret=PASSWORD)
    assert "Sign in (bind)" in (await root.submit(page, f"{path}/test")).words


async def test_a_draft_is_sealed_and_those_of_a_month_ago_go(pool: Pool, root: Browser, smsc: Smsc) -> None:
    path, _ = await begin_draft(root, smsc)
    secret = await pool.fetchval("SELECT secret FROM supplier_drafts")
    assert PASSWORD.encode() not in secret
    await pool.execute("UPDATE supplier_drafts SET changed_at = now() - interval '31 days'")
    async with pool.acquire() as conn:
        other = await drafts.begin(conn, name="another", kind="twilio")
        assert [one.id for one in await drafts.list_all(conn)] == [other]
        assert not (await drafts.get(conn, other)).is_complete
    assert (await root.get(path)).status == 404
    assert (await root.get(f"/console/drafts/{other}")).path == f"/console/drafts/{other}/connection"


@pytest.mark.parametrize(
    ("settings", "ids", "named", "cure"),
    [
        ({}, ["188b2c"], [("1608492",)], {"resp_id_base": "hex"}),
        ({}, ["1608492"], [("188b2c",)], {"dlr_id_base": "hex"}),
        ({}, ["188b2c"], [("999",)], {}),
        ({}, [], [("999",)], {}),
        # It fits as it is, and would in another base, too.
        ({}, ["7"], [("7",)], {}),
        ({}, ["188b2c", "7"], [("1608492",), ("7",)], {}),
    ],
)
def test_the_cure_of_ids_has_the_fewest_changes(settings: Any, ids: Any, named: Any, cure: Any) -> None:
    assert following.cured(settings, ids, named) == cure


def test_what_is_kept_of_a_number_is_its_end() -> None:
    assert drafts.masked("+258841234567") == "…4567"
    assert drafts.context(UUID(int=1)).endswith("0001")


async def test_a_test_during_which_the_connection_is_changed_says_nothing_of_the_new_one(
    root: Browser, smsc: Smsc, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, page = await begin_draft(root, smsc)

    async def changed() -> None:
        await root.submit(await root.get(f"{path}/connection"), f"{path}/connection", secret="another")

    after(monkeypatch, probing, "probe", in_this_loop(changed))
    page = await root.submit(page, f"{path}/test")
    assert "It has not been tried yet." in page.words


@pytest.mark.parametrize("change", [False, True], ids=["sent twice", "changed meanwhile"])
async def test_a_test_message_is_sent_once_and_belongs_to_its_connection(
    pool: Pool, root: Browser, smsc: Smsc, monkeypatch: pytest.MonkeyPatch, change: bool
) -> None:
    path, _ = await begin_draft(root, smsc)
    form = await root.get(f"{path}/message")
    first: list[Page] = []
    ended = asyncio.Event()

    async def sent() -> None:
        first.append(await root.submit(form, f"{path}/message", to="+258841234567"))

    before(monkeypatch, following, "follow", in_this_loop(ended.wait))
    if change:
        await sent()
        await root.submit(await root.get(f"{path}/connection"), f"{path}/connection", secret="another")
    else:
        after(monkeypatch, wizard, "read", in_this_loop(sent))
        second = await root.submit(form, f"{path}/message", to="+258841234567")
        assert (first[0].status, second.status) == (200, 422)
        assert "The last test message is still being followed." in second.words
    ended.set()
    while True:
        if await pool.fetchval("SELECT count(*) FROM audit_log WHERE action = 'supplier.tested'"):
            break
        await asyncio.sleep(0.05)
    kept = await pool.fetchval("SELECT trial ->> 'followed' FROM supplier_drafts")
    assert (kept is None) == change, kept
