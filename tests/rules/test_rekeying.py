"""The secret key is changed during operation: each sealed value is found, sealed again, and can be opened."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
from typing import Any
from uuid import UUID

import msgspec
import pyotp
import pytest
from asyncpg import DeadlockDetectedError
from click.testing import Result
from typer.testing import CliRunner

from heliograph import rekeying
from heliograph.accounts import idempotency
from heliograph.base.actor import SYSTEM, Actor
from heliograph.base.crypto import Unsealable, unseal
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.base.process.settings import Settings
from heliograph.cli import app
from heliograph.cli.running import rekey as command
from heliograph.cli.terminal.console import Problem
from heliograph.health import keys
from heliograph.mail import outbox
from heliograph.people import factors
from heliograph.sealing import text_keys
from heliograph.sms.callbacks import addresses
from heliograph.sms.dispatch import routing, suppliers
from heliograph.sms.lookups import accounts as lookups
from heliograph.sms.management import drafts
from heliograph.webhooks import endpoints
from heliograph.whatsapp.callbacks import dead_letters
from heliograph.whatsapp.callbacks.intake import CallbackIntake
from heliograph.whatsapp.mirror import accounts, apps
from tests.rules.factories import blocked, organization
from tests.rules.whatsapp_factories import SECRET_KEY, TOKEN, made

NEW_KEY = "the secret key that comes after it"
OLD = Settings(
    secret_key=SECRET_KEY,
    webhook_allow_http=True,
    webhook_allow_networks="127.0.0.0/8",
    public_url="https://sms.example.com",
    smtp_url="smtp://127.0.0.1:1",
    mail_from="no-reply@example.com",
)
BOTH = msgspec.structs.replace(OLD, secret_key=NEW_KEY, other_secret_key=SECRET_KEY)
NEW = msgspec.structs.replace(OLD, secret_key=NEW_KEY)

#: Columns of bytes that are not sealed: hashes, public keys, files, and other parties' data.
PLAIN = {
    *(
        "api_keys.secret_hash",
        "operator_sessions.token_hash",
        "idempotency.request_hash",
        "invitations.token_hash",
        "email_changes.token_hash",
        "send_keys.request_hash",
    ),
    *("sign_in_links.token_hash", "sessions.token_hash", "recovery_codes.code_hash", "own_numbers.code_hash"),
    *("passkey_challenges.hash", "passkeys.credential_id", "passkeys.public_key", "sign_in_tries.subject"),
    *("contact_import_chunks.bytes", "export_chunks.bytes", "inbound_messages.body", "inbound_messages.raw"),
    *("receipt_bytes.raw", "webhook_attempt_evidence.body", "webhook_attempt_evidence.head"),
    *("workers.secret_keys", "web_processes.secret_keys", "backups.secret_keys"),
}


class Installation:
    """Something sealed in every place, with the first key."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    async def fill(self) -> None:
        self.actor = await organization(self.pool, quota=10)
        text_keys.arm(OLD)
        async with self.pool.acquire() as conn:
            await text_keys.switch(conn, organization_id=self.actor.organization_id, on=True)
        self.who = await made(self.pool)
        rules = endpoints.rules(OLD)
        key = suppliers.seal_key(OLD)
        async with self.pool.acquire() as conn:
            for number in range(5):
                self.supplier = await suppliers.add(
                    conn, key, name=f"s{number}", kind="smpp", settings={}, secret=f"password {number}"
                )
            draft = await drafts.get(conn, await drafts.begin(conn, name="draft", kind="smpp"))
            await drafts.save(conn, key, draft, secret="password of a draft")
            settings = {"base_url": "http://127.0.0.1:1", "account_sid": "AC"}
            secret = msgspec.json.encode({"secret": "t"}).decode()
            before = msgspec.json.encode({"secret": "the token before"}).decode()
            self.caller = await suppliers.add(conn, key, name="http", kind="twilio", settings=settings, secret=before)
            await suppliers.reconfigure(conn, key, id=self.caller, settings=settings, secret=secret)
            priced = {"base_url": "http://127.0.0.1:1", "price": "0.003", "currency": "EUR"}
            await lookups.add(conn, key, name="mnp", kind="infobip", values=priced, secrets={"secret": "look"})
            app = await apps.get_app(conn, apps.seal_key(OLD), self.who.app)
            await apps.change_app(conn, apps.seal_key(OLD), app_id=app.app_id, app_secret="the next secret")
            endpoint, self.first = await endpoints.create(
                conn, self.actor, url="http://127.0.0.1:1/", subscribed_events=["message.sent"], rules=rules
            )
            self.endpoint = endpoint.id
            _, self.second, _ = await endpoints.rotate_secret(conn, self.actor, id=endpoint.id, rules=rules)
            await self._person(conn)
            box = outbox.of(OLD)
            assert box is not None
            await outbox.put(conn, box, kind="link", content=Words("hello"), within=outbox.KEPT)
            letter = dead_letters.DeadLetter(self.who.app, clock.now(), "unknown", b"a dead letter")
            await dead_letters.store(conn, apps.seal_key(OLD), [letter])
        await self.answer(OLD, self.actor)
        callbacks = CallbackIntake(self.pool, apps.AppBook(self.pool, apps.seal_key(OLD)), apps.seal_key(OLD))
        app = await callbacks.app(self.who.app)
        await callbacks.take(app, b"{}", signed_by(b"the next secret", b"{}"))

    async def answer(self, settings: Settings, actor: Actor) -> idempotency.Outcome:
        async def run() -> tuple[int, bytes]:
            return 201, b'{"secret": "hg_live_"}'

        async with self.pool.acquire() as conn:
            return await idempotency.once(
                conn,
                actor,
                key=UUID(int=7),
                request=b"r" * 32,
                hours=72,
                wait_seconds=1.0,
                run=run,
                seal_key=idempotency.seal_key(settings),
            )

    async def read(self, settings: Settings) -> None:
        """Assert that everything can be opened. Raises Unsealable."""
        async with self.pool.acquire() as conn:
            found = await routing.load(conn)
            key = suppliers.seal_key(settings)
            opened = {one.name: suppliers.open_secret(key, one) for one in found}
            assert opened.items() >= {f"s{number}": f"password {number}" for number in range(5)}.items()
            assert await suppliers.old_secrets(conn, key, [self.caller]) == {
                self.caller: ['{"secret":"the token before"}']
            }
            (draft,) = await drafts.list_all(conn)
            assert drafts.open_secret(key, draft, field="secret") == "password of a draft"
            (lookup,) = await lookups.load(conn)
            assert lookups.open_secret(key, lookup) == '{"secret":"look"}'
            app = await apps.get_app(conn, apps.seal_key(settings), self.who.app)
            assert app.secret == b"the next secret"
            assert len(app.secrets) == 2
            sealed = await conn.fetchval("SELECT token FROM whatsapp_accounts WHERE id = $1", self.who.account_id)
            assert accounts.open_token(apps.seal_key(settings), self.who.account_id, sealed) == TOKEN
            rules = endpoints.rules(settings)
            secrets = await endpoints.secrets(conn, self.actor, id=self.endpoint, rules=rules)
            assert secrets == [self.second, self.first]
            id = self.actor.organization_id
            data_key = await conn.fetchval("SELECT sealed FROM text_keys WHERE organization_id = $1", id)
            assert len(unseal(text_keys.seal_key(settings), data_key, text_keys.context(id))) == text_keys.BYTES
            (letter,) = await dead_letters.list_all(conn, apps.seal_key(settings), limit=10)
            assert letter.raw == b"a dead letter"
            mail = await conn.fetchrow("SELECT id, kind, sealed, attempts FROM mails")
            assert mail is not None
            assert b"hello" in outbox.content(outbox.seal_key(settings), outbox.ClaimedMail(**mail))
            await conn.execute("UPDATE users SET totp_step = 0")
            code = pyotp.TOTP(self.totp).now()
            assert await factors.check(conn, factors.seal_key(settings), user_id=self.user, given=code)
        answer = await self.answer(settings, self.actor)
        assert (answer.body, answer.replayed) == (b'{"secret": "hg_live_"}', True)

    async def _person(self, conn: Any) -> None:
        self.user = await conn.fetchval(
            "INSERT INTO users (id, email, name, created_at) VALUES ($1, 'ana@example.com', 'Ana', now()) RETURNING id",
            uuid7(),
        )
        self.totp = factors.new_secret()
        given = pyotp.TOTP(self.totp).now()
        await factors.enable(conn, SYSTEM, factors.seal_key(OLD), user_id=self.user, secret=self.totp, given=given)


