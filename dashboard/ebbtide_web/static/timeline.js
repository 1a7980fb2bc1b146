// The page of the timeline: a lane for each GPU or job, with who had it, why that ended, and what is reserved; for a
// large cluster a strip for each pool, which leads to one for each of its nodes, and these to their GPUs.
import { base, byId, clock, duration, empty, h, jobLink, now, plural, put, say, scroller, setAway, stream, time } from "./app.js";
import { COLOURS, colourOf } from "./colours.js";
import { paintStrip, partsOf, stripKeys, stripTable, stripWords, titleOf } from "./heat.js";
import { listPage, localTime } from "./list.js";

const WORDS = {
  waiting: "waiting", held: "on hold", suspended: "suspended", starting: "starting", computing: "running", leaving: "leaving",
  foreign: "used past the cluster", unavailable: "out of service", booked: "reserved", several: "several, merged",
};
const WINDOWS = { hour: 3600, "6h": 21600, day: 86400, week: 604800 };
const TICKS = [300, 600, 1800, 3600, 10800, 21600, 43200, 86400, 172800, 432000];
const MOST_ROWS = 2000; // of the table
const HIGH = 24, BAR = 17, TOP = 22, REDRAWN_MS = 5000, SLICE_MS = 12;
const list = listPage({ path: "/timeline", filters: ["by", "node", "user", "pool"], follow: () => follow() });
const { query } = list;
const NOUNS = { gpu: "GPU", job: "job", pool: "pool", node: "node" }, PLACES = new Set(["gpu", "pool", "node"]);
/** What a lane is of: if the address does not say it, a large cluster is shown by pools. */
const by = () => (Object.hasOwn(NOUNS, query.get("by") ?? "") ? query.get("by") : query.get("node") || query.get("user") ? "gpu" : byId("filters").dataset.by);
const at = { lane: 0, span: -1 }; // where the keyboard is; span -1 is the lane itself
const back = document.createElement("canvas"); // all lanes; what the pointer and the keyboard are on is drawn over a copy
let found = null, following = null, lostAt = 0, canvas = null, over = null, pending = false, width = 0, painting = 0, whole = false;

function follow() {
  following?.close();
  showFields();
  const asked = new URLSearchParams(query);
  asked.set("by", by());
  following = stream(`/stream/timeline?${asked}`, {
    timeline: (told) => { lostAt = 0; setAway(null); found = told; if (!strips()) found.lanes.forEach(stack); show(); },
    away: ({ words }) => { lostAt ||= now(); setAway({ since: lostAt, words }); },
    refused: ({ words }) => {
      found = null; byId("panel").hidden = true; byId("count").textContent = "";
      for (const id of ["empty", "notices", "pages"]) { byId(id).madeOf = undefined; byId(id).replaceChildren(); }
      byId("notices").append(h("p", { class: "notice" }, words));
    },
  });
}

/** Puts shares of a GPU that jobs have at the same time above each other. */
function stack(lane) {
  const shares = found.by === "gpu" ? lane.spans.filter((span) => span.count === 1 && span.gpus > 0 && span.gpus < 1 && span.doing !== "booked") : [];
  let going = [];
  for (const span of shares) {
    going = going.filter((one) => (one.end ?? Infinity) > span.start);
    span.above = 0;
    for (const one of going.sort((a, b) => a.above - b.above)) if (one.above < span.above + span.gpus - 0.001 && span.above < one.above + one.gpus - 0.001) span.above = one.above + one.gpus;
    going.push(span);
  }
}

/** Whether lanes are strips of pools or nodes, and how many places the keyboard can stop at in one. */
const strips = () => found.by === "pool" || found.by === "node";
const stopsOf = (lane) => (strips() ? partsOf(lane) : lane.spans.length);
/** Up to where what goes on is drawn. */
const edge = () => found.edge ?? now();
const endOf = (span) => span.end ?? Math.max(span.start, edge());

