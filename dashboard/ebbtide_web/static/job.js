// The page of one job: what it is, why it waits, its attempts and suspensions, its log and its story.
import { ask, base, byId, bytes, clock, coming, counting, duration, empty, gpuCount, gpuShare, h, jobLink, linked, listed, me, now, plural, post, put, read, say, scroller, setAway, short, state, stream, svg, time, whyNot } from "./app.js";
import { followLog } from "./log.js";

const id = byId("job").dataset.id;
const path = `/jobs/${encodeURIComponent(id)}`;
const PARTS = { save: "save", exit: "exit", free: "free the GPU", queue: "queue", start: "start", import: "import", load: "load", first_step: "first step" };
let job = null;
let log = null;
let explained = false; // whether the reason is told in words of its own

// --- changes ---

const RUNS = ["RUNNING", "STARTING", "UNREACHABLE"];
const ACTIONS = [["Suspend", "suspend"], ["Resume", "resume"], ["Hold", "hold"], ["Release", "release"], ["Resize", "resize"], ["Drill", "drill"], ["Priority", "priority"], ["Requeue", "requeue"], ["Cancel", "cancel"]];
const OF_TASKS = ["resize", "drill", "requeue"];

const mine = () => job.user === me.user || me.role !== "user";

/** Why a verb does not fit the state of a job; empty if it does. */
function obstacle(verb, j) {
  if (j.finished) return verb === "requeue" && !j.tasks ? "" : `It is over: ${j.state.toLowerCase()}.`;
  if (j.tasks) return OF_TASKS.includes(verb) ? "Each task of an array has this on its own page." : "";
  const runs = RUNS.includes(j.state), rests = j.state === "SUSPENDED", waits = j.state === "PENDING", steps = j.state === "SUSPENDING";
  switch (verb) {
    case "suspend": return runs || (rests && j.held !== "user") ? "" : rests ? "It is suspended already." : steps ? "It steps aside already." : waits ? "It does not run yet: ‘Hold’ keeps it from starting." : "It is being ended.";
    case "resume": return steps || (rests && j.held === "user") ? "" : rests ? "It comes back by itself as soon as there is room." : "It is not suspended.";
    case "hold": return waits && !j.held ? "" : waits ? "It is held already." : "It has started: ‘Suspend’ lets it step aside.";
    case "release": return (waits && j.held) || j.held === "system" ? "" : "It is not held.";
    case "drill": return !j.preemptible ? "It cannot be suspended, by its request." : j.state === "RUNNING" ? "" : "It does not run.";
    case "requeue": return runs ? "" : waits || rests ? "It is in the queue." : "It is leaving its GPUs.";
    case "resize": case "cancel": return j.state === "STOPPING" ? "It is being ended." : "";
    default: return "";
  }
}

/** Shows a button for every verb, always at the same place, so that none is under the pointer where another one was. */
function showActions() {
  const place = byId("actions");
  if (!mine()) { put(place, "theirs", () => h("p", { class: "dim small" }, `Only ${job.user} and operators can change this job.`)); return; }
  if (!place.buttons) {
    place.buttons = ACTIONS.map(([words, verb]) => h("button", { type: "button", "data-verb": verb, class: verb === "cancel" ? "danger" : "", onclick: () => act(words, verb) }, words));
    place.replaceChildren(...place.buttons);
  }
  for (const button of place.buttons) whyNot(button, obstacle(button.dataset.verb, job));
}

