"""Meta's callbacks on a real socket: genuine ones are stored, sealed, before they are answered, others refused."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import gzip
import hashlib
import hmac
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest

from heliograph.api.callbacks import whatsapp
from heliograph.api.callbacks.door import Callbacks
from heliograph.api.door.limits import Limiter
from heliograph.base.crypto import seal, unseal
from heliograph.base.database.pool import Pool
from heliograph.base.process.settings import Settings
from heliograph.whatsapp.callbacks.intake import KIND, CallbackIntake, NotGenuine, context
from heliograph.whatsapp.mirror.apps import App, AppBook
from tests.hooks import until
from tests.rules.whatsapp_factories import APP_SECRET, KEY, VERIFY_TOKEN, make_app

from .conftest import Api, running
from .test_guard import Counting

#: As Meta writes it: lower-case escapes, and slashes escaped too.
ACCENTED = (
    rb'{"object":"whatsapp_business_account","entry":[{"id":"1","changes":[{"field":"messages","value":{"metadata":'
    rb'{"phone_number_id":"2"},"contacts":[{"profile":{"name":"Amal B\u00e9n"},"wa_id":"212600000017"}],"messages":['
    rb'{"from":"212600000017","id":"wamid.A","timestamp":"1795162455","type":"text",'
    rb'"text":{"body":"D\u2019accord \/ merci"}}]}}]}]}'
)


@pytest.fixture
async def app(pool: Pool) -> UUID:
    return await make_app(pool, verified=False)


def signature(body: bytes, secret: str = APP_SECRET) -> str:
    return "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


async def post(api: Api, app: UUID | str, body: bytes, **headers: str) -> tuple[int, Any, bytes]:
    """Post it as Meta does; `headers` with underscores for hyphens."""
    named = {"x-hub-signature-256": signature(body)} | {name.replace("_", "-"): it for name, it in headers.items()}
    named = {name: value for name, value in named.items() if value}
    address = f"{api.base_url}/in/whatsapp/{app}"
    async with api.session.post(address, data=body, headers=named | {"Content-Type": "application/json"}) as answer:
        return answer.status, answer.headers, await answer.read()


async def greet(api: Api, app: UUID | str, **query: str) -> tuple[int, Any, bytes]:
    given = {"hub.mode": "subscribe", "hub.verify_token": VERIFY_TOKEN, "hub.challenge": "1158201444"}
    params = given | {"hub." + name: value for name, value in query.items()}
    async with api.session.get(f"{api.base_url}/in/whatsapp/{app}", params=params) as answer:
        return answer.status, answer.headers, await answer.read()


async def stored(pool: Pool) -> list[bytes]:
    """Bodies of what is stored, in order of arrival."""
    rows = await pool.fetch("SELECT id, body FROM whatsapp_callbacks ORDER BY id")
    return [unseal(KEY, row["body"], context(row["id"])) for row in rows]


# -- the handshake -----------------------------------------------------------------------------------------------------


async def test_the_handshake_answers_with_the_challenge_and_nothing_else(api: Api, pool: Pool, app: UUID) -> None:
    status, headers, body = await greet(api, app)
    assert (status, body) == (200, b"1158201444")
    assert headers["content-type"].startswith("text/plain")
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-request-id"]
    assert await pool.fetchval("SELECT verified_at FROM whatsapp_apps WHERE id = $1", app) is not None


@pytest.mark.parametrize("wrong", [{"verify_token": "guess"}, {"verify_token": "é"}, {"mode": "unsubscribe"}])
async def test_a_handshake_with_anything_wrong_is_refused(
    api: Api, pool: Pool, app: UUID, wrong: dict[str, str]
) -> None:
    status, _, body = await greet(api, app, **wrong)
    assert status == 403
    assert b"1158201444" not in body
    assert await pool.fetchval("SELECT verified_at FROM whatsapp_apps WHERE id = $1", app) is None


async def test_a_handshake_without_a_query_is_refused(api: Api, app: UUID) -> None:
    async with api.session.get(f"{api.base_url}/in/whatsapp/{app}") as answer:
        assert answer.status == 403
        assert (await answer.json())["error"]["code"] == "callback_not_genuine"


# -- what is genuine ---------------------------------------------------------------------------------------------------


async def test_a_callback_is_stored_as_it_came_and_queued_before_its_answer(api: Api, pool: Pool, app: UUID) -> None:
    status, headers, body = await post(api, app, ACCENTED, x_request_id="meta-7")
    assert (status, body) == (200, b"")
    assert (headers["content-length"], headers["x-request-id"]) == ("0", "meta-7")
    assert await stored(pool) == [ACCENTED]
    row = await pool.fetchrow("SELECT * FROM whatsapp_callbacks")
    assert (row["app"], row["items"]) == (app, 1)
    assert b"merci" not in row["body"]
    queued = await pool.fetchrow("SELECT kind, line, organization_id, lane, id FROM queue")
    assert tuple(queued) == (KIND, app, UUID(int=0), 0, row["id"])
    assert await pool.fetchval("SELECT last_callback_at FROM whatsapp_apps WHERE id = $1", app) is not None


async def test_a_callback_is_the_last_one_though_the_clock_was_set_back(api: Api, pool: Pool, app: UUID) -> None:
    await pool.execute("UPDATE whatsapp_apps SET last_callback_at = now() + interval '1 day' WHERE id = $1", app)
    assert (await post(api, app, ACCENTED))[0] == 200
    assert await pool.fetchval("SELECT last_callback_at <= now() FROM whatsapp_apps WHERE id = $1", app)


async def test_whatever_is_genuine_is_stored_even_what_nobody_understands(api: Api, pool: Pool, app: UUID) -> None:
    bodies = [b"", b"not JSON", b"\xff\xfe", b'{"object":"page"}', b"[]", bytes(range(256))]
    for body in bodies:
        assert (await post(api, app, body))[0] == 200
    assert await stored(pool) == bodies


async def test_many_at_once_are_all_stored(api: Api, pool: Pool, app: UUID) -> None:
    bodies = [msgspec.json.encode({"number": number, "fill": "x" * (number * 997)}) for number in range(64)]
    answers = await asyncio.gather(*(post(api, app, body) for body in bodies * 2))
    assert {status for status, _, _ in answers} == {200}
    assert sorted(await stored(pool)) == sorted(bodies * 2)
    assert await pool.fetchval("SELECT count(*) FROM queue WHERE kind = $1", KIND) == 128


async def test_the_largest_callback_is_taken(api: Api, pool: Pool, app: UUID) -> None:
    body = b'{"fill":"' + b"x" * (3 * 1_048_576 - 11) + b'"}'
    assert (await post(api, app, body))[0] == 200
    assert await stored(pool) == [body]


async def test_while_a_secret_is_replaced_both_are_good(api: Api, pool: Pool, app: UUID) -> None:
    old = "fedcba9876543210fedcba9876543210"
    await pool.execute(
        "UPDATE whatsapp_apps SET old_secret = $2, old_secret_till = now() + interval '1 hour' WHERE id = $1",
        app,
        seal(KEY, old.encode(), f"whatsapp_apps/{app}/secret"),
    )
    assert (await post(api, app, ACCENTED))[0] == 200
    assert (await post(api, app, ACCENTED, x_hub_signature_256=signature(ACCENTED, old)))[0] == 200
    assert len(await stored(pool)) == 2


# -- what is not -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [0, len(ACCENTED) // 2, len(ACCENTED) - 1])
async def test_one_byte_changed_is_refused_and_nothing_stored(api: Api, pool: Pool, app: UUID, place: int) -> None:
    changed = bytearray(ACCENTED)
    changed[place] ^= 1
    status, headers, body = await post(api, app, bytes(changed), x_hub_signature_256=signature(ACCENTED))
    assert status == 403
    assert msgspec.json.decode(body)["error"]["code"] == "callback_not_genuine"
    assert headers["x-request-id"]
    assert await stored(pool) == []
    assert await pool.fetchval("SELECT count(*) FROM queue") == 0
    assert await pool.fetchval("SELECT last_callback_at FROM whatsapp_apps WHERE id = $1", app) is None


@pytest.mark.parametrize(
    "header",
    [
        "",
        "sha256=",
        signature(ACCENTED, "another secret"),
        signature(ACCENTED)[:-1],
        signature(ACCENTED) + "0",
        signature(ACCENTED).upper(),
        signature(ACCENTED).removeprefix("sha256="),
        "sha1=" + hmac.new(APP_SECRET.encode(), ACCENTED, hashlib.sha1).hexdigest(),
    ],
)
async def test_a_signature_of_any_other_form_is_refused(api: Api, pool: Pool, app: UUID, header: str) -> None:
    decoy = "sha1=" + hmac.new(APP_SECRET.encode(), ACCENTED, hashlib.sha1).hexdigest()
    assert (await post(api, app, ACCENTED, x_hub_signature_256=header, x_hub_signature=decoy))[0] == 403
    assert await stored(pool) == []


async def test_what_json_means_is_not_what_is_signed(api: Api, pool: Pool, app: UUID) -> None:
    same = msgspec.json.encode(msgspec.json.decode(ACCENTED))
    assert (await post(api, app, same, x_hub_signature_256=signature(ACCENTED)))[0] == 403
    assert await stored(pool) == []


async def test_a_callback_of_one_app_is_not_genuine_at_anothers_address(api: Api, pool: Pool, app: UUID) -> None:
    other = await make_app(pool, secret="another secret of another app")
    assert (await post(api, other, ACCENTED))[0] == 403
    assert await stored(pool) == []


async def test_addresses_of_nobody(api: Api, app: UUID) -> None:
    for address in (uuid4(), "", f"{app}/", f"{app}x", "-" * 36, f"..;/{app}"):
        status, _, body = await post(api, address, ACCENTED)
        assert (status, msgspec.json.decode(body)["error"]["code"]) == (404, "not_found")
    assert (await greet(api, uuid4()))[0] == 404
    async with api.session.post(f"{api.base_url}/in/telegram/{app}", data=b"{}") as answer:
        assert answer.status == 404


async def test_other_methods(api: Api, app: UUID) -> None:
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS"):
        async with api.session.request(method, f"{api.base_url}/in/whatsapp/{app}") as answer:
            assert (answer.status, answer.headers["allow"]) == (405, "GET, POST")


async def test_a_callback_that_says_it_is_compressed_is_stored_as_it_came(api: Api, pool: Pool, app: UUID) -> None:
    """The signature covers the bytes as sent. Nothing here decompresses anything, so nothing can grow in memory."""
    bomb = gzip.compress(b'{"fill":"' + b"x" * 1_000_000 + b'"}')
    assert (await post(api, app, bomb, content_encoding="gzip"))[0] == 200
    assert await stored(pool) == [bomb]


@pytest.mark.parametrize("header", ["", "X-Hub-Signature-256: sha256=" + "A" * 64, "X-Hub-Signature-256: " + "0" * 71])
async def test_without_a_signature_of_the_right_form_no_body_is_waited_for(api: Api, app: UUID, header: str) -> None:
    head = f"POST /in/whatsapp/{app} HTTP/1.1\r\nHost: x\r\nContent-Length: 3000000\r\nExpect: 100-continue\r\n"
    answer = await api.raw((head + header + ("\r\n" if header else "") + "\r\n").encode())
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert b"100 Continue" not in answer


# -- limits ------------------------------------------------------------------------------------------------------------


@pytest.fixture
async def narrow(database_url: str) -> AsyncIterator[Api]:
    """A server with narrow limits."""
    async with running(database_url, max_callback_bytes=2000, body_deadline_seconds=0.5) as found:
        yield found


async def test_a_body_past_the_limit_is_refused_however_it_comes(narrow: Api, pool: Pool, app: UUID) -> None:
    async def in_chunks() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"x" * 1000

    address = f"{narrow.base_url}/in/whatsapp/{app}"
    sizes: list[Any] = [b"x" * 2001, in_chunks()]
    for data in sizes:
        headers = {"X-Hub-Signature-256": signature(b"x" * (2001 if isinstance(data, bytes) else 3000))}
        async with narrow.session.post(address, data=data, headers=headers) as answer:
            assert answer.status == 413
            assert (await answer.json())["error"]["details"] == {"maxBytes": 2000}
    assert (await post(narrow, app, b"x" * 2000))[0] == 200
    assert await stored(pool) == [b"x" * 2000]


class Refusing(CallbackIntake):
    """Knows every app, and stores nothing; holds weak references to what it raised."""

    def __init__(self, pool: Pool) -> None:
        super().__init__(pool, AppBook(pool, KEY), KEY)
        self.raised: weakref.ref[NotGenuine] | None = None

    async def take(self, app: App, body: bytes | bytearray, signature: bytes | None) -> None:
        raise self._remembered()

    def _remembered(self) -> NotGenuine:
        error = NotGenuine()
        self.raised = weakref.ref(error)
        return error


async def test_what_was_refused_is_gone_from_memory_at_once(pool: Pool, app: UUID) -> None:
    """The error that refuses a body references the frames that hold it: if it were kept, a flood of 3 MB bodies would
    stay until the garbage collector runs, which is rare here."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"x" * 1000, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    intake = Refusing(pool)
    door = Callbacks([whatsapp.handler(intake, max_bytes=2000)], Limiter(pool, Settings()))
    headers = [(b"x-hub-signature-256", signature(b"x").encode())]
    scope = {"method": "POST", "path": f"/in/whatsapp/{app}", "headers": headers, "client": ("192.0.2.1", 1)}
    gc.collect()
    gc.disable()
    try:
        await door(scope, receive, send)
        assert sent[0]["status"] == 403
        assert intake.raised is not None
        assert intake.raised() is None
    finally:
        gc.enable()


