"""What a log may not hold is taken out, whoever forgot it."""

from __future__ import annotations

import pytest

from heliograph.base.logs import clean, cleaned, configure
from heliograph.base.settings import Settings, SettingsError


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


@pytest.mark.parametrize("changed", [{"log_level": "loud"}, {"log_format": "xml"}])
def test_settings_of_logs_are_checked(changed: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match="HELIOGRAPH_LOG_"):
        configure(Settings(**changed))