async function act(words, verb) {
  const fields = {};
  if (verb === "cancel") {
    const found = await ask({ verb: "Cancel", danger: true, title: `Cancel job ${id}?`, follows: [
      job.state === "RUNNING" ? `It is asked to leave, gets ${duration(job.request.grace_s)} to save, and ends for good.` : "It ends for good.",
      "It does not come back: this cannot be undone. Its log and its checkpoints stay."],
      fields: job.nodes.length ? [h("label", { class: "check" }, h("input", { type: "checkbox", name: "now", value: "1" }), " At once, without the grace period")] : [] });
    if (!found) return;
    if (found.now) fields.now = true;
  }
  if (verb === "requeue") {
    const found = await ask({ verb: "Requeue", title: `Requeue job ${id}?`, follows: [job.finished
      ? "It is submitted again as a new job, with the same request. This one stays as it is."
      : "It steps aside and goes back to the queue behind those that wait already; others may get its GPUs."] });
    if (!found) return;
    fields.operation = crypto.randomUUID?.() ?? undefined;
  }
  if (verb === "resize") {
    const gpus = job.gpus.min === job.gpus.max ? job.gpus.min : `${job.gpus.min}-${job.gpus.max}`;
    const found = await ask({ verb: "Resize", title: `Resize job ${id}`, follows: [
      `It has ${job.gpus.now === "0" ? "no GPUs now" : `${job.gpus.now} GPUs now`} and may have ${gpus}.`,
      job.nodes.length ? "To change size it saves, steps aside, and starts again with the new size as soon as there is room." : "It starts with the new size as soon as there is room."],
      fields: [h("label", {}, "GPUs ", h("input", { name: "gpus", value: gpus, required: true, autocomplete: "off", "aria-describedby": "gpus-help" })), h("p", { class: "dim small", id: "gpus-help" }, "A number such as 2, a share such as 1/2, or a range such as 1-4.")],
      check: (form) => /^\s*\d{1,5}(\/\d{1,2})?(\s*[-–]\s*\d{1,5}(\/\d{1,2})?)?\s*$/.test(form.elements.gpus.value) ? "" : "This is no number, share or range of GPUs." });
    if (!found) return;
    fields.gpus = found.gpus;
  }
  if (verb === "priority") {
    const found = await ask({ verb: "Priority", title: `Give job ${id} another priority`, follows: ["1 is the most urgent, 99 the least. It counts from the next decision on."],
      fields: [h("label", {}, "Priority ", h("input", { name: "priority", type: "number", min: 1, max: 99, value: job.request.priority, required: true }))] });
    if (!found) return;
    fields.priority = Number(found.priority);
  }
  try {
    const found = await post(`${path}/${verb}`, fields);
    say(found.done);
    if (verb === "requeue" && found.id && found.id !== id) location.assign(`${base}/jobs/${encodeURIComponent(found.id)}`);
  } catch (error) { say(`${words}: ${error.message}`); }
}

// --- what it is ---

function gpuWords(found, finished) {
  const verb = finished ? "asked for" : "wants";
  if (found.now !== "0") return gpuCount(found.now);
  if (found.min === "0") return "no GPU";
  return found.min === found.max ? `${verb} ${gpuCount(found.min)}` : `${verb} ${found.min}–${found.max} GPUs`;
}

