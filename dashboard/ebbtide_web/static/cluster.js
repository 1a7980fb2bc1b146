// The page of the cluster: sums, a card for each GPU or a map of many, and who is next.
import { base, byId, bytes, counting, empty, frames, gpuCount, gpuShare, h, jobLink, keep, linked, now, plural, put, read, say, scroller, short, state, svg } from "./app.js";
import { COLOURS, colourOf } from "./colours.js";
import { gpuSections } from "./gpu_sections.js";

const STATES = ["allocated", "idle", "foreign", "quarantined", "unhealthy", "unreachable"];
const history = new Map(); // by GPU: how it was used, the last readings

// --- sums ---

const tile = (title, value, more, kind = "") =>
  h("div", { class: `tile ${kind}` }, h("p", { class: "what" }, title), h("p", { class: "value" }, value), h("p", { class: "more" }, more));

function showSums(sums) {
  const gpus = sums.gpus, of = (name) => gpus[name] ?? 0, many = (count) => count.toLocaleString("en");
  const aside = of("quarantined") + of("unhealthy") + of("unreachable");
  const jobs = sums.jobs, runs = (jobs.RUNNING ?? 0) + (jobs.STARTING ?? 0), rests = jobs.SUSPENDED ?? 0;
  put(byId("tiles"), [gpus, sums.total, jobs, sums.oldest, sums.block, sums.nodes, sums.waiting, sums.held], () => [
    tile("GPUs in use", [many(of("allocated")), h("small", {}, ` of ${sums.total.toLocaleString("en")}`)], `on ${plural(sums.nodes, "node")}`),
    tile("Idle", many(of("idle")), sums.block ? `at most ${sums.block.gpus} together, on ${sums.block.node}` : "none together"),
    tile("Set aside", many(aside + of("foreign")), aside + of("foreign") ? STATES.slice(2).filter(of).map((name) => `${many(of(name))} ${name}`).join(", ") : "all GPUs are on offer", aside ? "warn" : ""),
    tile("Running", many(runs), rests ? `${plural(rests, "job")} suspended` : "no job is suspended"),
    tile("Waiting", many(sums.waiting), sums.oldest ? ["the longest ", counting(0, sums.oldest.since, true), ": ", jobLink(sums.oldest.id, `job ${sums.oldest.id}`), sums.held ? `; ${many(sums.held)} held` : null] : sums.held ? `${many(sums.held)} held` : "no job waits"),
  ]);
  put(byId("share"), [gpus], () => {
    if (!sums.total) return [];
    const bar = h("div", { class: "bar-of", "aria-hidden": "true" }, STATES.filter(of).map((name) => {
      const part = h("span", { class: `fill f-${name}` });
      part.style.flexGrow = String(of(name));
      return part;
    }));
    return [bar, h("ul", { class: "legend" }, STATES.filter(of).map((name) => h("li", {}, state(name), ` ${many(of(name))}`)))];
  });
  const notices = sums.notices;
  put(byId("notices"), notices, () => [
    notices.quiesced ? h("p", { class: "notice" }, "The cluster has been stopped: nothing starts before the next ‘ebb up’.") : null,
    notices.recovering && !notices.quiesced ? h("p", { class: "notice" }, "The master waits for nodes that had jobs, and starts nothing until they answer, or for 30 s.") : null,
    notices.doubted.length ? h("p", { class: "notice" }, `${notices.doubted.join(", ")} fell silent together: perhaps it is the master that is cut off. ‘ebb node believe-silence’ says that it is not.`) : null,
  ]);
}

function showNext(head) {
  put(byId("next"), head, () => head.length === 0
    ? h("p", { class: "empty small" }, "No job waits.")
    : h("ol", { class: "next" }, head.map((job) => h("li", {},
      h("p", {}, jobLink(job.id, [h("b", {}, job.id), " ", job.name]), h("span", { class: "dim" }, ` ${job.user}`)),
      h("p", { class: "dim small" }, `${gpuCount(job.gpus)}, waits `, counting(0, job.since, true), job.reason ? [": ", linked(job.reason)] : null)))));
}