def signed_by(secret: bytes, body: bytes) -> bytes:
    return b"sha256=" + hmac.new(secret, body, hashlib.sha256).hexdigest().encode()


class Words(msgspec.Struct):
    words: str


@pytest.fixture
async def filled(pool: Pool) -> Installation:
    found = Installation(pool)
    await found.fill()
    return found


async def rekey(pool: Pool, settings: Settings, **options: Any) -> dict[str, tuple[int, int]]:
    """The result in each place: (rekeyed, unknown)."""
    async with pool.acquire() as conn:
        found = await rekeying.rekey(conn, settings, **options)
    return {one.place: (one.rekeyed, one.unknown) for one in found if one.rekeyed or one.unknown}


async def told(pool: Pool) -> list[Any]:
    """What the audit log says about runs."""
    rows = await pool.fetch("SELECT after FROM audit_log WHERE action = 'secrets.rekeyed' ORDER BY id")
    return [msgspec.json.decode(row["after"]) for row in rows]


async def test_everything_is_sealed_anew_and_the_old_key_may_go(pool: Pool, filled: Installation) -> None:
    await filled.read(OLD)
    await filled.read(BOTH)
    left = await rekey(pool, BOTH, check=True)
    # Every place except callbacks of HTTP suppliers, which have a test of their own.
    assert set(left) == {place.name for place in rekeying.PLACES} - {"supplier_callbacks.body"}
    assert left["suppliers.secret"] == (6, 0)
    await filled.read(OLD)
    assert await rekey(pool, BOTH, batch=2) == left
    await filled.read(BOTH)
    await filled.read(NEW)
    assert await rekey(pool, BOTH) == {}
    assert await rekey(pool, NEW, check=True) == {}
    with pytest.raises(Unsealable):
        await filled.read(OLD)
    assert await told(pool) == [
        {"state": "begun"},
        {"rekeyed": sum(count for count, _ in left.values()), "unknown": 0},
    ]


