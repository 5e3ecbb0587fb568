"use strict";
// What the views Why, Topics and Groups share: names of the cluster made visible, times, asking the cluster, heads,
// tiles and tables, values of records, and the confirmation of a change.
//
// What must stay true: a name of the cluster is shown through `seen`, so that no character of it moves, hides or
// reorders others. Addresses and requests have the name itself.
{
  const LINES = /[\n\t]/g;

  /** A name or a sentence on one line, without invisible characters: each becomes an escape. */
  const seenLine = (text) => seen(text ?? "").replace(LINES, (character) => (character === "\n" ? "\\u000a" : "\\u0009"));

  const two = (number, digits = 2) => String(number).padStart(digits, "0");
  // What a Date can hold.
  const MOST_MS = 8.64e15;

  /** A time of the cluster as the clock of this browser shows it, with UTC in the title. Any number may come in. */
  const moment = (ms) => {
    if (ms === null || ms === undefined) return words.none;
    if (ms === -1) return h("span", { class: "null" }, "no time");
    if (Math.abs(ms) > MOST_MS) return h("span", { title: "No calendar has this time." }, `${ms} ms since 1970`);
    const date = new Date(ms);
    const day = `${two(date.getFullYear(), 4)}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
    const clock = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}.${two(date.getMilliseconds(), 3)}`;
    const utc = date.toISOString();
    return h("time", { datetime: utc, title: `${utc.replace("T", " ").replace("Z", "")} UTC` }, `${day} ${clock}`);
  };

  const address = (path, parameters) => {
    const given = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== "");
    return `${path}?${new URLSearchParams(given)}`;
  };

  const hashOf = (view, parts = [], parameters = {}) => {
    const query = new URLSearchParams(parameters).toString();
    return `#${[view, ...parts.map(encodeURIComponent)].join("/")}${query ? `?${query}` : ""}`;
  };

  // -- asking the cluster ---------------------------------------------------------------------------------------------

  const AGAIN_MS = 5000;

  /**
   * Shows what `draw` makes of the JSON at an address. What is shown already stays while an answer is on its way, and
   * under the reason when there is none. An answer that a newer question has overtaken is dropped.
   */
  const load = async (element, path, draw) => {
    const mine = (element.turn ?? 0) + 1;
    element.turn = mine;
    element.setAttribute("aria-busy", "true");
    if (!element.hasChildNodes()) element.append(h("p", { class: "quiet asking", role: "status" }, "Asking the cluster\u2026"));
    let shown;
    try {
      const value = await cockpit.get(path);
      if (mine !== element.turn || !element.isConnected) return;
      shown = draw(value);
      element.shownAt = Date.now();
    } catch (error) {
      if (mine !== element.turn || !element.isConnected) return;
      const trouble = h("p", { class: "trouble", role: "alert", id: "trouble" }, error.message);
      if (element.shownAt) {
        trouble.append(" What is shown is from ", moment(element.shownAt), ".");
        document.getElementById("trouble")?.remove();
        element.prepend(trouble);
        element.removeAttribute("aria-busy");
        return;
      }
      const { view } = document.getElementById("view").dataset;
      if (location.hash !== `#${view}`) trouble.append(" ", h("a", { href: `#${view}` }, "Back to the view"));
      shown = trouble;
    }
    element.removeAttribute("aria-busy");
    document.getElementById("trouble")?.remove();
    morph(element, shown);
  };

  let timer = null;

  /** Like `load`, and again every few seconds until the view ends (`rest`). Returns a function that asks at once. */
  const watch = (element, path, draw) => {
    const again = () => load(element, path, draw);
    rest();
    timer = setInterval(() => {
      if (!document.hidden && !document.querySelector("dialog[open]")) again();
    }, AGAIN_MS);
    again();
    return again;
  };

  /** Ends what `watch` has begun. */
  const rest = () => clearInterval(timer);

  // -- parts of a page ------------------------------------------------------------------------------------------------

  /** The head of a view: where it stands, its name, and what belongs to it. `crumbs` are [text, hash]. */
  const heading = (crumbs, name, ...beside) =>
    h("header", { class: "view-head" },
      crumbs.length
        ? h("nav", { class: "crumbs", "aria-label": "Where" }, crumbs.map(([text, href]) => [h("a", { href }, text), " / "]))
        : null,
      h("h2", {}, name), h("span", { class: "beside-name" }, beside));

  const tile = (label, value, detail, kind = "calm") =>
    h("div", { class: `tile ${kind}` }, h("dt", {}, label), h("dd", {}, h("strong", {}, value), h("small", {}, detail)));
  const tiles = (...all) => h("dl", { class: "tiles" }, all);

  /**
   * A table whose rows are cards on a narrow page. `columns` are [title, class]; a row is {cells, href, class}, and its
   * first cell is its head.
   */
  const table = (id, columns, rows) =>
    h("table", { class: "rows cards", id },
      h("thead", {}, h("tr", {}, columns.map(([title, kind]) => h("th", { scope: "col", class: kind }, title)))),
      h("tbody", {}, rows.map((row) =>
        h("tr", { tabindex: "0", "data-href": row.href, class: row.class },
          row.cells.map((cell, index) =>
            index === 0
              ? h("th", { scope: "row", class: columns[0][1] }, cell)
              : h("td", { class: columns[index][1], "data-label": columns[index][0] }, cell))))));

  /** Links to the parts of a long list: `from` is the number of the first row that is shown. */
  const parts = (from, shown, count, hashFrom) => {
    if (count <= shown && from === 0) return null;
    const link = (text, to, isThere) => (isThere ? h("a", { href: hashFrom(to) }, text) : h("span", { class: "quiet" }, text));
    return h("nav", { class: "pager", "aria-label": "Parts of the list" },
      h("span", { class: "note" }, shown ? `${words.count(from + 1)} to ${words.count(from + shown)} of ${words.count(count)}` : `${words.count(count)} in all`),
      link("\u2190 before", Math.max(0, from - 100), from > 0),
      link("more \u2192", from + shown, from + shown < count));
  };

  /** A form of one field that leads to another hash. */
  const search = (label, value, go, placeholder = "") => {
    const input = h("input", { type: "search", value, placeholder, "aria-label": label, spellcheck: "false" });
    const form = h("form", { class: "search", role: "search" }, input, h("button", { type: "submit" }, "Find"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      go(input.value);
    });
    return form;
  };

  // -- values of records ----------------------------------------------------------------------------------------------

  // More lines are a plain text, and deeper elements are not folded: a browser needs long for either.
  const MOST_FOLDED = 5000;
  const DEEPEST = 40;

  /** JSON, a line for each element: a line that opens a list or an object folds what it holds. */
  const folded = (text) => {
    const lines = text.split("\n");
    if (lines.length > MOST_FOLDED) return h("pre", { class: "json" }, text);
    const root = h("pre", { class: "json" });
    const open = [root];
    for (const [index, line] of lines.entries()) {
      const body = line.trimStart();
      if (/^[\]}]/.test(body) && open.length > 1) open.pop();
      const isOpening = /[[{]$/.test(body) && index < lines.length - 1;
      if (isOpening && open.length > 1 && open.length < DEEPEST) {
        const part = h("details", { open: open.length < 3 }, h("summary", {}, line));
        open.at(-1).append(part);
        open.push(part);
      } else {
        open.at(-1).append(h("div", {}, line));
        if (isOpening) open.push(open.at(-1));
      }
    }
    return root;
  };

  /** A key, value or header as the server shows it. `whole` is where all of a value that was cut is. */
  const valueOf = (value, whole = null) => {
    if (value.kind === "null") return h("em", { class: "null" }, "null");
    if (value.kind === "empty") return h("em", { class: "null" }, "empty");
    const text = value.kind === "json" ? folded(value.text) : h("pre", { class: value.kind }, value.text);
    const notes = [value.kind === "bytes" ? words.counted(value.size_bytes, "byte") : null, value.note].filter(Boolean);
    const cut = value.is_cut
      ? h("p", { class: "note" }, `The first part of ${words.counted(value.size_bytes, "byte")}. `,
          whole ? h("a", { href: whole }, "Show the whole value") : null)
      : null;
    return [text, notes.length ? h("p", { class: "note" }, notes.join(", ")) : null, cut];
  };

  // -- changes --------------------------------------------------------------------------------------------------------

  const post = async (path, body) => {
    const answer = await fetch(path, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(body),
    });
    const value = await answer.json().catch(() => ({ error: `${answer.status} ${answer.statusText}` }));
    if (!answer.ok) throw new Error(value.error ?? answer.statusText);
    return value;
  };

  /** Shows what a change will do, and does it when a person has confirmed. `done` is called behind a change. */
  const confirmed = async (title, body, done) => {
    const content = h("div", { "aria-live": "polite" }, "Asking the cluster\u2026");
    const dialog = h("dialog", { class: "confirm", "aria-label": title }, h("h2", {}, title), content);
    const close = h("button", { type: "button", onclick: () => dialog.close() }, "Close");
    dialog.append(close);
    dialog.addEventListener("close", () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
    try {
      const plan = await post("/api/actions/plan", body);
      content.replaceChildren(
        h("ul", { class: "what" }, plan.what.map((line) => h("li", {}, seenLine(line)))),
        plan.command ? h("p", { class: "note" }, "The same from a shell:") : "",
        ...plan.command.split("\n").filter(Boolean).map(command),
      );
      if (plan.confirmation === null) {
        content.append(h("p", { class: "why-not" }, plan.why_not));
        return;
      }
      const change = h("button", { type: "button", class: "change" }, "Do it");
      change.addEventListener("click", async () => {
        change.disabled = true;
        try {
          const result = await post("/api/actions/run", { confirmation: plan.confirmation });
          content.replaceChildren(h("p", { role: "status" }, seenLine(result.done)));
          change.remove();
          done?.();
        } catch (error) {
          content.append(h("p", { class: "trouble", role: "alert" }, error.message));
        }
      });
      dialog.insertBefore(change, close);
    } catch (error) {
      content.replaceChildren(h("p", { class: "trouble", role: "alert" }, error.message));
    }
  };

  /** The button for a change, or why there is none. */
  const changeButton = (title, body, done) => cockpit.settings.recording ? null
    : cockpit.settings.allow_changes
      ? h("button", { type: "button", onclick: () => confirmed(title, body, done) }, `${title}\u2026`)
      : h("p", { class: "why-not" },
          unbroken(`${title}: this page may only look, as klamm cockpit was started without --allow-changes.`, "code"));

  addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.altKey || event.metaKey || event.target.closest?.("input, textarea, select, dialog")) return;
    const field = document.querySelector("main form[role=search] input");
    if (!field) return;
    event.preventDefault();
    field.focus();
  });

  cockpit.browse = {
    seen: seenLine, moment, address, hashOf, load, watch, rest, heading, tile, tiles, table, parts, search, valueOf, changeButton,
  };
}