// --- few GPUs: a card each ---

function makeNode(key) {
  const head = h("div", { class: "node-head" }), cards = h("div", { class: "cards" });
  return Object.assign(h("section", { class: "node", "aria-label": `Node ${key.slice(5)}` }, head, cards), { head, cards });
}

function updateNode(element, node, several) {
  put(element.head, [node.state, node.reason, node.cpus, node.mem, node.pool, several, node.seen], () => [
    h("h3", {}, node.name),
    node.state === "up" ? null : state(node.state),
    node.state === "down" && node.seen ? h("span", { class: "dim" }, "silent for ", counting(0, node.seen, true)) : null,
    node.reason ? h("span", { class: "dim" }, node.reason) : null,
    several ? h("span", { class: "dim" }, `pool ${node.pool}`) : null,
    h("span", { class: "dim" }, `${+node.cpus[0].toFixed(1)} of ${+node.cpus[1].toFixed(1)} CPUs, ${bytes(node.mem[0])} of ${bytes(node.mem[1])} memory booked`),
  ]);
  keep(element.cards, node.gpus.map((gpu) => gpu.uuid), () => h("article", { class: "card" }), (card, uuid) => {
    const gpu = node.gpus.find((one) => one.uuid === uuid);
    if (gpu.use !== null) {
      const past = history.get(uuid) ?? [];
      if (card.seen !== gpu) { past.push(gpu.use); if (past.length > 60) past.shift(); history.set(uuid, past); card.seen = gpu; }
    }
    put(card, [gpu, node.name], () => cardOf(gpu, node));
  });
  if (!node.gpus.length) put(element.cards, "none", () => h("p", { class: "dim small" }, "No GPUs: jobs that need none run here."));
}

function cardOf(gpu, node) {
  const known = gpu.used !== null && gpu.mem;
  const ours = gpu.jobs.reduce((sum, job) => sum + (job.used ?? 0), 0);
  const bar = h("div", { class: "memory", "aria-hidden": "true" });
  for (const job of gpu.jobs) if (job.used && gpu.mem) bar.append(part(job.used / gpu.mem, `fill j${colourOf(job.id)}`));
  if (known && gpu.used > ours) bar.append(part((gpu.used - ours) / gpu.mem, gpu.state === "foreign" ? "fill f-foreign" : "fill f-rest"));
  return [
    h("div", { class: "card-head" },
      h("h4", {}, h("button", { type: "button", class: "plain", "aria-label": `GPU ${gpu.index} of ${node.name}: details`, onclick: () => details(node.name, gpu.index) }, `GPU ${gpu.index}`)),
      h("span", { class: "dim model", title: gpu.model }, gpu.model), state(gpu.state)),
    bar,
    h("p", { class: "reading" },
      h("span", {}, known ? `${bytes(gpu.used)} of ${bytes(gpu.mem)}` : `${bytes(gpu.mem)}, use not known`),
      h("span", { class: "right" }, gpu.use === null ? null : [spark(history.get(gpu.uuid) ?? []), `${Math.round(100 * gpu.use)} %`],
        gpu.temp === null ? null : ` · ${gpu.temp} °C`, gpu.power === null ? null : ` · ${Math.round(gpu.power)} W`)),
    gpu.jobs.length ? h("ul", { class: "holders" }, gpu.jobs.map((job) => h("li", {},
      h("span", { class: `chip j${colourOf(job.id)}`, "aria-hidden": "true" }), jobLink(job.id, [h("b", {}, job.id), " ", job.name]),
      h("span", { class: "dim" }, ` ${job.user}${job.share < 1 ? `, share ${gpuShare(job.share)}` : ""}`)))) : null,
    gpu.why ? h("p", { class: "small warn-words" }, gpu.why) : null,
    gpu.reserved ? h("p", { class: "small dim" }, gpu.reserved) : null,
    !gpu.jobs.length && !gpu.why && gpu.state === "idle" && !gpu.reserved ? h("p", { class: "small dim" }, "Nothing runs here.") : null,
  ];
}

