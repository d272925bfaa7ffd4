"""Output of the command line: misspelled names, tables that fit the terminal, terminals limited to ASCII."""

from __future__ import annotations

import errno
import os
import pty
import re
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from heliograph.base.embedded.install import PostgresError
from heliograph.base.network.failures import reason
from heliograph.base.process.settings import OTHERS, Settings, SettingsError, from_environment, unknown_names
from heliograph.base.sentences import with_noun
from heliograph.cli.terminal.console import no_database, settings_of
from heliograph.cli.terminal.printing import fitted, heading, record
from heliograph.suppliers import kinds
from heliograph.suppliers.http.kind import SECRET
from heliograph.up.errors import unusable
from heliograph.up.parts import part_environment
from tests.house.project import ROOT, files


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command in a separate process, without settings of ours in its environment."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HELIOGRAPH_")}
    return subprocess.run(
        [sys.executable, "-m", "heliograph", *arguments],
        env=clean | environment,
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=ROOT,
        timeout=120,
    )


def test_a_misspelt_setting_is_named_with_the_one_that_is_near() -> None:
    environment = {"HELIOGRAPH_SECRT_KEY": "x", "HELIOGRAPH_DATABASE_URI": "x", "HELIOGRAPH_ZEBRA": "x", "PATH": "x"}
    assert unknown_names(environment) == {
        "HELIOGRAPH_DATABASE_URI": "HELIOGRAPH_DATABASE_URL",
        "HELIOGRAPH_SECRT_KEY": "HELIOGRAPH_SECRET_KEY",
        "HELIOGRAPH_ZEBRA": None,
    }
    assert unknown_names(dict.fromkeys(OTHERS, "x") | {"HELIOGRAPH_LOG_LEVEL": "info"}) == {}


def test_a_variable_of_each_secret_of_a_supplier_is_known() -> None:
    secrets = {name for kind in kinds.HTTP.values() for name in kind.secrets if name != SECRET}
    assert "signature_secret" in secrets
    assert unknown_names({f"HELIOGRAPH_SUPPLIER_{name.upper()}": "x" for name in secrets}) == {}
    assert unknown_names({"HELIOGRAPH_SUPPLIER_PATIENCE": "x"}) != {}


def test_every_name_that_the_program_reads_is_known() -> None:
    known = {f"HELIOGRAPH_{name.upper()}" for name in Settings.__struct_fields__} | OTHERS
    for path in files(".py"):
        if path.is_relative_to(ROOT / "heliograph"):
            named = set(re.findall(r"\bHELIOGRAPH_[A-Z][A-Z_]*[A-Z]\b", path.read_text()))
            assert named <= known, f"{path}: {named - known} is neither a setting nor one of settings.OTHERS"


def test_a_process_says_it_at_its_start_and_its_parts_do_not_repeat_it(monkeypatch: pytest.MonkeyPatch) -> None:
    told = run("key", "list", "--data-dir", "/nowhere/at/all", HELIOGRAPH_SECRT_KEY="x")
    assert "HELIOGRAPH_SECRT_KEY is not a setting and is ignored; did you mean HELIOGRAPH_SECRET_KEY?" in told.stderr
    monkeypatch.setenv("HELIOGRAPH_SECRT_KEY", "x")
    assert "HELIOGRAPH_SECRT_KEY" not in part_environment(Settings(), host="127.0.0.1", is_embedded=True)


def test_the_parts_of_up_read_the_url_of_ones_own_database_where_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """They kept the URL of the start, whose password may be changed in its file: until all was restarted, no part
    reached the database again."""
    monkeypatch.delenv("HELIOGRAPH_DATABASE_URL", raising=False)
    monkeypatch.setenv("HELIOGRAPH_DATABASE_URL_FILE", "/run/url")
    own = part_environment(Settings(database_url="postgresql://db/x"), host="127.0.0.1", is_embedded=False)
    assert "HELIOGRAPH_DATABASE_URL" not in own
    assert own["HELIOGRAPH_DATABASE_URL_FILE"] == "/run/url"
    # That of the embedded one is known to this process alone, and no pooler is in between.
    monkeypatch.setenv("HELIOGRAPH_DATABASE_DIRECT_URL", "postgresql://elsewhere/x")
    embedded = part_environment(Settings(database_url="postgresql://db/x"), host="127.0.0.1", is_embedded=True)
    assert embedded["HELIOGRAPH_DATABASE_URL"] == "postgresql://db/x"
    assert embedded["HELIOGRAPH_DATABASE_DIRECT_URL"] == ""


def test_a_python_that_removes_docstrings_is_refused_and_told() -> None:
    # Without docstrings the API does not start, and refusals have no text.
    told = run("worker", PYTHONOPTIMIZE="2")
    assert (told.returncode, "PYTHONOPTIMIZE=2 (-OO) removes texts" in told.stderr) == (2, True), told.stderr
    told = run("--version", PYTHONOPTIMIZE="1")
    assert (told.returncode, told.stderr) == (0, "")


