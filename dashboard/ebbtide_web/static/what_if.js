// The page "what if": simulations of the cluster's past under other policies, beside what happened.
import { base, byId, clock, duration, h, now, plural, put, say, scroller, setAway, stream } from "./app.js";

const form = byId("wanted"), MOST = Number(form.dataset.most);
const CLASSES = [["te", "trial and error"], ["be", "best effort"]];
const ALL = "all", BETWEEN = "between";
const loaded = performance.now();
let following = null, lostAt = 0, results = [];

// --- what is wanted ---

const seconds = (input) => (input.value ? Math.floor(new Date(input.value).getTime() / 1000) : 0);
const local = (moment) => { const date = new Date(moment * 1000); return new Date(date - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 19); };
/** Now by the dashboard's clock, so that no event is still to come before the time at which simulations end. */
const moment = () => Math.floor(Number(form.dataset.now) + (performance.now() - loaded) / 1000);
const tries = () => [...byId("tries").children];
const fieldsOf = (one) => one.querySelectorAll("fieldset:not([hidden]) :is(input, select)");

function wanted() {
  const query = new URLSearchParams(), span = byId("span").value;
  const [since, until] = span === ALL ? [0, moment()] : span === BETWEEN ? [seconds(byId("from")), seconds(byId("to"))] : [moment() - Number(span), moment()];
  if (since) query.set("since", since);
  if (until) query.set("until", until);
  if (byId("nodes").value.trim()) query.set("nodes", byId("nodes").value.trim());
  for (const one of tries()) {
    query.append("policy", one.querySelector("select").value);
    for (const field of fieldsOf(one)) if (field.value.trim()) query.append(field.name, field.value.trim());
  }
  return query;
}

/** Lets the fields say what the address says: options belong to the policy before them. */
function fill(query) {
  const since = Number(query.get("since")), until = Number(query.get("until")), asked = [];
  for (const [name, value] of query) {
    if (name === "policy") asked.push([value, new Map()]);
    else if (name.startsWith("o.") && asked.length && !asked.at(-1)[1].has(name)) asked.at(-1)[1].set(name, value);
  }
  if (asked.length) {
    byId("span").value = since ? BETWEEN : ALL;
    if (since > 0) { byId("from").value = local(since); byId("to").value = local(until || moment()); }
  }
  byId("nodes").value = query.get("nodes") ?? "";
  byId("tries").replaceChildren();
  for (const [policy, options] of asked.length ? asked.slice(0, MOST) : [["fitgpp", new Map()]]) add(policy, options);
  showFields();
}

/** Adds a policy to what is to be tried. */
function add(policy, options) {
  const one = byId("try").content.firstElementChild.cloneNode(true), select = one.querySelector("select");
  if ([...select.options].some((each) => each.value === policy)) select.value = policy;
  byId("tries").append(one);
  select.addEventListener("change", showFields);
  one.querySelector(".remove").addEventListener("click", () => { one.remove(); showFields(); byId("add").focus(); });
  showFields();
  for (const field of fieldsOf(one)) field.value = options.get(field.name) ?? "";
  return select;
}

function showFields() {
  for (const one of form.querySelectorAll(".between")) one.hidden = byId("span").value !== BETWEEN;
  const all = tries();
  for (const [number, one] of all.entries()) {
    const words = all.length > 1 ? `Policy ${number + 1}` : "Policy";
    one.setAttribute("aria-label", words);
    one.querySelector(".which").textContent = words;
    one.querySelector(".remove").hidden = all.length < 2;
    one.querySelector(".remove").setAttribute("aria-label", `Remove policy ${number + 1}`);
    for (const each of one.querySelectorAll("fieldset")) each.hidden = each.dataset.policy !== one.querySelector("select").value;
  }
  byId("add").hidden = all.length >= MOST;
}

byId("span").addEventListener("change", () => {
  if (byId("span").value === BETWEEN && !byId("from").value) { byId("from").value = local(now() - 604_800); byId("to").value = local(now()); }
  showFields();
});
/** The next policy that is not there yet. */
byId("add").addEventListener("click", () => {
  const there = tries().map((one) => one.querySelector("select").value), all = [...byId("try").content.querySelector("select").options].map((one) => one.value);
  add(all.find((one) => !there.includes(one)) ?? all[0], new Map()).focus();
});
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
  results = [];
  show();
  byId("cancel").hidden = byId("done").hidden = false;
  byId("done").value = 0;
  following = stream(`/stream/whatif?${query}`, {
    progress: ({ words, done }) => { here(); byId("progress").textContent = `${words} …`; byId("done").value = 100 * done; },
    result: take, failed: take,
    refused: ({ words }) => { here(); leave(); put(byId("result"), words, () => h("p", { class: "empty" }, words)); },
    away: ({ words }) => { lostAt ||= now(); setAway({ since: lostAt, words }); },
  }, { whileHidden: true });
}

/** Takes in what came of one simulation; what is said without a number is about all of them. */
function take(found) {
  here();
  if (found.number === undefined) { leave(); put(byId("result"), found.words, () => problem(found.words)); return; }
  results[found.number] = found;
  if (found.number + 1 === found.of) leave();
  show();
}

const problem = (words) => h("p", { class: "empty problem" }, words);

function here() { lostAt = 0; setAway(null); }

// --- what came of it ---

const number = (value, digits = 2) => (value === null ? "–" : value.toLocaleString("en", { maximumFractionDigits: digits }));
const time = (value) => (value === null ? "–" : duration(value));
const hours = (value) => (value > 0 && value < 36 ? "<0.01 h" : `${number(value / 3600)} h`);
const percent = (value) => `${number(100 * value, 1)} %`;

