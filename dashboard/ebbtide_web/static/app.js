// What all pages share: making elements from text alone, words for times and states, the stream, changes and dialogs.

const meta = (name) => document.querySelector(`meta[name="${name}"]`)?.content ?? "";
export const base = meta("base");
export const me = { user: meta("user"), role: meta("role") };
const csrf = meta("csrf");

// --- elements ---

const SVG = "http://www.w3.org/2000/svg";

function filled(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.setAttribute("class", value);
    else if (value === true) element.setAttribute(name, "");
    else element.setAttribute(name, String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const h = (name, properties, ...children) => filled(document.createElement(name), properties, children);
export const svg = (name, properties, ...children) => filled(document.createElementNS(SVG, name), properties, children);
export const byId = (id) => document.getElementById(id);

const nameOf = (element) => `${element.tagName} ${element.ariaLabel ?? element.textContent}`;

/** Replaces what is in an element, but only if `key` says that it is something else than before. What was unfolded
    stays so, and the focus goes to what has the same name as before. */
export function put(element, key, make) {
  const text = JSON.stringify(key);
  if (element.madeOf === text) return;
  element.madeOf = text;
  const folds = () => [...element.querySelectorAll("details")], open = folds().map((one) => one.open);
  const active = document.activeElement, focused = element !== active && element.contains(active) ? nameOf(active) : null;
  element.replaceChildren(...[make()].flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  if (open.length === folds().length) folds().forEach((one, at) => { one.open = open[at]; });
  if (focused) [...element.querySelectorAll("a, button, summary, [tabindex]")].find((one) => nameOf(one) === focused)?.focus({ preventScroll: true });
}

/** Keeps children by key in order, making and updating only what has to be; elements that stay keep their focus. */
export function keep(parent, keys, make, update) {
  const known = (parent.kept ??= new Map());
  const wanted = new Set(keys);
  for (const [key, element] of known) if (!wanted.has(key)) { element.remove(); known.delete(key); }
  let next = parent.firstChild;
  for (const key of keys) {
    let element = known.get(key);
    if (!element) { element = make(key); known.set(key, element); }
    if (element === next) next = next.nextSibling;
    else parent.insertBefore(element, next);
    update(element, key);
  }
  while (next) { const gone = next; next = next.nextSibling; gone.remove(); }
}

// --- words ---

export function duration(seconds) {
  const s = Math.max(0, seconds);
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 90) return `${Math.round(s)} s`;
  const both = (big, unit, small, lesser) => (small ? `${big} ${unit} ${small} ${lesser}` : `${big} ${unit}`);
  if (s < 600) return both(Math.floor(s / 60), "min", Math.floor(s % 60), "s");
  if (s < 5400) return `${Math.round(s / 60)} min`;
  if (s < 172800) return both(Math.floor(s / 3600), "h", Math.floor((s % 3600) / 60), "min");
  return both(Math.floor(s / 86400), "d", Math.floor((s % 86400) / 3600), "h");
}

export function short(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 100) return `${s} s`;
  if (s < 6000) return `${Math.round(s / 60)} min`;
  if (s < 172800) return `${(s / 3600).toFixed(s < 36000 ? 1 : 0)} h`;
  return `${Math.round(s / 86400)} d`;
}

const pad = (number) => String(number).padStart(2, "0");

export function clock(seconds, withSeconds = true) {
  const moment = new Date(seconds * 1000), now = new Date();
  const time = `${pad(moment.getHours())}:${pad(moment.getMinutes())}${withSeconds ? `:${pad(moment.getSeconds())}` : ""}`;
  if (moment.toDateString() === now.toDateString()) return time;
  return `${moment.getFullYear()}-${pad(moment.getMonth() + 1)}-${pad(moment.getDate())} ${time}`;
}

export const time = (seconds, withSeconds = true) =>
  h("time", { datetime: new Date(seconds * 1000).toISOString(), title: new Date(seconds * 1000).toString(), "data-at": seconds, "data-exact": withSeconds ? "1" : "" }, clock(seconds, withSeconds));

export function bytes(count) {
  if (count === null || count === undefined) return "–";
  for (const [unit, size] of [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (count >= size) { const value = count / size; return `${value < 10 ? value.toFixed(1).replace(/\.0$/, "") : Math.round(value)} ${unit}`; }
  }
  return `${count} B`;
}

/** A text of the address without what cannot be seen or turns around what follows; all else has been cleaned already. */
export const printable = (text) => text.replace(/[\p{C}\p{Zl}\p{Zp}]/gu, "");

export const plural = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
/** So many GPUs, as the master words them: "1/2", "1", "4" or "1-4". */
export const gpuCount = (words) => `${words} GPU${/^1(\/\d+)?$/.test(words) ? "" : "s"}`;
/** A number of GPUs as they are asked for: 0.5 of one is 1/2. */
export function gpuShare(share) {
  const parts = Math.round(1 / share);
  return parts > 1 && Math.abs(parts * share - 1) < 0.01 ? `1/${parts}` : String(+share.toFixed(2));
}
export const now = () => Date.now() / 1000;

const GLYPHS = {
  PENDING: "○", STARTING: "◔", RUNNING: "▶", SUSPENDING: "◑", SUSPENDED: "❚❚", STOPPING: "◧", UNREACHABLE: "▲",
  COMPLETED: "✓", FAILED: "✕", CANCELLED: "⊘",
  allocated: "●", idle: "○", foreign: "◆", quarantined: "▲", unhealthy: "✕", unreachable: "◌",
  up: "●", down: "✕", draining: "◑", drained: "○",
};

/** A state as a glyph and a word, never as a colour alone. */
export const state = (name, words) =>
  h("span", { class: `state s-${name.toLowerCase()}` }, h("span", { class: "glyph", "aria-hidden": "true" }, GLYPHS[name] ?? "•"),
    words ?? (name.charAt(0) + name.slice(1).toLowerCase()));

export const jobLink = (id, words, properties) => h("a", { href: `${base}/jobs/${encodeURIComponent(id)}`, ...properties }, words ?? id);

/** Some of several things in words: "3, 4 and 7", or "3, 4 and 5 more". */
export function listed(some, more) {
  const all = more > 0 ? [...some, `${more} more`] : some;
  return all.map((one, at) => [at === 0 ? "" : at === all.length - 1 ? " and " : ", ", one]);
}

/** A text in which each job that it names is a link. */
export function linked(text) {
  const parts = [];
  let last = 0;
  for (const found of text.matchAll(/\bjob \d+(?:\.\d+)?\b|\bjobs \d+(?:\.\d+)?\b(?:(?:, | and )\d+(?:\.\d+)?\b(?! more))*/g)) {
    for (const id of found[0].matchAll(/\d+(?:\.\d+)?/g)) {
      parts.push(text.slice(last, found.index + id.index), jobLink(id[0]));
      last = found.index + id.index + id[0].length;
    }
  }
  return [...parts, text.slice(last)];
}

/** A time that goes on by itself: so many seconds at a moment, and more since if it runs. */
export const counting = (seconds, at, runs, how = "short") =>
  h("span", { class: "counting", "data-seconds": seconds, "data-at": at, "data-runs": runs ? "1" : "", "data-how": how },
    counted(seconds, at, runs, how));

const counted = (seconds, at, runs, how) => (how === "short" ? short : duration)(seconds + (runs ? Math.max(0, now() - at) : 0));

/** How long it is to a moment, which grows less by itself: "in 3.9 h", and "now" at the end. */
export const coming = (at, before = "in", how = "short") =>
  h("span", { class: "coming", "data-at": at, "data-before": before, "data-how": how }, toCome(at, before, how));

const toCome = (at, before, how) => (at - now() < 5 ? "now" : `${before} ${(how === "short" ? short : duration)(at - now())}`);

function rewrite(selector, wordsOf) {
  for (const element of document.querySelectorAll(selector)) {
    const words = wordsOf(element.dataset);
    if (element.firstChild.data !== words) element.firstChild.data = words;
  }
}

let today = new Date().toDateString();

setInterval(() => {
  rewrite('.counting[data-runs="1"]', ({ seconds, at, how }) => counted(Number(seconds), Number(at), true, how));
  rewrite(".coming", ({ at, before, how }) => toCome(Number(at), before, how));
  if (today !== new Date().toDateString()) {
    today = new Date().toDateString();
    rewrite("time[data-at]", ({ at, exact }) => clock(Number(at), exact === "1"));
  }
  showAway();
}, 1000);

/** Something wide, such as a table, that scrolls by itself where there is no room, with the keyboard as well. */
export const scroller = (label, ...children) => h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, children);

export const empty = (words, command) => h("div", { class: "empty" }, h("p", {}, words), command ? h("pre", { class: "command" }, command) : null);

export function say(words) {
  const said = byId("said");
  if (!said) return;
  said.replaceChildren(h("p", {}, words));
  clearTimeout(said.timer);
  said.timer = setTimeout(() => said.replaceChildren(), 6000);
}

// --- whether what is shown is what is so ---

const SILENT_S = 45; // three times as long as a stream without news is silent
const loaded = now();
let away = null;
let lastHeard = 0;

function showAway() {
  const banner = byId("banner"), live = byId("live");
  if (!live) return;
  if (away && now() - away.since > 0.8) {
    banner.hidden = false;
    const who = away.dashboard ? "The dashboard" : "The master";
    put(banner, [who, away.since, away.words, Math.floor(now() - away.since)], () => [
      h("b", {}, away.starting ? "The master has not answered yet." : `${who} has not answered since ${clock(away.since)} (${short(now() - away.since)} ago). `),
      away.starting ? " This page goes on by itself when it does." : "What you see is from then. It goes on by itself.",
      away.words ? h("span", { class: "dim" }, ` ${away.words}`) : null,
    ]);
  } else banner.hidden = true;
  live.dataset.state = away ? "away" : lastHeard ? "live" : "";
  live.lastElementChild.textContent = away ? `last heard ${short(now() - away.since)} ago` : lastHeard ? "live" : "connecting";
  document.body.classList.toggle("is-away", away !== null);
  for (const button of document.querySelectorAll("button[data-verb]")) showWhyNot(button);
}

function showWhyNot(button) {
  const why = away ? "The master does not answer." : (button.dataset.why ?? "");
  button.setAttribute("aria-disabled", why ? "true" : "false");
  button.title = why;
}

/** Says why a button that changes something does nothing now; with no words it does. It keeps its place and the focus. */
export function whyNot(button, words) {
  button.dataset.why = words;
  showWhyNot(button);
}

document.addEventListener("click", (event) => {
  const button = event.target.closest?.('button[aria-disabled="true"]');
  if (!button) return;
  event.preventDefault();
  event.stopImmediatePropagation();
  say(button.title);
}, { capture: true });

export function setAway(found) {
  away = found;
  if (!found) lastHeard = now();
  showAway();
}

/** Reads a stream of events and goes on by itself, also if nothing comes any more although it seems to be open;
    `handlers` are called by name with what each event has.
    It is left while the page is hidden, unless `whileHidden` says that something ends when nobody reads. */
export function stream(path, handlers, { whileHidden = false } = {}) {
  let source = null, timer = 0, heard = 0, over = false;
  const hear = () => { heard = lastHeard = now(); if (away?.dashboard) setAway(null); };
  const lose = () => { if (!away) setAway({ since: lastHeard || loaded, dashboard: true, words: "" }); };
  const isClosed = () => !source || source.readyState === EventSource.CLOSED;
  const isWanted = () => !over && (whileHidden || !document.hidden);
  const open = () => {
    source?.close();
    heard = now();
    source = new EventSource(`${base}${path}`);
    source.onerror = () => {
      if (over) return;
      lose();
      if (isClosed()) timer = setTimeout(again, 1500);
    };
    source.addEventListener("here", hear);
    for (const [name, handle] of Object.entries(handlers)) source.addEventListener(name, (event) => { hear(); handle(JSON.parse(event.data)); });
    source.addEventListener("over", (event) => { close(); leave(JSON.parse(event.data).why); });
  };
  // A stream that is refused is not opened again by the browser: perhaps the session is over.
  const again = async () => {
    try {
      const reply = await fetch(`${base}/me`, { headers: { accept: "application/json" } });
      if (reply.status === 401) return leave("your session is over");
    } catch { /* the dashboard is away */ }
    if (isWanted() && isClosed()) open();
  };
  const seen = () => {
    clearTimeout(timer);
    if (!isWanted()) source?.close();
    else if (isClosed()) open();
  };
  const listening = setInterval(() => { if (!isClosed() && now() - heard > SILENT_S) { lose(); open(); } }, 1000);
  const close = () => { over = true; clearTimeout(timer); clearInterval(listening); document.removeEventListener("visibilitychange", seen); source?.close(); };
  document.addEventListener("visibilitychange", seen);
  seen();
  return { close };
}

let loggingOut = false;

/** Goes to where one logs in, unless a request to log out is under way: its answer takes the cookie away. */
function leave(why) {
  if (loggingOut) return;
  try { sessionStorage.setItem("ebbtide-why", why); } catch { /* storage may be off */ }
  location.assign(`${base}/login`);
}

/** Reads a stream of frames, each of which has all cells or those that changed, and tells of them after each. */
export function frames(path, show) {
  const cells = new Map();
  return stream(path, {
    frame: ({ full, gone, cells: told }) => {
      if (full) cells.clear();
      for (const key of gone) cells.delete(key);
      const changed = new Set([...gone, ...Object.keys(told)]);
      for (const [key, value] of Object.entries(told)) cells.set(key, value);
      setAway(cells.get("away") ?? null);
      show(cells, changed, full);
    },
  });
}

// --- reading and changing ---

export async function read(path) {
  const reply = await fetch(`${base}${path}`, { headers: { accept: "application/json" } });
  const found = await reply.json();
  if (reply.status === 401) leave("your session is over");
  if (!reply.ok) throw Object.assign(new Error(found.error ?? `it failed (${reply.status})`), { status: reply.status });
  return found;
}

export async function post(path, fields = {}) {
  const reply = await fetch(`${base}${path}`, {
    method: "POST", headers: { "content-type": "application/json", "x-csrf": csrf }, body: JSON.stringify(fields),
  });
  const found = await reply.json().catch(() => ({}));
  if (reply.status === 401 && csrf) leave(found.error ?? "your session is over");
  if (!reply.ok) throw new Error(found.error ?? `it failed (${reply.status})`);
  return found;
}

/** Asks before something that cannot be undone; the button that does it has the verb's name. */
export function ask({ verb, title, follows, fields = [], danger = false, check = null }) {
  return new Promise((resolve) => {
    const problem = h("p", { class: "problem", role: "alert", hidden: true });
    const form = h("form", { method: "dialog" },
      h("h2", { id: "ask-title" }, title),
      follows.map((words) => h("p", {}, words)),
      fields, problem,
      h("div", { class: "buttons" },
        h("button", { type: "button", value: "no", onclick: () => dialog.close("no") }, "Keep it as it is"),
        h("button", { type: "submit", class: danger ? "danger" : "main", value: "yes" }, verb)));
    const dialog = h("dialog", { class: "dialog", "aria-labelledby": "ask-title" }, form);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const wrong = check?.(form);
      if (wrong) { problem.hidden = false; problem.textContent = wrong; return; }
      dialog.close("yes");
    });
    const before = document.activeElement;
    dialog.addEventListener("close", () => {
      const yes = dialog.returnValue === "yes";
      dialog.remove();
      before?.focus?.();
      resolve(yes ? Object.fromEntries(new FormData(form)) : null);
    });
    document.body.append(dialog);
    dialog.returnValue = "no";
    dialog.showModal();
    (fields.length ? form.querySelector("input,select") : form.querySelector(".buttons button"))?.focus();
  });
}

// --- the header ---

byId("theme")?.addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("ebbtide-theme", root.dataset.theme); } catch { /* storage may be off */ }
  document.dispatchEvent(new Event("themed"));
});

/** On a telephone the names of the pages scroll: that of this page is in sight. */
const here = document.querySelector(".bar nav a[aria-current]"), pages = here?.parentElement;
if (here && pages.scrollWidth > pages.clientWidth) pages.scrollLeft = here.offsetLeft - pages.offsetLeft - (pages.clientWidth - here.offsetWidth) / 2;

byId("logout")?.addEventListener("click", async () => {
  loggingOut = true;
  try { await post("/logout"); } catch { /* it is over in any case */ }
  loggingOut = false;
  leave("you have logged out");
});

document.addEventListener("keydown", (event) => {
  const menu = document.querySelector("details.who[open]");
  if (event.key === "Escape" && menu) { menu.open = false; menu.querySelector("summary").focus(); }
});
