"""Arrays in PostgreSQL's binary form, encoded and decoded a whole array at a time; and times, which are read once.

Every batch is sent as arrays, some 80 elements per message from accept to webhook. asyncpg processes them element by
element, with three checks each, which took a sixth of the processor time of API and worker (decision 0077); and on each
new connection it asks the server for the definition of each array type, in a query that takes as long as a hundred
others. Accepted values and errors are the same as with asyncpg, except that a time that UTC cannot represent, as in a
zone on the last day of 9999, is not refused, but infinite.

asyncpg takes some 5,000 instructions to read a time, a tenth of what recording a receipt needs. Rows that were written
together share theirs, so that most have just been read.

The form (`array_send` in PostgreSQL's arrayfuncs.c), all integers big-endian: number of dimensions, 1 if there are
NULLs, the elements' type; for each dimension its length and the number of its first element; for each element its
length in bytes, -1 for NULL, and its own binary form.

The rule nobody may break: a value that does not fit its type is refused here, never truncated.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from operator import attrgetter
from typing import Any
from uuid import UUID

from asyncpg.pgproto.pgproto import UUID as ServerUUID

from heliograph.base.database import clock

_HEAD = struct.Struct(">iiIii")
_DIMENSIONS = struct.Struct(">iiI")
_INT = struct.Struct(">i")
_PLACE = struct.Struct(">IH")
_DOUBLE = struct.Struct(">d")
#: Microseconds, days, months.
_INTERVAL = struct.Struct(">qii")
_NULL = _INT.pack(-1)
#: The encoded lengths of most texts.
_LENGTHS = [_INT.pack(n) for n in range(1024)]
#: PostgreSQL counts time from here, in microseconds.
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
#: `infinity` and `-infinity`, which asyncpg maps to the last and first microsecond that Python can represent.
_ENDLESS, _BEGINLESS = 2**63 - 1, -(2**63)

#: Both limits without a zone, as asyncpg returns them, and in microseconds.
_MIN, _MAX = clock.BEGINNING.replace(tzinfo=None), clock.END.replace(tzinfo=None)
_FIRST, _LAST = ((end - _EPOCH) // timedelta(microseconds=1) for end in (clock.BEGINNING, clock.END))

_ENDLESS_DAY, _BEGINLESS_DAY = 2**31 - 1, -(2**31)
_FIRST_DAY, _LAST_DAY = (day.toordinal() - _EPOCH.toordinal() for day in (date.min, date.max))

_bytes_of: Callable[[UUID], bytes] = attrgetter("bytes")


def _uuid(value: UUID | str) -> bytes:
    return value.bytes if isinstance(value, UUID) else UUID(value).bytes


def _text(value: str) -> bytes:
    if not isinstance(value, str):
        raise TypeError(f"expected str, got {type(value).__name__}")
    return value.encode()


def _boolean(value: bool) -> bytes:
    if value is True:
        return b"\1"
    if value is False:
        return b"\0"
    raise TypeError(f"a boolean is required (got type {type(value).__name__})")


def _integer(size: int) -> Callable[[int], bytes]:
    def encode(value: int) -> bytes:
        return int(value.__index__()).to_bytes(size, "big", signed=True)

    return encode


def _place(value: tuple[int, int]) -> bytes:
    block, number = value
    return _PLACE.pack(block, number)


def _blob(value: bytes) -> bytes:
    return bytes(memoryview(value))


def _date(value: date) -> bytes:
    days = value.toordinal() - _EPOCH.toordinal()
    if not _FIRST_DAY < days < _LAST_DAY:
        days = _ENDLESS_DAY if days > 0 else _BEGINLESS_DAY
    return _INT.pack(days)


def _read_date(data: bytes) -> date:
    days = _read_integer(data)
    if days == _ENDLESS_DAY:
        return date.max
    if days == _BEGINLESS_DAY:
        return date.min
    return date.fromordinal(days + _EPOCH.toordinal())


def _interval(value: timedelta) -> bytes:
    return _INTERVAL.pack(value.seconds * 1_000_000 + value.microseconds, value.days, 0)


def _read_interval(data: bytes) -> timedelta:
    microseconds, days, months = _INTERVAL.unpack(data)
    # The same conversion as asyncpg's, since timedelta has no months.
    years, months = divmod(months, 12) if months >= 0 else (-(-months // 12), -(-months % 12))
    return timedelta(days=days + months * 30 + years * 365, microseconds=microseconds)


def _timestamp(value: datetime) -> bytes:
    since = value - _EPOCH
    at = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    if not _FIRST < at < _LAST:
        at = _ENDLESS if at > 0 else _BEGINLESS
    return at.to_bytes(8, "big", signed=True)


def _moment(value: date) -> bytes:
    """A time outside of an array. As with asyncpg, one without a zone, or a date, is in this machine's."""
    if not isinstance(value, date):
        raise TypeError(f"expected date or datetime, got {type(value).__name__}")
    at = value if isinstance(value, datetime) else datetime.combine(value, time())
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC) if at in (_MIN, _MAX) else at.astimezone()
    return _timestamp(at)


