"""Users who change their number, and the next owners of the numbers that they left. A message from the old number:

    written before the change           is the previous owner's, however late it arrives
    written after it                    is another person's, with a conversation, a window and a user id of their own
    after it, with a known user id      is the previous owner's, who uses the old number again

A user id changes with the number. Of a user who hides theirs, only the new user id is told: that they left the number
known here, and not for which one. Of a notice that comes after somebody else has used the old number, the new number or
user id is not linked to it: whose the other names are is not known anymore.

The rule nobody may break: nobody sees, answers or opens the conversation of another person who once had their number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from heliograph.base import phones
from heliograph.base.database.pool import Connection
from heliograph.consent import people
from heliograph.consent.handing_on import Handover
from heliograph.consent.people import DepartedNumber, Departure
from heliograph.whatsapp.callbacks import conversations
from heliograph.whatsapp.callbacks.conversations import User

#: Maximum changes of one person that are followed from an old message to the current number.
_FOLLOWED = 10


class UserEvent(msgspec.Struct, frozen=True, gc=False):
    """A user's message, or notice of a new number."""

    user: User
    #: When it was written; not in the future.
    at: datetime
    #: The user's new number, in E.164; None: it is not such a notice.
    moved_to: str | None = None
    #: The new user id of a user whose new number is not told; None: it is not such a notice.
    hidden_as: str | None = None
    #: The new user id in a notice of a new number; None: it is not told.
    new_user_id: str | None = None


class Author(msgspec.Struct, frozen=True, gc=False):
    """The author of a message."""

    #: As named in the message, or with their current number.
    user: User
    #: Of a notice: the user's new number, or their current one if they have left that since.
    moved_to: str | None = None
    #: The same for the user id, if the new number is not told.
    hidden_as: str | None = None


async def authors(conn: Connection, written: Sequence[UserEvent]) -> tuple[list[Author], list[Handover]]:
    """The author of each of these, given in chronological order; and what `handing_on` has to do before any keyword in
    them takes effect.

    Runs in the caller's transaction, and before anything is linked or looked up by these names: it records changes, and
    separates numbers from people who have left them.
    """
    written = await _hidden_today(conn, written)
    handovers, late = await _leave_hidden(conn, written)
    handovers += await _leave_told(conn, written)
    written = await _numbered(conn, written)
    users = [_under(one.hidden_as or "", one.user) if _hidden(one) in late else one.user for one in written]
    moved = [one.moved_to for one in written]
    done = await _simple(conn, written)
    for n, one in enumerate(written):
        if one.moved_to is None:
            continue
        if n in done:
            users[n] = _under(one.moved_to, one.user)
            continue
        moved[n] = to = await _today(conn, one.user.organization_id, one.moved_to, one.at)
        if one.user.digits is None:
            # Whichever number they left, somebody else may have left the new one.
            handovers += await _take_over(conn, _under(to, one.user), one.at)
        else:
            made = await _change(conn, one.user, to, one.at)
            handovers += made
            if made and made[-1].is_separate:
                users[n] = _under(to, one.user)
            elif one.user.user_id is not None and not to.startswith("+"):
                # With a new number it would be linked below, but another user id takes its place (`_under`).
                await conversations.link(conn, [(one.user.organization_id, one.user.user_id, to)])
    await _leave_ids(conn, written, moved)
    numbered = [user for user in users if user.digits is not None]
    names = {(user.organization_id, name) for user in numbered for name in (user.recipient, user.user_id) if name}
    left = await people.left(conn, names) if names else {}
    if left:
        handovers += await _leave_with_ids(conn, written, users, left)
        users = [await _author(conn, one, user, left, handovers) for one, user in zip(written, users, strict=True)]
    found = [Author(user, to, one.hidden_as) for user, to, one in zip(users, moved, written, strict=True)]
    return found, handovers


async def _hidden_today(conn: Connection, written: Sequence[UserEvent]) -> Sequence[UserEvent]:
    """The same, with the current user id in each notice of one that its user has left since: that gets no new links."""
    new = {(one.user.organization_id, one.hidden_as) for one in written if one.hidden_as is not None}
    left = await people.left(conn, new) if new else {}
    if not left:
        return written
    found = list(written)
    for n, one in enumerate(written):
        if one.hidden_as is not None and (one.user.organization_id, one.hidden_as) in left:
            to = await _today(conn, one.user.organization_id, one.hidden_as, one.at)
            found[n] = msgspec.structs.replace(one, hidden_as=to)
    return found


