"""Predicts what a migration will lock, and for how long, from its text and the sizes of its tables.

Based on PostgreSQL's documentation of explicit locking and of ALTER TABLE (chapter 13.3 and the reference). A test runs
each kind of statement and compares the lock taken. The rule nobody may break: a statement that is not understood is
reported as the worst case, never as harmless.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib.resources.abc import Traversable
from typing import Literal

import msgspec

from heliograph.base.database import migrate
from heliograph.base.database.pool import Connection

#: Bytes per second when a table is scanned, and when it is rewritten with its indexes: those of a modest disk, so that
#: estimates err on the long side.
READ, REWRITE = 100e6, 20e6
#: Seconds for a lock that only changes the catalog.
BRIEF = 0.01

Blocks = Literal["nothing", "changes of definition", "writes", "reads and writes"]
#: Lock modes, by what they block.
MODES: dict[str, Blocks] = {
    "": "nothing",
    "RowExclusiveLock": "nothing",
    "ShareUpdateExclusiveLock": "changes of definition",
    "ShareLock": "writes",
    "ShareRowExclusiveLock": "writes",
    "AccessExclusiveLock": "reads and writes",
}


class Planned(msgspec.Struct, frozen=True):
    """One statement in a file that would be applied."""

    file: str
    #: Its beginning.
    statement: str
    #: The table that it locks; "": none that existed before.
    table: str
    #: As in `pg_locks`.
    mode: str
    blocks: Blocks
    #: Size of the table with its indexes and partitions.
    bytes: int
    #: Roughly how long it holds the lock.
    seconds: float
    #: It was not recognized: the worst case is assumed.
    is_guess: bool = False


class _Kind(msgspec.Struct, frozen=True):
    pattern: re.Pattern[str]
    mode: str
    #: What it does to all rows while holding the lock.
    reads: bool = False
    rewrites: bool = False


def _kind(pattern: str, mode: str, *, reads: bool = False, rewrites: bool = False) -> _Kind:
    return _Kind(re.compile(pattern, re.IGNORECASE | re.DOTALL), mode, reads, rewrites)


_T = r"(?:ONLY )?(?:public\.)?\"?(?P<table>\w+)\"?"
_ALTER = rf"ALTER TABLE (?:IF EXISTS )?{_T} "
_ADD = r".*\bADD (?:CONSTRAINT \w+ )?"
_COMPUTED = r"(?:\bDEFAULT\s+\w*(?:random|uuid|clock_timestamp|nextval)\w*\s*\(|\bGENERATED\b)"
_STORAGE = r"(?:ALTER (?:COLUMN )?\w+ SET STATISTICS|SET \((?:fillfactor|autovacuum))"
#: The first match counts.
KINDS = (
    _kind(rf"CREATE (?:UNIQUE )?INDEX CONCURRENTLY .*? ?ON {_T}", "ShareUpdateExclusiveLock", reads=True),
    _kind(rf"CREATE (?:UNIQUE )?INDEX .*? ?ON {_T}", "ShareLock", reads=True),
    _kind(rf"{_ALTER}.*\bVALIDATE CONSTRAINT\b", "ShareUpdateExclusiveLock", reads=True),
    _kind(rf"{_ALTER}.*\bATTACH PARTITION\b", "ShareUpdateExclusiveLock"),
    _kind(rf"{_ALTER}.*\bFOREIGN KEY\b.*\bNOT VALID\b", "ShareRowExclusiveLock"),
    _kind(rf"{_ALTER}.*\bFOREIGN KEY\b", "ShareRowExclusiveLock", reads=True),
    _kind(rf"{_ALTER}{_ADD}(?:CHECK|NOT NULL)\b.*\bNOT VALID\b", "AccessExclusiveLock"),
    _kind(rf"{_ALTER}{_ADD}(?:CHECK|UNIQUE|PRIMARY KEY|EXCLUDE)\b", "AccessExclusiveLock", reads=True),
    _kind(rf"{_ALTER}.*\bSET NOT NULL\b", "AccessExclusiveLock", reads=True),
    _kind(rf"{_ALTER}.*\bALTER (?:COLUMN )?\w+ (?:SET DATA )?TYPE\b", "AccessExclusiveLock", rewrites=True),
    # A value computed for each row is stored in each row.
    _kind(rf"{_ALTER}.*\bADD (?:COLUMN )?.*{_COMPUTED}", "AccessExclusiveLock", rewrites=True),
    _kind(rf"{_ALTER}{_STORAGE}", "ShareUpdateExclusiveLock"),
    _kind(rf"{_ALTER}(?:ADD|DROP|RENAME|ALTER|SET|RESET|DETACH|ENABLE|DISABLE|OWNER)\b", "AccessExclusiveLock"),
    _kind(rf"DROP TABLE (?:IF EXISTS )?{_T}", "AccessExclusiveLock"),
    _kind(rf"COMMENT ON TABLE {_T}", "ShareUpdateExclusiveLock"),
    _kind(rf"COMMENT ON COLUMN {_T}\.", "ShareUpdateExclusiveLock"),
    _kind(rf"UPDATE {_T}", "RowExclusiveLock", rewrites=True),
    _kind(rf"(?:INSERT INTO|DELETE FROM) {_T}", "RowExclusiveLock"),
    _kind(r"CREATE (?:OR REPLACE )?(?:FUNCTION|PROCEDURE|AGGREGATE|VIEW|DOMAIN)\b", ""),
    _kind(r"(?:COMMENT ON|GRANT|REVOKE|SET|SELECT)\b", ""),
)

SIZES = """
SELECT name, coalesce((SELECT sum(pg_total_relation_size(relid)) FROM pg_partition_tree(to_regclass(name))),
                      pg_total_relation_size(to_regclass(name)))::bigint AS bytes
  FROM unnest($1::text[]) AS name WHERE to_regclass(name) IS NOT NULL