/** What is compared: a title, its value in a report, how that is written, and whether more of it is better (null: neither). */
function measures(found) {
  const reports = [found[0].live, ...found.map((one) => one.simulated)], classes = CLASSES.filter(([name]) => reports.some((one) => one.by_class[name].jobs));
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
  if (before === null || after === null) return null;
  if (Math.abs(after - before) <= 0.005 * Math.max(Math.abs(before), Math.abs(after))) return "the same";
  const words = before > 0 ? `${after > before ? "+" : "−"}${number((100 * Math.abs(after - before)) / before, 0)} %` : after > before ? "more" : "less";
  return moreIsBetter === null ? words : `${words}, ${(after > before) === moreIsBetter ? "better" : "worse"}`;
}

const HAPPENED = "what happened";

/** The reports that are compared, with what each is called: what happened, and then the simulations that have ended. */
const columns = (found) => [[HAPPENED, found[0].live], ...found.map((one) => [one.label, one.simulated])];
const keyOf = (place) => h("span", { class: `key w-${place}`, "aria-hidden": "true" });
const ordinal = (place, found) => (found.length > 1 ? String(place || "") : "");

function show() {
  const all = results.filter((one) => one), found = all.filter((one) => one.simulated), failed = all.filter((one) => one.words);
  put(byId("result"), all, () => [
    failed.map((one) => problem(one.of > 1 ? `${one.label}: ${one.words}` : one.words)),
    found.length ? [
      found[0].left_out ? h("p", { class: "notice" }, `${plural(found[0].left_out, "event")} of others’ jobs may not be shown to you, and ${found[0].left_out === 1 ? "is" : "are"} left out.`) : null,
      h("section", { class: "panel", "aria-labelledby": "figure-title" },
        h("div", { class: "title" }, h("h2", { id: "figure-title" }, found.length > 1 ? `What happened, and ${found.length} policies` : `What happened, and ${found[0].label}`), h("span", { class: "dim small" }, `${clock(found[0].since, false)} to ${clock(found[0].until, false)}, ${plural(found[0].live.jobs, "job")}, ${found[0].gpus[0] === found[0].gpus[1] ? plural(found[0].gpus[0], "GPU") : `${found[0].gpus[0]} GPUs, and ${found[0].gpus[1]} simulated`}`)),
        h("p", { class: "keys small dim parts-keys" }, columns(found).map(([title], place) => h("span", {}, keyOf(place), place ? `${ordinal(place, found)} simulated: ${title}` : title))),
        figure(found)),
      h("section", { class: "panel", "aria-labelledby": "table-title" }, h("h2", { id: "table-title" }, "In figures"), table(found)),
      h("section", { class: "panel", "aria-labelledby": "how-title" }, h("h2", { id: "how-title" }, "What it rests on"), how(found))] : null]);
}

/** Bars for each measure, all by the greatest of its values; the table below has the same in figures. */
function figure(found) {
  const all = columns(found).map(([, report]) => report);
  const shown = measures(found).slice(0, -2).filter(([, of]) => all.some((one) => of(one) !== null));
  return h("ul", { class: found.length > 1 ? "compare several" : "compare", "aria-label": "Bars of what happened and of what was simulated" }, shown.map(([title, of, write]) => {
    const values = all.map(of), most = Math.max(...values.map((value) => value ?? 0));
    const line = (value, place) => {
      const bar = h("span", { class: `fill w-${place}`, "aria-hidden": "true" });
      bar.style.width = `${most > 0 ? (100 * (value ?? 0)) / most : 0}%`;
      return h("span", { class: "line" }, found.length > 1 ? h("span", { class: "dim small" }, ordinal(place, found)) : null, h("span", { class: "track" }, bar), h("span", { class: "number" }, write(value)));
    };
    return h("li", {}, h("span", { class: "what" }, title), values.map(line));
  }));
}

function table(found) {
  const all = columns(found);
  return scroller("Figures of what happened and of what was simulated", h("table", { class: "what-if-table" },
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Measure"), all.map(([title], place) => h("th", { scope: "col" }, keyOf(place), `${ordinal(place, found)} ${title}`)))),
    h("tbody", {}, measures(found).map(([title, of, write, moreIsBetter]) => h("tr", {}, h("th", { scope: "row" }, title),
      all.map(([, report], place) => h("td", { class: "number" }, write(of(report)), place ? h("span", { class: "small difference" }, difference(of(found[0].live), of(report), moreIsBetter)) : null)))))));
}

const how = (found) => [
  h("p", {}, `Jobs arrive when they arrived, compute as long as they computed, and step aside as fast as they did; to start again takes ${time(found[0].restart_cost_s)}.`),
  found.map((one) => one.simulated.dropped ? h("p", {}, `${plural(one.simulated.dropped, "job")} would never fit on these machines${found.length > 1 ? ` under ${one.label}` : ""}.`) : null),
  Object.entries(found[0].skipped).map(([why, count]) => h("p", {}, `Left out: ${plural(count, "job")} that ${why}.`)),
  found[0].notes.map((words) => h("p", {}, `${words}.`)),
  h("p", {}, "On the master’s machine this does the same:"), h("div", {}, h("pre", { class: "command" }, found.map((one) => one.command).join("\n"))),
  h("p", {}, "These lines of its configuration would schedule so; they are never applied from here:"), found.map((one) => h("div", {}, h("pre", { class: "command" }, one.configuration.join("\n"))))];

function begin() {
  const query = new URLSearchParams(location.search);
  if (query.getAll("policy").length > 1 && !query.get("until")) { query.set("until", moment()); history.replaceState(null, "", `${base}/whatif?${query}`); }
  fill(query);
  leave();
  results = [];
  show();
  if (query.has("policy")) follow(query);
}

begin();