# The number that is known of somebody by a user id, unless they have left it.
KNOWN_NUMBERS = """
SELECT item.n, other.name
  FROM unnest($1::uuid[], $2::text[]) WITH ORDINALITY AS item (organization_id, user_id, n) CROSS JOIN LATERAL (
       SELECT person FROM person_names
        WHERE organization_id = item.organization_id AND name = item.user_id LIMIT 1) known CROSS JOIN LATERAL (
       SELECT name FROM person_names
        WHERE organization_id = item.organization_id AND person = known.person AND name LIKE '+%' AND left_at IS NULL
        LIMIT 100) other
 ORDER BY item.n
"""


async def _leave_hidden(
    conn: Connection, written: Sequence[UserEvent]
) -> tuple[list[Handover], set[tuple[UUID, str, str]]]:
    """Record that users left the numbers known of them for others that are not told. Returns the notices (`_hidden`)
    that come after somebody else has used the number."""
    # Whoever is back under the old user id has left nothing.
    notices = [one for one in written if one.hidden_as not in (None, one.user.recipient)]
    if not notices:
        return [], set()
    left: dict[tuple[UUID, str], tuple[Departure, UserEvent]] = {}
    # Of the old user ids alone: read before these are linked to the new ones, under which the users may have written.
    for one, numbers in zip(notices, await _known_numbers(conn, [one.user for one in notices]), strict=True):
        for number in numbers:
            departure = Departure(one.user.organization_id, number, one.hidden_as or "", one.at)
            left.setdefault((departure.organization_id, number), (departure, one))
    departures = [departure for departure, _ in left.values()]
    used = await conversations.used_since(conn, [(one.organization_id, one.number, one.at) for one in departures])
    since = [pair for pair, is_used in zip(left.values(), used, strict=True) if is_used]
    late = await _unlinked(conn, {_hidden(one) for _, one in since})
    # Before any name is locked, as whoever links names locks their organization first.
    await conversations.link(conn, {_hidden(one) for one in notices} - late)
    gone = [one for one, is_used in zip(departures, used, strict=True) if not is_used]
    # Whoever wrote under the old user id, from a number not known yet, has left that as well (`_leave_with_ids`).
    ids = {link[:2]: Departure(*link, one.at) for one in reversed(notices) if (link := _hidden(one)) not in late}
    await people.leave(conn, [*gone, *ids.values()])
    handovers = []
    for departure, one in since:
        if _hidden(one) in late:
            place = departure.organization_id, departure.number
            await people.had(conn, *place, until=departure.at, moved_to=departure.moved_to)
            handovers.append(Handover(*place, departure.moved_to, departure.at, is_separate=True))
    return handovers, late


async def _leave_ids(conn: Connection, written: Sequence[UserEvent], moved: Sequence[str | None]) -> None:
    """Record that users left the user ids under which they may have written from numbers that are neither told in
    their notices of new ones nor known yet (`_leave_with_ids`), and that they use ids again that they had left."""
    names = [(one.user.organization_id, one.new_user_id or one.hidden_as, one.at) for one in written]
    told = {(organization_id, name): at for organization_id, name, at in names if name is not None}
    if not told:
        return
    await _come_back(conn, told)
    left: dict[tuple[UUID, str], Departure] = {}
    links = []
    for one, to in zip(written, moved, strict=True):
        organization_id, old, new = one.user.organization_id, one.user.recipient, one.new_user_id
        if to is not None and one.user.digits is None and new is not None and new != old:
            links += [(organization_id, old, to), (organization_id, old, new)]
            left.setdefault((organization_id, old), Departure(organization_id, old, to, one.at))
    if left:
        await conversations.link(conn, links)
        await people.leave(conn, list(left.values()))
        await _come_back(conn, told)  # left and back in one batch


async def _come_back(conn: Connection, told: Mapping[tuple[UUID, str], datetime]) -> None:
    """Record that users use these ids, which they may have left before, since the times."""
    for organization_id, name in await people.left(conn, told):
        await people.come_back(conn, organization_id, name, at=told[organization_id, name])


def _hidden(one: UserEvent) -> tuple[UUID, str, str]:
    """The old and the new user id of a user whose new number is not told."""
    return one.user.organization_id, one.user.recipient, one.hidden_as or ""


async def _unlinked(conn: Connection, links: set[tuple[UUID, str, str]]) -> set[tuple[UUID, str, str]]:
    """Those whose names are not known to be one person's. A user who is known by the new user id may have used the old
    number under it."""
    persons = await people.persons(conn, {(id, name) for id, *pair in links for name in pair}) if links else {}
    return {link for link in links if persons.get(link[:2]) != persons.get((link[0], link[2]), link)}


