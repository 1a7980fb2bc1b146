// The page of the queue: filters in the address, rows that change as they are, and changes of several jobs at once.
import { ask, base, byId, coming, counting, empty, frames, h, jobLink, keep, linked, plural, post, put, say, short, state, time, whyNot } from "./app.js";
import { listPage } from "./list.js";

const chosen = new Set();
const TABS = [["unfinished", "All"], ["waiting", "Waiting"], ["running", "Running"], ["finished", "Finished"]];
const SORTS = [["", "as they start"], ["-id", "newest first"], ["id", "oldest first"], ["user", "user"], ["name", "name"], ["-gpus", "most GPUs"], ["-waited", "longest wait"], ["priority", "priority"]];
const AT_ONCE = 24; // rows that are made without a break
let shown = [];
let cells = new Map();
let following = null;

const list = listPage({ path: "/queue", filters: ["q", "user", "state", "pool", "class", "sort"], sorts: SORTS, follow: () => follow() });
const { query } = list;

function follow() {
  following?.close();
  following = frames(`/stream/queue?${query}`, (found) => { cells = found; show(); });
}

function show() {
  const page = cells.get("page");
  if (!page) return;
  shown = page.rows;
  const tab = query.get("show") ?? "unfinished";
  list.showTabs(TABS, tab, page.tabs, () => chosen.clear());
  list.showFilters(cells.get("facets"), { state: (name) => name.toLowerCase() });
  list.showPages(page, "row");
  for (const id of [...chosen]) if (!cells.has(`row:${id}`)) chosen.delete(id);
  if (!shown.length) {
    byId("rows").kept = undefined; body = null;
    const filtered = ["q", "user", "state", "pool", "class"].some((name) => query.get(name));
    put(byId("rows"), ["none", filtered, tab], () => filtered ? h("div", { class: "empty" }, h("p", {}, "No job is like that."), h("a", { href: `${base}/queue` }, "Show all"))
      : tab === "finished" ? empty("No job has finished yet.") : tab === "waiting" ? empty("No job waits.") : empty("No jobs yet. This submits one:", "ebb submit --gpus 1 -- python train.py"));
    showBulk();
    return;
  }
  showRows(tab === "finished");
  showBulk();
}

// --- rows ---

let body = null;
let overFor = null;

function showRows(finished) {
  if (!body || overFor !== finished) {
    overFor = finished;
    const all = h("input", { type: "checkbox", "aria-label": "Choose all rows", onchange: (event) => { for (const id of shown) if (event.target.checked) chosen.add(id); else chosen.delete(id); show(); } });
    body = h("tbody", {});
    body.all = all;
    byId("rows").madeOf = undefined;
    byId("rows").replaceChildren(h("table", { class: "queue" }, h("thead", {}, h("tr", {},
      h("th", { scope: "col", class: "check" }, all),
      ["Job", "User", "State", "GPUs", "Prio", finished ? "Ran" : "Waited / ran", finished ? "Ended" : "Place", finished ? "Waited" : "Expected start", "Why, or where"].map((title) => h("th", { scope: "col" }, title)))), body));
  }
  fill(finished);
  body.all.checked = shown.length > 0 && shown.every((id) => chosen.has(id));
  body.all.indeterminate = !body.all.checked && chosen.size > 0;
}

/** Shows the rows some at a time, so that a page of two hundred never holds up what somebody types or scrolls. */
function fill(finished) {
  const known = body.kept?.size ?? 0, most = Math.max(AT_ONCE, Math.min(shown.length, known + AT_ONCE));
  keep(body, shown.slice(0, most), makeRow, (row, id) => updateRow(row, cells.get(`row:${id}`), finished));
  if (most < shown.length && !body.filling) {
    const filled = body;
    body.filling = requestAnimationFrame(() => { filled.filling = 0; if (filled === body) fill(finished); });
  }
}

function makeRow(id) {
  const check = h("input", { type: "checkbox", "aria-label": `Choose job ${id}`, onchange: (event) => { if (event.target.checked) chosen.add(id); else chosen.delete(id); show(); } });
  const parts = ["job", "user", "state", "gpus", "prio", "time", "place", "start", "why"].map((name) => [name, h("div", { class: "cell" })]);
  const row = h("tr", {}, h("td", { class: "check" }, check), parts.map(([name, cell]) => h("td", { class: `c-${name}` }, cell)));
  return Object.assign(row, { check, parts: parts.map(([, cell]) => cell) });
}

