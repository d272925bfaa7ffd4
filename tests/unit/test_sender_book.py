"""Rules for senders and numbers: which one decides, and the consequences."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from heliograph.base import phones
from heliograph.base.errors import Invalid
from heliograph.senders import numbers, places, rules
from heliograph.senders.book import Action, Book, NumberRule, Registration, SenderRule

MAIN, OTHER, ACME, BETA = (UUID(int=number) for number in range(1, 5))
MAPUTO, LISBON = "+258841234567", "+351912345678"


def rule(action: Action, **values: object) -> SenderRule:
    return SenderRule(**{"id": uuid4(), "supplier_id": MAIN, "action": action, **values})  # type: ignore[arg-type]


def spoken(book: Book, to: str = MAPUTO, sender: str = "ACME", **values: object) -> str | None:
    given: dict[str, object] = {"organization_id": ACME, "sender": sender, **values}
    return book.spoken(MAIN, to, **given)  # type: ignore[arg-type]


def test_the_most_specific_rule_decides() -> None:
    book = Book(
        [
            rule("refuse"),
            rule("replace", kind="numeric", replacement="INFO"),
            rule("allow", country="MZ"),
            rule("refuse", country="MZ", kind="numeric"),
            rule("replace", country="MZ", sender="acme", replacement="ACME-MZ"),
        ]
    )
    assert spoken(book) == "ACME-MZ", "case does not matter"
    assert spoken(book, sender="OTHER") == "OTHER"
    assert spoken(book, sender="90210") is None
    assert spoken(book, LISBON) is None
    assert spoken(book, LISBON, sender="90210") == "INFO"
    assert book.spoken(OTHER, MAPUTO, organization_id=ACME, sender="ACME") == "ACME", "another supplier's rules"
    assert Book().spoken(MAIN, MAPUTO, organization_id=ACME, sender="ACME") == "ACME"
    assert not Book().judges


def registered(state: str, network: str = "", supplier_id: UUID | None = None, country: str = "MZ") -> Registration:
    return Registration(ACME, "ACME", country, network, supplier_id, state)


@pytest.mark.parametrize(
    ("known", "network", "answer"),
    [
        ([], "", None),
        ([registered("asked")], "", None),
        ([registered("pending")], "643-04", None),
        ([registered("registered")], "643-04", "ACME"),
        ([registered("registered", country="PT")], "", None),
        # A network's own state takes precedence over its country's.
        ([registered("registered"), registered("refused", "643-04")], "643-04", None),
        ([registered("registered"), registered("refused", "643-04")], "643-01", "ACME"),
        # If the network is not known, all that are named have to agree.
        ([registered("registered", "643-01"), registered("pending", "643-04")], "", None),
        ([registered("registered", "643-01"), registered("registered", "643-04")], "", "ACME"),
        ([registered("registered", "643-01")], "643-04", None),
        # A supplier's own state takes precedence over that for all.
        ([registered("registered"), registered("refused", supplier_id=MAIN)], "", None),
        ([registered("asked"), registered("registered", supplier_id=MAIN)], "", "ACME"),
        ([registered("registered", supplier_id=OTHER)], "", None),
    ],
)
def test_what_has_to_be_registered_is_sent_once_it_is(
    known: list[Registration], network: str, answer: str | None
) -> None:
    book = Book([rule("register", country="MZ")], known)
    assert spoken(book, network=network) == answer
    assert spoken(book, organization_id=BETA) is None, "somebody else's registration"
    instead = Book([rule("register", country="MZ", replacement="INFO")], known)
    assert spoken(instead, network=network) == (answer or "INFO")


def test_a_refused_registration_counts_without_a_rule() -> None:
    book = Book([], [registered("refused")])
    assert book.judges
    assert (spoken(book), spoken(book, LISBON), spoken(book, sender="OTHER")) == (None, LISBON and "ACME", "OTHER")
    assert not Book([], [registered("asked")]).judges


def test_a_number_belongs_to_those_by_whom_it_is_written_to() -> None:
    book = Book(owners={"90210": (MAIN, OTHER), "258841234567": (OTHER,)})
    assert book.owners("90210") == (MAIN, OTHER)
    assert book.owners("+258841234567") == book.owners("258841234567") == (OTHER,)
    assert book.owners("ACME") == ()


def number(**values: object) -> NumberRule:
    return NumberRule(**{"id": uuid4(), "supplier_id": MAIN, **values})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("made", "to", "written"),
    [
        # Argentina: mobiles have a 9 after the country code; some carriers want them without.
        (number(prefix="549", strip="549", prepend="54"), "+5491123456789", "541123456789"),
        (number(prefix="549", strip="549", prepend="54"), "+5492974123456", "542974123456"),
        (number(prefix="549", strip="549", prepend="54"), "+541123456789", "541123456789"),
        # Mexico: some want the 1 that is no longer dialled.
        (number(prefix="52", strip="52", prepend="521"), "+525512345678", "5215512345678"),
        # National form, with and without a trunk digit; international with 00.
        (number(prefix="258", strip="258"), "+258841234567", "841234567"),
        (number(prefix="27", strip="27", prepend="0"), "+27821234567", "0821234567"),
        (number(prepend="00"), "+258841234567", "00258841234567"),
        (number(prefix="55", strip="5511", prepend="011"), "+5521912345678", "5521912345678"),
    ],
)
def test_numbers_are_written_as_the_supplier_wants_them(made: NumberRule, to: str, written: str) -> None:
    numbers.check(made)
    found = Book(numbers=[made]).address(MAIN, to)
    assert (found.written(to[1:]) if found else to[1:]) == written
    assert Book(numbers=[made]).address(OTHER, to) is None


@pytest.mark.parametrize(
    ("typed", "region", "e164", "without_9"),
    [
        ("011 15 2345-6789", "AR", "+5491123456789", "541123456789"),
        ("+54111523456789", None, "+5491123456789", "541123456789"),
        ("0297 15 412 3456", "AR", "+5492974123456", "542974123456"),
        ("+541123456789", None, "+541123456789", "541123456789"),
    ],
)
def test_argentine_numbers_as_people_write_them(typed: str, region: str | None, e164: str, without_9: str) -> None:
    book = Book(numbers=[number(prefix="549", strip="549", prepend="54")])
    known = phones.normalize(typed, region=region)
    assert known == e164
    found = book.address(MAIN, known)
    assert (found.written(known[1:]) if found else known[1:]) == without_9


def test_the_longest_prefix_decides() -> None:
    book = Book(numbers=[number(prepend="00"), number(prefix="25884", numbering=(2, 1)), number(prefix="258")])
    found = book.address(MAIN, MAPUTO)
    assert found is not None
    assert (found.numbering, found.written("258841234567")) == ((2, 1), "258841234567")


@pytest.mark.parametrize(
    ("made", "field"),
    [
        (number(), "prepend"),
        (number(prefix="258", strip="27"), "strip"),
        (number(prefix="+258", strip="258"), "prefix"),
        (number(prepend="ab"), "prepend"),
        (number(numbering=(1, 256)), "ton"),
        (number(sender_numbering=(-1, 0)), "sender_ton"),
    ],
)
def test_a_number_rule_that_makes_no_sense_is_refused(made: NumberRule, field: str) -> None:
    with pytest.raises(Invalid) as caught:
        numbers.check(made)
    assert field in [one["field"] for one in caught.value.details["fields"]]


@pytest.mark.parametrize(
    ("made", "field"),
    [
        (rule("replace"), "replacement"),
        (rule("allow", replacement="INFO"), "replacement"),
        (rule("refuse", country="XX"), "country"),
        (rule("refuse", sender="ACME", kind="numeric"), "kind"),
        (rule("replace", replacement="x" * 16), "replacement"),
        (rule("replace", replacement="Olá"), "replacement"),
    ],
)
def test_a_sender_rule_that_makes_no_sense_is_refused(made: SenderRule, field: str) -> None:
    with pytest.raises(Invalid) as caught:
        rules.check(made)
    assert field in [one["field"] for one in caught.value.details["fields"]]


def test_what_is_alike_is_treated_alike() -> None:
    book = Book(
        [
            rule("refuse", country="MZ", sender="acme"),
            rule("refuse", country="PT", kind="numeric"),
            rule("register", country="MZ"),
        ],
        [
            Registration(ACME, "BAKERY", "MZ", "", None, "registered"),
            Registration(BETA, "GYM", "PT", "", None, "refused"),
        ],
        owners={"90210": (OTHER,)},
    )
    cases = {
        (organization, sender): book.alike(organization, sender)
        for organization in (ACME, BETA)
        for sender in ("ACME", "acme", "BAKERY", "GYM", "OTHER", "another", "90210", "+4711", "123456")
    }
    for (organization, sender), (instead, called) in cases.items():
        for supplier in (MAIN, OTHER):
            for to in (MAPUTO, LISBON):
                said = book.spoken(supplier, to, organization_id=organization, sender=sender)
                stands_in = book.spoken(supplier, to, organization_id=instead or UUID(int=0), sender=called)
                assert (said is None, said == sender) == (stands_in is None, stands_in == called), (sender, to)
        assert book.owners(sender) == book.owners(called)
    # Two registered ones, two spellings of one that is named, one that is owned, and one of each kind.
    assert len(set(cases.values())) == 7


@pytest.mark.parametrize(
    ("country", "suppliers", "expected"),
    [
        # As published, if there is no rule.
        ("PT", [], "free"),
        ("PT", [OTHER], "free"),
        ("KE", [OTHER], "register"),
        ("BR", [OTHER], "replaced"),
        ("JP", [OTHER], None),
        # A rule takes precedence over it, and the best of several suppliers over the others.
        ("MZ", [MAIN], "replaced"),
        ("MZ", [MAIN, OTHER], "register"),
        ("BR", [MAIN], "free"),
        ("PT", [MAIN], "refused"),
        ("PT", [MAIN, OTHER], "free"),
        ("JP", [MAIN], "refused"),
        # Nothing is known about the other one.
        ("JP", [MAIN, OTHER], None),
    ],
)
def test_names_by_country_are_judged_by_rules_and_then_as_published(
    country: str, suppliers: list[UUID], expected: str | None
) -> None:
    book = Book(
        [
            rule("refuse", kind="alphanumeric"),
            rule("replace", country="MZ", replacement="INFO"),
            rule("register", country="MZ", kind="numeric"),
            rule("allow", country="BR"),
            rule("refuse", country="BR", sender="OTHER"),
        ]
    )
    assert places.standing(book, country, suppliers=suppliers, sender="ACME") == expected
    assert book.countries == {"MZ", "BR"}


def test_what_is_published_is_of_countries_with_a_calling_code() -> None:
    assert places.PUBLISHED.keys() <= set(phones.REGIONS.values())
    assert len(places.PUBLISHED) == 27
