// The page of the nodes: filters in the address, and a row for each node that changes as it is.
import { base, byId, bytes, counting, empty, frames, h, jobLink, keep, now, plural, put, short, state } from "./app.js";
import { listPage } from "./list.js";

const TABS = [["all", "All"], ["idle", "With idle GPUs"], ["out", "Out of service"], ["problems", "With problems"], ["ended", "Ended"]];
const SORTS = [["", "name"], ["-idle", "most idle GPUs"], ["use", "least used"], ["-use", "most used"], ["state", "state"], ["pool", "pool"]];
const LETTERS = { a: "allocated", i: "idle", f: "foreign", q: "quarantined", u: "unhealthy", r: "unreachable" };
const STATES = ["allocated", "idle", "foreign", "quarantined", "unhealthy", "unreachable"];
const AT_ONCE = 24; // rows that are made without a break
let cells = new Map(), shown = [], body = null, following = null;

const list = listPage({ path: "/nodes", filters: ["q", "state", "pool", "sort"], sorts: SORTS, follow: () => follow() });

function follow() {
  following?.close();
  following = frames(`/stream/nodes?${list.query}`, (found) => { cells = found; show(); });
}

function show() {
  const page = cells.get("page");
  if (!page) return;
  shown = page.rows;
  const tab = list.query.get("show") ?? "all";
  list.showTabs(TABS, tab, page.tabs);
  list.showFilters(cells.get("facets"));
  list.showPages(page, "node");
  if (!shown.length) {
    byId("rows").kept = undefined; body = null;
    put(byId("rows"), ["none", list.filtered(), tab, page.tabs.all], () => list.filtered() ? h("div", { class: "empty" }, h("p", {}, "No node is like that."), h("a", { href: `${base}/nodes` }, "Show all"))
      : tab === "idle" ? empty("No node has an idle GPU.") : tab === "out" ? empty("No node is out of service.") : tab === "problems" ? empty("No node has a problem.") : tab === "ended" ? empty("No node has ended.")
        : empty("There are no nodes yet. On a machine with GPUs, this starts a cluster, or lets the machine join one:", "ebb up\nebb agent join"));
    return;
  }
  if (!body) {
    body = h("tbody", {});
    byId("rows").madeOf = undefined;
    byId("rows").replaceChildren(h("table", { class: "of-nodes" }, h("thead", {}, h("tr", {},
      ["Node", "State", "GPUs", "In use", "GPU memory", "CPUs and memory", "Jobs"].map((title) => h("th", { scope: "col" }, title)))), body));
  }
  fill(page.pools > 1);
}

/** Shows the rows some at a time, so that a page of a hundred never holds up what somebody types or scrolls. */
function fill(several) {
  const known = body.kept?.size ?? 0, most = Math.max(AT_ONCE, Math.min(shown.length, known + AT_ONCE));
  keep(body, shown.slice(0, most), makeRow, (row, name) => updateRow(row, cells.get(`row:${name}`), several));
  if (most < shown.length && !body.filling) {
    const filled = body;
    body.filling = requestAnimationFrame(() => { filled.filling = 0; if (filled === body) fill(several); });
  }
}

function makeRow() {
  const parts = ["name", "state", "gpus", "use", "memory", "host", "jobs"].map((name) => [name, h("div", { class: "cell" })]);
  return Object.assign(h("tr", {}, parts.map(([name, cell], at) => h(at ? "td" : "th", { class: `n-${name}`, scope: at ? null : "row" }, cell))), { parts: parts.map(([, cell]) => cell) });
}

function updateRow(row, node, several) {
  if (!node) return;
  const [name, its, gpus, use, memory, host, jobs] = row.parts;
  put(name, [node.name, node.pool, node.model, several], () => [h("a", { href: `${base}/nodes/${encodeURIComponent(node.name)}` }, node.name),
    h("span", { class: "dim small model" }, [node.gpus ? `${node.gpus} × ${node.model}` : "no GPUs", several ? `pool ${node.pool}` : ""].filter(Boolean).join(", "))]);
  put(its, [node.state, node.state === "down" ? node.seen : 0, node.reason, node.why], () => [state(node.state),
    node.state === "down" && node.seen ? h("span", { class: "dim small" }, " silent for ", counting(Math.max(0, now() - node.seen), now(), true)) : null,
    node.reason && node.state !== "down" ? h("span", { class: "dim small" }, ` ${node.reason}`) : null,
    node.why ? h("span", { class: "warn-words small" }, ` ${node.why}`) : null]);
  put(gpus, [node.cells, node.counts, node.reserved], () => node.gpus ? [
    h("span", { class: "strip", "aria-hidden": "true" }, [...node.cells].map((letter) => h("span", { class: `f-${LETTERS[letter]}` }))),
    h("span", { class: "dim small" }, STATES.filter((one) => node.counts[one]).map((one) => `${node.counts[one]} ${one}`).join(", "), node.reserved ? `; ${node.reserved}` : "")] : h("span", { class: "dim" }, "–"));
  put(use, node.use, () => node.use === null ? h("span", { class: "dim" }, "–") : bar(node.use, `${Math.round(100 * node.use)} %`));
  put(memory, node.gpu_mem, () => node.gpu_mem[1] ? bar(node.gpu_mem[0] / node.gpu_mem[1], `${bytes(node.gpu_mem[0])} of ${bytes(node.gpu_mem[1])}`) : h("span", { class: "dim" }, "–"));
  put(host, [node.cpus, node.mem], () => [`${+node.cpus[0].toFixed(1)} of ${+node.cpus[1].toFixed(1)}`, h("span", { class: "dim small" }, ` ${bytes(node.mem[0])} of ${bytes(node.mem[1])}`)]);
  put(jobs, [node.jobs, node.more_jobs], () => node.jobs.length ? [node.jobs.map((job) => h("span", { class: "of-job" }, jobLink(job.id, job.id, { title: `${job.name} of ${job.user}` }), " ", h("span", { class: "dim small" }, job.user))), node.more_jobs ? h("span", { class: "dim small" }, `and ${node.more_jobs} more`) : null] : h("span", { class: "dim" }, "none"));
}

function bar(part, words) {
  const fill = h("span", { class: "fill" });
  fill.style.width = `${Math.min(100, 100 * part)}%`;
  return [h("span", { class: "gauge", "aria-hidden": "true" }, fill), h("span", { class: "small" }, words)];
}

follow();
