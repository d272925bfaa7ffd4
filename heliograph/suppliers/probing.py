"""Tests step by step whether an account can be reached, for the operator who sets it up: each step with its duration or
error.

A session is opened for the test and closed again: over SMPP bound as a transmitter, so that it receives no receipts.
The rule nobody may break: no secret is shown, and nothing is sent that costs money.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
import urllib.parse
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial

import msgspec

from heliograph.base.network.tls import client_context
from heliograph.base.sentences import Sentence, joined, quoted, said
from heliograph.http.resolver import Resolver
from heliograph.suppliers import failures, kinds
from heliograph.suppliers.contract import Account
from heliograph.suppliers.smpp.codec import pdu as p
from heliograph.suppliers.smpp.codec.statuses import name_of
from heliograph.suppliers.smpp.codec.wire import Framer, PduError
from heliograph.suppliers.smpp.settings import SmppSettings
from heliograph.suppliers.smpp.tls import new_context

#: The steps, in order.
RESOLVE, CONNECT, TLS, BIND, ENQUIRE, UNBIND = "resolve", "connect", "tls", "bind", "enquire", "unbind"
READ = 4096
#: What a refused bind means to the operator who sets the account up, by command_status.
REFUSED: Mapping[int, Sentence] = {
    0x05: said("the account already has all the sessions that it may have: end one, or ask the supplier for more"),
    0x0D: said(
        "the supplier refuses the session without a reason: a wrong system_id or password, an address that it does not "
        "allow, or too many sessions; ask it which"
    ),
    0x0E: said("the password is wrong: enter the one that the supplier gave you"),
    0x0F: said("the supplier does not know this system_id: enter the one that it gave you"),
    0x53: said("the supplier expects a different system_type: enter the one that it gave you"),
}
OTHER_REFUSED = said("the supplier refuses the session: ask it why")
#: What to check if nothing answers, by step.
SILENT: Mapping[str, Sentence] = {
    CONNECT: said("check host and port, and whether the supplier allows this machine's address"),
    BIND: said("check that the port is the one for SMPP, and whether the supplier requires TLS"),
}


class Step(msgspec.Struct, frozen=True):
    """One step. `said`: what was found, or what went wrong."""

    name: str
    ok: bool
    seconds: float
    said: Sentence


class _FailedError(Exception):
    """A step did not succeed; the message says why."""

    def __init__(self, why: Sentence) -> None:
        super().__init__(why)
        self.why = why


class _Steps:
    """Runs the steps and times each."""

    def __init__(self) -> None:
        self.done: list[Step] = []
        self.said = quoted("")

    @contextlib.asynccontextmanager
    async def step(self, name: str, limit: float) -> AsyncIterator[None]:
        began, self.said = time.monotonic(), quoted("")
        try:
            async with asyncio.timeout(limit):
                yield
        except _FailedError as error:
            why = error.why
        except (OSError, EOFError, PduError, UnicodeError) as error:
            why = failures.in_words(error, limit=limit)
            if name in SILENT and (isinstance(error, TimeoutError) or why == failures.CLOSED):
                why = joined([why, SILENT[name]], ": ")
        else:
            self.done.append(Step(name, True, time.monotonic() - began, self.said))
            return
        self.done.append(Step(name, False, time.monotonic() - began, why))
        raise _FailedError(why)


async def probe(kind: str, account: Account) -> list[Step]:
    """The steps taken, up to the first failure. Takes at most the account's own time limits.

    Over HTTP the host is resolved and connected to, with TLS if the address says so; a request would cost money. Raises
    SettingsError (names the field).
    """
    settings = kinds.settings_from(kind, account.settings)
    steps = _Steps()
    with contextlib.suppress(_FailedError):
        if isinstance(settings, SmppSettings):
            await _smpp(steps, settings, account.secret)
        else:
            url = urllib.parse.urlsplit(settings.base_url)
            port = url.port or (443 if url.scheme == "https" else 80)
            tls = client_context if url.scheme == "https" else None
            _, writer = await _connected(steps, [url.hostname or ""], port, settings.connect_seconds, tls=tls)
            writer.close()
    return steps.done


async def _connected(
    steps: _Steps,
    hosts: Sequence[str],
    port: int,
    limit: float,
    *,
    tls: Callable[[], ssl.SSLContext] | None,
    server_name: str = "",
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to the first address that takes one, as workers find it. `tls`: reads the files that it needs;
    `server_name`: in the certificate, if it is not the host's."""
    async with steps.step(RESOLVE, limit):
        with contextlib.closing(Resolver(None, lambda address: True)) as resolver:
            places = await resolver.resolve_all(hosts)
        steps.said = quoted(", ".join(address for _, address in places[:4]))
    async with steps.step(CONNECT, limit):
        host, reader, writer = await _reached(steps, places, port, limit)
    if tls is not None:
        try:
            async with steps.step(TLS, limit):
                context = await asyncio.to_thread(tls)
                await writer.start_tls(context, server_hostname=server_name or host)
                made = writer.get_extra_info("ssl_object")
                steps.said = quoted(made.version() or "" if made is not None else "")
        except _FailedError:
            writer.close()
            raise
    return reader, writer


