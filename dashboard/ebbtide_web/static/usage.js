// The page of the usage: who had how much GPU time, and what became of it; asked for anew about once a minute.
import { base, byId, clock, duration, empty, h, now, plural, put, scroller, setAway, state, stream, svg } from "./app.js";
import { listPage } from "./list.js";

const PARTS = { useful: "computing", unknown: "computing, perhaps lost", lost: "lost", idle: "allocated and not used", starting: "starting", leaving: "leaving" };
const GPU_STATES = ["allocated", "idle", "foreign", "unavailable"];
const WORDS = { unavailable: "out of service" };
const list = listPage({ path: "/usage", filters: ["window", "by"], follow: () => follow() });
let following = null, lostAt = 0;

function follow() {
  following?.close();
  const query = list.query.toString();
  byId("f-window").value = list.query.get("window") ?? "week";
  byId("f-by").value = list.query.get("by") ?? "user";
  byId("file").href = `${base}/usage.csv${query ? `?${query}` : ""}`;
  following = stream(`/stream/usage?${query}`, {
    progress: ({ done }) => { lostAt = 0; setAway(null); byId("count").textContent = done > 0 ? `Reading the journal: ${Math.round(100 * done)} %` : "Reading the journal …"; },
    usage: (found) => { lostAt = 0; setAway(null); show(found); },
    away: ({ words }) => { lostAt ||= now(); setAway({ since: lostAt, words }); },
    refused: ({ words }) => { byId("count").textContent = words; },
  });
}

/** GPU time as hours, as many digits as one reads. */
function hours(seconds) {
  const value = seconds / 3600;
  return value === 0 ? "0 h" : value < 0.01 ? "<0.01 h" : `${value < 10 ? value.toFixed(2) : value < 1000 ? value.toFixed(1) : Math.round(value).toLocaleString("en")} h`;
}
const share = (part, whole) => (whole > 0 ? `${Math.round((100 * part) / whole)} %` : "–");

function show(found) {
  const total = found.total, gpus = found.gpus;
  byId("count").textContent = `${clock(found.since, false)} to ${clock(found.until, false)}`;
  put(byId("problems"), [found.problems, found.known_since], () => [
    found.problems.map((words) => h("p", { class: "notice" }, `The books are wrong, please report it: ${words}`)),
    found.known_since ? h("p", { class: "notice" }, `Jobs that had ended before ${clock(found.known_since, false)} are forgotten, and not counted.`) : null]);
  const tile = (title, value, more) => h("div", { class: "tile" }, h("p", { class: "what" }, title), h("p", { class: "value" }, value), h("p", { class: "more" }, more));
  put(byId("tiles"), [total, gpus], () => [
    tile("GPU hours of jobs", hours(total.allocated).replace(" h", ""), `${plural(total.jobs, "job")}; ${share(gpus.allocated, gpus.known)} of all GPU time`),
    tile("Computing", share(total.useful + total.unknown, total.allocated), hours(total.useful + total.unknown)),
    tile("Lost", share(total.lost, total.allocated), `${hours(total.lost)} since a last checkpoint`),
    tile("Not used", share(total.idle, total.allocated), `${hours(total.idle)} allocated and idle`),
    tile("Coming and going", share(total.starting + total.leaving, total.allocated), `${hours(total.starting)} starting, ${hours(total.leaving)} leaving`)]);
  put(byId("gpu-time"), [gpus, found.foreign], () => {
    if (!gpus.known) return [];
    const bar = h("div", { class: "bar-of", "aria-hidden": "true" }, GPU_STATES.filter((name) => gpus[name]).map((name) => { const part = h("span", { class: `fill f-${name === "unavailable" ? "unreachable" : name}` }); part.style.flexGrow = String(1000 * gpus[name]); return part; }));
    const foreign = found.foreign.map(({ user, seconds }) => `${user || "somebody"} ${hours(seconds)}`).join(", ");
    return [bar, h("ul", { class: "legend" }, GPU_STATES.filter((name) => gpus[name]).map((name) => h("li", {}, state(name === "unavailable" ? "unreachable" : name, WORDS[name] ?? name), ` ${share(gpus[name], gpus.known)}`)),
      h("li", {}, `of ${hours(gpus.known)} of ${plural(gpus.count, "GPU")}`), foreign ? h("li", {}, `past the cluster: ${foreign}`) : null)];
  });
  const none = !found.rows.length;
  byId("periods").hidden = byId("rows").hidden = none;
  put(byId("empty"), none, () => (none ? empty("No job had GPU time in this window. This submits one:", "ebb submit --gpus 1 -- python train.py") : []));
  if (none) return;
  put(byId("periods"), [found.periods, found.window], () => periods(found));
  put(byId("rows"), [found.rows, found.by, found.more_rows], () => rows(found));
}