async def test_a_run_that_is_killed_goes_on_where_it_was(pool: Pool, filled: Installation) -> None:
    wanted = sum(count for count, _ in (await rekey(pool, BOTH, check=True)).values())
    committed = 0
    for steps in (1, 2, 5):
        left = steps

        def killed(line: str) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            await rekey(pool, BOTH, batch=1, say=killed)
        committed += steps
        assert (await told(pool))[-1] == {"state": "begun"}
        await filled.read(BOTH)
        assert sum(count for count, _ in (await rekey(pool, BOTH, check=True)).values()) == wanted - committed
    await rekey(pool, BOTH)
    await filled.read(NEW)


async def test_a_secret_that_is_changed_meanwhile_stays_changed(pool: Pool, filled: Installation) -> None:
    async with pool.acquire() as conn:
        rows = await conn.fetch("SELECT id, secret FROM suppliers WHERE name LIKE 's_'")
        key = suppliers.seal_key(BOTH)
        replace = rekeying.PLACES[0].sql(rekeying.REPLACE)
        await suppliers.reconfigure(conn, key, id=filled.supplier, settings={}, secret="password 4, changed")
        # Like a run that had read the rows before.
        anew = [([b"sealed anew"], [row["secret"]], row["id"]) for row in rows]
        await conn.executemany(replace, anew)
        after = {row["id"]: row["secret"] for row in await conn.fetch("SELECT id, secret FROM suppliers")}
        assert [after[row["id"]] == b"sealed anew" for row in rows].count(True) == len(rows) - 1
        (one,) = [one for one in await routing.load(conn) if one.id == filled.supplier]
        assert suppliers.open_secret(key, one) == "password 4, changed"


async def test_a_batch_that_lost_to_another_transaction_is_repeated(pool: Pool, filled: Installation) -> None:
    """As to that of a worker that locks the same rows in an order of its own."""
    wanted = await rekey(pool, BOTH, check=True)
    ids = await pool.fetch("SELECT id FROM suppliers WHERE name LIKE 's_' ORDER BY id")
    lock = "SELECT FROM suppliers WHERE id = $1 FOR UPDATE"
    # The first to wait is aborted, unless the machine is so slow that nobody waits yet.
    async with pool.acquire() as conn:
        with contextlib.suppress(DeadlockDetectedError):
            async with conn.transaction():
                await conn.execute(lock, ids[-1][0])
                running = asyncio.create_task(rekey(pool, BOTH))
                await blocked(pool)
                await conn.execute(lock, ids[0][0])
        assert await running == wanted
    await filled.read(NEW)
    assert await told(pool) == [
        {"state": "begun"},
        {"rekeyed": sum(count for count, _ in wanted.values()), "unknown": 0},
    ]


async def test_what_no_key_opens_is_counted_and_left_alone(pool: Pool, filled: Installation) -> None:
    strange = msgspec.structs.replace(BOTH, other_secret_key="a secret key that sealed nothing here")
    before = await pool.fetch("SELECT id, secret FROM suppliers ORDER BY id")
    found = await rekey(pool, strange, batch=4)
    assert found["suppliers.secret"] == (0, 6)
    assert await pool.fetch("SELECT id, secret FROM suppliers ORDER BY id") == before
    assert (await rekey(pool, BOTH))["suppliers.secret"] == (6, 0)