async def _leave_with_ids(
    conn: Connection,
    written: Sequence[UserEvent],
    users: Sequence[User],
    left: dict[tuple[UUID, str], list[DepartedNumber]],
) -> list[Handover]:
    """Record that numbers were left which nobody knew when Meta told the new user ids: what was written from them under
    the old ones arrives only now. `left`: gets their departures."""
    handovers: list[Handover] = []
    for one, user in zip(written, users, strict=True):
        if user.digits is None or user.user_id is None or one.moved_to is not None:
            continue
        place, own = (user.organization_id, user.recipient), (user.organization_id, user.user_id)
        known, departures = _first_since(left.get(own, []), one.at), left.get(place, [])
        if known is None or _first_since(departures, one.at) is not None:
            continue
        key = user.organization_id, phones.person(user.recipient)
        persons = await people.persons(conn, {key, own})
        if persons.get(key, key) == persons.get(own):
            continue  # they use it again
        if departures and not departures[-1].is_taken:
            handovers += await _take(conn, user, departures[-1], one.at)
        to = await _today(conn, user.organization_id, known.moved_to, known.left_at)
        if (await conversations.used_since(conn, [(*place, known.left_at)]))[0]:
            await people.had(conn, *place, until=known.left_at, moved_to=to)
            handovers.append(Handover(*place, to, known.left_at, is_separate=True))
        else:
            await conversations.link(conn, [(*place, to)])
            await people.leave(conn, [Departure(*place, to, known.left_at)])
        left.update(await people.left(conn, [place]))
    return handovers


async def _leave_told(conn: Connection, written: Sequence[UserEvent]) -> list[Handover]:
    """The same for new numbers that are told with user ids which their users are known to have left since."""
    told = [
        UserEvent(msgspec.structs.replace(_under(one.moved_to, one.user), user_id=one.new_user_id), one.at)
        for one in written
        if one.moved_to is not None and one.new_user_id is not None
    ]
    names = {
        (one.user.organization_id, name) for one in told for name in (one.user.recipient, one.user.user_id) if name
    }
    left = await people.left(conn, names) if names else {}
    return await _leave_with_ids(conn, told, [one.user for one in told], left) if left else []


async def _numbered(conn: Connection, written: Sequence[UserEvent]) -> Sequence[UserEvent]:
    """The same, with the old number that is known here in each notice of a new one that does not tell the old one."""
    asked = [n for n, one in enumerate(written) if one.moved_to is not None and one.user.digits is None]
    if not asked:
        return written
    found = list(written)
    for n, numbers in zip(asked, await _known_numbers(conn, [written[n].user for n in asked]), strict=True):
        one = written[n]
        others = [number for number in numbers if number != phones.person(one.moved_to or "")]
        if len(others) == 1:
            found[n] = msgspec.structs.replace(one, user=_under(others[0], one.user))
    return found


async def _known_numbers(conn: Connection, users: Sequence[User]) -> list[list[str]]:
    """The numbers, as keys, that are known of each of these users, who are given by their user ids."""
    columns = [user.organization_id for user in users], [user.recipient for user in users]
    found: list[list[str]] = [[] for _ in users]
    for n, number in await conn.fetch(KNOWN_NUMBERS, *columns):
        found[n - 1].append(number)
    return found


async def _simple(conn: Connection, written: Sequence[UserEvent]) -> set[int]:
    """Record the changes, all together, of people whom nothing else in the batch is about, and of whose numbers nobody
    has left any: nearly all. Returns their places in the batch."""
    if all(one.moved_to is None for one in written):
        return set()
    names = [_names(one) for one in written]
    places = {name for some in names for name in some}
    left = await people.left(conn, places)
    # Where a departure led may be what another event is about.
    led = {name: {(name[0], phones.person(one.moved_to)) for one in some} for name, some in left.items()}
    persons = await people.persons(conn, places.union(*led.values()))
    about = [{persons.get(name, name) for own in some for name in {own, *led.get(own, ())}} for some in names]
    often = Counter(who for some in about for who in some)
    asked: dict[int, tuple[UUID, str, str]] = {}
    for n, one in enumerate(written):
        if one.moved_to is None or one.user.digits is None or len(names[n]) == 1:
            continue
        if left.keys().isdisjoint(names[n]) and all(often[who] == 1 for who in about[n]):
            asked[n] = one.user.organization_id, one.user.recipient, one.moved_to
    # Of one person already, as the numbers are: else somebody else may have used the first one since.
    apart = [n for n in asked if len(about[n]) > 1]
    used = await conversations.used_since(conn, [(*asked[n][:2], written[n].at) for n in apart])
    for n, is_used in zip(apart, used, strict=True):
        if is_used:
            del asked[n]
    await conversations.link(conn, list(asked.values()))
    await people.leave(conn, [Departure(*asked[n], written[n].at) for n in asked])
    return set(asked)


