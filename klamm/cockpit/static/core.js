"use strict";
// What all views share. `h` makes elements, `morph` renews what is shown without losing focus or selection, `part` makes
// an element whose content is made again only when the data behind it have changed, `cockpit.view` registers a view, `cockpit.get` asks the server, `words` writes numbers for people. Views are chosen by
// the hash: #now, #why/topic/3, #topics/t/0?offset=5. The stream of events reaches the view that is shown.
//
// Parts that views build with: `panel` (a titled box), `badge` (a state in a word), `command` (a command to copy). In a
// <table class="rows">, rows with tabindex="0" are reached by the arrow keys, and Enter follows their data-href.
//
// What must stay true: text of the cluster reaches the page through textContent and attributes only, and through `seen`,
// which `h` and `morph` do with every text.

const HIDDEN = /[^\P{C}\n\t]|[\p{Zl}\p{Zp}]/gu;
// Nearly all texts, which need no look at the properties of each character.
const PLAIN = /^[ -~]*$/;

/** A text without characters that move, hide or reorder others: each becomes an escape. Line breaks and tabs stay. */
const seen = (value) => {
  const text = String(value);
  if (PLAIN.test(text)) return text;
  return text.replace(HIDDEN, (character) => `\\u${character.codePointAt(0).toString(16).padStart(4, "0")}`);
};

/** An element. Attributes beginning with "on" are listeners; children are nodes, texts, lists, or null. */
const h = (tag, attributes = {}, ...children) => built(document.createElement(tag), attributes, children);

/** The same for an element of SVG. */
const svg = (tag, attributes = {}, ...children) =>
  built(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

// Attributes that people read.
const SHOWN = new Set(["title", "aria-label", "placeholder", "data-label"]);

const isShown = (child) => child !== null && child !== undefined && child !== false;

const built = (element, attributes, children) => {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : SHOWN.has(name) ? seen(value) : String(value));
  }
  for (const child of children.flat(Infinity).filter(isShown)) {
    element.append(child instanceof Node ? child : document.createTextNode(seen(child)));
  }
  return element;
};

/**
 * Makes the children of `element` equal to `children`, and keeps the nodes that are there already, so that focus,
 * selection and scroll positions stay. Kept nodes keep their first listeners, which therefore must not depend on data.
 * An element with the attribute data-kept is never changed: a canvas, for example.
 */
const morph = (element, ...children) => {
  const wanted = children.flat(Infinity).filter(isShown);
  for (const [index, child] of wanted.entries()) {
    const node = child instanceof Node ? child : document.createTextNode(seen(child));
    const old = element.childNodes[index];
    if (old === undefined) element.append(withStale(node));
    else if (old !== node) morphNode(element, old, node);
  }
  while (element.childNodes.length > wanted.length) element.lastChild.remove();
};

const morphNode = (parent, old, node) => {
  const isAlike = old.nodeType === node.nodeType && old.nodeName === node.nodeName && old.id === node.id;
  if (!isAlike || old.dataset?.kept !== node.dataset?.kept) {
    parent.replaceChild(withStale(node), old);
  } else if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== node.data) old.data = node.data;
  } else if (!old.hasAttribute("data-kept")) {
    morphAttributes(old, node);
    if (node.fill === undefined) {
      old.fill = undefined; // It may have been a part.
      morph(old, [...node.childNodes]);
    } else if (old.fill === undefined || !same(old.madeOf, node.madeOf)) {
      markStale(old, node);
    }
  }
};

