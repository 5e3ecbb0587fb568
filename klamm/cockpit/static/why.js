"use strict";
// The view Why: what is wrong now (#why), or one partition's conditions with what would help, its replicas, and its
// story (#why/topic/3).
{
  const { seen, moment, address, hashOf, watch, rest, heading, table, changeButton } = cockpit.browse;

  // -- one partition ----------------------------------------------------------------------------------------------------

  const remedy = (each) =>
    h("li", {},
      h("span", {}, seen(each.text)),
      each.command.split("\n").filter(Boolean).map(command),
      each.price ? h("span", { class: "price" }, badge("bad", "price"), " ", seen(each.price)) : null);

  const condition = (each) =>
    h("section", { class: `panel condition ${each.is_problem ? "problem" : ""}`, "data-kind": each.kind },
      h("header", {}, h("h2", {}, seen(each.text)),
        each.is_problem ? badge("bad", "problem") : each.kind === "healthy" ? badge("good", "no problem") : badge("calm", "note")),
      each.why.length ? h("ul", { class: "why" }, each.why.map((line) => h("li", {}, seen(line)))) : null,
      each.remedies.length
        ? [h("h3", {}, cockpit.settings.recording ? "What would have helped" : "What would help"), h("ol", { class: "remedies" }, each.remedies.map(remedy))]
        : null);

  const KINDS = { leader: "good", "in sync": "good", "out of sync": "busy", offline: "bad" };

  const replicas = (found) =>
    panel("replicas-panel", "Replicas", { wide: true },
      table("replicas", [["Broker", "tight"], ["State", "tight"], ["Log ends at", "number"], ["Offline since", "tight"], ["Why", ""]],
        found.replicas.map((each) => ({
          cells: [
            [each.broker_id, each.is_preferred ? h("small", {}, " preferred") : null, each.role ? h("small", {}, ` ${each.role}`) : null],
            badge(KINDS[each.state] ?? "calm", each.state, "Replicas in the map"),
            each.log_end_offset ?? words.none,
            moment(each.since_ms),
            seen(each.why ?? "") || words.none,
          ],
        }))));

  const story = (told) =>
    panel("story-panel", "Story", { wide: true, aside: h("small", {}, `from ${seen(told.source)}, newest last`) },
      told.left_out ? h("p", { class: "note" }, `${words.count(told.left_out)} older entries are left out.`) : null,
      table("story", [["Time", "tight"], ["Decided by", "tight"], ["Epoch", "number"], ["What", ""], ["Leader", "tight"], ["ISR", "tight"], ["Why", ""]],
        told.entries.map((each) => ({
          class: each.is_failed ? "marked" : null,
          cells: [
            each.time === null ? moment(each.time_ms) : seen(each.time),
            seen(each.writer),
            each.controller_epoch ?? words.none,
            [each.is_failed ? "FAILED " : "", seen(each.subject), each.before ? `: ${seen(each.before)} \u2192 ${seen(each.after)}` : ""],
            each.leader === null ? words.none : `${each.leader < 0 ? "none" : each.leader} (epoch ${each.leader_epoch})`,
            each.isr === null ? words.none : words.ids(each.isr),
            seen(each.text) || words.none,
          ],
        }))),
      told.why_no_more ? h("p", { class: "why-not" }, unbroken(seen(told.why_no_more), "code")) : null);

  const actions = (found, again) => {
    const kinds = new Set(found.conditions.map((each) => each.kind));
    const of = { topic: found.topic, partition: found.partition };
    const all = [
      kinds.has("off_preferred") ? changeButton("Elect the preferred leader", { action: "elect_preferred", ...of }, again) : null,
      kinds.has("reassigning") ? changeButton("Cancel the reassignment", { action: "cancel_reassignment", ...of }, again) : null,
      kinds.has("busy_controller") ? changeButton("Move the controller", { action: "move_controller" }, again) : null,
    ].filter(isShown);
    return all.length ? h("div", { class: "actions", id: `actions-${[...kinds].join("-")}` }, all) : null;
  };

  const draw = (found, again) =>
    h("div", { class: "stack", id: "why" },
      heading([["Why", "#why"], [seen(found.topic), hashOf("topics", [found.topic])]], `${seen(found.topic)}-${found.partition}`,
        h("span", {}, `leader ${found.leader < 0 ? "none" : found.leader}, epoch ${found.leader_epoch}, ISR ${words.ids(found.isr)}`),
        h("a", { href: hashOf("topics", [found.topic, found.partition]) }, "its records"),
        h("button", { type: "button", onclick: again }, "Look again")),
      found.conditions.map(condition),
      actions(found, again),
      replicas(found),
      story(found.story));

  // -- what is wrong now --------------------------------------------------------------------------------------------------

  // What is wrong, how grave it is and its words are the server's (klamm.diagnosis.findings).
  const COLOURS = { offline: "bad", behind: "busy", moving: "calm" };

  const problem = (each) =>
    h("section", { class: `panel condition ${each.is_problem ? "problem" : ""}`, "data-kind": each.kind },
      h("header", {}, h("h2", {}, each.text), badge(COLOURS[each.kind] ?? "calm", words.counted(each.count, "partition"))),
      h("ul", { class: "chips" },
        each.first.map(([topic, number]) => h("li", {}, h("a", { href: storyOf(topic, number) }, `${seen(topic)}-${number}`))),
        each.count > each.first.length ? h("li", { class: "note" }, `and ${words.count(each.count - each.first.length)} more: see the map of the view Now`) : null));

  const choose = () => {
    const topic = h("input", { "aria-label": "Topic", placeholder: "topic", required: true, spellcheck: "false" });
    const number = h("input", { "aria-label": "Partition", type: "number", min: "0", value: "0", required: true });
    const form = h("form", { class: "search", role: "search" }, topic, number, h("button", { type: "submit" }, "Why?"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      location.hash = storyOf(topic.value, number.value);
    });
    return form;
  };

  const MOST_NAMED = 40;

  /** The entry page while it is shown: where it is, and the answer of /api/problems. */
  let entry = null;

  const drawEntry = () => {
    const { answer, trouble } = entry;
    // Reasons are drawn from what is known now.
    const gone = lapse(cockpit.now, "partitions");
    const unread = gone ?? lapse(cockpit.now, "findings");
    const found = answer && gone === null ? answer.groups : [];
    const deletions = cockpit.lostAt === null ? (cockpit.now.work?.deletions ?? []) : [];
    const findings = cockpit.lostAt === null ? (cockpit.now.findings ?? []).filter((each) => each.is_problem) : [];
    const isQuiet = found.length === 0 && findings.length === 0 && deletions.length === 0;
    morph(entry.element,
      unread === null ? null
        : h("section", { class: "panel", "data-kind": "unknown" },
            h("header", {},
              h("h2", {}, gone === null ? "Some of what may be wrong now is not known." : "What is wrong with partitions now is not known."),
              badge("calm", "unknown")),
            h("p", { class: "quiet" }, unread.at === null ? unread.why : `It was read last at ${words.when(unread.at)}, and is not known now: ${unread.why}`)),
      trouble ? h("p", { class: "trouble", role: "alert" }, trouble) : null,
      !answer && !trouble ? h("p", { class: "quiet", role: "status" }, "Asking the cluster\u2026") : null,
      answer && unread === null && isQuiet
        ? h("section", { class: "panel", "data-kind": "healthy" },
            h("header", {}, h("h2", {}, "Nothing is wrong now."), badge("good", "no problem")),
            h("p", { class: "quiet" }, "All partitions have a leader, and all replicas are in sync. A partition without a leader, or with replicas out of sync, appears here with its reason."))
        : null,
      found.map(problem),
      deletions.length
        ? h("section", { class: "panel condition", "data-kind": "deleting" },
            h("header", {}, h("h2", {}, "Topics being deleted"), badge("busy", words.counted(cockpit.now.work.deletions_count ?? deletions.length, "topic"))),
            h("ul", { class: "list" }, deletions.slice(0, MOST_NAMED).map((each) =>
              h("li", {}, h("a", { href: storyOf(each.topic, 0) }, seen(each.topic)),
                each.waits_for ? h("small", {}, `the controller says what it waits for: ${seen(each.waits_for)}`) : null))))
        : null,
      found.length && answer.count > found.length ? h("p", { class: "note" }, `${words.count(answer.count - found.length)} more reasons are not shown.`) : null,
      findings.length
        ? panel("why-findings", "Findings", { wide: true, aside: badge("bad", words.counted(findings.length, "problem")) },
            h("ul", { class: "list" }, findings.map((each) =>
              h("li", {}, h("div", {}, seen(each.text)), each.advice ? h("small", {}, seen(each.advice)) : null,
                each.command ? command(atCluster(each.command)) : null))))
        : null);
  };

  const loadEntry = async () => {
    const mine = entry;
    if (mine.isLoading) return;
    mine.isLoading = true;
    mine.isStale = false;
    try {
      mine.answer = await cockpit.get("/api/problems");
      mine.trouble = null;
    } catch (error) {
      mine.trouble = error.message;
    }
    mine.isLoading = false;
    if (mine === entry) drawEntry();
  };

  const showEntry = (view) => {
    entry = { element: h("div", { class: "stack", id: "problems" }), answer: null, trouble: null, isLoading: false, isStale: false };
    view.append(h("div", { class: "stack" },
      heading([], "What is wrong now", choose()),
      entry.element));
    drawEntry();
    loadEntry();
  };

  /** The answer is read again when rows have changed; after a burst once, with the next document. */
  const changeEntry = (event, data) => {
    if (event === "partitions" && data.rows.length) entry.isStale = true;
    if (event === "missed" || (event === "now" && entry.isStale)) loadEntry();
    if (event === "now") drawEntry();
  };

  let again = null;

  cockpit.view("why", {
    title: "Why",
    key: "2",
    keys: [["/", "name a partition"]],
    states: ["States of partitions", "States of replicas", "Replicas in the map"],
    show(view, [topic, partition]) {
      entry = null;
      again = null;
      if (topic === undefined || topic === "") {
        showEntry(view);
        return;
      }
      const element = h("div");
      view.append(element);
      const look = () => again?.();
      again = watch(element, address("/api/why", { topic, partition: partition ?? "0" }), (found) => draw(found, look));
    },
    update(event, data) {
      if (entry !== null) {
        changeEntry(event, data);
      } else if (event === "missed") {
        again?.(); // Another moment of a recording is shown.
      }
    },
    hide() {
      rest();
      entry = null;
    },
  });
}
