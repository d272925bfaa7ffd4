"""Bodies of sends, compared with those that an independent library makes of the same values."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pywa.types import templates as pywa

from heliograph.suppliers.whatsapp_cloud.bodies import (
    BODY_LIMIT,
    HEADER_LIMIT,
    TemplateLayout,
    is_user_id,
    layout,
    template_body,
    text_body,
)

SHIPPED: list[dict[str, Any]] = [
    {"type": "HEADER", "format": "TEXT", "text": "Commande {{1}}"},
    {"type": "BODY", "text": "Bonjour {{1}}, livraison {{2}} environ."},
    {"type": "FOOTER", "text": "Service client"},
    {
        "type": "BUTTONS",
        "buttons": [
            {"type": "QUICK_REPLY", "text": "Stop"},
            {"type": "URL", "text": "Aide", "url": "https://shop.example/help"},
            {"type": "URL", "text": "Suivre", "url": "https://shop.example/{{1}}"},
        ],
    },
]
NAMED: list[dict[str, Any]] = [
    {"type": "BODY", "text": "{{customer}}, your order {{order_id}} is here. Bye, {{customer}}."}
]
CODE: list[dict[str, Any]] = [
    {"type": "BODY", "text": "*{{1}}* est votre code."},
    {"type": "FOOTER", "text": "expire", "code_expiration_minutes": 5},
    {"type": "BUTTONS", "buttons": [{"type": "OTP", "otp_type": "COPY_CODE", "text": "Copier"}]},
]


def made(plan: TemplateLayout, *values: str) -> dict[str, Any]:
    """The body as it is read."""
    assert plan.check(values) == []
    body: dict[str, Any] = json.loads(
        template_body(to="+212600000017", name="n", language="fr", layout=plan, parameters=values, opaque="our-id")
    )
    return body


def alike(components: list[Any]) -> list[Any]:
    """Without differences that Meta ignores: the case of types, an index as text or number."""
    found = []
    for one in components:
        plain = json.loads(json.dumps(one))
        plain["type"] = plain["type"].lower()
        if "sub_type" in plain:
            plain["sub_type"] = plain["sub_type"].lower()
            plain["index"] = int(plain["index"])
        found.append(plain)
    return found


def test_a_utility_template_fills_as_that_library_fills_it() -> None:
    body = made(layout(SHIPPED, "POSITIONAL", "UTILITY"), "CMD-4471", "Amal", "jeudi 14h", "track/4471")
    theirs = [
        pywa.HeaderText.params("CMD-4471").to_dict(),
        pywa.BodyText.params("Amal", "jeudi 14h").to_dict(),
        pywa.URLButton.params(url_variable="track/4471", index=2).to_dict(),
    ]
    assert alike(body["template"]["components"]) == alike(theirs)
    assert body["template"]["components"][2]["index"] == "2"
    assert body["template"]["name"] == "n"
    assert body["template"]["language"] == {"code": "fr"}
    assert {name: body[name] for name in ("messaging_product", "recipient_type", "to", "type")} == {
        "messaging_product": "whatsapp",
        "recipient_type": "individual",
        "to": "+212600000017",
        "type": "template",
    }
    assert body["biz_opaque_callback_data"] == "our-id"


def test_named_variables_take_values_in_order_of_first_appearance() -> None:
    plan = layout(NAMED, "named", "utility")
    assert plan.parameter_count == 2
    body = made(plan, "Amal", "4471")
    assert alike(body["template"]["components"]) == alike(
        [pywa.BodyText.params(customer="Amal", order_id="4471").to_dict()]
    )
    assert plan.text(["Amal", "4471"]) == "Amal, your order 4471 is here. Bye, Amal."
    assert plan == layout(NAMED, None, "UTILITY")


def test_a_code_goes_to_body_and_button() -> None:
    plan = layout(CODE, "POSITIONAL", "AUTHENTICATION")
    body = made(plan, "481920")
    theirs = [pywa.BodyText.params("481920").to_dict(), pywa.CopyCodeOTPButton.params(otp="481920").to_dict()]
    assert alike(body["template"]["components"]) == alike(theirs)
    assert plan.text(["481920"]) == "*481920* est votre code."
    url = [
        *CODE[:2],
        {"type": "BUTTONS", "buttons": [{"type": "URL", "url": "https://whatsapp.example/?code=otp{{1}}"}]},
    ]
    assert layout(url, "POSITIONAL", "authentication").components(["481920"]) == plan.components(["481920"])


def test_a_template_without_variables_has_no_components() -> None:
    plan = layout([{"type": "BODY", "text": "Fermé demain."}], "POSITIONAL", "UTILITY")
    assert plan.parameter_count == 0
    assert "components" not in made(plan)["template"]
    assert plan.body_preview == "Fermé demain."


def test_variables_follow_their_numbers_not_their_places() -> None:
    plan = layout([{"type": "BODY", "text": "À {{2}}, {{ 1 }} ! ({{2}})"}], "POSITIONAL", "UTILITY")
    assert plan.text(["Amal", "14h"]) == "À 14h, Amal ! (14h)"


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("", "empty"),
        (" \u00a0 ", "empty"),
        ("a\nb", "line break"),
        ("a\tb", "line break"),
        ("a\u2028b", "line break"),
        ("a     b", "four spaces"),
    ],
)
def test_values_that_meta_would_refuse(value: str, problem: str) -> None:
    plan = layout(SHIPPED, "POSITIONAL", "UTILITY")
    found = plan.check(["CMD", value, "x", "y"])
    assert [one.index for one in found] == [1]
    assert problem in found[0].text
    assert plan.check(["CMD", "a    b", "x", "y"]) == []


def test_numbers_and_lengths() -> None:
    plan = layout(SHIPPED, "POSITIONAL", "UTILITY")
    assert plan.check(["one"])[0].text == "the template takes 4 parameters, not 1"
    assert plan.check(["x" * 52, "a", "b", "c"]) != []
    assert plan.check(["x" * 51, "a", "b", "c"]) == []
    rest = len("Bonjour , livraison  environ.")
    assert plan.check(["x", "a" * (BODY_LIMIT - rest - 1), "b", "c"]) == []
    assert plan.check(["x", "a" * (BODY_LIMIT - rest), "b", "c"]) != []
    assert [one.index for one in plan.check(["x", "a", "b", "c" * 2_000])] == [3]


@pytest.mark.parametrize("value", ["1234567890123456", "https://a.b", "www.example", "ev.il/4711", "12😀34"])
def test_codes_that_are_none(value: str) -> None:
    plan = layout(CODE, "POSITIONAL", "AUTHENTICATION")
    assert plan.check([value]) != []
    assert plan.check(["123456789012345"]) == []
    assert plan.check(["A1-B2 C3"]) == []


@pytest.mark.parametrize(
    "part",
    [
        {"type": "HEADER", "format": "IMAGE"},
        {"type": "HEADER", "format": "LOCATION"},
        {"type": "CAROUSEL", "cards": []},
        {"type": "BUTTONS", "buttons": [{"type": "COPY_CODE", "text": "copy"}]},
        {"type": "BUTTONS", "buttons": [{"type": "QUICK_REPLY", "text": "q"}, {"type": "MADE_TODAY", "text": "new"}]},
        {"type": "MADE_TODAY"},
    ],
)
def test_templates_that_texts_alone_cannot_fill(part: dict[str, Any]) -> None:
    plan = layout([{"type": "BODY", "text": "b"}, part], "POSITIONAL", "UTILITY")
    assert plan.unsupported
    assert "today" not in plan.unsupported  # Meta's unknown codes reach no customer
    assert plan.check([]) != []


def test_buttons_that_open_something_are_named() -> None:
    """They take no value, and Meta refuses a send without them (131008)."""
    listed = [{"type": "QUICK_REPLY", "text": "q"}, {"type": "FLOW", "text": "f"}, {"type": "CATALOG", "text": "c"},
              {"type": "URL", "text": "u", "url": "https://x.example/{{1}}"}]  # fmt: skip
    definition = [{"type": "BODY", "text": "Hello {{1}}!"}, {"type": "BUTTONS", "buttons": listed}]
    plan = layout(definition, "POSITIONAL", "UTILITY")
    assert (plan.unsupported, plan.parameter_count) == ("", 2)
    body = made(plan, "Ana", "4471")["template"]["components"]
    theirs = [pywa.BodyText.params("Ana").to_dict(), pywa.URLButton.params(url_variable="4471", index=3).to_dict(),
              pywa.FlowButton.params(flow_token="our-id", index=1).to_dict(),
              pywa.CatalogButton.params(index=2).to_dict()]  # fmt: skip
    theirs[2]["parameters"][0]["action"].pop("flow_action_data")
    assert alike(body) == alike(theirs)


def test_a_reply() -> None:
    body = json.loads(text_body(to="212600000017", text="Bonjour\n", opaque="id", preview_url=True, quoted="wamid.X"))
    assert body == {
        "messaging_product": "whatsapp",
        "recipient_type": "individual",
        "to": "+212600000017",
        "type": "text",
        "biz_opaque_callback_data": "id",
        "context": {"message_id": "wamid.X"},
        "text": {"body": "Bonjour\n", "preview_url": True},
    }
    assert "context" not in json.loads(text_body(to="+1", text="t", opaque="id"))


def test_a_user_who_hides_the_number() -> None:
    body = json.loads(text_body(to="MA.13490000000000000001", text="t", opaque="id"))
    assert body["recipient"] == "MA.13490000000000000001"
    assert "to" not in body
    assert is_user_id("US.ENT.11815799212886844830")
    assert not is_user_id("+212600000017")


_values = st.text(
    st.characters(codec="utf-8", exclude_characters="\x85\u2028\u2029", exclude_categories=["Cc", "Zs", "Zl"]),
    min_size=1,
    max_size=10,
)


@settings(max_examples=200)
@given(st.booleans(), st.integers(0, 5), st.integers(0, 3), st.booleans(), st.data())
def test_every_value_goes_to_its_place(header: bool, body: int, buttons: int, named: bool, data: st.DataObject) -> None:
    names = [f"name_{n}" if named else str(n) for n in range(1, body + 1)]
    definition: list[dict[str, Any]] = [
        {"type": "BODY", "text": "text " + " and ".join(f"{{{{{one}}}}}" for one in names)}
    ]
    if header:
        definition.insert(0, {"type": "HEADER", "format": "TEXT", "text": "{{who}}" if named else "{{1}}"})
    # Quick replies between them: the index counts every button.
    listed: list[dict[str, Any]] = []
    for n in range(buttons):
        listed += [
            {"type": "QUICK_REPLY", "text": "q"},
            {"type": "URL", "text": "u", "url": f"https://x.example/{n}/{{{{1}}}}"},
        ]
    definition.append({"type": "BUTTONS", "buttons": listed})
    plan = layout(definition, "NAMED" if named else "POSITIONAL", "UTILITY")
    assert plan.parameter_count == header + body + buttons
    values = data.draw(
        st.lists(_values.filter(str.strip), min_size=plan.parameter_count, max_size=plan.parameter_count)
    )
    theirs: list[Any] = []
    rest = list(values)
    if header:
        first = rest.pop(0)
        theirs.append((pywa.HeaderText.params(who=first) if named else pywa.HeaderText.params(first)).to_dict())
    if body:
        taken, rest = rest[:body], rest[body:]
        made = pywa.BodyText.params(**dict(zip(names, taken, strict=True))) if named else pywa.BodyText.params(*taken)
        theirs.append(made.to_dict())
    theirs += [pywa.URLButton.params(url_variable=one, index=2 * n + 1).to_dict() for n, one in enumerate(rest)]
    assert plan.check(values) == []
    assert alike(plan.components(values)) == alike(theirs)
    assert all(plan.check([*values[:n], "", *values[n + 1 :]])[0].index == n for n in range(len(values)))


_signs = st.text(st.sampled_from("ab \t\n\x7f\x9f\u2028\u200d\u00a0é😀"), max_size=12)


@given(st.lists(_signs, min_size=2, max_size=2))
def test_each_value_is_judged_by_itself(values: list[str]) -> None:
    """Those without unusual characters are not examined one by one."""
    plan = layout([{"type": "BODY", "text": "{{1}}{{2}}"}], "POSITIONAL", "UTILITY")
    wrong = [not one.strip() or bool(re.search("[\t\n\x7f\x9f\u2028]| {5}", one)) for one in values]
    assert {one.index for one in plan.check(values)} == {n for n, is_wrong in enumerate(wrong) if is_wrong}


@given(st.lists(st.integers(1, 60), min_size=2, max_size=2), st.integers(0, 60))
def test_a_header_is_measured_as_it_is_filled(lengths: list[int], fixed: int) -> None:
    text = "x" * fixed + "{{1}}"
    plan = layout([{"type": "HEADER", "text": text}, {"type": "BODY", "text": "{{1}}"}], "POSITIONAL", "UTILITY")
    found = plan.check(["y" * length for length in lengths])
    assert bool(found) == (fixed + lengths[0] > HEADER_LIMIT)
