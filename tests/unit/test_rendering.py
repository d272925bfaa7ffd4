"""Our compiled form of templates renders exactly what Jinja2 would."""

from __future__ import annotations

import pytest
from jinja2 import DictLoader, Environment, StrictUndefined, pass_context, pass_environment, pass_eval_context
from jinja2.nodes import EvalContext
from jinja2.runtime import Context
from markupsafe import Markup

from heliograph.pages.pieces import rendering


class Quick(Environment):
    code_generator_class = rendering.Generator
    context_class = rendering.Running


class Callable:
    """Neither a function nor a method."""

    def __call__(self, value: str) -> str:
        return f"<{value}>"


@pass_context
def shown(context: Context, name: str) -> str:
    return f"{name}={context[name]}"


@pass_eval_context
def escapes(context: EvalContext) -> bool:
    return bool(context.autoescape)


@pass_environment
def blocks(environment: Environment) -> str:
    return environment.block_start_string


KIT = """
{% macro bold(text, end="") %}<b>{{ text }}{{ end }}</b>{% endmacro %}
{% macro cells(names) %}{% for name in names %}<td>{{ caller(name)|trim or "–" }}</td>{% endfor %}{% endmacro %}
"""
VALUES = {
    "text": "<i>&\"'",
    "markup": Markup("<i>&amp;</i>"),
    "number": 12,
    "share": 1.5,
    "nothing": None,
    "yes": True,
    "many": ["<a>", Markup("<br>"), 3],
    "shown": shown,
    "escapes": escapes,
    "blocks": blocks,
    "called": Callable(),
    "method": "a-b".replace,
}
TEMPLATES = (
    "{{ text }} {{ markup }} {{ number }} {{ share }} {{ nothing }} {{ yes }} {{ many }}",
    "{% set kept %}{{ text }}<br>{% endset %}{{ kept }}{{ text ~ markup }}{{ 'a' ~ number }}",
    "{% import 'kit' as kit %}{{ kit.bold(text) }}{{ kit.bold(markup, end=number) }}{{ kit.bold(kit.bold(text)) }}",
    "{% import 'kit' as kit %}{% call(name) kit.cells(many) %}{{ name }}{{ text }}{% endcall %}",
    "{% import 'kit' as kit %}{% call(name) kit.cells([1]) %} {% endcall %}",
    "{% for one in many %}{% set mine = loop.index %}{{ shown('mine') }}{{ shown('text') }}{% endfor %}",
    "{% for one in many %}{% set mine = one %}{{ called(mine) }}{{ method('-', one|string) }}{% endfor %}",
    "{% block main %}{% set mine = text %}{{ shown('mine') }}{% endblock %}",
    "{{ escapes() }}{{ blocks() }}{{ called(text) }}",
    "{% autoescape false %}{{ text }}{{ markup }}{% endautoescape %}{{ text }}",
)


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_page_says_what_jinja_would_say(template: str) -> None:
    made = []
    for kind in (Environment, Quick):
        environment = kind(
            loader=DictLoader({"kit": KIT, "page": template}), autoescape=True, undefined=StrictUndefined
        )
        made.append(environment.get_template("page").render(VALUES))
    assert made[0] == made[1]
    assert made[1]
