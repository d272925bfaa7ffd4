"""Command-line options generated from a struct's fields, so that options and their documentation exist once.

A field `Annotated[type, "meaning"]` becomes an option with that help; a mapping becomes a repeatable `KEY=VALUE`.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec
import typer


def filled(given: str) -> str:
    """Callback of an option that must not be empty, as it is from an unset shell variable."""
    if not given.strip():
        raise typer.BadParameter("must not be empty")
    return given


def options_of(
    struct: type[msgspec.Struct], *, names: Mapping[str, str], without: frozenset[str]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator: adds an option per field of `struct`, before the command's own parameters. Those that are given on the
    command line are passed as a dict `given`.

    `names`: options named differently from their field ("--system" for "systems"). `without`: fields to omit.
    """
    fields = {field.name: field for field in msgspec.structs.fields(struct) if field.name not in without}
    hints = get_type_hints(struct, include_extras=True)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in list(inspect.signature(command, eval_str=True).parameters.values())[1:]
        ]
        made = [_parameter(name, hints[name], _default(field), names.get(name)) for name, field in fields.items()]

        def wrapper(ctx: typer.Context, **values: Any) -> None:
            read = {name: _value(values.pop(name), hints[name]) for name in fields}
            command({name: value for name, value in read.items() if _is_given(ctx, name)}, **values)

        parameters = [inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context), *made, *own]
        wrapper.__doc__ = command.__doc__
        wrapper.__name__ = command.__name__
        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return wrapper

    return decorate


def pairs(texts: list[str], key: type, value: type) -> dict[Any, Any]:
    """`["0x58=0.1"]` as a dict. Numbers may be written in hex. Raises typer.BadParameter."""
    found = {}
    for text in texts:
        left, *rest = re.split("[=:]", text, maxsplit=1)
        if not rest:
            raise typer.BadParameter(f"{text!r} is not KEY=VALUE")
        try:
            found[int(left, 0) if key is int else key(left)] = value(rest[0])
        except ValueError:
            raise typer.BadParameter(f"{text!r} is not {key.__name__}={value.__name__}") from None
    return found


def _parameter(name: str, hint: Any, default: Any, option: str | None) -> inspect.Parameter:
    kind, meaning = get_args(hint)[:2]
    declared = [option] if option else []
    shown: dict[str, Any] = {"help": meaning}
    annotation: Any
    if get_origin(kind) in (dict, Mapping, typing.Mapping):
        annotation, shown["metavar"] = list[str] | None, "KEY=VALUE"
        if default:
            shown["help"] += f"  [default: {', '.join(f'{key}={value}' for key, value in default.items())}]"
        default = None
    elif isinstance(kind, types.UnionType) or get_origin(kind) is typing.Union or default is not None:
        annotation = kind
    else:
        annotation = kind | None
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[annotation, typer.Option(*declared, **shown)],
    )


def _is_given(ctx: typer.Context, name: str) -> bool:
    """Whether an option is on the command line, even with the value that it has by default."""
    return getattr(ctx.get_parameter_source(name), "name", "") == "COMMANDLINE"


def _default(field: msgspec.structs.FieldInfo) -> Any:
    return field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default


def _value(given: Any, hint: Any) -> Any:
    kind = get_args(hint)[0]
    if given is not None and isinstance(given, list) and get_origin(kind) is not None:
        key, value = get_args(kind)
        return pairs(given, key, value)
    return given