const morphAttributes = (old, node) => {
  for (const name of old.getAttributeNames()) {
    const isOfReader = name === "open" && old.nodeName === "DETAILS";
    if (!node.hasAttribute(name) && !isOfReader) old.removeAttribute(name);
  }
  for (const name of node.getAttributeNames()) {
    const value = node.getAttribute(name);
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
};

// -- parts ------------------------------------------------------------------------------------------------------------

// Script time of a frame that goes to parts; the rest of them waits for the next frame.
const PARTS_MS = 3;

/** Parts whose content is not yet that of their data. */
const stale = new Set();

/**
 * An element whose children are what `fill(...madeOf)` returns. When `morph` finds it in the place of one that was made of
 * equal values, nothing is made; otherwise its children are renewed in one of the next frames. Parts may hold parts.
 * `fill` must depend on `madeOf` only, which is data: texts, numbers, lists and objects of these.
 */
const part = (tag, attributes, madeOf, fill) => Object.assign(h(tag, attributes), { madeOf, fill });

/** Equal data. */
const same = (one, other) => {
  if (one === other) return true;
  if (typeof one !== "object" || typeof other !== "object" || one === null || other === null) return false;
  if (Array.isArray(one) !== Array.isArray(other)) return false;
  const names = Object.keys(one);
  return names.length === Object.keys(other).length
    && names.every((name) => Object.hasOwn(other, name) && same(one[name], other[name]));
};

const markStale = (element, { madeOf, fill }) => {
  Object.assign(element, { madeOf, fill });
  stale.add(element);
};

/** The node, its parts marked as stale. */
const withStale = (node) => {
  if (node.fill !== undefined) stale.add(node);
  else for (const child of node.children ?? []) withStale(child);
  return node;
};

let partsFrame = null;

/** Renews stale parts, a few milliseconds in each frame, or `atOnce`; then calls `done`. */
const renewParts = (done, atOnce = false) => {
  cancelAnimationFrame(partsFrame);
  const renew = () => {
    const end = performance.now() + PARTS_MS;
    for (const element of stale) {
      stale.delete(element);
      // An element that has been taken away or turned into another meanwhile.
      if (element.isConnected && element.fill !== undefined) morph(element, element.fill(...element.madeOf));
      if (!atOnce && performance.now() > end) break;
    }
    if (stale.size > 0) partsFrame = requestAnimationFrame(renew);
    else done();
  };
  if (atOnce) renew();
  else partsFrame = requestAnimationFrame(renew);
};

/** Numbers as people read them. Null and undefined become a dash. A text is an integer that no number holds exactly. */
const words = {
  none: "\u2013",

  count(value) {
    if (typeof value === "string" || typeof value === "bigint") return BigInt(value).toLocaleString("en");
    return isShown(value) ? Math.round(value).toLocaleString("en") : words.none;
  },

  /** The exact sum of integers. */
  sum(values) {
    return values.reduce((sum, value) => sum + BigInt(value), 0n);
  },

  /** 1 partition, 2 partitions. */
  counted(value, noun) {
    return `${words.count(value)} ${noun}${value === 1 ? "" : "s"}`;
  },

  bytes(value) {
    if (!isShown(value)) return words.none;
    const units = ["B", "kB", "MB", "GB", "TB"];
    let unit = 0;
    while (value >= 1000 && unit < units.length - 1) {
      value /= 1000;
      unit += 1;
    }
    return `${value >= 100 || unit === 0 ? Math.round(value) : value.toFixed(1)} ${units[unit]}`;
  },

  duration(ms) {
    if (!isShown(ms)) return words.none;
    if (ms < 10) return `${ms < 0.05 ? 0 : ms.toFixed(1)} ms`;
    if (ms < 1000) return `${Math.round(ms)} ms`;
    if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
    if (ms < 3_600_000) return `${Math.floor(ms / 60_000)} min ${Math.floor((ms % 60_000) / 1000)} s`;
    if (ms < 48 * 3_600_000) return `${Math.floor(ms / 3_600_000)} h ${Math.floor((ms % 3_600_000) / 60_000)} min`;
    return `${Math.floor(ms / 86_400_000)} days`;
  },

  time(ms) {
    return isShown(ms) ? new Date(ms).toLocaleTimeString("en-GB") : words.none;
  },

  /** A moment of today, or with its day. */
  when(ms) {
    const date = new Date(ms);
    const day = date.toDateString() === new Date().toDateString() ? "" : `${date.toLocaleDateString("en-CA")} `;
    return `${day}${words.time(ms)}`;
  },

  ids(list) {
    return list?.length ? list.join(", ") : "none";
  },
};

/** A titled part of a view. `aside` stands beside the title; `why` says why there is no content. */
const panel = (id, title, { aside = null, why = null, wide = false } = {}, ...children) =>
  h("section", { class: wide ? "panel wide" : "panel", id, "aria-labelledby": `${id}-title` },
    h("header", {}, h("h2", { id: `${id}-title` }, title), aside),
    isShown(why) ? h("p", { class: "why-not" }, why) : children);

/** A state in a word. `kind` is good, busy, bad or calm, and shows as a colour and a sign. `of` is the part of
 * `cockpit.meanings` that explains it. */
const badge = (kind, text, of = null) => h("span", { class: `badge ${kind}`, title: meaning(of, text) }, text);

/** What a state means; null for one that no table has. */
const meaning = (of, name) => (Object.hasOwn(cockpit.meanings[of] ?? {}, name) ? cockpit.meanings[of][name] : null);

/** A text whose options of a command, such as --allow-changes, are elements that are not broken at a hyphen. */
const unbroken = (text, tag) => text.split(/(--[a-z-]+)/).map((part, index) => (index % 2 ? h(tag, {}, part) : part));

/** A command line with a button that copies it. A recording is of the past: no command changes that. */
const command = (text) => cockpit.settings.recording ? null :
  h("span", { class: "command" },
    h("code", {}, unbroken(text, "span")),
    h("button", { type: "button", "data-copy": text, "aria-label": `Copy ${text}` }, "copy"));

/** A call of klamm with the words by which it reaches this cluster: in a shell it would reach another one without. */
const atCluster = (text) => `${text} ${cockpit.settings.reach}`.trim();

/** The hash of a partition's story. */
const storyOf = (topic, partition) => `#why/${encodeURIComponent(topic)}/${partition}`;

/**
 * What the newest document says about one of its readings: null while it is known now, else {at, why}: when it was read, or
 * null, and why it is not known now. Nothing is known while klamm cockpit itself does not answer.
 */
const lapse = (now, name) => {
  if (cockpit.lostAt !== null) return { at: now.readings?.[name]?.at_ms ?? now.time_ms, why: "klamm cockpit does not answer." };
  const reading = now.readings?.[name] ?? { why_not: null };
  return reading.why_not === null ? null : { at: reading.at_ms, why: reading.why_not };
};

/** A lapse in words. */
const lapseText = (found) =>
  found === null ? null
    : found.at === null ? `Not known yet: ${found.why}` : `As it was at ${words.when(found.at)}. It is not known now: ${found.why}`;

/** Which groups no broker lists; null if there are none of that kind. */
const hiddenGroups = ({ groups_hidden: hidden }) =>
  hidden > 0
    ? `${words.counted(hidden, "partition")} of __consumer_offsets ${hidden === 1 ? "has" : "have"} no leader: groups that are kept there are not known now.` : null;

// How soon a stream that was refused is tried again.
const AGAIN_MS = 5_000;
// The stream of a live cluster brings a document each second. One that is silent for so many ticks is taken for dead,
// although nothing has closed it. Ticks are those of a page that runs: one that stood still first hears what has come.
const TICK_MS = 1_000;
const SILENT_TICKS = 8;

const cockpit = {
  settings: JSON.parse(document.getElementById("settings").textContent),
  /** The newest Now document. */
  now: JSON.parse(document.getElementById("first").textContent),
  views: new Map(),
  shown: null,
  /** Since when klamm cockpit has not answered; null while it does. */
  lostAt: null,
  /** What states mean (meanings.js). */
  meanings: {},
  /** What follows the question mark in the hash. */
  query: new URLSearchParams(),
  /** Called as (event, data) for each event of the stream, whichever view is shown. */
  listeners: [],
  /** Called when the colours change. */
  onColours: [],

  /**
   * Registers a view: {title, key, keys, show(element, rest, cockpit), update(event, data), hide()}. `keys`, `update` and
   * `hide` are optional; `keys` is a list of [key, what it does] for the help, `states` names the parts of `meanings` that
   * the view has states of. Views stand in the order of `key`, and the number keys choose them by their place. One that
   * `isLive` needs a live cluster.
   */
  view(name, view) {
    this.views.set(name, view);
  },

  /** The address of a request to the server; a recording adds the moment that is shown. */
  address: (path) => path,

  /** The JSON at an address. Throws an Error with the server's reason. */
  async get(path) {
    const answer = await fetch(this.address(path));
    const value = await answer.json().catch(() => ({ error: `${answer.status} ${answer.statusText}` }));
    if (!answer.ok) throw new Error(value.error ?? answer.statusText);
    return value;
  },

  route() {
    const [path, query] = location.hash.slice(1).split("?", 2);
    const [name, ...rest] = path.split("/").map(decoded);
    const chosen = this.views.has(name) ? name : "now";
    this.query = new URLSearchParams(query ?? "");
    this.shown?.hide?.();
    this.shown = this.views.get(chosen);
    for (const link of document.querySelectorAll("nav a")) {
      if (link.hash === `#${chosen}`) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    const element = document.getElementById("view");
    element.replaceChildren();
    element.dataset.view = chosen;
    this.shown?.show(element, rest, this);
  },

  /**
   * Says in the head and above every view whether what is shown is of now. `text` is about the stream, null while it brings
   * documents.
   */
  sayLive(state, text) {
    const { recording } = this.settings;
    const found = recording && state !== "lost" ? { state: "recording", text: "a recording", since_ms: null }
      : text !== null ? { state, text, since_ms: this.lostAt }
        : (this.now.live ?? { state: "live", text: "live", since_ms: null });
    const connection = document.getElementById("connection");
    connection.dataset.state = document.body.dataset.live = found.state;
    connection.textContent = seen(found.text);
    const told = text === null ? found.text : "nothing comes from klamm cockpit";
    const since = isShown(found.since_ms) ? ` since ${words.when(found.since_ms)}` : "";
    const end = found.state === "lost" && !recording ? " What is shown is of then at the latest, and may be wrong now." : "";
    const banner = document.getElementById("lost");
    banner.hidden = !["lost", "partly"].includes(found.state);
    const sentence = banner.hidden ? "" : seen(`${told[0].toUpperCase()}${told.slice(1)}${since}.${end}`);
    if (banner.textContent !== sentence) banner.textContent = sentence;
  },

  /**
   * Keeps a stream open while the page can be seen: a browser has six connections to a host, which hidden pages must not
   * hold. What came meanwhile, or while the connection was lost, is missed.
   */
  listen() {
    const hear = (name, data) => {
      for (const listener of this.listeners) listener(name, data);
      this.shown?.update?.(name, data);
    };
    const say = (state, text) => {
      const wasLost = this.lostAt !== null;
      if (state !== "lost") this.lostAt = null;
      else if (!wasLost && !this.settings.recording) this.lostAt = this.now.time_ms;
      this.sayLive(state, text);
      // What was known is not known now.
      if (!wasLost && this.lostAt !== null) hear("now", this.now);
    };
    let stream = null;
    let hasOpened = false;
    let hasEnded = false;
    let silentTicks = 0;
    const lose = (text) => {
      stream.close();
      stream = null;
      say("lost", text);
    };
    const open = () => {
      silentTicks = 0;
      stream = new EventSource("/events");
      stream.onopen = () => {
        say("live", null);
        if (hasOpened) hear("missed", { events: null });
        hasOpened = true;
      };
      stream.onerror = () => {
        if (stream.readyState !== EventSource.CLOSED) {
          say("lost", "The connection to klamm cockpit is lost; trying again.");
          return;
        }
        // It was refused: then a browser does not try again.
        lose("klamm cockpit takes no more pages, or was started anew: its new address opens it. Trying again.");
        setTimeout(follow, AGAIN_MS);
      };
      for (const name of ["now", "partitions", "record", "missed", "ended"]) {
        stream.addEventListener(name, (event) => {
          silentTicks = 0;
          const data = JSON.parse(event.data);
          if (name === "now") {
            this.now = data;
            say("live", null);
          }
          if (name === "ended") {
            hasEnded = true;
            stream.close();
            say("lost", "klamm cockpit has ended.");
          }
          hear(name, data);
        });
      }
    };
    const follow = () => {
      if (hasEnded) return;
      if (document.hidden) {
        stream?.close();
        stream = null;
        say("opening", "paused while hidden");
      } else if (stream === null) {
        open();
      }
    };
    document.addEventListener("visibilitychange", follow);
    follow();
    if (this.settings.recording) return;
    setInterval(() => {
      silentTicks += 1;
      if (stream === null || silentTicks < SILENT_TICKS) return;
      lose("klamm cockpit is silent; trying again.");
      follow();
    }, TICK_MS);
  },

  start() {
    // A recording has neither topics' records nor groups.
    for (const [name, view] of this.views) if (this.settings.recording && view.isLive) this.views.delete(name);
    const views = [...this.views].sort(([, a], [, b]) => String(a.key).localeCompare(String(b.key)));
    for (const [index, [, view]] of views.entries()) view.key = String(index + 1);
    document
      .querySelector("nav")
      .append(...views.map(([name, view]) => h("a", { href: `#${name}` }, h("kbd", {}, view.key), view.title)));
    addEventListener("hashchange", () => this.route());
    startColours();
    startKeys(views);
    startCopying();
    document.querySelector(".skip").addEventListener("click", (event) => {
      event.preventDefault(); // Its hash would be a view.
      document.getElementById("view").focus();
    });
    this.sayLive("opening", "connecting");
    this.route();
    this.listen();
  },
};

const decoded = (part) => {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // Typed by a person, not made by `storyOf`.
  }
};

// -- colours ----------------------------------------------------------------------------------------------------------

const COLOURS = ["auto", "light", "dark"];
const COLOURS_KEY = "klamm-colours";

const startColours = () => {
  const button = document.getElementById("theme");
  const changed = () => {
    for (const listener of cockpit.onColours) listener();
  };
  const choose = (choice) => {
    document.documentElement.dataset.theme = choice;
    button.textContent = choice;
    button.setAttribute("aria-label", `Colours: ${choice}`);
    localStorage.setItem(COLOURS_KEY, choice);
    changed();
  };
  const kept = localStorage.getItem(COLOURS_KEY);
  choose(COLOURS.includes(kept) ? kept : "auto");
  button.addEventListener("click", () => choose(COLOURS[(COLOURS.indexOf(button.textContent) + 1) % COLOURS.length]));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
};

/** The colours that these custom properties have now, as [red, green, blue] each. */
const coloursOf = (element, names) => {
  const probe = h("span", { hidden: true });
  element.append(probe);
  const colours = names.map((name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color.match(/[\d.]+/g).slice(0, 3).map(Number);
  });
  probe.remove();
  return colours;
};

// -- keys and copying -------------------------------------------------------------------------------------------------

const startKeys = (views) => {
  const dialog = document.getElementById("keys");
  const showKeys = () => {
    const keys = [
      ...views.map(([, view]) => [view.key, `the view ${view.title}`]),
      ["\u2191 \u2193", "move in a table"],
      ["Enter", "open the row or the partition at the cursor"],
      ["d", "colours: as the system, light, dark"],
      ["?", "these keys"],
      ...(cockpit.shown?.keys ?? []),
    ];
    dialog.replaceChildren(...[
      h("h2", { id: "keys-title" }, "Keys"),
      h("dl", {}, keys.map(([key, what]) => h("div", {}, h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)))),
      (cockpit.shown?.states ?? []).map((of) =>
        h("details", {}, h("summary", {}, of),
          h("dl", { class: "meanings" }, Object.entries(cockpit.meanings[of]).map(([name, what]) =>
            h("div", {}, h("dt", {}, name), h("dd", {}, what)))))),
      h("form", { method: "dialog" }, h("button", { autofocus: true }, "Close")),
    ].flat());
    if (!dialog.open) dialog.showModal();
  };
  document.getElementById("help").addEventListener("click", showKeys);
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || event.defaultPrevented || dialog.open) return;
    if (event.target.closest?.("input, textarea, select")) return;
    const chosen = views.find(([, view]) => view.key === event.key);
    if (chosen) location.hash = chosen[0];
    else if (event.key === "?") showKeys();
    else if (event.key === "d") document.getElementById("theme").click();
    else moveInTable(event);
  });
  addEventListener("click", (event) => {
    const row = event.target.closest?.("table.rows tr[data-href]");
    if (row && !event.target.closest("a, button") && getSelection().isCollapsed) location.hash = row.dataset.href;
  });
};

const moveInTable = (event) => {
  const row = event.target.closest?.("table.rows tr[tabindex]");
  if (!row) return;
  const rows = [...row.closest("table").querySelectorAll("tr[tabindex]")];
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (step !== undefined) rows[rows.indexOf(row) + step]?.focus();
  else if (event.key === "Home") rows[0].focus();
  else if (event.key === "End") rows.at(-1).focus();
  else if (event.key === "Enter" && row.dataset.href && event.target === row) location.hash = row.dataset.href;
  else return;
  event.preventDefault();
};

const startCopying = () =>
  addEventListener("click", async (event) => {
    const button = event.target.closest?.("button[data-copy]");
    if (!button) return;
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
      button.textContent = "copied";
    } catch {
      // Browsers have no clipboard on plain HTTP from another machine: the text is selected instead.
      getSelection().selectAllChildren(button.previousElementSibling);
      button.textContent = "selected";
    }
    setTimeout(() => (button.textContent = "copy"), 1500);
  });

addEventListener("DOMContentLoaded", () => cockpit.start());
