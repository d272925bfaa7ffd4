"""Routing look-ups: the suppliers of a message and their order, compared with a naive reading of the rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.base import phones
from heliograph.base.ids import uuid7
from heliograph.routes.lookup import MEMO, Candidates, Choice, Route, Table, group_of
from heliograph.sms.dispatch.routing import Supplier, covers
from tests.rules.factories import TO, supplier

ACME, OTHER = UUID(int=1), UUID(int=2)


def route(*carriers: Supplier, name: str = "r", **values: object) -> Route:
    choices = tuple(Choice(one.id, n) for n, one in enumerate(carriers))
    return Route(**{"id": uuid7(), "name": name, "choices": choices} | values)  # type: ignore[arg-type]


def found(table: Table, to: str = TO, **values: object) -> Candidates:
    given = {"organization_id": ACME, "sender": "BAKERY", "traffic_class": "transactional"} | values
    return table.candidates(to, **given)  # type: ignore[arg-type]


def order(table: Table, to: str = TO, message: UUID | None = None, **values: object) -> list[UUID]:
    return list(found(table, to, **values).order(message or uuid7()))


def test_without_routes_the_lowest_priority_number_that_covers_the_destination_is_first() -> None:
    first = supplier(priority=1, prefixes=("351",))
    second, third = supplier(priority=2), supplier(priority=3)
    table = Table([third, second, first])
    assert order(table) == [second.id, third.id]
    assert order(table, "+351912345678") == [first.id, second.id, third.id]
    assert order(Table([first])) == []
    assert found(Table([])).first(uuid7()) is None


def test_equals_share_by_weight() -> None:
    light, heavy = supplier("light", weight=1), supplier("heavy", weight=3)
    who = found(Table([light, heavy]))
    won = Counter(who.first(UUID(int=n)) == heavy.id for n in range(4000))
    assert won[True] == pytest.approx(3000, abs=150)
    won = Counter(who.first(uuid7()) == heavy.id for n in range(4000))
    assert won[True] == pytest.approx(3000, abs=250)


@given(st.lists(st.uuids(), min_size=1, max_size=20, unique=True))
def test_in_a_route_that_was_judged_the_best_one_stands_in_for_any(messages: list[UUID]) -> None:
    a, b, c = (supplier(id=UUID(int=n + 1)) for n in range(3))
    choices = tuple(Choice(one.id, 0, points) for one, points in ((a, 50), (b, 20), (c, 30)))
    best_first = (b.id, c.id, a.id)
    judged = Route(id=uuid7(), name="r", adaptive=True, choices=choices, stand_ins=best_first)
    table = Table([a, b, c], [judged])
    plain = Table([a, b, c], [msgspec.structs.replace(judged, stand_ins=())])
    for message in messages:
        first, *rest = order(table, message=message)
        assert first == order(plain, message=message)[0], "their shares are as they were"
        assert rest == [one for one in best_first if one != first]


def test_shares_while_one_of_them_cannot_be_asked() -> None:
    a, b, c = (UUID(int=n + 1) for n in range(3))
    choices = [Choice(a, 0, 90), Choice(b, 0, 4), Choice(c, 0, 6)]
    judged, plain = group_of(choices, (a, c, b)), group_of(choices)
    assert judged.shares([a, b, c]) == plain.shares([a, b, c]) == {a: 0.9, b: 0.04, c: 0.06}
    assert judged.shares([b, c]) == {b: 0.04, c: 0.96}
    assert plain.shares([b, c]) == {b: 0.4, c: 0.6}
    assert judged.shares([]) == plain.shares([]) == {}


@given(st.uuids(), st.integers(2, 6), st.integers(0, 5))
def test_a_message_draws_the_same_each_time(message: UUID, count: int, gone: int) -> None:
    suppliers = [supplier(id=UUID(int=n + 1), weight=n + 1) for n in range(count)]
    drawn = order(Table(suppliers), message=message)
    assert sorted(drawn) == [one.id for one in suppliers]
    assert order(Table(list(reversed(suppliers))), message=message) == drawn
    assert found(Table(suppliers)).first(message) == drawn[0]


def test_the_most_specific_destination_wins_then_priority_then_conditions() -> None:
    a, b, c, d = (supplier(name, id=uuid7()) for name in "abcd")
    table = Table(
        [a, b, c, d],
        [
            route(d, name="any"),
            route(c, name="country", country="MZ"),
            route(b, name="prefix", prefix="25884"),
            route(a, name="network", network="643-03"),
            route(d, name="acme", prefix="25884", organization_id=ACME, traffic_class="otp"),
            route(c, name="first", prefix="25884", sender="bank", priority=1),
        ],
    )
    assert order(table, "+27821234567") == [d.id]
    assert order(table, "+258821234567") == [c.id]
    assert order(table, TO) == [b.id]
    assert order(table, TO, traffic_class="otp") == [d.id]
    assert order(table, TO, traffic_class="otp", organization_id=OTHER) == [b.id]
    assert order(table, TO, traffic_class="otp", sender="BANK") == [c.id]
    # Vectors R8 and R9: a network that is known for certain, and one that no longer is.
    known = found(table, TO, network="643-03", is_certain=True)
    assert (known.matched, list(known.suppliers)) == ("network", [a.id])
    unknown = found(table, TO)
    assert (unknown.matched, list(unknown.suppliers)) == ("prefix", [b.id])
    guessed = found(table, "+258821234567", network="643-03")
    assert (guessed.matched, list(guessed.suppliers)) == ("range", [a.id])


def test_a_route_without_anybody_who_carries_there_is_passed_over() -> None:
    here, there = supplier("here", prefixes=("258",)), supplier("there", id=uuid7(), prefixes=("27",))
    table = Table([here, there], [route(there, country="MZ"), route(supplier("gone", id=uuid7()), prefix="25884")])
    assert (found(table).route, order(table)) == (None, [here.id])


def test_an_adaptive_route_is_looked_up_as_any_other_by_the_weights_that_it_was_given() -> None:
    a, b = supplier("a", id=UUID(int=5)), supplier("b", id=UUID(int=6))
    shares = (Choice(a.id, 0, 10), Choice(b.id, 0, 90))
    plain, adaptive = (
        Table([a, b], [route(country="MZ", id=UUID(int=9), choices=shares, adaptive=is_adaptive)])
        for is_adaptive in (False, True)
    )
    messages = [UUID(int=n) for n in range(1000)]
    assert [order(adaptive, message=one) for one in messages] == [order(plain, message=one) for one in messages]
    assert sum(found(adaptive).first(one) == b.id for one in messages) == pytest.approx(900, abs=50)


@given(st.sampled_from([None, "643-01", "643-03", "643-04"]), st.booleans(), st.uuids(), st.booleans())
def test_a_network_with_shares_of_its_own_is_told_apart_and_nothing_else_is(
    network: str | None, is_certain: bool, message: UUID, is_gone: bool
) -> None:
    a, b = supplier("a", id=UUID(int=5)), supplier("b", id=UUID(int=6))

    def shares(of_a: int) -> tuple[Choice, ...]:
        return Choice(a.id, 0, of_a), Choice(b.id, 0, 100 - of_a)

    plain = route(country="MZ", id=UUID(int=9), choices=shares(90))
    there = route(country="MZ", id=UUID(int=9), choices=shares(5), shared_for="643-04")
    apart = msgspec.structs.replace(plain, apart=(there,))
    other = route(b, country="ZA", id=UUID(int=8))
    carriers = [b] if is_gone else [a, b]
    table, whole = Table(carriers, [apart, other]), Table(carriers, [plain, other])
    expected = Table(carriers, [there]) if network == "643-04" else whole
    values = {"network": network, "is_certain": is_certain}
    seen = found(table, **values)
    assert order(table, message=message, **values) == order(expected, message=message)
    assert (seen.matched, seen.route) == ("country", there if network == "643-04" else apart)
    assert order(table, "+27821234567", message=message, **values) == [b.id]


def test_what_is_remembered_is_bounded() -> None:
    a = supplier("a")
    table = Table([a], [route(a, sender="one")])
    for n in range(MEMO + 10):
        assert order(table, sender=f"S{n}") == [a.id]
    assert max(len(node.memo) for node in table._nodes.values()) <= MEMO


digits = st.sampled_from(["1", "2", "25", "258", "2588", "25884", "27", "258841", "3"])
carriers_of = st.lists(
    st.builds(
        lambda n, prefixes: supplier(f"s{n}", id=UUID(int=n), prefixes=tuple(prefixes)),
        st.integers(10, 14),
        st.lists(digits, max_size=2),
    ),
    max_size=4,
    unique_by=lambda one: one.id,
)
routes_of = st.lists(
    st.builds(
        lambda n, where, organization, sender, name, priority, ids: Route(
            id=UUID(int=100 + n),
            name=f"r{n}",
            organization_id=organization,
            sender=sender,
            traffic_class=name,
            priority=priority,
            choices=tuple(Choice(UUID(int=one), n % 2) for one in ids),
            **where,
        ),
        st.integers(0, 50),
        st.one_of(
            st.just({}),
            digits.map(lambda one: {"prefix": one}),
            st.sampled_from(["MZ", "ZA", "US"]).map(lambda one: {"country": one}),
            st.sampled_from(["643-03", "643-04"]).map(lambda one: {"network": one}),
        ),
        st.sampled_from([None, ACME, OTHER]),
        st.sampled_from([None, "bakery", "Bank"]),
        st.sampled_from([None, "otp", "marketing"]),
        st.integers(0, 2),
        st.lists(st.integers(10, 14), max_size=3, unique=True),
    ),
    max_size=8,
    unique_by=lambda one: one.id,
)


def naive(
    carriers: Sequence[Supplier],
    routes: Sequence[Route],
    to: str,
    organization_id: UUID,
    sender: str,
    traffic_class: str,
    network: str | None,
    is_certain: bool,
) -> tuple[UUID | None, set[UUID]]:
    """(the route that decides, its suppliers), by reading the rules one after the other."""
    able = {one.id for one in carriers if covers(one, to)}

    def level(one: Route) -> int | None:
        if one.network is not None:
            return (0 if is_certain else 2) if one.network == network else None
        if one.prefix is not None:
            return 1 if to[1:].startswith(one.prefix) else None
        if one.country is not None:
            return 3 if phones.country(to) == one.country else None
        return 4

    fitting = [
        ((level(one), -len(one.prefix or ""), one.priority, -one.conditions, one.id), one)
        for one in routes
        if level(one) is not None
        and one.organization_id in (None, organization_id)
        and (one.sender is None or one.sender.lower() == sender.lower())
        and one.traffic_class in (None, traffic_class)
        and able & {choice.supplier_id for choice in one.choices}
    ]
    if not fitting:
        return None, able
    best = min(fitting, key=lambda one: one[0])[1]
    return best.id, able & {choice.supplier_id for choice in best.choices}


@given(
    carriers_of,
    routes_of,
    st.lists(
        st.tuples(
            st.sampled_from(["+258841234567", "+258821234567", "+27821234567", "+12025550123", "+351912345678"]),
            st.sampled_from([ACME, OTHER]),
            st.sampled_from(["BAKERY", "bank", "X"]),
            st.sampled_from(["otp", "transactional", "marketing"]),
            st.sampled_from([None, "643-03", "643-04", "655-01"]),
            st.booleans(),
        ),
        min_size=1,
        max_size=6,
    ),
)
def test_the_compiled_look_up_says_what_the_rules_say(
    carriers: list[Supplier],
    routes: list[Route],
    messages: list[tuple[str, UUID, str, str, str | None, bool]],
) -> None:
    table = Table(carriers, routes)
    for to, organization_id, sender, traffic_class, network, is_certain in messages:
        who = table.candidates(
            to,
            organization_id=organization_id,
            sender=sender,
            traffic_class=traffic_class,
            network=network,
            is_certain=is_certain,
        )
        expected = naive(carriers, routes, to, organization_id, sender, traffic_class, network, is_certain)
        assert (who.route.id if who.route else None, set(who.suppliers)) == expected
