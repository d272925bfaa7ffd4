"""Suppliers' settings as people write them: `KEY=VALUE`, each as its field's type wants it.

The rule nobody may break: a password is none of them, and is never shown, not even in part.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec
import typer

from heliograph.base.process.settings import SettingsError
from heliograph.sms.dispatch.routing import Supplier
from heliograph.suppliers.smpp.settings import SmppSettings, settings_from

#: Stands for a password.
HIDDEN = "(hidden)"
#: Names that options of `supplier add` have.
ALIASES = {"rate": "submits_per_second", "prefix": "prefixes"}


class Routing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What of a supplier's row can be changed besides its settings: the bounds are those of `supplier add`."""

    name: Annotated[str, msgspec.Meta(min_length=1)]
    prefixes: tuple[Annotated[str, msgspec.Meta(pattern=r"^[0-9]+$")], ...]
    priority: Annotated[int, msgspec.Meta(ge=0, le=1000)]
    weight: Annotated[int, msgspec.Meta(ge=1, le=1000)]
    sessions: Annotated[int, msgspec.Meta(ge=1, le=1000)]
    parts: Annotated[str, msgspec.Meta(pattern=r"^(all|any|first|last)$")]
    simulated: bool


def fields() -> dict[str, tuple[Any, str]]:
    """Type and meaning of each setting of an SMPP account."""
    hints = get_type_hints(SmppSettings, include_extras=True)
    return {
        name: (get_args(hint)[0], get_args(hint)[1]) if get_origin(hint) is Annotated else (hint, "")
        for name, hint in hints.items()
        if name in SmppSettings.__struct_fields__
    }


def apply(values: dict[str, Any], pair: str) -> None:
    """Put `key=value` or `key.entry=value` into settings; an empty value takes it out.

    Raises typer.BadParameter, which names the key.
    """
    key, entry, text = _split(pair)
    known = fields()
    if key not in known:
        raise typer.BadParameter(f"{key} is not a setting; `heliograph supplier options` lists them")
    if not entry:
        values.pop(key, None)
        if text:
            values[key] = _converted(key, text, known[key][0])
        return
    if get_origin(known[key][0]) is not dict:
        raise typer.BadParameter(f"{key} has no entries: use {key}=VALUE")
    entries = dict(values.get(key, {}))
    entries.pop(entry, None)
    if text:
        entries[entry] = text
    values[key] = entries


def changed(before: Supplier, pairs: Iterable[str]) -> Supplier:
    """The supplier as these pairs make it. Raises typer.BadParameter, which names the key."""
    settings = dict(before.settings)
    row = {name: getattr(before, name) for name in Routing.__struct_fields__}
    hints = get_type_hints(Routing, include_extras=True)
    for pair in pairs:
        key, entry, text = _split(pair)
        if key not in row:
            apply(settings, pair)
        elif entry:
            raise typer.BadParameter(f"{key} has no entries: use {key}=VALUE")
        elif key == "prefixes":
            row[key] = tuple(one.strip().removeprefix("+") for one in text.split(",") if one.strip())
        else:
            row[key] = _converted(key, text, hints[key])
    try:
        checked = msgspec.convert(row, Routing)
        settings_from(settings)
    except msgspec.ValidationError as error:
        raise typer.BadParameter(str(error)) from None
    except SettingsError as error:
        raise typer.BadParameter(str(error)) from None
    return msgspec.structs.replace(before, settings=settings, **msgspec.structs.asdict(checked))


def differences(before: Supplier, after: Supplier) -> list[dict[str, Any]]:
    """What is not as it was: setting, before, after. A setting that is not set has its default."""
    rows = [
        (name, getattr(before, name), getattr(after, name))
        for name in Routing.__struct_fields__
        if getattr(before, name) != getattr(after, name)
    ]
    old, new = (msgspec.to_builtins(settings_from(one.settings)) for one in (before, after))
    rows += [(name, old[name], new[name]) for name in old if old[name] != new[name]]
    return [{"setting": name, "before": one, "after": other} for name, one, other in rows]


def written(value: Any) -> str:
    """A value as `KEY=VALUE` takes it."""
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
    """As the type wants it: as it is written, else as JSON, else as the items of a list; yes and no as tables say."""
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
