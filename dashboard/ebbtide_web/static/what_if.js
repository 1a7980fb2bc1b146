// The page "what if": a simulation of the cluster's past under another policy, beside what happened.
import { base, byId, clock, duration, h, now, plural, put, say, scroller, setAway, stream } from "./app.js";

const form = byId("wanted");
const CLASSES = [["te", "trial and error"], ["be", "best effort"]];
const ALL = "all", BETWEEN = "between";
let following = null, lostAt = 0;

// --- what is wanted ---

const seconds = (input) => (input.value ? Math.floor(new Date(input.value).getTime() / 1000) : 0);
const local = (moment) => { const date = new Date(moment * 1000); return new Date(date - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 19); };

function wanted() {
  const query = new URLSearchParams(), span = byId("span").value, moment = Math.floor(now());
  const [since, until] = span === ALL ? [0, 0] : span === BETWEEN ? [seconds(byId("from")), seconds(byId("to"))] : [moment - Number(span), moment];
  if (since) query.set("since", since);
  if (until) query.set("until", until);
  query.set("policy", byId("policy").value);
  for (const field of form.querySelectorAll("fieldset:not([hidden]) :is(input, select)")) if (field.value.trim()) query.set(field.name, field.value.trim());
  if (byId("nodes").value.trim()) query.set("nodes", byId("nodes").value.trim());
  return query;
}

/** Lets the fields say what the address says. */
function fill(query) {
  const since = Number(query.get("since")), until = Number(query.get("until"));
  if (query.has("policy")) {
    byId("span").value = since || until ? BETWEEN : ALL;
    if (since > 0) byId("from").value = local(since);
    if (until > 0) byId("to").value = local(until);
    if ([...byId("policy").options].some((one) => one.value === query.get("policy"))) byId("policy").value = query.get("policy");
    byId("nodes").value = query.get("nodes") ?? "";
  }
  showFields();
  for (const field of form.querySelectorAll("fieldset:not([hidden]) :is(input, select)")) field.value = query.get(field.name) ?? "";
}

function showFields() {
  for (const one of form.querySelectorAll(".between")) one.hidden = byId("span").value !== BETWEEN;
  for (const one of form.querySelectorAll("fieldset")) one.hidden = one.dataset.policy !== byId("policy").value;
}

byId("span").addEventListener("change", () => {
  if (byId("span").value === BETWEEN && !byId("from").value) { byId("from").value = local(now() - 604_800); byId("to").value = local(now()); }
  showFields();
});
byId("policy").addEventListener("change", showFields);
form.addEventListener("submit", (event) => {
  event.preventDefault();
  const query = wanted();
  history.pushState(null, "", `${base}/whatif?${query}`);
  follow(query);
});
byId("cancel").addEventListener("click", () => { leave(); say("Cancelled."); });
addEventListener("popstate", () => begin());

// --- running it ---

function leave(words = "") {
  following?.close();
  following = null;
  byId("cancel").hidden = byId("done").hidden = true;
  byId("progress").textContent = words;
}

function follow(query) {
  leave("asking for it …");
  put(byId("result"), String(query), () => []);
  byId("cancel").hidden = byId("done").hidden = false;
  byId("done").value = 0;
  following = stream(`/stream/whatif?${query}`, {
    progress: ({ words, done }) => { here(); byId("progress").textContent = `${words} …`; byId("done").value = 100 * done; },
    result: (found) => { here(); leave(); show(found); },
    failed: ({ words }) => { here(); leave(); put(byId("result"), words, () => h("p", { class: "empty problem" }, words)); },
    refused: ({ words }) => { here(); leave(); put(byId("result"), words, () => h("p", { class: "empty" }, words)); },
    away: ({ words }) => { lostAt ||= now(); setAway({ since: lostAt, words }); },
  }, { whileHidden: true });
}

function here() { lostAt = 0; setAway(null); }

// --- what came of it ---

const number = (value, digits = 2) => (value === null ? "–" : value.toLocaleString("en", { maximumFractionDigits: digits }));
const time = (value) => (value === null ? "–" : duration(value));
const hours = (value) => (value > 0 && value < 36 ? "<0.01 h" : `${number(value / 3600)} h`);
const percent = (value) => `${number(100 * value, 1)} %`;

/** What is compared: a title, its value in a report, how that is written, and whether more of it is better (null: neither). */
function measures(found) {
  const classes = CLASSES.filter(([name]) => found.live.by_class[name].jobs || found.simulated.by_class[name].jobs);
  return [
    ...classes.flatMap(([name, words]) => [
      [`Slowdown, ${words}, median`, (one) => one.slowdown[name].p50, number],
      [`Slowdown, ${words}, 95 %`, (one) => one.slowdown[name].p95, number],
      [`Waiting, ${words}, mean`, (one) => one.by_class[name].waiting_s.mean, time],
      [`Waiting, ${words}, 95 %`, (one) => one.by_class[name].waiting_s.p95, time],
      [`Flow time, ${words}, mean`, (one) => one.by_class[name].flow_time_s.mean, time],
      [`Flow time, ${words}, 95 %`, (one) => one.by_class[name].flow_time_s.p95, time],
    ]),
    ["Preemptions", (one) => one.preemptions, number],
    ["Resizes", (one) => one.resizes, number, null],
    ["Wasted GPU hours", (one) => one.wasted_gpu_s, hours],
    ["GPU time held", (one) => one.busy, percent, null],
    ["Jobs that finished", (one) => one.finished, number, true],
    ["From first to last", (one) => one.makespan_s, time],
  ];
}

