"""Nothing on a page moves by itself once it is shown: neither when its scripts start, nor when its regions refresh.
Otherwise somebody would press a button other than the one they aimed at.

Styles are delayed until the whole page has arrived, and scripts until it has been painted without them, as on a slow
network. On a fast one they would sometimes be there before the first paint, and only some runs would see what moves.
"""

from __future__ import annotations

import asyncio

import pytest
from playwright.async_api import Route

from . import places
from .conftest import DAY, LONG, NIGHT, PATIENCE, Site
from .test_console import set_up

WIDTHS = (1280, 320)
#: One or two pages of each kind, for the short form: with charts, lists with check boxes, ids, regions, forms.
SOME = ("/", "/send", "/messages", "/contacts", "/keys", "/usage", "/audit")
#: `steady.moved`: what moved, with the browser's layout-shift score. `steady.renew()`: whether refreshed regions show
#: what they showed before; new content may move what is below it.
WATCH = """(() => {
  const moved = [], renewed = new Set();
  const name = (node) => {
    const one = node instanceof Element ? node : node?.parentElement;
    return one ? [one.tagName.toLowerCase() + (one.id && '#' + one.id), ...one.classList].join('.') : '?';
  };
  const source = ({ node, previousRect: before, currentRect: after }) =>
    `${name(node)} from ${before.x}, ${before.y} to ${after.x}, ${after.y}`;
  const note = (entries) => {
    for (const one of entries) {
      if (!one.hadRecentInput) moved.push(`${one.value.toFixed(6)} ${one.sources.map(source).join('; ')}`);
    }
  };
  const observer = new PerformanceObserver((list) => note(list.getEntries()));
  observer.observe({ type: 'layout-shift', buffered: true });
  const painted = new Promise((done) => new PerformanceObserver((list) => {
    if (list.getEntriesByName('first-contentful-paint').length) done();
  }).observe({ type: 'paint', buffered: true }));
  const parsed = new Promise((done) => document.addEventListener('readystatechange', () => done()));
  // The word on the service at the foot of each page.
  const said = parsed.then(() => new Promise((done) => {
    const place = document.querySelector('[data-state]');
    if (place) new MutationObserver(done).observe(place, { childList: true });
    else done();
  }));
  document.addEventListener('renewed', (event) => renewed.add(event.detail));
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  const settled = async () => {
    for (let count = 0; count < 3; count += 1) await frame();
    note(observer.takeRecords());
  };
  const regions = () => [...document.querySelectorAll('[data-live]')];
  const text = () => regions().map((one) => one.textContent.split(/\\s+/).join(' ').trim()).join();
  const renew = async () => {
    await said;
    await settled();
    const before = text(), count = moved.length;
    // Regions are asked for when somebody looks again, and not only when it is their time.
    document.dispatchEvent(new Event('visibilitychange'));
    while (regions().some((one) => !renewed.has(one))) await frame();
    await settled();
    const isSame = text() === before;
    if (!isSame) moved.length = count;
    return isSame;
  };
  window.steady = { moved, parsed, painted, renew };
})()"""


class Watch:
    """Layout shifts on the pages visited."""

    def __init__(self, site: Site) -> None:
        self.site, self.page, self.moved = site, site.page, list[str]()
        self.parsed, self.painted = asyncio.Event(), asyncio.Event()

    async def begin(self) -> None:
        """Delay styles and scripts from now on."""
        await self.page.add_init_script(WATCH)
        await self.page.route("**/*.css*", lambda route: self._after(self.parsed, route))
        await self.page.route("**/*.js*", lambda route: self._after(self.painted, route))

    async def _after(self, event: asyncio.Event, route: Route) -> None:
        await event.wait()
        await route.continue_()

    async def look(self, path: str) -> None:
        """Visit the page at both widths."""
        for width in WIDTHS:
            await self.page.set_viewport_size({"width": width, "height": 800})
            is_same = False
            async with asyncio.timeout(PATIENCE / 1000):
                while not is_same:
                    is_same = await self._shown(path)
            found = await self.page.evaluate("steady.moved")
            self.moved.extend(f"{path} at {width}: {one}" for one in found)

    async def _shown(self, path: str) -> bool:
        """Load the page; returns whether its regions showed no new content after a refresh."""
        self.parsed.clear()
        self.painted.clear()
        await self.page.goto(self.site.base + path, wait_until="commit")
        await self.page.evaluate("steady.parsed")
        self.parsed.set()
        await self.page.evaluate("steady.painted")
        self.painted.set()
        await self.page.wait_for_load_state("load")
        return bool(await self.page.evaluate("steady.renew()"))


@pytest.mark.lasts(15)
@pytest.mark.parametrize("site", [DAY, NIGHT] if LONG else [NIGHT], indirect=True)
async def test_nothing_moves(site: Site) -> None:
    paths, _ = await places.dashboard(site)
    watch = Watch(site)
    await watch.begin()
    for path in (*places.DOOR, *places.CONSOLE_DOOR) if LONG else ("/login",):
        await watch.look(path)
    await site.enter()
    if LONG:
        await set_up(site)
        paths += await places.console(site)
    for path in paths if LONG else SOME:
        await watch.look(path)
    assert watch.moved == [], "\n".join(watch.moved)
    site.expect("404")