@pytest.fixture
async def strict(database_url: str) -> AsyncIterator[Api]:
    """A server that soon refuses an address."""
    async with running(database_url, rate_failures=3) as found:
        yield found


@pytest.mark.parametrize("how", ["signature", "token", "address"])
async def test_failures_are_counted_by_address_and_what_is_genuine_is_taken_all_the_same(
    strict: Api, pool: Pool, app: UUID, how: str
) -> None:
    """Meta may come through the same proxy as an attacker."""

    async def fail() -> tuple[int, Any, bytes]:
        if how == "token":
            return await greet(strict, app, verify_token="guess")
        forged = {"x_hub_signature_256": signature(ACCENTED, "another secret")} if how == "signature" else {}
        return await post(strict, app if how == "signature" else uuid4(), ACCENTED, **forged)

    # If the minute ends meanwhile, there are three more.
    answers = [await fail() for _ in range(7)]
    statuses = [status for status, _, _ in answers]
    assert statuses[:3].count(429) == 0
    assert 429 in statuses
    _, headers, body = answers[statuses.index(429)]
    assert msgspec.json.decode(body)["error"]["details"]["limit"] == "failures"
    assert 1 <= int(headers["retry-after"]) <= 60
    assert (await post(strict, app, ACCENTED))[0] == 200
    assert (await greet(strict, app))[0] == 200
    assert await stored(pool) == [ACCENTED]


