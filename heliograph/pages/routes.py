"""Which screen serves which address, and who has access: declared, so that a test can enumerate it.

A path is fixed, or has `{name}` for one segment. The first segment selects the routes that are considered.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

import msgspec

from heliograph.pages.answers import Answer
from heliograph.pages.live import sharing
from heliograph.pages.requests import Request

#: Validity in seconds of what a wall screen shows: less than its polling interval.
WALL = 1.0

Handler = Callable[[Request], Awaitable[Answer]]


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One address. Without scope and permission, it is open to everybody who is signed in."""

    method: str
    path: str
    handler: Handler
    #: A scope of the contract, checked in the mode of the address.
    scope: str | None = None
    #: A page permission of `people.roles`.
    permission: str | None = None
    #: No sign-in is required.
    is_public: bool = False
    #: Also open to a person who belongs to no organization.
    is_personal: bool = False
    #: For what live and test mode share: the scope is checked in live mode, whatever the address says.
    is_shared: bool = False
    #: Its form contains a file, which the handler reads as it arrives (`pages.uploads`).
    takes_file: bool = False
    #: Its form may have hundreds of fields.
    is_long: bool = False
    #: The person must have authenticated within the last ten minutes.
    is_proved: bool = False
    #: It only changes what the browser stores: allowed while viewing as an organization.
    is_harmless: bool = False
    #: Its form changes nothing of the organization, but shows or exports something, or concerns the reader alone:
    #: allowed while the organization is suspended or closed.
    only_reads: bool = False
    #: Its form only ends or stops something, such as somebody's access to the organization's data, which can still be
    #: read then, or a campaign, which would go on once the organization is resumed: allowed then, too.
    only_ends: bool = False
    #: Its self-refreshing region is the same for everybody with the same role (one that sees everything), language and
    #: time zone, unless the page `is_own`.
    is_alike: bool = False
    #: Maximum validity of its region in seconds, however busy the process is.
    good_for: float = sharing.MOST


def get(
    path: str, handler: Handler, scope: str | None = None, permission: str | None = None, *, is_proved: bool = False
) -> Route:
    """A page of the organization, for roles that hold scope and permission."""
    return Route(method="GET", path=path, handler=handler, scope=scope, permission=permission, is_proved=is_proved)


def wall(path: str, handler: Handler, permission: str) -> Route:
    """A page that is watched during outages: it shows the current state, however long rendering takes."""
    return Route(method="GET", path=path, handler=handler, permission=permission, good_for=WALL)


def post(
    path: str, handler: Handler, scope: str | None = None, permission: str | None = None, *, is_proved: bool = False
) -> Route:
    """A write in the organization, for roles that hold scope and permission."""
    return Route(method="POST", path=path, handler=handler, scope=scope, permission=permission, is_proved=is_proved)


def reading(route: Route) -> Route:
    """A form that changes nothing of the organization (`Route.only_reads`)."""
    return msgspec.structs.replace(route, only_reads=True)


def ending(route: Route) -> Route:
    """A form that only ends or stops something (`Route.only_ends`)."""
    return msgspec.structs.replace(route, only_ends=True)


def alike(path: str, handler: Handler, scope: str) -> Route:
    """A page, for roles that hold the scope, whose region is the same for all of a role (`Route.is_alike`)."""
    return Route(method="GET", path=path, handler=handler, scope=scope, is_alike=True)


def upload(
    path: str, handler: Handler, scope: str | None = None, permission: str | None = None, *, is_proved: bool = False
) -> Route:
    """A form that contains a file, for roles that hold scope and permission."""
    return Route(
        method="POST",
        path=path,
        handler=handler,
        scope=scope,
        permission=permission,
        takes_file=True,
        is_proved=is_proved,
    )


def table(path: str, handler: Handler, scope: str) -> Route:
    """A form that is a table, for roles that hold the scope."""
    return Route(method="POST", path=path, handler=handler, scope=scope, is_long=True)


def public(method: str, path: str, handler: Handler, *, is_alike: bool = False, is_harmless: bool = False) -> Route:
    """A route for everybody, signed in or not."""
    return Route(method=method, path=path, handler=handler, is_public=True, is_alike=is_alike, is_harmless=is_harmless)


def own(method: str, path: str, handler: Handler, *, is_proved: bool = False, is_harmless: bool = False) -> Route:
    """A route that concerns the person, independent of organizations."""
    return Route(
        method=method,
        path=path,
        handler=handler,
        is_personal=True,
        is_proved=is_proved,
        is_harmless=is_harmless,
    )


def shared(
    method: str, path: str, handler: Handler, scope: str, permission: str | None = None, *, is_proved: bool = False
) -> Route:
    """A route for what live and test mode share."""
    return Route(
        method=method,
        path=path,
        handler=handler,
        scope=scope,
        permission=permission,
        is_shared=True,
        is_proved=is_proved,
    )


class Table:
    """All routes, found by method and path."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self.routes = tuple(routes)
        self._exact: dict[str, dict[str, Route]] = {}
        self._by_first: dict[str, list[tuple[list[str], dict[str, Route]]]] = {}
        for route in routes:
            if "{" not in route.path:
                self._exact.setdefault(route.path, {})[route.method] = route
                continue
            parts = route.path.split("/")
            known = self._by_first.setdefault(parts[1], [])
            methods = next((methods for pattern, methods in known if pattern == parts), None)
            if methods is None:
                known.append((parts, methods := {}))
            methods[route.method] = route
        #: First segments of all paths except the front page's.
        self.places = frozenset(route.path.split("/")[1] for route in routes) - {""}

    def find(self, path: str) -> tuple[Mapping[str, Route], dict[str, str]]:
        """(routes by method, path parameters); empty if there are none, as for a path with NUL, which no name has and
        the database refuses."""
        if "\0" in path:
            return {}, {}
        exact = self._exact.get(path)
        if exact is not None:
            return exact, {}
        parts = path.split("/")
        for pattern, methods in self._by_first.get(parts[1] if len(parts) > 1 else "", ()):
            if len(pattern) == len(parts):
                found = {}
                for want, have in zip(pattern, parts, strict=True):
                    if want.startswith("{") and have:
                        found[want[1:-1]] = have
                    elif want != have:
                        break
                else:
                    return methods, found
        return {}, {}

    def above(self, path: str) -> Iterator[str]:
        """Pages above a path, nearest first."""
        parts = path.split("/")
        for length in range(len(parts) - 1, 1, -1):
            higher = "/".join(parts[:length])
            if "GET" in self.find(higher)[0]:
                yield higher

    def page(self, path: str) -> str:
        """The path itself, or for one that only accepts a form, the nearest page above it."""
        methods, _ = self.find(path)
        return path if "GET" in methods or not methods else next(self.above(path), path)
