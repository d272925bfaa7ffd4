"""What is told to operators is told in their language: checks, their remedies, and why something is held."""

from __future__ import annotations

import re
from datetime import timedelta

from heliograph import doctor
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.base.process.settings import Settings
from heliograph.base.sentences import Sentence, joined, kept, packed, quoted, said, unpacked
from heliograph.pages.languages import catalogue, speech
from heliograph.queue import holds
from heliograph.queue.holds import Selection
from heliograph.routes.lookup import Choice, Route
from heliograph.sms.dispatch import suppliers
from heliograph.suppliers.contract import Outcome, Verdict
from heliograph.whatsapp.dispatch.holds import hold_account
from heliograph.whatsapp.mirror import accounts, apps
from tests.api.conftest import Tenant
from tests.pages.texts import sentences
from tests.rules.dispatching import Bench
from tests.rules.factories import message, supplier

from .conftest import Browser

#: Sentences that are the same in both languages: names.
SAME = {"callbacks", "workers", "PostgreSQL %(version)s at %(where)s"}


def english_of(text: str) -> str:
    """The longest piece of a sentence that has no value in it."""
    return max(re.split(r"%\(\w+\)s|%%", text), key=len).strip()


def is_told_in_english(words: str) -> list[str]:
    """Sentences of the code that stand on a Portuguese page in English."""
    twins = catalogue("pt")
    return [
        text
        for text in sorted(sentences())
        if len(piece := english_of(text)) >= 10 and " " in piece and piece not in str(twins[text]) and piece in words
    ]


def test_every_sentence_has_its_twin() -> None:
    portuguese = speech("pt")
    for text in sentences() - SAME:
        values = dict.fromkeys(re.findall(r"%\((\w+)\)s", text), "X")
        told = portuguese.told(Sentence.of(text, values))
        assert told != Sentence.of(text, values), text
        assert len(values) == 0 or "X" in told, text


def test_a_sentence_is_english_to_whoever_knows_nothing_of_languages() -> None:
    at = clock.EPOCH + timedelta(days=20_000)
    one = said("%(path)s ended at %(at)s", path="a.pem", at=at)
    assert one == "a.pem ended at 2024-10-04T00:00:00.000Z"
    assert speech("pt").told(one) == "a.pem terminou em 4 out. 2024, 00:00"
    many = joined([said("queue"), quoted("disk"), said("%(count)s characters", count=1234)])
    assert (many, speech("pt").told(many)) == ("queue, disk, 1,234 characters", "fila, disk, 1\xa0234 caracteres")
    assert speech("pt").told(kept("paused")) == speech("pt").text("paused") != "paused"
    assert speech("pt").told(kept("bind refused: %(x)s 100%")) == "bind refused: %(x)s 100%"
    assert joined([]) == ""


async def test_no_page_of_findings_is_half_english(
    pool: Pool, tenant: Tenant, root: Browser, settings: Settings, database_url: str
) -> None:
    key = suppliers.seal_key(settings)
    options = {"host": "127.0.0.1", "port": 1, "system_id": "acme"}
    async with pool.acquire() as conn:
        for name in ("main", "spare", "lost"):
            await suppliers.add(conn, key, name=name, kind="smpp", settings=options, secret="x")
        await suppliers.set_state(conn, supplier="spare", state="paused")
        await holds.hold(conn, Selection(kinds=("sms",)), reason="a bill")
    async with pool.acquire() as conn:
        account = await accounts.add(
            conn,
            apps.seal_key(settings),
            organization_id=tenant.id,
            app_id="660000000000001",
            app_secret="app secret",
            verify_token="verify me",
            waba_id="900100200300400",
            token="EAAtoken",
            currency="EUR",
        )
        await hold_account(conn, tenant.id, account.id, seconds=600, reason="payment problem")
    pages = {
        path: (await root.get(path, Cookie="hg-language=pt")).words
        for path in ("/console/now", "/console/health", "/console/notices", "/console/whatsapp")
    }
    assert [(path, text) for path, words in pages.items() for text in is_told_in_english(words)] == []
    async with pool.acquire() as conn:
        found = await doctor.examine(conn, Settings(database_url=database_url, secret_key=settings.secret_key))
    portuguese = speech("pt")
    assert len(found) > 12
    for one in found:
        assert portuguese.told(one.check) in pages["/console/health"], one
        assert portuguese.told(one.remedy) in pages["/console/health"], one
        if one.state != "ok" and one.check != "disk":
            assert portuguese.told(one.remedy) in pages["/console/now"], one
    assert "problema de pagamento" in pages["/console/whatsapp"]
    assert f"heliograph whatsapp account release {account.waba_id}" in pages["/console/whatsapp"]


async def test_why_a_supplier_was_chosen_is_kept_with_its_values_and_told(
    pool: Pool, tenant: Tenant, root: Browser
) -> None:
    main, backup = supplier("main", id=uuid7()), supplier("backup", id=uuid7())
    routes = [Route(id=uuid7(), name="moz", prefix="258", choices=(Choice(main.id, 1), Choice(backup.id, 2)))]
    bench = Bench(pool, main, backup, routes=routes)
    bench.connectors[main.id].script = lambda _: Outcome(Verdict.REFUSED, code="0x0A", failover=True)
    id = await message(pool, tenant.actor)
    await bench.round(2)
    english = await root.get(f"/console/messages/{id}")
    assert "prefix 258 (route moz): backup; main skipped: it refused the message" in english.words
    page = await root.get(f"/console/messages/{id}", Cookie="hg-language=pt")
    assert "prefixo 258 (rota moz): main antes de backup" in page.words
    assert "prefixo 258 (rota moz): backup; main omitido: recusou a mensagem" in page.words
    assert is_told_in_english(page.words) == []
    await pool.execute("UPDATE supplier_sessions SET bound = false")
    path = "/console/routes/explain?to=%2B258841234567&class=otp"
    assert is_told_in_english((await root.get(path, Cookie="hg-language=pt")).words) == []


def test_a_sentence_is_stored_with_its_values() -> None:
    at = clock.EPOCH + timedelta(days=20_000, milliseconds=5)
    inner = joined([said("%(count)s characters", count=1234), quoted('a "b" %(c)s 100 %')])
    for one in (
        said("workers"),
        quoted("words of others"),
        Sentence.of(
            "%(path)s ended at %(at)s (%(why)s, %(share)s %%)", {"path": "a", "at": at, "why": inner, "share": 0.5}
        ),
    ):
        again = unpacked(packed(one))
        assert (again, again.english, speech("pt").told(again)) == (one, one.english, speech("pt").told(one))
    assert unpacked("") == ""
