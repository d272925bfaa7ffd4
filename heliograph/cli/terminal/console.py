"""What every command shares: finding the database, and exiting on an expected refusal.

Exit status: 0 done, 1 refused or not found, 2 wrong usage or settings, 3 something required (usually the database)
cannot be reached.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import errno
import getpass
import io
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar
from uuid import UUID

import asyncpg
import msgspec
import typer

from heliograph.accounts import organizations
from heliograph.accounts.organizations import Organization
from heliograph.base.actor import Actor, Principal
from heliograph.base.database import url as database_url
from heliograph.base.database.clock import ClockDiffers
from heliograph.base.database.migrate import MigrationError
from heliograph.base.database.pool import CLIENT_SETTINGS, Connection, follow_clock, is_down, lift_transaction_timeout
from heliograph.base.embedded.install import PostgresError
from heliograph.base.embedded.server import default_data_dir, owner_url_of, url_of
from heliograph.base.errors import Invalid, Refusal
from heliograph.base.network.connecting import connect
from heliograph.base.network.failures import reason
from heliograph.base.process.settings import Settings, SettingsError, demand_secret_key, from_environment, unknown_names
from heliograph.cli.terminal.printing import as_plain, cell, plain_letters, say, say_as_log
from heliograph.demo.credentials import LOCAL_WEBHOOKS, read_credentials
from heliograph.sealing import text_keys
from heliograph.up import secret_keys
from heliograph.up.errors import UpError

Result = TypeVar("Result")

FAILED, WRONG, UNREACHABLE = 1, 2, 3
#: Issues of values that are wrong whatever is stored: wrong usage, not a refusal.
ALWAYS = frozenset({"count", "enum", "exclusive", "format", "length", "one_of", "pattern", "range", "type"})
#: The years that a report can be about: a week before the first and a day after the last are times as well.
YEARS = range(2000, 3000)
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        show_default=False,
        help=(
            "Data directory of `heliograph up`, whose database and secret key to use. Defaults to "
            "HELIOGRAPH_DATABASE_URL, or else to the default data directory if it exists."
        ),
    ),
]
Org = Annotated[
    str | None,
    typer.Option(
        "--org",
        show_default=False,
        help="Organization, by id or name. Optional if there is only one.",
    ),
]
OrgOrAll = Annotated[
    str | None,
    typer.Option("--org", show_default=False, help="Only this organization, by id or name. Defaults to all."),
]


class Problem(Exception):
    """Ends the command with a message on stderr and an exit status."""

    def __init__(self, text: str, exit_status: int = FAILED) -> None:
        super().__init__(text)
        self.exit_status = exit_status


class NoDatabase(Problem):
    """The database cannot be reached."""

    def __init__(self, text: str, error: BaseException) -> None:
        super().__init__(text, UNREACHABLE)
        self.error = error


#: Commands that log to stderr, with the format of their logs unless it is set. What reads lines of JSON there has to be
#: able to read all of them.
LOGS = {"api": "json", "worker": "json", "up": "text"}


def settings_of(
    data_dir: Path | None,
    *,
    needs_key: bool = False,
    direct: bool = True,
    environment: Mapping[str, str] = os.environ,
) -> Settings:
    """The settings of the environment, completed from a data directory. Raises SettingsError.

    A named data directory takes precedence over HELIOGRAPH_DATABASE_URL if it contains a database; the default one is
    considered only if that variable is not set. HELIOGRAPH_SECRET_KEY takes precedence over the directory's file, as do
    the variables about webhook addresses over what its `up` allows.

    `direct`: bypass a pooler with HELIOGRAPH_DATABASE_DIRECT_URL.
    """
    settings = from_environment(environment)
    demand_directory(data_dir)
    if data_dir is None and not settings.database_url and os.path.isdir(default_data_dir(environment)):
        data_dir = default_data_dir(environment)
    if data_dir is not None:
        if not settings.database_url or os.path.isdir(data_dir / "postgres"):
            here = data_dir / "postgres"
            settings = msgspec.structs.replace(
                settings, database_url=url_of(here), owner_database_url=owner_url_of(here), database_direct_url=""
            )
        known = read_credentials(data_dir / "credentials.json")
        if known is not None and known.has_local_webhooks:
            local = from_environment({**LOCAL_WEBHOOKS, **environment})
            settings = msgspec.structs.replace(
                settings,
                webhook_allow_http=local.webhook_allow_http,
                webhook_allow_networks=local.webhook_allow_networks,
            )
        try:
            settings = secret_keys.completed(settings, data_dir)
        except UpError as error:
            raise SettingsError(str(error)) from None
    if not settings.database_url:
        raise SettingsError(
            "no database is configured: set HELIOGRAPH_DATABASE_URL, or give the data directory of "
            "`heliograph up` with --data-dir"
        )
    if needs_key:
        demand_secret_key(settings)
    if direct and settings.database_direct_url:
        settings = msgspec.structs.replace(settings, database_url=settings.database_direct_url)
    return settings


def demand_directory(data_dir: Path | None) -> None:
    """Raise SettingsError if the named data directory is not one."""
    if data_dir is not None and not os.path.isdir(data_dir):
        what = "is not a directory" if os.path.exists(data_dir) else "does not exist"
        raise SettingsError(
            f"the data directory {data_dir} {what}: give the data directory of `heliograph up` with --data-dir"
        )


def embedded_home(data_dir: Path | None, environment: Mapping[str, str] = os.environ) -> Path | None:
    """The location of the embedded PostgreSQL that `settings_of` selects; None if it selects another database, whose
    URL may also come from a file. Raises SettingsError."""
    if data_dir is None and not from_environment(environment).database_url:
        data_dir = default_data_dir(environment)
    home = None if data_dir is None else data_dir / "postgres"
    return home if home is not None and os.path.isdir(home) else None


def on_database(work: Callable[[Connection], Awaitable[Result]], settings: Settings) -> Result:
    """Run `work` on a connection of its own. Raises Problem if the database cannot be reached."""

    text_keys.arm(settings)

    async def connected() -> Result:
        async with connection(settings.database_url) as conn:
            return await work(conn)

    return asyncio.run(connected())


@contextlib.asynccontextmanager
async def connection(url: str) -> AsyncIterator[Connection]:
    """A connection to the database. Raises Problem if it cannot be reached."""
    try:
        conn = await connect(url, command_timeout=30, server_settings=CLIENT_SETTINGS)
        await lift_transaction_timeout(conn)
        await follow_clock(conn)
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, ValueError) as error:
        raise no_database(url, error) from None
    try:
        yield conn
    finally:
        # A connection lost in the meantime cannot be closed properly.
        with contextlib.suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            await conn.close(timeout=2)


def no_database(url: str, error: BaseException) -> NoDatabase:
    """The message about a database that cannot be reached."""
    return NoDatabase(f"the database at {database_url.shown(url)} cannot be reached: {unreachable(error)}", error)


def unreachable(error: BaseException | None) -> str:
    """Why the database cannot be reached; None: no try has ended."""
    return "it does not answer" if error is None or not str(error) else reason(error)


async def organization(conn: Connection, reference: str | None) -> Organization:
    """The organization named by `--org`. Raises NotFound, Invalid."""
    return await organizations.find(conn, reference=reference)


async def only(conn: Connection, reference: str | None) -> UUID | None:
    """The id of the organization named by `--org`, or None for all. Raises NotFound."""
    return None if reference is None else (await organization(conn, reference)).id


def with_organization(rows: Sequence[tuple[str, Any]]) -> list[dict[str, Any]]:
    """Records with the name of their organization, for `show`."""
    return [{"organization": name, **as_plain(row)} for name, row in rows]


async def operator(conn: Connection, reference: str | None) -> Actor:
    """An operator acting for the organization named by `--org`."""
    return acting_for(await organization(conn, reference))


def acting_for(one: Organization) -> Actor:
    """An operator acting for an organization."""
    return Actor(one.id, None, "live", frozenset(), one.state, by=shell())


def shell() -> Principal:
    """The name the audit log records for actions at this shell: the system user, also behind sudo."""
    return Principal("cli", name=os.environ.get("SUDO_USER") or _user())


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # an account without a name, as in a container
        return str(os.getuid())


def moment(text: str, option: str) -> datetime:
    """Parse a time written by an operator into UTC. Raises typer.BadParameter on `option`."""
    try:
        at = datetime.fromisoformat(text)
        if at.tzinfo is not None:
            return at.astimezone(UTC)
    except (ValueError, OverflowError):
        raise typer.BadParameter("must be a time such as 2027-01-31T00:00:00Z", param_hint=option) from None
    raise typer.BadParameter("needs a time zone: add Z for UTC", param_hint=option)


def in_capitals(code: str | None) -> str | None:
    """Callback of an option for a country's code, which may be typed in lower case. `any` is a word, not a code."""
    return code if code is None or code == "any" else code.upper()