function show() {
  const none = !found.lanes.length, noun = NOUNS[found.by];
  list.showPages(found, noun);
  if (found.done < 1) byId("count").textContent += `; the journal is being read: ${Math.round(100 * found.done)} %`;
  byId("panel").hidden = none;
  put(byId("notices"), [found.problem, found.known_since], () => [
    found.problem ? h("p", { class: "notice" }, `The timeline is not kept now, and nothing else is affected: ${found.problem}`) : null,
    found.known_since ? h("p", { class: "notice" }, `Known from ${clock(found.known_since, false)} on: of jobs that had ended before, the journal had been compacted.`) : null]);
  put(byId("empty"), [none, found.by, String(query)], () => (!none ? [] : list.filtered() || query.get("since")
    ? h("div", { class: "empty" }, h("p", {}, `No ${noun} in this window is like that.`), h("a", { href: `${base}/timeline` }, "Show all"))
    : empty(PLACES.has(found.by) ? "There were no nodes in this window. This starts a cluster on a machine with GPUs:" : "There were no jobs in this window. This submits one:", PLACES.has(found.by) ? "ebb up" : "ebb submit --gpus 1 -- python train.py")));
  if (none) return;
  byId("lanes-title").textContent = `${clock(found.since, false)} to ${clock(found.until, false)}`;
  put(byId("moves"), [found.since, found.until, String(query)], moves);
  at.lane = Math.min(at.lane, found.lanes.length - 1);
  at.span = Math.min(at.span, stopsOf(found.lanes[at.lane]) - 1);
  byId("colours").hidden = strips();
  if (!canvas) makeCanvas();
  canvas.setAttribute("aria-label", `Timeline of ${plural(found.lanes.length, noun)}. Up and down choose a lane, left and right a ${strips() ? "time, Enter shows its nodes or GPUs" : "span, Enter opens its job"}. The table below has the same.`);
  draw();
  showTable();
}

// --- other windows ---

function moves() {
  const length = found.until - found.since, to = (since, until, words) => h("a", { href: list.href({ window: "", since: String(Math.round(since)), until: String(Math.round(until)) }) }, words);
  return [to(found.since - length / 2, found.until - length / 2, "Earlier"), to(found.since + length / 2, found.until + length / 2, "Later"),
    length >= 240 ? to(found.live ? found.since + length / 2 : found.since + length / 4, found.live ? found.until : found.until - length / 4, "Closer") : null, found.live ? null : h("a", { href: list.href({ since: "", until: "" }) }, "Now")];
}

// --- the drawing ---

function makeCanvas() {
  canvas = h("canvas", { class: "map", tabindex: 0, role: "application", onkeydown: move, onfocus: point, onblur: point,
    onclick: (event) => { const hit = hitBy(event); if (hit && (hit.span >= 0 || strips())) { Object.assign(at, hit); open(hit); } },
    onmousemove: (event) => { const hit = hitBy(event); if (hit?.lane !== over?.lane || hit?.span !== over?.span) { over = hit; tell(hit); point(); } },
    onmouseleave: () => { over = null; tell(null); point(); } });
  byId("lanes").replaceChildren(canvas);
  byId("colour").addEventListener("change", draw);
  document.addEventListener("themed", draw);
  new ResizeObserver(draw).observe(byId("lanes"));
  setInterval(() => { if (found?.live && found.lanes.length && !document.hidden) draw(); }, REDRAWN_MS); // the right edge
  const details = h("details", { class: "as-table", ontoggle: showTable }, h("summary", {}, "The same as a table"), scroller("Spans"));
  byId("table").replaceChildren(details);
}

function draw() {
  if (!canvas || pending || !found?.lanes.length) return;
  pending = true;
  requestAnimationFrame(() => { pending = false; paint(); });
}

const left = () => (width < 560 ? 92 : 150);
const x = (seconds) => left() + ((Math.min(Math.max(seconds, found.since), found.until) - found.since) / (found.until - found.since)) * (width - left());
const labelOf = (lane) => (strips() ? (width < 560 ? titleOf(lane) : `${titleOf(lane)} · ${plural(lane.gpus, "GPU")}`) : lane.job ? `${lane.job} ${lane.name}` : `${lane.node} · ${lane.gpu}`);
const FAINT = { waiting: 0.25, held: 0.25, suspended: 0.4, starting: 0.55, leaving: 0.55, foreign: 0.4, unavailable: 0.4 };
const REST = new Set(["foreign", "unavailable"]), EMPTY = new Set(["waiting", "held", "suspended"]);