def test_a_misspelt_command_leads_to_the_right_one() -> None:
    told = run("keys", "list")
    assert (told.returncode, "Did you mean 'key'" in told.stderr) == (2, True), told.stderr
    told = run("key", "creat")
    assert (told.returncode, "Did you mean 'create'?" in told.stderr) == (2, True), told.stderr


def test_a_wrong_data_directory_is_said_to_be_that(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="nowhere does not exist: give the data directory of `heliograph up`"):
        settings_of(tmp_path / "nowhere", environment={})
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match="is not a directory"):
        settings_of(tmp_path / "file", environment={"HELIOGRAPH_DATABASE_URL": "postgresql://db.example/x"})
    with pytest.raises(PostgresError, match=f"`heliograph up` has not started a database in {tmp_path} yet") as raised:
        settings_of(tmp_path, environment={})
    assert "Errno" not in str(raised.value)


ROWS = [["0199c0de-0000-7000-8000-000000000000", "a long name of something " * 3, "x" * 30], ["1", "short", "y"]]
COLUMNS = ("id", "name", "reason")


def test_what_is_counted_agrees_with_its_number() -> None:
    assert [with_noun(count, "message") for count in (0, 1, 1200)] == [
        "0 messages",
        "1 message",
        "1,200 messages",
    ]
    assert [with_noun(count, "row is", "rows are") for count in (1, 2)] == ["1 row is", "2 rows are"]


def test_a_table_fits_its_terminal() -> None:
    whole = fitted(ROWS, COLUMNS, None)
    assert fitted(ROWS, COLUMNS, 1000) == whole
    for width in (130, 100, 80):
        lines = fitted(ROWS, COLUMNS, width).splitlines()
        assert len(lines) == 3
        assert max(map(len, lines)) <= width
        assert lines[1].startswith(ROWS[0][0]), "an id is there to be copied"
        assert "..." in lines[1]
        assert lines[2].split() == ["1", "short", "y"]


def test_a_table_that_cannot_fit_becomes_records() -> None:
    shown = fitted(ROWS, COLUMNS, 50)
    assert shown.split("\n\n")[1].splitlines() == ["id      1", "name    short", "reason  y"]
    assert ROWS[0][1].strip() in shown, "nothing is cut then"


def test_the_apis_names_are_words_too_and_its_ids_stay_whole() -> None:
    columns = ("at", "errorCode", "requestId")
    shown = fitted([["2027-01-31T12:00:00.000Z", "validation_error" * 2, ROWS[0][0]]], columns, 80).splitlines()
    assert re.split("  +", shown[0]) == ["at", "error code", "request id"]
    assert shown[1].endswith(ROWS[0][0])
    assert max(map(len, shown)) <= 80
    assert record({"durationMs": 1, "is_default": True}) == "duration ms  1\nis default   yes"
    assert [heading(name) for name in ("id", "TLS", "x-request-id", "HTTPStatus")] == [
        *("id", "TLS", "x-request-id", "HTTPStatus")
    ]


def test_a_failure_is_told_in_the_systems_words(tmp_path: Path) -> None:
    def raised(work: Callable[[], object]) -> Exception:
        try:
            work()
        except Exception as error:
            return error
        raise AssertionError("nothing was raised")

    (tmp_path / "file").write_bytes(b"\xff")
    refused = OSError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 1)")
    assert reason(refused) == "Connection refused"
    assert str(no_database("postgresql://x@127.0.0.1:1/x", refused)).endswith("cannot be reached: Connection refused")
    assert str(unusable(refused)) == "the database cannot be used: Connection refused"
    assert reason(raised(lambda: (tmp_path / "none").read_text())) == "No such file or directory"
    assert reason(raised(lambda: (tmp_path / "file").read_text("utf-8"))) == "it is not UTF-8 text"
    assert reason(socket.gaierror(socket.EAI_NONAME, "Name or service not known")) == "Name or service not known"
    # OpenSSL's error numbers are not the system's.
    made = ssl.SSLError(1, "[SSL: NO_CIPHERS_AVAILABLE] no ciphers available")
    made.reason = "NO_CIPHERS_AVAILABLE"
    assert "permitted" not in reason(made)
    heard = ssl.MemoryBIO()
    heard.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    talk = ssl.create_default_context().wrap_bio(heard, ssl.MemoryBIO(), server_hostname="a.example")
    assert reason(raised(talk.do_handshake)) == "the server does not speak TLS on this port"
    assert reason(TimeoutError()) == "TimeoutError"


