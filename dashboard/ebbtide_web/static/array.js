// The page of an array: a cell for each task, the rungs that they reached, and what a param did to a metric.
import { base, byId, h, jobLink, linked, now, plural, put, scroller, setAway, state, stream, svg } from "./app.js";
import { listPage } from "./list.js";

const id = byId("array").dataset.id;
const path = `/arrays/${encodeURIComponent(id)}`;
const STATES = { p: "PENDING", s: "STARTING", r: "RUNNING", g: "SUSPENDING", z: "SUSPENDED", o: "STOPPING", u: "UNREACHABLE", c: "COMPLETED", f: "FAILED", x: "CANCELLED" };
const ORDER = ["RUNNING", "STARTING", "SUSPENDING", "STOPPING", "UNREACHABLE", "SUSPENDED", "PENDING", "COMPLETED", "FAILED", "CANCELLED"];
const MOST_CELLS = 1000; // of more tasks, each cell stands for several
const MOST_POINTS = 1000;
const list = listPage({ path, filters: ["param", "metric"], follow: () => follow() });
let following = null, lostAt = 0;

function follow() {
  following?.close();
  following = stream(`/stream${path}?${list.query}`, {
    array: (found) => { lostAt = 0; setAway(null); show(found); },
    away: ({ words }) => { lostAt ||= now(); setAway({ since: lostAt, words }); },
    refused: ({ words }) => put(byId("grid"), words, () => h("p", { class: "problem" }, words)),
  });
}

function show(found) {
  const count = found.indices.length;
  put(byId("facts"), [found.user, count], () => `${found.user} · ${plural(count, "task")}`);
  put(byId("grid"), [found.states, found.indices], () => grid(found));
  byId("rungs").hidden = !found.rungs.length;
  put(byId("rungs"), [found.rungs, count, found.metric], () => [h("h2", { id: "rungs-title" }, "Successive halving"),
    scroller("Rungs", h("table", { class: "rungs" }, h("thead", {}, h("tr", {}, ["Rung", "Tasks that reached it", "Share of all"].map((title) => h("th", { scope: "col" }, title)))),
      h("tbody", {}, found.rungs.map((rung) => h("tr", {}, h("th", { scope: "row" }, `step ${rung.steps.toLocaleString("en")}`), h("td", { class: "number" }, `${rung.tasks} of ${count}`), h("td", { class: "wide" }, gauge(rung.tasks / count)))))))]);
  byId("plot").hidden = !found.params.length || !found.metrics.length;
  for (const [name, names] of [["param", found.params], ["metric", found.metrics]]) put(byId(`f-${name}`), [names, found[name]], () => names.map((one) => h("option", { value: one, selected: one === found[name] }, one)));
  put(byId("drawing"), [found.x, found.y, found.param, found.metric, found.less], () => plot(found));
  put(byId("tasks-table"), [found.rows, found.metric], () => table(found));
  list.showPages({ page: Math.min(found.page, found.pages - 1), pages: found.pages, total: count }, "task");
}

function gauge(part) {
  const fill = h("span", { class: "fill" });
  fill.style.width = `${Math.min(100, 100 * part)}%`;
  return h("span", { class: "gauge", "aria-hidden": "true" }, fill);
}

// --- cells ---

function grid(found) {
  const names = [...found.states].map((letter) => STATES[letter]), each = Math.ceil(names.length / MOST_CELLS), counts = {}, cells = [];
  for (const name of names) counts[name] = (counts[name] ?? 0) + 1;
  for (let at = 0; at < names.length; at += each) {
    const some = names.slice(at, at + each), most = ORDER.find((name) => some.includes(name));
    const words = each === 1 ? `task ${found.indices[at]}: ${most.toLowerCase()}` : `tasks ${found.indices[at]} to ${found.indices[at + some.length - 1]}: ${ORDER.filter((name) => some.includes(name)).map((name) => `${some.filter((one) => one === name).length} ${name.toLowerCase()}`).join(", ")}`;
    cells.push(h("span", { class: `t-${most.toLowerCase()}`, title: words }));
  }
  const words = ORDER.filter((name) => counts[name]).map((name) => `${counts[name]} ${name.toLowerCase()}`).join(", ");
  return [h("div", { class: "task-grid", role: "img", "aria-label": `${plural(names.length, "task")}: ${words}; the table below has each` }, cells),
    h("ul", { class: "legend" }, ORDER.filter((name) => counts[name]).map((name) => h("li", {}, h("span", { class: `key t-${name.toLowerCase()}`, "aria-hidden": "true" }), state(name), ` ${counts[name].toLocaleString("en")}`)), each > 1 ? h("li", {}, `each cell stands for ${each} tasks, in the state of the liveliest`) : null)];
}

// --- a param against a metric ---

/** Marks between two numbers that people would choose. */
function marks(low, high) {
  if (low === high) return [low];
  const step = 10 ** Math.floor(Math.log10(high - low)), fit = [0.2, 0.5, 1].map((one) => one * step).find((one) => (high - low) / one <= 6) ?? 2 * step, found = [];
  for (let at = Math.ceil(low / fit) * fit; at <= high + fit / 1e6; at += fit) found.push(Number(at.toPrecision(6)));
  return found;
}