function paint() {
  const scale = window.devicePixelRatio || 1, high = TOP + HIGH * found.lanes.length, mine = ++painting, it = found;
  width = byId("lanes").clientWidth;
  back.width = Math.round(width * scale); back.height = Math.round(high * scale);
  const pen = back.getContext("2d"), style = getComputedStyle(document.documentElement), colour = (name) => style.getPropertyValue(name).trim();
  const inks = { text: colour("--text"), dim: colour("--dim"), line: colour("--line"), strong: colour("--strong"), accent: colour("--accent"), foreign: colour("--c-foreign"), unavailable: colour("--c-unreachable"), rest: colour("--c-rest"), panel: colour("--panel"), allocated: colour("--c-allocated") };
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.textBaseline = "middle";
  pen.font = "11.5px system-ui, sans-serif";
  axis(pen, inks, high);
  const some = (from) => { // 20,000 spans take longer than anybody who types or scrolls should wait
    if (mine !== painting || it !== found) return;
    whole = from >= it.lanes.length;
    if (whole) { point(); return; } // the copy has a frame of its own
    const ends = performance.now() + SLICE_MS;
    let number = from;
    for (; number < it.lanes.length && performance.now() < ends; number++) paintLane(pen, inks, it.lanes[number], TOP + number * HIGH);
    requestAnimationFrame(() => some(number));
  };
  whole = false;
  some(0);
  if (strips()) put(byId("keys"), found.by, stripKeys);
  else put(byId("keys"), [found.by, byId("colour").value, [...kinds()]], keys);
}

/** Shows the lanes, with what the pointer and the keyboard are on; a painting that is under way does so at its end. */
function point() {
  if (!whole) return;
  if (canvas.width !== back.width || canvas.height !== back.height) { canvas.width = back.width; canvas.height = back.height; }
  const scale = window.devicePixelRatio || 1, high = back.height / scale, pen = canvas.getContext("2d"), accent = getComputedStyle(document.documentElement).getPropertyValue("--accent").trim();
  canvas.style.height = `${Math.round(high)}px`;
  pen.setTransform(1, 0, 0, 1, 0, 0);
  pen.clearRect(0, 0, canvas.width, canvas.height);
  pen.drawImage(back, 0, 0);
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.strokeStyle = accent; pen.lineWidth = 1;
  if (edge() < found.until) line(pen, x(edge()), TOP - 4, high);
  pen.lineWidth = 2;
  for (const where of [over, document.activeElement === canvas ? at : null]) if (where) outline(pen, where);
}

function line(pen, from, top, bottom) { pen.beginPath(); pen.moveTo(Math.round(from) + 0.5, top); pen.lineTo(Math.round(from) + 0.5, bottom); pen.stroke(); }

function axis(pen, inks, high) {
  const seconds = found.until - found.since, room = Math.max(2, Math.floor((width - left()) / 80)), step = TICKS.find((one) => seconds / one <= room) ?? TICKS.at(-1);
  const shift = -new Date(found.since * 1000).getTimezoneOffset() * 60, pad = (value) => String(value).padStart(2, "0");
  pen.strokeStyle = inks.line; pen.fillStyle = inks.dim; pen.textAlign = "center"; pen.lineWidth = 1;
  for (let moment = Math.ceil((found.since + shift) / step) * step - shift; moment <= found.until; moment += step) {
    const day = new Date(moment * 1000), midnight = !day.getHours() && !day.getMinutes(), place = x(moment);
    line(pen, place, TOP - 4, high);
    pen.fillText(midnight ? `${pad(day.getMonth() + 1)}-${pad(day.getDate())}` : `${pad(day.getHours())}:${pad(day.getMinutes())}`, Math.min(Math.max(place, left() + 18), width - 18), 9);
  }
  pen.textAlign = "left";
}

function paintLane(pen, inks, lane, top) {
  pen.fillStyle = inks.text;
  cut(pen, labelOf(lane), 0, top + HIGH / 2, left() - 8);
  pen.strokeStyle = inks.line;
  if (strips()) paintStrip(pen, inks, found, lane, { top: top + 3, high: BAR - 1, x });
  pen.strokeRect(left() + 0.5, top + 2.5, width - left() - 1, BAR);
  if (strips()) return;
  const layer = (span) => (REST.has(span.doing) ? 0 : span.doing === "booked" ? 2 : 1);
  for (const number of [0, 1, 2]) for (const span of lane.spans) if (layer(span) === number) paintSpan(pen, inks, span, top + 3);
}

