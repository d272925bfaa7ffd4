"""The Graph client with servers that answer correctly, wrongly, partly, late or not at all, and with the simulator."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import hmac
import json
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import msgspec
import pytest
from structlog.testing import capture_logs

from heliograph.base.process.settings import SettingsError
from heliograph.simulators.graph.simulator import GraphSimulator, quick
from heliograph.suppliers.contract import Verdict
from heliograph.suppliers.whatsapp_cloud.address import check_base_url
from heliograph.suppliers.whatsapp_cloud.bodies import layout, template_body, text_body
from heliograph.suppliers.whatsapp_cloud.callbacks.webhooks import parse
from heliograph.suppliers.whatsapp_cloud.contract import CloudOutcome
from heliograph.suppliers.whatsapp_cloud.credential import Credential, app_credential, credential
from heliograph.suppliers.whatsapp_cloud.errors import Kind, Scope
from heliograph.suppliers.whatsapp_cloud.graph import CloudClient, CloudError, outcome_of, usage_pauses
from heliograph.suppliers.whatsapp_cloud.objects import TokenReport, credential_state, token_report
from tests.suppliers.graph_sockets import ACCEPTED, Peer, always, answer, error, peer
from tests.suppliers.test_smpp_tls import Authority

TOKEN = "EAAG-a-token-that-nobody-may-see"
KEY = credential(TOKEN, b"shh")
#: `printf %s TOKEN | openssl dgst -sha256 -hmac shh`
PROOF = "b38580416c3c33b2fa2d2b14bda7aeb05c680abc635534e1dcc646049b25c8c9"
BODY = text_body(to="+212600000017", text="Bonjour", opaque="our-id")


@pytest.fixture
async def graph() -> AsyncIterator[GraphSimulator]:
    async with GraphSimulator(quick()) as simulator:
        yield simulator


class TestSends:
    async def test_accepted(self) -> None:
        async with peer(always(answer(ACCEPTED))) as there, Client(there.url) as client:
            outcome = await client.send("555", KEY, BODY)
        assert (outcome.verdict, outcome.wamid, outcome.wa_id) == (Verdict.ACCEPTED, "wamid.HBgM", "212600000017")
        assert (outcome.user_id, outcome.message_status, outcome.counts) == ("MA.1349", "accepted", False)
        ((head, body),) = there.requests
        assert body == BODY
        assert head.startswith(b"POST /v25.0/555/messages?appsecret_proof=%b HTTP/1.1\r\n" % PROOF.encode())
        assert head.count(TOKEN.encode()) == 1
        assert b"Authorization: Bearer " + TOKEN.encode() in head
        assert b"Content-Type: application/json\r\n" in head

    async def test_an_answer_that_is_compressed_without_having_been_asked_to(self) -> None:
        """If it were unknown, it would be sent again."""
        raw = gzip.compress(json.dumps(ACCEPTED).encode())
        packed = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%b" % (len(raw), raw)
        async with peer(always(packed)) as there, Client(there.url) as client:
            outcome = await client.send("555", KEY, BODY)
        assert (outcome.verdict, outcome.wamid) == (Verdict.ACCEPTED, "wamid.HBgM")
        assert there.requests[0][0].count(b"Accept-Encoding: identity\r\n") == 1

    async def test_an_answer_in_chunks(self) -> None:
        raw = json.dumps(ACCEPTED).encode()
        chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(raw), raw)
        act = always(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks)
        async with peer(act) as there, Client(there.url) as client:
            assert (await client.send("555", KEY, BODY)).verdict is Verdict.ACCEPTED

    @pytest.mark.parametrize(
        ("raw", "verdict", "code", "kind"),
        [
            (error(131009), Verdict.REFUSED, "131009", Kind.REQUEST),
            (error(131047), Verdict.REFUSED, "131047", Kind.WINDOW),
            (error(190, 401, 463), Verdict.BUSY, "190/463", Kind.AUTH),
            (error(100, 400, 33), Verdict.BUSY, "100/33", Kind.AUTH),
            (error(3, 500), Verdict.BUSY, "3", Kind.AUTH),
            (error(130429, 429), Verdict.BUSY, "130429", Kind.RATE),
            (error(131000, 500), Verdict.BUSY, "131000", Kind.RETRY),
            (error(987654), Verdict.REFUSED, "987654", Kind.REQUEST),
            (error(987654, is_transient=True), Verdict.BUSY, "987654", Kind.RETRY),
            (error(987654, 500), Verdict.UNKNOWN, "987654", Kind.RETRY),
            # Whatever the status says, Graph itself said no.
            (error(131026, 200), Verdict.REFUSED, "131026", Kind.RECIPIENT),
            (answer(b"", 429), Verdict.BUSY, "http 429", Kind.RATE),
            (answer(b"<html>Bad Gateway</html>", 502), Verdict.UNKNOWN, "http 502", Kind.RETRY),
            (answer(b"", 500), Verdict.UNKNOWN, "http 500", Kind.RETRY),
            (answer(b"<html>", 403), Verdict.UNKNOWN, "http 403", Kind.RETRY),
            (answer(b"", 302, Location="http://127.0.0.1:1/"), Verdict.UNKNOWN, "http 302", Kind.RETRY),
            (answer(b"not json"), Verdict.UNKNOWN, "http 200", Kind.RETRY),
            (answer([]), Verdict.UNKNOWN, "http 200", Kind.RETRY),
            (answer({"messages": []}), Verdict.UNKNOWN, "http 200", Kind.RETRY),
            (answer({"messages": [{"id": 7}], "contacts": 7}), Verdict.UNKNOWN, "http 200", Kind.RETRY),
            (answer({"error": "odd"}, 400), Verdict.UNKNOWN, "http 400", Kind.RETRY),
            (answer({"error": {"code": "odd"}}, 400), Verdict.UNKNOWN, "http 400", Kind.RETRY),
        ],
    )
    async def test_answers(self, raw: bytes, verdict: Verdict, code: str, kind: Kind) -> None:
        async with peer(always(raw)) as there, Client(there.url) as client:
            outcome = await client.send("555", KEY, BODY)
        assert (outcome.verdict, outcome.code) == (verdict, code)
        assert outcome.fault is not None
        assert outcome.fault.kind is kind
        assert len(there.requests) == 1

    async def test_what_operators_read(self) -> None:
        details = error(132001, error_data={"details": "no such template in fr_MA"}, fbtrace_id="Akz")
        async with peer(always(details)) as there, Client(there.url) as client:
            outcome = await client.send("555", KEY, BODY)
        assert (outcome.detail, outcome.trace) == ("no such template in fr_MA", "Akz")
        async with peer(always(error(132001, error_data="x" * 9_000))) as there, Client(there.url) as client:
            assert len((await client.send("555", KEY, BODY)).detail) <= 300

    @pytest.mark.parametrize("odd", [rb"\u0000", b"\0", rb"\ud83d"])
    def test_what_the_database_cannot_store_costs_no_answer(self, odd: bytes) -> None:
        """Its message was accepted, whatever else is in the response; one with a NUL was never recorded."""
        name = b'{"wa_id":"258841234567","user_id":"MZ.1' + odd + b'","profile":{"name":"a' + odd + b'b"}}'
        taken = outcome_of(200, b'{"contacts":[' + name + b'],"messages":[{"id":"wamid.a' + odd + b'b"}]}')
        assert taken.verdict is Verdict.ACCEPTED
        assert taken.wamid in ("wamid.ab", "wamid.a?b")
        assert "\0" not in (taken.user_id or "\0")
        refused = outcome_of(400, b'{"error":{"code":131008,"message":"no ' + odd + b' here"}}')
        assert (refused.verdict, refused.code) == (Verdict.REFUSED, "131008")

    def test_ids_are_as_long_as_in_webhooks(self) -> None:
        """An id of 100,000 characters could not be stored, so the message counted as unanswered and was sent again."""
        long = "wamid." + "".join(hashlib.sha256(b"%d" % n).hexdigest() for n in range(1600))
        user = "MZ." + long
        names = [{"wa_id": "258841234567", "user_id": user}]
        taken = outcome_of(200, msgspec.json.encode({"contacts": names, "messages": [{"id": long}]}))
        assert (taken.verdict, taken.wamid, taken.user_id) == (Verdict.ACCEPTED, long[:255], user[:255])
        at = {"timestamp": "1795162400"}
        status = {"id": long, "status": "sent", "recipient_user_id": user, **at}
        answers = {"id": long, "from_user_id": user, "type": "text", "context": {"id": long}, **at}
        edits = {"id": long, "from": user, "type": "edit", "edit": {"original_message_id": long}, **at}
        value = {"metadata": {"phone_number_id": "1"}, "statuses": [status], "messages": [answers, edits]}
        entry = {"id": "2", "changes": [{"field": "messages", "value": value}]}
        items: list[Any] = list(parse(msgspec.json.encode({"object": "whatsapp_business_account", "entry": [entry]})))
        assert [(one.wamid, one.user_id) for one in items] == [(taken.wamid, taken.user_id)] * 3
        assert [one.quoted for one in items[1:]] == [taken.wamid] * 2

    async def test_the_pause_that_an_answer_asks_for(self) -> None:
        raw = error(130429, 429).replace(b"\r\n", b"\r\nRetry-After: 7\r\n", 1)
        async with peer(always(raw)) as there, Client(there.url) as client:
            assert (await client.send("555", KEY, BODY)).retry_after == 7.0

    def test_no_answer_holds_an_account_for_longer_than_an_hour(self) -> None:
        asked = [outcome_of(429, b"", seconds).retry_after for seconds in (None, 7.0, 999_999_999.0)]
        assert asked == [None, 7.0, 3600.0]

    async def test_a_closed_port_is_unreachable(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            async with Client(f"http://127.0.0.1:{free.getsockname()[1]}") as client:
                outcome = await client.send("555", KEY, BODY)
        assert (outcome.verdict, outcome.code) == (Verdict.UNREACHABLE, "connect")
        assert not outcome.counts

    async def test_a_failed_tls_handshake_is_unreachable(self) -> None:
        async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(5)
            writer.write(b"HTTP/1.1 400 no\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(garbage, "127.0.0.1", 0)
        async with server, Client(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}") as client:
            assert (await client.send("555", KEY, BODY)).verdict is Verdict.UNREACHABLE

    async def test_a_connection_that_never_opens_is_unreachable(self) -> None:
        ended = asyncio.Event()

        async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await ended.wait()
            writer.close()

        server = await asyncio.start_server(mute, "127.0.0.1", 0)
        address = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, Client(address, connect_seconds=0.3) as client:
            outcome = await client.send("555", KEY, BODY)
            ended.set()
        assert (outcome.verdict, outcome.code) == (Verdict.UNREACHABLE, "timeout")

    @pytest.mark.parametrize(
        "raw",
        [
            b"",
            b"HTTP/1.1 200 OK\r\nContent-Le",
            b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{",
            b"SMTP ready\r\n\r\n",
            answer(b"x" * 100_000),
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n18000\r\n" + b"x" * 0x18000 + b"\r\n0\r\n\r\n",
        ],
        ids=["nothing", "half head", "half body", "half chunk", "not http", "too long", "too long in chunks"],
    )
    async def test_what_ends_before_it_is_an_answer_is_unknown(self, raw: bytes) -> None:
        async with peer(always(raw, keep=False)) as there, Client(there.url) as client:
            outcome = await client.send("555", KEY, BODY)
        assert outcome.verdict is Verdict.UNKNOWN
        assert outcome.fault is not None
        assert outcome.fault.unsure
        assert outcome.counts
        assert len(there.requests) == 1

    async def test_a_connection_that_is_reset_is_unknown(self) -> None:
        async def reset(there: Peer, head: bytes, body: bytes, writer: asyncio.StreamWriter) -> bool:
            writer.transport.abort()
            return False

        async with peer(reset) as there, Client(there.url) as client:
            assert (await client.send("555", KEY, BODY)).verdict is Verdict.UNKNOWN
        assert len(there.requests) == 1

    async def test_an_answer_that_never_ends_is_unknown(self) -> None:
        async def drip(there: Peer, head: bytes, body: bytes, writer: asyncio.StreamWriter) -> bool:
            begin = b"/556/" in head
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n" if begin else b"")
            while not writer.is_closing():
                writer.write(b"x" if begin else b"")
                await asyncio.sleep(0.05)
            return False

        async with peer(drip) as there, Client(there.url, send_seconds=5.0) as client:
            outcomes = await asyncio.gather(*(client.send(number, KEY, BODY) for number in ("555", "556")))
        assert [(one.verdict, one.code) for one in outcomes] == [
            (Verdict.UNKNOWN, "timeout"),
            (Verdict.UNKNOWN, "http 200"),
        ]

    async def test_a_kept_connection_that_is_reset_under_a_send_is_unknown_and_sent_once(self) -> None:
        async def once(there: Peer, head: bytes, body: bytes, writer: asyncio.StreamWriter) -> bool:
            if len(there.requests) > 1:
                writer.transport.abort()
                return False
            writer.write(answer(ACCEPTED))
            return True

        async with peer(once) as there, Client(there.url) as client:
            assert (await client.send("555", KEY, BODY)).verdict is Verdict.ACCEPTED
            assert (await client.send("555", KEY, BODY)).verdict is Verdict.UNKNOWN
        assert (len(there.requests), there.connections) == (2, 1)

    async def test_a_send_without_a_task_is_the_same_send(self) -> None:
        """Only on a connection that is open and free; otherwise it is left to `send`."""
        outcomes: list[CloudOutcome] = []
        came = asyncio.Event()

        def done(outcome: CloudOutcome) -> None:
            outcomes.append(outcome)
            came.set()

        async with peer(always(answer(ACCEPTED))) as there, Client(there.url) as client:
            assert not client.send_now("555", KEY, BODY, uuid4(), done)
            assert (await client.send("555", KEY, BODY)).verdict is Verdict.ACCEPTED
            assert client.send_now("555", KEY, BODY, uuid4(), done)
            assert not client.send_now("555", KEY, BODY, uuid4(), done)
            await came.wait()
        assert [(one.verdict, one.wamid) for one in outcomes] == [(Verdict.ACCEPTED, "wamid.HBgM")]
        assert (len(there.requests), there.connections) == (2, 1)
        assert there.requests[0] == there.requests[1]

    async def test_an_answer_that_is_not_understood_is_unknown_and_logged_with_its_message(self) -> None:
        class Stumbling(Client):
            def _note_usage(self, headers: Mapping[str, str], credential: Credential) -> None:
                if self.stumbles:
                    raise KeyError("usage")

            stumbles = False

        message_id = uuid4()
        async with peer(always(answer(ACCEPTED))) as there, Stumbling(there.url) as client:
            assert (await client.send("555", KEY, BODY)).verdict is Verdict.ACCEPTED
            client.stumbles = True
            came: asyncio.Future[CloudOutcome] = asyncio.get_running_loop().create_future()
            with capture_logs() as logged:
                assert client.send_now("555", KEY, BODY, message_id, came.set_result)
                outcome = await came
        assert (outcome.verdict, outcome.code) == (Verdict.UNKNOWN, "KeyError")
        (said,) = [entry for entry in logged if entry["event"] == "answer to a send not understood"]
        assert (said["message_id"], said["error"]) == (str(message_id), "KeyError")

    async def test_a_kept_connection_that_has_closed_is_not_used(self) -> None:
        async with peer(always(answer(ACCEPTED))) as there, Client(there.url) as client:
            assert (await client.send("555", KEY, BODY)).verdict is Verdict.ACCEPTED
            there.abort()
            outcome = await client.send("555", KEY, BODY)
            # Either the end was seen in time, or it was not and nobody knows.
            assert outcome.verdict in (Verdict.ACCEPTED, Verdict.UNREACHABLE, Verdict.UNKNOWN)
        assert len(there.requests) == 1 + (outcome.verdict is Verdict.ACCEPTED)


class TestReads:
    async def test_all_pages_and_no_foreign_address(self) -> None:
        async def pages(there: Peer, head: bytes, body: bytes, writer: asyncio.StreamWriter) -> bool:
            query = parse_qs(urlsplit(head.split(b" ")[1].decode()).query)
            n = int(query.get("after", ["0"])[0])
            item = {"id": n, "name": f"t{n}", "language": "en-US", "status": "approved", "category": "utility"}
            paging: dict[str, Any] = {"cursors": {"before": "x", "after": str(n + 1)}}
            if n < 4:
                paging["next"] = "http://127.0.0.1:1/steal"
            writer.write(answer({"data": [item, {"id": "no name"}, 7], "paging": paging}))
            return True

        async with peer(pages) as there, Client(there.url) as client:
            found = await client.templates("900", KEY)
        assert [(one.id, one.language, one.status, one.category) for one in found] == [
            (str(n), "en_US", "APPROVED", "UTILITY") for n in range(5)
        ]
        assert len(there.requests) == 5
        assert all(b"fields=id,name" in head and b"limit=100" in head for head, _ in there.requests)
        assert not any(TOKEN.encode() in head.split(b"\r\n")[0] for head, _ in there.requests)

    async def test_a_page_of_a_megabyte(self) -> None:
        item = {"id": 1, "name": "t", "language": "en", "status": "APPROVED", "category": "UTILITY"}
        raw = json.dumps({"data": [item | {"components": [{"type": "BODY", "text": "x" * 1_000_000}]}]}).encode()
        chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(raw), raw)
        for whole in (answer(raw), b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks):
            async with peer(always(whole)) as there, Client(there.url) as client:
                (found,) = await client.templates("900", KEY)
            assert found.name == "t"

    async def test_a_listing_without_end(self) -> None:
        same = answer({"data": [], "paging": {"cursors": {"after": "a"}, "next": "x"}})
        async with peer(always(same)) as there, Client(there.url) as client:
            assert await client.phone_numbers("900", KEY) == []
        assert len(there.requests) == 2

    @pytest.mark.parametrize(
        ("raw", "verdict"),
        [
            (error(190, 401), Verdict.BUSY),
            (error(100), Verdict.REFUSED),
            (answer(b"<html>", 502), Verdict.UNKNOWN),
            (answer([1]), Verdict.UNKNOWN),
            (answer({}), Verdict.UNKNOWN),
        ],
    )
    async def test_reads_that_give_nothing(self, raw: bytes, verdict: Verdict) -> None:
        async with peer(always(raw)) as there, Client(there.url) as client:
            for reading in (
                client.templates,
                client.template,
                client.phone_numbers,
                client.phone_number,
                client.account,
            ):
                with pytest.raises(CloudError) as raised:
                    await reading("900", KEY)
                assert raised.value.verdict is verdict

    async def test_a_read_that_is_sent_elsewhere_goes_nowhere(self) -> None:
        async with peer(always(answer({"data": []}))) as elsewhere:
            away = answer({}, 302, Location=f"{elsewhere.url}/steal")
            async with peer(always(away)) as there, Client(there.url) as client:
                for reading in (client.templates, client.phone_number, client.subscribe):
                    with pytest.raises(CloudError):
                        await reading("900", KEY)
                with pytest.raises(CloudError):
                    await client.debug_token(TOKEN, by=app_credential("660", b"shh"))
            assert len(there.requests) == 4
        assert elsewhere.connections == 0

    async def test_proxies_and_passwords_of_the_environment_are_left_alone(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        netrc = tmp_path / "netrc"
        netrc.write_text("machine 127.0.0.1 login thief password thief")
        monkeypatch.setenv("NETRC", str(netrc))
        async with peer(always(answer({"id": "900"}))) as proxy, peer(always(answer({"id": "900"}))) as there:
            for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
                monkeypatch.setenv(name, proxy.url)
            async with Client(there.url) as client:
                await client.account("900", KEY)
        assert proxy.connections == 0
        assert b"Authorization: Bearer " + TOKEN.encode() in there.requests[0][0]

    async def test_a_certificate_of_nobody_known_gets_no_token(self, tmp_path: Path) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(Authority(tmp_path).issue("127.0.0.1"))
        there = Peer(always(answer(ACCEPTED)))
        server = await asyncio.start_server(there.serve, "127.0.0.1", 0, ssl=context)
        async with server, Client(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}") as client:
            assert (await client.send("555", KEY, BODY)).verdict is Verdict.UNREACHABLE
            with pytest.raises(CloudError) as raised:
                await client.account("900", KEY)
        assert raised.value.verdict is Verdict.UNREACHABLE
        assert there.requests == []

    async def test_every_call_carries_the_proof_of_its_token(self) -> None:
        """Without it, whoever steals a token can use it; an app with that setting refuses calls without it."""
        async with peer(always(answer({"id": "900", "data": []}))) as there, Client(there.url) as client:
            await client.send("555", KEY, BODY)
            calls = [client.templates, client.template, client.phone_numbers, client.phone_number, client.account]
            for call in [*calls, client.subscribed_apps, client.subscribe]:
                with contextlib.suppress(CloudError):
                    await call("900", KEY)
            asked = len(there.requests)
            await client.debug_token(TOKEN, by=app_credential("660", b"shh"))
        assert asked == 8
        queries = [parse_qs(urlsplit(head.split(b" ")[1].decode()).query) for head, _ in there.requests]
        assert [one["appsecret_proof"] for one in queries[:-1]] == [[PROOF]] * asked
        assert queries[-1]["appsecret_proof"] == [hmac.new(b"shh", b"660|shh", hashlib.sha256).hexdigest()]

    async def test_no_token_in_an_error(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            async with Client(f"http://127.0.0.1:{free.getsockname()[1]}") as client:
                with pytest.raises(CloudError) as raised:
                    await client.debug_token(TOKEN, by=app_credential("660", b"shh"))
        error = raised.value
        assert (error.verdict, error.code) == (Verdict.UNREACHABLE, "connect")
        assert error.detail, "what to do about it depends on why"
        assert error.__context__ is None
        assert TOKEN not in f"{error!r} {error}"

    async def test_usage_slows_reads_down(self) -> None:
        uses = {"900": [{"call_count": 85, "total_time": 5}, {"call_count": 30}], "901": [{"call_count": 40}]}
        assert usage_pauses({"x-business-use-case-usage": json.dumps(uses)}) == {"900": 15.0, "901": 0.0}
        regain = {"call_count": 100, "estimated_time_to_regain_access": 19}
        assert usage_pauses({"x-app-usage": json.dumps(regain)}) == {"app": 1140.0}
        for odd in ("", "7", "{", '{"a": 7}', '{"a": [7, {"call_count": "x"}]}'):
            assert set(usage_pauses({"x-business-use-case-usage": odd}).values()) <= {0.0}
        raw = answer({"id": "900"}, X_App_Usage='{"call_count":90}')
        async with peer(always(raw)) as there, Client(there.url) as client:
            assert client.pause(TOKEN) == 0.0
            assert (await client.account("900", KEY)).id == "900"
            assert client.pause(TOKEN) == 30.0
            # Another account, perhaps of another app, has calls of its own.
            assert client.pause("another token") == 0.0

    @pytest.mark.parametrize(
        "url", ["https://graph.facebook.com", "http://127.0.0.1:8090/", "http://localhost:1", "http://[::1]:1"]
    )
    def test_addresses(self, url: str) -> None:
        assert check_base_url(url) == url.rstrip("/")

    @pytest.mark.parametrize(
        "url",
        [
            "http://graph.facebook.com",
            "http://10.0.0.1",
            "http://127.0.0.1.example.com",
            "http://localhost.example.com",
            "http://127.1",
            "http://[::ffff:10.0.0.1]",
            "http://127.0.0.1@example.com",
            "http://127.0.0.1\\@example.com",
            "ftp://x",
            "graph",
            "",
            "https://",
            "https://x:0",
            "https://a:b@x",
            "https://@x",
            "https://x/?q=1",
            "https://x/?",
            "https://x/#y",
            "https://x\n.example.com",
            "https://x y",
        ],
    )
    def test_addresses_that_would_show_the_token(self, url: str) -> None:
        with pytest.raises(SettingsError):
            check_base_url(url)


class TestCredentials:
    now = datetime(2026, 11, 20, tzinfo=UTC)
    good = TokenReport(
        valid=True,
        scopes=frozenset({"whatsapp_business_management", "whatsapp_business_messaging"}),
        targets={"whatsapp_business_messaging": frozenset({"900"})},
    )

    @pytest.mark.parametrize(
        ("report", "waba", "state"),
        [
            (good, "900", "ok"),
            (good, "901", "missing_scope"),
            (TokenReport(valid=True), "900", "missing_scope"),
            (TokenReport(valid=False, detail="expired"), "900", "invalid"),
            (token_report({"data": {"scopes": []}}), "900", "unknown"),
            (token_report({}), "900", "unknown"),
        ],
    )
    def test_states(self, report: TokenReport, waba: str, state: str) -> None:
        assert credential_state(report, waba, self.now)[0] == state

    @pytest.mark.parametrize(("days", "state"), [(-1, "invalid"), (6, "expiring"), (8, "ok")])
    def test_expiry(self, days: int, state: str) -> None:
        report = TokenReport(valid=True, scopes=self.good.scopes, expires_at=self.now + timedelta(days=days))
        assert credential_state(report, "900", self.now)[0] == state


#: Last digits of a recipient, the outcome of a send, and how many messages Meta accepted.
ENDINGS = [
    ("0008", Verdict.REFUSED, "131009", 0),
    ("0009", Verdict.BUSY, "131056", 0),
    ("0010", Verdict.BUSY, "131000", 0),
    ("0011", Verdict.UNKNOWN, "timeout", 1),
    ("0012", Verdict.UNKNOWN, "timeout", 0),
    ("0013", Verdict.UNKNOWN, "closed", 1),
    ("9018", Verdict.UNKNOWN, "http 503", 0),
    ("9019", Verdict.UNKNOWN, "http 503", 0),
    ("9020", Verdict.ACCEPTED, "", 1),
    ("9022", Verdict.UNKNOWN, "closed", 0),
    ("9023", Verdict.REFUSED, "130403", 0),
]


class TestSimulated:
    async def test_every_template_of_the_demo_is_accepted_as_laid_out(self, graph: GraphSimulator) -> None:
        async with Client(graph.base_url) as client:
            listed = await client.templates(graph.options.waba, shown(graph))
            assert len(listed) == 4
            for n, one in enumerate(listed):
                plan = layout(one.components, one.parameter_format, one.category)
                values = ["481920"] if plan.authentication else [f"v{i}" for i in range(plan.parameter_count)]
                body = template_body(
                    to=f"+2126000005{n}0",
                    name=one.name,
                    language=one.language,
                    layout=plan,
                    parameters=values,
                    opaque=one.id,
                )
                outcome = await client.send(graph.options.number_id, shown(graph), body)
                assert outcome.verdict is Verdict.ACCEPTED, outcome
                assert outcome.wamid is not None
                assert outcome.wa_id == f"2126000005{n}0"
            assert await client.template(listed[0].id, shown(graph)) == listed[0]
            (number,) = await client.phone_numbers(graph.options.waba, shown(graph))
            assert number == await client.phone_number(graph.options.number_id, shown(graph))
            assert (number.digits, number.status, number.can_send) == ("15550001000", "CONNECTED", "AVAILABLE")
            account = await client.account(graph.options.waba, shown(graph))
            assert (account.id, account.portfolio_id) == (graph.options.waba, graph.options.business)
            assert account.currency
            report = await client.debug_token(graph.options.token, by=asking(graph))
            assert credential_state(report, graph.options.waba, datetime.now(UTC))[0] == "ok"
            await client.subscribe(graph.options.waba, shown(graph))
            assert graph.options.app_id in await client.subscribed_apps(graph.options.waba, shown(graph))
        assert graph.counters.accepted == 4

    async def test_recipients_that_choose_what_becomes_of_them(self, graph: GraphSimulator) -> None:
        async with Client(graph.base_url, send_seconds=3.0) as client:

            async def send(ending: str) -> tuple[str, Verdict, str, int]:
                to = f"+88860000{ending}"
                body = text_body(to=to, text="Bonjour", opaque=ending)
                outcome = await client.send(graph.options.number_id, shown(graph), body)
                return ending, outcome.verdict, outcome.code, len(graph.accepted_for(to))

            assert await asyncio.gather(*(send(row[0]) for row in ENDINGS)) == ENDINGS
        assert graph.doubled == {}

    async def test_tokens_that_fail(self, graph: GraphSimulator) -> None:
        graph.set_token("old", state="expired")
        async with Client(graph.base_url) as client:
            outcome = await client.send(graph.options.number_id, shown(graph, "old"), BODY)
            assert (outcome.verdict, outcome.code, outcome.counts) == (Verdict.BUSY, "190/463", False)
            outcome = await client.send("4040", shown(graph), BODY)
            assert outcome.verdict is Verdict.BUSY
            assert outcome.fault is not None
            assert outcome.fault.scope is Scope.NUMBER
            report = await client.debug_token("old", by=asking(graph))
            assert credential_state(report, graph.options.waba, datetime.now(UTC))[0] == "invalid"

    async def test_a_call_without_a_right_proof_is_refused(self, graph: GraphSimulator) -> None:
        graph.configure(require_proof=True)
        options = graph.options
        async with Client(graph.base_url) as client:
            assert (await client.phone_number(options.number_id, shown(graph))).id == options.number_id
            assert (await client.debug_token(options.token, by=asking(graph))).valid
            assert (await client.send(options.number_id, shown(graph), BODY)).verdict is Verdict.ACCEPTED
            wrong = credential(options.token, b"the secret of another app")
            outcome = await client.send(options.number_id, wrong, BODY)
            # The message is not to blame: it waits, with all others of its credential.
            assert (outcome.verdict, outcome.code, outcome.counts) == (Verdict.BUSY, "100", False)
            assert outcome.fault is not None
            assert (outcome.fault.kind, outcome.fault.scope) == (Kind.AUTH, Scope.CREDENTIAL)
            with pytest.raises(CloudError):
                await client.subscribed_apps(options.waba, wrong)


def shown(graph: GraphSimulator, token: str | None = None) -> Credential:
    return credential(token or graph.options.token, graph.options.app_secret.encode())


def asking(graph: GraphSimulator) -> Credential:
    return app_credential(graph.options.app_id, graph.options.app_secret.encode())


class Client(CloudClient):
    """Closes itself."""

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