def run(app: typer.Typer) -> None:
    """Run a command; ends the process."""
    _open_streams()
    codecs.register_error("plain", plain_letters)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="plain")
    given = LOGS.get(sys.argv[1] if len(sys.argv) > 1 else "")
    if given and os.environ.get("HELIOGRAPH_LOG_FORMAT", given) == "json" and not sys.stderr.isatty():
        say_as_log()
    _demand_docstrings(sys.flags.optimize)
    _demand_utf8(sys.argv, os.environ)
    for name, near in unknown_names().items():
        say(f"heliograph: {name} is not a setting and is ignored{(f'; did you mean {near}?' if near else '.')}")
    try:
        with _printed():
            app(prog_name="heliograph")
    except Refusal as refusal:
        _end(_refusal(refusal), WRONG if _is_wrong_usage(refusal) else FAILED)
    except Problem as problem:
        _end(str(problem), problem.exit_status)
    except SettingsError as error:
        _end(str(error), WRONG)
    except PostgresError as error:
        _end(str(error), UNREACHABLE)
    except ClockDiffers as error:
        _end(str(error), FAILED)
    except MigrationError as error:
        _end(str(error), FAILED)
    except asyncpg.UndefinedTableError:
        _end("the database has no schema yet: run `heliograph migrate` first", UNREACHABLE)
    except (asyncpg.UndefinedColumnError, asyncpg.UndefinedFunctionError):
        _end("the database is older than this program: run `heliograph migrate` first", UNREACHABLE)
    except asyncpg.InsufficientPrivilegeError as error:
        _end(
            f"{error}: run `heliograph migrate` with this HELIOGRAPH_DATABASE_URL and the owner's"
            " HELIOGRAPH_OWNER_DATABASE_URL, which grants the role what it needs",
            UNREACHABLE,
        )
    except asyncpg.DeadlockDetectedError:
        _end("the database rolled this back, since it and another transaction waited for each other: repeat it", FAILED)
    except (asyncpg.PostgresError, asyncpg.InterfaceError, ConnectionError, TimeoutError) as error:
        if not is_down(error):
            raise
        _end(f"the database cannot be used: {reason(error)}", UNREACHABLE)


