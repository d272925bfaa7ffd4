"""Operators read everything in their own language: checks, remedies, and why something is held."""

from __future__ import annotations

import ast
import html
import inspect
import re
from datetime import timedelta
from types import ModuleType

import pytest

from heliograph import doctor
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.base.process.settings import Settings
from heliograph.base.sentences import Sentence, decoded, encoded, joined, kept, packed, quoted, said, unpacked
from heliograph.console.messages import wording
from heliograph.pages.languages import catalogue, locale
from heliograph.pages.templates import commands
from heliograph.queue import holds
from heliograph.queue.holds import Selection
from heliograph.routes.lookup import Choice, Route
from heliograph.sending import timeline as sending_timeline
from heliograph.sending.attempts import WORKER_DIED
from heliograph.sms import timeline as sms_timeline
from heliograph.sms.dispatch import suppliers
from heliograph.sms.dispatch.uncertain import SHOWN
from heliograph.sms.management.drafts import Trial
from heliograph.sms.management.following import Followed
from heliograph.suppliers.contract import Outcome, Verdict
from heliograph.suppliers.probing import Step
from heliograph.webhooks import timeline as webhooks_timeline
from heliograph.whatsapp import timeline as whatsapp_timeline
from heliograph.whatsapp.dispatch.holds import hold_account
from heliograph.whatsapp.mirror import accounts, apps
from tests.api.conftest import Tenant
from tests.pages.texts import sentences
from tests.rules.dispatching import Bench
from tests.rules.factories import message, supplier

from .conftest import Browser

#: Sentences that are the same in both languages: names.
SAME = {"callbacks", "webhooks", "workers", "PostgreSQL %(version)s at %(where)s"}


def english_of(text: str) -> str:
    """The longest part of a sentence without a value."""
    return max(re.split(r"%\(\w+\)s|%%", text), key=len).strip()


def is_told_in_english(words: str) -> list[str]:
    """Sentences of the code that appear on a Portuguese page in English."""
    twins = catalogue("pt")
    return [
        text
        for text in sorted(sentences())
        if len(piece := english_of(text)) >= 10 and " " in piece and piece not in str(twins[text]) and piece in words
    ]


def test_every_sentence_has_its_twin() -> None:
    portuguese = locale("pt")
    for text in sentences() - SAME:
        values = dict.fromkeys(re.findall(r"%\((\w+)\)s", text), "X")
        told = portuguese.sentence(Sentence.of(text, values))
        assert told != Sentence.of(text, values), text
        assert len(values) == 0 or "X" in told, text


def test_a_sentence_is_english_to_whoever_knows_nothing_of_languages() -> None:
    at = clock.EPOCH + timedelta(days=20_000)
    one = said("%(path)s expired at %(at)s", path="a.pem", at=at)
    assert one == "a.pem expired at 2024-10-04T00:00:00.000Z"
    assert locale("pt").sentence(one) == "a.pem expirou em 4 out. 2024, 00:00"
    many = joined([said("queue"), quoted("disk"), said("%(count)s characters", count=1234)])
    assert (many, locale("pt").sentence(many)) == ("queue, disk, 1,234 characters", "fila, disk, 1\xa0234 caracteres")
    assert locale("pt").sentence(kept("paused")) == locale("pt").text("paused") != "paused"
    assert locale("pt").sentence(kept("bind refused: %(x)s 100%")) == "bind refused: %(x)s 100%"
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
        for path in (
            *("/console/now", "/console/health", "/console/notices", "/console/whatsapp", "/console/suppliers"),
            *("/console/guard", "/console/queue", "/console/routes", "/console/receipts", "/console/inbound"),
            *("/console/settings", "/console/approvals", "/console/lookups", "/console/suppliers/new"),
        )
    }
    assert [(path, text) for path, words in pages.items() for text in is_told_in_english(words)] == []
    async with pool.acquire() as conn:
        found = await doctor.examine(conn, Settings(database_url=database_url, secret_key=settings.secret_key))
    portuguese = locale("pt")
    assert len(found) > 12
    for one in found:
        assert portuguese.sentence(one.check) in pages["/console/health"], one
        remedy = " ".join(html.unescape(re.sub(r"<[^>]+>", " ", commands(portuguese.sentence(one.remedy)))).split())
        assert remedy in pages["/console/health"], one
        if one.state != "ok" and one.check != "disk":
            assert remedy in pages["/console/now"], one
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
            "%(path)s expired at %(at)s (%(why)s, %(share)s %%)", {"path": "a", "at": at, "why": inner, "share": 0.5}
        ),
    ):
        again = unpacked(packed(one))
        assert (again, again.english, locale("pt").sentence(again)) == (one, one.english, locale("pt").sentence(one))
    assert unpacked("") == ""


