"""Where a command finds its database and its secret key, and how options are read."""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import io
import json
import os
import pwd
import re
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated, Any

import asyncpg
import msgspec
import pytest
import typer
from typer.testing import CliRunner

from heliograph.base.embedded.install import PostgresError
from heliograph.base.embedded.server import default_data_dir
from heliograph.base.errors import NotFound, Refusal
from heliograph.base.process.settings import DEFAULT_SECRET_KEY, SettingsError
from heliograph.campaigns.record import Campaign, Counts
from heliograph.cli import app
from heliograph.cli.developer import login, profiles
from heliograph.cli.developer.client import refusal
from heliograph.cli.developer.profiles import Profile, Profiles
from heliograph.cli.terminal import console, progress
from heliograph.cli.terminal.asking import confirm, typed_secret
from heliograph.cli.terminal.console import Problem, settings_of
from heliograph.cli.terminal.files import writing
from heliograph.cli.terminal.options import pairs
from heliograph.cli.terminal.printing import Json, fitted, line, record, say, show, single, table
from heliograph.demo import credentials
from heliograph.suppliers import kinds

#: Commands that print no records, and why: they have no `-o`.
WITHOUT_TABLE = {
    **dict.fromkeys(
        ("api", "worker", "simulate smsc", "simulate graph", "simulate receiver"),
        "runs until it is stopped, and says where it listens",
    ),
    "call": "the API's answer as it is, which has any shape",
    **dict.fromkeys(
        ("audit export", "contacts export", "optout export"),
        "a file of any length, written as it is read, CSV or an object a line",
    ),
    "person export": "a file of things that have no columns in common, an object a line",
}
KEPT = "the secret key that is kept in the directory"
OTHER = "another secret key, from the environment"
URL = "postgresql://somebody@db.example.com/messages"


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """The files that `heliograph up` leaves behind."""
    (tmp_path / "postgres").mkdir()
    (tmp_path / "postgres" / "app.password").write_text("geheim\n")
    (tmp_path / "postgres" / "owner.password").write_text("eigner\n")
    (tmp_path / "postgres" / "port").write_text("5433\n")
    (tmp_path / "secret_key").write_text(KEPT + "\n")
    return tmp_path


def test_the_environment_names_the_database() -> None:
    assert settings_of(None, environment={"HELIOGRAPH_DATABASE_URL": URL}).database_url == URL


def test_a_data_directory_that_is_named_wins(data_dir: Path) -> None:
    found = settings_of(data_dir, needs_key=True, environment={"HELIOGRAPH_DATABASE_URL": URL})
    assert found.database_url == "postgresql://heliograph:geheim@127.0.0.1:5433/heliograph"
    assert found.owner_database_url == "postgresql://heliograph_owner:eigner@127.0.0.1:5433/heliograph"
    assert found.secret_key == KEPT


def test_a_directory_of_up_on_another_database_gives_only_the_key(data_dir: Path) -> None:
    for file in (data_dir / "postgres").iterdir():
        file.unlink()
    (data_dir / "postgres").rmdir()
    found = settings_of(data_dir, environment={"HELIOGRAPH_DATABASE_URL": URL})
    assert (found.database_url, found.secret_key) == (URL, KEPT)


def test_the_environments_key_wins_over_the_files(data_dir: Path) -> None:
    assert settings_of(data_dir, environment={"HELIOGRAPH_SECRET_KEY": OTHER}).secret_key == OTHER


def test_commands_allow_the_webhooks_that_up_allows(data_dir: Path) -> None:
    smsc = credentials.Smsc("127.0.0.1", 2775, "heliograph", "word")
    made = credentials.Credentials("http://127.0.0.1:8080", "", "", "", "", smsc, has_local_webhooks=True)
    for has_local, chosen, allowed in (
        (True, {}, (True, True)),
        (False, {}, (False, False)),
        (True, {"HTTP": "false"}, (False, True)),
        (True, {"NETWORKS": ""}, (True, False)),
    ):
        made.has_local_webhooks = has_local
        credentials.write_credentials(data_dir / "credentials.json", made)
        given = {f"HELIOGRAPH_WEBHOOK_ALLOW_{name}": value for name, value in chosen.items()}
        found = settings_of(data_dir, environment=given)
        assert (found.webhook_allow_http, "127.0.0.0/8" in found.webhook_allow_networks) == allowed