async def test_addresses_of_callbacks_are_known_by_either_key(pool: Pool, filled: Installation) -> None:
    for settings, known in ((OLD, [True, False]), (BOTH, [True, True]), (NEW, [False, True])):
        key = addresses.token_key(settings)
        given = [addresses.token(addresses.token_key(one), filled.caller) for one in (OLD, NEW)]
        assert [addresses.is_token(key, filled.caller, one) for one in given] == known
        for wrong in ("", given[0][:-1], given[0] + "A", "é" * 24, given[0] + "=="):
            assert not addresses.is_token(key, filled.caller, wrong)
    async with pool.acquire() as conn:
        assert await rekeying.called(conn) == ["http"]


BYTES = """
SELECT c.table_name || '.' || c.column_name AS name
  FROM information_schema.columns c
 WHERE c.table_schema = 'public' AND (c.data_type = 'bytea' OR c.udt_name = '_bytea')
   AND NOT EXISTS (SELECT FROM pg_inherits WHERE inhrelid = c.table_name::regclass)
"""


async def test_no_sealed_column_is_forgotten(pool: Pool) -> None:
    """A new column of bytes has to be listed here as sealed or not."""
    columns = {row["name"] for row in await pool.fetch(BYTES)}
    sealed = {place.name for place in rekeying.PLACES} - {"idempotency.body"}
    assert sealed <= columns
    assert columns - sealed == PLAIN


async def test_nothing_is_sealed_anew_while_a_process_lacks_the_key(pool: Pool, database_url: str) -> None:
    """A worker that was not restarted lost its suppliers, and API processes went on accepting messages."""
    given = {
        "HELIOGRAPH_DATABASE_URL": database_url,
        "HELIOGRAPH_SECRET_KEY": NEW_KEY,
        "HELIOGRAPH_OTHER_SECRET_KEY": SECRET_KEY,
    }

    async def rekeyed(*words: str) -> Result:
        return await asyncio.to_thread(CliRunner().invoke, app, ["rekey", *words], env=given)

    # Seen a while from now, so that they count as running however long this takes.
    before_that = msgspec.structs.replace(OLD, other_secret_key=NEW_KEY)
    for name, settings in (("old", OLD), ("before-that", before_that), ("both", BOTH)):
        await pool.execute(
            "INSERT INTO workers (id, name, started_at, seen_at, secret_keys)"
            " VALUES ($1, $2, now(), now() + interval '50 seconds', $3)",
            *(uuid7(), name, keys.fingerprints(settings)),
        )
    await pool.execute(
        "INSERT INTO web_processes (id, name, started_at, seen_at, version, metrics, accepting, secret_keys)"
        " VALUES ($1, 'web', now(), now() + interval '50 seconds', '', '', '{}', $2)",
        *(uuid7(), keys.fingerprints(OLD)),
    )
    refused = await rekeyed()
    assert isinstance(refused.exception, Problem)
    assert "encrypted under it: old, web; restart them with it first" in str(refused.exception)
    assert (await rekeyed("--check")).exit_code == 0
    await pool.execute("UPDATE workers SET seen_at = now() - interval '16 seconds' WHERE name = 'old'")
    await pool.execute("DELETE FROM web_processes")
    done = await rekeyed()
    assert done.exit_code == 0, done.output


def test_the_advice_asks_for_a_backup_with_the_new_key(capsys: pytest.CaptureFixture[str]) -> None:
    """Backups from before hold the old key only, which opens nothing at a later point in time restored from them."""
    command._advise(BOTH, 0, 0, [], set())
    assert "take a new backup now" in capsys.readouterr().err
    command._advise(NEW, 0, 0, [], set())
    assert "take a new backup now" not in capsys.readouterr().err


def test_the_advice_names_keys_of_texts_where_they_are_lost(capsys: pytest.CaptureFixture[str]) -> None:
    for places, named in (({"text_keys.sealed", "suppliers.secret"}, True), ({"suppliers.secret"}, False)):
        command._advise(NEW, 0, 2, [], places)
        said = capsys.readouterr().err
        assert ("What keys in text_keys sealed cannot be entered again" in said) == named
        assert "2 values are encrypted under a secret key that is not set" in said
    assert "text_keys.sealed" in {place.name for place in rekeying.PLACES}
