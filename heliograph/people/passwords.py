"""Passwords: argon2id, in threads, and which ones are refused.

A hash costs 19 MiB and some 40 ms of a core (m = 19,456 KiB, t = 2, p = 1: the OWASP recommendation of 2023). Two are
computed at once and a few wait; beyond that, requests are refused. The rule nobody may break: a nonexistent account
costs the same time as a wrong password.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from heliograph.base.errors import Invalid, Refusal

Result = TypeVar("Result")

SHORTEST, LONGEST = 12, 1_000
#: How many hashes are computed at once, and how many may wait.
AT_ONCE, WAITING = 2, 32

_hasher = PasswordHasher(time_cost=2, memory_cost=19_456, parallelism=1)
_threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="argon2")
_under_way = 0
#: The hash of a password that nobody knows, for comparison if there is no account, or no password.
NOBODYS = "$argon2id$v=19$m=19456,t=2,p=1$LzGGnTq6e3oPS/Jp5NxCLA$eei/R3zXpmM3xA7cUBBycus5BC9YHK5ToJUZMh7YIKs"

#: The 10,000 most common passwords, and equally common words and names; see `vendor/README.md`.
#: One text with a line each: as a set of strings they would take 1.4 MB per web process.
_COMMONEST = "\n".join(
    [
        "",
        *(
            line
            for name in ("common_passwords.txt", "common_words.txt")
            for line in Path(__file__).with_name("vendor").joinpath(name).read_text("utf-8").splitlines()
            if len(line) >= SHORTEST or line.isalpha()
        ),
        "",
    ]
)
#: Minimum letters of a common word that makes a password guessable with any digits and punctuation around it.
_WORD = 5
#: Other words, common in Portuguese or in this product, without digits and punctuation.
_COMMON = re.compile(
    "password|passwords|passw|passwort|senha|minhasenha|contrasena|motdepasse|letmein|welcome|bemvindo|qwerty|"
    "qwertyuiop|azerty|admin|administrator|administrador|iloveyou|teamo|teamomuito|monkey|dragon|football|futebol|"
    "baseball|sunshine|princess|princesa|master|shadow|superman|batman|trustno|changeme|secret|segredo|login|"
    "access|hello|olamundo|helloworld|test|testtest|teste|abc|abcabc|abcdef|abcdefgh|abcdefghijkl|default|guest|"
    "user|heliograph|temporary|mozambique|mocambique|portugal|brasil|brazil|benfica|sporting|fcporto"
).fullmatch
#: Maps digits and symbols to the letters that people replace with them.
_PLAIN = str.maketrans("013457@$!", "oieastasi")
_RUNS = (
    "01234567890",
    "09876543210",
    "abcdefghijklmnopqrstuvwxyz",
    "qwertyuiopasdfghjklzxcvbnm",
    "1qaz2wsx3edc4rfv5tgb",
)


class TooManySignIns(Refusal):
    """Too many people are signing in at this moment. Try again in a few seconds."""

    code, status = "sign_in_busy", 429

    def __init__(self) -> None:
        super().__init__()
        self.headers = {"retry-after": "3"}


def check_strength(password: str, *, email: str = "") -> None:
    """Check a password. Raises Invalid if it is too short, too long, or easy to guess."""
    if len(password) < SHORTEST:
        raise Invalid(("password", "length", "The password must have at least 12 characters."))
    if len(password) > LONGEST or "\0" in password:
        raise Invalid(("password", "length", "The password must have at most 1,000 characters."))
    if _is_guessable(password, email):
        raise Invalid(
            ("password", "weak", "This password is easy to guess. Three or four unrelated words make a good one.")
        )


async def hashed(password: str) -> str:
    """The argon2id hash, with its parameters and salt. Raises TooManySignIns."""
    return await _in_thread(_hasher.hash, password)


async def verify(known: str | None, password: str) -> bool:
    """True if the password matches this hash; False, just as slowly, if there is no hash. Raises TooManySignIns."""
    right = await _in_thread(_matches, known or NOBODYS, password[:LONGEST])
    return right and known is not None


def _matches(known: str, password: str) -> bool:
    try:
        return _hasher.verify(known, password)
    except (VerificationError, InvalidHashError, UnicodeEncodeError):
        return False


async def _in_thread(work: Callable[..., Result], *values: str) -> Result:
    global _under_way
    if _under_way >= AT_ONCE + WAITING:
        raise TooManySignIns
    _under_way += 1
    try:
        return await asyncio.get_running_loop().run_in_executor(_threads, work, *values)
    finally:
        _under_way -= 1


def _is_listed(word: str) -> bool:
    return f"\n{word}\n" in _COMMONEST


def _is_guessable(password: str, email: str) -> bool:
    text = password.lower()
    if _is_listed(text) or _is_listed(text.translate(_PLAIN)):
        return True
    if text in (text + text)[1:-1] or len(set(text)) < 5:  # a shorter text, repeated
        return True
    letters = re.sub(r"[\W\d_]+", "", text)
    own = re.sub(r"[\W\d_]+", "", email.partition("@")[0].lower())
    is_common = _COMMON(letters) or (len(letters) >= _WORD and _is_listed(letters))
    if not letters or is_common or (own and letters in (own, own + own)):
        # Digits alone are fine if there are plenty and they are not a sequence.
        return bool(letters) or len(text) < 16 or _is_run(text)
    return _is_run(text)


def _is_run(text: str) -> bool:
    """True if most of it is sequences on the keyboard, in the alphabet or of digits."""
    pairs = {run[at : at + 2] for run in _RUNS for at in range(len(run) - 1)}
    steps = [text[at : at + 2] for at in range(len(text) - 1)]
    return sum(step in pairs for step in steps) >= 0.8 * len(steps)
