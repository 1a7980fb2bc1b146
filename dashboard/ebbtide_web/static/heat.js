// Strips of pools and nodes on the timeline: how many of their GPUs jobs held over time, by depth of colour.
import { base, clock, h, plural, scroller } from "./app.js";

const COLUMNS = 12; // of the table

export const partsOf = (lane) => lane.heat.held.length;
export const titleOf = (lane) => lane.node || lane.pool;

/** A part of the window: from when to when, in Unix seconds. */
function bounds(found, part) {
  const length = (found.until - found.since) / found.parts;
  return [found.since + part * length, found.since + (part + 1) * length];
}

/** Draws the strip of a lane: the deeper, the more was held; from above, what was out of service or used past the cluster. */
export function paintStrip(pen, inks, found, lane, { top, high, x }) {
  for (let part = 0; part < partsOf(lane); part++) {
    const held = lane.heat.held[part];
    if (held === null) continue;
    const [since, until] = bounds(found, part), from = Math.round(x(since)), wide = Math.max(1, Math.round(x(until)) - from);
    pen.globalAlpha = 0.06 + 0.94 * Math.min(1, held / 100);
    pen.fillStyle = inks.allocated;
    pen.fillRect(from, top, wide, high);
    pen.globalAlpha = 1;
    let above = top;
    for (const kind of ["unavailable", "foreign"]) {
      const tall = (high * Math.min(100, lane.heat[kind][part])) / 100;
      if (!tall) continue;
      pen.fillStyle = inks[kind];
      pen.fillRect(from, above, wide, Math.max(1, tall));
      above += tall;
    }
  }
}

const percent = (value) => (value === null ? "–" : `${value} %`);

export function stripWords(found, lane, part) {
  const whose = `${lane.node ? `node ${lane.node}` : `pool ${lane.pool}`}, ${plural(lane.gpus, "GPU")}`;
  if (part < 0) return `${whose}: ${percent(mean(lane.heat.held, 0, partsOf(lane)))} held${who(found)} in this window`;
  const [since, until] = bounds(found, part), rest = [["foreign", "used past the cluster"], ["unavailable", "out of service"]].filter(([kind]) => lane.heat[kind][part]);
  return `${whose}: ${clock(since, false)} to ${clock(until, false)}, ${percent(lane.heat.held[part])} held${who(found)}${rest.map(([kind, words]) => `, ${percent(lane.heat[kind][part])} ${words}`).join("")}`;
}

const who = (found) => (found.user ? ` by ${found.user}` : "");

/** The mean of what is known between two parts; null if nothing is. */
function mean(values, from, to) {
  const known = values.slice(from, to).filter((value) => value !== null);
  return known.length ? Math.round(known.reduce((sum, value) => sum + value, 0) / known.length) : null;
}

export const stripKeys = () => [
  h("li", {}, h("span", { class: "ramp", "aria-hidden": "true" }), "none to all GPUs held"),
  h("li", {}, h("span", { class: "key f-foreign", "aria-hidden": "true" }), "used past the cluster"),
  h("li", {}, h("span", { class: "key f-unreachable", "aria-hidden": "true" }), "out of service")];

/** The same as a table: for each lane, what was held on average in each twelfth of the window. */
export function stripTable(found, open) {
  const step = found.parts / COLUMNS, columns = [...Array(COLUMNS).keys()];
  return scroller("What was held", h("table", { class: "spans strips" },
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, found.by === "pool" ? "Pool" : "Node"), h("th", { scope: "col" }, "GPUs"), columns.map((column) => h("th", { scope: "col" }, clock(bounds(found, column * step)[0], false))), h("th", { scope: "col" }, "Used past the cluster"), h("th", { scope: "col" }, "Out of service"))),
    h("tbody", {}, found.lanes.map((lane) => h("tr", {},
      h("th", { scope: "row" }, h("a", { href: `${base}/timeline`, onclick: (event) => { event.preventDefault(); open(lane); } }, titleOf(lane))), h("td", { class: "number" }, lane.gpus.toLocaleString("en")),
      columns.map((column) => h("td", { class: "number" }, percent(mean(lane.heat.held, column * step, (column + 1) * step)))),
      ["foreign", "unavailable"].map((kind) => h("td", { class: "number" }, percent(mean(lane.heat[kind], 0, partsOf(lane))))))))));
}
