"""Suppliers' settings on the command line: `KEY=VALUE`, parsed according to the field's type.

The rule nobody may break: a password is not a setting, and is never shown, not even in part.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec
import typer

from heliograph.base.process.settings import SettingsError
from heliograph.sms.dispatch.routing import Supplier
from heliograph.suppliers import kinds
from heliograph.suppliers.http.kind import SECRET, secrets_of

#: Stands for a password.
HIDDEN = "(hidden)"
#: Names that options of `supplier add` have.
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
    struct = kinds.SETTINGS[kind]
    hints = get_type_hints(struct, include_extras=True)
    return {
        name: (get_args(hints[name])[0], get_args(hints[name])[1])
        if get_origin(hints[name]) is Annotated
        else (hints[name], "")
        for name in struct.__struct_fields__
    }


def is_mapping(of: Any) -> bool:
    """A setting of this type has entries."""
    return get_origin(of) is dict


def apply(values: dict[str, Any], pair: str, kind: str) -> None:
    """Set `key` or `key.entry` in settings; an empty value removes it.

    Raises typer.BadParameter, which names the key.
    """
    key, entry, text = _split(pair)
    known = fields(kind)
    if key not in known:
        raise typer.BadParameter(f"{key} is not a setting; `heliograph supplier options {kind}` lists them")
    if not entry:
        values.pop(key, None)
        if text:
            values[key] = _converted(key, text, known[key][0])
        return
    if not is_mapping(known[key][0]):
        raise typer.BadParameter(f"{key} has no entries: use {key}=VALUE")
    entries = dict(values.get(key, {}))
    entries.pop(entry, None)
    if text:
        entries[entry] = text
    values[key] = entries


def apart(kind: str, pairs: Iterable[str]) -> tuple[list[str], dict[str, str]]:
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
    """An account's secrets, sealed, with new ones merged in. `known`: the previous ones; None if they cannot be
    open."""
    if not new:
        return known
    if kind not in kinds.HTTP:
        return new[SECRET]
    before = {} if known is None else dict(secrets_of(known))
    return msgspec.json.encode({name: text for name, text in (before | new).items() if text}).decode()


def changed(before: Supplier, pairs: Iterable[str]) -> Supplier:
    """Apply these pairs to the supplier. Raises typer.BadParameter, which names the key."""
    settings = dict(before.settings)
    row = {name: getattr(before, name) for name in Routing.__struct_fields__}
    hints = get_type_hints(Routing, include_extras=True)
    for pair in pairs:
        key, entry, text = _split(pair)
        if key not in row:
            apply(settings, pair, before.kind)
        elif entry:
            raise typer.BadParameter(f"{key} has no entries: use {key}=VALUE")
        elif key == "prefixes":
            row[key] = tuple(one.strip().removeprefix("+") for one in text.split(",") if one.strip())
        else:
            row[key] = _converted(key, text, hints[key])
    try:
        checked = msgspec.convert(row, Routing)
        kinds.settings_from(before.kind, settings)
    except msgspec.ValidationError as error:
        raise typer.BadParameter(str(error)) from None
    except SettingsError as error:
        raise typer.BadParameter(str(error)) from None
    return msgspec.structs.replace(before, settings=settings, **msgspec.structs.asdict(checked))


def differences(before: Supplier, after: Supplier) -> list[dict[str, Any]]:
    """The differences: setting, before, after. A setting that is not set has its default."""
    rows = [
        (name, getattr(before, name), getattr(after, name))
        for name in Routing.__struct_fields__
        if getattr(before, name) != getattr(after, name)
    ]
    old, new = (msgspec.to_builtins(kinds.settings_from(one.kind, one.settings)) for one in (before, after))
    rows += [(name, old[name], new[name]) for name in old if old[name] != new[name]]
    return [{"setting": name, "before": one, "after": other} for name, one, other in rows]


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
        raise typer.BadParameter(f"{pair!r} is not KEY=VALUE")
    key = key.replace("-", "_")
    return ALIASES.get(key, key), entry, text


def _converted(key: str, text: str, kind: Any) -> Any:
    """Convert to the type of the field: as written, else as JSON, else as a list; yes and no are booleans."""
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
            raise typer.BadParameter(f"{key}: {error}") from None