async def _reached(
    steps: _Steps, places: Sequence[tuple[str, str]], port: int, limit: float
) -> tuple[str, asyncio.StreamReader, asyncio.StreamWriter]:
    """The first host that can be connected to, and the connection; each address gets its share of the time. Raises what
    the last address did."""
    failed: list[str] = []
    while True:
        host, address = places[len(failed)]
        try:
            async with asyncio.timeout(limit / len(places)):
                reader, writer = await asyncio.open_connection(address, port)
        except OSError:
            failed.append(address)
            if len(failed) == len(places):
                raise
            continue
        steps.said = quoted(f"{address}:{port}")
        if failed:
            steps.said = said("%(address)s, but not %(others)s", address=steps.said, others=", ".join(failed))
        return host, reader, writer


async def _smpp(steps: _Steps, settings: SmppSettings, secret: str) -> None:
    reader, writer = await _connected(
        steps,
        settings.hosts,
        settings.port,
        settings.connect_seconds,
        tls=partial(new_context, settings) if settings.tls else None,
        server_name=settings.tls_server_name,
    )
    framer = Framer()
    try:
        async with steps.step(BIND, settings.bind_seconds):
            bind = p.BindTransmitter(
                system_id=settings.system_id,
                password=secret,
                system_type=settings.system_type,
                address_range=settings.address_range,
                sequence=1,
            )
            answer = await _asked(reader, writer, framer, bind)
            if answer.status:
                name = f"{name_of(answer.status)} (0x{answer.status:08X})"
                raise _FailedError(joined([REFUSED.get(answer.status, OTHER_REFUSED), quoted(name)], ": "))
            steps.said = quoted(getattr(answer, "system_id", "") or "")
        async with steps.step(ENQUIRE, settings.silence_seconds):
            await _asked(reader, writer, framer, p.EnquireLink(2))
        async with steps.step(UNBIND, settings.unbind_seconds):
            # Some SMSCs close the connection instead of answering.
            with contextlib.suppress(EOFError, ConnectionError):
                await _asked(reader, writer, framer, p.Unbind(3))
    finally:
        writer.close()


async def _asked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, framer: Framer, pdu: p.Pdu) -> p.Pdu:
    """The answer to a PDU; an enquire_link from the peer is answered meanwhile, and what cannot be decoded is ignored,
    since it ends no worker's session."""
    if writer.is_closing():  # uvloop raises RuntimeError for a write after that
        raise asyncio.IncompleteReadError(b"", None)
    writer.write(pdu.encode())
    while True:
        data = await reader.read(READ)
        if not data:
            raise asyncio.IncompleteReadError(b"", None)
        for frame in framer.feed(data):
            try:
                found = p.decode(frame)
            except PduError:
                continue
            # Requests of the peer have sequence numbers of their own, which may equal this one's.
            if found.sequence == pdu.sequence and found.command & p.RESPONSE:
                return found
            if isinstance(found, p.EnquireLink):
                writer.write(p.EnquireLinkResp(found.sequence).encode())
