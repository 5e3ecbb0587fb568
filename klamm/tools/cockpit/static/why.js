"use strict";
// The view Why: one partition's conditions with what would help, its replicas, and its story.
{
  const { seen, moment, address, hashOf, load, changeButton } = cockpit.browse;
  let element = null;

  const remedy = (each) =>
    h("li", {},
      h("span", {}, seen(each.text)),
      each.price ? h("span", { class: "price" }, badge("bad", "price"), " ", seen(each.price)) : null,
      each.command.split("\n").filter(Boolean).map(command));

  const condition = (each) =>
    h("section", { class: `panel condition ${each.is_problem ? "problem" : ""}`, "data-kind": each.kind },
      h("header", {}, h("h2", {}, seen(each.text)), each.is_problem ? badge("bad", "problem") : badge("good", "no problem")),
      each.why.length ? h("ul", { class: "why" }, each.why.map((line) => h("li", {}, seen(line)))) : null,
      each.remedies.length
        ? [h("h3", {}, "What would help"), h("ol", { class: "remedies" }, each.remedies.map(remedy))]
        : null);

  const KINDS = { leader: "good", "in sync": "good", "out of sync": "busy", offline: "bad" };

  const replicas = (found) =>
    panel("replicas", "Replicas", {},
      h("div", { class: "scroll-x" },
        h("table", {},
          h("thead", {}, h("tr", {}, ["Broker", "State", "Why", "Log ends at", "Offline since"].map((title) => h("th", {}, title)))),
          h("tbody", {}, found.replicas.map((each) =>
            h("tr", {},
              h("th", { scope: "row" }, each.broker_id, each.is_preferred ? h("small", {}, " preferred") : null,
                each.role ? h("small", {}, ` ${each.role}`) : null),
              h("td", {}, badge(KINDS[each.state], each.state)),
              h("td", {}, seen(each.why ?? "")),
              h("td", { class: "number" }, each.log_end_offset ?? words.none),
              h("td", {}, moment(each.since_ms))))))));

  const story = (told) =>
    panel("story", "Story", { wide: true, aside: h("small", {}, `from ${told.source}`) },
      told.left_out ? h("p", { class: "note" }, `${words.count(told.left_out)} older entries are left out.`) : null,
      h("div", { class: "scroll-x" },
        h("table", { class: "rows" },
          h("thead", {}, h("tr", {}, ["Time", "Decided by", "Epoch", "What", "Leader", "ISR", "Why"].map((title) => h("th", {}, title)))),
          h("tbody", {}, told.entries.map((each) =>
            h("tr", { tabindex: "0", class: each.is_failed ? "marked" : null },
              h("td", {}, each.time ?? moment(each.time_ms)),
              h("td", {}, each.writer),
              h("td", { class: "number" }, each.controller_epoch ?? words.none),
              h("td", {}, each.is_failed ? "FAILED " : "", each.subject, each.before ? `: ${each.before} \u2192 ${each.after}` : ""),
              h("td", {}, each.leader === null ? words.none : `${each.leader < 0 ? "none" : each.leader} (epoch ${each.leader_epoch})`),
              h("td", {}, each.isr === null ? words.none : words.ids(each.isr)),
              h("td", {}, seen(each.text))))))),
      told.why_no_more ? h("p", { class: "why-not" }, told.why_no_more) : null);

  const actions = (found, again) => {
    const kinds = new Set(found.conditions.map((each) => each.kind));
    const of = { topic: found.topic, partition: found.partition };
    return [
      kinds.has("off_preferred") ? changeButton("Elect the preferred leader", { action: "elect_preferred", ...of }, again) : null,
      kinds.has("reassigning") ? changeButton("Cancel the reassignment", { action: "cancel_reassignment", ...of }, again) : null,
      kinds.has("busy_controller") ? changeButton("Move the controller", { action: "move_controller" }, again) : null,
    ];
  };

  const draw = (found, again) =>
    h("div", { class: "stack", id: "why" },
      h("header", { class: "view-head" },
        h("h2", {}, `${seen(found.topic)}-${found.partition}`),
        h("span", {}, `leader ${found.leader < 0 ? "none" : found.leader}, epoch ${found.leader_epoch}, ISR ${words.ids(found.isr)}`),
        h("a", { href: hashOf("topics", [found.topic, found.partition]) }, "its records"),
        h("button", { type: "button", onclick: again }, "Look again")),
      found.conditions.map(condition),
      actions(found, again),
      replicas(found),
      story(found.story));

  const choose = () => {
    const topic = h("input", { "aria-label": "Topic", placeholder: "topic", required: true, spellcheck: "false" });
    const number = h("input", { "aria-label": "Partition", type: "number", min: "0", value: "0", required: true });
    const form = h("form", { class: "search" }, topic, number, h("button", { type: "submit" }, "Why?"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      location.hash = storyOf(topic.value, number.value);
    });
    return h("div", { class: "stack" },
      h("p", {}, "Choose a partition: click it in the map of the view Now, or name it here."), form);
  };

  cockpit.view("why", {
    title: "Why",
    key: "2",
    show(view, [topic, partition]) {
      if (topic === undefined || topic === "") {
        view.append(choose());
        return;
      }
      element = h("div");
      view.append(element);
      const again = () => load(element, address("/api/why", { topic, partition: partition ?? "0" }), (found) => draw(found, again));
      again();
    },
  });
}