def named_in(module: ModuleType) -> tuple[set[str], set[str]]:
    """(steps, names of details) that a timeline's code writes."""
    steps: set[str] = set()
    names: set[str] = set()
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Entry":
            steps |= {one.value for one in ast.walk(node.args[1]) if isinstance(one, ast.Constant)}
        elif isinstance(node, ast.Dict):
            names |= {key.value for key in node.keys if isinstance(key, ast.Constant)}
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            names |= {one.value for one in [node.slice] if isinstance(one, ast.Constant)}
        elif isinstance(node, ast.comprehension) and isinstance(node.iter, ast.Tuple):
            names |= {one.value for one in node.iter.elts if isinstance(one, ast.Constant)}
    return steps, names


@pytest.mark.parametrize("module", [sending_timeline, sms_timeline, whatsapp_timeline, webhooks_timeline])
def test_every_step_of_a_message_has_a_name_in_every_language(module: ModuleType) -> None:
    steps, names = named_in(module)
    assert steps
    assert steps - set(wording.STEPS) == set()
    assert names - set(wording.DETAILS) == set()


async def test_what_happened_to_a_message_is_told_in_the_readers_language(
    pool: Pool, tenant: Tenant, root: Browser
) -> None:
    main = supplier("main", id=uuid7())
    bench = Bench(pool, main)
    bench.connectors[main.id].script = lambda _: Outcome(Verdict.BUSY, code="0x58", detail="no room in the window")
    id = await message(pool, tenant.actor)
    await bench.round(2)
    page = await root.get(f"/console/messages/{id}", Cookie="hg-language=pt")
    for told in ("aceite", "tentativa 1", "resposta", "estado Ocupado", "sem lugar na janela", "Na fila", "tipo SMS"):
        assert told in page.words, told
    for english in ("attempt", "supplier", "state", "due_at", "no room"):
        assert f" {english} " not in page.words.partition("O que aconteceu")[2].partition("O seu registo")[0], english
    assert "state Busy" in (await root.get(f"/console/messages/{id}")).words
    # What the engine recorded by itself, too.
    for detail in (WORKER_DIED, SHOWN):
        await pool.execute("UPDATE attempts SET detail = $1", detail)
        page = await root.get(f"/console/messages/{id}", Cookie="hg-language=pt")
        assert (locale("pt").sentence(kept(detail)) in page.words, detail in page.words) == (True, False)
    # With values in it, which are stored with the text, and with the supplier's own words after ours.
    for detail, told in (
        ("segment 2 of 3: no answer in time", "segmento 2 de 3: sem resposta a tempo"),
        ("segment 2 of 3: no room in the window: Wait: a", "segmento 2 de 3: sem lugar na janela: Wait: a"),
        ("only 1 of 3 segments were sent", "só foram enviados 1 de 3 segmentos"),
        ("Their words: no answer", "Their words: no answer"),
    ):
        await pool.execute("UPDATE attempts SET detail = $1", detail)
        assert told in (await root.get(f"/console/messages/{id}", Cookie="hg-language=pt")).words, detail
        assert detail in (await root.get(f"/console/messages/{id}")).words, detail


def test_every_answer_that_is_read_back_has_its_twin() -> None:
    assert set(wording.ANSWERS) - set(catalogue("pt")) == set()


async def test_what_a_session_ended_with_is_told_wherever_it_stands(
    pool: Pool, tenant: Tenant, root: Browser, settings: Settings
) -> None:
    key = suppliers.seal_key(settings)
    options = {"host": "127.0.0.1", "port": 1, "system_id": "acme"}
    error = said("cannot connect: %(why)s", why="[Errno 111]")
    async with pool.acquire() as conn:
        made = await suppliers.add(conn, key, name="main", kind="smpp", settings=options, secret="x")
    worker = uuid7()
    await pool.execute("INSERT INTO workers (id, name, started_at, seen_at) VALUES ($1, 'w', now(), now())", worker)
    await pool.execute(
        "INSERT INTO supplier_sessions (supplier_id, slot, worker_id, lease_until, detail)"
        " VALUES ($1, 0, $2, now() + interval '1 minute', $3)",
        made,
        worker,
        packed(error),
    )
    for path in ("/console/suppliers", f"/console/suppliers/{made}", "/console/now", "/console/health"):
        page = await root.get(path, Cookie="hg-language=pt")
        assert "não é possível ligar: [Errno 111]" in page.words, path
        assert "cannot connect" not in page.words, path
        assert "cannot connect: [Errno 111]" in (await root.get(path)).words, path


def test_the_steps_of_a_test_of_a_connection_keep_their_sentences() -> None:
    steps = [
        Step("connect", False, 0.1, said("no answer within %(seconds)s s", seconds="5")),
        Step("tls", True, 0, quoted("TLSv1.3")),
    ]
    again = decoded(encoded(steps), list[Step])
    assert again == steps
    assert [locale("pt").sentence(one.said) for one in again] == ["sem resposta em 5 s", "TLSv1.3"]
    followed = Trial("…4567", clock.EPOCH, Followed(phase="done", detail=said("no session in time"), note="unreached"))
    assert locale("pt").sentence(decoded(encoded(followed), Trial).followed.detail) == "sem sessão a tempo"
    assert decoded(encoded(followed), Trial) == followed