function showState() {
  byId("kind").textContent = job.tasks ? "Array" : "Job";
  byId("name").textContent = job.name || id;
  document.title = `${job.tasks ? "Array" : "Job"} ${id} ${job.name} · Ebbtide`;
  put(byId("facts"), [job.user, job.pool, job.submitted, job.array, job.again_of, job.again_as, job.moves_to], () => [
    job.user, " · submitted ", time(job.submitted, false), job.pool ? ` · pool ${job.pool}` : null, job.moves_to ? `, soon ${job.moves_to}` : null,
    job.array ? [" · task ", String(job.index), " of ", jobLink(job.array, `array ${job.array}`)] : null,
    job.again_of ? [" · again of ", jobLink(job.again_of, `job ${job.again_of}`)] : null, job.again_as ? [" · run again as ", jobLink(job.again_as, `job ${job.again_as}`)] : null]);
  const progress = job.progress, share = progress?.total ? Math.min(1, progress.step / progress.total) : null;
  const left = share !== null && job.steps_per_s ? (progress.total - progress.step) / job.steps_per_s : null;
  const running = ["RUNNING", "SUSPENDING", "STOPPING"].includes(job.state), waits = ["PENDING", "SUSPENDED", "STARTING"].includes(job.state) && job.held !== "user";
  put(byId("state"), [job.state, job.reason, job.held, job.gpus, job.nodes, progress, job.steps_per_s, job.waited, job.ran, job.preemptions, job.attempt, job.exit_code, job.checkpoint, job.proved, running, waits, job.tasks, explained], () => {
    const bar = share === null ? null : h("div", { class: "progress", role: "progressbar", "aria-label": "Progress", "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": Math.round(100 * share) }, h("span", { class: "fill" }));
    if (bar) bar.firstChild.style.width = `${100 * share}%`;
    const fact = (title, ...value) => h("div", { class: "fact" }, h("dt", {}, title), h("dd", {}, ...value));
    return h("div", { class: "state-panel" },
      h("div", { class: "state-line" }, job.tasks ? Object.entries(job.tasks.states).map(([name, count]) => [state(name), ` ${count} `]) : state(job.state), job.reason && job.reason.toUpperCase() !== job.state && !explained && !job.tasks ? h("span", { class: "reason" }, linked(job.reason)) : null),
      bar,
      h("dl", { class: "facts-list" },
        progress ? fact("Progress", `step ${progress.step.toLocaleString("en")}${progress.total ? ` of ${progress.total.toLocaleString("en")}` : ""}`, job.steps_per_s ? h("span", { class: "dim" }, ` ${job.steps_per_s.toPrecision(3)} steps/s${left !== null && running ? `, about ${short(left)} left` : ""}`) : null) : null,
        progress && progress.loss !== null ? fact("Loss", progress.loss.toPrecision(4)) : null,
        progress?.diverged.length ? fact("Diverged", progress.diverged.join(", ")) : null,
        progress ? Object.entries(progress.metrics).slice(0, 6).map(([name, value]) => fact(name, Number(value).toPrecision(4))) : null,
        fact("GPUs", gpuWords(job.gpus, job.finished), job.nodes.length ? h("span", { class: "dim" }, ` on ${job.nodes.map((one) => one.node).join(", ")}`) : null),
        fact("Waited", counting(job.waited, job.at, waits)), fact("Ran", counting(job.ran, job.at, running)),
        job.attempt ? fact("Attempts", String(job.attempt), h("span", { class: "dim" }, [["preempted", job.preemptions], ["resized", job.resizes], ["restarted", job.restarts]].filter(([, times]) => times).map(([what, times]) => ` ${what} ${times}×`).join(","))) : null,
        job.checkpoint ? fact("Checkpoint", job.checkpoint.step === null ? "kept" : `step ${job.checkpoint.step.toLocaleString("en")}`, h("span", { class: "dim" }, ` ${bytes(job.checkpoint.bytes)}${job.checkpoint.verified ? ", verified" : ""}`)) : null,
        job.exit_code !== null ? fact("Exit code", String(job.exit_code)) : null,
        job.preemptible && job.attempt && !job.finished && !job.tasks ? fact("Can suspend", job.proved ? "proved" : "not tried yet", job.proved ? (job.save_s !== null ? h("span", { class: "dim" }, ` ${duration(job.save_s)} to step aside`) : null) : h("span", { class: "dim" }, mine() ? " a drill tests it" : "")) : null,
        !job.preemptible ? fact("Can suspend", "no, by its request") : null));
  });
}

// --- why it waits ---

function showWhy(found) {
  const place = byId("why");
  place.hidden = false;
  if (!place.form) {
    place.form = whatIf();
    place.words = h("div", {});
    place.replaceChildren(h("h2", { id: "why-title" }, "Why it waits"), place.words, place.form);
  }
  place.form.elements.priority.placeholder = job.request.priority;
  put(place.words, { ...found, at: 0 }, () => {
    const seen = found.forecast;
    return [
      h("p", { class: "big" }, linked(found.reason || "It waits for its turn.")),
      h("dl", { class: "facts-list" },
        h("div", { class: "fact" }, h("dt", {}, "May start"), h("dd", {}, startWords(seen, found))),
        found.ahead !== null ? h("div", { class: "fact" }, h("dt", {}, "Before it"), h("dd", {}, found.ahead ? plural(found.ahead, "job") : "none")) : null,
        h("div", { class: "fact" }, h("dt", {}, "It needs"), h("dd", {}, found.needs))),
      seen?.preempts.length ? h("p", {}, "It would preempt ", seen.preempts.map((one, at) => [at ? ", " : "", jobLink(one, `job ${one}`)]), ".") : null,
      found.stays.map((stays) => h("p", { class: "small" }, stays.many === 1 ? "Job " : "Jobs ", listed(stays.jobs.map((one) => jobLink(one)), stays.many - stays.jobs.length), stays.many === 1 ? " is" : " are", stays.until === null ? ` not asked to step aside: ${stays.reason}.` : ` spared until ${clock(stays.until)} (${stays.reason}).`)),
      found.nodes.length ? h("details", { class: "nodes-table", open: found.nodes.length <= 8 }, h("summary", {}, `What ${plural(found.nodes.length + found.more_nodes, "node")} could give it`),
        scroller("Nodes", h("table", {}, h("thead", {}, h("tr", {}, ["Node", "Idle GPUs", "In the way"].map((title) => h("th", { scope: "col" }, title)))),
          h("tbody", {}, found.nodes.map((node) => h("tr", {}, h("th", { scope: "row" }, node.node), h("td", { class: "number" }, `${node.idle} of ${node.gpus}`), h("td", {}, linked(node.obstacle || "nothing")))))))) : null];
  });
}

