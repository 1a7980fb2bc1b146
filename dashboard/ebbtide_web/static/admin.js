// The page for operators and admins: what is set and what the file says, users and tokens, journal and agents.
import { ask, base, byId, clock, duration, h, me, now, plural, post, put, read, say, scroller, short, setAway, state } from "./app.js";

const SOON_S = 14 * 86_400, AT_ONCE = 50;
const isAdmin = me.role === "admin";
let lostAt = 0, again = 0;

async function load() {
  try {
    show(await read("/admin/facts"));
    lostAt = 0;
    setAway(null);
  } catch (error) {
    byId("count").textContent = error.message;
    if (error.status && error.status !== 503) return; // it is refused, and not away
    lostAt ||= now();
    setAway({ since: lostAt, words: error.message });
    clearTimeout(again);
    again = setTimeout(load, 5000);
  }
}

const node = (name) => h("a", { href: `${base}/nodes/${encodeURIComponent(name)}` }, name);
/** A table whose rows are made some at a time, and laid out where they are seen if there are many, so that a thousand
    never hold up what somebody types or scrolls. */
function table(label, titles, rows) {
  const body = h("tbody", {});
  const some = (from) => { body.append(...rows.slice(from, from + AT_ONCE).map((make) => make())); if (from + AT_ONCE < rows.length) requestAnimationFrame(() => some(from + AT_ONCE)); };
  some(0);
  const found = scroller(label, h("table", {}, h("thead", {}, h("tr", {}, titles.map((title) => h("th", { scope: "col" }, title)))), body));
  found.classList.toggle("long", rows.length > AT_ONCE);
  return found;
}
const row = (first, ...rest) => () => h("tr", {}, h("th", { scope: "row" }, first), rest.map((one) => h("td", {}, one)));
const moment = (seconds) => (seconds === null ? "never" : clock(seconds, false));
/** When something was last used: not to the second, which would be another text whenever the page is read again. */
const lastUsed = (seconds) => (seconds === null ? "not known" : now() - seconds < 120 ? "now" : `${short(now() - seconds)} ago`);
const more = (count, noun) => (count ? h("p", { class: "dim small" }, `and ${plural(count, noun)} more: ‘ebb’ lists all.`) : null);

function section(id, title, key, make) {
  byId(id).hidden = false;
  put(byId(id), key, () => [h("div", { class: "title" }, h("h2", { id: `${id}-title` }, title)), make()]);
}

