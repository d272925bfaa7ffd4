// Charts: drawn by uPlot from the JSON beside them. By keyboard: ← → move the crosshair, Home and End go to the ends,
// Enter opens what the interval leads to, Escape takes the crosshair away. The table below each says the same.

const HEIGHTS = { bars: 88, lines: 200 }, AXIS = 28;
const DASHES = [[], [6, 4], [2, 3]];
// What may lie between two labels of the times: never less than an interval, which has a single time.
const DAY = 86400, TIMES = [1, 5, 10, 15, 30, 60, 300, 600, 900, 1800, ...[1, 2, 3, 4, 6, 8, 12].map((hours) => hours * 3600), ...[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 15, 30, 60, 90, 120, 180, 365].map((days) => days * DAY)];
const drawn = new Map();

const probe = document.createElement("span");
probe.hidden = true;
document.body.append(probe);

// A colour of the theme, as a canvas takes it.
function colour(name) {
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

const tones = () => ({ good: colour("good"), bad: colour("bad"), warn: colour("warn"), way: colour("way"), calm: colour("muted"), text: colour("muted"), line: colour("line"), ground: colour("surface") });

// Lines of what happened. A name stands beside its line where there is room: the table below lists all of them.
function marking(figures, colours, named) {
  return (plot) => {
    const { ctx } = plot, { left, top, width, height } = plot.bbox, px = devicePixelRatio, taken = [];
    ctx.save();
    ctx.font = `${11 * px}px system-ui, sans-serif`;
    ctx.textAlign = "left";
    for (const mark of figures.marks) {
      // A bar or point stands for the interval that begins at the time below it: what happened late in it is no nearer to
      // the next one.
      const x = Math.round(plot.valToPos(mark.at - figures.step / 2, "x", true));
      if (x < left || x > left + width) continue;
      ctx.strokeStyle = colours.warn;
      ctx.lineWidth = px;
      ctx.setLineDash([3 * px, 3 * px]);
      ctx.beginPath();
      ctx.moveTo(x, top);
      ctx.lineTo(x, top + height);
      ctx.stroke();
      const wide = ctx.measureText(mark.name).width, gap = 4 * px;
      const from = x + gap + wide > left + width ? x - gap - wide : x + gap;
      if (!named || from < left || taken.some((one) => from < one.to + gap && one.from < from + wide + gap)) continue;
      taken.push({ from, to: from + wide });
      // Over bars it has an edge of the ground's colour.
      ctx.setLineDash([]);
      ctx.lineWidth = 4 * px;
      ctx.strokeStyle = colours.ground;
      ctx.strokeText(mark.name, from, top + 10 * px);
      ctx.fillStyle = colours.text;
      ctx.fillText(mark.name, from, top + 10 * px);
    }
    ctx.restore();
  };
}

// Of the pages: a day stands before its month.
function language() {
  const said = document.documentElement.lang;
  return said === "en" ? "en-GB" : said;
}

// Of the pages: as in Portugal, where a point does not separate thousands. Days of that region would be 28/11.
function notation(how) {
  const said = language();
  return new Intl.NumberFormat(said === "pt" ? "pt-PT" : said, { useGrouping: "always", ...how });
}

function options(figures, series, { width, height, top, hasTimes, isFirst, sync, told }) {
  const colours = tones(), bars = figures.kind === "bars";
  const first = figures.times[0], last = figures.times.at(-1), half = figures.step / 2;
  const lang = language();
  const day = new Intl.DateTimeFormat(lang, { timeZone: figures.zone, day: "numeric", month: "short" });
  const hour = new Intl.DateTimeFormat(lang, { timeZone: figures.zone, hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
  const second = new Intl.DateTimeFormat(lang, { timeZone: figures.zone, hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
  // As many places as the step between two lines of the grid has: 0.025 is no 0.03.
  const grid = (at) => {
    const places = (String(Number((at[1] - at[0]).toPrecision(3))).split(".")[1] ?? "").length;
    return notation({ maximumFractionDigits: Math.max(figures.digits, places), notation: top >= 100000 ? "compact" : "standard" });
  };
  const axis = { stroke: colours.text, font: "11px system-ui, sans-serif", ticks: { show: false } };
  return {
    width, height, legend: { show: false }, padding: [10, 24, hasTimes ? 0 : 7, 0], // half of the last time, with seconds
    tzDate: (at) => window.uPlot.tzDate(new Date(at * 1000), figures.zone),
    scales: { x: { range: () => [first - half, Math.max(last, first + 1) + half] }, y: { range: () => [0, top] } },
    cursor: { sync: { key: sync }, y: false, drag: { x: false, y: false }, points: { show: !bars } },
    axes: [
      { ...axis, show: hasTimes, size: AXIS, grid: { show: false }, space: 72, incrs: TIMES.filter((one) => one >= figures.step), values: (plot, at) => {
        let before = "";
        return at.map((one) => {
          const clock = at.length > 1 && at[1] - at[0] < 60 ? second : hour;
          const date = day.format(new Date(one * 1000)), time = clock.format(new Date(one * 1000));
          const label = figures.step >= DAY || (date !== before && time === "00:00") ? date : time;
          before = date;
          return label;
        });
      } },
      { ...axis, size: 52, space: bars ? 30 : 40, grid: { stroke: colours.line, width: 1 }, values: (plot, at) => at.map(grid(at).format),
        incrs: figures.digits ? undefined : [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 2e6, 5e6, 1e7, 2e7, 5e7, 1e8] },
    ],
    series: [{}, ...series.map((one) => bars
      ? { fill: colours[one.tone], width: 0, points: { show: false }, paths: window.uPlot.paths.bars({ size: [0.76, 36] }) }
      : { stroke: colours[one.tone], width: 2, dash: DASHES[figures.series.indexOf(one) % DASHES.length], spanGaps: false, points: { size: 5 } })],
    hooks: { draw: [marking(figures, colours, isFirst)], setCursor: [told] },
  };
}

function draw(figure) {
  const source = figure.querySelector("[data-figures]"), place = figure.querySelector("[data-plot]");
  if (!source || !place) return;
  const known = drawn.get(figure);
  if (known && known.text === source.textContent && known.place === place) return;
  const at = known ? known.at : null;
  known?.end();
  const figures = JSON.parse(source.textContent), readout = figure.querySelector("[data-readout]");
  const number = notation({ maximumFractionDigits: figures.digits });
  const top = Math.max(...figures.series.flatMap((one) => one.values.map((value) => value ?? 0)), figures.digits ? 0 : 4) * 1.08;
  const state = { text: source.textContent, place, at, plots: [], build, end };

  function tell(index) {
    state.at = index;
    readout.textContent = index === null ? "" : `${figures.labels[index]}: ${figures.series.map((one) => `${one.name} ${one.values[index] === null ? "–" : number.format(one.values[index])}`).join(", ")}`;
  }

  function build() {
    for (const plot of state.plots) plot.destroy();
    place.replaceChildren();
    state.plots = [];
    const groups = figures.kind === "bars" ? figures.series.map((one) => [one]) : [figures.series];
    const sync = `chart-${figure.id}`;
    groups.forEach((group, number) => {
      const name = document.createElement("p");
      name.className = "chart-names";
      for (const one of group) {
        const label = document.createElement("span");
        const key = document.createElement("i");
        key.className = `chart-key ${one.tone} dash-${figures.kind === "bars" ? 0 : figures.series.indexOf(one) % DASHES.length}`;
        label.append(key, one.name);
        name.append(label);
      }
      const box = document.createElement("div");
      place.append(name, box);
      const hasTimes = number === groups.length - 1;
      const set = options(figures, group, {
        width: place.clientWidth, height: HEIGHTS[figures.kind] + (hasTimes ? AXIS : 0), top, hasTimes, isFirst: number === 0, sync,
        told: (plot) => number === 0 && tell(plot.cursor.left >= 0 && plot.cursor.idx !== undefined ? plot.cursor.idx : null),
      });
      state.plots.push(new window.uPlot(set, [figures.times, ...group.map((one) => one.values)], box));
    });
    if (state.at !== null) move(state.at);
  }

  function move(index) {
    const last = figures.times.length - 1, plot = state.plots[0];
    const to = Math.min(Math.max(index, 0), last);
    plot.setCursor({ left: plot.valToPos(figures.times[to], "x"), top: 10 });
    tell(to);
  }

  function open() {
    const link = state.at === null ? "" : figures.links[state.at];
    if (link) location.assign(link);
  }

  function pressed(event) {
    const last = figures.times.length - 1;
    if (event.key === "ArrowRight") move(state.at === null ? 0 : state.at + 1);
    else if (event.key === "ArrowLeft") move(state.at === null ? last : state.at - 1);
    else if (event.key === "Home") move(0);
    else if (event.key === "End") move(last);
    else if (event.key === "Enter") open();
    else if (event.key === "Escape" && state.at !== null) state.plots[0].setCursor({ left: -10, top: -10 });
    else return;
    event.preventDefault();
  }

  place.tabIndex = 0;
  place.setAttribute("role", "group");
  place.setAttribute("aria-label", figure.querySelector("figcaption").textContent.replace(/\s+/g, " ").trim());
  place.classList.toggle("leads", figures.links.length > 0);
  place.addEventListener("keydown", pressed);
  place.addEventListener("click", open);
  const resized = new ResizeObserver(() => {
    if (state.plots[0] && Math.abs(state.plots[0].width - place.clientWidth) > 1) for (const plot of state.plots) plot.setSize({ width: place.clientWidth, height: plot.height });
  });
  resized.observe(place);
  const theme = matchMedia("(prefers-color-scheme: dark)");
  theme.addEventListener("change", build);

  function end() {
    resized.disconnect();
    theme.removeEventListener("change", build);
    place.removeEventListener("keydown", pressed);
    place.removeEventListener("click", open);
    for (const plot of state.plots) plot.destroy();
    drawn.delete(figure);
  }
  drawn.set(figure, state);
  build();
}

function all(root) {
  for (const figure of root.querySelectorAll("[data-chart]")) draw(figure);
  for (const [figure, state] of drawn) if (!figure.isConnected) state.end();
}

all(document);
document.addEventListener("renewed", (event) => all(event.detail));
// Paper is white in either theme, and what was painted has the colours of the screen's.
for (const [when, isOnPaper] of [["beforeprint", true], ["afterprint", false]]) addEventListener(when, () => {
  document.documentElement.classList.toggle("on-paper", isOnPaper);
  for (const state of drawn.values()) state.build();
});