function startWords(seen, found) {
  if (!seen) return "not foreseen";
  const rest = seen.after.filter((one) => !seen.preempts.includes(one));
  const basis = [seen.start === null ? "" : ", ", linked(seen.basis), rest.length ? ["; ", rest.map((one, at) => [at ? ", " : "", jobLink(one, `job ${one}`)]), rest.length === 1 ? " has to leave first" : " have to leave first"] : null, seen.nodes.length ? ` (on ${seen.nodes.join(", ")})` : null];
  if (seen.start === null) return basis;
  return [h("b", {}, coming(seen.start, "in about", "duration")), seen.start - now() < 5 ? null : [", at ", time(seen.start, false)], basis];
}

function whatIf() {
  const result = h("p", { role: "status" });
  const form = h("form", { class: "what-if" }, h("span", {}, "What if it had"), h("label", {}, "priority ", h("input", { name: "priority", type: "number", min: 1, max: 99 })),
    h("label", {}, "GPUs ", h("input", { name: "gpus", placeholder: "1-4", maxlength: 16, autocomplete: "off" })), h("button", { type: "submit" }, "Look ahead"), result);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const wanted = new URLSearchParams([...new FormData(form)].filter(([, value]) => value));
    if (![...wanted].length) { result.textContent = "Name a priority or a number of GPUs: nothing is changed by looking."; return; }
    result.textContent = "Looking ahead …";
    try {
      const found = await read(`${path}/explain?${wanted}`);
      result.replaceChildren("It would start: ", ...[startWords(found.what_if, found)].flat(Infinity).filter(Boolean), ".");
    } catch (error) { result.textContent = error.message; }
  });
  return form;
}

// --- attempts and suspensions ---

function showRun() {
  const place = byId("run");
  place.hidden = !job.attempts.length;
  put(place, [job.attempts, job.suspensions, job.finished], () => [
    h("h2", { id: "run-title" }, "Attempts and suspensions"), line(), job.suspensions.length ? suspensions() : null,
    scroller("Attempts", h("table", {}, h("thead", {}, h("tr", {}, ["Attempt", "Placed", "Started", "Ended", "From step", "GPUs", "Node", "Outcome"].map((title) => h("th", { scope: "col" }, title)))),
      h("tbody", {}, job.attempts.map((one) => h("tr", {}, h("th", { scope: "row" }, String(one.number)), h("td", {}, one.placed ? time(one.placed) : "–"), h("td", {}, one.started ? time(one.started) : "–"), h("td", {}, one.ended ? time(one.ended) : "–"),
        h("td", { class: "number" }, one.resumed_step === null ? "–" : one.resumed_step.toLocaleString("en")), h("td", { class: "number" }, gpuShare(one.gpus)), h("td", {}, one.nodes.join(", ")), h("td", {}, linked(one.outcome || "runs")))))))]);
}

