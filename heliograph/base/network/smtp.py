"""Sends mails through an SMTP server (RFC 5321).

The rules nobody may break: a password never goes over an unencrypted connection, except to this machine, and appears
in no text produced here; and no server, however slow, occupies a thread for longer than `DEADLINE`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
import smtplib
import socket
import ssl
import unicodedata
import urllib.parse
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from email.header import Header
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import formatdate, parseaddr
from functools import partial

import msgspec

from heliograph.base.network.tls import client_context

#: Seconds for one answer, and for a whole mail.
PATIENCE, DEADLINE = 15.0, 40.0
#: Mails that one process sends concurrently.
AT_ONCE = 2
#: Maximum characters kept of a server's answer.
LONGEST_SAID = 300

#: Addresses that need neither quoting nor SMTPUTF8. Others exist, but hardly any server accepts them.
_is_plain = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*@[A-Za-z0-9.-]+").fullmatch


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """The outgoing mail server. `starttls`: the connection begins unencrypted and must be encrypted before anything
    else."""

    host: str
    port: int
    is_tls: bool
    starttls: bool
    user: str = ""
    password: str = ""

    def __repr__(self) -> str:
        return f"Server({self.host}:{self.port})"


class Mail(msgspec.Struct, frozen=True):
    """A plain-text mail to one person."""

    to: str
    subject: str
    text: str


class MailNotSent(Exception):
    """A mail was not sent. `reason`: a key of REASONS; `said`: the server's answer, which may name people.
    `is_final`: retrying is pointless."""

    def __init__(self, reason: str, said: str = "", *, is_final: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.is_final = reason, is_final
        self.said = "".join(one if one.isprintable() else " " for one in said[:LONGEST_SAID]).strip()


#: Why a mail was not sent, as shown in logs and by commands.
REASONS = {
    "address": "mail cannot be sent to an address of this form",
    "unreachable": "the mail server cannot be reached",
    "tls": "the connection to the mail server cannot be encrypted, or its certificate is not trusted",
    "credentials": "the mail server refused the user name or the password",
    "sender": "the mail server refused HELIOGRAPH_MAIL_FROM",
    "refused": "the mail server refused this mail or its recipient",
    "busy": "the mail server asked to try again later",
    "slow": "the mail server did not answer in time",
}


def parse(url: str) -> Server:
    """Parse `smtp://user:password@host:port` (STARTTLS) or `smtps://…` (TLS from the beginning).

    Raises ValueError, whose text never contains the password. `?starttls=no` is for servers in one's own network; they
    cannot have a password, unless they are on this machine, where no STARTTLS is the default.
    """
    try:
        parts = urllib.parse.urlsplit(url.strip())
        port = parts.port
    except ValueError:
        raise ValueError("it is not a URL; characters such as / and @ in a password are written %2F and %40") from None
    if parts.scheme not in ("smtp", "smtps") or not parts.hostname or parts.path not in ("", "/") or parts.fragment:
        raise ValueError("it must look like smtp://user:password@host:587 or smtps://user:password@host:465")
    options = urllib.parse.parse_qs(parts.query, keep_blank_values=True)
    wanted = options.pop("starttls", [""])[-1]
    if options or wanted not in ("", "yes", "no"):
        raise ValueError("its only option is ?starttls=yes or ?starttls=no")
    is_tls = parts.scheme == "smtps"
    if is_tls and wanted:
        raise ValueError("smtps:// is encrypted from the beginning; ?starttls belongs to smtp://")
    starttls = not is_tls and (wanted == "yes" or (wanted == "" and not _is_here(parts.hostname)))
    user, password = (urllib.parse.unquote(one or "") for one in (parts.username, parts.password))
    if bool(user) != bool(password):
        raise ValueError("a user name and a password belong together")
    if not (user + password).isprintable():
        raise ValueError("a user name and a password consist of printable characters")
    if password and not (is_tls or starttls or _is_here(parts.hostname)):
        raise ValueError("a password would go out unencrypted; use STARTTLS or smtps://")
    default = 465 if is_tls else 587
    return Server(
        host=parts.hostname, port=port or default, is_tls=is_tls, starttls=starttls, user=user, password=password
    )


def parse_sender(text: str) -> Address:
    """`ana@example.com` or `Acme <ana@example.com>`. Raises ValueError."""
    name, address = parseaddr(text.strip())
    if not _is_plain(address) or not name.isprintable():
        raise ValueError("it must look like no-reply@example.com or Acme <no-reply@example.com>")
    return Address(name, addr_spec=address)


class Mailer:
    """Sends mails, each on a connection of its own. One per process; close it."""

    def __init__(self, server: Server, sender: Address) -> None:
        self._server, self._sender = server, sender
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="smtp")

    async def send(self, mail: Mail, *, id: str, wanted: Callable[[], bool] = lambda: True) -> str:
        """Send a mail; returns the server's answer. Raises MailNotSent. `id`: the same for every attempt, so that a
        mail that arrives twice is shown once. `wanted`: whether it may still be sent, asked in another thread just
        before it is."""
        address = _recipient(mail.to)
        message = self._message(mail, address, id)
        client = _Client(self._server, self._sender.domain)
        running = asyncio.get_running_loop().run_in_executor(
            self._threads, partial(client.deliver, message, self._sender.addr_spec, address, wanted)
        )
        try:
            return await asyncio.wait_for(running, DEADLINE)
        except TimeoutError:
            if client.accepted:  # only the farewell took too long
                return client.accepted
            raise MailNotSent("slow") from None
        finally:
            client.abort()

    async def greet(self) -> None:
        """Connect and sign in as for a mail, then disconnect. Raises MailNotSent."""
        client = _Client(self._server, self._sender.domain)
        running = asyncio.get_running_loop().run_in_executor(self._threads, client.greet)
        try:
            await asyncio.wait_for(running, PATIENCE)
        except TimeoutError:
            raise MailNotSent("slow") from None
        finally:
            client.abort()

    def close(self) -> None:
        """Accept no more mails."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _message(self, mail: Mail, to: str, id: str) -> EmailMessage:
        message = EmailMessage(policy=SMTP)
        message["From"] = self._sender
        message["To"] = Address(addr_spec=to)
        subject = " ".join(mail.subject.split())
        if subject.isascii() and "=?" not in subject:
            message["Subject"] = subject
        else:
            # Encoded here: the library decodes a name that looks like an encoded word, fails if that is no UTF-8, and
            # loses spaces between long words.
            message.set_raw("Subject", Header(subject, "utf-8", header_name="Subject").encode())
        message["Date"] = formatdate(usegmt=True)
        message["Message-ID"] = f"<{id}@{self._sender.domain}>"
        # RFC 3834: no automatic answer is wanted.
        message["Auto-Submitted"] = "auto-generated"
        message.set_content(mail.text, cte="quoted-printable")
        return message


