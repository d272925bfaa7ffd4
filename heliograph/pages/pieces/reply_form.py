"""What the forms for an organization's own words and replies have in common, in both apps."""

from __future__ import annotations

from collections.abc import Mapping

#: Words that are answered.
KINDS = ("stop", "start", "help")
#: Languages of the standard replies.
REPLY_LANGUAGES: Mapping[str, str] = {
    "en": "English",
    "pt": "Portuguese",
    "fr": "French",
    "es": "Spanish",
    "sw": "Swahili",
}


def reply_of(typed: Mapping[str, str], kind: str) -> str | None:
    """The reply to a word as `KIND_how` and `KIND_reply` say: its own, "" for none, None for the standard one."""
    how = typed[f"{kind}_how"]
    return typed[f"{kind}_reply"] or None if how == "own" else "" if how == "none" else None


def words_of(text: str) -> list[str]:
    """Words, one a line or separated by commas."""
    return [word for line in text.splitlines() for word in line.split(",") if word.strip()]
