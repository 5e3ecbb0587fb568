"use strict";
// The view Now: the controller's event in progress, queue and states over time, the map of partitions, brokers with what
// they are sent, both state machines, work under way, groups, findings, and the controller's newest records.
//
// What must stay true: an absent value shows as a dash or as a sentence that says why; what has come over the stream is
// kept while another view is shown, and is bounded; a panel is a `part` of what it shows, so that a new document costs
// only what has changed.
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
  Object.assign(cockpit.tables, { CONTROLLER_STATES, PARTITION_MACHINE, REPLICA_MACHINE });

  // An event that takes or waits longer delays the cluster.
  const SLOW_MS = 1000;
  const WINDOW_MS = 60_000;
  const MAX_SPANS = 5000;
  // Lines of records as they come, and with those that were asked for.
  const MAX_LINES = 60;
  const MOST_LINES = 10_000;
  const EARLIER_RECORDS = 500;
  const MAX_RECORD_CHARACTERS = 300;
  const SAMPLES = 90;

  // -- what has come over the stream ----------------------------------------------------------------------------------

  /** Spans of the controller's states: [state, from_ms, to_ms, epoch], oldest first. */
  let spans = [];
  /** The newest records as lines {record, alike, count, oldest}, newest first; records alike in a row are one line. */
  const lines = [];
  let mostLines = MAX_LINES;
  /** Transitions seen: "partitions Online Offline" -> number. */
  const transitions = new Map();
  /** For each broker the newest samples of each value. */
  const samples = new Map();
  const SAMPLED = ["loop_lag_ms", "memory_bytes", "bytes_in_per_s", "bytes_out_per_s"];

  /** Kafka's name of a state without the machine's: OnlinePartition, ReplicaDeletionStarted. */
  const short = (name) => name.replace(/^Replica(?=Deletion)|(Partition|Replica)$/g, "");

  let recordsSeen = 0;

  const keepRecord = (record) => {
    recordsSeen += 1;
    if (record.kind === "event" && record.state && record.state !== IDLE) {
      spans.push([record.state, record.time_ms - (record.processing_time_ms ?? 0), record.time_ms, record.epoch]);
      if (spans.length > MAX_SPANS) spans = spans.slice(-MAX_SPANS / 2);
    }
    if ((record.kind === "partition" || record.kind === "replica") && !record.failed) {
      const key = `${record.kind}s ${short(record.from)} ${short(record.to)}`;
      transitions.set(key, (transitions.get(key) ?? 0) + 1);
    }
    keepLine(record);
  };

  const keyOf = ({ epoch, controller, sequence }) => `${epoch}.${controller}.${sequence}`;

  /** What records have in common that one line stands for; null for a record with a line of its own. */
  const alikeOf = (record) =>
    record.kind === "partition" || record.kind === "replica"
      ? `${record.kind} ${record.from} ${record.to} ${record.failed} ${record.event}` : null;

  const keepLine = (record) => {
    const alike = alikeOf(record);
    if (alike !== null && lines[0]?.alike === alike) {
      lines[0].count += 1;
      return;
    }
    if (!Object.hasOwn(lineTexts, record.kind)) return;
    // Of a burst few lines are shown, so that their texts are made when they are.
    lines.unshift({ alike, count: 1, record, oldest: keyOf(record) });
    // What is dropped can be asked for again.
    if (lines.length > mostLines) earlier = (earlier ?? 0) + lines.pop().count;
  };

  /** Adds records that are older than all lines, from the oldest to the newest. */
  const keepOlder = (records) => {
    for (const record of records.toReversed()) {
      const alike = alikeOf(record);
      const last = lines.at(-1);
      if (alike !== null && last?.alike === alike) Object.assign(last, { count: last.count + 1, oldest: keyOf(record) });
      else if (Object.hasOwn(lineTexts, record.kind)) lines.push({ alike, count: 1, record, oldest: keyOf(record) });
    }
    mostLines = Math.max(mostLines, Math.min(lines.length, MOST_LINES));
  };

  // How many earlier records the brokers have; null before they were asked.
  let earlier = null;
  let earlierTrouble = null;
  let isAskingEarlier = false;

  /** Asks for records before those that are shown: of the present controller, and of former ones that still run. */
  const loadEarlier = async () => {
    if (isAskingEarlier || cockpit.settings.recording) return;
    isAskingEarlier = true;
    const before = lines.at(-1)?.oldest;
    try {
      const found = await cockpit.get(`/api/controller/records?limit=${EARLIER_RECORDS}${before ? `&before=${before}` : ""}`);
      // What has come meanwhile is newer than what was asked for, or in both.
      if (before === lines.at(-1)?.oldest) {
        keepOlder(found.records);
        earlier = found.earlier;
      }
      earlierTrouble = null;
    } catch (error) {
      earlierTrouble = error.message;
    }
    isAskingEarlier = false;
    recordsSeen += 1;
    if (shown !== null) draw(cockpit.now);
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

  // The epoch of the last document's controller, and how far its clock is ahead of ours.
  let clock = null;

  /** Another controller has another clock: the states of those before are moved to it. */
  const keepClock = ({ states, controller, time_ms }) => {
    if (!isShown(states?.time_ms)) return;
    const found = { epoch: controller.epoch, ahead: states.time_ms - time_ms };
    if (clock !== null && found.epoch > clock.epoch) {
      const moved = found.ahead - clock.ahead;
      spans = spans.map(([state, from, to, epoch]) =>
        epoch < found.epoch ? [state, from + moved, to + moved, epoch] : [state, from, to, epoch]);
    }
    clock = found;
  };

  let samplesSeen = 0;

  const keepSamples = (now) => {
    samplesSeen += 1;
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
    if (event === "now") {
      keepSamples(data);
      keepClock(data);
    }
    if (event === "record") for (const record of data.records) keepRecord(record);
    if (event === "partitions") changeMap(data);
    if (event === "missed") changeMap(UNKNOWN_CHANGES);
  });

  // -- the map --------------------------------------------------------------------------------------------------------

  let heat = null;
  let mapTrouble = null;
  let isLoading = false;
  // What came while the map was being read, which may have been made before.
  let unread = [];
  const UNKNOWN_CHANGES = { version: null };
  const READ_AGAIN_MS = 5_000;

  const loadMap = async () => {
    if (isLoading || heat === null) return;
    isLoading = true;
    try {
      heat.show(await cockpit.PartitionMap.load());
      mapTrouble = null;
    } catch (error) {
      mapTrouble = error.message;
      setTimeout(loadMap, READ_AGAIN_MS);
    }
    isLoading = false;
    const came = unread;
    unread = [];
    if (mapTrouble === null) came.forEach(changeMap);
    if (shown !== null) draw(cockpit.now);
  };

  /** Takes changed rows if they follow the copy that is shown; otherwise the whole map is read again. */
  const changeMap = (data) => {
    if (isLoading) {
      unread.push(data);
      return;
    }
    const map = heat?.map;
    if (!map) return;
    if (data.version === map.version && data.sequence <= map.sequence) return;
    if (data.version === map.version && data.sequence === map.sequence + 1 && data.rows.length > 0) {
      map.sequence = data.sequence;
      map.totals = data.totals ?? map.totals;
      heat.apply(data.rows, data.cells);
      // The numbers beside the map are of the map as it is.
      if (shown !== null) draw(cockpit.now);
    } else {
      loadMap();
    }
  };

  /** A name of several words that may be broken between them. */
  const broken = (name) => name.split(/(?<=[a-z])(?=[A-Z])/).flatMap((word) => [word, h("wbr")]);

  // -- tiles ----------------------------------------------------------------------------------------------------------

  /** A tile, of texts. */
  const tile = (label, value, detail, kind = "calm") =>
    part("div", { class: `tile ${kind}` }, [label, value, detail ?? ""], (...texts) =>
      [h("dt", {}, texts[0]), h("dd", {}, h("strong", {}, broken(String(texts[1]))), h("small", {}, texts[2]))]);

  /** A number that is not known now: what it was, and when. */
  const unknownTile = (label, was, found) =>
    tile(label, "unknown", found.at === null ? found.why : `${was} at ${words.when(found.at)}`, "unknown");

  const controllerTile = (now) => {
    const { controller } = now;
    const gone = lapse(now, "registrations");
    if (cockpit.lostAt !== null || controller?.is_known === false) {
      return unknownTile("Controller", isShown(controller?.id) ? `broker ${controller.id}` : "none", gone ?? { at: null, why: "" });
    }
    if (controller?.silent) return tile("Controller", `broker ${controller.id}`, "it does not answer", "bad");
    if (!isShown(controller?.id) || controller.id < 0) {
      return tile("Controller", "none", controller?.why_not ?? "No broker is the controller.", "bad");
    }
    const epoch = isShown(controller.epoch) ? `epoch ${controller.epoch}` : "";
    const since = controller.since_ms;
    const age = isShown(since) ? `for ${words.duration(Math.max(0, clockOf(now) - since))}` : "";
    return tile("Controller", `broker ${controller.id}`, [epoch, age].filter(Boolean).join(", ") || controller.host);
  };

  /** On clusters of Apache Kafka what only klamm tells is absent. */
  const isOfKlamm = (now) => !String(now.cluster?.kind ?? "").startsWith("kafka");

  const eventTiles = (now) => {
    const { events, controller, why_not } = now;
    if (!isOfKlamm(now)) return [];
    const gone = cockpit.lostAt === null ? null : lapse(now, "status");
    if (gone !== null) return ["Event in progress", "Event queue"].map((label) => unknownTile(label, words.none, gone));
    if (!events) {
      const why = why_not ?? controller?.why_not ?? "The controller does not tell.";
      return [tile("Event in progress", "unknown", why, "unknown"), tile("Event queue", "unknown", "", "unknown")];
    }
    const isSlow = (ms) => (ms ?? 0) > SLOW_MS;
    return [
      tile("Event in progress", events.event ?? IDLE, events.event ? `for ${words.duration(events.event_for_ms)}` : "nothing to do",
        !events.event ? "calm" : isSlow(events.event_for_ms) ? "bad" : "busy"),
      tile("Event queue", words.count(events.queue_size),
        events.queue_size ? `the oldest waits for ${words.duration(events.waits_ms)}` : "nothing waits",
        !events.queue_size ? "calm" : isSlow(events.waits_ms) ? "bad" : "busy"),
    ];
  };

  const MOST_NAMED = 5;
  const named = (ids) => `${ids.slice(0, MOST_NAMED).join(", ")}${ids.length > MOST_NAMED ? ` and ${ids.length - MOST_NAMED} more` : ""}`;

  // What stands before the ids of brokers that are not alive.
  const NOT_ALIVE = { down: "down:", silent: "no answer:", unregistered: "not registered:", unknown: "unknown:" };

  const stateOf = (broker) => broker.state ?? (broker.alive ? "alive" : "down");

  const brokersTile = (now) => {
    const brokers = now.brokers ?? [];
    const alive = brokers.filter((broker) => stateOf(broker) === "alive");
    const value = `${alive.length} of ${brokers.length}`;
    if (cockpit.lostAt !== null) return unknownTile("Brokers", value, lapse(now, "partitions"));
    const said = Object.entries(NOT_ALIVE)
      .map(([state, text]) => [text, brokers.filter((broker) => stateOf(broker) === state).map(({ id }) => id)])
      .filter(([, ids]) => ids.length > 0)
      .map(([text, ids]) => `${text} ${named(ids)}`);
    return tile("Brokers", value, said.length === 0 ? "all alive" : said.join("; "), said.length === 0 ? "good" : "bad");
  };

  const partitionsTile = (now) => {
    const totals = heat?.map?.totals ?? now.totals ?? {};
    const gone = lapse(now, "partitions");
    if (gone !== null) return unknownTile("Partitions", words.count(totals.partitions), gone);
    const said = [
      isShown(totals.offline) ? `${words.count(totals.offline)} offline` : null,
      isShown(totals.under_replicated) ? `${words.count(totals.under_replicated)} under-replicated` : null,
    ];
    return tile("Partitions", words.count(totals.partitions), said.filter(isShown).join(", "),
      totals.offline > 0 ? "bad" : totals.under_replicated > 0 ? "busy" : "good");
  };

  const lagTile = (now) => {
    const groups = now.groups ?? [];
    const lags = groups.map((group) => group.lag).filter(isShown);
    const value = lags.length === 0 ? words.none : words.count(words.sum(lags));
    const gone = lapse(now, "groups");
    return gone !== null ? unknownTile("Lag of groups", value, gone)
      : tile("Lag of groups", value, `records, of ${words.counted(groups.length, "group")}${hiddenGroups(now) === null ? "" : "; others are not known"}`);
  };

  const clusterTiles = (now) => [brokersTile(now), partitionsTile(now), lagTile(now)];

  // -- the controller's states over time ------------------------------------------------------------------------------

  const LANE = 18;
  // It tells its state each second.
  const UNKNOWN_AFTER_MS = 3000;
  let lanes = null;

  /** The time of a document by the clock of the controller, whose states have its times; by ours if it is not known. */
  const clockOf = (now) => now.states?.time_ms ?? now.time_ms;

  /** What the document has of the last minute, then what the stream has brought since. */
  const spansOf = (now) => {
    const over = now.states?.over_time ?? [];
    const [begin, until] = [over[0]?.[0] ?? 0, over.at(-1)?.[0] ?? 0];
    const end = clockOf(now);
    const all = over.map(([from, state], index) => [state, from, over[index + 1]?.[0] ?? from]);
    // Of a busy minute the document has the newest states only.
    all.push(...spans.filter(([, , to]) => to <= begin || to > until));
    if (now.events?.event && now.states?.now) all.push([now.states.now, end - (now.events.event_for_ms ?? 0), end]);
    return all.filter(([state, , to]) => state !== IDLE && to >= end - WINDOW_MS);
  };

  const statesPart = (now) => {
    const found = new Map(CONTROLLER_STATES.map((state) => [state, { times: 0, busy: 0 }]));
    const shownSpans = spansOf(now);
    for (const [state, from, to] of shownSpans) {
      const row = found.get(state);
      if (row === undefined) continue;
      row.times += 1;
      row.busy += Math.max(0, to - from);
    }
    const current = now.states?.now ?? null;
    const rows = [...found].map(([state, { times, busy }]) =>
      [state, state === current, times || "", times === 0 ? "" : words.duration(busy)]);
    const unknown = cockpit.lostAt !== null ? lapseText(lapse(now, "status")) : current !== null ? null
      : (now.states?.why_not ?? now.controller?.why_not ?? "The controller does not tell its state.");
    const why = shownSpans.length > 0 ? null : unknown;
    return place([why, why ? [] : rows, now.events?.waiting ?? [], unknown], statesPanel);
  };

  const statesPanel = (why, rows, waiting, unknown) =>
    panel("states", "The controller's states", {
      wide: true, aside: h("span", { class: "note" }, unknown === null ? "the last minute" : "the last minute; hatched: not known"), why,
    },
      h("table", { class: "lanes" },
        h("thead", {}, h("tr", {},
          h("th", { scope: "col" }, "State"),
          h("th", { scope: "col", class: "lane-axis" }, h("span", {}, "\u221260 s"), h("span", {}, "\u221230 s"), h("span", {}, "now")),
          h("th", { scope: "col", class: "number" }, "Times"),
          h("th", { scope: "col", class: "number" }, "Busy"))),
        h("tbody", {}, rows.map(([state, isNow, times, busy], index) =>
          part("tr", { class: isNow ? "current" : times === "" ? "unseen-state" : null }, [state, isNow, times, busy, index === 0 ? rows.length : 0], stateRow)))),
      waiting.length === 0
        ? null
        : h("ol", { class: "waiting", "aria-label": "The event queue" },
            h("li", {}, h("strong", {}, "In the queue:")),
            waiting.map((event) => h("li", {}, event.event, " ", h("small", {}, `for ${words.duration(event.waits_ms)}`)))),
      whyNot(unknown));

  /** The first row has the canvas of all `lanesOf` rows. */
  const stateRow = (state, isNow, times, busy, lanesOf) => [
    h("th", { scope: "row" }, h("span", { title: `${state}: ${meaning("The controller's states", state)}` }, state), isNow ? h("em", {}, "now") : null),
    lanesOf
      ? h("td", { rowspan: lanesOf, class: "lane", "aria-hidden": "true" }, h("canvas", { class: "lane-canvas", "data-kept": "lanes" }))
      : null,
    h("td", { class: "number" }, times),
    h("td", { class: "number" }, busy),
  ];

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
    const end = clockOf(now);
    const begin = end - WINDOW_MS;
    const until = now.states?.until_ms ?? end;
    if (end - until > UNKNOWN_AFTER_MS) {
      // What the controller has done since is not known.
      const left = Math.max(0, ((until - begin) / WINDOW_MS) * width);
      context.strokeStyle = line;
      context.beginPath();
      for (let x = left - canvas.height; x < width; x += 6) {
        context.moveTo(Math.max(x, left), Math.max(0, left - x));
        context.lineTo(x + canvas.height, canvas.height);
      }
      context.stroke();
    }
    for (const [state, from, to] of spansOf(now)) {
      const row = CONTROLLER_STATES.indexOf(state);
      if (row < 0) continue;
      const left = Math.max(0, ((from - begin) / WINDOW_MS) * width);
      const right = Math.min(width, ((to - begin) / WINDOW_MS) * width);
      context.fillStyle = to >= end ? strong : busy;
      context.fillRect(Math.min(left, width - 2), row * LANE + 3, Math.max(2, right - left), LANE - 6);
    }
  };

  // -- brokers --------------------------------------------------------------------------------------------------------

  const SPARK_HEIGHT = 20;

  /** The points of a line of the newest samples, in the units of `spark`. */
  const pointsOf = (id, name, most) => {
    const values = samples.get(id)?.[name] ?? [];
    const first = SAMPLES - values.length;
    let points = "";
    let count = 0;
    for (let index = 0; index < values.length; index += 1) {
      if (values[index] === null) continue;
      points += `${first + index},${Math.round(10 * (SPARK_HEIGHT - 2 - ((SPARK_HEIGHT - 4) * values[index]) / most)) / 10} `;
      count += 1;
    }
    return count > 1 ? points : "";
  };

  const spark = (points) =>
    svg("svg", { class: "spark", viewBox: `0 0 ${SAMPLES - 1} ${SPARK_HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true", focusable: "false" },
      svg("line", { x1: 0, x2: SAMPLES - 1, y1: SPARK_HEIGHT - 1, y2: SPARK_HEIGHT - 1 }),
      points ? svg("polyline", { points }) : null);

  const most = (name) => {
    let found = 0;
    for (const kept of samples.values()) for (const value of kept[name]) found = Math.max(found, value ?? 0);
    return found || 1;
  };

  const perSecond = (value) => (isShown(value) ? `${words.bytes(value)}/s` : words.none);
  // The name of a value, its title, and how it is written.
  const MEASURED = [
    ["loop_lag_ms", "Loop lag", words.duration],
    ["memory_bytes", "Memory", words.bytes],
    ["bytes_in_per_s", "In", perSecond],
    ["bytes_out_per_s", "Out", perSecond],
  ];

  // The word and the colour of each state.
  const BROKER_STATES = {
    alive: ["alive", "good"], silent: ["no answer", "bad"], unregistered: ["not registered", "busy"], down: ["down", "bad"],
    unknown: ["unknown", "calm"],
  };
  Object.assign(cockpit.tables, { BROKER_STATES });

  /** `answeredAt` is the time of its last answer, if it does not answer now. */
  const brokerState = (state, trouble, isShuttingDown, answeredAt) => {
    if (state === "alive" && isShuttingDown) return badge("busy", "shutting down", "Brokers");
    const [text, kind] = BROKER_STATES[state] ?? BROKER_STATES.unknown;
    const last = state !== "alive" && isShown(answeredAt) ? `it answered last at ${words.when(answeredAt)}` : null;
    return [badge(kind, text, "Brokers"), state === "alive" ? null : h("small", {}, [trouble, last].filter(isShown).join("; "))];
  };

  const brokerSending = (alive, trouble, queueSize, sending, forMs) => {
    const under = alive && trouble ? [badge("bad", "trouble"), h("small", {}, trouble)]
      : sending ? h("small", {}, `${sending} for ${words.duration(forMs)}`)
        : h("small", {}, isShown(queueSize) ? "nothing under way" : "");
    return [isShown(queueSize) ? h("span", { class: "queue" }, `${words.count(queueSize)} waiting`) : words.none, under];
  };

  const brokerName = (id, isController, said) =>
    [h("strong", {}, id), isController ? badge("calm", "controller") : null, h("small", {}, said)];

  const measuredCell = (points, text) => [spark(points), h("span", {}, text)];

  /** A row. `scales` are the largest of what is measured; `_seen` is how many documents `samples` is made of. */
  const brokerRow = (broker, scales, _seen, lostAt, isKlamm) => [
    part("th", { scope: "row" }, [broker.id, broker.is_controller,
      [broker.host ? `${broker.host}:${broker.port}` : "", broker.rack ? `rack ${broker.rack}` : "",
        isShown(broker.epoch) ? `epoch ${broker.epoch}` : ""].filter(Boolean).join(" \u00b7 ")], brokerName),
    part("td", { "data-label": "State" },
      lostAt !== null ? ["unknown", null, null, null]
        : [stateOf(broker), broker.trouble, broker.shutting_down, stateOf(broker) === "alive" ? null : broker.answered_ms], brokerState),
    isKlamm ? klammCells(broker, scales) : null,
  ];

  /** What only brokers of klamm and their controller tell. */
  const klammCells = (broker, scales) => [
    part("td", { class: "sending", "data-label": "The controller sends it" },
      [broker.alive, broker.trouble, broker.queue_size, broker.sending, broker.sending_for_ms], brokerSending),
    MEASURED.map(([name, label, write], index) =>
      part("td", { class: "number measured", "data-label": label }, [pointsOf(broker.id, name, scales[index]), write(broker[name])], measuredCell)),
  ];

  const brokersPart = (now) => {
    const isKlamm = isOfKlamm(now);
    const why = isKlamm ? (now.brokers?.find((broker) => broker.alive && broker.why_not)?.why_not ?? null) : null;
    return place([now.brokers ?? [], MEASURED.map(([name]) => most(name)), samplesSeen, why, isKlamm, cockpit.lostAt], brokersPanel);
  };

  /** `lostAt` is here because the states of brokers are not known then. */
  const brokersPanel = (brokers, scales, seen, why, isKlamm, lostAt) =>
    panel("brokers", "Brokers", { wide: true, aside: isKlamm ? h("span", { class: "note" }, `the last ${SAMPLES} seconds`) : null },
      h("div", { class: "scroll-x" },
        h("table", { class: "brokers cards" },
          h("thead", {}, h("tr", {}, ["Broker", "State", ...(isKlamm ? ["The controller sends it"] : [])].map((title) => h("th", { scope: "col" }, title)),
            isKlamm ? MEASURED.map(([, title]) => h("th", { scope: "col", class: "number" }, title)) : null)),
          h("tbody", {}, brokers.map((broker) =>
            part("tr", { class: broker.alive ? null : "down" }, [broker, scales, seen, lostAt, isKlamm], brokerRow))))),
      whyNot(why));

  const whyNot = (why) => (why ? h("p", { class: "why-not" }, why) : null);

  // -- state machines -------------------------------------------------------------------------------------------------

  const machine = (title, kind, table, counts) => {
    const told = (name) => meaning(`States of ${kind}`, name);
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
          h("th", { scope: "col", class: "number" }, "now"), states.map((state) => h("th", { scope: "col", title: told(state) }, broken(state))))),
        h("tbody", {}, states.map((from) =>
          h("tr", {}, h("th", { scope: "row", title: told(from) }, from),
            h("td", { class: "number total" }, counts ? words.count(byName[from] ?? 0) : words.none),
            states.map((to) => cell(from, to)))))));
  };

  /** `_seen` is how many records `transitions` counts. */
  const machinesPanel = (counts, why, _seen) =>
    panel("machines", "State machines", { wide: true, aside: h("span", { class: "note" }, "changes seen since the page was opened") },
      h("div", { class: "machines" },
        machine("Partitions", "partitions", PARTITION_MACHINE, counts?.partitions),
        machine("Replicas", "replicas", REPLICA_MACHINE, counts?.replicas)),
      whyNot(why));

  // -- work, groups, findings, records --------------------------------------------------------------------------------

  const partitionLink = (topic, partition) => h("a", { href: storyOf(topic, partition) }, `${topic}-${partition}`);

  const step = (what, name, text, waits, done = null) => [
    h("div", {}, badge("busy", what), " ", name, " ", h("span", { class: "step" }, text)),
    done === null ? null : h("progress", { max: done[1], value: done[0], "aria-label": `${done[0]} of ${done[1]}` }),
    waits ? h("small", {}, `waits for: ${waits}`) : null,
  ];

  const reassignment = (each) => {
    const adding = each.adding_replicas ?? [];
    const removing = each.removing_replicas ?? [];
    const added = adding.filter((id) => (each.isr ?? []).includes(id)).length;
    const text = [adding.length ? `adds ${words.ids(adding)}` : "", removing.length ? `removes ${words.ids(removing)}` : ""];
    return step("reassignment", partitionLink(each.topic, each.partition), each.step ?? text.filter(Boolean).join(", "),
      each.waits_for, adding.length ? [added, adding.length] : null);
  };

  const deletion = (each) =>
    step("deletion", each.topic, each.step ?? `${each.deleted ?? 0} of ${each.replicas ?? "?"} replicas are gone`, each.waits_for,
      each.replicas ? [each.deleted ?? 0, each.replicas] : null);

  const election = (each) =>
    step("election", `${each.type}, ${words.counted(each.partitions, "partition")}`, `${each.step}, ${words.duration(each.for_ms)}`,
      each.waits_for);

  const workPanel = (work, isKnown) => {
    const items = [[work.reassignments, reassignment], [work.deletions, deletion], [work.elections, election]].flatMap(
      ([list, fill]) => (list ?? []).map((each) => part("li", {}, [each], fill)));
    const total = (work.reassignments_count ?? 0) + (work.deletions_count ?? 0) + (work.elections?.length ?? 0);
    return panel("work", "Under way", { aside: h("span", { class: "note" }, isKnown ? words.count(total) : "unknown") },
      items.length === 0
        ? h("p", { class: "quiet" }, !isKnown ? "What is under way is not known now."
          : isShown(work.deletions) ? "No reassignment, deletion or election is under way." : "No reassignment is under way.")
        : h("ul", { class: "list", tabindex: "0", "aria-label": "Under way" }, items),
      whyNot(work.why_not));
  };

  const groupRow = (group) => [
    h("th", { scope: "row" }, group.group), h("td", { title: meaning("Groups", group.state) }, group.state ?? words.none),
    h("td", { class: "number" }, words.count(group.members)),
    h("td", { class: "number", title: group.why_not ?? null }, words.count(group.lag)),
  ];

  // What is older is said to be: a broker that hangs makes looks rare.
  const OLD_MS = 15_000;
  const AGE_STEP_MS = 5_000;

  /** How old a reading is that is known, if it is old; in steps, so that panels are not made anew each second. */
  const ageText = (now, name) => {
    const at = now.readings?.[name]?.at_ms;
    const ms = now.time_ms - (at ?? now.time_ms);
    return ms > OLD_MS ? `read ${words.duration(Math.floor(ms / AGE_STEP_MS) * AGE_STEP_MS).replace(".0", "")} ago` : null;
  };

  const groupsPanel = (found, gone, age, hidden) => {
    const groups = [...found].sort((a, b) => (b.lag ?? -1) - (a.lag ?? -1));
    return panel("groups", "Groups", {
      aside: h("span", { class: "note" }, gone === null ? [words.count(groups.length), age].filter(Boolean).join(", ") : "not known now"),
    },
      groups.length === 0
        ? h("p", { class: "quiet" }, gone ?? hidden ?? "There is no group.")
        : h("div", { class: gone === null ? "scroll-y" : "scroll-y old", tabindex: "0", role: "region", "aria-label": "Groups" }, h("table", { class: "rows" },
            h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Group"), h("th", { scope: "col" }, "State"),
              h("th", { scope: "col", class: "number" }, "Members"), h("th", { scope: "col", class: "number" }, "Lag"))),
            h("tbody", {}, groups.map((group) => part("tr", {}, [group], groupRow))))),
      groups.length === 0 ? null : whyNot(gone ?? hidden));
  };

  const findingsPanel = (findings, age, gone) => {
    const problems = findings.filter((finding) => finding.is_problem).length;
    const hints = findings.length - problems;
    const isKnown = gone === null && !findings.some((finding) => finding.is_unknown);
    return panel("findings", "Findings", {
      aside: h("span", { class: "badges" },
        problems ? badge("bad", words.counted(problems, "problem")) : isKnown ? badge("good", "healthy") : badge("calm", "unknown"),
        // They may stand below what can be seen of the list.
        hints ? badge("busy", words.counted(hints, "hint")) : null,
        age === null ? null : h("span", { class: "note" }, age)),
    },
    findings.length === 0
      ? h("p", { class: "quiet" }, gone ?? "Nothing needs attention.")
      : h("ul", { class: "list findings" }, findings.map((finding) =>
          h("li", { class: finding.is_problem ? "problem" : "hint" },
            h("div", {}, badge(finding.is_problem ? "bad" : "busy", finding.is_problem ? "problem" : "hint"), " ", finding.text),
            finding.why?.length
              ? h("details", {}, h("summary", {}, "Why"), h("ul", {}, finding.why.map((line) => h("li", {}, line))))
              : null,
            finding.advice ? h("small", {}, finding.advice) : null,
            finding.command ? command(atCluster(finding.command)) : null))),
    findings.length === 0 || gone === null ? null : whyNot(`Other findings: ${gone[0].toLowerCase()}${gone.slice(1)}`));
  };

  const recordLine = (time_ms, kind, text) => [
    h("time", {}, words.time(time_ms)), h("span", { class: "kind" }, kind), h("span", { class: "text" }, text),
  ];

  /** `_seen` is how many records `lines` is made of. */
  const recordsPanel = (why, _seen, count, trouble) =>
    panel("records", "What the controller does", {
      wide: true,
      aside: h("span", { class: "note" }, "newest first"),
      why: lines.length === 0 ? (trouble ?? why ?? "The brokers have no record of a controller yet.") : null,
    },
    h("ol", { class: "feed scroll-y", tabindex: "0", "aria-label": "The controller's newest records" }, lines.map((line) =>
      part("li", { class: line.record.kind }, [line.record.time_ms, line.record.kind, textOf(line)], recordLine))),
    h("p", { class: "note" },
      count > 0 ? h("button", { type: "button", id: "earlier", onclick: loadEarlier }, "Earlier records") : null,
      trouble ?? (count > 0 ? ` The brokers still have ${words.counted(count, "earlier record")}.` : "The brokers have no earlier record.")));

  const textOf = ({ count, record }) =>
    count > 1
      ? `${words.counted(count, record.kind)} ${short(record.from)} \u2192 ${short(record.to)}` +
        (record.event ? `, because of ${record.event}` : "")
      : lineText(record);

  /** The text of a record; of one whose fields a later version has changed the record itself. */
  const lineText = (record) => {
    try {
      return lineTexts[record.kind](record);
    } catch {
      return JSON.stringify(record).slice(0, MAX_RECORD_CHARACTERS);
    }
  };

  // -- the view -------------------------------------------------------------------------------------------------------

  let shown = null;

  /** Where a panel stands that is made of this data. */
  const place = (madeOf, make) => part("div", { class: "place" }, madeOf, make);

  const leftOutText = ({ partitions = 0, brokers = 0 }) =>
    partitions + brokers === 0 ? null
      : `Not shown, because of their numbers: ${words.counted(partitions, "partition")} and ${words.counted(brokers, "broker")}.`;

  const mapPanel = (partitions, brokers, trouble, leftOut, gone) =>
    panel("map", "Brokers \u00d7 partitions", {
      wide: true,
      aside: h("span", { class: "note" }, isShown(partitions) ? `${words.counted(partitions, "partition")} on ${words.counted(brokers, "broker")}` : ""),
      why: partitions ? null : (trouble ?? (isShown(partitions) ? "There is no partition yet." : "The map is being read.")),
    }, gone === null ? null : h("p", { class: "why-not" }, gone),
    h("div", { id: "map-place", "data-kept": "map" }),
    trouble === null ? null : h("p", { class: "why-not", role: "status" }, `The map is not of now: ${trouble}`),
    leftOut === null ? null : h("p", { class: "why-not" }, leftOut));

  /** What the panel of findings is made of. Findings of an older map than the one beside them say so. */
  const findingsOf = (now) => {
    const found = lapse(now, "findings");
    const gone = found === null ? null : found.at === null ? `Not known yet: ${found.why}` : `Not known now, and read last at ${words.when(found.at)}: ${found.why}`;
    if (cockpit.lostAt !== null) return [[], null, gone];
    const { map } = heat;
    const of = now.findings_of ?? null;
    const isOlder = map !== null && of !== null && of.version === map.version && of.sequence < map.sequence;
    return [now.findings ?? [], isOlder ? "being read again" : gone === null ? ageText(now, "findings") : null, gone];
  };

  /** Shows a document; `atOnce` what is not there yet, otherwise in the next frames. */
  const draw = (now, atOnce = false) => {
    heat ??= cockpit.heat = new cockpit.HeatMap();
    const whyNothing = now.why_not ?? now.controller?.why_not ?? null;
    const [isKlamm, isLost] = [isOfKlamm(now), cockpit.lostAt !== null];
    morph(shown,
      h("h2", { class: "unseen", id: "now-title" }, "Now"),
      h("dl", { class: "tiles" }, controllerTile(now), eventTiles(now), clusterTiles(now)),
      place([heat.map?.partitions ?? null, heat.map?.brokers.length ?? null, mapTrouble, leftOutText(heat.map?.leftOut ?? {}),
        lapseText(lapse(now, "partitions"))], mapPanel),
      h("div", { class: "beside" },
        isKlamm ? statesPart(now) : brokersPart(now),
        h("div", { class: "stack" },
          place(findingsOf(now), findingsPanel),
          place([isKlamm ? (now.work ?? {}) : { ...now.work, why_not: null }, isLost ? false : isShown(now.work?.reassignments)], workPanel),
          place([now.groups ?? [], lapseText(lapse(now, "groups")), ageText(now, "groups"), hiddenGroups(now)], groupsPanel))),
      isKlamm ? [
        brokersPart(now),
        place([isLost ? null : (now.machines ?? null), isLost ? lapseText(lapse(now, "status")) : now.machines ? null : whyNothing, recordsSeen], machinesPanel),
        place([now.controller?.why_not ?? null, recordsSeen, earlier ?? 0, earlierTrouble], recordsPanel),
      ] : h("p", { class: "why-not", id: "absent" }, now.why_not));
    renewParts(drawCanvases, atOnce);
  };

  /** What parts leave alone. */
  const drawCanvases = () => {
    if (shown === null) return;
    const mapPlace = document.getElementById("map-place");
    if (mapPlace !== null && heat.element.parentElement !== mapPlace) mapPlace.append(heat.element);
    heat.element.classList.toggle("old", lapse(cockpit.now, "partitions") !== null);
    drawLanes(cockpit.now);
  };

  cockpit.view("now", {
    title: "Now",
    key: "1",
    keys: cockpit.HeatMap.keys,
    states: ["The controller's states", "States of partitions", "States of replicas", "Replicas in the map", "Brokers", "Groups"],
    show(element, rest, { now }) {
      shown = h("div", { class: "now" });
      element.append(shown);
      draw(now, true);
      loadMap();
      if (earlier === null && isOfKlamm(now)) loadEarlier();
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