function show(found) {
  const { cluster, journal } = found;
  byId("count").textContent = `Ebbtide ${cluster.version}, started ${plural(cluster.epoch, "time")}, ${plural(cluster.unfinished, "unfinished job")}; as of ${clock(now())}`;
  const problems = problemsOf(found);
  section("problems", "What is open", problems, () => problems.length
    ? h("ul", { class: "problem-list" }, problems.map(([where, words]) => h("li", {}, where ? [node(where), ": "] : null, words)))
    : h("p", { class: "dim" }, "Nothing."));
  section("settings", "Configuration", [found.settings, found.changed, found.needs_restart, found.problem], () => settings(found));
  section("pools", "Pools", cluster.pools, () => table("Pools", ["Pool", "Policy", "Options", "Fitting", "Jobs that name no pool"], cluster.pools.map((pool) => row(pool.name, pool.policy || "none: it starts nothing",
    Object.entries(pool.options).map(([key, value]) => `${key}=${value}`).join(" ") || "defaults", pool.fitting, [pool.for_gpus ? "with GPUs" : "", pool.for_cpus ? "without" : ""].filter(Boolean).join(", ") || "–"))));
  section("quotas", "Quotas in use", found.quotas, () => found.quotas.length
    ? table("Quotas in use", ["User", "GPUs", "Unfinished jobs"], found.quotas.map((one) => row(one.user, `${+one.gpus_used.toFixed(2)} of ${one.gpus === null ? "any number" : +one.gpus.toFixed(2)}`, `${one.unfinished} of ${one.queued === null ? "any number" : one.queued}`)))
    : h("p", { class: "dim" }, "No user with a quota has an unfinished job. [quotas] in the configuration gives users one."));
  section("users", "Users", [found.users, found.more_users], () => [
    table("Users", ["User", "Role", "Account on nodes", "Tokens", "Last used"], found.users.map((one) => row(one.name, one.role, one.account, String(one.tokens), lastUsed(one.used)))), more(found.more_users, "user"),
    h("p", { class: "dim small" }, "‘ebb user add’, ‘ebb user set’ and ‘ebb user remove’ change them.")]);
  section("tokens", found.all_tokens ? "Tokens" : "Your tokens", [found.tokens, found.more_tokens], () => tokens(found));
  section("journal", "Journal", [journal, cluster.certificate_ends], () => h("dl", { class: "facts-list" },
    fact("Kept in", journal.kind === "file" ? "a file of the master’s home" : journal.kind),
    journal.kind === "file" ? null : fact("Standbys", standbys(journal.standbys)),
    fact("Events", `${journal.events.toLocaleString("en")}, the last ${moment(journal.last)}`),
    fact("Room", journal.has_room ? "enough" : "none for new jobs"),
    fact("Damaged lines", String(journal.damaged)),
    fact("Newest backup", journal.kind === "file" ? moment(journal.backed_up) : "the database’s own"),
    journal.restored === null ? null : fact("Restored from a backup", moment(journal.restored)),
    cluster.certificate_ends === null ? null : fact("Master’s certificate", `valid until ${moment(cluster.certificate_ends)}`)));
  section("agents", "Agents", [found.nodes, found.versions], () => [
    h("p", { class: "dim" }, Object.entries(found.versions).map(([version, count]) => `${plural(count, "node")} with ${version}`).join(", ") || "No node has joined: ‘ebb agent’ starts one."),
    found.nodes.length ? table("Agents", ["Node", "State", "Version", "Certificate"], found.nodes.map((one) => () => row(node(one.name), state(one.state), one.version || "not known", one.certificate_ends === null ? "needs none" : `until ${moment(one.certificate_ends)}`)())) : null,
    more(found.more_nodes, "node")]);
}

const fact = (title, ...value) => h("div", { class: "fact" }, h("dt", {}, title), h("dd", {}, value));

/** The masters that wait to lead: none lags, as each reads the whole journal when it takes over. */
const standbys = (list) => (list.length ? list.map((one) => h("div", {}, `${one.name}, ${one.heard_s < 5 ? "ready to take over" : `silent for ${duration(one.heard_s)}`}`)) : "none: if this master ends, nobody takes over");

/** What needs somebody, each with the node that it is about, if it is about one. */
function problemsOf(found) {
  const { cluster, journal } = found, list = [];
  const ends = (name, moment_) => { if (moment_ !== null && moment_ < now() + SOON_S) list.push([name, `${name ? "its" : "the master’s"} certificate ${moment_ < now() ? "has expired" : `expires ${clock(moment_, false)}`}`]); };
  if (found.problem) list.push(["", `The configuration file is wrong, and a reload would change nothing: ${found.problem}`]);
  if (cluster.recovering) list.push(["", "The master waits for nodes after its start, and starts nothing yet."]);
  if (!journal.has_room) list.push(["", "The journal has no room for new jobs."]);
  if (journal.damaged) list.push(["", `${plural(journal.damaged, "line")} of the journal cannot be read, and ${journal.damaged === 1 ? "is" : "are"} set aside.`]);
  ends("", cluster.certificate_ends);
  for (const name of found.doubted) list.push([name, "fell silent together with others: is the master cut off?"]);
  for (const name of found.unheard) list.push([name, "has to say what it has before anything starts"]);
  for (const { node: name, words } of found.node_problems) list.push([name, words]);
  for (const one of found.nodes) {
    ends(one.name, one.certificate_ends);
    if (one.version && one.version !== cluster.version) list.push([one.name, `runs ${one.version}, and the master ${cluster.version}`]);
  }
  return list;
}