@lru_cache(maxsize=1024)
def _read_timestamp(data: bytes) -> datetime:
    at = _read_integer(data)
    if at == _ENDLESS:
        return _MAX
    if at == _BEGINLESS:
        return _MIN
    return _EPOCH + timedelta(microseconds=at)


def _read_integer(data: bytes) -> int:
    return int.from_bytes(data, "big", signed=True)


def _integers_of(form: str) -> Callable[[memoryview], list[int]]:
    """Reads a whole array without NULLs. `form`: of an element, in the format of `struct`."""
    elements = struct.Struct(f">i{form}").iter_unpack

    def read(data: memoryview) -> list[int]:
        return [value for _, value in elements(data)]

    return read


# Whole arrays, each element preceded by its length. It does not matter what they raise for NULLs and for invalid
# values: each element is then encoded by itself.


def _uuids(values: Sequence[UUID]) -> bytes:
    length = _LENGTHS[16]
    return length + length.join(map(_bytes_of, values))


def _texts(values: Sequence[str]) -> bytes:
    lengths = _LENGTHS
    return b"".join([lengths[len(data)] + data for data in map(str.encode, values)])


def _blobs(values: Sequence[bytes]) -> bytes:
    lengths = _LENGTHS
    return b"".join([lengths[size] + data for size, data in zip(map(bytes.__len__, values), values, strict=True)])


def _booleans(values: Sequence[bool]) -> bytes:
    return b"".join(map({True: b"\0\0\0\1\1", False: b"\0\0\0\1\0"}.__getitem__, values))


def _small_integers(size: int, form: str) -> Callable[[Sequence[int]], bytes]:
    """`form`: of an element, in the format of `struct`; used unless all are small."""
    known = {number: _LENGTHS[size] + number.to_bytes(size, "big", signed=True) for number in range(-1, 1024)}
    pack = struct.Struct(f">i{form}").pack

    def encode(values: Sequence[int]) -> bytes:
        try:
            return b"".join(map(known.__getitem__, values))
        except KeyError:
            return b"".join([pack(size, value) for value in values])

    return encode


def _integers(values: Sequence[int]) -> bytes:
    both = [4] * (2 * len(values))
    both[1::2] = values
    return struct.pack(f">{len(both)}i", *both)


def _places(values: Sequence[tuple[int, int]]) -> bytes:
    pack, length = _PLACE.pack, _LENGTHS[6]
    return length + length.join([pack(block, number) for block, number in values])


def _timestamps(values: Sequence[datetime]) -> bytes:
    """Encodes a repeated object once: the values of a batch are often the same object."""
    last, encoded = values[0], _LENGTHS[8] + _timestamp(values[0])
    found = []
    for value in values:
        if value is not last:
            encoded, last = _LENGTHS[8] + _timestamp(value), value
        found.append(encoded)
    return b"".join(found)


def _lengthy(write: Callable[[Any], bytes]) -> Callable[[Sequence[Any]], bytes]:
    def encode(values: Sequence[Any]) -> bytes:
        return b"".join([_INT.pack(len(data)) + data for data in map(write, values)])

    return encode


