"use strict";
// The map of partitions: a column of cells for each partition, a cell for each broker, topics one after another in
// lines. `cockpit.PartitionMap` holds the cells, `cockpit.HeatMap` draws them, or another layer of cells for the same
// partitions (lags.js).
//
// What must stay true:
// - A frame costs a few milliseconds at 100,000 partitions: only what is visible is drawn, pixel by pixel into one buffer,
//   and a change draws its own cells only.
// - What the colours say is also said by patterns and letters (from a size at which they can be seen), by the line under
//   the map for the partition at the cursor, and by the table of counts.
{
  const NONE = 0;
  const IN_SYNC = 1;
  const LEADER = 2;
  const OUT_OF_SYNC = 3;
  const OFFLINE = 4;
  const ADDING = 5;
  const REMOVING = 6;
  const UNUSED = 7;

  // Lines of patterns, in a cell of size 1.
  const RISING = [[0, 1], [1, 0]];
  const FALLING = [[0, 0], [1, 1]];
  const LEVEL = [[0.15, 0.5], [0.85, 0.5]];
  const UPRIGHT = [[0.5, 0.15], [0.5, 0.85]];

  /** The states of a cell by number: the custom property of its colour, its sign, its words, and its pattern. */
  const STATES = [
    { colour: "cell-none", sign: "", words: "no replica" },
    { colour: "cell-isr", sign: "\u00b7", words: "in sync" },
    { colour: "cell-leader", sign: "L", words: "leader", hasDot: true },
    { colour: "cell-behind", sign: "/", words: "out of sync", lines: [RISING] },
    { colour: "cell-offline", sign: "\u00d7", words: "offline", lines: [RISING, FALLING] },
    { colour: "cell-adding", sign: "+", words: "being added", lines: [LEVEL, UPRIGHT] },
    { colour: "cell-removing", sign: "\u2212", words: "being removed", lines: [LEVEL] },
    { colour: "cell-unused", sign: "!", words: "offline, broker up", lines: [FALLING] },
  ];
  // The order of words and columns: what leads first, what is wrong next.
  const ORDER = [LEADER, IN_SYNC, OUT_OF_SYNC, OFFLINE, ADDING, REMOVING, UNUSED];

  /** States that mean the same in every layer. */
  cockpit.CELLS = { NONE, LEADER, OFFLINE, UNUSED };

  // -- the cells ------------------------------------------------------------------------------------------------------

  /** A state for each partition and broker, and how many of each broker's cells are in each. */
  cockpit.CellLayer = class {
    /** `order` are the states that count, as columns of a table. `counts` has a number for each broker and state. */
    constructor(states, order, brokers, cells, counts) {
      Object.assign(this, { states, order, brokers, cells, counts });
    }

    /** Sets the state of a cell; returns whether it was another. */
    put(cell, state) {
      const before = this.cells[cell];
      if (before === state) return false;
      const first = (cell % this.brokers.length) * this.states.length;
      this.counts[first + before] -= 1;
      this.counts[first + state] += 1;
      this.cells[cell] = state;
      return true;
    }

    count(state) {
      let sum = 0;
      for (let index = state; index < this.counts.length; index += this.states.length) sum += this.counts[index];
      return sum;
    }

    /** The next partition after `from` (before it, if `step` is -1) with a cell whose state `isOdd`, or null. */
    nextOdd(from, step) {
      const width = this.brokers.length;
      const partitions = this.cells.length / width;
      for (let moved = 1; moved <= partitions; moved += 1) {
        const partition = (from + step * moved + partitions * 2) % partitions;
        for (let cell = partition * width; cell < (partition + 1) * width; cell += 1) {
          if (this.isOdd(this.cells[cell])) return partition;
        }
      }
      return null;
    }
  };

  const countsOf = (cells, brokers) => {
    const counts = new Uint32Array(brokers * STATES.length);
    for (let cell = 0, first = 0; cell < cells.length; cell += 1) {
      counts[first + cells[cell]] += 1;
      first += STATES.length;
      if (first === counts.length) first = 0;
    }
    return counts;
  };

  cockpit.PartitionMap = class extends cockpit.CellLayer {
    /** The bytes of /api/partitions: a line of JSON, then a byte for each partition and broker, partition by partition. */
    static parse(bytes) {
      const end = bytes.indexOf(10);
      const head = JSON.parse(new TextDecoder().decode(bytes.subarray(0, end)));
      return new cockpit.PartitionMap(head, bytes.slice(end + 1));
    }

    static async load() {
      const answer = await fetch(cockpit.address("/api/partitions"));
      if (!answer.ok) {
        const reason = await answer.json().catch(() => ({}));
        throw new Error(reason.error ?? `${answer.status} ${answer.statusText}`);
      }
      return cockpit.PartitionMap.parse(new Uint8Array(await answer.arrayBuffer()));
    }

    /**
     * `head` is {"version", "sequence", "brokers": [id], "rows", "left_out", "totals", "topics": [[name, first row, rows]]};
     * a row is a partition. `cells` has a byte for each row and broker, `totals` are those of the cells.
     */
    constructor(head, cells) {
      if (cells.length !== head.rows * head.brokers.length) {
        throw new Error(`The map of partitions has ${cells.length} cells, not ${head.rows} x ${head.brokers.length}.`);
      }
      super(STATES, ORDER, head.brokers, cells, countsOf(cells, head.brokers.length));
      this.version = head.version;
      this.sequence = head.sequence;
      this.leftOut = head.left_out ?? {};
      this.totals = head.totals ?? null;
      this.names = head.topics.map(([name]) => name);
      this.partitions = head.rows;
      this.starts = Uint32Array.from([...head.topics.map(([, first]) => first), head.rows]);
    }

    /** Sets the cells of rows: a text with a digit for each broker for each of `rows`. Returns those that have changed. */
    apply(rows, cells) {
      const width = this.brokers.length;
      const changed = [];
      for (let index = 0; index < rows.length; index += 1) {
        const first = rows[index] * width;
        let isChanged = false;
        for (let broker = 0; broker < width; broker += 1) {
          if (this.put(first + broker, cells[index].charCodeAt(broker) - 48)) isChanged = true;
        }
        if (isChanged) changed.push(rows[index]);
      }
      return changed;
    }

    /** The index of the topic that a partition belongs to. */
    topicOf(partition) {
      let low = 0;
      let high = this.names.length - 1;
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (this.starts[middle] <= partition) low = middle;
        else high = middle - 1;
      }
      return low;
    }

    /** [topic, number] of a partition. */
    named(partition) {
      const topic = this.topicOf(partition);
      return [this.names[topic], partition - this.starts[topic]];
    }

    partitionName(partition) {
      const [name, number] = this.named(partition);
      return `${name}-${number}`;
    }

    /** Something that `nextOdd` stops at. */
    isOdd(state) {
      return state >= OUT_OF_SYNC;
    }

    /** Something that is wrong. */
    isBad(state) {
      return state === OUT_OF_SYNC || state === OFFLINE || state === UNUSED;
    }

    /** A partition in words: "orders-3: leader 2; in sync 1, 3; out of sync 4". */
    described(partition) {
      const said = [];
      for (const state of ORDER) {
        const ids = this.brokers.filter((_, index) => this.cells[partition * this.brokers.length + index] === state);
        if (ids.length > 0) said.push(`${STATES[state].words} ${ids.join(", ")}`);
      }
      const offset = partition * this.brokers.length;
      const isLed = this.cells.subarray(offset, offset + this.brokers.length).includes(LEADER);
      return `${this.partitionName(partition)}: ${isLed ? "" : "no leader; "}${said.join("; ") || "no replicas"}`;
    }
  };

  // -- where everything stands ----------------------------------------------------------------------------------------

  // Sizes of a cell in CSS pixels.
  const ZOOMS = [1, 2, 3, 4, 6, 8, 11, 16, 22];
  // From these sizes on topics have headings, cells have patterns, rows have broker ids, cells have letters.
  const HEADINGS_FROM = 4;
  const PATTERNS_FROM = 6;
  const IDS_FROM = 11;
  const LETTERS_FROM = 16;
  const HEADING = 16;
  const LABEL_CHARACTER = 6.6;
  const MAX_LABEL = 22;

  /** Runs of partitions of one topic on one line. All lengths are in device pixels. */
  class Layout {
    constructor(map, width, zoom, ratio) {
      this.map = map;
      this.cell = Math.max(1, Math.round(zoom * ratio));
      this.hasHeadings = zoom >= HEADINGS_FROM;
      this.gutter = zoom >= IDS_FROM ? Math.round(26 * ratio) : 0;
      this.heading = this.hasHeadings ? Math.round(HEADING * ratio) : 0;
      const gap = this.hasHeadings ? Math.round(6 * ratio) : Math.max(Math.round(2 * ratio), this.cell);
      this.lineHeight = this.heading + map.brokers.length * this.cell + gap;
      this.perLine = Math.max(1, Math.floor((width - this.gutter) / this.cell));
      this.runs = []; // [topic, first partition, number of partitions, x in cells]
      this.lines = [0]; // The first run of each line.
      this.fill(ratio);
      this.height = this.lines.length * this.lineHeight;
    }

    fill(ratio) {
      const { map, perLine, runs, lines } = this;
      const between = this.hasHeadings ? Math.ceil((12 * ratio) / this.cell) : 1;
      let x = 0;
      const endLine = () => {
        lines.push(runs.length);
        x = 0;
      };
      for (let topic = 0; topic < map.names.length; topic += 1) {
        let first = map.starts[topic];
        let left = map.starts[topic + 1] - first;
        const label = this.hasHeadings
          ? Math.ceil((Math.min(map.names[topic].length, MAX_LABEL) * LABEL_CHARACTER * ratio) / this.cell)
          : 0;
        if (x > 0 && (x >= perLine || (this.hasHeadings && Math.max(left, label) > perLine - x))) endLine();
        const begin = x;
        const isWhole = left <= perLine - x;
        while (left > 0) {
          const taken = Math.min(left, perLine - x);
          runs.push([topic, first, taken, x]);
          first += taken;
          left -= taken;
          x += taken;
          if (left > 0) endLine();
        }
        x = (isWhole ? Math.max(x, begin + label) : x) + between;
      }
      if (lines.at(-1) === runs.length && lines.length > 1) lines.pop();
    }

    runsOf(line) {
      return this.runs.slice(this.lines[line], this.lines[line + 1] ?? this.runs.length);
    }

    /** The run that holds a partition. */
    runIndex(partition) {
      let low = 0;
      let high = this.runs.length - 1;
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (this.runs[middle][1] <= partition) low = middle;
        else high = middle - 1;
      }
      return low;
    }

    lineOf(run) {
      let low = 0;
      let high = this.lines.length - 1;
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (this.lines[middle] <= run) low = middle;
        else high = middle - 1;
      }
      return low;
    }

    /** [x, y, line] of the first cell of a partition. */
    place(partition) {
      const index = this.runIndex(partition);
      const line = this.lineOf(index);
      const [, first, , x] = this.runs[index];
      return [this.gutter + (x + partition - first) * this.cell, line * this.lineHeight + this.heading, line];
    }

    /** The partition at a point; with `nearest` the one closest to it on its line, otherwise null beside the cells. */
    at(x, y, nearest = false) {
      const line = Math.floor(y / this.lineHeight);
      if (line < 0 || line >= this.lines.length) return null;
      const column = Math.floor((x - this.gutter) / this.cell);
      let best = null;
      for (const [, first, count, begin] of this.runsOf(line)) {
        if (column >= begin && column < begin + count) return first + column - begin;
        if (nearest && (best === null || column >= begin)) best = column < begin ? first : first + count - 1;
      }
      return best;
    }
  }

  // -- tiles ----------------------------------------------------------------------------------------------------------

  const packed = ([red, green, blue]) => ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;

  /** For each state the pixels of a cell, and the colour between cells. */
  const makeTiles = (element, states, size, zoom, ratio) => {
    const colours = coloursOf(element, ["map-background", ...states.map(({ colour }) => colour)]);
    const [background, ...ofStates] = colours;
    const canvas = new OffscreenCanvas(size, size);
    const context = canvas.getContext("2d", { willReadFrequently: true });
    const css = (colour) => `rgb(${colour.join(" ")})`;
    const gap = zoom >= HEADINGS_FROM ? Math.max(1, Math.round(ratio)) : 0;
    const inner = size - gap;
    const tiles = ofStates.map((colour, state) => {
      context.fillStyle = css(background);
      context.fillRect(0, 0, size, size);
      context.fillStyle = css(colour);
      context.fillRect(0, 0, inner, inner);
      const isDark = colour[0] * 0.3 + colour[1] * 0.59 + colour[2] * 0.11 < 140;
      context.strokeStyle = context.fillStyle = isDark ? "white" : "black";
      if (zoom >= LETTERS_FROM) drawLetter(context, states[state].sign, inner);
      else if (zoom >= PATTERNS_FROM) drawPattern(context, states[state], inner, ratio);
      return new Uint32Array(context.getImageData(0, 0, size, size).data.buffer);
    });
    return { tiles, background: packed(background) };
  };

  const drawLetter = (context, sign, inner) => {
    context.font = `600 ${Math.round(inner * 0.72)}px system-ui, sans-serif`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.fillText(sign, inner / 2, inner * 0.54);
  };

  const drawPattern = (context, { lines = [], hasDot = false }, inner, ratio) => {
    context.lineWidth = Math.max(1, ratio);
    for (const points of lines) {
      context.beginPath();
      for (const [x, y] of points) context.lineTo(x * inner, y * inner);
      context.stroke();
    }
    if (hasDot) context.fillRect(inner * 0.35, inner * 0.35, inner * 0.3, inner * 0.3);
  };

  // -- the view of the map --------------------------------------------------------------------------------------------

  // More changed cells than this are drawn with everything else.
  const MAX_SINGLE = 2000;
  const FRESH_MS = 1200;
  const MAX_FRESH = 400;

  cockpit.HeatMap = class {
    constructor() {
      this.map = null;
      this.layer = null; // What is drawn: the map, or the lags of its followers.
      this.byLag = false;
      this.layout = null;
      this.spaceOfLayout = null;
      this.zoom = null; // The size of a cell in CSS pixels; null until the first map chooses it.
      this.cursor = 0;
      this.pointed = null;
      this.changed = [];
      this.fresh = new Map(); // Partition -> when it changed.
      this.isStale = { cells: false, overlay: false };
      this.isTableStale = false;
      this.frame = null;
      this.isCalm = matchMedia("(prefers-reduced-motion: reduce)");
      this.cells = h("canvas", { class: "map-cells", "aria-hidden": "true" });
      this.overlay = h("canvas", { class: "map-overlay", "aria-hidden": "true" });
      this.space = h("div", { class: "map-space" });
      this.scroller = h("div", {
        class: "map-scroller",
        tabindex: "0",
        role: "application",
        "aria-label": "Partitions by broker. Arrows move, Enter opens the story, n goes to the next problem.",
        "aria-describedby": "map-readout",
      }, h("div", { class: "map-window" }, this.cells, this.overlay), this.space);
      this.readout = h("p", { id: "map-readout", class: "map-readout", "aria-live": "polite" }, "");
      this.table = h("div", { class: "scroll-x" });
      this.lagTrouble = h("p", { class: "why-not", role: "status", hidden: true });
      this.lagReader = new cockpit.LagReader(() => this.visibleRows(), (found) => this.takeLags(found), (text) => {
        this.lagTrouble.textContent = text === "" ? "" : seen(`Lags cannot be read: ${text}`);
        this.lagTrouble.hidden = text === "";
      });
      this.lagButton = cockpit.settings.recording ? null
        : h("button", { type: "button", id: "map-by-lag", "aria-pressed": "false", onclick: () => this.colourBy(!this.byLag) }, "colour by lag");
      this.zoomLabel = h("output", { "aria-live": "off" }, "");
      this.find = h("input", {
        type: "search", placeholder: "find a topic", "aria-label": "Find a topic", autocomplete: "off", spellcheck: "false",
      });
      this.tools = h("div", { class: "map-tools" },
        this.find,
        h("button", { type: "button", onclick: () => this.goToOdd(1) }, "next problem"),
        this.lagButton,
        h("span", { class: "group", role: "group", "aria-label": "Zoom" },
          h("button", { type: "button", "aria-label": "Smaller", onclick: () => this.zoomBy(-1) }, "\u2212"),
          this.zoomLabel,
          h("button", { type: "button", "aria-label": "Larger", onclick: () => this.zoomBy(1) }, "+")));
      this.element = h("div", { class: "map" },
        h("div", { class: "map-picture" }, this.tools, this.scroller, this.readout, this.lagTrouble), this.table);
      this.cellContext = this.cells.getContext("2d", { alpha: false });
      this.overlayContext = this.overlay.getContext("2d");
      this.listen();
    }

    listen() {
      // The scroller's own height follows the map's, so that only the space around it says when to draw anew.
      new ResizeObserver(() => this.resize(false)).observe(this.element);
      cockpit.onColours.push(() => this.resize());
      this.scroller.addEventListener("scroll", () => this.redraw(), { passive: true });
      this.scroller.addEventListener("keydown", (event) => this.press(event));
      this.scroller.addEventListener("pointermove", (event) => this.point(this.partitionAt(event)));
      this.scroller.addEventListener("pointerleave", () => this.point(null));
      this.scroller.addEventListener("focus", () => this.say(this.cursor));
      this.scroller.addEventListener("click", (event) => {
        const partition = this.partitionAt(event);
        if (partition === null) return;
        this.cursor = partition;
        this.open();
      });
      this.scroller.addEventListener("wheel", (event) => {
        if (!event.ctrlKey) return;
        event.preventDefault();
        this.zoomBy(event.deltaY < 0 ? 1 : -1);
      }, { passive: false });
      this.find.addEventListener("input", () => this.findTopic(this.find.value));
    }

    /** Shows another map, or null. */
    show(map) {
      const topic = this.map?.named(Math.min(this.cursor, this.map.partitions - 1));
      this.map = map;
      this.layer = map !== null && this.byLag ? new cockpit.LagLayer(map) : map;
      this.lagReader.restart();
      this.fresh.clear();
      this.cursor = 0;
      this.pointed = null;
      if (map !== null && topic !== undefined) {
        const found = map.names.indexOf(topic[0]);
        if (found >= 0) this.cursor = Math.min(map.starts[found] + topic[1], map.starts[found + 1] - 1);
      }
      this.resize();
      this.drawTable();
      if (map?.partitions && this.layout !== null) this.say(this.cursor);
    }

    /** Colours cells by the lag of followers, or by the state of replicas. */
    colourBy(lag) {
      if (this.lagButton === null) return;
      this.byLag = lag;
      this.lagButton.setAttribute("aria-pressed", String(lag));
      this.lagTrouble.hidden = true;
      this.layer = this.map !== null && lag ? new cockpit.LagLayer(this.map) : this.map;
      this.lagReader.restart();
      this.resize();
      this.drawTable();
      if (this.map?.partitions) this.say(this.pointed ?? this.cursor);
      this.lagReader.run(lag);
    }

    /** The first and the last partition that can be seen; null if there is none. */
    visibleRows() {
      if (this.layout === null || !this.map?.partitions || !this.element.isConnected) return null;
      const [from, to] = this.visibleLines();
      const [, last, count] = this.layout.runsOf(to).at(-1);
      return [this.layout.runsOf(from)[0][1], last + count - 1];
    }

    takeLags({ version, first, lags }) {
      if (!this.byLag || version !== this.map?.version) return;
      const changed = this.layer.take(first, lags);
      const partition = this.pointed ?? this.cursor;
      // The number of records may be another one where the colour is the same.
      if (partition >= first && partition < first + lags.length / this.map.brokers.length) this.say(partition);
      if (changed.length === 0) return;
      this.changed = this.changed.concat(changed);
      this.isTableStale = true;
      this.request();
    }

    /** Changes cells; see `PartitionMap.apply`. */
    apply(rows, cells) {
      const changed = this.map.apply(rows, cells);
      if (changed.length === 0) return;
      if (this.byLag) for (const partition of changed) this.layer.renew(partition);
      this.changed = this.changed.concat(changed);
      if (!this.isCalm.matches) {
        const now = performance.now();
        for (const partition of changed.slice(0, MAX_FRESH)) this.fresh.set(partition, now);
      }
      this.isTableStale = true;
      if (changed.includes(this.pointed ?? this.cursor)) this.say(this.pointed ?? this.cursor);
      this.isStale.overlay = true;
      this.request();
    }

    // -- size -------------------------------------------------------------------------------------------------------

    /** Lays the map out anew; not `always`: only if it has other space than before, because that empties the canvas. */
    resize(always = true) {
      const heightBefore = this.scroller.style.height;
      this.scroller.style.height = "";
      const width = this.scroller.clientWidth;
      let height = this.scroller.clientHeight;
      if (this.map === null || this.map.partitions === 0 || width === 0) return;
      const space = `${width} ${height} ${devicePixelRatio}`;
      if (!always && space === this.spaceOfLayout) {
        this.scroller.style.height = heightBefore;
        this.redraw();
        return;
      }
      this.spaceOfLayout = space;
      this.ratio = devicePixelRatio;
      this.zoom ??= this.fittingZoom(width * this.ratio, height * this.ratio);
      this.layout = new Layout(this.map, Math.round(width * this.ratio), this.zoom, this.ratio);
      height = Math.min(height, Math.ceil(this.layout.height / this.ratio));
      this.scroller.style.height = `${height}px`;
      for (const canvas of [this.cells, this.overlay]) {
        canvas.width = Math.round(width * this.ratio);
        canvas.height = Math.round(height * this.ratio);
        canvas.style.width = `${width}px`;
        canvas.style.height = `${height}px`;
      }
      this.space.style.height = `${Math.max(0, this.layout.height / this.ratio - height)}px`;
      this.image = this.cellContext.createImageData(this.cells.width, this.cells.height);
      this.pixels = new Uint32Array(this.image.data.buffer);
      Object.assign(this, makeTiles(this.scroller, this.layer.states, this.layout.cell, this.zoom, this.ratio));
      this.textColours = coloursOf(this.scroller, ["ink", "muted", "accent", "panel"]).map((c) => `rgb(${c.join(" ")})`);
      this.zoomLabel.textContent = `${this.zoom} px`;
      if (this.readout.textContent === "") this.say(this.cursor);
      this.redraw();
    }

    /** The largest size at which all partitions can be seen at once, or the smallest one. */
    fittingZoom(width, height) {
      const fits = (zoom) => new Layout(this.map, width, zoom, this.ratio).height <= height;
      return ZOOMS.findLast(fits) ?? ZOOMS[0];
    }

    zoomBy(steps) {
      if (this.layout === null) return;
      const index = Math.max(0, Math.min(ZOOMS.length - 1, ZOOMS.indexOf(this.zoom) + steps));
      if (ZOOMS[index] === this.zoom) return;
      const [, y] = this.layout.place(this.cursor);
      const shown = y / this.ratio - this.scroller.scrollTop;
      this.zoom = ZOOMS[index];
      this.resize();
      const [, after] = this.layout.place(this.cursor);
      const height = this.scroller.clientHeight;
      this.scroller.scrollTop = after / this.ratio - Math.max(0, Math.min(shown, height / 2));
    }

    // -- drawing ----------------------------------------------------------------------------------------------------

    redraw() {
      this.isStale.cells = this.isStale.overlay = true;
      this.request();
    }

    request() {
      this.frame ??= requestAnimationFrame(() => {
        this.frame = null;
        if (this.layout === null || !this.element.isConnected) return;
        if (this.isStale.cells || this.changed.length > MAX_SINGLE) this.drawAll();
        else if (this.changed.length > 0) this.drawChanged();
        if (this.isStale.overlay) this.drawOverlay();
        if (this.isTableStale) this.drawTable();
        this.isStale.cells = this.isStale.overlay = false;
        this.changed = [];
        if (this.fresh.size > 0) {
          this.isStale.overlay = true;
          this.request();
        }
      });
    }

    top() {
      return Math.round(this.scroller.scrollTop * this.ratio);
    }

    visibleLines() {
      const { lineHeight, lines } = this.layout;
      const first = Math.floor(this.top() / lineHeight);
      return [first, Math.min(lines.length - 1, Math.floor((this.top() + this.cells.height) / lineHeight))];
    }

    drawAll() {
      this.pixels.fill(this.background);
      const [from, to] = this.visibleLines();
      for (let line = from; line <= to; line += 1) {
        const y = line * this.layout.lineHeight + this.layout.heading - this.top();
        for (const [, first, count, x] of this.layout.runsOf(line)) this.drawRun(first, count, x, y);
      }
      this.cellContext.putImageData(this.image, 0, 0);
    }

    /** Draws `count` partitions from `first`, whose first cell is at column `x` and at `y`. */
    drawRun(first, count, x, y) {
      const { map, layout, pixels, tiles } = this;
      const { cell } = layout;
      const brokers = map.brokers.length;
      const { cells } = this.layer;
      const { width, height } = this.cells;
      const left = layout.gutter + x * cell;
      for (let broker = 0; broker < brokers; broker += 1) {
        for (let row = 0; row < cell; row += 1) {
          const at = y + broker * cell + row;
          if (at < 0 || at >= height) continue;
          let pixel = at * width + left;
          const end = (first + count) * brokers + broker;
          for (let index = first * brokers + broker; index < end; index += brokers) {
            const tile = tiles[cells[index]];
            for (let offset = row * cell; offset < (row + 1) * cell; offset += 1) {
              pixels[pixel] = tile[offset];
              pixel += 1;
            }
          }
        }
      }
    }

    drawChanged() {
      const { cell } = this.layout;
      const tall = this.map.brokers.length * cell;
      let [left, top, right, bottom] = [Infinity, Infinity, 0, 0];
      for (const partition of this.changed) {
        const [x, place] = this.layout.place(partition);
        const y = place - this.top();
        if (y + tall < 0 || y >= this.cells.height) continue;
        this.drawRun(partition, 1, (x - this.layout.gutter) / cell, y);
        [left, top] = [Math.min(left, x), Math.min(top, y)];
        [right, bottom] = [Math.max(right, x + cell), Math.max(bottom, y + tall)];
      }
      if (left === Infinity) return;
      this.cellContext.putImageData(this.image, 0, 0, left, top, right - left, bottom - top);
    }

    drawOverlay() {
      const context = this.overlayContext;
      const { layout, ratio } = this;
      context.clearRect(0, 0, this.overlay.width, this.overlay.height);
      if (layout.hasHeadings) this.drawTexts(context);
      this.outlineFresh(context);
      if (this.pointed !== null) this.outline(context, [this.pointed], this.textColours[0], 1.5 * ratio, 1);
      if (document.activeElement === this.scroller) {
        this.outline(context, [this.cursor], this.textColours[3], 4 * ratio, 1);
        this.outline(context, [this.cursor], this.textColours[2], 2 * ratio, 1);
      }
    }

    outlineFresh(context) {
      const now = performance.now();
      const alike = new Map(); // When they changed -> partitions.
      for (const [partition, since] of this.fresh) {
        if (now - since > FRESH_MS) this.fresh.delete(partition);
        else if (alike.has(since)) alike.get(since).push(partition);
        else alike.set(since, [partition]);
      }
      for (const [since, partitions] of alike) {
        this.outline(context, partitions, this.textColours[0], this.ratio, 1 - (now - since) / FRESH_MS);
      }
    }

    drawTexts(context) {
      const { layout, ratio, map } = this;
      const [from, to] = this.visibleLines();
      context.textBaseline = "alphabetic";
      context.font = `${11 * ratio}px system-ui, sans-serif`;
      for (let line = from; line <= to; line += 1) {
        const y = line * layout.lineHeight - this.top();
        const runs = layout.runsOf(line);
        for (const [index, [topic, first, count, x]] of runs.entries()) {
          const isBegin = first === map.starts[topic];
          const left = layout.gutter + x * layout.cell;
          const next = runs[index + 1];
          const right = next ? layout.gutter + next[3] * layout.cell - 8 * ratio : this.overlay.width;
          context.fillStyle = this.textColours[isBegin ? 0 : 1];
          const text = isBegin ? map.names[topic] : `${map.names[topic]} from ${first - map.starts[topic]}`;
          context.fillText(fitted(context, seen(text), right - left), left, y + layout.heading - 5 * ratio);
        }
        if (layout.gutter === 0) continue;
        context.fillStyle = this.textColours[1];
        context.textAlign = "right";
        for (const [broker, id] of map.brokers.entries()) {
          const bottom = y + layout.heading + (broker + 1) * layout.cell - layout.cell / 2 + 4 * ratio;
          context.fillText(String(id), layout.gutter - 6 * ratio, bottom);
        }
        context.textAlign = "left";
      }
    }

    /** In one stroke: a stroke for each of many partitions would take milliseconds. */
    outline(context, partitions, colour, width, alpha) {
      context.globalAlpha = alpha;
      context.strokeStyle = colour;
      context.lineWidth = width;
      const tall = this.map.brokers.length * this.layout.cell;
      const top = this.top();
      context.beginPath();
      for (const partition of partitions) {
        const [x, y] = this.layout.place(partition);
        if (y + tall < top || y > top + this.overlay.height) continue;
        context.rect(x - width / 2, y - top - width / 2, this.layout.cell + width, tall + width);
      }
      context.stroke();
      context.globalAlpha = 1;
    }

    /** The counts as a table, which is also the legend. */
    drawTable() {
      this.isTableStale = false;
      if (this.map === null) return morph(this.table);
      const { layer } = this;
      const { states, order, counts } = layer;
      const cell = (state, value) =>
        h("td", { class: value > 0 && layer.isBad(state) ? "number marked" : "number" }, words.count(value));
      return morph(this.table,
        h("table", { class: "counts" },
          h("caption", { class: "unseen" }, this.byLag ? "Replicas of each broker by records behind the leader" : "Replicas of each broker by state"),
          h("thead", {}, h("tr", {},
            h("th", { scope: "col" }, "Broker"),
            order.map((state) =>
              h("th", { scope: "col", class: "number", title: meaning("Replicas in the map", states[state].words) },
                swatch(states[state]), states[state].words)))),
          h("tbody", {}, layer.brokers.map((id, index) =>
            h("tr", {},
              h("th", { scope: "row" }, id),
              order.map((state) => cell(state, counts[index * states.length + state]))))),
          h("tfoot", {}, h("tr", {},
            h("th", { scope: "row" }, "all"),
            order.map((state) => cell(state, layer.count(state)))))));
    }

    // -- the cursor -------------------------------------------------------------------------------------------------

    partitionAt(event) {
      if (this.layout === null) return null;
      const box = this.cells.getBoundingClientRect();
      return this.layout.at((event.clientX - box.left) * this.ratio, (event.clientY - box.top) * this.ratio + this.top());
    }

    point(partition) {
      if (partition === this.pointed) return;
      this.pointed = partition;
      this.say(partition ?? this.cursor);
      this.isStale.overlay = true;
      this.request();
    }

    say(partition) {
      if (this.layout === null) return;
      this.readout.textContent = seen(this.layer.described(partition));
      this.isStale.overlay = true;
      this.request();
    }

    move(partition) {
      if (this.layout === null) return;
      this.cursor = Math.max(0, Math.min(this.map.partitions - 1, partition));
      const [, , line] = this.layout.place(this.cursor);
      const top = (line * this.layout.lineHeight) / this.ratio;
      const bottom = top + this.layout.lineHeight / this.ratio;
      const { scrollTop, clientHeight } = this.scroller;
      if (top < scrollTop) this.scroller.scrollTop = top;
      else if (bottom > scrollTop + clientHeight) this.scroller.scrollTop = bottom - clientHeight;
      this.say(this.cursor);
    }

    moveLines(lines) {
      const [x, , line] = this.layout.place(this.cursor);
      const wanted = Math.max(0, Math.min(this.layout.lines.length - 1, line + lines));
      this.move(this.layout.at(x, wanted * this.layout.lineHeight, true) ?? this.cursor);
    }

    goToOdd(step) {
      const found = this.layer?.nextOdd(this.cursor, step) ?? null;
      if (found !== null) {
        this.scroller.focus();
        this.move(found);
      } else {
        this.readout.textContent = this.byLag ? "No follower in the map is known to be behind."
          : "Every replica is in sync: there is no problem to go to.";
      }
    }

    findTopic(text) {
      const found = text === "" ? -1 : (this.map?.names.findIndex((name) => name.includes(text)) ?? -1);
      if (found >= 0) this.move(this.map.starts[found]);
      else if (text !== "") this.readout.textContent = seen(`No topic has ${text} in its name.`);
    }

    open() {
      const [name, number] = this.map.named(this.cursor);
      location.hash = storyOf(name, number);
    }

    press(event) {
      if (this.layout === null || event.ctrlKey || event.altKey || event.metaKey) return;
      const { starts } = this.map;
      const topic = this.map.topicOf(this.cursor);
      const page = Math.max(1, Math.floor(this.cells.height / this.layout.lineHeight) - 1);
      const actions = {
        ArrowLeft: () => this.move(this.cursor - 1),
        ArrowRight: () => this.move(this.cursor + 1),
        ArrowUp: () => this.moveLines(-1),
        ArrowDown: () => this.moveLines(1),
        PageUp: () => this.moveLines(-page),
        PageDown: () => this.moveLines(page),
        Home: () => this.move(this.cursor === starts[topic] ? 0 : starts[topic]),
        End: () => this.move(starts[topic + 1] - (this.cursor === starts[topic + 1] - 1 ? -1 : 1)),
        n: () => this.goToOdd(1),
        N: () => this.goToOdd(-1),
        "+": () => this.zoomBy(1),
        "-": () => this.zoomBy(-1),
        l: () => this.colourBy(!this.byLag),
        Enter: () => this.open(),
      };
      if (!(event.key in actions)) return;
      event.preventDefault();
      actions[event.key]();
    }
  };

  cockpit.HeatMap.keys = [
    ["\u2190 \u2191 \u2192 \u2193", "move in the map of partitions"],
    ["Home End", "the first and the last partition of the topic"],
    ["n N", "the next and the previous partition with a problem"],
    ["+ \u2212", "larger and smaller cells"],
    ["l", "colour the map by the lag of followers, or by state"],
  ];

  /** What the table and the map call a state, as a small picture that needs no colour. */
  const swatch = ({ colour, sign }) => h("span", { class: `swatch ${colour}`, "aria-hidden": "true" }, sign);

  const fitted = (context, text, width) => {
    if (context.measureText(text).width <= width) return text;
    let kept = text.slice(0, Math.max(0, Math.floor(width / (context.measureText(text).width / text.length)) - 1));
    while (kept.length > 0 && context.measureText(`${kept}\u2026`).width > width) kept = kept.slice(0, -1);
    return kept === "" ? "" : `${kept}\u2026`;
  };
}