function part(size, kind) {
  const found = h("span", { class: kind });
  found.style.width = `${Math.min(100, Math.max(0.6, 100 * size))}%`;
  return found;
}

function spark(values) {
  if (values.length < 2 || Math.max(...values) < 0.005) return null;
  const width = 56, height = 14;
  const points = values.map((value, at) => `${(width - (values.length - 1 - at) * (width / 59)).toFixed(1)},${(height - 1 - value * (height - 2)).toFixed(1)}`).join(" ");
  return svg("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" },
    svg("polyline", { points, fill: "none", stroke: "currentColor", "stroke-width": "1.3" }));
}

// --- many GPUs: a map ---

const map = { nodes: [], by: "state", text: "", at: 0, canvas: null, columns: 1 };
const STATE_NUMBERS = { 1: "allocated", 2: "idle", 3: "foreign", 4: "quarantined", 5: "unhealthy", 6: "unreachable" };

function unpacked(node) {
  if (node.cells) return node.cells;
  const raw = atob(node.packed), cells = [];
  for (let at = 0; at < raw.length; at += 8) {
    const byte = (offset) => raw.charCodeAt(at + offset);
    cells.push({ state: STATE_NUMBERS[byte(0)], use: byte(1), memory: byte(2), share: byte(3), holder: byte(4) * 2 ** 24 + byte(5) * 65536 + byte(6) * 256 + byte(7) });
  }
  node.who = new Map(node.holders.map(([number, id, user, name]) => [number, { id, user, name }]));
  return (node.cells = cells);
}

function makeMap() {
  const choice = h("select", { onchange: (event) => { map.by = event.target.value; draw(); } },
    [["state", "state"], ["use", "use"], ["memory", "memory"], ["user", "user"], ["job", "job"]].map(([value, words]) => h("option", { value }, words)));
  const search = h("input", { type: "search", placeholder: "Job, user or node", maxlength: 64, oninput: (event) => { map.text = event.target.value.trim().toLowerCase(); draw(); } });
  byId("tools").replaceChildren(h("label", {}, "Colour by ", choice), h("label", {}, h("span", { class: "unseen" }, "Light up"), search));
  map.canvas = h("canvas", { class: "map", tabindex: 0, role: "application", "aria-label": "Map of all GPUs by node. Arrow keys move, Enter opens a node.",
    onkeydown: move, onclick: (event) => { const found = hit(event); if (found >= 0) { map.at = found; draw(); details(map.nodes[found].name); } },
    onmousemove: (event) => { const found = hit(event); if (found !== map.over) { map.over = found; tell(found); draw(); } },
    onmouseleave: () => { map.over = -1; tell(-1); draw(); }, onfocus: () => draw(), onblur: () => draw() });
  map.words = h("p", { class: "map-words dim small" }, "");
  byId("nodes").replaceChildren(map.canvas, map.words);
  byId("nodes").kept = undefined;
  const table = h("details", { class: "as-table", ontoggle: () => showTable(table) }, h("summary", {}, "The same as a table"), scroller("Nodes"));
  map.table = table;
  byId("table").replaceChildren(table);
  new ResizeObserver(() => draw()).observe(byId("nodes"));
  document.addEventListener("themed", () => draw());
}

function geometry() {
  const few = map.nodes.length <= 160, cell = few ? 12 : 8, gap = 1, wide = 4 * (cell + gap), high = Math.max(1, ...map.nodes.map((node) => Math.ceil(unpacked(node).length / 4))) * (cell + gap);
  const width = byId("nodes").clientWidth, label = few ? 14 : 0, stepX = wide + (few ? 14 : 7), stepY = high + label + (few ? 10 : 6);
  const columns = Math.max(1, Math.floor((width + 7) / stepX));
  return { few, cell, gap, label, stepX, stepY, columns, width, height: Math.ceil(map.nodes.length / columns) * stepY };
}