/** All of its life on one line: attempts as bars as high as they had GPUs, and what came between them. */
function line() {
  const begin = job.submitted, end = Math.max(job.ended ?? now(), begin + 1), wide = 1000, high = 44, most = Math.max(1, ...job.attempts.map((one) => one.gpus));
  const x = (moment) => Math.max(0, Math.min(wide, ((moment - begin) / (end - begin)) * wide));
  const bars = [svg("line", { x1: 0, x2: wide, y1: high - 0.5, y2: high - 0.5, class: "axis" })];
  for (const one of job.attempts) {
    const from = x(one.placed), to = Math.max(from + 3, x(one.ended ?? end)), tall = 10 + (high - 16) * (one.gpus / most);
    if (one.started && one.started > one.placed) bars.push(svg("rect", { x: from, width: Math.max(1, x(one.started) - from), y: high - tall, height: tall, class: "starting" }));
    bars.push(svg("rect", { x: x(one.started ?? one.placed), width: Math.max(2, to - x(one.started ?? one.placed)), y: high - tall, height: tall, class: "attempt" }, svg("title", {}, `attempt ${one.number}`)));
  }
  for (const one of job.suspensions) {
    const back = one.working ?? one.resumed ?? one.placed ?? end;
    bars.push(svg("rect", { x: x(one.requested), width: Math.max(2, x(back) - x(one.requested)), y: high - 7, height: 7, class: "aside" }, svg("title", {}, one.reason)));
  }
  const drawing = svg("svg", { class: "life", viewBox: `0 0 ${wide} ${high}`, preserveAspectRatio: "none", role: "img", "aria-label": `${plural(job.attempts.length, "attempt")} and ${plural(job.suspensions.length, "suspension")} in ${duration(end - begin)}; the tables below have the same in figures` }, bars);
  return h("figure", { class: "life-figure" }, drawing, h("figcaption", { class: "dim small" }, h("span", {}, clock(begin)), h("span", { class: "keys" }, h("span", { class: "key k-attempt" }), "attempt ", h("span", { class: "key k-starting" }), "starting ", h("span", { class: "key k-aside" }), "without a step"), h("span", {}, job.finished ? clock(end) : "now")));
}

function suspensions() {
  return job.suspensions.slice(-20).reverse().map((one, at) => {
    const number = job.suspensions.length - at, parts = Object.entries(one.parts), sum = parts.reduce((total, [, seconds]) => total + seconds, 0);
    const bar = h("div", { class: "parts", "aria-hidden": "true" }, parts.map(([name, seconds]) => { const found = h("span", { class: `fill p-${name}` }); found.style.flexGrow = String(Math.max(seconds, sum / 200) / sum * 1000); return found; }));
    const repeated = one.left_step !== null && one.kept_step !== null && one.left_step > one.kept_step ? `, repeats ${plural(one.left_step - one.kept_step, "step")}` : "";
    return h("section", { class: "suspension", "aria-label": `Suspension ${number}` },
      h("p", {}, h("b", {}, `Suspension ${number}`), " ", time(one.requested), ": ", linked(one.reason || "asked to leave"), h("span", { class: "dim" }, one.saved === "yes" ? `, saved${one.bytes ? ` ${bytes(one.bytes)}` : ""}` : one.saved === "no" ? ", saved nothing" : "", repeated)),
      parts.length ? [bar, scroller(`Parts of suspension ${number}`, h("table", { class: "parts-table" }, h("caption", { class: "unseen" }, "Parts of this suspension"), h("thead", {}, h("tr", {}, parts.map(([name]) => h("th", { scope: "col" }, h("span", { class: `key p-${name}` }), PARTS[name])), h("th", { scope: "col" }, "in all"))),
        h("tbody", {}, h("tr", {}, parts.map(([, seconds]) => h("td", { class: "number" }, duration(seconds))), h("td", { class: "number" }, h("b", {}, duration(sum)))))))] : null,
      one.lost ? h("p", { class: "warn-words small" }, one.lost) : null, one.hint ? h("p", { class: "small" }, one.hint) : null, one.note ? h("p", { class: "dim small" }, one.note) : null);
  });
}

// --- the rest ---