class _Client:
    """One SMTP session, in a thread. `abort` ends it from outside, whatever it is waiting for."""

    def __init__(self, server: Server, name: str) -> None:
        """`name`: our name in the greeting; asking DNS for it could take long."""
        self._server = server
        self._name = name
        self._smtp: smtplib.SMTP | None = None
        #: The connection, for `abort`: TLS takes it out of its own object while it is negotiated.
        self._line: socket.socket | None = None
        self._is_over = False
        #: The server's answer, once it has accepted the mail.
        self.accepted = ""

    def deliver(self, message: EmailMessage, sender: str, to: str, wanted: Callable[[], bool]) -> str:
        with self._told():
            smtp = self._signed_in()
            for said, (code, text) in (("sender", smtp.mail(sender)), ("refused", smtp.rcpt(to))):
                _demand(code, text, said)
            if not wanted():
                raise MailNotSent("slow")
            try:
                code, text = smtp.data(message.as_bytes())
            except smtplib.SMTPDataError as error:  # before the mail itself
                _demand(error.smtp_code, error.smtp_error, "refused")
                raise
            _demand(code, text, "refused")
            self.accepted = f"{code} {_text(text)}"[:LONGEST_SAID]
            self._leave(smtp)
            return self.accepted

    def greet(self) -> None:
        with self._told():
            self._leave(self._signed_in())

    def _signed_in(self) -> smtplib.SMTP:
        smtp = self._connected()
        if self._server.password:
            try:
                smtp.login(self._server.user, self._server.password)
            except UnicodeError:
                raise MailNotSent("credentials", "only ASCII characters can be sent") from None
            except smtplib.SMTPException as error:
                if type(error) is not smtplib.SMTPException:
                    raise
                raise MailNotSent("credentials", "it offers no method of authentication that can be used") from None
        return smtp

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Turns errors into MailNotSent; closes the connection in any case."""
        try:
            yield
        except MailNotSent:
            raise
        except smtplib.SMTPAuthenticationError as error:
            # Its text may repeat the user name, and adds nothing to the code.
            is_temporary = 400 <= error.smtp_code < 500
            raise MailNotSent("busy" if is_temporary else "credentials", f"{error.smtp_code}") from None
        except smtplib.SMTPNotSupportedError as error:
            raise MailNotSent("credentials" if "AUTH" in str(error) else "tls", str(error)) from None
        except ssl.SSLCertVerificationError as error:
            raise MailNotSent("tls", error.verify_message) from None
        except ssl.SSLError as error:
            raise MailNotSent("tls", error.reason or type(error).__name__) from None
        except smtplib.SMTPResponseException as error:
            raise MailNotSent("busy", f"{error.smtp_code} {_text(error.smtp_error)}") from None
        except TimeoutError:
            raise MailNotSent("slow") from None
        except (OSError, smtplib.SMTPException, UnicodeError) as error:
            raise MailNotSent("unreachable", type(error).__name__) from None
        finally:
            if self._smtp is not None:
                self._smtp.close()
            if self._line is not None:
                self._line.close()

    def abort(self) -> None:
        """Idempotent."""
        self._is_over = True
        if self._line is not None:
            try:
                self._line.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def _connected(self) -> smtplib.SMTP:
        server = self._server
        if self._is_over:
            raise TimeoutError
        context = client_context()
        smtp = self._smtp = smtplib.SMTP(local_hostname=self._name, timeout=PATIENCE)

        def connected(host: str, port: int, _: float) -> socket.socket:
            opened = self._open(host, port)
            return context.wrap_socket(opened, server_hostname=host) if server.is_tls else opened

        # Connected by hand, so that `abort` has a socket to close; STARTTLS verifies this name.
        smtp._get_socket = connected  # type: ignore[attr-defined]
        smtp._host = server.host  # type: ignore[attr-defined]
        code, text = smtp.connect(server.host, server.port)
        if self._is_over:  # aborted between two sockets
            raise TimeoutError
        _demand(code, text, "busy")
        smtp.ehlo_or_helo_if_needed()
        if server.starttls:
            try:
                smtp.starttls(context=context)
            except smtplib.SMTPResponseException as error:
                raise MailNotSent("tls", f"{error.smtp_code} {_text(error.smtp_error)}") from None
            smtp.ehlo()
        return smtp

    def _open(self, host: str, port: int) -> socket.socket:
        """A connection to the first address that takes one."""
        failed: OSError = TimeoutError()
        for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            try:
                one = self._line = socket.socket(family, kind, protocol)
            except OSError as error:  # as of IPv6 where the kernel has none
                failed = error
                continue
            one.settimeout(PATIENCE)
            try:
                if self._is_over:
                    raise TimeoutError
                one.connect(address)
                self._line = one.dup()
            except OSError as error:
                one.close()
                failed = error
            else:
                return one
        raise failed

    @staticmethod
    def _leave(smtp: smtplib.SMTP) -> None:
        """The mail was accepted; how the session ends does not matter."""
        try:
            smtp.quit()
        except (OSError, smtplib.SMTPException):
            pass


def _demand(code: int, text: bytes | str, refused: str) -> None:
    """Raise MailNotSent for 4xx (retry later) and 5xx (`refused`)."""
    if not 200 <= code < 300:
        is_final = code >= 500 and refused == "refused"
        raise MailNotSent("busy" if code < 500 else refused, f"{code} {_text(text)}", is_final=is_final)


def _text(said: bytes | str) -> str:
    return said.decode("utf-8", "replace") if isinstance(said, bytes) else said


def _recipient(address: str) -> str:
    """The address with its domain in IDNA form. Raises MailNotSent."""
    name, _, domain = address.strip().rpartition("@")
    try:
        encoded = domain.encode("idna")
        # The codec is of IDNA 2003, which takes straße.de for strasse.de: somebody else's.
        read = domain if domain.isascii() else encoded.decode("idna")
    except UnicodeError:
        raise MailNotSent("address", is_final=True) from None
    plain = f"{name}@{encoded.decode()}"
    if read.lower() != unicodedata.normalize("NFC", domain).lower() or not _is_plain(plain):
        raise MailNotSent("address", is_final=True)
    return plain


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
