"""Suppliers' settings as typed by operators: `KEY=VALUE`, parsed according to the field's type.

The rule nobody may break: a password is not a setting, and is never shown, not even in part.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec

from heliograph.base.errors import Invalid, Problems
from heliograph.base.process.settings import SettingsError
from heliograph.base.sentences import joined, said
from heliograph.sms.dispatch.routing import Supplier
from heliograph.suppliers import kinds
from heliograph.suppliers.http.kind import SECRET, secrets_of
from heliograph.suppliers.settings import SettingError, describe_error

#: Stands for a password.
HIDDEN = "(hidden)"
#: Names of options of `supplier add`.
ALIASES = {"prefix": "prefixes", "rate": "submits_per_second"}


class Routing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Columns of a supplier that can be changed besides its settings, with the bounds of `supplier add`."""

    name: Annotated[str, msgspec.Meta(min_length=1)]
    prefixes: tuple[Annotated[str, msgspec.Meta(pattern=r"^[0-9]+$")], ...]
    priority: Annotated[int, msgspec.Meta(ge=0, le=1000)]
    weight: Annotated[int, msgspec.Meta(ge=1, le=1000)]
    sessions: Annotated[int, msgspec.Meta(ge=1, le=1000)]
    parts: Annotated[str, msgspec.Meta(pattern=r"^(all|any|first|last)$")]
    simulated: bool


def fields(kind: str) -> dict[str, tuple[Any, str]]:
    """Type and meaning of each setting of a kind of supplier."""
    return dict(_typed_fields(kinds.SETTINGS[kind]))


@functools.cache
def _typed_fields(struct: type[msgspec.Struct]) -> dict[str, tuple[Any, str]]:
    """Cached: evaluating annotations takes half a millisecond, and a page with a form needs them several times."""
    hints = get_type_hints(struct, include_extras=True)
    return {
        name: (get_args(hints[name])[0], get_args(hints[name])[1])
        if get_origin(hints[name]) is Annotated
        else (hints[name], "")
        for name in struct.__struct_fields__
    }


def is_mapping(of: Any) -> bool:
    """True if a setting of this type has entries."""
    return get_origin(of) is dict


def apply(values: dict[str, Any], pair: str, kind: str) -> None:
    """Set `key` or `key.entry` in settings; an empty value removes it.

    Raises Invalid, which names the key.
    """
    key, entry, text = _split(pair)
    known = fields(kind)
    if key not in known:
        raise Invalid((key, "unknown", f"{key} is not a setting; `heliograph supplier options {kind}` lists them"))
    if not entry:
        values.pop(key, None)
        if text:
            values[key] = _converted(key, text, known[key][0])
        return
    if not is_mapping(known[key][0]):
        raise Invalid((key, "format", said("%(key)s has no entries: use %(key)s=VALUE", key=key)))
    entries = dict(values.get(key, {}))
    entries.pop(entry, None)
    if text:
        entries[entry] = text
    values[key] = entries


