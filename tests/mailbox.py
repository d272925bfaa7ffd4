"""An SMTP server on a real socket that stores the mails it receives, and answers as a test wants."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import email
import ssl
from collections.abc import AsyncIterator
from email.message import EmailMessage
from email.policy import default


class Mailbox:
    """`answers`: the response to a command, instead of the usual one; "" for none. `commands`: what was received,
    with or without TLS."""

    def __init__(self, *, tls: ssl.SSLContext | None = None, passwords: dict[str, str] | None = None) -> None:
        self.mails: list[EmailMessage] = []
        self.recipients: list[str] = []
        self.commands: list[tuple[str, bool]] = []
        self.answers: dict[str, str] = {}
        self.port = 0
        self._tls = tls
        self._passwords = passwords or {}
        self._writers: set[asyncio.StreamWriter] = set()
        self._talks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talk = asyncio.current_task()
        assert talk is not None
        self._talks.add(talk)
        self._writers.add(writer)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
                await self._talk(reader, writer)
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_secure = False
        writer.write(b"220 mailbox ESMTP\r\n")
        while line := (await reader.readline()).decode().strip():
            verb = line.split()[0].upper()
            self.commands.append((line, is_secure))
            answer = self.answers.get(verb, self._usual(line, verb, is_secure))
            if answer == "":
                await reader.read()
                return
            writer.write(answer.encode() + b"\r\n")
            await writer.drain()
            if verb == "STARTTLS" and answer.startswith("220"):
                assert self._tls is not None
                await writer.start_tls(self._tls)
                is_secure = True
            if verb == "DATA" and answer.startswith("354"):
                data = await reader.readuntil(b"\r\n.\r\n")
                writer.write((self.answers.get(".", "250 2.0.0 taken")).encode() + b"\r\n")
                if "." not in self.answers:
                    text = data[:-3].replace(b"\r\n..", b"\r\n.").replace(b"\r\n", b"\n")
                    found = email.message_from_bytes(text, policy=default)
                    assert isinstance(found, EmailMessage)
                    self.mails.append(found)
            if verb == "QUIT":
                return

    def _usual(self, line: str, verb: str, is_secure: bool) -> str:
        if verb == "EHLO":
            offers = ["AUTH PLAIN"] if self._passwords else []
            offers += ["STARTTLS"] if self._tls is not None and not is_secure else []
            return "\r\n".join(["250-mailbox", *(f"250-{one}" for one in offers), "250 8BITMIME"])
        if verb == "AUTH":
            _, user, password = base64.b64decode(line.split()[-1]).decode().split("\0")
            return "235 ok" if self._passwords.get(user) == password else f"535 no such password for {user}"
        if verb == "RCPT":
            self.recipients.append(line.partition("<")[2].rstrip(">"))
        return {"STARTTLS": "220 go on", "DATA": "354 go on", "QUIT": "221 bye"}.get(verb, "250 ok")

    async def hang_up(self) -> None:
        for writer in self._writers:
            writer.close()
        if self._talks:
            await asyncio.wait(self._talks)


@contextlib.asynccontextmanager
async def listening(mailbox: Mailbox) -> AsyncIterator[Mailbox]:
    server = await asyncio.start_server(mailbox.serve, "127.0.0.1", 0)
    mailbox.port = server.sockets[0].getsockname()[1]
    try:
        yield mailbox
    finally:
        server.close()
        await mailbox.hang_up()
        await server.wait_closed()