function difference(before, after, moreIsBetter = false) {
  if (before === null || after === null) return "–";
  if (Math.abs(after - before) <= 0.005 * Math.max(Math.abs(before), Math.abs(after))) return "the same";
  const words = before > 0 ? `${after > before ? "+" : "−"}${number((100 * Math.abs(after - before)) / before, 0)} %` : after > before ? "more" : "less";
  return h("span", {}, `${words} `, moreIsBetter === null ? null : h("span", { class: "dim" }, (after > before) === moreIsBetter ? "better" : "worse"));
}

function show(found) {
  put(byId("result"), found, () => [
    found.left_out ? h("p", { class: "notice" }, `${plural(found.left_out, "event")} of others’ jobs may not be shown to you, and ${found.left_out === 1 ? "is" : "are"} left out.`) : null,
    h("section", { class: "panel", "aria-labelledby": "figure-title" },
      h("div", { class: "title" }, h("h2", { id: "figure-title" }, `What happened, and ${found.policy}`), h("span", { class: "dim small" }, `${clock(found.since, false)} to ${clock(found.until, false)}, ${plural(found.live.jobs, "job")}, ${found.gpus[0] === found.gpus[1] ? plural(found.gpus[0], "GPU") : `${found.gpus[0]} GPUs, and ${found.gpus[1]} simulated`}`)),
      h("p", { class: "keys small dim parts-keys" }, h("span", {}, h("span", { class: "key w-live", "aria-hidden": "true" }), "what happened"), h("span", {}, h("span", { class: "key w-simulated", "aria-hidden": "true" }), `simulated: ${found.policy}`)),
      figure(found)),
    h("section", { class: "panel", "aria-labelledby": "table-title" }, h("h2", { id: "table-title" }, "In figures"), table(found)),
    h("section", { class: "panel", "aria-labelledby": "how-title" }, h("h2", { id: "how-title" }, "What it rests on"), how(found))]);
}

/** A pair of bars for each measure, each pair by its own greatest value; the table below has the same in figures. */
function figure(found) {
  const pairs = measures(found).slice(0, -2).filter(([, of]) => of(found.live) !== null || of(found.simulated) !== null);
  return h("ul", { class: "compare", "aria-label": "Bars of what happened and of what was simulated" }, pairs.map(([title, of, write]) => {
    const values = [of(found.live), of(found.simulated)], most = Math.max(...values.map((value) => value ?? 0));
    const line = (value, kind) => {
      const bar = h("span", { class: `fill w-${kind}`, "aria-hidden": "true" });
      bar.style.width = `${most > 0 ? (100 * (value ?? 0)) / most : 0}%`;
      return h("span", { class: "line" }, h("span", { class: "track" }, bar), h("span", { class: "number" }, write(value)));
    };
    return h("li", {}, h("span", { class: "what" }, title), line(values[0], "live"), line(values[1], "simulated"));
  }));
}

const table = (found) => scroller("Figures of what happened and of what was simulated", h("table", { class: "what-if-table" },
  h("thead", {}, h("tr", {}, ["Measure", "What happened", found.policy, "Difference"].map((title) => h("th", { scope: "col" }, title)))),
  h("tbody", {}, measures(found).map(([title, of, write, moreIsBetter]) => h("tr", {}, h("th", { scope: "row" }, title),
    h("td", { class: "number" }, write(of(found.live))), h("td", { class: "number" }, write(of(found.simulated))), h("td", { class: "number" }, difference(of(found.live), of(found.simulated), moreIsBetter)))))));

const how = (found) => [
  h("p", {}, `Jobs arrive when they arrived, compute as long as they computed, and step aside as fast as they did; to start again takes ${time(found.restart_cost_s)}.`),
  found.simulated.dropped ? h("p", {}, `${plural(found.simulated.dropped, "job")} would never fit on these machines.`) : null,
  Object.entries(found.skipped).map(([why, count]) => h("p", {}, `Left out: ${plural(count, "job")} that ${why}.`)),
  found.notes.map((words) => h("p", {}, `${words}.`)),
  h("p", {}, "On the master’s machine this does the same:"), h("div", {}, h("pre", { class: "command" }, found.command)),
  h("p", {}, "These lines of its configuration would schedule so; they are never applied from here:"), h("div", {}, h("pre", { class: "command" }, found.configuration.join("\n")))];

function begin() {
  const query = new URLSearchParams(location.search);
  fill(query);
  leave();
  put(byId("result"), "", () => []);
  if (query.has("policy")) follow(query);
}

begin();
