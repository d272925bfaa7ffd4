"""Contacts: shapes and handlers. The rules are `contacts.records`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, UnsetType

from heliograph.api.door.operation import Call, operation
from heliograph.api.door.reading import UUID_FORM
from heliograph.api.shapes import paging
from heliograph.api.shapes.fields import CreatedAt, HasMore, Items, NextCursor, Success, Time, alias_of, needed
from heliograph.api.shapes.paging import PageQuery
from heliograph.base.database.clock import iso, iso_or_none
from heliograph.base.errors import Invalid, NotFound, Problems
from heliograph.contacts import records, search
from heliograph.contacts.records import MAX_NAME, MAX_TAG, MAX_TAGS, Changes, ContactAlreadyExists, Entry
from heliograph.contacts.search import Filters

COLLECTION = "contacts"

Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME, extra_json_schema={"pattern": r"\S"})]
Tag = Annotated[str, Meta(min_length=1, max_length=MAX_TAG, extra_json_schema={"pattern": r"\S"})]
#: From the length of "1 4155550100" to that of what people paste.
Phone = Annotated[str, Meta(min_length=7, max_length=40, examples=["+258841234567"])]


class CreateContact(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    rename={"first_name": "firstName", "last_name": "lastName", "phone_number": "phoneNumber"},
    kw_only=True,
):
    """A contact to create: a full name, or a first and last name, and a phone number."""

    name: Annotated[Name | None, Meta(description="Full name. Required unless `firstName` or `lastName` is given.")] = (
        None
    )
    phone: Annotated[Phone | None, needed("Phone number with country code, in any common format.")] = None
    first_name: Annotated[
        Name | None, Meta(description="First name; alternative to `name`, together with `lastName`.")
    ] = None
    last_name: Annotated[
        Name | None, Meta(description="Last name; alternative to `name`, together with `firstName`.")
    ] = None
    phone_number: Annotated[Phone | None, alias_of("phone")] = None
    tags: Annotated[
        Annotated[list[Tag], Meta(max_length=MAX_TAGS)] | None,
        Meta(description="Labels. Trimmed, lower-cased and deduplicated."),
    ] = None


class ChangeContact(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    rename={"first_name": "firstName", "last_name": "lastName", "phone_number": "phoneNumber"},
    kw_only=True,
):
    """Changes to a contact. Omitted fields are not changed."""

    name: Annotated[
        Name | None, Meta(description="Full name. Replaces first and last name unless they are given as well.")
    ] = None
    phone: Annotated[Phone | None, Meta(description="Phone number with country code, in any common format.")] = None
    first_name: (
        Annotated[Name | None, Meta(description="First name, together with `lastName`; null: there is none.")]
        | UnsetType
    ) = UNSET
    last_name: (
        Annotated[Name | None, Meta(description="Last name, together with `firstName`; null: there is none.")]
        | UnsetType
    ) = UNSET
    phone_number: Annotated[Phone | None, alias_of("phone")] = None
    tags: Annotated[
        Annotated[list[Tag], Meta(max_length=MAX_TAGS)] | None,
        Meta(description="All labels: those not listed are removed."),
    ] = None


class Contact(msgspec.Struct):
    """A person and their phone number."""

    id: Annotated[UUID, Meta(description="Id of the contact.")]
    name: Annotated[str, Meta(description="Full name.")]
    first_name: Annotated[str | None, Meta(description="First name, if it was given separately.")]
    last_name: Annotated[str | None, Meta(description="Last name, if it was given separately.")]
    phone: Annotated[str, Meta(description="Phone number in E.164 format.", examples=["+258841234567"])]
    tags: Annotated[list[str], Meta(description="Labels, lower-cased.")]
    opted_out: Annotated[
        bool, Meta(description="Whether the person opted out. Nothing is sent to them while this is true.")
    ]
    created_at: CreatedAt
    updated_at: Annotated[Time, Meta(description="When it was last changed.")]
    last_written_at: Annotated[
        Time | None,
        Meta(description="When a message was last sent to this number, to the hour; null: never since it was added."),
    ]
    last_delivered_at: Annotated[Time | None, Meta(description="When a message last arrived, to the hour.")]


class ContactCreated(msgspec.Struct):
    """The contact as stored."""

    success: Success
    contact: Annotated[Contact, Meta(description="The contact.")]


class ContactChanged(msgspec.Struct):
    """The contact in its current state."""

    success: Success
    contact: Annotated[Contact, Meta(description="The contact.")]


class ContactDeleted(msgspec.Struct):
    """The contact was deleted."""

    success: Success


class ContactList(msgspec.Struct, rename="camel"):
    """A page of contacts, newest first."""

    success: Success
    items: Items[Contact]
    next_cursor: NextCursor
    has_more: HasMore


class ContactQuery(PageQuery, frozen=True, rename="camel", kw_only=True):
    """Filters for contacts."""

    tag: Annotated[Tag | None, Meta(description="Only contacts with this tag, case-insensitive.")] = None
    never_written: Annotated[
        Literal["true", "false"] | None,
        Meta(description="`true`: only contacts to whom no message has been sent since they became contacts."),
    ] = None
    not_written_days: Annotated[
        Annotated[int, Meta(ge=1, le=3650)] | None,
        Meta(description="Only contacts to whom no message has been sent within this many days."),
    ] = None
    delivered_before: Annotated[
        Annotated[datetime, Meta(tz=True)] | None,
        Meta(description="Only contacts whose last delivered message arrived before this time, ISO 8601."),
    ] = None


class WhichContact(msgspec.Struct, frozen=True):
    """The contact to delete."""

    id: Annotated[
        str,
        Meta(
            pattern=UUID_FORM,
            description="Id of the contact.",
            extra_json_schema={"format": "uuid"},
        ),
    ]

    def __post_init__(self) -> None:
        """Two spellings of an id are the same payload for an idempotency key."""
        msgspec.structs.force_setattr(self, "id", self.id.lower())


async def list_contacts(call: Call, query: ContactQuery) -> ContactList:
    """List contacts.

    Newest first. With filters other than `tag`, a page scans at most 20,000 contacts: it can hold fewer than
    `limit` items, or none, while `hasMore` is true; `nextCursor` continues from there.
    """
    tag = None if query.tag is None else records.tag(query.tag, "tag")
    call.query = query = msgspec.structs.replace(query, tag=tag)  # two spellings are one filter, also in cursors
    after, seen = paging.after_id(call, COLLECTION), None
    if (query.never_written, query.not_written_days, query.delivered_before) == (None, None, None):
        found = await records.list_page(call.conn, call.actor, limit=query.limit + 1, after=after, tag=tag)
    else:
        filters = Filters(
            tags=() if tag is None else (tag,),
            never_written=query.never_written == "true",
            unwritten_days=query.not_written_days,
            delivered_before=query.delivered_before,
        )
        looked = await search.search(call.conn, call.actor, filters=filters, after=after, limit=query.limit)
        found, seen = looked.contacts, None if looked.seen is None else [looked.seen]
    items = paging.page(call, COLLECTION, found, position=lambda row: [row.id], shown=_shown, seen=seen)
    return ContactList(True, *items)


def _joined(name: str) -> str:
    """The full name from the two fields. Raises Invalid on both."""
    if len(name) > MAX_NAME:
        text = f"`firstName` and `lastName` must have at most {MAX_NAME} characters together"
        raise Invalid(("firstName", "length", text), ("lastName", "length", text))
    return records.name(name, "firstName")


async def canonical(body: CreateContact) -> Entry:
    """Merge both forms of the request. Raises Invalid with all errors, also if the forms disagree."""
    wrong, numbers = Problems(), set[str]()
    with wrong.gathering():
        first = None if body.first_name is None else records.name(body.first_name, "firstName")
    with wrong.gathering():
        last = None if body.last_name is None else records.name(body.last_name, "lastName")
    with wrong.gathering():
        name = None if body.name is None else records.name(body.name)
    if body.name is None and body.first_name is None and body.last_name is None:
        wrong.add("name", "required", "`name` is required, or `firstName` or `lastName`")
    for field, text in (("phone", body.phone), ("phoneNumber", body.phone_number)):
        if text is not None:
            with wrong.gathering():
                numbers.add(records.phone(text, field))
    if body.phone is None and body.phone_number is None:
        wrong.add("phone", "required", "`phone` is required")
    with wrong.gathering():
        tags = records.tags(body.tags or ())
    wrong.report()
    joined = records.full_name(first, last)
    if name is not None and joined not in (None, name):
        wrong.add("name", "disagrees", "`name` disagrees with `firstName` and `lastName`")
    if len(numbers) > 1:
        wrong.add("phoneNumber", "disagrees", "`phone` and `phoneNumber` disagree")
    wrong.report()
    return Entry(numbers.pop(), _joined(joined or "") if name is None else name, first, last, tags)


@operation(canonical=canonical, unordered=("tags",), refusals=(ContactAlreadyExists,))
async def create_contact(call: Call, body: Entry) -> ContactCreated:
    """Create a contact.

    The name is `name`, or `firstName` and `lastName`; the number is `phone` or `phoneNumber`. If both forms are
    given, they must agree. There is one contact per phone number.
    """
    return ContactCreated(True, _shown(await records.create(call.conn, call.actor, entry=body)))


async def changes(body: ChangeContact) -> Changes:
    """The changes requested. Raises Invalid with all errors.

    Null beside the other part of a name removes that part. Otherwise null is the same as leaving a field out, since
    many clients write null for whatever they do not set.
    """
    wrong, first, last, name, tags = Problems(), None, None, None, None
    numbers = set[str]()
    for missing, given, other in (
        ("firstName", body.first_name, body.last_name),
        ("lastName", body.last_name, body.first_name),
    ):
        if given is UNSET and isinstance(other, str):
            text = "`firstName` and `lastName` can only be changed together; null removes one of them"
            wrong.add(missing, "required", text)
    with wrong.gathering():
        first = records.name(body.first_name, "firstName") if isinstance(body.first_name, str) else None
    with wrong.gathering():
        last = records.name(body.last_name, "lastName") if isinstance(body.last_name, str) else None
    with wrong.gathering():
        name = None if body.name is None else records.name(body.name)
    for field, number in (("phone", body.phone), ("phoneNumber", body.phone_number)):
        if number is not None:
            with wrong.gathering():
                numbers.add(records.phone(number, field))
    with wrong.gathering():
        tags = None if body.tags is None else records.tags(body.tags)
    wrong.report()
    joined = records.full_name(first, last)
    if name is not None and joined not in (None, name):
        wrong.add("name", "disagrees", "`name` disagrees with `firstName` and `lastName`")
    elif joined is not None:
        with wrong.gathering():
            name = _joined(joined)
    if len(numbers) > 1:
        wrong.add("phoneNumber", "disagrees", "`phone` and `phoneNumber` disagree")
    if body.name is None and joined is None and not numbers and tags is None:
        wrong.add("name", "required", "give what to change: `name`, `phone` or `tags`")
    wrong.report()
    return Changes(phone=next(iter(numbers), None), names=None if name is None else (name, first, last), tags=tags)


@operation(canonical=changes, unordered=("tags",), refusals=(ContactAlreadyExists,))
async def change_contact(call: Call, contact_id: UUID, body: Changes) -> ContactChanged:
    """Change a contact.

    Omitted fields are not changed. `tags` replaces all tags of the contact.
    """
    return ContactChanged(True, _shown(await records.change(call.conn, call.actor, id=contact_id, changes=body)))


@operation(refusals=(NotFound,))
async def delete_contact(call: Call, query: WhichContact) -> ContactDeleted:
    """Delete a contact."""
    await records.delete(call.conn, call.actor, id=UUID(query.id))
    return ContactDeleted(True)


def _shown(contact: records.Contact) -> Contact:
    return Contact(
        id=contact.id,
        name=contact.name,
        first_name=contact.first_name,
        last_name=contact.last_name,
        phone=contact.phone,
        tags=contact.tags,
        opted_out=contact.opted_out,
        created_at=iso(contact.created_at),
        updated_at=iso(contact.updated_at),
        last_written_at=iso_or_none(contact.written_at),
        last_delivered_at=iso_or_none(contact.delivered_at),
    )