function settings(found) {
  const differs = (one) => !found.problem && one.value !== one.in_file;
  const words = found.problem ? found.problem : found.changed.length || found.needs_restart.length
    ? `The file says something else. A reload would take in: ${found.changed.join(", ") || "nothing"}. A restart is needed for: ${found.needs_restart.join(", ") || "nothing"}.` : "The file says what holds.";
  const reload = isAdmin ? h("button", { type: "button", "data-verb": "reload", onclick: () => act("reload", {}, { verb: "Reload", title: "Read the configuration again?", follows: [words, "What changes holds at once, for jobs that are there already, too."] }) }, "Reload") : null;
  const changed = found.settings.filter(differs);
  const rows = (list) => list.map((one) => row(h("span", { class: "mono" }, one.name), one.value ?? "–", found.problem ? "cannot be read" : differs(one) ? h("b", {}, one.in_file ?? "–") : "the same"));
  return [h("p", { class: found.problem ? "problem" : "" }, words), changed.length ? table("Settings that differ", ["Setting", "Holds", "In the file"], rows(changed)) : null,
    h("div", { class: "tools" }, reload), h("details", { class: "as-table" }, h("summary", {}, "All settings"), table("All settings", ["Setting", "Holds", "In the file"], rows(found.settings)))];
}

function tokens(found) {
  const revoke = (one) => h("button", { type: "button", class: "danger", "data-verb": "revoke", "aria-label": `Revoke token ${one.id}`, onclick: () => act("revoke", { id: one.id }, {
    verb: "Revoke", danger: true, title: `Revoke token ${one.id} of ${one.user}?`, follows: [one.own ? "It is the one of this session, which ends." : "Whoever has it is refused from now on, and connections that were opened with it are closed.", "This cannot be undone."] }) }, "Revoke");
  return [h("div", { class: "tools" }, h("button", { type: "button", "data-verb": "create", onclick: create }, "New token"), found.all_tokens ? null : h("span", {}, "Only admins see others’.")),
    table("Tokens", ["Id", "User", "Label", "Created", "Last used", "Expires", "Revoke"], found.tokens.map((one) => () => row(h("span", { class: "mono" }, one.id), one.user, one.own ? `${one.label} (this session)` : one.label || "–", moment(one.created), lastUsed(one.used), moment(one.expires), revoke(one))())), more(found.more_tokens, "token")];
}

async function act(verb, fields, question) {
  if (!(await ask(question))) return;
  try { say((await post(`/admin/${verb}`, fields)).done); } catch (error) { say(`${question.verb}: ${error.message}`); }
  load();
}

async function create() {
  const found = await ask({ verb: "Create", title: "Create a token", follows: ["Whoever has it can act as its user. Its text is shown once."], fields: [
    isAdmin ? h("label", {}, "User ", h("input", { name: "user", maxlength: 32, autocomplete: "off", placeholder: me.user })) : null,
    h("label", {}, "Label ", h("input", { name: "label", maxlength: 128, autocomplete: "off", placeholder: "such as: laptop" })),
    h("label", {}, "Valid for ", h("input", { name: "days", type: "number", min: 1, max: 3650, value: 90, class: "narrow" }), " days")].filter(Boolean) });
  if (!found) return;
  try {
    const made = await post("/admin/create", { user: (found.user ?? "").trim(), label: found.label, days: Number(found.days) });
    await showOnce(made);
  } catch (error) { say(`Create: ${error.message}`); }
  load();
}

/** Shows the text of a new token until it is closed; it is kept nowhere. */
function showOnce(made) {
  return new Promise((resolve) => {
    const text = h("input", { readonly: true, value: made.text, class: "mono token-text", "aria-label": "The token’s text", onfocus: (event) => event.target.select() });
    const dialog = h("dialog", { class: "dialog", "aria-labelledby": "made-title" }, h("form", { method: "dialog" },
      h("h2", { id: "made-title" }, `Token ${made.id} of ${made.user}`), h("p", {}, "Copy it now: it is not shown again."), text, h("div", { class: "buttons" }, h("button", { type: "submit", class: "main" }, "Close"))));
    dialog.addEventListener("close", () => { dialog.remove(); resolve(); });
    document.body.append(dialog);
    dialog.showModal();
    text.focus();
  });
}

byId("again").addEventListener("click", load);
load();
