"""The words of `words.toml`, found by kind and code."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

Kind = Literal["status", "sms_failure", "whatsapp_failure", "campaign", "webhook", "endpoint", "attempt", "error"]
Language = Literal["en", "pt"]
LANGUAGES: tuple[Language, ...] = ("en", "pt")


class Words(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a code means, in one language."""

    #: A sentence for customers.
    customer: str
    #: One for operators, which may name suppliers and Meta.
    operator: str
    cause: str
    remedy: str


class Why(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a code means."""

    #: Where to read on: a file of the guide, and its heading.
    link: str
    en: Words
    pt: Words
    #: Statuses that it comes with, where it is not the status itself.
    of: list[str] = []

    @property
    def address(self) -> str:
        """Where the guide has it, as it is served."""
        file, mark, heading = self.link.partition("#")
        return f"/guide/{file.removesuffix('.md')}{mark}{heading}"

    def words(self, language: str) -> Words:
        """In a language; in English where there is no such one."""
        return self.pt if language == "pt" else self.en


@cache
def entries() -> dict[str, dict[str, Why]]:
    """All entries, by kind and code."""
    text = Path(__file__).with_name("words.toml").read_bytes().decode()
    return msgspec.convert(tomllib.loads(text), dict[str, dict[str, Why]])


def why(kind: Kind, code: str) -> Why | None:
    """What a code means; None: unknown for this kind."""
    return entries()[kind].get(code)


def customer_texts(kind: Kind) -> dict[str, str]:
    """What a customer is told of each code of a kind, in one English sentence."""
    return {code: one.en.customer for code, one in entries()[kind].items()}