function updateRow(row, job, finished) {
  if (!job) return;
  row.check.checked = chosen.has(job.id);
  row.classList.toggle("chosen", row.check.checked);
  row.classList.toggle("unplaced", !finished && job.place === null);
  const [name, user, its, gpus, prio, times, place, start, why] = row.parts;
  put(name, [job.name, job.many, job.tasks, job.left, finished], () => [jobLink(job.id, [h("b", {}, job.id), " ", job.name || "(no name)"]), job.tasks ? h("span", { class: "dim small" }, ` array, ${!finished && job.left.tasks > job.many ? `${job.many} of ` : ""}${plural(finished ? job.many : job.left.tasks, "task")}`) : null]);
  put(user, job.user, () => job.user);
  put(its, [job.state, job.tasks, job.held], () => job.tasks ? Object.entries(job.tasks).map(([one, count]) => h("span", { class: "stack" }, state(one), ` ${count}`)) : [state(job.state), job.held && job.state === "PENDING" ? h("span", { class: "dim small" }, " held") : null]);
  put(gpus, job.gpus, () => job.gpus);
  put(prio, [job.priority, job.class], () => [String(job.priority), job.class === "te" ? h("span", { class: "tag", title: "trial and error" }, "te") : null]);
  put(times, [job.waited, job.ran, job.at, job.waits, job.runs], () => finished ? short(job.ran) : [counting(job.waited, job.at, job.waits), job.ran || job.runs ? [h("span", { class: "dim" }, " / "), counting(job.ran, job.at, job.runs)] : null]);
  put(place, finished ? job.ended : [job.place, job.state], () => finished ? (job.ended ? time(job.ended, false) : "–") : job.place ?? "–");
  const seen = job.forecast;
  put(start, finished ? job.waited : [seen, job.place !== null], () => {
    if (finished) return short(job.waited);
    if (job.place === null || !seen) return h("span", { class: "dim" }, "–");
    if (seen.start === null || seen.start === undefined) return h("span", { class: "dim", title: seen.basis }, "not known");
    return h("span", { title: seen.basis }, coming(seen.start, seen.basis.startsWith("at the latest") ? "within" : "in"), seen.preempts?.length ? h("span", { class: "dim" }, ", by preempting") : null);
  });
  put(why, [job.reason, job.nodes, job.more_nodes, seen?.basis, job.step, job.total, job.place], () => [
    job.nodes.length ? h("span", {}, `on ${job.nodes.join(", ")}${job.more_nodes ? ` and ${job.more_nodes} more` : ""}`) : null,
    job.step !== null && !finished && job.runs ? h("span", { class: "dim" }, ` step ${job.step.toLocaleString("en")}${job.total ? ` of ${job.total.toLocaleString("en")}` : ""}`) : null,
    job.reason && !(job.nodes.length && job.state === "RUNNING") ? h("span", {}, job.nodes.length ? " – " : "", linked(job.reason)) : null,
    job.place !== null && seen?.basis && !seen.basis.startsWith("not foreseen") && !seen.basis.includes(job.reason || "…") && (seen.start === null || seen.start === undefined) ? h("span", { class: "dim small" }, "; start ", linked(seen.basis)) : null]);
}

// --- several at once ---

const VERBS = [["Hold", "hold"], ["Release", "release"], ["Suspend", "suspend"], ["Resume", "resume"], ["Priority", "priority"], ["Cancel", "cancel"]];

const bulk = byId("bulk");
const chosenWords = h("span", {});
const verbs = VERBS.map(([words, verb]) => h("button", { type: "button", "data-verb": verb, class: verb === "cancel" ? "danger" : "", onclick: () => change(words, verb) }, words));
const none = h("button", { type: "button", class: "quiet", "data-verb": "none", onclick: () => { chosen.clear(); show(); } }, "Choose none");
bulk.replaceChildren(chosenWords, ...verbs, none);

/** Shows how many rows are chosen; the bar is always there, so that choosing a row moves none. */
function showBulk() {
  chosenWords.textContent = chosen.size ? `${plural(chosen.size, "row")} chosen` : "No row is chosen";
  for (const button of [...verbs, none]) whyNot(button, chosen.size ? "" : "No row is chosen.");
}

/** What is changed, in a title and in full: of an array all tasks that are not over, also those that are not shown. */
function inWords(ids) {
  const arrays = ids.map((id) => cells.get(`row:${id}`)).filter((row) => row?.tasks), jobs = ids.filter((id) => !cells.get(`row:${id}`)?.tasks);
  const counts = [[jobs, "job"], [arrays, "array"]].filter(([some]) => some.length).map(([some, noun]) => plural(some.length, noun));
  const of = ({ tasks, run }) => !tasks ? "all its tasks are over" : `all ${plural(tasks, "task")}${run ? `, ${run.toLocaleString("en")} of which run` : ", none of which runs"}`;
  const full = jobs.length > 12 ? [`Jobs ${jobs.slice(0, 12).join(", ")} and ${jobs.length - 12} more.`] : jobs.length ? [`Job${jobs.length > 1 ? "s" : ""} ${jobs.join(", ")}.`] : [];
  for (const { id, left } of arrays.slice(0, 12)) full.push(`Array ${id}: ${of(left)}.`);
  if (arrays.length > 12) full.push(`All tasks of ${plural(arrays.length - 12, "more array")}.`);
  return { title: counts.join(" and "), full, beyond: arrays.some(({ left, many }) => left.tasks > many) };
}

async function change(words, verb) {
  const ids = [...chosen], fields = { verb, ids }, { title, full, beyond } = inWords(ids);
  if (verb === "cancel") {
    const sure = await ask({ verb: "Cancel", danger: true, title: `Cancel ${title}?`, follows: [...full,
      "Each gets its grace period to end, and does not come back: this cannot be undone."] });
    if (!sure) return;
  } else if (beyond && verb !== "priority") {
    const sure = await ask({ verb: words, title: `${words} ${title}?`, follows: [...full, "Some of these tasks are not shown here."] });
    if (!sure) return;
  }
  if (verb === "priority") {
    const found = await ask({ verb: "Priority", title: `Give ${title} another priority`, follows: [...(beyond ? full : []), "1 is the most urgent, 99 the least. It counts from the next decision on."],
      fields: [h("label", {}, "Priority ", h("input", { name: "priority", type: "number", min: 1, max: 99, value: 42, required: true }))] });
    if (!found) return;
    fields.priority = Number(found.priority);
  }
  try {
    const found = await post("/jobs", fields);
    const refused = Object.entries(found.refused);
    say(`${words}: done for ${plural(found.done, "job")}.${refused.length ? ` Not so for ${refused.length}: job ${refused[0][0]}: ${refused[0][1]}` : ""}`);
    for (const id of ids) if (!(id in found.refused)) chosen.delete(id);
    show();
  } catch (error) { say(error.message); }
}

follow();