def _open_streams() -> None:
    """Open /dev/null for the standard streams that the caller has closed (`<&-`): otherwise the next file or connection
    gets the number of one, and what a program that is started here prints."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
            os.set_inheritable(null, null == number)
            setattr(sys, name, os.fdopen(null, mode, errors="replace"))


def _demand_docstrings(optimize: int) -> None:
    """End the process if Python removes docstrings (`-OO`): they are the texts of refusals, of the API's document and
    of the help."""
    if optimize > 1:
        _end("PYTHONOPTIMIZE=2 (-OO) removes texts that Heliograph shows: set it to 1, or remove it", WRONG)


def _demand_utf8(words: Sequence[str], environment: Mapping[str, str]) -> None:
    """End the process if an argument or a variable of ours is not UTF-8: neither JSON nor URLs nor the database accept
    other bytes."""
    for name, value in environment.items():
        try:
            value.encode() if name.startswith("HELIOGRAPH_") else None
        except UnicodeEncodeError:
            _end(f"{name} is not UTF-8 text", WRONG)
    for at, word in enumerate(words[1:], 1):
        try:
            word.encode()
        except UnicodeEncodeError:
            before = word.partition("=")[0] if word.startswith("--") and "=" in word else words[at - 1]
            option = f" ({before})" if before.startswith("-") and before.isascii() else ""
            _end(f"argument {at}{option} is not UTF-8 text", WRONG)


@contextlib.contextmanager
def _printed() -> Iterator[None]:
    """Flush what was printed. Raises Problem if that fails; if the reader is gone, ends silently."""
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except OSError as error:
        if not _is_of_stdout(error):
            raise
        # What is still buffered would fail again, with a traceback, when the interpreter exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno == errno.EPIPE:
            raise SystemExit(FAILED) from None
        raise Problem(f"cannot write the output: {error.strerror}") from None


def _is_of_stdout(error: OSError) -> bool:
    """True if stdout raised it, not another file or a connection: stdout then still cannot be written."""
    is_usual = error.errno in (errno.ENOSPC, errno.EPIPE)
    if not isinstance(getattr(sys.stdout, "buffer", None), io.BufferedWriter):  # PYTHONUNBUFFERED: no buffer
        return is_usual
    try:
        # It does not keep what exceeds its buffer (4096 bytes), so there may be nothing left to flush.
        sys.stdout.write("\n" if is_usual else "")
        sys.stdout.flush()
    except OSError:
        return True
    return False


def _end(text: str, exit_status: int) -> None:
    say(f"heliograph: {text}", level="error")
    raise SystemExit(exit_status) from None


def _is_wrong_usage(refusal: Refusal) -> bool:
    issues = {field["issue"] for field in refusal.details.get("fields", [])}
    return isinstance(refusal, Invalid) and bool(issues) and issues <= ALWAYS


def _refusal(refusal: Refusal) -> str:
    return explained(refusal.message, refusal.details)


def explained(message: str, details: Mapping[str, Any]) -> str:
    """A refusal's message with its details, or those of its fields."""
    details = dict(details)
    # Several fields may have the same message.
    fields = dict.fromkeys(field["message"] for field in details.pop("fields", []))
    text = "; ".join(fields) or message
    # What the text says already is not repeated: it names the resource, and often the id.
    told = {name: value for name, value in as_plain(details).items() if value is not None and name != "resource"}
    told = {name: value for name, value in told.items() if not (isinstance(value, str) and value and value in text)}
    known = ", ".join(f"{name}: {cell(value)}" for name, value in told.items())
    return f"{text.rstrip('.')} ({known})" if known else text
