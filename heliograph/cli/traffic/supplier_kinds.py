"""`heliograph supplier add KIND`: options generated from the settings of a kind; for suppliers over HTTP, the whole
command."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Collection, Iterator
from typing import Annotated, Any, get_type_hints

import msgspec
import typer

from heliograph.base.errors import Invalid
from heliograph.base.process.settings import SettingsError
from heliograph.sms.management import options
from heliograph.suppliers import kinds
from heliograph.suppliers.http.kind import SECRET, HttpKind

#: Adds a supplier: (kind, settings, secrets except the first, options of any supplier).
Add = Callable[[HttpKind, dict[str, Any], dict[str, str], dict[str, Any]], None]


@contextlib.contextmanager
def usage() -> Iterator[None]:
    """Reports invalid settings like any other invalid argument."""
    try:
        yield
    except Invalid as refusal:
        raise typer.BadParameter(refusal.message) from None


def register(app: typer.Typer, common: list[inspect.Parameter], add: Add) -> None:
    """Register one command per kind. `common`: options that every supplier has, including `name`."""
    for kind in kinds.HTTP.values():
        app.command(kind.name)(_command(kind, common, add))


def completed(command: Callable[..., None], kind: str, by_hand: Collection[str]) -> Callable[..., None]:
    """A command with an option for each setting of a kind except those handled `by_hand`; it gets them in `set_`, its
    parameter for pairs of any setting."""
    known = {name: one for name, one in options.fields(kind).items() if name not in by_hand}

    def whole(**given: Any) -> None:
        pairs = [_pair(name, text, known[name][0]) for name in known for text in _listed(given.pop(name))]
        command(**given | {"set_": [*pairs, *(given["set_"] or ())]})

    hints = get_type_hints(command, include_extras=True)
    own = [one.replace(annotation=hints[one.name]) for one in inspect.signature(command).parameters.values()]
    at = [one.name for one in own].index("set_")
    offered = [_option(name, meaning, of, kinds.SETTINGS[kind]) for name, (of, meaning) in known.items()]
    ordered = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in (*own[: at + 1], *offered, *own[at + 1 :])]
    whole.__signature__ = inspect.Signature(ordered)  # type: ignore[attr-defined]
    whole.__annotations__ = {one.name: one.annotation for one in ordered}
    whole.__module__, whole.__name__, whole.__doc__ = command.__module__, command.__name__, command.__doc__
    return whole


def _command(kind: HttpKind, common: list[inspect.Parameter], add: Add) -> Callable[..., None]:
    known = options.fields(kind.name)

    def command(**given: Any) -> None:
        values: dict[str, Any] = {}
        for name in known:
            for text in _listed(given.pop(name)):
                with usage():
                    options.apply(values, _pair(name, text, known[name][0]), kind.name)
        try:
            kinds.settings_from(kind.name, values)
        except SettingsError as error:
            raise typer.BadParameter(str(error)) from None
        secrets = {name: text for name in _further(kind) if (text := given.pop(name))}
        add(kind, values, secrets, given)

    offered = [_option(name, meaning, of, kind.settings) for name, (of, meaning) in known.items()]
    offered += [_secret(name, kind.secrets[name]) for name in _further(kind)]
    ordered = sorted([*common, *offered], key=lambda one: one.default is not inspect.Parameter.empty)
    command.__signature__ = inspect.Signature(ordered)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in ordered}
    # Its behavior is defined there.
    command.__module__, command.__name__ = add.__module__, add.__name__
    needed = " ".join(f"--{_dashed(one.name)} ..." for one in offered if one.default is inspect.Parameter.empty)
    command.__doc__ = (
        f"Add an account at {kind.title.replace('Any ', 'any ')}. Its secret is prompted for, or read from a line on "
        f"stdin: {kind.secrets[SECRET]}.\n\n"
        f"\b\nExample:\n  heliograph supplier add {kind.name} main {needed}".rstrip()
    )
    return command


def _option(name: str, meaning: str, of: Any, settings: type[msgspec.Struct]) -> inspect.Parameter:
    """The option of one setting. Parsing errors name it."""
    field = next(one for one in msgspec.structs.fields(settings) if one.name == name)
    is_required = field.default is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT
    default = "" if is_required or field.default is msgspec.NODEFAULT else options.written(field.default)
    text = f"{meaning}. [default: {default}]" if default else f"{meaning}."
    is_mapping = options.is_mapping(of)
    option = typer.Option(
        f"--{_dashed(name)}", metavar="KEY=VALUE" if is_mapping else "VALUE", help=text, show_default=False
    )
    annotation: Any
    if is_mapping:
        annotation, given = Annotated[list[str] | None, option], None
    else:
        annotation = Annotated[str, option] if is_required else Annotated[str | None, option]
        given = inspect.Parameter.empty if is_required else None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=given, annotation=annotation)


def _further(kind: HttpKind) -> list[str]:
    """Names of the optional secrets."""
    return [name for name in kind.secrets if name != SECRET]


def _secret(name: str, meaning: str) -> inspect.Parameter:
    option = typer.Option(
        f"--{_dashed(name)}",
        metavar="SECRET",
        help=f"{meaning}; command lines are visible to other users of this machine.",
        envvar=f"HELIOGRAPH_SUPPLIER_{name.upper()}",
        show_default=False,
        show_envvar=False,
    )
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[str | None, option]
    )


def _pair(name: str, text: str, of: Any) -> str:
    return f"{name}.{text}" if options.is_mapping(of) else f"{name}={text}"


def _listed(given: str | list[str] | None) -> list[str]:
    return [] if given is None else [given] if isinstance(given, str) else given


def _dashed(name: str) -> str:
    return name.replace("_", "-")
