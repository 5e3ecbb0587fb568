"use strict";
// What the views Why, Topics and Groups share: names of the cluster made visible, loading, values of records, and the
// confirmation of a change.
//
// What must stay true: a name of the cluster is shown through `seen`, so that no character of it moves, hides or
// reorders others. Addresses and requests have the name itself.
{
  const HIDDEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/gu;

  /** A text without invisible characters: each becomes an escape. */
  const seen = (text) =>
    String(text ?? "").replace(HIDDEN, (character) => `\\u${character.codePointAt(0).toString(16).padStart(4, "0")}`);

  const moment = (ms) => (ms === null || ms === undefined || ms < 0 ? words.none : new Date(ms).toISOString().replace("T", " "));

  const address = (path, parameters) => {
    const given = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== "");
    return `${path}?${new URLSearchParams(given)}`;
  };

  const hashOf = (view, parts = [], parameters = {}) => {
    const query = new URLSearchParams(parameters).toString();
    return `#${[view, ...parts.map(encodeURIComponent)].join("/")}${query ? `?${query}` : ""}`;
  };

  let turn = 0;

  /** Shows what `draw` makes of the JSON at an address; an answer that comes after another view was chosen is dropped. */
  const load = async (element, path, draw) => {
    const mine = (turn += 1);
    element.setAttribute("aria-busy", "true");
    if (!element.hasChildNodes()) element.append(h("p", { class: "quiet", role: "status" }, "Asking the cluster\u2026"));
    let shown;
    try {
      const value = await cockpit.get(path);
      if (mine !== turn) return;
      shown = draw(value);
    } catch (error) {
      if (mine !== turn) return;
      shown = h("p", { class: "trouble", role: "alert" }, error.message);
    }
    element.removeAttribute("aria-busy");
    element.replaceChildren(...[shown].flat(Infinity).filter(Boolean));
  };

  /** A form of one field that leads to another hash. */
  const search = (label, value, go, placeholder = "") => {
    const input = h("input", { type: "search", value, placeholder, "aria-label": label, spellcheck: "false" });
    const form = h("form", { class: "search", role: "search" }, input, h("button", { type: "submit" }, label));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      go(input.value);
    });
    return form;
  };

  // -- values of records ----------------------------------------------------------------------------------------------

  /** JSON, a line for each element: a line that opens a list or an object folds what it holds. */
  const folded = (text) => {
    const root = h("pre", { class: "json" });
    const open = [root];
    const lines = text.split("\n");
    for (const [index, line] of lines.entries()) {
      const body = line.trimStart();
      if (/^[\]}]/.test(body) && open.length > 1) open.pop();
      const isOpening = /[[{]$/.test(body) && index < lines.length - 1;
      if (isOpening && open.length > 1) {
        const part = h("details", { open: open.length < 3 }, h("summary", {}, line));
        open.at(-1).append(part);
        open.push(part);
      } else {
        open.at(-1).append(h("div", {}, line));
        if (isOpening) open.push(root);
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
        h("ul", { class: "what" }, plan.what.map((line) => h("li", {}, seen(line)))),
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
          content.replaceChildren(h("p", { role: "status" }, seen(result.done)));
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
  const changeButton = (title, body, done) =>
    cockpit.settings.allow_changes
      ? h("button", { type: "button", onclick: () => confirmed(title, body, done) }, `${title}\u2026`)
      : h("p", { class: "why-not" }, `${title}: this page may only look, as klamm cockpit was started without --allow-changes.`);

  cockpit.browse = { seen, moment, address, hashOf, load, search, valueOf, changeButton };
}
