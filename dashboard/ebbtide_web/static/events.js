// The page of the events: the newest first, as they come, and older ones a page at a time.
import { base, byId, clock, empty, h, jobLink, linked, now, plural, put, read, setAway, stream, time } from "./app.js";
import { listPage, localTime } from "./list.js";

const MOST = 2000; // events that are kept on the page
const list = listPage({ path: "/events", filters: ["about", "kind", "job", "node", "since", "until"], follow: () => follow() });
const { query } = list;
let events = [], older = null, searched = null, following = null, rows = null, lostAt = 0;

function follow() {
  following?.close();
  showFields();
  following = stream(`/stream/events?${query}`, {
    events: (page) => { lostAt = 0; setAway(null); events = []; rows = null; take(page); },
    added: ({ events: told, left_out }) => {
      setAway(null);
      if (left_out) { events = []; rows = null; return take({ events: told, older: told.at(-1).id, searched: null }); }
      events = [...told, ...events];
      show(told);
    },
    away: ({ words }) => { lostAt ||= now(); setAway({ since: lostAt, words }); },
    refused: ({ words }) => { byId("events").madeOf = undefined; byId("events").replaceChildren(h("p", { class: "empty" }, words)); },
  });
}

/** Takes in a page that is behind all that is shown. */
function take(page) {
  events = [...events, ...page.events];
  older = page.older; searched = page.searched;
  show(null);
}

function show(added) {
  if (!events.length) {
    rows = null;
    const filtered = list.filtered();
    put(byId("events"), ["none", filtered, older], () => !filtered ? empty("Nothing has happened yet.") : older ? h("p", { class: "empty" }, "None of the newest events is like that.")
      : h("div", { class: "empty" }, h("p", {}, "No event is like that."), h("a", { href: `${base}/events` }, "Show all")));
  } else if (!rows) {
    rows = h("ol", { class: "story long" }, events.map(row));
    byId("events").madeOf = undefined;
    byId("events").replaceChildren(h("div", { class: "panel" }, rows));
  } else if (added) {
    rows.prepend(...added.map(row));
  } else {
    rows.append(...events.slice(rows.childElementCount).map(row));
  }
  while (events.length > MOST) { const gone = events.pop(); older = gone.id + 1; rows.lastChild.remove(); }
  byId("count").textContent = plural(events.length, "event") + (older ? ", and older ones" : "");
  put(byId("more"), [older, searched, events.length >= MOST], () => !older ? [] : events.length >= MOST ? [h("p", { class: "dim" }, "The page shows no more: choose an earlier time above.")]
    : [searched && events.length && searched < events.at(-1).time - 1 ? h("p", { class: "dim" }, `Searched back to ${clock(searched)}.`) : null, h("button", { type: "button", onclick: more }, "Older")]);
}

const row = (event) => h("li", {}, time(event.time), h("span", { class: "about" }, event.job ? jobLink(event.job, `job ${event.job}`) : null, event.job && event.node ? " on " : null, event.node ? h("a", { href: `${base}/nodes/${encodeURIComponent(event.node)}` }, event.node) : null, event.job || event.node ? null : h("span", { class: "dim" }, "cluster")),
  h("span", { class: "kind dim" }, event.kind), h("span", { class: "words" }, event.text ? linked(event.text) : h("span", { class: "dim" }, "not shown: it is another user's job")));

async function more(event) {
  const button = event.target, before = older;
  button.disabled = true;
  try {
    const found = await read(`/events/older?${new URLSearchParams([...query, ["before", String(before)]])}`);
    if (before === older) take(found);
  } catch (error) { button.disabled = false; byId("count").textContent = error.message; }
}

// --- filters ---

/** Shows the filters of the address in the fields. */
function showFields() {
  for (const name of ["about", "kind", "job", "node"]) byId(`f-${name}`).value = query.get(name) ?? "";
  for (const [id, name] of [["from", "since"], ["to", "until"]]) {
    const wanted = Number(query.get(name));
    byId(id).value = wanted > 0 && wanted < 253402300800 ? localTime(wanted) : "";
  }
  byId("clear").hidden = !list.filtered();
}

for (const [id, name] of [["from", "since"], ["to", "until"]]) {
  byId(id).addEventListener("change", (event) => list.go({ [name]: event.target.value ? String(Date.parse(event.target.value) / 1000 + (name === "until" ? 59 : 0)) : "" }));
}
follow();