def _names(one: UserEvent) -> set[tuple[UUID, str]]:
    """The names in an event, as keys; of another spelling of a number, there is one."""
    return {(one.user.organization_id, phones.person(name)) for name in (one.user.recipient, one.moved_to) if name}


async def _change(conn: Connection, user: User, to: str, at: datetime) -> list[Handover]:
    organization_id, number = user.organization_id, user.recipient
    if phones.person(number) == phones.person(to):
        return []  # another spelling
    departures = await _departures(conn, organization_id, number)
    known = _first_since(departures, at)
    if known is not None:
        mover = await _today(conn, organization_id, known.moved_to, known.left_at)
        if phones.person(to) in await people.names(conn, organization_id, mover):
            return []  # Meta notifies each of our numbers
        # The person who left it later is somebody else, who had it in between.
        return await _separate(conn, user, to, at)
    taken = await _take(conn, user, departures[-1], at) if departures and not departures[-1].is_taken else []
    if phones.person(to) not in await people.names(conn, organization_id, number):
        if (await conversations.used_since(conn, [(organization_id, number, at)]))[0]:
            # The notice is late, and the number already belongs to somebody else.
            return taken + await _separate(conn, user, to, at)
        taken += await _take_over(conn, _under(to, user), at)
    await conversations.link(conn, [(organization_id, number, to)])
    await people.leave(conn, [Departure(organization_id, number, to, at)])
    return taken


async def _separate(conn: Connection, user: User, to: str, at: datetime) -> list[Handover]:
    """A user left a number that belonged to somebody else by the time we learned of it."""
    taken = await _take_over(conn, _under(to, user), at)
    await people.had(conn, user.organization_id, user.recipient, until=at, moved_to=to)
    return [*taken, Handover(user.organization_id, user.recipient, to, at, is_separate=True)]


async def _take_over(conn: Connection, user: User, at: datetime) -> list[Handover]:
    """A user changed to this number, which somebody else may have left, and nobody has written from since."""
    departures = await _departures(conn, user.organization_id, user.recipient)
    if not departures or departures[-1].is_taken or at <= departures[-1].left_at:
        return []
    return await _take(conn, user, departures[-1], at)


async def _departures(conn: Connection, organization_id: UUID, number: str) -> list[DepartedNumber]:
    return (await people.left(conn, [(organization_id, number)])).get((organization_id, number), [])


def _first_since(departures: Sequence[DepartedNumber], at: datetime) -> DepartedNumber | None:
    """How the owner of a number at a point in time left it; None: its current owner had it then, or nobody did."""
    return next((one for one in departures if one.left_at >= at), None)


async def _today(conn: Connection, organization_id: UUID, number: str, at: datetime) -> str:
    """The current number of the person who had `number` at a point in time."""
    for _ in range(_FOLLOWED):
        known = _first_since(await _departures(conn, organization_id, number), at)
        if known is None:
            break
        number, at = known.moved_to, known.left_at
    return number


async def _author(
    conn: Connection,
    one: UserEvent,
    user: User,
    left: dict[tuple[UUID, str], list[DepartedNumber]],
    handovers: list[Handover],
) -> User:
    place = user.organization_id, user.recipient
    departures = left.get(place, []) if user.digits is not None else []
    known = _first_since(departures, one.at)
    if known is not None:
        return _under(await _today(conn, user.organization_id, known.moved_to, known.left_at), user)
    if departures and not departures[-1].is_taken:
        handovers += await _take(conn, user, departures[-1], one.at)
        left.pop(place)
        left.update(await people.left(conn, [place]))
    return user


def _under(name: str, user: User) -> User:
    """The user, under a number or a user id."""
    if not name.startswith("+"):
        return msgspec.structs.replace(user, digits=None, user_id=name)
    return msgspec.structs.replace(user, digits=name.removeprefix("+"))


async def _take(conn: Connection, user: User, known: DepartedNumber, at: datetime) -> list[Handover]:
    """Somebody writes from, or changed to, a number that its owner had left."""
    organization_id, number = user.organization_id, user.recipient
    if user.user_id is not None and user.user_id in await people.names(conn, organization_id, number):
        await people.come_back(conn, organization_id, number, at=at)
        return []
    await people.take(conn, organization_id, number, at=at)
    await conversations.hand_on(conn, organization_id, number, to=known.moved_to)
    return [Handover(organization_id, number, known.moved_to, known.left_at)]