function draw() {
  if (!map.canvas || map.pending) return;
  map.pending = true;
  requestAnimationFrame(() => { map.pending = false; paint(); });
}

function paint() {
  const shape = (map.shape = geometry()), scale = window.devicePixelRatio || 1, canvas = map.canvas;
  if (canvas.width !== Math.round(shape.width * scale) || canvas.height !== Math.round(shape.height * scale)) {
    canvas.width = Math.round(shape.width * scale); canvas.height = Math.round(shape.height * scale);
    canvas.style.height = `${shape.height}px`;
  }
  const pen = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
  const colour = Object.fromEntries(["allocated", "idle", "foreign", "quarantined", "unhealthy", "unreachable", "text", "dim", "accent", "rest"].map((name) => [name, style.getPropertyValue(`--c-${name}`).trim()]));
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, shape.width, shape.height);
  pen.font = "10px system-ui, sans-serif";
  const focused = document.activeElement === canvas;
  map.nodes.forEach((node, number) => {
    const x = (number % shape.columns) * shape.stepX, y = Math.floor(number / shape.columns) * shape.stepY;
    if (shape.label) { pen.globalAlpha = 1; pen.fillStyle = colour.dim; pen.fillText(node.name, x, y + 10, shape.stepX - 6); }
    const named = map.text && node.name.toLowerCase().includes(map.text);
    unpacked(node).forEach((cell, at) => {
      const who = node.who.get(cell.holder);
      const lit = !map.text || named || (who && (who.id === map.text || who.user.toLowerCase().includes(map.text) || who.name.toLowerCase().includes(map.text)));
      pen.globalAlpha = lit ? 1 : 0.15;
      pen.fillStyle = fill(cell, who, colour);
      pen.fillRect(x + (at % 4) * (shape.cell + shape.gap), y + shape.label + Math.floor(at / 4) * (shape.cell + shape.gap), shape.cell, shape.cell);
    });
    if (number === map.over || (focused && number === map.at)) {
      pen.globalAlpha = 1; pen.strokeStyle = colour.accent; pen.lineWidth = 2;
      pen.strokeRect(x - 2, y + shape.label - 2, 4 * (shape.cell + shape.gap) + 3, shape.stepY - shape.label - (shape.few ? 7 : 3));
    }
  });
  pen.globalAlpha = 1;
}

function fill(cell, who, colour) {
  if (map.by === "state" || (cell.state !== "allocated" && !(map.by === "use" || map.by === "memory"))) return colour[cell.state] || colour.rest;
  if (map.by === "user") return who ? COLOURS[colourOf(who.user)] : colour.rest;
  if (map.by === "job") return who ? COLOURS[colourOf(who.id)] : colour.rest;
  const value = map.by === "use" ? cell.use : cell.memory;
  if (value === 255) return colour.idle;
  return `hsl(${200 - 1.6 * value} 75% ${document.documentElement.dataset.theme === "dark" ? 25 + value / 4 : 82 - value / 2.6}%)`;
}

function hit(event) {
  const box = map.canvas.getBoundingClientRect(), shape = map.shape;
  if (!shape) return -1;
  const column = Math.floor((event.clientX - box.left) / shape.stepX), row = Math.floor((event.clientY - box.top) / shape.stepY), number = row * shape.columns + column;
  return column < shape.columns && number < map.nodes.length ? number : -1;
}

function wordsOf(node) {
  const cells = unpacked(node), counts = STATES.map((name) => [name, cells.filter((cell) => cell.state === name).length]).filter(([, count]) => count);
  return `${node.name} (${node.state}): ${counts.map(([name, count]) => `${count} ${name}`).join(", ")}${node.holders.length ? `; ${node.holders.slice(0, 4).map(([, id, user, name]) => `job ${id} ${name} of ${user}`).join(", ")}` : ""}`;
}

function tell(number) { map.words.textContent = number >= 0 ? wordsOf(map.nodes[number]) : ""; }