LARGE = 4_000_000


async def stall(api: Api, app: UUID, source: str) -> asyncio.StreamWriter:
    """A large callback with a wrong signature that stops shortly before its end."""
    _, writer = await asyncio.open_connection(*api.address, local_addr=(source, 0))
    head = f"POST /in/whatsapp/{app} HTTP/1.1\r\nHost: x\r\nContent-Length: {LARGE}\r\n"
    writer.write(f"{head}X-Hub-Signature-256: {signature(b'')}\r\n\r\n".encode())
    with contextlib.suppress(ConnectionError):
        writer.write(b"x" * (LARGE - 1000))
        await writer.drain()
    return writer


async def test_stalled_bodies_turn_no_genuine_callback_away(database_url: str, pool: Pool, app: UUID) -> None:
    large = b'{"fill":"' + b"y" * 3_000_000 + b'"}'
    # No deadline helps.
    async with running(database_url, body_deadline_seconds=120.0) as api:
        stalled = await asyncio.gather(*(stall(api, app, "127.0.0.9") for _ in range(13)))
        # From elsewhere there is room for anything; small bodies always find some.
        assert (await post(api, app, large))[0] == 200
        small = await raw_post(api, app, ACCENTED, "127.0.0.9")
        assert small.startswith(b"HTTP/1.1 200 ")
        # A large one from the same address gets the place of a stalled one; Meta's retry does as well.
        async with asyncio.timeout(120):
            while not (await raw_post(api, app, large, "127.0.0.9")).startswith(b"HTTP/1.1 200 "):
                pass
        assert sorted(map(len, await stored(pool))) == [len(ACCENTED), len(large), len(large)]
        for writer in stalled:
            writer.close()


