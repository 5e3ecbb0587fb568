"use strict";
// What all views share: `h` makes elements, `cockpit.view` registers a view, `cockpit.get` asks the server, and the
// stream of events reaches the view that is shown. Views are chosen by the hash: #now, #why/topic/3.
//
// What must stay true: text of the cluster reaches the page through textContent and attributes only.

/** An element. Attributes beginning with "on" are listeners; children are nodes, texts, lists, or null. */
const h = (tag, attributes = {}, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
};

const cockpit = {
  settings: JSON.parse(document.getElementById("settings").textContent),
  /** The newest Now document. */
  now: JSON.parse(document.getElementById("first").textContent),
  views: new Map(),
  shown: null,

  /** Registers a view: {title, key, show(element, rest, cockpit), update(event, data), hide()}; all but show optional. */
  view(name, view) {
    this.views.set(name, view);
  },

  /** The JSON at an address. Throws an Error with the server's reason. */
  async get(path) {
    const answer = await fetch(path);
    const value = await answer.json().catch(() => ({ error: `${answer.status} ${answer.statusText}` }));
    if (!answer.ok) throw new Error(value.error ?? answer.statusText);
    return value;
  },

  route() {
    const [name, ...rest] = decodeURIComponent(location.hash.slice(1) || "now").split("/");
    const chosen = this.views.has(name) ? name : "now";
    this.shown?.hide?.();
    this.shown = this.views.get(chosen);
    for (const link of document.querySelectorAll("nav a")) {
      if (link.hash === `#${chosen}`) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    const element = document.getElementById("view");
    element.replaceChildren();
    this.shown?.show(element, rest, this);
  },

  listen() {
    const connection = document.getElementById("connection");
    const stream = new EventSource("/events");
    stream.onopen = () => (connection.textContent = "");
    stream.onerror = () => (connection.textContent = "The connection to klamm cockpit is lost; trying again.");
    for (const name of ["now", "partitions", "record", "missed", "ended"]) {
      stream.addEventListener(name, (event) => {
        const data = JSON.parse(event.data);
        if (name === "now") this.now = data;
        if (name === "ended") {
          stream.close();
          connection.textContent = "klamm cockpit has ended.";
        }
        this.shown?.update?.(name, data);
      });
    }
  },

  start() {
    const views = [...this.views].sort(([, a], [, b]) => String(a.key).localeCompare(String(b.key)));
    document
      .querySelector("nav")
      .append(...views.map(([name, view]) => h("a", { href: `#${name}` }, h("kbd", {}, view.key), ` ${view.title}`)));
    addEventListener("hashchange", () => this.route());
    addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.altKey || event.metaKey || event.target.closest("input, textarea, select")) return;
      const chosen = views.find(([, view]) => view.key === event.key);
      if (chosen) location.hash = chosen[0];
    });
    this.route();
    this.listen();
  },
};

addEventListener("DOMContentLoaded", () => cockpit.start());