PRINT = """
from heliograph.cli.terminal.console import run
from heliograph.cli.terminal.printing import show
import typer
app = typer.Typer()
@app.command()
def command() -> None:
    show({"name": "Jos\\u00e9"}, json=%s)
run(app)
"""


@pytest.mark.parametrize(("encoding", "name"), [("ascii", "Jose"), ("latin-1", "José"), ("utf-8", "José")])
def test_no_locale_ends_anything_and_json_is_utf_8_in_each(encoding: str, name: str) -> None:
    def printed(json: bool) -> bytes:
        environment = os.environ | {"PYTHONIOENCODING": encoding, "PYTHONPATH": str(ROOT)}
        done = subprocess.run([sys.executable, "-c", PRINT % json], env=environment, capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert printed(False).split() == [b"name", name.encode(encoding)]
    assert msgspec.json.decode(printed(True)) == {"name": "José"}


TABLE = """
from heliograph.cli.terminal.console import run
from heliograph.cli.terminal.printing import Json, show, single
def command(json: Json = False) -> None:
    show([{"name": "Jos\\u00e9 \\u0150", "change": "\\u2013 \\u2192 +258\\u2026 \\u5317"}], json, ("name", "change"))
run(single("show", command))
"""


@pytest.mark.parametrize(
    ("encoding", "printed"),
    [
        ("ascii", "name    change\nJose O  - -> +258... ?\n"),
        ("latin-1", "name    change\nJosé O  - -> +258... ?\n"),
        ("utf-8", "name    change\nJosé Ő  – → +258… 北\n"),
    ],
)
def test_a_table_has_letters_and_signs_that_its_encoding_has(encoding: str, printed: str) -> None:
    assert shown(encoding, "table") == printed.encode(encoding)


def test_tsv_is_utf_8_in_every_locale() -> None:
    assert shown("ascii", "tsv") == "José Ő\t– → +258… 北\n".encode()


def shown(encoding: str, output: str) -> bytes:
    """TABLE's output in a locale."""
    environment = os.environ | {"PYTHONIOENCODING": encoding, "PYTHONPATH": str(ROOT)}
    run = [sys.executable, "-c", TABLE, "-o", output]
    done = subprocess.run(run, env=environment, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


EXPORT = """
from heliograph.cli.terminal.console import run
from heliograph.cli.terminal.printing import in_utf8
import typer
app = typer.Typer()
@app.command()
def command() -> None:
    in_utf8().write("Jos\\u00e9\\n")
run(app)
"""


def test_an_export_is_utf_8_in_every_locale() -> None:
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", EXPORT], env=environment, capture_output=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "José\n".encode()), done.stderr


GUIDE = """
from heliograph.api.document.guide import Guide
print(ascii(Guide().page("/guide/webhooks")))
"""


def test_the_guide_is_read_in_every_locale() -> None:
    """A locale of ASCII stands for any other than UTF-8: Python would read the files in its encoding."""
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": str(ROOT)}
    run = [sys.executable, "-c", GUIDE]
    done = subprocess.run(run, env=os.environ | ascii_only, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert b"each delay \\xb120" in done.stdout


def on_a_terminal(code: str, **environment: str) -> bytes:
    """The output of a program on a terminal."""
    ours, theirs = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"TERM": "xterm-256color", "PYTHONPATH": str(ROOT)} | environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        timeout=120,
    )
    os.close(theirs)
    written = os.read(ours, 65_536)
    os.close(ours)
    assert done.returncode == 0, written
    return written


DOCTOR = """
import typer
from heliograph.cli.running import doctor
try:
    doctor.command()
except typer.Exit as ended:
    assert ended.exit_code == 1
"""


def test_what_is_wrong_is_not_cut_at_the_end_of_a_terminals_line() -> None:
    away = {"HELIOGRAPH_DATABASE_URL": "postgresql://x@127.0.0.1:1/x", "HELIOGRAPH_SECRET_KEY": "0123456789abcdef" * 2}
    lines = on_a_terminal(DOCTOR, COLUMNS="60", **away).decode().splitlines()
    assert max(map(len, lines[:4])) <= 60
    why = "database: the database at 127.0.0.1:1/x cannot be reached: Connection refused"
    assert lines[lines.index(why) + 1].startswith("Start it, or set HELIOGRAPH_DATABASE_URL")


LOG = """
import structlog
from heliograph.base.process import logs
from heliograph.base.process.settings import Settings
logs.configure(Settings(log_format="text"))
structlog.get_logger().warning("something_happened")
"""


def test_no_colour_where_none_is_wanted() -> None:
    assert b"\x1b[" in on_a_terminal(LOG, NO_COLOR="")
    plain = on_a_terminal(LOG, NO_COLOR="1")
    assert b"something_happened" in plain
    assert b"\x1b[" not in plain


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("METADATA_RETENTION_MONTHS", "0"),
        ("TEXT_RETENTION_DAYS", "-1"),
        ("DATABASE_POOL", "0"),
        ("LEASE_SECONDS", "0"),
        ("DRAIN_SECONDS", "-1"),
        ("UNCERTAIN_GRACE_SECONDS", "nan"),
        ("WEBHOOK_TIMEOUT_SECONDS", "inf"),
        # In other units, or infinite: no date is that long ago.
        ("WEBHOOK_TIMEOUT_SECONDS", "150000"),
        ("TEXT_RETENTION_DAYS", "999999"),
        ("METADATA_RETENTION_MONTHS", "99999"),
        ("IDEMPOTENCY_HOURS", "9999999"),
        ("DISK_FREE_PERCENT", "101"),
        # A port alone would be open on every address.
        ("METRICS_LISTEN", "9464"),
        ("METRICS_LISTEN", ":9464"),
        ("METRICS_LISTEN", "[]:9464"),
        ("CONSOLE_LISTEN", "8090"),
        ("CLOCK_SHIFT", "foo"),
        ("CLOCK_SHIFT", "3600:later"),
        ("CLOCK_SHIFT", "inf"),
        ("CRASH_AT", "dispatch.after_commit:x"),
    ],
)
def test_a_number_that_makes_no_sense_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"HELIOGRAPH_{name} must be"):
        from_environment({f"HELIOGRAPH_{name}": value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("WEBHOOK_ALLOW_NETWORKS", "10.0.0.1;10.0.0.2"),
        ("TRUSTED_PROXIES", "10.0.0.5/8"),
        ("PUBLIC_URL", "sms.example.com"),
        ("PUBLIC_URL", "https:///sms"),
        ("CONSOLE_URL", "console.example.com:8443"),
        ("BOARD_URL", "javascript:alert(1)"),
    ],
)
def test_what_is_no_network_and_no_url_is_refused_by_name(name: str, value: str) -> None:
    """Links and signed addresses start with the URL; an invalid network used to end the process with a traceback."""
    with pytest.raises(SettingsError, match=f"HELIOGRAPH_{name} must"):
        from_environment({f"HELIOGRAPH_{name}": value})


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("DATABASE_POOLER_PREPARES", "yes", "true or false"),
        ("DATABASE_POOL", "", "a whole number"),
        ("DRAIN_SECONDS", "20s", "a number"),
    ],
)
def test_what_a_setting_must_be_is_said_in_words(name: str, value: str, wanted: str) -> None:
    with pytest.raises(SettingsError, match=f"^HELIOGRAPH_{name} must be {wanted}, not '{value}'$"):
        from_environment({f"HELIOGRAPH_{name}": value})


