"""How templates run: like in Jinja2, but without features that our templates do not use.

A list of fifty rows calls a thousand macros and texts and writes two thousand values; that is where most of a page's
time is spent. The rule nobody may break: everything that a template writes is escaped unless it is Markup.
"""

from __future__ import annotations

from collections.abc import Callable
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.compiler import CodeGenerator, Frame
from jinja2.runtime import Context, Macro
from markupsafe import Markup, escape

_PLAIN = frozenset((FunctionType, MethodType, BuiltinMethodType))
#: The attribute of functions that read nothing from the context that a template's loop or block may set: for those, the
#: context is not copied.
OUTER = "is_outer"


def written(value: Any) -> str:
    """A value as written into a page. `markupsafe.escape` would copy existing Markup, which most values are."""
    kind = type(value)
    if kind is Markup:
        return value
    if kind is int:
        return str(value)
    return escape(value)


class Generator(CodeGenerator):
    """Generates templates that write with `written`."""

    def visit_Template(self, node: nodes.Template, frame: Frame | None = None) -> None:
        """Like Jinja2's, preceded by an import."""
        self.writeline(f"from {__name__} import {written.__name__}")
        super().visit_Template(node, frame)

    def _output_child_pre(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        if frame.eval_ctx.volatile or not frame.eval_ctx.autoescape or finalize.src is not None:
            super()._output_child_pre(node, frame, finalize)
        else:
            self.write(f"{written.__name__}(")


@pass_context
def _wants_context(context: Context) -> None:
    """Carries the mark by which Jinja2 recognizes such a function."""


_CONTEXT = _wants_context.jinja_pass_arg  # type: ignore[attr-defined]


class Running(Context):
    """Calls known kinds of functions directly, without Jinja2's inspection of what to pass."""

    def call(__self, __obj: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """As Jinja2's."""
        kind = type(__obj)
        if kind in _PLAIN:
            wanted = getattr(__obj, "jinja_pass_arg", None)
        elif kind is Macro:
            wanted = None  # it escapes, like everything here
        else:
            return super().call(__obj, *args, **kwargs)
        if kwargs:
            loop, block = kwargs.pop("_loop_vars", None), kwargs.pop("_block_vars", None)
            if wanted is not None and (loop or block) and not hasattr(__obj, OUTER):
                return super().call(__obj, *args, **kwargs, _loop_vars=loop, _block_vars=block)
        if wanted is None:
            return __obj(*args, **kwargs)
        if wanted is _CONTEXT:
            return __obj(__self, *args, **kwargs)
        return super().call(__obj, *args, **kwargs)
