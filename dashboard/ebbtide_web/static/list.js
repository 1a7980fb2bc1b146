// What the pages with a list share: filters in the address, so that a link shows somebody else the same, tabs and pages.
import { base, byId, h, plural, printable, put } from "./app.js";

const pad = (number) => String(number).padStart(2, "0");

/** A time as fields for times are filled with it. */
export function localTime(seconds) {
  const moment = new Date(seconds * 1000);
  return `${moment.getFullYear()}-${pad(moment.getMonth() + 1)}-${pad(moment.getDate())}T${pad(moment.getHours())}:${pad(moment.getMinutes())}`;
}

/** Keeps the query of the address as the page's filters; `follow` is called whenever it is another one. */
export function listPage({ path, filters, sorts = [], follow }) {
  const query = new URLSearchParams(location.search);

  const address = (changes) => {
    const next = new URLSearchParams(query);
    for (const [name, value] of Object.entries(changes)) { if (value) next.set(name, value); else next.delete(name); }
    if (!("page" in changes)) next.delete("page");
    return next;
  };
  const href = (changes) => { const text = address(changes).toString(); return `${base}${path}${text ? `?${text}` : ""}`; };

  function take(next) {
    for (const name of [...query.keys()]) query.delete(name);
    for (const [name, value] of next) query.set(name, value);
  }

  function go(changes) {
    take(address(changes));
    history.pushState(null, "", href({ page: query.get("page") ?? "" }));
    follow();
  }

  const filtered = () => filters.some((name) => name !== "sort" && query.get(name));

  function showTabs(tabs, current, counts, before = () => {}) {
    put(byId("tabs"), [current, counts, String(query)], () => tabs.map(([name, words], at) => {
      const changes = { show: at ? name : "", state: "" };
      return h("a", { href: href(changes), "aria-current": name === current ? "page" : null, onclick: (event) => { event.preventDefault(); before(); go(changes); } },
        words, h("span", { class: "many" }, counts[name].toLocaleString("en")));
    }));
  }

  /** Fills the choices of the filters with the values that there are; `words` says how those of a filter are written. */
  function showFilters(facets, words = {}) {
    for (const [name, values] of Object.entries(facets)) {
      const select = byId(`f-${name}`), wanted = query.get(name) ?? "", written = words[name] ?? ((value) => value);
      const known = Object.entries(values).sort(([a], [b]) => a.localeCompare(b, "en"));
      if (wanted && !Object.hasOwn(values, wanted)) known.push([wanted, 0]);
      put(select, [known, wanted], () => [h("option", { value: "" }, "any"), known.map(([value, count]) => h("option", { value, selected: value === wanted }, `${printable(written(value))} (${count})`))]);
      select.closest("label").hidden = known.length < 2 && !wanted;
    }
    if (sorts.length) {
      const sort = query.get("sort") ?? "";
      put(byId("f-sort"), sort, () => sorts.map(([value, words]) => h("option", { value, selected: value === sort }, words)));
    }
    byId("clear").hidden = !filters.some((name) => query.get(name));
  }

  function showPages({ page, pages, total }, noun) {
    byId("count").textContent = pages > 1 ? `${plural(total, noun)}, page ${page + 1} of ${pages}` : plural(total, noun);
    put(byId("pages"), [page, pages, String(query)], () => pages < 2 ? [] : [
      page > 0 ? h("a", { href: href({ page: page > 1 ? String(page - 1) : "" }), rel: "prev" }, "Previous") : null,
      page + 1 < pages ? h("a", { href: href({ page: String(page + 1) }), rel: "next" }, "Next") : null]);
  }

  addEventListener("popstate", () => {
    take(new URLSearchParams(location.search));
    for (const name of filters) { const field = byId(`f-${name}`); if (field && field.tagName === "INPUT") field.value = query.get(name) ?? ""; }
    if (byId("q")) byId("q").value = query.get("q") ?? "";
    follow();
  });

  let typing = 0;
  byId("q")?.addEventListener("input", (event) => { clearTimeout(typing); typing = setTimeout(() => go({ q: event.target.value.trim() }), 250); });
  byId("filters").addEventListener("submit", (event) => { event.preventDefault(); clearTimeout(typing); if (byId("q")) go({ q: byId("q").value.trim() }); });
  for (const name of filters) byId(`f-${name}`)?.addEventListener("change", (event) => go({ [name]: event.target.value }));
  return { query, href, go, filtered, showTabs, showFilters, showPages };
}