function paintSpan(pen, inks, span, top) {
  const from = x(span.start), wide = Math.max(1, x(endOf(span)) - from), mine = COLOURS[colourOf(byId("colour").value === "job" ? span.job : span.user)];
  const tall = span.above === undefined ? BAR : Math.max(3, BAR * span.gpus), low = top + BAR - (span.above ?? 0) * BAR;
  if (wide < 8 && tall === BAR && span.doing !== "booked") { // too narrow for a pattern, and there may be very many
    pen.fillStyle = REST.has(span.doing) ? inks[span.doing] : span.doing === "several" ? inks.rest : mine;
    pen.globalAlpha = FAINT[span.doing] ?? 1;
    pen.fillRect(from, top, wide, BAR - 1);
    pen.globalAlpha = 1;
    return;
  }
  pen.save();
  pen.beginPath(); pen.rect(from, top, wide, BAR - 1); pen.clip();
  const fill = REST.has(span.doing) ? inks[span.doing] : span.doing === "several" ? inks.rest : mine;
  pen.fillStyle = pen.strokeStyle = fill; pen.lineWidth = 1.4;
  if (span.doing === "booked") { pen.strokeStyle = inks.text; hatch(pen, from, top, wide, 8, 1); }
  else if (EMPTY.has(span.doing)) { if (span.doing === "suspended") hatch(pen, from, top, wide, 5, -1); pen.lineWidth = 3; pen.setLineDash(span.doing === "held" ? [3, 3] : []); pen.strokeRect(from, top, wide, BAR - 1); }
  else if (REST.has(span.doing)) { pen.globalAlpha = 0.4; pen.fillRect(from, top, wide, BAR); if (span.doing === "foreign") { pen.globalAlpha = 1; hatch(pen, from, top, wide, 4, 1); } }
  else { pen.globalAlpha = FAINT[span.doing] ?? 1; pen.fillRect(from, low - tall, wide, tall - (tall < BAR ? 1 : 0)); if (span.doing === "leaving") { pen.globalAlpha = 1; hatch(pen, from, top, wide, 6, -1); } }
  pen.globalAlpha = 1;
  if (wide > 30 && tall > 12 && !REST.has(span.doing)) label(pen, inks, span, from, top, wide, fill);
  pen.restore();
}

function label(pen, inks, span, from, top, wide, fill) {
  const words = span.count > 1 ? `${span.count}` : span.doing === "booked" ? `reserved for ${span.user}` : found.by === "gpu" ? `${span.job} ${span.name} ${span.user}` : WORDS[span.doing];
  const open = EMPTY.has(span.doing) || span.doing === "booked";
  if (open) { pen.fillStyle = inks.panel; pen.fillRect(from + 4, top + 2, Math.min(wide - 8, pen.measureText(words).width + 4), BAR - 5); }
  pen.fillStyle = open ? inks.text : inkOn(fill);
  cut(pen, words, from + 6, top + BAR / 2, wide - 12);
}

function hatch(pen, from, top, wide, gap, slope) {
  pen.beginPath();
  const begin = Math.max(from, left()) - BAR, end = Math.min(from + wide, width) + BAR;
  for (let place = Math.floor(begin / gap) * gap; place < end; place += gap) { pen.moveTo(place, slope > 0 ? top + BAR : top); pen.lineTo(place + BAR, slope > 0 ? top : top + BAR); }
  pen.stroke();
}

/** Black or white, whichever is easier to read on a colour. */
function inkOn(fill) {
  const [red, green, blue] = [1, 3, 5].map((place) => Number.parseInt(fill.slice(place, place + 2), 16) || 0);
  return 0.299 * red + 0.587 * green + 0.114 * blue > 125 ? "#10161a" : "#ffffff";
}

function cut(pen, text, from, middle, wide) {
  if (wide < 12) return;
  let fits = text.slice(0, 200);
  if (pen.measureText(fits).width > wide) {
    while (fits && pen.measureText(`${fits}…`).width > wide) fits = fits.slice(0, Math.min(fits.length - 1, Math.floor(fits.length * 0.9)));
    fits = fits && `${fits}…`;
  }
  pen.fillText(fits, from, middle);
}