def test_an_address_in_a_file_names_the_database_too(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "default_data_dir", lambda environment: data_dir)
    (tmp_path / "address").write_text(URL)
    assert console.embedded_home(None, environment={}) == data_dir / "postgres"
    given = {"HELIOGRAPH_DATABASE_URL_FILE": str(tmp_path / "address")}
    assert console.embedded_home(None, environment=given) is None


@pytest.mark.parametrize("home", [None, "/", "relative"])
def test_an_account_without_a_home_can_do_what_needs_none(monkeypatch: pytest.MonkeyPatch, home: str | None) -> None:
    """As in a container started with an arbitrary user ID: most set its home to "/"."""
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    if home is not None:
        monkeypatch.setenv("HOME", home)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    assert default_data_dir(uid=4242) == Path("/var/lib/heliograph")
    done = CliRunner().invoke(app, ["profile", "list", "--json"])
    assert (done.exit_code, json.loads(done.stdout)) == (0, [])
    with pytest.raises(Problem, match="set HOME or XDG_CONFIG_HOME"):
        profiles.change(lambda known: known)


def test_of_two_logins_at_once_both_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each read the profiles, added its own, and the later one replaced the file."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    waits_or_is_done, locking = threading.Event(), fcntl.flock

    def added(name: str) -> Callable[[Profiles], Profiles]:
        made = Profile(f"https://{name}.example.com", "hg_live_x")
        return lambda known: Profiles(name, known.profiles | {name: made})

    def second() -> None:
        profiles.change(added("second"))
        waits_or_is_done.set()

    def first(known: Profiles) -> Profiles:
        other.start()
        assert waits_or_is_done.wait(60)
        return added("first")(known)

    def observed(lock: int, operation: int) -> None:
        if threading.current_thread() is other:
            waits_or_is_done.set()
        locking(lock, operation)

    other = threading.Thread(target=second)
    monkeypatch.setattr(fcntl, "flock", observed)
    profiles.change(first)
    other.join()
    assert sorted(profiles.read().profiles) == ["first", "second"]


def test_a_directory_without_a_database_is_named(tmp_path: Path) -> None:
    with pytest.raises(PostgresError, match="heliograph up"):
        settings_of(tmp_path, environment={})


@pytest.mark.parametrize("key", ["", DEFAULT_SECRET_KEY])
def test_no_key_or_the_default_one_is_refused(key: str) -> None:
    environment = {"HELIOGRAPH_DATABASE_URL": URL, "HELIOGRAPH_SECRET_KEY": key}
    with pytest.raises(SettingsError, match="openssl rand"):
        settings_of(None, needs_key=True, environment=environment)


@pytest.mark.parametrize(
    "key",
    [
        "x" * 40,
        "ab" * 20,
        "geheim" * 6,
        "0123456" * 5,
        "aabbccddeeffgg" * 3,
        "changeme-please!" * 3,
        "abcdefghijklmnopqrstuvwxyz012345",
    ],
)
def test_a_key_of_repeated_characters_is_refused(key: str) -> None:
    environment = {"HELIOGRAPH_DATABASE_URL": URL, "HELIOGRAPH_SECRET_KEY": key}
    with pytest.raises(SettingsError, match=r"HELIOGRAPH_SECRET_KEY .* and can be guessed"):
        settings_of(None, needs_key=True, environment=environment)


@pytest.mark.parametrize(
    ("key", "detail"),
    [("", "HELIOGRAPH_SECRET_KEY is not set"), ("x" * 40, "can be guessed"), (OTHER, f"{len(OTHER)} characters")],
)
def test_doctor_says_what_a_key_lacks(key: str, detail: str) -> None:
    environment = {"HELIOGRAPH_DATABASE_URL": "postgresql://somebody@127.0.0.1:1/none", "HELIOGRAPH_SECRET_KEY": key}
    done = CliRunner().invoke(app, ["doctor", "--json", "--url", "http://127.0.0.1:1"], env=environment)
    checks = {one["check"]: one["detail"] for one in json.loads(done.stdout)}
    assert checks["secret key"] == detail


@pytest.mark.parametrize("make", [lambda: secrets.token_hex(32), lambda: secrets.token_urlsafe(48)])
def test_a_key_of_chance_is_taken(make: Callable[[], str]) -> None:
    for _ in range(100):
        key = make()
        environment = {"HELIOGRAPH_DATABASE_URL": URL, "HELIOGRAPH_SECRET_KEY": key}
        assert settings_of(None, needs_key=True, environment=environment).secret_key == key


