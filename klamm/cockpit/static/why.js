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

  const [LEADER, OUT_OF_SYNC, OFFLINE, ADDING, REMOVING, UNUSED] = [2, 3, 4, 5, 6, 7];
  const MOST_NAMED = 40;
  const MOST_REASONS = 30;
  const KIND = {
    offline: ["Without a leader", "bad"],
    behind: ["Under-replicated", "busy"],
    moving: ["Being reassigned", "calm"],
  };

  /** The partitions that are not well, as [kind, reason, how many, the first of them], the worst first. */
  const problemsOf = (map) => {
    const width = map.brokers.length;
    const found = new Map();
    for (let row = 0; row < map.partitions; row += 1) {
      const cells = map.cells.subarray(row * width, (row + 1) * width);
      const lists = [[], [], [], [], [], [], [], []];
      for (let index = 0; index < width; index += 1) if (cells[index] >= LEADER) lists[cells[index]].push(map.brokers[index]);
      const [down, unused] = [lists[OFFLINE], lists[UNUSED]];
      const said = [
        down.length ? `${down.length > 1 ? "brokers" : "broker"} ${down.join(", ")} ${down.length > 1 ? "are" : "is"} not live` : "",
        unused.length ? `the replica on ${unused.join(", ")} is offline although its broker is live: its log directory has failed, or the controller has not used it since the broker came back` : "",
        lists[OUT_OF_SYNC].length ? `${lists[OUT_OF_SYNC].length > 1 ? "replicas" : "the replica"} on ${lists[OUT_OF_SYNC].join(", ")} ${lists[OUT_OF_SYNC].length > 1 ? "lag" : "lags"} behind` : "",
        lists[ADDING].length ? `${lists[ADDING].join(", ")} being added` : "",
        lists[REMOVING].length ? `${lists[REMOVING].join(", ")} being removed` : "",
      ].filter(Boolean).join("; ");
      const isShort = lists[OUT_OF_SYNC].length + down.length + unused.length > 0;
      const kind = lists[LEADER].length === 0 ? "offline" : isShort ? "behind" : said ? "moving" : null;
      if (kind === null) continue;
      const key = `${kind} ${said}`;
      const group = found.get(key) ?? { kind, why: said || "no replica is known", count: 0, rows: [] };
      group.count += 1;
      if (group.rows.length < MOST_NAMED) group.rows.push(row);
      found.set(key, group);
    }
  const order = Object.keys(KIND);
    return [...found.values()].sort((a, b) => order.indexOf(a.kind) - order.indexOf(b.kind) || b.count - a.count);
  };

  const problem = (map) => (each) => {
    const [title, kind] = KIND[each.kind];
    return h("section", { class: `panel condition ${each.kind === "offline" ? "problem" : ""}`, "data-kind": each.kind },
      h("header", {}, h("h2", {}, `${title}: ${each.why}`), badge(kind, words.counted(each.count, "partition"))),
      h("ul", { class: "chips" },
        each.rows.map((row) => {
          const [topic, number] = map.named(row);
          return h("li", {}, h("a", { href: storyOf(topic, number) }, `${seen(topic)}-${number}`));
        }),
        each.count > each.rows.length ? h("li", { class: "note" }, `and ${words.count(each.count - each.rows.length)} more: see the map of the view Now`) : null));
  };

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

  /** The entry page while it is shown: where it is, and its copy of the map. */
  let entry = null;

  const drawEntry = () => {
    const { map, trouble } = entry;
    // Reasons are drawn from what is known now.
    const gone = lapse(cockpit.now, "partitions");
    const unread = gone ?? lapse(cockpit.now, "findings");
    const found = map && gone === null ? problemsOf(map) : [];
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
      !map && !trouble ? h("p", { class: "quiet", role: "status" }, "Asking the cluster\u2026") : null,
      map && unread === null && isQuiet
        ? h("section", { class: "panel", "data-kind": "healthy" },
            h("header", {}, h("h2", {}, "Nothing is wrong now."), badge("good", "no problem")),
            h("p", { class: "quiet" }, "All partitions have a leader, and all replicas are in sync. A partition without a leader, or with replicas out of sync, appears here with its reason."))
        : null,
      found.slice(0, MOST_REASONS).map(problem(map)),
      deletions.length
        ? h("section", { class: "panel condition", "data-kind": "deleting" },
            h("header", {}, h("h2", {}, "Topics being deleted"), badge("busy", words.counted(cockpit.now.work.deletions_count ?? deletions.length, "topic"))),
            h("ul", { class: "list" }, deletions.slice(0, MOST_NAMED).map((each) =>
              h("li", {}, h("a", { href: storyOf(each.topic, 0) }, seen(each.topic)),
                each.waits_for ? h("small", {}, `the controller says what it waits for: ${seen(each.waits_for)}`) : null))))
        : null,
      found.length > MOST_REASONS ? h("p", { class: "note" }, `${words.count(found.length - MOST_REASONS)} more reasons are not shown.`) : null,
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
    try {
      mine.map = await cockpit.PartitionMap.load();
      mine.trouble = null;
    } catch (error) {
      mine.trouble = error.message;
    }
    mine.isLoading = false;
    if (mine === entry) drawEntry();
  };

  const showEntry = (view) => {
    entry = { element: h("div", { class: "stack", id: "problems" }), map: null, trouble: null, isLoading: false };
    view.append(h("div", { class: "stack" },
      heading([], "What is wrong now", choose()),
      entry.element));
    drawEntry();
    loadEntry();
  };

  /** Changed rows of the map, if they follow the copy; otherwise the whole map is read again. */
  const changeEntry = (event, data) => {
    const { map } = entry;
    if (event === "missed") loadEntry();
    if (event !== "partitions" || !map) return;
    if (data.version === map.version && data.sequence <= map.sequence) return;
    if (data.version === map.version && data.sequence === map.sequence + 1) {
      map.sequence = data.sequence;
      map.apply(data.rows, data.cells);
    } else {
      loadEntry();
    }
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
        // The rows of a burst are drawn once, with the next document.
        if (event === "now") drawEntry();
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
