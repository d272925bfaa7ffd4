"""Suppliers' states and codes, counted for operators, who define their meaning: unknown states and error codes in
receipts, and the codes of negative answers.

The meaning of a state is a setting of its supplier, and decides about messages from then on. The meaning of an error
code is a note for people: the state next to it decides. The rule nobody may break: no receipt waits for its words to be
counted.
"""

from __future__ import annotations

import re
from collections import Counter
from datetime import datetime
from uuid import UUID

import msgspec
import structlog

from heliograph.audit import recording as audit
from heliograph.base.actor import SYSTEM, Principal
from heliograph.base.crypto import Key
from heliograph.base.database.pool import Connection
from heliograph.base.database.text import storable
from heliograph.base.errors import Invalid, NotFound, Problems
from heliograph.base.process.logs import cleaned
from heliograph.base.process.settings import SettingsError
from heliograph.sms.dispatch import routing, suppliers
from heliograph.sms.dispatch.routing import Supplier
from heliograph.suppliers import kinds
from heliograph.suppliers.contract import Outcome, Receipt, ReceiptState, Verdict
from heliograph.suppliers.smpp.codec.statuses import STATUSES

log = structlog.get_logger()

#: Maximum number of distinct words of each kind stored per supplier, and held in memory before they are stored.
WORDS, PENDING = 100, 1000
#: Days for which a word is listed. Then it makes room for others, unless an operator has explained it.
DAYS = 7
#: Maximum length of a code, and of its meaning, in characters.
LONGEST, LONGEST_MEANING = 100, 500
#: Settings that define the meaning of states, for SMPP accounts and for HTTP accounts that are pure configuration.
STATES = ("final_states", "receipt_states")
#: Possible meanings of a state.
MEANINGS = tuple(state.value for state in ReceiptState if state is not ReceiptState.UNKNOWN)


class Word(msgspec.Struct, frozen=True):
    """An unknown state, or an error code, in a supplier's receipts of the last seven days."""

    word: str
    count: int
    first_at: datetime
    last_at: datetime
    #: An operator's explanation of an error code; "": there is none.
    meaning: str = ""


RECENT = f"last_at > now() - interval '{DAYS} days'"
# Another worker may be counting some of these right now.
FORGET = f"""
DELETE FROM receipt_words WHERE (supplier_id, kind, word) IN (
    SELECT supplier_id, kind, word FROM receipt_words
     WHERE supplier_id = ANY ($1) AND NOT {RECENT} AND meaning = '' FOR UPDATE SKIP LOCKED)
"""
COUNT = f"""
INSERT INTO receipt_words AS known (supplier_id, kind, word, count, first_at, last_at)
SELECT supplier_id, kind, word, seen, now(), now()
  FROM unnest($1::uuid[], $2::text[], $3::text[], $4::bigint[]) AS item (supplier_id, kind, word, seen)
 WHERE EXISTS (SELECT FROM suppliers WHERE id = item.supplier_id)
   AND ((SELECT count(*) FROM receipt_words
          WHERE supplier_id = item.supplier_id AND kind = item.kind AND {RECENT}) < {WORDS}
        OR EXISTS (SELECT FROM receipt_words
                    WHERE supplier_id = item.supplier_id AND kind = item.kind AND word = item.word))
 ORDER BY supplier_id, kind, word
ON CONFLICT (supplier_id, kind, word) DO UPDATE SET count = known.count + excluded.count, last_at = excluded.last_at
"""
LISTED = f"""
SELECT supplier_id, kind, word, count, first_at, last_at, meaning FROM receipt_words
 WHERE {RECENT} ORDER BY supplier_id, count DESC, word
"""


class Words:
    """Counts words in memory, so that no receipt waits for a row that another worker holds."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[UUID, str, str]] = Counter()
        #: How many distinct words of each kind wait to be stored.
        self._pending: Counter[str] = Counter()
        #: Unknown states that have been logged.
        self._said: set[tuple[UUID, str]] = set()

    def add(self, supplier_id: UUID, receipt: Receipt) -> None:
        """Count a receipt's unknown state, and the code that says why its message did not arrive."""
        if state := storable(receipt.unknown_word):
            self._add((supplier_id, "state", state))
            if (supplier_id, state) not in self._said and len(self._said) < PENDING:
                self._said.add((supplier_id, state))
                log.warning("unknown state in a receipt", supplier_id=str(supplier_id), word=state)
        if receipt.error and receipt.state not in _FINE:
            self._add((supplier_id, "error", receipt.error[:LONGEST]))

    def answer(self, supplier_id: UUID, outcome: Outcome) -> None:
        """Count the code of a negative answer, with its interpretation."""
        if outcome.code:
            self._add((supplier_id, "answer", f"{outcome.verdict.value} {outcome.code}"[:LONGEST]))

    def _add(self, key: tuple[UUID, str, str]) -> None:
        if key not in self._counts:
            if self._pending[key[1]] >= PENDING:
                return
            self._pending[key[1]] += 1
        self._counts[key] += 1

    async def store(self, conn: Connection) -> None:
        """Store the counts since the last time; words that are no longer listed make room."""
        counts, self._counts = self._counts, Counter()
        self._pending.clear()
        if not counts:
            return
        kept: Counter[tuple[UUID, str, str]] = Counter()
        for (supplier_id, kind, word), number in counts.items():
            kept[supplier_id, kind, word if kind == "state" else _short(word)] += number
        try:
            await conn.execute(FORGET, list({supplier_id for supplier_id, _, _ in kept}))
            await conn.execute(COUNT, *(list(column) for column in zip(*kept, strict=True)), list(kept.values()))
        except BaseException:  # also if this task is cancelled
            self._counts += counts
            self._pending = Counter(kind for _, kind, _ in self._counts)
            raise