/** The bounds of numbers, with some room, so that no mark lies on an axis. */
function roomy(numbers) {
  const low = Math.min(...numbers), high = Math.max(...numbers), room = 0.05 * (high - low);
  return [low - room, high + room];
}

const written = (value) => (value === 0 ? "0" : Math.abs(value) >= 1e5 || Math.abs(value) < 1e-3 ? value.toExponential(1) : String(Number(value.toPrecision(4))));

function plot(found) {
  let points = found.indices.map((index, at) => ({ index, x: found.x[at], y: found.y[at], state: STATES[found.states[at]] })).filter((one) => one.x !== null && one.y !== null);
  if (points.length < 1) return h("p", { class: "dim" }, `No task has a number for ${found.param} and has reported ${found.metric} yet.`);
  const best = points.reduce((one, other) => ((found.less ? other.y < one.y : other.y > one.y) ? other : one));
  const left = points.length > MOST_POINTS ? points.length - MOST_POINTS : 0;
  if (left) { const every = points.length / MOST_POINTS; points = Array.from({ length: MOST_POINTS }, (_, at) => points[Math.floor(at * every)]); if (!points.includes(best)) points.push(best); }
  const wide = 900, high = 300, side = 64, foot = 34, xs = points.map((one) => one.x), log = Math.min(...xs) > 0 && Math.max(...xs) / Math.min(...xs) >= 50;
  const scaled = (value) => (log ? Math.log10(value) : value), [lowX, highX] = roomy(xs.map(scaled)), ys = points.map((one) => one.y), [lowY, highY] = roomy(ys);
  const x = (value) => side + (highX === lowX ? 0.5 : (scaled(value) - lowX) / (highX - lowX)) * (wide - side - 20), y = (value) => high - foot - (highY === lowY ? 0.5 : (value - lowY) / (highY - lowY)) * (high - foot - 16);
  const marksX = log ? marks(lowX, highX).filter(Number.isInteger).map((one) => 10 ** one) : marks(lowX, highX);
  const shapes = [svg("line", { x1: side, x2: wide - 10, y1: high - foot, y2: high - foot, class: "axis" }), svg("line", { x1: side, x2: side, y1: 8, y2: high - foot, class: "axis" }),
    (marksX.length ? marksX : [xs[0]]).map((value) => [svg("text", { x: x(value), y: high - foot + 16, "text-anchor": "middle" }, written(value)), svg("line", { x1: x(value), x2: x(value), y1: high - foot, y2: high - foot + 4, class: "axis" })]),
    marks(lowY, highY).map((value) => [svg("text", { x: side - 8, y: y(value) + 4, "text-anchor": "end" }, written(value)), svg("line", { x1: side - 4, x2: side, y1: y(value), y2: y(value), class: "axis" })]),
    points.map((one) => svg("circle", { cx: x(one.x), cy: y(one.y), r: 4, class: `dot-${one.state.toLowerCase()}` }, svg("title", {}, `task ${one.index}: ${found.param} ${written(one.x)}, ${found.metric} ${written(one.y)}, ${one.state.toLowerCase()}`))),
    svg("circle", { cx: x(best.x), cy: y(best.y), r: 8, class: "best" })];
  return [h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Drawing of ${found.metric} by ${found.param}` }, svg("svg", { class: "scatter", viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": `${found.metric} by ${found.param} of ${plural(points.length, "task")}; the table below has the same in figures` }, shapes)),
    h("p", { class: "dim small" }, `${found.metric} upwards, ${found.param} to the right${log ? ", by powers of ten" : ""}. The best is task `, jobLink(`${found.id}.${best.index}`, String(best.index)), `: ${found.param} ${written(best.x)}, ${found.metric} ${written(best.y)}.`, left ? ` Of ${plural(left + MOST_POINTS, "task")}, ${MOST_POINTS} are drawn.` : "")];
}

// --- tasks ---

function table(found) {
  const params = found.params.slice(0, 8), halving = found.rungs.length > 0;
  if (!found.rows.length) return h("p", { class: "dim" }, "There are no tasks on this page.");
  return scroller("Tasks", h("table", {}, h("thead", {}, h("tr", {}, ["Task", "State", ...params, "Step", found.metric || null, halving ? "Rungs" : null, "Preempted", "Why"].filter((title) => title !== null).map((title) => h("th", { scope: "col" }, title)))),
    h("tbody", {}, found.rows.map((one) => h("tr", {}, h("th", { scope: "row" }, jobLink(`${found.id}.${one.index}`, String(one.index))), h("td", {}, state(one.state)), params.map((name) => h("td", { class: "mono" }, one.params[name] ?? "–")),
      h("td", { class: "number" }, one.step === null ? "–" : `${one.step.toLocaleString("en")}${one.total ? ` of ${one.total.toLocaleString("en")}` : ""}`), found.metric ? h("td", { class: "number" }, one.value === null ? "–" : written(one.value)) : null, halving ? h("td", { class: "number" }, String(one.rungs)) : null,
      h("td", { class: "number" }, one.preemptions ? `${one.preemptions}×` : "–"), h("td", {}, one.reason.toUpperCase() === one.state ? "" : linked(one.reason)))))));
}

follow();