def test_the_longest_times_are_dates() -> None:
    found = from_environment(
        {"HELIOGRAPH_TEXT_RETENTION_DAYS": "36525", "HELIOGRAPH_METADATA_RETENTION_MONTHS": "1200"}
    )
    assert (found.text_retention_days, found.metadata_retention_months) == (36_525, 1_200)


def test_a_time_may_be_nothing() -> None:
    assert from_environment({"HELIOGRAPH_NOT_READY_SECONDS": "0"}).not_ready_seconds == 0


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_output_that_cannot_be_written_is_said_and_a_reader_that_left_is_not(
    tmp_path: Path, unbuffered: str
) -> None:
    environment = os.environ | {"XDG_CONFIG_HOME": str(tmp_path), "PYTHONUNBUFFERED": unbuffered}
    for words in (["--version"], ["--help"], ["profile", "list", "--json"]):
        command = [sys.executable, "-m", "heliograph", *words]
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                command, env=environment, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT, timeout=60
            )
        told = "heliograph: cannot write the output: No space left on device\n"
        assert (done.returncode, done.stderr) == (1, told), words
        reader, writer = os.pipe()
        os.close(reader)
        with open(writer, "w") as pipe:
            done = subprocess.run(
                command, env=environment, stdout=pipe, stderr=subprocess.PIPE, text=True, cwd=ROOT, timeout=60
            )
        assert (done.returncode, done.stderr) == (1, ""), words


def test_completing_after_a_misspelt_command_says_nothing() -> None:
    told = run(_HELIOGRAPH_COMPLETE="complete_bash", COMP_WORDS="heliograph nonsense ", COMP_CWORD="2")
    assert (told.returncode, told.stderr) == (0, "")


@pytest.mark.parametrize("words", [(), ("supplier",)])
def test_a_list_of_commands_says_the_whole_sentence_of_each(words: tuple[str, ...]) -> None:
    said = run(*words, "--help", COLUMNS="80").stdout
    assert "Commands:" in said
    assert not [line for line in said.partition("Commands:")[2].splitlines() if line.endswith("...")]
    assert max(map(len, said.splitlines())) <= 80
