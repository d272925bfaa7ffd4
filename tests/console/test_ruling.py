"""Suppliers' rules for senders and numbers: listed, set and removed by operators."""

from __future__ import annotations

import re
from uuid import uuid4

from heliograph.base.database.pool import Pool
from heliograph.base.process.settings import Settings
from heliograph.senders import numbers, rules

from .conftest import Browser, signed_in
from .test_suppliers import add

HERE = "/console/routes/rules"


async def test_a_rule_for_senders_is_set_changed_and_removed(pool: Pool, root: Browser, settings: Settings) -> None:
    main = await add(pool, settings)
    assert "No rule yet" in (await root.get(HERE)).words
    form = await root.get(f"{HERE}/sender")
    typed = {"supplier": str(main), "rule": "replace", "country": "ar", "replacement": "90210"}
    page = await root.submit(form, f"{HERE}/sender", **typed, note="since May")
    assert page.path == HERE, page.words
    for said in ("main", "all senders", "Argentina", "replaced: 90210", "since May"):
        assert said in page.words, said
    # A line's link fills in the form, which replaces the rule.
    (link,) = [part for part in page.text.split('"') if part.startswith(f"{HERE}/sender?")]
    form = await root.get(link.replace("&amp;", "&"))
    page = await root.submit(form, f"{HERE}/sender", rule="register")
    assert "sent once it is registered: 90210 until then" in page.words
    async with pool.acquire() as conn:
        (one,) = await rules.load(conn)
    assert (one.action, one.country, one.replacement, one.note) == ("register", "AR", "90210", "since May")
    assert f'action="{HERE}/sender/{one.id}/remove"' not in page.text
    page = await root.get(f"{HERE}/sender/{one.id}/remove")
    for said in ("Supplier main Senders all senders Country Argentina", "90210 until then", "main gets messages under"):
        assert said in page.words, page.words
    async with pool.acquire() as conn:
        assert await rules.load(conn) == [one], "it was only asked about"
    page = await root.submit(page, f"{HERE}/sender/{one.id}/remove")
    assert (page.path, "The rule is removed." in page.words) == (HERE, True), page.words
    async with pool.acquire() as conn:
        assert await rules.load(conn) == []
    told = await pool.fetch("SELECT action FROM audit_log WHERE action LIKE 'sender_rule.%' ORDER BY id")
    assert [row["action"] for row in told] == ["sender_rule.changed"] * 2 + ["sender_rule.removed"]


async def test_a_rule_for_numbers_is_set_changed_and_removed(pool: Pool, root: Browser, settings: Settings) -> None:
    main = await add(pool, settings)
    form = await root.get(f"{HERE}/number")
    typed = {"supplier": str(main), "prefix": "258", "strip": "258", "numbering": "2/1"}
    page = await root.submit(form, f"{HERE}/number", **typed)
    assert (page.path, "2/1" in page.words) == (HERE, True), page.words
    (link,) = [part for part in page.text.split('"') if part.startswith(f"{HERE}/number?")]
    page = await root.submit(await root.get(link.replace("&amp;", "&")), f"{HERE}/number", prepend="00")
    async with pool.acquire() as conn:
        (one,) = await numbers.load(conn)
    assert (one.prefix, one.strip, one.prepend, one.numbering) == ("258", "258", "00", (2, 1))
    assert f'action="{HERE}/number/{one.id}/remove"' not in page.text
    page = await root.get(f"{HERE}/number/{one.id}/remove")
    for said in ("Supplier main Prefix 258 Strip 258 Prepend 00 TON/NPI 2/1", "main gets these numbers by"):
        assert said in page.words, page.words
    page = await root.submit(page, f"{HERE}/number/{one.id}/remove")
    async with pool.acquire() as conn:
        assert await numbers.load(conn) == []
    token = page.form("/console/logout")["_token"]
    assert (await root.post(f"{HERE}/number/{one.id}/remove", {"_token": token})).status == 404
    for kind in ("sender", "number"):
        assert (await root.get(f"{HERE}/{kind}/{one.id}/remove")).status == 404


async def test_refusals_stand_at_their_fields(pool: Pool, root: Browser, settings: Settings) -> None:
    main = str(await add(pool, settings))
    for kind, good, cases in (
        (
            "sender",
            {"supplier": main, "rule": "allow"},
            (
                ({"supplier": str(uuid4())}, "supplier", "Choose a supplier."),
                ({"country": "Argentina"}, "country", "two-letter country code"),
                ({"rule": "perhaps"}, "rule", "one of those that are offered"),
                ({"sender": "Café"}, "sender", "without accents"),
                ({"rule": "replace"}, "replacement", "the sender that is sent instead"),
                ({"replacement": "X"}, "replacement", "has no replacement"),
                ({"sender": "ACME", "kind": "numeric"}, "kind", "not both"),
                ({"note": "x" * 501}, "note", "at most 500 characters"),
            ),
        ),
        (
            "number",
            {"supplier": main, "prefix": "549", "strip": "549"},
            (
                ({"prefix": "+549"}, "prefix", "Enter up to 15 digits"),
                ({"strip": "1"}, "strip", "No number with this prefix"),
                ({"prepend": "x"}, "prepend", "Enter up to 10 digits"),
                ({"strip": ""}, "prepend", "The rule changes nothing yet"),
                ({"numbering": "two"}, "numbering", "two numbers up to 255"),
                ({"sender_numbering": "1/300"}, "sender_numbering", "two numbers up to 255"),
            ),
        ),
    ):
        form = await root.get(f"{HERE}/{kind}")
        for typed, field, said in cases:
            page = await root.submit(form, f"{HERE}/{kind}", **good | typed)
            assert (page.status, f'id="{field}-wrong"' in page.text, said in page.words) == (422, True, True), typed
    # All of them at once; a numbering that cannot be read is not a missing one.
    typed = {"supplier": main, "prefix": "+549", "numbering": "two", "sender_numbering": "1/300", "note": "x" * 501}
    page = await root.submit(await root.get(f"{HERE}/number"), f"{HERE}/number", **typed)
    assert set(re.findall(r'id="(\w+)-wrong"', page.text)) == typed.keys() - {"supplier"}
    typed = {"supplier": str(uuid4()), "country": "Argentina", "rule": "perhaps", "note": "x" * 501}
    page = await root.submit(await root.get(f"{HERE}/sender"), f"{HERE}/sender", **typed)
    assert set(re.findall(r'id="(\w+)-wrong"', page.text)) == typed.keys()


async def test_who_only_looks_sees_rules_and_no_form(pool: Pool, browser: Browser) -> None:
    await signed_in(pool, browser, "auditor")
    page = await browser.get(HERE)
    assert (page.status, f"{HERE}/sender" in page.text) == (200, False)
    for path in ("sender", f"sender/{uuid4()}/remove", f"number/{uuid4()}/remove"):
        assert (await browser.get(f"{HERE}/{path}")).status == 403, path
