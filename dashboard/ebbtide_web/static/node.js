// The page of one node: what it has, who is there, what happened, and, for operators, taking it out of service.
import { ask, base, byId, bytes, clock, coming, counting, empty, h, jobLink, linked, me, now, plural, post, put, read, say, scroller, setAway, state, stream, time, whyNot } from "./app.js";
import { gpuSections } from "./gpu_sections.js";

const name = byId("node").dataset.name;
const path = `/nodes/${encodeURIComponent(name)}`;
const ACTIONS = [["Drain", "drain"], ["Undrain", "undrain"], ["Confirm dead", "confirm-dead"], ["Remove", "remove"]];
const DEADLINES = [["", "they run to their end"], ["0", "they leave at once"], ["600", "they leave within 10 minutes"], ["3600", "they leave within an hour"], ["14400", "they leave within 4 hours"], ["86400", "they leave within a day"]];
const LIMITS = { enforced: "enforced", booked: "not enforced", watched: "watched" };
let node = null;

// --- changes ---

/** Why a verb does not fit the state of the node; empty if it does. */
function obstacle(verb) {
  const silent = node.state === "down" || node.state === "ended";
  switch (verb) {
    case "drain": return "";
    case "undrain": return node.drain ? "" : "It is in service.";
    case "confirm-dead": return !silent ? "It is connected: this is for nodes that are silent." : node.dead ? `It counts as dead: ${node.dead} said so.` : "";
    case "remove": return !silent ? "It is connected: stop its agent first." : "";
    default: return "";
  }
}

function showActions() {
  const place = byId("actions");
  if (me.role === "user") { put(place, "theirs", () => h("p", { class: "dim small" }, "Only operators can change this node.")); return; }
  if (!place.buttons) {
    place.buttons = ACTIONS.map(([words, verb]) => h("button", { type: "button", "data-verb": verb, class: verb === "remove" || verb === "confirm-dead" ? "danger" : "", onclick: () => act(words, verb) }, words));
    place.replaceChildren(...place.buttons);
  }
  for (const button of place.buttons) whyNot(button, obstacle(button.dataset.verb));
}

async function act(words, verb) {
  let fields = {};
  if (verb === "drain") {
    fields = await askDrain();
    if (!fields) return;
  }
  if (verb === "confirm-dead") {
    const sure = await ask({ verb: words, danger: true, title: `Is it certain that nothing runs on node ${name} any more?`, follows: [
      "Its jobs go on elsewhere from their last checkpoints, at once.",
      "If the node does run on, two copies of these jobs run, and nothing else keeps them apart: this cannot be undone."] });
    if (!sure) return;
  }
  if (verb === "remove") {
    const sure = await ask({ verb: words, danger: true, title: `Remove node ${name}?`, follows: [
      "It is not listed any more. The master refuses this while something may run there, or a job needs it.",
      "If its agent comes back with a valid certificate, it is a node again."] });
    if (!sure) return;
  }
  try {
    const found = await post(`${path}/${verb}`, fields);
    say(found.done);
    if (verb === "remove") location.assign(`${base}/nodes`);
  } catch (error) { say(`${words}: ${error.message}`); }
}

/** Asks how to drain, and shows for each choice what becomes of the jobs there. */
async function askDrain() {
  const deadline = h("select", { name: "deadline" }, DEADLINES.map(([value, words]) => h("option", { value }, words)));
  const force = h("input", { type: "checkbox", name: "force", value: "1" });
  const forced = h("label", { class: "check", hidden: true }, force, " End jobs that cannot go on elsewhere");
  const outcomes = h("div", { class: "outcomes", role: "status" });
  let asked = 0;
  const preview = async () => {
    forced.hidden = deadline.value === "";
    if (deadline.value === "") force.checked = false;
    const number = ++asked, wanted = new URLSearchParams({ deadline: deadline.value, force: force.checked ? "1" : "" });
    try {
      const found = await read(`${path}/preview?${wanted}`);
      if (number === asked) outcomes.replaceChildren(found.jobs.length ? outcomeList(found.jobs) : h("p", { class: "dim" }, "Nothing runs there."));
    } catch (error) { if (number === asked) outcomes.replaceChildren(h("p", { class: "problem" }, error.message)); }
  };
  deadline.addEventListener("change", preview);
  force.addEventListener("change", preview);
  preview();
  const found = await ask({ verb: "Drain", title: `Drain node ${name}`, follows: ["Nothing new starts there until it is undrained, also after a restart."], fields: [
    h("label", {}, "Jobs there: ", deadline), forced, outcomes,
    h("label", {}, "Reason ", h("input", { name: "reason", maxlength: 200, autocomplete: "off", placeholder: "shown to all, such as: new fans" }))] });
  if (!found) return null;
  return { deadline: found.deadline === "" ? null : Number(found.deadline), force: Boolean(found.force), reason: found.reason };
}

const outcomeList = (jobs) => h("ul", { class: "outcome-list" }, jobs.map((job) => h("li", {}, jobLink(job.id, [h("b", {}, job.id), " ", job.name]), h("span", { class: "dim" }, ` ${job.user} `), job.text, fateTime(job))));

const fateTime = (job) => (job.when === null ? null : [", ", coming(job.when)]);

// --- what it is ---

