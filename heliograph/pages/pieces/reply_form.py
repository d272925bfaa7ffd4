"""What both apps' forms for an organization's own keywords and replies have in common."""

from __future__ import annotations

from collections.abc import Mapping

from heliograph.accounts.organizations import Organization

#: Keywords that get a reply.
KINDS = ("stop", "start", "help")
#: Languages of the standard replies.
REPLY_LANGUAGES: Mapping[str, str] = {
    "en": "English",
    "pt": "Portuguese",
    "fr": "French",
    "es": "Spanish",
    "sw": "Swahili",
}


#: Fields of the form.
FIELDS = ("opt_out_words", "reply_language", *(f"{kind}_{part}" for kind in KINDS for part in ("how", "reply")))


def shown(one: Organization) -> dict[str, str]:
    """The current values of the fields."""
    found = {"opt_out_words": "\n".join(one.opt_out_words), "reply_language": one.reply_language or ""}
    for kind in KINDS:
        own: str | None = getattr(one, f"{kind}_reply")
        found[f"{kind}_how"] = "default" if own is None else "own" if own else "none"
        found[f"{kind}_reply"] = own or ""
    return found


def reply_of(typed: Mapping[str, str], kind: str) -> str | None:
    """The reply to a keyword according to `KIND_how` and `KIND_reply`: custom, "" for none, None for the standard
    one."""
    how = typed[f"{kind}_how"]
    return typed[f"{kind}_reply"] or None if how == "own" else "" if how == "none" else None


def words_of(text: str) -> list[str]:
    """Words, one per line or separated by commas."""
    return [word for line in text.splitlines() for word in line.split(",") if word.strip()]