def _short(word: str) -> str:
    """A code without phone numbers. Some suppliers include them in the error, which would make each a code of its own.
    If a long number is the code itself, its end is kept, since there may be several such codes."""
    short = cleaned(storable(word))
    return short if _IS_CODE(short) and "+" not in word else _ENDS.sub("…", short)


#: What `cleaned` leaves of a phone number, and of a code that looks like one, which may follow a verdict and an HTTP
#: status.
_ENDS = re.compile(r"…[0-9]{4}")
_IS_CODE = re.compile(rf"(?:(?:{'|'.join(Verdict)}) )?(?:HTTP [0-9]{{3}} )?…[0-9]{{4}}").fullmatch
#: States whose receipts carry no error.
_FINE = (ReceiptState.DELIVERED, ReceiptState.PENDING)


async def unknown_states(conn: Connection) -> dict[UUID, list[Word]]:
    """States of the last seven days by supplier, most frequent first, except those that its settings explain."""
    explained = {
        one.id: {word.casefold() for name in STATES for word in one.settings.get(name, ())}
        for one in await routing.load(conn)
    }
    found: dict[UUID, list[Word]] = {}
    for id, word in await _listed(conn, "state"):
        if word.word.casefold() not in explained.get(id, ()):
            found.setdefault(id, []).append(word)
    return found


async def error_codes(conn: Connection) -> dict[UUID, list[Word]]:
    """Error codes of the last seven days by supplier, most frequent first."""
    found: dict[UUID, list[Word]] = {}
    for id, word in await _listed(conn, "error"):
        found.setdefault(id, []).append(word)
    return found


class Code(msgspec.Struct, frozen=True):
    """The code of negative answers in the last seven days."""

    code: str
    #: Our interpretation: a verdict and, for SMPP, its class (`codec.statuses`); "": none.
    verdict: str
    kind: str
    count: int
    last_at: datetime


async def answer_codes(conn: Connection, supplier: Supplier) -> list[Code]:
    """The answer codes of a supplier, most frequent first."""
    own = supplier.settings.get("statuses", {}) if supplier.kind == kinds.SMPP else {}
    classes = {code: kind for code, (_, kind) in STATUSES.items()} | {int(code, 16): kind for code, kind in own.items()}
    found = []
    for id, word in await _listed(conn, "answer"):
        if id == supplier.id:
            verdict, _, code = word.word.partition(" ")
            is_status = supplier.kind == kinds.SMPP and code.startswith("0x")
            kind = classes.get(int(code, 16), "R1") if is_status else ""
            found.append(Code(code, verdict, kind, word.count, word.last_at))
    return found


async def _listed(conn: Connection, kind: str) -> list[tuple[UUID, Word]]:
    rows = await conn.fetch(LISTED)
    names = Word.__struct_fields__
    return [(row["supplier_id"], Word(**{name: row[name] for name in names})) for row in rows if row["kind"] == kind]


def state_setting(supplier: Supplier) -> str | None:
    """The setting that defines the meaning of states in its receipts; None: its module does."""
    if supplier.kind == kinds.SMPP:
        return "final_states"
    return "receipt_states" if supplier.kind == kinds.GENERIC else None


async def say_state(
    conn: Connection, key: Key, *, supplier: str, word: str, meaning: str, by: Principal = SYSTEM
) -> None:
    """Define the meaning of a state of this supplier, one of MEANINGS, from now on. Raises NotFound, Invalid."""
    wrong = Problems()
    if meaning not in MEANINGS:
        wrong.add("meaning", "enum", f"`meaning` must be one of {', '.join(MEANINGS)}")
    if not 1 <= len(word) <= LONGEST:
        wrong.add("word", "length", f"`word` must have 1 to {LONGEST} characters")
    wrong.report()
    async with conn.transaction():
        before = await suppliers.lock(conn, supplier=supplier)
        setting = state_setting(before)
        if setting is None:
            raise Invalid(
                ("word", "not_supported", "the meaning of its states is defined by the module of this kind of supplier")
            )
        written = word.upper() if setting == "final_states" else word
        settings = {**before.settings, setting: {**before.settings.get(setting, {}), written: meaning}}
        try:
            kinds.settings_from(before.kind, settings)
        except SettingsError as error:
            raise Invalid(("meaning", "settings", f"The supplier's settings are incomplete: {error}")) from None
        after = msgspec.structs.replace(before, settings=settings)
        await suppliers.change(conn, key, after, before=before, by=by)


EXPLAIN = """
UPDATE receipt_words SET meaning = $3 WHERE supplier_id = $1 AND kind = 'error' AND word = $2
"""


async def say_error(conn: Connection, *, supplier: str, word: str, meaning: str, by: Principal = SYSTEM) -> None:
    """Note the meaning of an error code of this supplier; "": it is unknown. Raises NotFound, Invalid."""
    meaning = meaning.strip()
    if len(meaning) > LONGEST_MEANING:
        raise Invalid(("meaning", "length", f"`meaning` must have at most {LONGEST_MEANING} characters"))
    async with conn.transaction():
        id = await suppliers.id_of(conn, supplier)
        if await conn.execute(EXPLAIN, id, word, meaning) == "UPDATE 0":
            raise NotFound("No receipt of this supplier named this code.", word=word)
        await audit.record(conn, by, "supplier.code_explained", object_id=id, name=word, after={"meaning": meaning})