function outline(pen, { lane, span }) {
  const top = TOP + lane * HIGH, part = (found.until - found.since) / (found.parts ?? 1);
  const one = strips() ? span >= 0 && { start: found.since + span * part, end: found.since + (span + 1) * part } : found.lanes[lane]?.spans[span];
  if (one) pen.strokeRect(x(one.start) - 1, top + 1, Math.max(3, x(endOf(one)) - x(one.start) + 2), BAR + 3);
  else if (found.lanes[lane]) pen.strokeRect(1, top + 1, width - 2, BAR + 3);
}

function kinds() {
  const there = new Set();
  for (const lane of found.lanes) for (const span of lane.spans) there.add(span.doing);
  return there;
}

function keys() {
  const there = kinds();
  return [...Object.keys(WORDS).filter((name) => there.has(name)).map((name) => h("li", {}, h("span", { class: `key l-${name}`, "aria-hidden": "true" }), WORDS[name])),
    h("li", {}, `the colour is that of the ${byId("colour").value}`)];
}

// --- what is under the pointer or the focus ---

function hitBy(event) {
  const box = canvas.getBoundingClientRect(), lane = Math.floor((event.clientY - box.top - TOP) / HIGH), place = event.clientX - box.left;
  if (lane < 0 || lane >= found.lanes.length) return null;
  if (strips()) {
    const part = Math.floor(((place - left()) / (width - left())) * found.parts);
    return { lane, span: place < left() || part >= partsOf(found.lanes[lane]) ? -1 : part };
  }
  const spans = found.lanes[lane].spans;
  const hits = spans.map((one, number) => [one, number]).filter(([one]) => place >= x(one.start) - 1 && place <= Math.max(x(one.start) + 1, x(endOf(one))) + 1);
  const [, span] = hits.find(([one]) => !REST.has(one.doing) && one.doing !== "booked") ?? hits[0] ?? [null, -1];
  return { lane, span };
}

const gpusOf = (span) => (span.gpus ? `${+span.gpus.toFixed(2)} GPU${span.gpus === 1 ? "" : "s"}` : "");

function wordsOf({ lane, span }) {
  if (strips()) return stripWords(found, found.lanes[lane], span);
  const one = found.lanes[lane], it = one.spans[span], whose = one.job ? `job ${one.job} ${one.name} of ${one.user}` : `GPU ${one.gpu} of ${one.node}`;
  if (!it) return `${whose}: ${plural(one.spans.length, "span")}${one.shortened ? ", and more" : ""}`;
  const what = it.count > 1 ? `${it.count} short spans${it.job ? ` of job ${it.job}` : ""}${it.user ? ` of ${it.user}` : ""}` : it.doing === "booked" ? `reserved for ${it.user}` : it.job ? `job ${it.job} ${it.name} of ${it.user}, ${WORDS[it.doing]}` : WORDS[it.doing];
  return `${whose}: ${what}, ${clock(it.start)} to ${it.end === null ? "now" : clock(it.end)} (${duration(endOf(it) - it.start)})${it.why ? `, then ${it.why}` : ""}`;
}

/** Says what is under the pointer, else under the keyboard. */
function tell(pointer) {
  const where = pointer ?? (document.activeElement === canvas ? at : null);
  byId("words").textContent = where ? wordsOf(where) : "";
}

/** Shows the nodes of a pool, or the GPUs of a node. */
const expand = (lane) => list.go(lane.node ? { by: "gpu", node: lane.node, pool: "" } : { by: "node", pool: lane.pool });

/** Opens the job of a span, looks closer at merged ones, or shows what a strip sums up. */
function open({ lane, span }) {
  if (strips()) { expand(found.lanes[lane]); return; }
  const it = found.lanes[lane].spans[span];
  if (!it || it.doing === "booked") return;
  if (it.job) { location.assign(`${base}/jobs/${encodeURIComponent(it.job)}`); return; }
  if (it.count > 1) { const room = Math.max(30, (endOf(it) - it.start) / 4); list.go({ window: "", since: String(Math.floor(it.start - room)), until: String(Math.ceil(endOf(it) + room)) }); }
}