function showState() {
  document.title = `Node ${node.name} · Ebbtide`;
  put(byId("facts"), [node.pool, node.moves_to, node.hostname, node.version, node.backend], () => [
    [node.hostname !== node.name ? node.hostname : "", `pool ${node.pool}`, node.version ? `Ebbtide ${node.version}` : "", node.backend ? node.backend === "fake" ? "fake GPUs" : `GPUs read by ${node.backend}` : ""].filter(Boolean).join(" · "),
    node.moves_to ? `, goes to pool ${node.moves_to} once nothing runs here` : null]);
  const drain = node.drain, down = node.state === "down", ends = node.certificate_ends;
  put(byId("state"), [node.state, down ? node.seen : 0, down ? "" : node.reason, drain, node.cpus, node.mem, node.limits, node.labels, node.taints, node.dead, ends], () => {
    const fact = (title, ...value) => h("div", { class: "fact" }, h("dt", {}, title), h("dd", {}, ...value));
    return h("div", { class: "state-panel" },
      h("div", { class: "state-line" }, state(node.state), node.dead ? h("span", { class: "reason" }, `counts as dead: ${node.dead} said so`) : down && node.seen ? h("span", { class: "reason" }, "silent for ", counting(Math.max(0, now() - node.seen), now(), true)) : null,
        node.reason && !down && !drain ? h("span", { class: "reason" }, node.reason) : null),
      drain ? h("p", {}, "Out of service since ", time(drain.since, false), drain.user ? ` by ${drain.user}` : "", drain.reason ? `: ${drain.reason}` : "", drain.deadline === null ? ". Jobs there run to their end." : [". Jobs have to leave by ", time(drain.deadline, false), drain.force ? "; those that cannot go on elsewhere are ended." : "."]) : null,
      h("dl", { class: "facts-list" },
        fact("CPUs", `${+node.cpus[0].toFixed(1)} of ${+node.cpus[1].toFixed(1)} booked`, LIMITS[node.limits.cpus] ? h("span", { class: "dim" }, `, ${LIMITS[node.limits.cpus]}`) : null),
        fact("Memory", `${bytes(node.mem[0])} of ${bytes(node.mem[1])} booked`, LIMITS[node.limits.mem] ? h("span", { class: "dim" }, `, ${LIMITS[node.limits.mem]}`) : null),
        Object.keys(node.labels).length ? fact("Labels", h("span", { class: "mono" }, Object.entries(node.labels).map(([key, value]) => `${key}=${value}`).join(" "))) : null,
        node.taints.length ? fact("Taints", h("span", { class: "mono" }, node.taints.join(" "))) : null,
        ends === null ? null : fact("Certificate", ends > now() ? `valid until ${clock(ends, false)}` : "has expired: join again")),
      h("p", { class: "dim small" }, "‘ebb doctor’ on this machine checks it, and names what mends it."));
  });
}

function showJobs() {
  const place = byId("jobs");
  place.hidden = !node.jobs.length;
  put(place, [node.jobs, Boolean(node.drain), node.more_jobs], () => [h("h2", { id: "jobs-title" }, node.drain ? "Jobs that are still here" : "Jobs"),
    scroller("Jobs on this node", h("table", {}, h("thead", {}, h("tr", {}, ["Job", "User", "State", node.drain ? "What becomes of it" : null].filter(Boolean).map((title) => h("th", { scope: "col" }, title)))),
      h("tbody", {}, node.jobs.map((job) => h("tr", {}, h("th", { scope: "row" }, jobLink(job.id, [job.id, " ", h("span", { class: "plain-name" }, job.name)])), h("td", {}, job.user), h("td", {}, state(job.state)), node.drain ? h("td", {}, job.text, fateTime(job)) : null))))),
    node.more_jobs ? h("p", { class: "dim small" }, `and ${node.more_jobs} more`) : null]);
}

function showStrays() {
  const place = byId("strays");
  place.hidden = !node.strays.length;
  put(place, node.strays, () => [h("h2", { id: "strays-title" }, "Set aside"), node.strays.map((stray) => h("p", {},
    `Attempt ${stray.job}.${stray.attempt} ${stray.kind === "over" ? "counts as over" : "is not in the master's journal"}; `,
    stray.ending ? "it is being ended." : ["this ends it: ", h("code", { class: "mono" }, `ebb node end-stray ${node.name} ${stray.job}.${stray.attempt}`)]))]);
}

function showGpus() {
  put(byId("gpus"), node.gpus, () => node.gpus.length ? gpuSections(node.gpus) : h("p", { class: "dim" }, "No GPUs: jobs that need none run here."));
}

let told = "", toldAt = 0;
async function showStory() {
  const key = JSON.stringify([node.state, node.drain, node.jobs.map((job) => [job.id, job.state])]);
  if (told === key && now() - toldAt < 30) return;
  told = key; toldAt = now();
  try {
    const found = await read(`/events/older?node=${encodeURIComponent(name)}&before=0`);
    put(byId("story"), found.events, () => found.events.length ? h("div", { class: "events", tabindex: 0, role: "region", "aria-label": "Events of this node" }, h("ol", { class: "story" }, found.events.map((event) => h("li", {}, time(event.time), h("span", {},
      event.job ? [jobLink(event.job, `job ${event.job}`), ": "] : null, event.text ? linked(event.text) : h("span", { class: "dim" }, `${event.kind} (not shown)`)))))) : h("p", { class: "dim" }, "Nothing of late."));
  } catch (error) { told = ""; put(byId("story"), error.message, () => h("p", { class: "dim" }, error.message)); }
}

let lostAt = 0;
stream(`/stream${path}`, {
  node: (found) => {
    lostAt = 0;
    setAway(null);
    node = found;
    showActions(); showState(); showStrays(); showJobs(); showGpus(); showStory();
  },
  away: ({ words }) => { lostAt ||= now(); setAway({ since: lostAt, words }); if (!node) put(byId("state"), "away", () => empty("The master does not answer, and this page was not loaded before. It goes on by itself.")); },
  refused: ({ words }) => put(byId("state"), words, () => h("p", { class: "empty" }, words)),
});