class _Form:
    """The codec of one array type."""

    def __init__(
        self,
        element: int,
        write: Callable[[Any], bytes],
        write_all: Callable[[Sequence[Any]], bytes],
        read: Callable[[bytes], Any],
        read_all: Callable[[memoryview], list[Any]] | None = None,
    ) -> None:
        """`element`: OID of the element type in `pg_type`. `read_all`: reads the elements of an array without NULLs,
        each preceded by its length; None: element by element."""
        self._element, self._write, self._write_all, self._read = element, write, write_all, read
        self._read_all = read_all

    def encode(self, values: Sequence[Any]) -> bytes:
        if not isinstance(values, list | tuple):
            if isinstance(values, str | bytes | dict) or not isinstance(values, Iterable):
                raise TypeError(f"a sized iterable container expected (got type {type(values).__name__!r})")
            values = list(values)
        count = len(values)
        if count == 0:
            return _DIMENSIONS.pack(0, 0, self._element)
        first = values[0]
        try:
            if first is values[-1] and (count == 1 or values.count(first) == count):
                # An array of equal elements is encoded once.
                return _HEAD.pack(1, first is None, self._element, count, 1) + self._write_one(first) * count
            data = self._write_all(values)
        except (AttributeError, TypeError, LookupError, ValueError, struct.error):
            return _HEAD.pack(1, 1, self._element, count, 1) + b"".join(map(self._write_one, values))
        return _HEAD.pack(1, 0, self._element, count, 1) + data

    def _write_one(self, value: Any) -> bytes:
        if value is None:
            return _NULL
        data = self._write(value)
        return _INT.pack(len(data)) + data

    def decode(self, data: bytes) -> list[Any]:
        dimensions, has_nulls, element = _DIMENSIONS.unpack_from(data)
        if dimensions == 0:
            return []
        if dimensions != 1 or element != self._element:
            raise ValueError(f"an array of {dimensions} dimensions of type {element} cannot be read here")
        if self._read_all is not None and not has_nulls:
            return self._read_all(memoryview(data)[20:])
        count, at = _INT.unpack_from(data, 12)[0], 20
        found: list[Any] = []
        for _ in range(count):
            size = _INT.unpack_from(data, at)[0]
            at += 4
            if size < 0:
                found.append(None)
            else:
                found.append(self._read(data[at : at + size]))
                at += size
        return found


#: By OID of the array type in `pg_type`: its name there, and its codec. They are the same on every server.
_FORMS = {
    1000: ("_bool", _Form(16, _boolean, _booleans, lambda data: data != b"\0")),
    1001: ("_bytea", _Form(17, _blob, _blobs, bytes)),
    1005: ("_int2", _Form(21, _integer(2), _small_integers(2, "h"), _read_integer, _integers_of("h"))),
    1007: ("_int4", _Form(23, _integer(4), _integers, _read_integer, _integers_of("i"))),
    1009: ("_text", _Form(25, _text, _texts, bytes.decode)),
    1010: ("_tid", _Form(27, _place, _places, _PLACE.unpack)),
    1016: ("_int8", _Form(20, _integer(8), _small_integers(8, "q"), _read_integer, _integers_of("q"))),
    1022: ("_float8", _Form(701, _DOUBLE.pack, _lengthy(_DOUBLE.pack), lambda data: _DOUBLE.unpack(data)[0])),
    1182: ("_date", _Form(1082, _date, _lengthy(_date), _read_date)),
    1185: ("_timestamptz", _Form(1184, _timestamp, _timestamps, _read_timestamp)),
    1187: ("_interval", _Form(1186, _interval, _lengthy(_interval), _read_interval)),
    2951: ("_uuid", _Form(2950, _uuid, _uuids, ServerUUID)),
}


def use(connection: Any) -> None:
    """Install these codecs on an asyncpg connection. asyncpg's public `set_type_codec` does not accept array types."""
    settings = connection._protocol.get_settings()
    for number, (name, form) in _FORMS.items():
        settings.add_python_codec(number, name, "pg_catalog", [], "scalar", form.encode, form.decode, "binary")
    settings.add_python_codec(1184, "timestamptz", "pg_catalog", [], "scalar", _moment, _read_timestamp, "binary")