function move(event) {
  const stops = stopsOf(found.lanes[at.lane]), lanes = found.lanes.length;
  const to = { ArrowUp: [at.lane - 1, -1], ArrowDown: [at.lane + 1, -1], ArrowLeft: [at.lane, at.span - 1], ArrowRight: [at.lane, at.span + 1], Home: [at.lane, 0], End: [at.lane, stops - 1] }[event.key];
  if (event.key === "Enter") { event.preventDefault(); open(at); return; }
  if (!to) return;
  event.preventDefault();
  at.lane = Math.min(lanes - 1, Math.max(0, to[0]));
  at.span = Math.min(stopsOf(found.lanes[at.lane]) - 1, Math.max(-1, to[1]));
  tell(at); say(wordsOf(at)); point();
  const top = canvas.getBoundingClientRect().top + TOP + at.lane * HIGH;
  if (top < 80 || top > innerHeight - 120) scrollBy(0, top - innerHeight / 2);
}

// --- the table ---

function showTable() {
  const details = byId("table").firstElementChild;
  if (!details?.open || !found) return;
  if (strips()) { put(details.lastElementChild, [found.lanes, found.since], () => stripTable(found, expand)); return; }
  const gpu = found.by === "gpu", all = found.lanes.flatMap((lane) => lane.spans.map((span) => [lane, span]));
  put(details.lastElementChild, [found.lanes, found.edge], () => [h("table", { class: "spans" },
    h("thead", {}, h("tr", {}, [gpu ? "GPU" : "Job", gpu ? "Job" : null, "User", "What", "From", "To", "GPUs", "Why it ended"].filter((title) => title).map((title) => h("th", { scope: "col" }, title)))),
    h("tbody", {}, all.slice(0, MOST_ROWS).map(([lane, span]) => h("tr", {},
      h("th", { scope: "row" }, gpu ? [h("a", { href: `${base}/nodes/${encodeURIComponent(lane.node)}` }, lane.node), ` · ${lane.gpu}`] : jobLink(lane.job, `${lane.job} ${lane.name}`)),
      gpu ? h("td", {}, span.doing === "booked" ? `reservation ${span.job}` : span.job ? jobLink(span.job, `${span.job} ${span.name}`) : "–") : null,
      h("td", {}, span.user || "–"), h("td", {}, span.count > 1 ? `${WORDS[span.doing]} (${span.count} spans)` : WORDS[span.doing]), h("td", {}, time(span.start)), h("td", {}, span.end === null ? "goes on" : time(span.end)), h("td", { class: "number" }, gpusOf(span)), h("td", {}, span.why))))),
    all.length > MOST_ROWS ? h("p", { class: "dim" }, `The first ${MOST_ROWS.toLocaleString("en")} of ${all.length.toLocaleString("en")} spans: choose a node, a user or a shorter window.`) : null]);
}

// --- filters ---

/** Shows the filters of the address in the fields. */
function showFields() {
  for (const name of ["node", "user", "pool"]) byId(`f-${name}`).value = query.get(name) ?? "";
  byId("f-by").value = by();
  byId("f-node").closest("label").hidden = by() === "pool";
  const chosen = Number(query.get("until")) > Number(query.get("since")) && Number(query.get("since")) > 0;
  byId("window").value = chosen ? "" : Object.hasOwn(WINDOWS, query.get("window") ?? "") ? query.get("window") : "6h";
  for (const [id, name] of [["from", "since"], ["to", "until"]]) byId(id).value = chosen ? localTime(Number(query.get(name))) : "";
  byId("clear").hidden = !list.filtered() && !chosen && !query.get("window");
}

byId("window").addEventListener("change", (event) => {
  if (event.target.value) list.go({ window: event.target.value, since: "", until: "" });
  else if (found) list.go({ window: "", since: String(Math.round(found.since)), until: String(Math.round(found.until)) });
});
/** A time that is chosen makes the other one follow, so that there is always a window. */
for (const [id, name, other, sign] of [["from", "since", "until", 1], ["to", "until", "since", -1]]) byId(id).addEventListener("change", (event) => {
  if (!event.target.value) { list.go({ since: "", until: "" }); return; }
  const chosen = Date.parse(event.target.value) / 1000, length = found ? found.until - found.since : 21600, kept = Number(query.get(other));
  const fits = kept > 0 && sign * (kept - chosen) >= 60 && sign * (kept - chosen) <= 31 * 86400;
  list.go({ window: "", [name]: String(chosen), [other]: String(fits ? kept : chosen + sign * length) });
});
follow();