def test_every_command_has_an_example_and_prints_json() -> None:
    def walk(command: Any, path: str) -> Iterator[str]:
        if not hasattr(command, "list_commands"):
            example = re.search(rf"Examples?:\n +(\S+=\S+ )*{path}\b", command.help)
            assert example, path
            assert not re.search(r"--at \d", command.help), f"{path}: a campaign starts within a year, not then"
            given = [one for parameter in command.params for one in parameter.opts]
            options = set(given)
            assert len(options) == len(given), path
            assert "--json" in options, path
            assert ("-o" in options) is (path.removeprefix("heliograph ") not in WITHOUT_TABLE), path
            yield path
            return
        for name in command.list_commands(None):
            yield from walk(command.get_command(None, name), f"{path} {name}")

    names = {path.split()[1] for path in walk(typer.main.get_command(app), "heliograph")}
    wanted = (
        "up migrate api worker org key sender supplier quota contacts tag campaign message inbound optout webhook queue"
        " receipts hold"
    )
    others = "send guard doctor simulate whatsapp user mail audit usage tag backup restore rekey rates prices margin"
    others += " route rule lookup login profile listen trigger logs requests completion guide person call"
    others += " billing installation workers"
    assert names == set(f"{wanted} {others}".split())


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (["-o", "tsv"], "0198\tTwo words and a tab\n0199\t-\n"),
        (["-o", "json"], '[{"id":"0198","name":"Two words\\tand a tab"},{"id":"0199","name":""}]\n'),
        (["--json"], '[{"id":"0198","name":"Two words\\tand a tab"},{"id":"0199","name":""}]\n'),
        (["-o", "table"], "id    name\n0198  Two words and a tab\n0199  -\n"),
        (["one", "-o", "tsv"], "id\t0198\nname\tTwo words and a tab\n"),
    ],
)
def test_the_form_of_what_is_printed(words: list[str], printed: str, capsys: pytest.CaptureFixture[str]) -> None:
    records = [{"id": "0198", "name": "Two words\tand a tab"}, {"id": "0199", "name": ""}]

    def command(which: Annotated[str | None, typer.Argument()] = None, json: Json = False) -> None:
        show(records[0], json) if which else show(records, json, ("id", "name"))

    single("things", command)(words, standalone_mode=False)
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize(
    ("environment", "words", "printed"),
    [
        ({}, [], "POST  \x1b[33m409\x1b[0m\n"),
        ({"NO_COLOR": ""}, [], "POST  \x1b[33m409\x1b[0m\n"),
        ({"NO_COLOR": "1"}, [], "POST  409\n"),
        ({"TERM": "dumb"}, [], "POST  409\n"),
        ({}, ["-o", "tsv"], "POST\t409\n"),
        ({}, ["--json"], '{"method":"POST","status":409}\n'),
    ],
)
def test_colours_are_for_terminals(
    environment: dict[str, str], words: list[str], printed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def command(json: Json = False) -> None:
        colours = {"status": lambda status: 33 if status == 409 else 0}
        line({"method": "POST", "status": 409}, json, ("method", "status"), colours=colours)

    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    ours, theirs = os.openpty()
    with open(theirs, "w") as terminal, open(ours, "rb", buffering=0) as screen:
        with contextlib.redirect_stdout(terminal):
            single("requests", command)(words, standalone_mode=False)
        assert screen.read(1000).decode().replace("\r\n", "\n") == printed


def test_no_colours_for_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    line({"status": 409}, False, ("status",), colours={"status": lambda status: 33})
    assert capsys.readouterr().out == "409\n"


def test_one_form_at_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    def command(json: Json = False) -> None:
        show({"id": 1}, json)

    with pytest.raises(SystemExit) as ended:
        single("things", command)(["--json", "-o", "tsv"])
    assert ended.value.code == 2
    assert "conflicts with --json" in capsys.readouterr().err


@pytest.mark.parametrize("kind", kinds.SETTINGS)
def test_every_setting_of_a_supplier_is_an_option_of_its_command(kind: str) -> None:
    command: Any = typer.main.get_command(app)
    for name in ("supplier", "add", kind):
        command = command.get_command(None, name)
    offered = {flag for one in command.params for flag in one.opts}
    own = {"submits_per_second": "rate"} if kind == kinds.SMPP else {}
    wanted = {f"--{own.get(one.name, one.name).replace('_', '-')}" for one in kinds.fields(kind)}
    assert wanted - offered == set()


@pytest.mark.parametrize("words", [("up",), ("api",), ("guide",), ("simulate", "receiver")])
def test_nothing_listens_on_an_empty_address(words: tuple[str, ...]) -> None:
    """As from an unset shell variable: `up` restarted its API again and again."""
    done = CliRunner().invoke(app, [*words, "--host", ""])
    assert (done.exit_code, "'--host': must not be empty" in done.output) == (2, True)


def test_pairs() -> None:
    assert pairs(["0x58=0.25", "8:0.5"], int, float) == {0x58: 0.25, 8: 0.5}
    assert pairs(["acme:a=b:c"], str, str) == {"acme": "a=b:c"}


@pytest.mark.parametrize("text", ["0x58", "x=0.1", "8=much"])
def test_pairs_that_are_none(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        pairs([text], int, float)


def test_tables_and_records() -> None:
    assert table([["1", "long name"], ["22", "x"]], ("id", "first_name")) == "id  first name\n1   long name\n22  x"
    assert record({"id": 1, "tags": [], "is_default": True}) == "id          1\ntags        -\nis default  yes"
    assert record({"text": "Hello\r\nJos\u00e9\n", "attempts": {}}) == "text      Hello José\nattempts  -"


def test_a_column_is_as_wide_as_a_terminal_shows_it() -> None:
    """Wide characters take two columns, combining marks none."""
    rows = [["活动 😀", "1"], ["Jose\u0301", "2"], ["any", "3"]]
    assert table(rows, ("name", "n")) == "name     n\n活动 😀  1\nJose\u0301     2\nany      3"
    long = fitted([["活动" * 20, "0199"]], ("name", "id"), 30)
    assert long.splitlines()[1] == "活动" * 5 + "...  0199"


def test_a_text_of_somebody_else_cannot_command_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """A supplier's response, or an inbound text: it must not clear the screen, nor show a number in reverse."""
    bad = "a\x1b[2J\x9b31m\x07\u202eb\tc\nd"
    shown = "a\ufffd[2J\ufffd31m\ufffd\ufffdb c d"
    show([{"text": bad, "more": {bad: 1}}], False, ("text", "more"))
    show({"text": bad}, False)
    line({"text": bad}, False, ("text",))
    say(f"heliograph: {bad}")
    show({"text": bad}, True)
    out, err = capsys.readouterr()
    assert out.count(shown) == 4
    assert err == f"heliograph: {shown.removesuffix(' d')}\nd\n"
    assert not {"\x1b", "\x9b", "\x07"} & set(out + err)
    assert json.loads(out.splitlines()[-1]) == {"text": bad}


@pytest.mark.parametrize("answer", [b'{"status":"ok"}', b'{"healthy":true}', b'{"status":"ok","checks":"none"}', b"[]"])
def test_doctor_tells_a_stranger_from_the_api_and_how_an_embedded_database_is_started(
    data_dir: Path, answer: bytes
) -> None:
    (data_dir / "postgres" / "port").write_text("1\n")

    class Stranger(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    def examined(url: str) -> dict[str, Any]:
        words = ["doctor", "--data-dir", str(data_dir), "--url", url, "--json"]
        done = CliRunner().invoke(app, words, env={"HELIOGRAPH_DATABASE_URL": None})
        assert done.exit_code == 1, done.output
        return {one["check"]: one for one in msgspec.json.decode(done.stdout)}

    with ThreadingHTTPServer(("127.0.0.1", 0), Stranger) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            found = examined(f"http://127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()
            thread.join()
    assert found["api"]["detail"].endswith(" answers, but is not the API of Heliograph")
    up = f"`heliograph up --data-dir {data_dir}`"
    assert found["database"]["remedy"] == f"Start it: {up}."
    assert examined("http://127.0.0.1:1")["api"]["remedy"] == f"Start {up}, or give its URL with --url."


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "Start it, or set"),
        (TimeoutError(), "It hangs, or the network drops"),
        (asyncpg.InvalidPasswordError("password authentication failed"), "Correct the user, the password or"),
        (asyncpg.InvalidCatalogNameError('database "x" does not exist'), "Correct the user, the password or"),
        (asyncpg.ProtocolViolationError("unsupported startup parameter"), "If that is PgBouncer, set"),
        (asyncpg.DiskFullError("could not write init file: No space left on device"), "Free some space on its disk"),
        (asyncpg.TooManyConnectionsError("sorry, too many clients already"), "It is running, but accepts no"),
    ],
    ids=lambda value: "" if isinstance(value, str) else type(value).__name__,
)
def test_doctor_says_to_start_only_what_may_not_be_running(
    monkeypatch: pytest.MonkeyPatch, error: Exception, remedy: str
) -> None:
    async def failed(*words: Any, **options: Any) -> None:
        raise error

    monkeypatch.setattr(console, "connect", failed)
    environment = {"HELIOGRAPH_DATABASE_URL": "postgresql://x@127.0.0.1:1/x", "HELIOGRAPH_DATABASE_DIRECT_URL": None}
    done = CliRunner().invoke(app, ["doctor", "--url", "http://127.0.0.1:1", "--json"], env=environment)
    (found,) = [one for one in msgspec.json.decode(done.stdout) if one["check"] == "database"]
    assert found["remedy"].startswith(remedy)


def test_a_receiver_says_what_is_wrong_before_it_listens() -> None:
    done = CliRunner().invoke(app, ["simulate", "receiver", "--ledger", "/nonexistent/x"])
    assert str(done.exception) == "/nonexistent/x cannot be written: choose another path"
    for secret in ("nope", "whsec_?"):
        done = CliRunner().invoke(app, ["simulate", "receiver", "--secret", secret])
        assert (done.exit_code, "--secret" in done.output, "is not a signing secret" in done.output) == (2, True, True)


def test_a_key_that_is_piped_is_asked_for_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt without echo would open the terminal from which a pipe was started, and leave the pipe unread."""

    def asked(*_: Any) -> str:
        raise AssertionError("the terminal was asked")

    monkeypatch.setattr(getpass, "getpass", asked)
    monkeypatch.setattr("sys.stdin", io.StringIO("hg_test_0123\nnot the key\n"))
    assert login._key(None) == "hg_test_0123"


@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        (NotFound("There is no supplier 'x'.", resource="supplier", id="x"), "There is no supplier 'x'."),
        (NotFound("There is no such key.", resource="api_key", id="019c"), "There is no such key (id: 019c)"),
        (Refusal("There are 5 already.", limit=5, active=None), "There are 5 already (limit: 5)"),
    ],
)
def test_a_refusal_does_not_repeat_what_its_text_says(refusal: Refusal, said: str) -> None:
    assert console._refusal(refusal) == said


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("", "nothing was changed, as nobody confirmed it: answer y, or give --yes"),
        ("n\n", "nothing was changed"),
        ("what\n", "nothing was changed"),
        ("Yes\n", None),
    ],
)
def test_a_question_leaves_stdout_alone_and_says_what_to_give_if_nobody_answers(
    answer: str, said: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    with contextlib.nullcontext() if said is None else pytest.raises(Problem, match=f"^{said}$"):
        confirm("Remove\x1b[2J it?")
    assert capsys.readouterr() == ("", "Remove\ufffd[2J it? [y/N] " + ("" if answer else "\n"))


@pytest.mark.parametrize(
    ("closed", "words", "status", "out", "err"),
    [
        ("<&-", ("supplier", "set", "x", "--ask-password"), 2, "", "a line on stdin"),
        ("<&-", ("login", "--url", "http://127.0.0.1:1"), 2, "", "this is not an API key"),
        (">&-", ("supplier", "options"), 0, "", ""),
        ("2>&-", ("profile", "list", "--json"), 0, "[]\n", ""),
        ("2>&-", ("profile", "list"), 0, "", ""),
    ],
)
def test_a_stream_that_the_caller_closed_is_empty(
    closed: str, words: tuple[str, ...], status: int, out: str, err: str, tmp_path: Path
) -> None:
    done = with_closed(closed, "-m", "heliograph", *words, home=tmp_path)
    assert (done.returncode, done.stdout, "Traceback" in done.stderr) == (status, out, False), done.stderr
    assert err in done.stderr


ASKING = """
from heliograph.cli.terminal.asking import confirm
from heliograph.cli.terminal.console import run
from heliograph.cli.terminal.printing import single
run(single("ask", lambda: confirm("Remove it?")))
"""


def test_nobody_confirms_with_a_closed_stdin(tmp_path: Path) -> None:
    done = with_closed("<&-", "-c", ASKING, home=tmp_path)
    assert (done.returncode, done.stdout, "Traceback" in done.stderr) == (1, "", False), done.stderr
    assert "nothing was changed, as nobody confirmed it" in done.stderr


DEADLOCK = """
import asyncpg
from heliograph.cli.terminal.console import run
from heliograph.cli.terminal.printing import single
def command():
    raise asyncpg.DeadlockDetectedError("deadlock detected")
run(single("change", command))
"""


def test_whoever_lost_to_another_transaction_is_told_to_repeat_the_command(tmp_path: Path) -> None:
    done = with_closed("<&-", "-c", DEADLOCK, home=tmp_path)
    assert (done.returncode, done.stdout, "Traceback" in done.stderr) == (1, "", False), done.stderr
    assert "waited for each other: repeat it" in done.stderr


def with_closed(closed: str, *words: str, home: Path) -> subprocess.CompletedProcess[str]:
    """Run Python with a closed stream."""
    run = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, *words]
    given = {"HOME": str(home), "XDG_CONFIG_HOME": str(home), "XDG_DATA_HOME": str(home)}
    given |= {"HELIOGRAPH_DATABASE_URL": URL, "HELIOGRAPH_SECRET_KEY": secrets.token_urlsafe(48)}
    return subprocess.run(run, env=os.environ | given, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    "words",
    [
        ("usage", "month", "2026-10"),
        ("billing", "export", "2026-10"),
        ("audit", "export"),
        ("contacts", "export"),
        ("receipts", "report", "--file"),
        ("person", "export", "+258841234567", "--file"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_read(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    for path in ("/nonexistent/x", f"/nonexistent/{'x' * 300}", f"{tmp_path}/{'x' * 300}"):
        done = CliRunner().invoke(app, [*words, path], env={"HELIOGRAPH_DATABASE_URL": URL})
        assert isinstance(done.exception, Problem), done.exception
        assert str(done.exception) == f"{path} cannot be written: choose another path"


def test_a_file_that_cannot_be_written_to_its_end_is_named() -> None:
    with (
        pytest.raises(Problem, match="/dev/full cannot be written: No space left on device"),
        writing(Path("/dev/full"), encoding="utf-8") as file,
    ):
        file.write("x")
    with pytest.raises(ConnectionError), writing(Path("/dev/null"), encoding="utf-8"):
        raise ConnectionResetError("of the database")


def test_a_campaigns_progress_fits_the_terminal() -> None:
    """A longer line wraps, and each redraw would leave one on the screen."""
    counts = Counts(1000, 0, 400, 100, 500, *[0] * 7)
    fields = {"status": "running", "status_reason": "no_supplier_connected", "counts": counts}
    one = Campaign(**dict.fromkeys(Campaign.__struct_fields__) | fields)
    whole = progress.drawn(one, 12, 0)
    assert whole == (
        "[##################            ]  60% of 1,000  running (no_supplier_connected)  queued 400, sent 100,"
        " delivered 500  12 s"
    )
    assert progress.drawn(one, 12, 140) == whole
    assert progress.drawn(one, 12, 100) == whole.partition("] ")[2]
    assert progress.drawn(one, 12, 60) == " 60% of 1,000  running (no_supplier_connected)  queued 4..."
    assert {len(progress.drawn(one, 12, columns)) for columns in (20, 60)} == {19, 59}


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_a_secret_that_is_not_text_is_refused(errors: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Python reads stdin: with strict errors in some locales, and with surrogates in others."""
    given = io.TextIOWrapper(io.BytesIO(b"ge\xe9heim\n"), encoding="utf-8", errors=errors)
    monkeypatch.setattr("sys.stdin", given)
    with pytest.raises(Problem, match="the line on stdin is not UTF-8 text"):
        typed_secret()


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            {"message": "This key lacks the scope.", "details": {"required": ["webhooks:read"]}},
            "the API refused it: 403 x: This key lacks the scope (required: webhooks:read)",
        ),
        (
            {
                "message": "`to` is required",
                "details": {"fields": [{"message": "`to` is required"}, {"message": "so"}]},
            },
            "the API refused it: 403 x: `to` is required; so",
        ),
        ({"message": "No.", "details": {"since": None}}, "the API refused it: 403 x: No."),
        ({"message": "No."}, "the API refused it: 403 x: No."),
        *(({"message": "No.", "details": wrong}, "the API answered 403") for wrong in ("ab", [1], {"fields": [1]})),
    ],
)
def test_a_refusal_of_the_api_is_told_with_its_details(error: dict[str, Any], told: str) -> None:
    """What may be missing, such as a scope, or why nothing is sent to a number, is only there."""
    assert refusal(403, {"error": {"code": "x"} | error}) == told