function move(event) {
  const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -map.shape.columns, ArrowDown: map.shape.columns, Home: -map.nodes.length, End: map.nodes.length }[event.key];
  if (event.key === "Enter") { event.preventDefault(); details(map.nodes[map.at].name); return; }
  if (!step) return;
  event.preventDefault();
  map.at = Math.min(map.nodes.length - 1, Math.max(0, map.at + step));
  tell(map.at); say(wordsOf(map.nodes[map.at])); draw();
}

function showTable(table) {
  if (!table.open) return;
  put(table.lastElementChild, map.nodes.map((node) => [node.name, node.packed]), () => h("table", {},
    h("thead", {}, h("tr", {}, ["Node", "State", "Pool", "Model", "Allocated", "Idle", "Other", "Jobs"].map((title) => h("th", { scope: "col" }, title)))),
    h("tbody", {}, map.nodes.map((node) => {
      const cells = unpacked(node), of = (name) => cells.filter((cell) => cell.state === name).length;
      return h("tr", {}, h("th", { scope: "row" }, h("button", { type: "button", class: "plain", onclick: () => details(node.name) }, node.name)), h("td", {}, state(node.state)), h("td", {}, node.pool), h("td", {}, node.model),
        h("td", { class: "number" }, String(of("allocated"))), h("td", { class: "number" }, String(of("idle"))), h("td", { class: "number" }, String(cells.length - of("allocated") - of("idle"))),
        h("td", {}, node.holders.map(([, id]) => [jobLink(id), " "])));
    }))));
}

// --- one node in full ---

async function details(name, only = null) {
  const dialog = byId("details");
  const close = h("button", { type: "button", class: "close", "aria-label": "Close", onclick: () => dialog.close() }, "✕");
  const body = h("div", {}, h("p", { class: "dim" }, "Asking the master …"));
  dialog.replaceChildren(close, h("h2", { id: "details-title" }, only === null ? `Node ${name}` : `GPU ${only} of node ${name}`), body);
  if (!dialog.open) dialog.showModal();
  try {
    const place = `/nodes/${encodeURIComponent(name)}`, node = await read(`${place}/facts`);
    body.replaceChildren(h("p", {}, state(node.state), " ", node.reason, h("span", { class: "dim" }, ` Ebbtide ${node.version} · `), h("a", { href: `${base}${place}` }, "All about this node")),
      ...gpuSections(node.gpus, only));
  } catch (error) {
    body.replaceChildren(h("p", { class: "problem" }, error.message));
  }
}

// --- what comes ---

const NATURAL = new Intl.Collator("en", { numeric: true });
let known = 0;

frames("/stream/cluster", (cells, changed, full) => {
  const sums = cells.get("sums");
  if (!sums) return;
  showSums(sums);
  showNext(cells.get("head"));
  const keys = [...cells.keys()].filter((key) => key.startsWith("node:"));
  if (!full && keys.length !== known) keys.sort(NATURAL.compare); // all of them come in order, new ones at the end
  known = keys.length;
  if (!keys.length) {
    byId("nodes").kept = undefined; map.canvas = null;
    put(byId("nodes"), "empty", () => empty("There are no nodes yet. On a machine with GPUs, this starts a cluster, or lets the machine join one:", "ebb up\nebb agent join"));
    return;
  }
  byId("nodes").madeOf = undefined;
  if (sums.few) {
    if (map.canvas) { map.canvas = null; byId("tools").replaceChildren(); byId("table").replaceChildren(); byId("nodes").replaceChildren(); }
    if (!byId("nodes").kept) byId("nodes").replaceChildren();
    const several = sums.pools.length > 1;
    keep(byId("nodes"), keys, makeNode, (element, key) => updateNode(element, cells.get(key), several));
    return;
  }
  if (!map.canvas) makeMap();
  map.nodes = keys.map((key) => cells.get(key));
  map.at = Math.min(map.at, map.nodes.length - 1);
  draw();
  showTable(map.table);
});