"""
# An index's table is looked up, since the statement that drops it does not name it.
OF_INDEX = """
SELECT index.relname AS name, owner.relname AS owner FROM pg_index
  JOIN pg_class index ON index.oid = indexrelid JOIN pg_class owner ON owner.oid = indrelid
 WHERE index.relname = ANY ($1::text[])
"""
_DROP_INDEX = re.compile(r"DROP INDEX (?P<how>CONCURRENTLY )?(?:IF EXISTS )?\"?(?P<index>\w+)", re.IGNORECASE)
_REFERENCED = re.compile(r"\bREFERENCES (\w+)", re.IGNORECASE)
#: Text in which a semicolon does not end a statement: comments, quoted text, function bodies.
_PIECES = re.compile(r"--[^\n]*|'(?:[^']|'')*'|\$(\w*)\$.*?\$\1\$|;", re.DOTALL)


def statements(text: str) -> Iterator[str]:
    """The statements of an SQL file, without comments, each on one line."""
    current, last = "", 0
    for piece in _PIECES.finditer(text):
        current += text[last : piece.start()]
        last = piece.end()
        if piece[0] == ";":
            if current.strip():
                yield " ".join(current.split())
            current = ""
        elif not piece[0].startswith("--"):
            current += piece[0]
    current += text[last:]
    if current.strip():
        yield " ".join(current.split())


async def plan(conn: Connection, *, root: Traversable = migrate.ROOT) -> list[Planned]:
    """What `heliograph migrate` would lock in this database now, statement by statement. Replacing functions locks no
    table. Raises ForeignSchema. `root`: as for `migrate`."""
    pending = await migrate.unapplied(conn, root=root)
    return await locks_of(conn, [(one.name, one.text) for one in pending if one.kind != "function"])


async def locks_of(conn: Connection, scripts: Sequence[tuple[str, str]]) -> list[Planned]:
    """The locks that these files (name, text) would take on existing tables."""
    found: list[tuple[str, str, str, _Kind | None]] = []
    created: set[str] = set()
    indexes: list[str] = []
    for name, text in scripts:
        for statement in statements(text):
            made = re.match(r"CREATE (?:UNLOGGED )?TABLE (?:IF NOT EXISTS )?(\w+)", statement, re.IGNORECASE)
            if made is not None:
                created.add(made[1])
                # Writers of the referenced table wait while the foreign key is created.
                referred = sorted(set(_REFERENCED.findall(statement)) - created)
                found += [(name, statement, table, _REFERS) for table in referred]
                continue
            dropped = _DROP_INDEX.match(statement)
            if dropped is not None:
                indexes.append(dropped["index"])
                found.append((name, statement, dropped["index"], _DROPS_CONCURRENTLY if dropped["how"] else _DROPS))
                continue
            kind = next((one for one in KINDS if one.pattern.match(statement)), None)
            match = kind.pattern.match(statement) if kind is not None else None
            table = (match.groupdict().get("table") or "") if match is not None else ""
            found.append((name, statement, table, kind))
    owners = {row["name"]: row["owner"] for row in await conn.fetch(OF_INDEX, indexes)}
    named = [(file, statement, owners.get(table, table), kind) for file, statement, table, kind in found]
    sizes = {row["name"]: row["bytes"] for row in await conn.fetch(SIZES, [one[2] for one in named if one[2]])}
    planned: list[Planned] = []
    for file, statement, table, kind in named:
        short = statement[:100]
        if kind is None:
            planned.append(Planned(file, short, "", "AccessExclusiveLock", "reads and writes", 0, BRIEF, True))
        elif kind.mode and table in sizes and table not in created:
            size = sizes[table]
            lasts = BRIEF + (size / REWRITE if kind.rewrites else size / READ if kind.reads else 0)
            planned.append(Planned(file, short, table, kind.mode, MODES[kind.mode], size, round(lasts, 2)))
    return planned


_REFERS = _kind("", "ShareRowExclusiveLock")
_DROPS, _DROPS_CONCURRENTLY = _kind("", "AccessExclusiveLock"), _kind("", "ShareUpdateExclusiveLock")