async def raw_post(api: Api, app: UUID, body: bytes, source: str) -> bytes:
    """The response to a genuine callback from this address; nothing if it was aborted."""
    reader, writer = await asyncio.open_connection(*api.address, local_addr=(source, 0))
    head = f"POST /in/whatsapp/{app} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
    writer.write(f"{head}X-Hub-Signature-256: {signature(body)}\r\n\r\n".encode() + body)
    try:
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_guesses_at_apps_while_an_address_is_locked_out_cost_no_query(pool: Pool, app: UUID) -> None:
    counting: Any = Counting(pool)
    book = AppBook(counting, KEY)
    assert [await book.get(uuid4(), is_guess=True) for _ in range(50)] == [None] * 50
    assert counting.asked == 1
    assert (await book.get(app, is_guess=True)) is not None
    assert counting.asked == 2


async def test_a_body_that_does_not_come_is_not_waited_for(narrow: Api, pool: Pool, app: UUID) -> None:
    head = f"POST /in/whatsapp/{app} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n"
    head += f"X-Hub-Signature-256: {signature(b'')}\r\n\r\n"
    answer = await narrow.raw(head.encode(), b'{"object"')
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert await stored(pool) == []


async def test_without_the_database_meta_is_asked_to_come_again(
    api: Api, pool: Pool, app: UUID, as_administrator: Callable[[str], Awaitable[None]]
) -> None:
    assert (await post(api, app, ACCENTED))[0] == 200
    name = await pool.fetchval("SELECT current_database()")
    await as_administrator(f'ALTER DATABASE "{name}" CONNECTION LIMIT 0')
    await as_administrator(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE backend_type = 'client backend' AND datname = current_database() AND pid <> pg_backend_pid()"
    )
    for answered in [await post(api, app, ACCENTED), await post(api, app, ACCENTED), await greet(api, app)]:
        status, headers, body = answered
        assert (status, msgspec.json.decode(body)["error"]["code"]) == (503, "service_unavailable")
        assert headers["retry-after"] == "1"
    await as_administrator(f'ALTER DATABASE "{name}" CONNECTION LIMIT -1')

    async def is_taken() -> bool:
        return (await post(api, app, ACCENTED))[0] == 200

    # If somebody noticed that the database was down, it is back for all with the next check.
    await until(is_taken)
    assert await stored(pool) == [ACCENTED, ACCENTED]