const sum = (one) => Object.keys(PARTS).reduce((all, name) => all + one[name], 0);
const legend = () => h("p", { class: "keys small dim parts-keys" }, Object.entries(PARTS).map(([name, words]) => h("span", {}, h("span", { class: `key u-${name}`, "aria-hidden": "true" }), words)));

/** GPU time of each hour or day as a bar of its parts; the table below has the same in figures. */
function periods(found) {
  const all = found.periods, most = Math.max(...all.map(sum), 1), wide = 1000, high = 150, step = wide / all.length, every = Math.ceil(all.length / 12);
  const bars = all.map((one, at) => {
    let top = high;
    return Object.keys(PARTS).filter((name) => one[name] > 0).map((name) => {
      const tall = (one[name] / most) * (high - 4);
      top -= tall;
      return svg("rect", { x: at * step + step * 0.12, width: step * 0.76, y: top, height: tall, class: `u-${name}` }, svg("title", {}, `${one.label}: ${hours(one[name])} ${PARTS[name]}`));
    });
  });
  const per = found.window === "day" ? "hour" : "day";
  const drawing = svg("svg", { class: "bars", viewBox: `0 0 ${wide} ${high}`, preserveAspectRatio: "none", role: "img", "aria-label": `GPU hours of each ${per}; the table below has the same in figures` }, svg("line", { x1: 0, x2: wide, y1: high - 0.5, y2: high - 0.5, class: "axis" }), bars);
  const table = scroller(`GPU hours of each ${per}`, h("table", {}, h("thead", {}, h("tr", {}, [per === "hour" ? "Hour" : "Day", ...Object.values(PARTS)].map((title) => h("th", { scope: "col" }, title)))),
    h("tbody", {}, all.filter(sum).map((one) => h("tr", {}, h("th", { scope: "row" }, one.label), Object.keys(PARTS).map((name) => h("td", { class: "number" }, hours(one[name]))))))));
  return [h("div", { class: "title" }, h("h2", { id: "periods-title" }, `GPU hours of each ${per}`), h("span", { class: "dim small" }, `at most ${hours(most)}`)), drawing,
    h("div", { class: `bar-names dim small${all.length > 12 ? " many-bars" : ""}`, "aria-hidden": "true" }, all.map((one, at) => h("span", {}, at % every ? "" : one.label))), legend(), h("details", { class: "as-table" }, h("summary", {}, "The same as a table"), table)];
}

function rows(found) {
  const most = Math.max(...found.rows.map((one) => one.allocated), 1), who = found.by === "user" ? "User" : "Pool";
  return [h("div", { class: "title" }, h("h2", { id: "rows-title" }, `By ${found.by}`)),
    scroller(`GPU time by ${found.by}`, h("table", { class: "usage" }, h("thead", {}, h("tr", {}, [who, "Jobs", "GPU hours", "What became of it", "Lost", "Not used", "Waiting", "Suspended"].map((title) => h("th", { scope: "col" }, title)))),
      h("tbody", {}, found.rows.map((one) => h("tr", {}, h("th", { scope: "row" }, one.key || "–"), h("td", { class: "number" }, one.jobs.toLocaleString("en")), h("td", { class: "number" }, hours(one.allocated)),
        h("td", { class: "u-parts" }, partsBar(one, most)), h("td", { class: "number" }, `${hours(one.lost)}${one.lost > 0 ? ` (${share(one.lost, one.allocated)})` : ""}`), h("td", { class: "number" }, `${hours(one.idle)}${one.idle > 0 ? ` (${share(one.idle, one.allocated)})` : ""}`),
        h("td", { class: "number" }, duration(one.waiting)), h("td", { class: "number" }, duration(one.suspended))))))),
    found.more_rows ? h("p", { class: "dim small" }, `and ${plural(found.more_rows, found.by)} with less: the file has all.`) : null];
}

function partsBar(one, most) {
  const words = Object.keys(PARTS).filter((name) => one[name] > 0).map((name) => `${share(one[name], one.allocated)} ${PARTS[name]}`).join(", ");
  const bar = h("span", { class: "parts", role: "img", "aria-label": words || "nothing" }, Object.keys(PARTS).filter((name) => one[name] > 0).map((name) => { const part = h("span", { class: `fill u-${name}` }); part.style.flexGrow = String(1000 * one[name]); return part; }));
  bar.style.width = `${Math.max(1, (100 * one.allocated) / most)}%`;
  bar.title = words;
  return bar;
}

follow();