function showRequest() {
  const request = job.request, fact = (title, value, kind = "") => (value ? h("div", { class: "fact" }, h("dt", {}, title), h("dd", { class: kind }, value)) : null);
  put(byId("request"), [request, job.params], () => h("dl", { class: "facts-list tall" },
    fact("Command", request.command, "mono"), fact("Directory", request.workdir, "mono"), fact("Class", `${request.class === "te" ? "trial and error" : "best effort"}, priority ${request.priority}`),
    request.weight !== 1 ? fact("Weight", String(request.weight)) : null, fact("Group", request.group),
    fact("GPUs", job.gpus.min === job.gpus.max ? job.gpus.min : `${job.gpus.min}–${job.gpus.max}`), fact("GPU memory", request.gpu_mem ? bytes(request.gpu_mem) : ""),
    request.nodes > 1 || request.max_nodes > 1 ? fact("Nodes", request.max_nodes > 1 ? `1–${request.max_nodes}` : String(request.nodes)) : null,
    fact("CPUs", request.cpus ? String(request.cpus) : ""), fact("Memory", request.mem ? bytes(request.mem) : ""),
    fact("Suspend", `${request.suspend}${request.signal ? `, ${request.signal}` : ""}, grace period ${duration(request.grace_s)}`), fact("Time limit", request.time_limit_s === null ? "" : duration(request.time_limit_s)),
    fact("Retries", request.retries ? String(request.retries) : ""), fact("Params", Object.entries(job.params).map(([name, value]) => `${name}=${value}`).join(" "), "mono"), fact("Variables", request.env.join(", "), "mono")));
}

let told = "";
async function showStory() {
  byId("story").closest("section").hidden = job.tasks !== null;
  if (job.tasks) return;
  const key = JSON.stringify([job.state, job.attempt, job.suspensions.length, job.reason]);
  if (told === key) return;
  told = key;
  try {
    const found = await read(`${path}/story`);
    put(byId("story"), found, () => h("div", {}, found.left_out ? h("p", { class: "dim small" }, `${found.left_out} earlier events: ‘ebb story ${id}’ shows them.`) : null,
      h("div", { class: "events", tabindex: 0, role: "region", "aria-label": "Events of this job" }, h("ol", { class: "story" }, [...found.events].reverse().map((event) => h("li", {}, time(event.time), h("span", {}, event.text ? linked(event.text) : h("span", { class: "dim" }, `${event.kind} (not shown)`))))))));
  } catch (error) { told = ""; put(byId("story"), error.message, () => h("p", { class: "dim" }, error.message)); }
}

async function showTasks() {
  const place = byId("tasks");
  place.hidden = !job.tasks;
  if (!job.tasks) return;
  try {
    const found = await read(`${path}/tasks`);
    put(place, found, () => [h("div", { class: "title" }, h("h2", {}, "Tasks"), h("a", { href: `${base}/arrays/${encodeURIComponent(id)}` }, "All tasks, and what their params did")), scroller("Tasks", h("table", {}, h("thead", {}, h("tr", {}, ["Task", "State", "Params", "Progress", "Why"].map((title) => h("th", { scope: "col" }, title)))),
      h("tbody", {}, found.tasks.map((one) => h("tr", {}, h("th", { scope: "row" }, jobLink(`${found.id}.${one.index}`)), h("td", {}, state(one.state)), h("td", { class: "mono" }, Object.entries(one.params).map(([name, value]) => `${name}=${value}`).join(" ")),
        h("td", {}, one.step === null ? "–" : `step ${one.step}${one.value === null ? "" : `, ${found.metric} ${one.value.toPrecision(4)}`}`), h("td", {}, linked(one.reason))))))), found.left_out ? h("p", { class: "dim small" }, `and ${found.left_out} more.`) : null]);
  } catch (error) { put(place, error.message, () => h("p", { class: "problem" }, error.message)); }
}

let lostAt = 0;
stream(`/stream${path}`, {
  job: (found) => {
    lostAt = 0;
    setAway(null);
    job = found;
    if (!["PENDING", "SUSPENDED"].includes(job.state) || job.tasks) { byId("why").hidden = true; explained = false; }
    showActions(); showState(); showRun(); showRequest(); showStory(); showTasks();
    if (!log && !job.tasks) log = followLog(path, job);
    if (job.tasks) byId("log").closest("section").hidden = true;
    log?.update(job);
  },
  explained: (found) => { if (job && ["PENDING", "SUSPENDED"].includes(job.state)) { explained = true; showWhy(found); showState(); } },
  away: ({ words }) => { lostAt ||= now(); setAway({ since: lostAt, words }); if (!job) put(byId("state"), "away", () => empty("The master does not answer, and this page was not loaded before. It goes on by itself.")); },
  refused: ({ words }) => put(byId("state"), words, () => h("p", { class: "empty" }, words)),
  final: () => {},
});
