"use strict";
// The view Now: the controller's event in progress, queue and states over time, the map of partitions, brokers with what
// they are sent, both state machines, work under way, groups, findings, and the controller's newest records.
//
// What must stay true: an absent value shows as a dash or as a sentence that says why; what has come over the stream is
// kept while another view is shown, and is bounded.
{
  // Kafka's states of the controller, in the order of their numbers.
  const CONTROLLER_STATES = [
    "Idle", "ControllerChange", "BrokerChange", "TopicChange", "TopicDeletion", "AlterPartitionReassignment",
    "AutoLeaderBalance", "ManualLeaderBalance", "ControlledShutdown", "IsrChange", "LeaderAndIsrResponseReceived",
    "LogDirChange", "ControllerShutdown", "UncleanLeaderElectionEnable", "TopicUncleanLeaderElectionEnable",
    "ListPartitionReassignment", "UpdateMetadataResponseReceived", "UpdateFeatures",
  ];
  const IDLE = CONTROLLER_STATES[0];

  // For each state of Kafka's state machines, those that may come before it.
  const PARTITION_MACHINE = {
    New: ["NonExistent"],
    Online: ["New", "Online", "Offline"],
    Offline: ["New", "Online", "Offline"],
    NonExistent: ["Offline"],
  };
  const REPLICA_MACHINE = {
    New: ["NonExistent"],
    Online: ["New", "Online", "Offline", "DeletionIneligible"],
    Offline: ["New", "Online", "Offline", "DeletionIneligible"],
    DeletionStarted: ["Offline"],
    DeletionSuccessful: ["DeletionStarted"],
    DeletionIneligible: ["Offline", "DeletionStarted"],
    NonExistent: ["DeletionSuccessful"],
  };
  cockpit.tables = { CONTROLLER_STATES, PARTITION_MACHINE, REPLICA_MACHINE };

  // An event that takes or waits longer delays the cluster.
  const SLOW_MS = 1000;
  const WINDOW_MS = 60_000;
  const MAX_SPANS = 5000;
  const MAX_LINES = 60;
  const SAMPLES = 90;

  // -- what has come over the stream ----------------------------------------------------------------------------------

  /** Spans of the controller's states: [state, from_ms, to_ms], oldest first. */
  let spans = [];
  /** The newest records as lines {time_ms, kind, text, count}, newest first; records alike in a row are one line. */
  const lines = [];
  /** Transitions seen: "partitions Online Offline" -> number. */
  const transitions = new Map();
  /** For each broker the newest samples of each value. */
  const samples = new Map();
  const SAMPLED = ["loop_lag_ms", "memory_bytes", "bytes_in_per_s", "bytes_out_per_s", "queue_size"];

  /** Kafka's name of a state without the machine's: OnlinePartition, ReplicaDeletionStarted. */
  const short = (name) => name.replace(/^Replica(?=Deletion)|(Partition|Replica)$/g, "");

  let recordsSeen = 0;

  const keepRecord = (record) => {
    recordsSeen += 1;
    if (record.kind === "event" && record.state && record.state !== IDLE) {
      spans.push([record.state, record.time_ms - (record.processing_time_ms ?? 0), record.time_ms]);
      if (spans.length > MAX_SPANS) spans = spans.slice(-MAX_SPANS / 2);
    }
    if ((record.kind === "partition" || record.kind === "replica") && !record.failed) {
      const key = `${record.kind}s ${short(record.from)} ${short(record.to)}`;
      transitions.set(key, (transitions.get(key) ?? 0) + 1);
    }
    keepLine(record);
  };

  const keepLine = (record) => {
    const isChange = record.kind === "partition" || record.kind === "replica";
    const alike = isChange ? `${record.kind} ${record.from} ${record.to} ${record.failed} ${record.event}` : null;
    if (alike !== null && lines[0]?.alike === alike) {
      lines[0].count += 1;
      return;
    }
    const text = lineTexts[record.kind]?.(record);
    if (text === undefined) return;
    lines.unshift({ time_ms: record.time_ms, kind: record.kind, text, alike, count: 1, record });
    lines.length = Math.min(lines.length, MAX_LINES);
  };

  const changed = (record, whose) =>
    `${whose} ${short(record.from)} \u2192 ${short(record.to)}${record.failed ? " failed" : ""}` +
    (isShown(record.leader) ? `, leader ${record.leader} epoch ${record.leader_epoch}` : "") +
    (record.why ? `: ${record.why}` : "");

  const lineTexts = {
    event: (record) =>
      `${record.event} ${record.outcome ?? "processed"} in ${words.duration(record.processing_time_ms)}` +
      (record.queue_time_ms >= 1 ? `, after ${words.duration(record.queue_time_ms)} in the queue` : ""),
    request: (record) =>
      `${record.api} to broker ${record.brokers.join(", ")}: ${words.counted(record.size, "partition")}` +
      (record.led ? `, ${words.count(record.led)} of them to lead` : ""),
    controller: (record) => record.text,
    partition: (record) => changed(record, `${record.topic}-${record.partition}`),
    replica: (record) => changed(record, `replica ${record.replica} of ${record.topic}-${record.partition}`),
  };

  const keepSamples = (now) => {
    for (const broker of now.brokers ?? []) {
      const kept = samples.get(broker.id) ?? Object.fromEntries(SAMPLED.map((name) => [name, []]));
      samples.set(broker.id, kept);
      for (const name of SAMPLED) {
        kept[name].push(broker[name] ?? null);
        if (kept[name].length > SAMPLES) kept[name].shift();
      }
    }
  };

  cockpit.listeners.push((event, data) => {
    if (event === "now") keepSamples(data);
    if (event === "record") for (const record of data.records) keepRecord(record);
    if (event === "partitions") changeMap(data);
    if (event === "missed") loadMap();
  });

  // -- the map --------------------------------------------------------------------------------------------------------

  let heat = null;
  let mapTrouble = null;
  let isLoading = false;

  const loadMap = async () => {
    if (isLoading || heat === null) return;
    isLoading = true;
    try {
      heat.show(await cockpit.PartitionMap.load());
      mapTrouble = null;
    } catch (error) {
      mapTrouble = error.message;
    }
    isLoading = false;
    if (shown !== null) draw(cockpit.now);
  };

  /** Takes changed rows if they follow the copy that is shown; otherwise the whole map is read again. */
  const changeMap = (data) => {
    const map = heat?.map;
    if (!map || isLoading) return;
    if (data.version === map.version && data.sequence <= map.sequence) return;
    if (data.version === map.version && data.sequence === map.sequence + 1) {
      map.sequence = data.sequence;
      heat.apply(data.rows, data.cells);
    } else {
      loadMap();
    }
  };

  /** A name of several words that may be broken between them. */
  const broken = (name) => name.split(/(?<=[a-z])(?=[A-Z])/).flatMap((word) => [word, h("wbr")]);

  // -- tiles ----------------------------------------------------------------------------------------------------------

  const tile = (label, value, detail, kind = "calm") =>
    h("div", { class: `tile ${kind}` }, h("dt", {}, label), h("dd", {}, h("strong", {}, value), h("small", {}, detail)));

  const controllerTile = ({ controller, time_ms }) => {
    if (!isShown(controller?.id) || controller.id < 0) {
      return tile("Controller", "none", controller?.why_not ?? "No broker is the controller.", "bad");
    }
    const epoch = isShown(controller.epoch) ? `epoch ${controller.epoch}` : "";
    const since = controller.since_ms;
    const age = isShown(since) ? `for ${words.duration(time_ms - since)}` : "";
    return tile("Controller", `broker ${controller.id}`, [epoch, age].filter(Boolean).join(", ") || controller.host);
  };

  const eventTiles = ({ events, controller, why_not }) => {
    if (!events) {
      const why = why_not ?? controller?.why_not ?? "The controller does not tell.";
      return [tile("Event in progress", words.none, why), tile("Event queue", words.none, "")];
    }
    const isSlow = (ms) => (ms ?? 0) > SLOW_MS;
    return [
      tile("Event in progress", broken(events.event ?? IDLE), events.event ? `for ${words.duration(events.event_for_ms)}` : "nothing to do",
        !events.event ? "calm" : isSlow(events.event_for_ms) ? "bad" : "busy"),
      tile("Event queue", words.count(events.queue_size),
        events.queue_size ? `the oldest waits for ${words.duration(events.waits_ms)}` : "nothing waits",
        !events.queue_size ? "calm" : isSlow(events.waits_ms) ? "bad" : "busy"),
    ];
  };

  const clusterTiles = (now) => {
    const brokers = now.brokers ?? [];
    const alive = brokers.filter((broker) => broker.alive).length;
    const totals = now.totals ?? {};
    const said = [
      isShown(totals.offline) ? `${words.count(totals.offline)} offline` : null,
      isShown(totals.under_replicated) ? `${words.count(totals.under_replicated)} under-replicated` : null,
    ];
    const groups = now.groups ?? [];
    const lags = groups.map((group) => group.lag).filter(isShown);
    return [
      tile("Brokers", `${alive} of ${brokers.length}`, alive === brokers.length ? "all alive" : "some are down",
        alive === brokers.length ? "good" : "bad"),
      tile("Partitions", words.count(totals.partitions), said.filter(isShown).join(", "),
        totals.offline > 0 ? "bad" : totals.under_replicated > 0 ? "busy" : "good"),
      tile("Lag of groups", lags.length === 0 ? words.none : words.count(lags.reduce((sum, lag) => sum + lag, 0)),
        words.counted(groups.length, "group")),
    ];
  };

  // -- the controller's states over time ------------------------------------------------------------------------------

  const LANE = 18;
  let lanes = null;

  /** What the document has of the last minute, then what the stream has brought since. */
  const spansOf = ({ states, events, time_ms }) => {
    const over = states?.over_time ?? [];
    const until = over.at(-1)?.[0] ?? 0;
    const all = over.map(([from, state], index) => [state, from, over[index + 1]?.[0] ?? from]);
    all.push(...spans.filter(([, , to]) => to > until));
    if (events?.event && states?.now) all.push([states.now, time_ms - (events.event_for_ms ?? 0), time_ms]);
    return all.filter(([state, , to]) => state !== IDLE && to >= time_ms - WINDOW_MS);
  };

  const statesPanel = (now) => {
    const shownSpans = spansOf(now);
    const current = now.states?.now ?? null;
    const why = now.states?.why_not ?? now.controller?.why_not;
    const waiting = now.events?.waiting ?? [];
    const rows = CONTROLLER_STATES.map((state) => {
      const own = shownSpans.filter(([name]) => name === state);
      const busy = own.reduce((sum, [, from, to]) => sum + Math.max(0, to - from), 0);
      return { state, times: own.length, busy, isNow: state === current };
    });
    return panel("states", "The controller's states", {
      wide: true,
      aside: h("span", { class: "note" }, "the last minute"),
      why: current === null && shownSpans.length === 0 ? (why ?? "The controller does not tell its state.") : null,
    },
    h("table", { class: "lanes" },
      h("thead", {}, h("tr", {},
        h("th", { scope: "col" }, "State"),
        h("th", { scope: "col", class: "lane-axis" }, h("span", {}, "\u221260 s"), h("span", {}, "\u221230 s"), h("span", {}, "now")),
        h("th", { scope: "col", class: "number" }, "Times"),
        h("th", { scope: "col", class: "number" }, "Busy"))),
      h("tbody", {}, rows.map(({ state, times, busy, isNow }, index) =>
        h("tr", { class: isNow ? "current" : times === 0 ? "unseen-state" : null },
          h("th", { scope: "row" }, h("span", { title: state }, state), isNow ? h("em", {}, "now") : null),
          index === 0
            ? h("td", { rowspan: rows.length, class: "lane", "aria-hidden": "true" },
                h("canvas", { class: "lane-canvas", "data-kept": "lanes" }))
            : null,
          h("td", { class: "number" }, state === IDLE ? "" : times || ""),
          h("td", { class: "number" }, state === IDLE || times === 0 ? "" : words.duration(busy)))))),
    waiting.length === 0
      ? null
      : h("ol", { class: "waiting", "aria-label": "The event queue" },
          h("li", {}, h("strong", {}, "In the queue:")),
          waiting.map((event) => h("li", {}, event.event, " ", h("small", {}, `for ${words.duration(event.waits_ms)}`)))));
  };

  // Sizes and colours are read when they change: reading them makes the browser lay out the page at once.
  const laneSize = new ResizeObserver(([{ contentRect }]) => {
    if (lanes === null || Math.round(contentRect.width) === Math.round(lanes.width)) return;
    lanes = null;
    if (shown !== null) drawLanes(cockpit.now);
  });

  const measuredLanes = (canvas) => {
    const cell = canvas.parentElement;
    const [width, ratio] = [cell.clientWidth, devicePixelRatio];
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(CONTROLLER_STATES.length * LANE * ratio);
    laneSize.disconnect();
    laneSize.observe(cell);
    const colours = coloursOf(cell, ["line", "lane", "accent"]).map((colour) => `rgb(${colour.join(" ")})`);
    return { canvas, width, ratio, colours };
  };

  const drawLanes = (now) => {
    const canvas = shown.querySelector(".lane-canvas");
    if (canvas === null) return;
    if (lanes?.canvas !== canvas) lanes = measuredLanes(canvas);
    const { width, ratio, colours: [line, busy, strong] } = lanes;
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, canvas.height);
    context.fillStyle = line;
    for (let row = 0; row < CONTROLLER_STATES.length; row += 1) context.fillRect(0, row * LANE + LANE / 2, width, 1);
    for (const part of [0.25, 0.5, 0.75]) context.fillRect(Math.round(width * part), 0, 1, canvas.height);
    const begin = now.time_ms - WINDOW_MS;
    for (const [state, from, to] of spansOf(now)) {
      const row = CONTROLLER_STATES.indexOf(state);
      if (row < 0) continue;
      const left = Math.max(0, ((from - begin) / WINDOW_MS) * width);
      const right = Math.min(width, ((to - begin) / WINDOW_MS) * width);
      context.fillStyle = to >= now.time_ms ? strong : busy;
      context.fillRect(Math.min(left, width - 2), row * LANE + 3, Math.max(2, right - left), LANE - 6);
    }
  };

  // -- brokers --------------------------------------------------------------------------------------------------------

  const SPARK_WIDTH = 84;
  const SPARK_HEIGHT = 20;

  const spark = (id, name, most) => {
    const values = samples.get(id)?.[name] ?? [];
    const points = values
      .map((value, index) => [index, value])
      .filter(([, value]) => value !== null)
      .map(([index, value]) => {
        const x = (SPARK_WIDTH * (index + SAMPLES - values.length)) / (SAMPLES - 1);
        return `${x.toFixed(1)},${(SPARK_HEIGHT - 2 - ((SPARK_HEIGHT - 4) * value) / most).toFixed(1)}`;
      });
    return svg("svg", { class: "spark", viewBox: `0 0 ${SPARK_WIDTH} ${SPARK_HEIGHT}`, "aria-hidden": "true", focusable: "false" },
      svg("line", { x1: 0, x2: SPARK_WIDTH, y1: SPARK_HEIGHT - 1, y2: SPARK_HEIGHT - 1 }),
      points.length > 1 ? svg("polyline", { points: points.join(" ") }) : null);
  };

  const most = (name) => {
    let found = 0;
    for (const kept of samples.values()) for (const value of kept[name]) found = Math.max(found, value ?? 0);
    return found || 1;
  };

  const brokersPanel = (now) => {
    const scales = Object.fromEntries(SAMPLED.map((name) => [name, most(name)]));
    const measured = (broker, name, label, write) =>
      h("td", { class: "number measured", "data-label": label }, spark(broker.id, name, scales[name]), h("span", {}, write(broker[name])));
    const state = (broker) => {
      if (!broker.alive) return [badge("bad", "down"), h("small", {}, broker.trouble ?? "")];
      if (broker.shutting_down) return badge("busy", "shutting down");
      return badge("good", "alive");
    };
    const sending = (broker) => {
      if (broker.alive && broker.trouble) return [badge("bad", "trouble"), h("small", {}, broker.trouble)];
      if (broker.sending) return h("small", {}, `${broker.sending} for ${words.duration(broker.sending_for_ms)}`);
      return h("small", {}, isShown(broker.queue_size) ? "nothing under way" : "");
    };
    return panel("brokers", "Brokers", { wide: true, aside: h("span", { class: "note" }, `the last ${SAMPLES} seconds`) },
      h("div", { class: "scroll-x" },
        h("table", { class: "brokers cards" },
          h("thead", {}, h("tr", {}, ["Broker", "State", "The controller sends it"].map((title) => h("th", { scope: "col" }, title)),
            ["Loop lag", "Memory", "In", "Out"].map((title) => h("th", { scope: "col", class: "number" }, title)))),
          h("tbody", {}, (now.brokers ?? []).map((broker) =>
            h("tr", { class: broker.alive ? null : "down" },
              h("th", { scope: "row" },
                h("strong", {}, broker.id),
                broker.is_controller ? badge("calm", "controller") : null,
                h("small", {}, [broker.host ? `${broker.host}:${broker.port}` : "", broker.rack ? `rack ${broker.rack}` : "",
                  isShown(broker.epoch) ? `epoch ${broker.epoch}` : ""].filter(Boolean).join(" \u00b7 "))),
              h("td", { "data-label": "State" }, state(broker)),
              h("td", { class: "sending", "data-label": "The controller sends it" },
                isShown(broker.queue_size) ? h("span", { class: "queue" }, `${words.count(broker.queue_size)} waiting`) : words.none,
                sending(broker)),
              measured(broker, "loop_lag_ms", "Loop lag", words.duration),
              measured(broker, "memory_bytes", "Memory", words.bytes),
              measured(broker, "bytes_in_per_s", "In", (value) => (isShown(value) ? `${words.bytes(value)}/s` : words.none)),
              measured(broker, "bytes_out_per_s", "Out", (value) => (isShown(value) ? `${words.bytes(value)}/s` : words.none))))))),
      whyNot(now.brokers?.find((broker) => broker.alive && broker.why_not)?.why_not));
  };

  const whyNot = (why) => (why ? h("p", { class: "why-not" }, why) : null);

  // -- state machines -------------------------------------------------------------------------------------------------

  const machine = (title, kind, table, counts) => {
    const states = Object.keys(table);
    const byName = Object.fromEntries(Object.entries(counts ?? {}).map(([name, count]) => [short(name), count]));
    const cell = (from, to) => {
      const seen = transitions.get(`${kind} ${from} ${to}`) ?? 0;
      if (table[to].includes(from)) return h("td", { class: seen ? "legal seen" : "legal" }, seen ? words.count(seen) : "\u00b7");
      return h("td", { class: seen ? "illegal marked" : "illegal" }, seen ? words.count(seen) : "");
    };
    return h("div", { class: "scroll-x" },
      h("table", { class: `machine ${kind}` },
        h("caption", {}, title),
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "from \u2193 to \u2192"),
          h("th", { scope: "col", class: "number" }, "now"), states.map((state) => h("th", { scope: "col" }, broken(state))))),
        h("tbody", {}, states.map((from) =>
          h("tr", {}, h("th", { scope: "row" }, from),
            h("td", { class: "number total" }, counts ? words.count(byName[from] ?? 0) : words.none),
            states.map((to) => cell(from, to)))))));
  };

  const machinesPanel = (now) =>
    panel("machines", "State machines", { wide: true, aside: h("span", { class: "note" }, "changes seen since the page was opened") },
      h("div", { class: "machines" },
        machine("Partitions", "partitions", PARTITION_MACHINE, now.machines?.partitions),
        machine("Replicas", "replicas", REPLICA_MACHINE, now.machines?.replicas)),
      whyNot(now.machines ? null : (now.why_not ?? now.controller?.why_not)));

  // -- work, groups, findings, records --------------------------------------------------------------------------------

  const partitionLink = (topic, partition) => h("a", { href: storyOf(topic, partition) }, `${topic}-${partition}`);

  const workPanel = (now) => {
    const work = now.work ?? {};
    const step = (what, name, text, waits, part = null) =>
      h("li", {},
        h("div", {}, badge("busy", what), " ", name, " ", h("span", { class: "step" }, text)),
        part === null ? null : h("progress", { max: part[1], value: part[0], "aria-label": `${part[0]} of ${part[1]}` }),
        waits ? h("small", {}, `waits for ${waits}`) : null);
    const items = [
      ...(work.reassignments ?? []).map((each) => {
        const adding = each.adding_replicas ?? [];
        const removing = each.removing_replicas ?? [];
        const added = adding.filter((id) => (each.isr ?? []).includes(id)).length;
        const text = [adding.length ? `adds ${words.ids(adding)}` : "", removing.length ? `removes ${words.ids(removing)}` : ""];
        return step("reassignment", partitionLink(each.topic, each.partition), each.step ?? text.filter(Boolean).join(", "),
          each.waits_for, adding.length ? [added, adding.length] : null);
      }),
      ...(work.deletions ?? []).map((each) =>
        step("deletion", each.topic, each.step ?? `${each.deleted ?? 0} of ${each.replicas ?? "?"} replicas are gone`, each.waits_for,
          each.replicas ? [each.deleted ?? 0, each.replicas] : null)),
      ...(work.elections ?? []).map((each) =>
        step("election", `${each.type}, ${words.counted(each.partitions, "partition")}`, `${each.step}, ${words.duration(each.for_ms)}`,
          each.waits_for)),
    ];
    const total = (work.reassignments_count ?? 0) + (work.deletions_count ?? 0) + (work.elections?.length ?? 0);
    return panel("work", "Under way", { aside: h("span", { class: "note" }, words.count(total)) },
      items.length === 0
        ? h("p", { class: "quiet" }, "No reassignment, deletion or election is under way.")
        : h("ul", { class: "list", tabindex: "0", "aria-label": "Under way" }, items),
      whyNot(work.why_not));
  };

  const groupsPanel = (now) => {
    const groups = [...(now.groups ?? [])].sort((a, b) => (b.lag ?? -1) - (a.lag ?? -1));
    return panel("groups", "Groups", { aside: h("span", { class: "note" }, words.count(groups.length)) },
      groups.length === 0
        ? h("p", { class: "quiet" }, now.groups_why_not ?? "There is no group.")
        : h("div", { class: "scroll-y", tabindex: "0", role: "region", "aria-label": "Groups" }, h("table", { class: "rows" },
            h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Group"), h("th", { scope: "col" }, "State"),
              h("th", { scope: "col", class: "number" }, "Members"), h("th", { scope: "col", class: "number" }, "Lag"))),
            h("tbody", {}, groups.map((group) =>
              h("tr", {}, h("th", { scope: "row" }, group.group), h("td", {}, group.state ?? words.none),
                h("td", { class: "number" }, words.count(group.members)),
                h("td", { class: "number", title: group.why_not ?? null }, words.count(group.lag))))))));
  };

  const findingsPanel = (now) => {
    const findings = now.findings ?? [];
    const problems = findings.filter((finding) => finding.is_problem).length;
    return panel("findings", "Findings", {
      aside: problems ? badge("bad", words.counted(problems, "problem")) : badge("good", "healthy"),
    },
    findings.length === 0
      ? h("p", { class: "quiet" }, "Nothing needs attention.")
      : h("ul", { class: "list findings" }, findings.map((finding) =>
          h("li", { class: finding.is_problem ? "problem" : "hint" },
            h("div", {}, badge(finding.is_problem ? "bad" : "busy", finding.is_problem ? "problem" : "hint"), " ", finding.text),
            finding.why?.length
              ? h("details", {}, h("summary", {}, "Why"), h("ul", {}, finding.why.map((line) => h("li", {}, line))))
              : null,
            finding.advice ? h("small", {}, finding.advice) : null,
            finding.command ? command(finding.command) : null))));
  };

  const recordsPanel = (now) =>
    panel("records", "What the controller does", {
      wide: true,
      aside: h("span", { class: "note" }, "newest first"),
      why: lines.length === 0 ? (now.controller?.why_not ?? "The controller has done nothing since the page was opened.") : null,
    },
    h("ol", { class: "feed scroll-y", tabindex: "0", "aria-label": "The controller's newest records" }, lines.map((line) =>
      h("li", { class: line.kind },
        h("time", {}, words.time(line.time_ms)),
        h("span", { class: "kind" }, line.kind),
        h("span", { class: "text" },
          line.count > 1
            ? `${words.counted(line.count, line.kind)} ${short(line.record.from)} \u2192 ${short(line.record.to)}` +
              (line.record.event ? `, because of ${line.record.event}` : "")
            : line.text)))));

  // -- the view -------------------------------------------------------------------------------------------------------

  let shown = null;

  /** The panel that is shown already if nothing that it is made of has changed, otherwise a new one. */
  const renewed = (id, madeOf, make) => {
    const old = document.getElementById(id);
    if (old?.madeOf === madeOf) return old;
    const node = make();
    // `morph` keeps the old element if there is one.
    (old ?? node).madeOf = madeOf;
    return node;
  };

  const draw = (now) => {
    heat ??= cockpit.heat = new cockpit.HeatMap();
    morph(shown,
      h("h2", { class: "unseen", id: "now-title" }, "Now"),
      now.trouble ? h("p", { class: "trouble", role: "alert" }, now.trouble) : null,
      h("dl", { class: "tiles" }, controllerTile(now), eventTiles(now), clusterTiles(now)),
      panel("map", "Brokers \u00d7 partitions", {
        wide: true,
        aside: h("span", { class: "note" }, heat.map ? `${words.counted(heat.map.partitions, "partition")} on ${words.counted(heat.map.brokers.length, "broker")}` : ""),
        why: heat.map?.partitions ? null : (mapTrouble ?? (heat.map ? "There is no partition yet." : "The map is being read.")),
      }, h("div", { id: "map-place", "data-kept": "map" })),
      h("div", { class: "beside" }, statesPanel(now), h("div", { class: "stack" }, findingsPanel(now), workPanel(now), groupsPanel(now))),
      brokersPanel(now),
      renewed("machines", `${recordsSeen} ${JSON.stringify(now.machines)} ${now.why_not}`, () => machinesPanel(now)),
      renewed("records", `${recordsSeen} ${now.why_not}`, () => recordsPanel(now)));
    const place = document.getElementById("map-place");
    if (place !== null && heat.element.parentElement !== place) place.append(heat.element);
    drawLanes(now);
  };

  cockpit.view("now", {
    title: "Now",
    key: "1",
    keys: cockpit.HeatMap.keys,
    show(element, rest, { now }) {
      shown = h("div", { class: "now" });
      element.append(shown);
      draw(now);
      loadMap();
    },
    update(event) {
      if (event === "now") draw(cockpit.now);
    },
    hide() {
      shown = null;
    },
  });
  cockpit.onColours.push(() => {
    lanes = null;
    if (shown !== null) drawLanes(cockpit.now);
  });
}
