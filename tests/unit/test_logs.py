"""Whatever must not be in a log is removed, whoever logs it."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser
from structlog.testing import capture_logs

from heliograph.base.process.logs import Sparse, _Stderr, clean, cleaned, configure
from heliograph.base.process.settings import Settings, SettingsError


def test_secrets_and_texts_are_dropped_by_name() -> None:
    entry = {
        "event": "sent",
        "password": "p",
        "secret": "s",
        "Authorization": "Bearer x",
        "x-api-key": "hg_live_x",
        "text": "Hello",
        "body": "Hello",
        "count": 3,
    }
    assert clean(None, "info", entry) == {"event": "sent", "count": 3}


def test_phone_numbers_keep_their_last_four_digits() -> None:
    entry = {"event": "no route to +258841234567", "to": "258841234567", "sender": "ACME", "code": 258841234567}
    assert clean(None, "info", entry) == {
        "event": "no route to …4567",
        "to": "…4567",
        "sender": "ACME",
        "code": 258841234567,
    }


@pytest.mark.parametrize(
    "text",
    [
        "0199c0de-0000-7000-8000-123456789012",
        "2026-03-01T12:00:00.123456789Z",
        "took 12345678901234567890 ns",
        "0x0000000B",
        "127.0.0.1:54321",
    ],
)
def test_what_is_no_phone_number_stays(text: str) -> None:
    assert cleaned(text) == text


def test_ids_are_left_alone() -> None:
    assert clean(None, "info", {"supplier_message_id": "1234567890123"}) == {"supplier_message_id": "1234567890123"}


def test_keys_passwords_and_rows_are_hidden_in_any_text() -> None:
    told = (
        "postgresql://heliograph:geheim@127.0.0.1:5432/heliograph said: null value in column\n"
        "DETAIL:  Failing row contains (1, Hello, +258841234567).\nkey hg_live_abcDEF123"
    )
    assert cleaned(told) == (
        "postgresql://heliograph:…@127.0.0.1:5432/heliograph said: null value in column\nkey hg_live_…"
    )


def test_a_row_is_hidden_whose_text_has_several_lines() -> None:
    row = "DETAIL:  Failing row contains (1, Dear (Ana).\nyour code is geheim\n\n(thanks), +258841234567)."
    key = "DETAIL:  Key (organization_id, name)=(1, Dear\nAna geheim) already exists."
    after = "\n\nDuring handling of the above exception, another exception occurred:\n\nin f\n    g(1)\nValueError: (2)"
    assert cleaned(f"null value\n{row}\nHINT:  None.") == "null value\nHINT:  None."
    assert cleaned(f"null value\n{row}{after}") == f"null value{after}"
    assert cleaned(f"duplicate key\n{key}{after}") == f"duplicate key{after}"
    group = "\n  +---------------- 2 ----------------\n  | ValueError: (2)"
    assert cleaned(f"  | null value\n  | {row}{group}") == f"  | null value\n  | {group}"
    told = "invalid input for query argument $2: 'Dear Ana (you), geheim' (an integer is required (got type str))"
    assert "geheim" not in cleaned(told)
    assert cleaned(told).startswith("invalid input for query argument $2: … (")


@pytest.mark.parametrize(
    "told",
    [
        "https://graph.facebook.com/v25.0/debug_token?input_token=geheim%7C7&x=1",
        "GET /in/whatsapp/7?hub.mode=subscribe&hub.verify_token=geheim",
        "headers: {'Authorization': 'Bearer geheim.geheim'}",
        "the token EAAGgeheim0123456789ZDgeheim is not good",
    ],
)
def test_tokens_are_hidden_in_any_text(told: str) -> None:
    assert "geheim" not in cleaned(told)
    assert "…" in cleaned(told)


def test_what_lies_deeper_is_cleaned_too() -> None:
    entry = {
        "event": "incomplete",
        "problems": ["no answer for +258841234567", "key hg_live_abcDEF123"],
        "answer": {"to": "258841234567", "app_secret": "s", "also": ({"verify_token": "v", "count": 1},)},
        "ids": ("1234567890123",),
    }
    assert clean(None, "info", entry) == {
        "event": "incomplete",
        "problems": ["no answer for …4567", "key hg_live_…"],
        "answer": {"to": "…4567", "also": [{"count": 1}]},
        "ids": ["…0123"],
    }


class Credential(msgspec.Struct):
    """An object that contains a secret."""

    key: bytes
    phrase: str


def test_of_a_record_and_of_bytes_only_the_kind_is_written() -> None:
    entry = {
        "event": "opened",
        "app": Credential(b"geheim", "geheim"),
        "all": [Credential(b"", "geheim")],
        "key": b"ge",
    }
    hidden = {"event": "opened", "app": "<Credential>", "all": ["<Credential>"], "key": "<bytes>"}
    assert clean(None, "info", entry) == hidden


@contextlib.contextmanager
def configured(log_format: str) -> Iterator[io.StringIO]:
    """Logging as in a process; returns the output."""
    told = io.StringIO()
    root, level = list(logging.root.handlers), logging.root.level
    try:
        with contextlib.redirect_stderr(told):
            configure(Settings(log_format=log_format))
            yield told
    finally:
        structlog.reset_defaults()
        logging.root.handlers[:] = root
        logging.root.setLevel(level)


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_a_traceback_shows_no_variables(log_format: str) -> None:
    with configured(log_format) as told:
        app = Credential(b"geheim", "geheim")
        try:
            _ = 1 // len(app.key[:0])
        except ZeroDivisionError:
            structlog.get_logger().exception("failed", app=app)
    line = told.getvalue()
    assert "ZeroDivisionError" in line
    assert "Credential" in line
    assert "geheim" not in line


def test_nobody_fills_the_log_with_malformed_uploads() -> None:
    with configured("text") as told:
        form = MultipartParser(b"x")
        with pytest.raises(MultipartParseError):
            form.write(b"nonsense")
    assert told.getvalue() == ""


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_no_line_controls_the_terminal_that_shows_it(log_format: str) -> None:
    with configured(log_format) as told:
        structlog.get_logger().warning("unknown \x1b[2J state", word="\x1b]0;x\x07\x9b2J\u202eYGNAR", all=["\x1b[1m"])
        logging.getLogger("a library").warning("\x1b[31mred")
        try:
            raise ValueError("\x1b[8mhidden")
        except ValueError:
            structlog.get_logger().exception("failed")
    written = told.getvalue()
    assert "2J state" in written
    assert "hidden" in written
    # JSON is for programs, which read it before it is shown.
    beyond = "" if log_format == "json" else "\x9b\u202e"
    assert not set(written) & set(f"\x1b\x07\r{beyond}"), written


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_a_line_break_begins_no_entry(log_format: str) -> None:
    forged = "2026-11-30T12:00:00Z [error    ] made up"
    with configured(log_format) as told:
        structlog.get_logger().warning("refused", word=f"x\n{forged}")
        structlog.get_logger().warning(f"refused\n{forged}")
        logging.getLogger("a library").warning("no answer: %s", f"x\n{forged}")
        try:
            raise ValueError(f"x\n{forged}")
        except ValueError:
            structlog.get_logger().exception("failed")
            logging.getLogger("a library").exception("failed")
    lines = told.getvalue().split("\n")
    assert lines.pop() == ""
    at_the_margin = [line for line in lines if not line.startswith(" ")]
    assert len(at_the_margin) == 5, at_the_margin
    assert not any(line.startswith(forged) for line in lines), lines


@pytest.mark.parametrize("changed", [{"log_level": "loud"}, {"log_format": "xml"}])
def test_settings_of_logs_are_checked(changed: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match="HELIOGRAPH_LOG_"):
        configure(Settings(**changed))


@pytest.mark.parametrize("reader", ["a full disk", "nobody"])
def test_a_line_that_cannot_be_written_fails_nobody(reader: str) -> None:
    program = (
        "import structlog\n"
        "from heliograph.base.process.logs import configure\n"
        "from heliograph.base.process.settings import from_environment\n"
        "from heliograph.cli.terminal.printing import say\n"
        "configure(from_environment({}))\n"
        "for turn in range(1000):\n"  # more than is buffered
        "    structlog.get_logger().warning('SMPP down', turn=turn)\n"
        "    say('api ended (-9); restarting it.')\n"
        "print('went on')\n"
    )
    if reader == "nobody":
        at, end = os.pipe()
        os.close(at)
    else:
        end = os.open("/dev/full", os.O_WRONLY)
    with open(end, "w") as stderr:
        done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=stderr, text=True)
    assert done.stdout == "went on\n"


def test_a_reader_that_stands_still_keeps_nobody_waiting() -> None:
    """As a collector that hangs, or a terminal on hold: after 64 kB of lines, the whole process stood still."""
    program = (
        "import sys, structlog\n"
        "from heliograph.base.process.logs import configure\n"
        "from heliograph.base.process.settings import from_environment\n"
        "configure(from_environment({}))\n"
        "for turn in range(1000):\n"
        "    structlog.get_logger().warning('SMPP down', turn=turn, why='x' * 2_000)\n"
        "print('went on', flush=True)\n"
        "sys.stdin.readline()\n"
        "structlog.get_logger().warning('SMPP bound')\n"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            assert select.select([process.stdout], [], [], 120)[0], "it stands still"
            assert process.stdout.readline() == b"went on\n"
            # The reader goes on.
            os.set_blocking(process.stderr.fileno(), False)
            read = b""
            while piece := process.stderr.read(65_536):
                read += piece
            os.set_blocking(process.stderr.fileno(), True)
            read += process.communicate(b"\n", timeout=120)[1]
        finally:
            process.kill()
    whole = [msgspec.json.decode(line) for line in read.splitlines() if line.endswith(b"}")]
    *before, bound, lost = whole
    assert [line["turn"] for line in before] == list(range(len(before)))
    assert bound["event"] == "SMPP bound"
    assert (lost["event"], lost["count"]) == ("log lines lost: nobody read them", 1000 - len(before))


class Counting(io.FileIO):
    """A file that notes how much each write has."""

    def __init__(self, file: int) -> None:
        super().__init__(file, "w")
        self.written: list[int] = []

    def write(self, data: Any) -> int:
        self.written.append(len(data))
        return super().write(data)


@pytest.mark.parametrize(("place", "pieces"), [("pipe", [4096, 4096, 1809]), ("file", [10_001]), ("socket", [10_001])])
def test_a_long_line_is_written_at_once_where_that_keeps_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str, pieces: list[int]
) -> None:
    """In pieces, lines of other processes came in between, in the same file or journal."""
    with contextlib.ExitStack() as opened:
        if place == "file":
            file = os.open(tmp_path / "log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        elif place == "pipe":
            reader, file = os.pipe()
            opened.callback(os.close, reader)
        else:
            ours, theirs = socket.socketpair()
            opened.enter_context(theirs)
            file = ours.detach()
        raw = Counting(file)
        opened.enter_context(raw)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stderr", io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8", write_through=True))
            _Stderr().write("x" * 10_000 + "\n")
            assert raw.written == pieces


def test_what_repeats_is_written_once_in_a_while_and_counted() -> None:
    now = 0.0
    sparse = Sparse("unavailable", every=60.0, clock=lambda: now)
    log = structlog.get_logger()
    with capture_logs() as logs:
        for id in range(3):
            sparse.warn(log, "silent", request_id=id)
        sparse.warn(log, "refused", request_id=3)
        now = 59.0
        sparse.warn(log, "silent", request_id=4)
        now = 60.0
        sparse.warn(log, "silent", request_id=5)
        now = 120.0
        sparse.warn(log, "silent", request_id=6)
    # Each of them can still be found in the log at `debug`.
    assert [(line["log_level"], line["request_id"], line.get("left_out")) for line in logs] == [
        ("warning", 0, None),
        ("debug", 1, None),
        ("debug", 2, None),
        ("warning", 3, None),
        ("debug", 4, None),
        ("warning", 5, 3),
        ("warning", 6, None),
    ]