def split_secrets(kind: str, pairs: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """Split pairs into settings and secrets of a kind. The account's password is neither."""
    known = kinds.HTTP[kind].secrets if kind in kinds.HTTP else {}
    plain, secrets = [], {}
    for pair in pairs:
        key, _, text = _split(pair)
        if key in known:
            secrets[key] = text
        else:
            plain.append(pair)
    return plain, secrets


def with_secrets(kind: str, known: str | None, new: dict[str, str]) -> str | None:
    """An account's secrets with new ones merged in, in the form that is sealed. `known`: the previous ones; None if
    they cannot be opened."""
    if not new:
        return known
    if kind not in kinds.HTTP:
        return new[SECRET]
    before = {} if known is None else dict(secrets_of(known))
    return msgspec.json.encode({name: text for name, text in (before | new).items() if text}).decode()


def changed(before: Supplier, pairs: Iterable[str]) -> Supplier:
    """Apply these pairs to the supplier. Raises Invalid, which names the key."""
    settings, after = dict(before.settings), before
    for pair in pairs:
        if _split(pair)[0] in Routing.__struct_fields__:
            after = msgspec.structs.replace(after, **msgspec.structs.asdict(row_changed(after, pair)))
        else:
            apply(settings, pair, before.kind)
    check(before.kind, settings)
    return msgspec.structs.replace(after, settings=settings)


def row_changed(before: Supplier, pair: str) -> Routing:
    """Apply a pair to the supplier's columns. Raises Invalid, which names the key."""
    return _row({name: getattr(before, name) for name in Routing.__struct_fields__}, pair)


def checked_place(row: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, Any]:
    """Columns of a supplier that is being added, after applying typed values. Raises Invalid with all errors."""
    known = dict(row) | {"prefixes": tuple(row["prefixes"])}
    wrong = Problems()
    for name, text in given.items():
        with wrong.gathering():
            known = msgspec.structs.asdict(_row(known, f"{name}={text.strip()}"))
    wrong.report()
    return {name: known[name] for name in row}


def _row(row: dict[str, Any], pair: str) -> Routing:
    row = dict(row)
    key, entry, text = _split(pair)
    if entry:
        raise Invalid((key, "format", said("%(key)s has no entries: use %(key)s=VALUE", key=key)))
    if key == "prefixes":
        row[key] = tuple(one.strip().removeprefix("+") for one in text.split(",") if one.strip())
    else:
        row[key] = _converted(key, text, get_type_hints(Routing, include_extras=True)[key])
    try:
        return msgspec.convert(row, Routing)
    except msgspec.ValidationError as error:
        raise Invalid((key, "invalid", joined([key, describe_error(str(error))], " "))) from None


def check(kind: str, settings: dict[str, Any]) -> None:
    """Raises Invalid, which names the setting."""
    try:
        kinds.settings_from(kind, settings)
    except SettingsError as error:
        text = str(error)
        name = re.match(r"[a-z0-9_]+", text)
        found = name[0] if name and name[0] in kinds.SETTINGS[kind].__struct_fields__ else "settings"
        raise Invalid((found, "invalid", error.words if isinstance(error, SettingError) else text)) from None


def differences(before: Supplier, after: Supplier) -> list[dict[str, Any]]:
    """The differences: setting, before, after. A setting that is not stored has its default."""
    rows = [
        (name, getattr(before, name), getattr(after, name))
        for name in Routing.__struct_fields__
        if getattr(before, name) != getattr(after, name)
    ]
    old, new = (effective(one.kind, one.settings) for one in (before, after))
    rows += [(name, old[name], new[name]) for name in old if old[name] != new[name]]
    return [{"setting": name, "before": one, "after": other} for name, one, other in rows]


def effective(kind: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of a kind with their effective values: as stored, otherwise the default; None for required ones that
    are missing."""
    defaults = {one.name: _default(one) for one in kinds.fields(kind)}
    return {name: _plain(settings.get(name, default)) for name, default in defaults.items()}


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return None if field.default is msgspec.NODEFAULT else field.default


def _plain(value: Any) -> Any:
    value = msgspec.to_builtins(value)
    return tuple(value) if isinstance(value, list) else value


def written(value: Any) -> str:
    """A value in the form that `KEY=VALUE` accepts."""
    if value in (None, "", {}):
        return ""
    if isinstance(value, tuple | list):
        return ",".join(str(one) for one in value)
    if isinstance(value, dict):
        return " ".join(f"{name}={one}" for name, one in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value)


def _split(pair: str) -> tuple[str, str, str]:
    """Key, entry ("" if there is none) and value."""
    name, separator, text = pair.partition("=")
    key, _, entry = name.strip().partition(".")
    if not separator or not key:
        raise Invalid((pair, "format", f"{pair!r} is not KEY=VALUE"))
    key = key.replace("-", "_")
    return ALIASES.get(key, key), entry, text


def _converted(key: str, text: str, kind: Any) -> Any:
    """Convert to the field's type: as written, otherwise as JSON, otherwise as a list; yes and no are booleans."""
    if "," in text and any(get_origin(one) is tuple for one in get_args(kind)):
        # Several values where a single one is allowed too.
        return [one.strip() for one in text.split(",") if one.strip()]
    if kind is bool:
        text = {"yes": "true", "no": "false"}.get(text.lower(), text)
    try:
        return msgspec.to_builtins(msgspec.convert(text, kind, strict=False))
    except msgspec.ValidationError as error:
        for form in (text, f"[{text}]"):
            try:
                return msgspec.to_builtins(msgspec.json.decode(form, type=kind))
            except msgspec.MsgspecError:
                continue
        try:
            return msgspec.to_builtins(msgspec.convert([one.strip() for one in text.split(",")], kind))
        except msgspec.ValidationError:
            raise Invalid((key, "format", joined([key, describe_error(str(error))], " "))) from None
