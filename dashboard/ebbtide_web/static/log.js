// A log as it is printed: lines as text, the newest kept, and something to look for.
import { base, byId, h, put, stream } from "./app.js";

const MOST = 3000; // lines that are kept on the page; the file has all
const OF_A_BLOCK = 200; // lines of a block; the browser lays out and draws only those blocks that can be seen
const STYLES = /^[a-z0-9 ]*$/;
const STACKED = /\p{M}{3}/u; // marks on one letter that could reach other lines; to clip every line costs a page's memory

export function followLog(path, job) {
  const box = byId("log"), tools = byId("log-tools");
  let following = true, source = null, open = null, lack = null, hits = [], at = -1, rank = "", attempt = "", previous = 0;
  const follow = h("input", { type: "checkbox", checked: true, onchange: (event) => { following = event.target.checked; if (following) bottom(); } });
  const search = h("input", { type: "search", placeholder: "Find in the log", maxlength: 100, "aria-label": "Find in the log", oninput: () => mark(), onkeydown: (event) => { if (event.key === "Enter") { event.preventDefault(); jump(event.shiftKey ? -1 : 1); } } });
  const count = h("span", { class: "dim small hits", role: "status" });
  const attempts = h("select", { "aria-label": "Attempt", onchange: (event) => { attempt = event.target.value; begin(); } });
  const ranks = h("input", { type: "number", min: 0, max: 99999, placeholder: "all", class: "narrow", onchange: (event) => { rank = event.target.value; begin(); } });
  const trace = h("button", { type: "button", class: "quiet", onclick: () => { const found = lines().filter(isTraceback).pop(); if (found) reach(found); else trace.hidden = true; } }, "Traceback");
  const file = h("a", { href: `${base}${path}/log.txt`, download: true }, "Download");
  tools.replaceChildren(attempts, h("label", { class: "rank" }, "Rank ", ranks), search, count, trace, h("label", { class: "check" }, follow, " Follow"), file);
  trace.hidden = true;

  const bottom = () => { box.scrollTop = box.scrollHeight; };
  box.addEventListener("scroll", () => {
    const low = box.scrollHeight - box.scrollTop - box.clientHeight < 24;
    if (!low && following && box.scrollTop < previous) { following = false; follow.checked = false; }
    previous = box.scrollTop;
  });

  const isStacked = (pieces) => STACKED.test(pieces.map(([text]) => text).join(""));
  const lineOf = (pieces) => h("div", { class: isStacked(pieces) ? "ln stacked" : "ln" }, pieces.map(([text, style]) => (style && STYLES.test(style) ? h("span", { class: style.split(" ").map((name) => `t-${name}`).join(" ") }, text) : text)), pieces.length ? null : "\u00a0");
  const note = (words) => h("div", { class: "ln note" }, words);

  const lines = () => [...box.querySelectorAll(".ln")];
  const isTraceback = (line) => line.textContent.startsWith("Traceback (most recent");

  function append(line) {
    let block = box.lastChild;
    if (!block || block.childElementCount >= OF_A_BLOCK) {
      block?.classList.add("full");
      block = h("div", { class: "block" });
      box.append(block);
    }
    block.append(line);
    return line;
  }

  function add(told, last) {
    open?.remove();
    for (const line of told.map(lineOf)) if (isTraceback(append(line))) trace.hidden = false;
    open = last ? append(lineOf(last)) : null;
    while ((box.childElementCount - 1) * OF_A_BLOCK >= MOST) box.firstChild.remove();
    if (search.value) mark();
    if (following) requestAnimationFrame(bottom);
  }

  function mark() {
    const text = search.value.toLowerCase();
    hits = [];
    for (const line of lines()) {
      const found = text !== "" && line.textContent.toLowerCase().includes(text);
      line.classList.toggle("hit", found);
      if (found) hits.push(line);
    }
    at = Math.min(at, hits.length - 1);
    count.textContent = text ? `${hits.length} found` : "";
  }
  function jump(step) { if (hits.length) { at = (at + step + hits.length) % hits.length; reach(hits[at]); } }
  function reach(line) { following = false; follow.checked = false; box.querySelector(".ln.at")?.classList.remove("at"); line.classList.add("at"); line.scrollIntoView({ block: "center" }); }

  /** Says why there is no more of the log, below what is shown of it. */
  function lacks(shown, words) {
    lack?.remove();
    lack = note(words);
    if (shown) append(lack); else box.replaceChildren(lack);
    if (following) requestAnimationFrame(bottom);
  }

  function begin() {
    source?.close();
    const query = new URLSearchParams();
    if (attempt) query.set("attempt", attempt);
    if (rank !== "") query.set("rank", rank);
    file.href = `${base}${path}/log.txt?${query}`;
    let shown = 0;
    trace.hidden = true;
    box.replaceChildren(note("Waiting for output …"));
    source = stream(`/stream${path}/log?${query}`, {
      begin: () => { tools.hidden = false; box.replaceChildren(note("Waiting for output …")); open = lack = null; shown = 0; },
      log: ({ attempt: number, gap, lines: told, open: last }) => {
        if (!shown) box.replaceChildren();
        if (number !== shown) { open?.remove(); open = null; append(note(`attempt ${number}`)); shown = number; }
        if (gap) { open?.remove(); open = null; append(note("some of the output is not kept")); }
        add(told, last);
      },
      finished: () => { if (!shown) box.replaceChildren(note("It has printed nothing.")); },
      away: ({ words }) => lacks(shown, `The log cannot be read now, which is tried again: ${words}`),
      refused: ({ words, status }) => { tools.hidden = status === 403; lacks(shown && status !== 403, words); }, // nothing to find or follow
    });
  }

  const update = (found) => {
    put(attempts, [found.attempts.length, attempt], () => [h("option", { value: "" }, "all attempts"), found.attempts.map((one) => h("option", { value: one.number, selected: String(one.number) === attempt }, `attempt ${one.number}`))]);
    attempts.hidden = found.attempts.length < 2;
    ranks.parentElement.hidden = !(found.attempts.at(-1)?.gpus > 1 || found.request.nodes > 1);
  };
  update(job);
  begin();
  return { update };
}
