"use strict";
// The lag of followers as a layer of the map of partitions. `cockpit.LagLayer` holds a cell for each replica, in the way of
// `cockpit.PartitionMap`; `cockpit.LagReader` reads the pieces that are shown.
//
// What must stay true: the server is asked for one piece at a time, and only for what can be seen.
{
  const NONE = 0;
  const LEADER = 1;
  const UNREAD = 2;
  const OFFLINE = 3;
  // From here on the larger, the further behind.
  const FIRST_LEVEL = 4;

  // The most records behind of each level but the last.
  const LEVELS = [0, 99, 9_999];

  const line = (y) => [[0.15, y], [0.85, y]];
  const STATES = [
    { colour: "cell-none", sign: "", words: "no replica" },
    { colour: "cell-leader", sign: "L", words: "leader", hasDot: true },
    { colour: "cell-unread", sign: "?", words: "not known", lines: [[[0.5, 0.2], [0.5, 0.8]]] },
    { colour: "cell-offline", sign: "\u00d7", words: "offline", lines: [[[0, 1], [1, 0]], [[0, 0], [1, 1]]] },
    { colour: "cell-lag-0", sign: "\u00b7", words: "0 records behind" },
    { colour: "cell-lag-1", sign: "\u2212", words: "1 to 99", lines: [line(0.5)] },
    { colour: "cell-lag-2", sign: "=", words: "100 to 9,999", lines: [line(0.35), line(0.65)] },
    { colour: "cell-lag-3", sign: "\u2261", words: "10,000+", lines: [line(0.2), line(0.5), line(0.8)] },
  ];
  const ORDER = [LEADER, 4, 5, 6, 7, OFFLINE, UNREAD];

  /** The state of a replica by its state in the map; where it is a follower, by its lag. */
  const OF_MAP = new Uint8Array(8).fill(UNREAD);
  OF_MAP[cockpit.CELLS.NONE] = NONE;
  OF_MAP[cockpit.CELLS.LEADER] = LEADER;
  OF_MAP[cockpit.CELLS.OFFLINE] = OFFLINE;
  OF_MAP[cockpit.CELLS.UNUSED] = OFFLINE;

  const cellsOf = (states) => {
    const cells = new Uint8Array(states.length);
    for (let cell = 0; cell < cells.length; cell += 1) cells[cell] = OF_MAP[states[cell]];
    return cells;
  };

  /** How many of each broker's cells are in each state before any lag is known, by the counts of the map. */
  const countsOf = (map) => {
    const counts = new Uint32Array(map.brokers.length * STATES.length);
    for (let index = 0; index < map.counts.length; index += 1) {
      const broker = Math.floor(index / map.states.length);
      counts[broker * STATES.length + OF_MAP[index % map.states.length]] += map.counts[index];
    }
    return counts;
  };

  const levelOf = (lag) => {
    const level = LEVELS.findIndex((most) => lag <= most);
    return FIRST_LEVEL + (level < 0 ? LEVELS.length : level);
  };

  cockpit.LagLayer = class extends cockpit.CellLayer {
    constructor(map) {
      super(STATES, ORDER, map.brokers, cellsOf(map.cells), countsOf(map));
      this.map = map;
      // One more than the records behind the leader, 0 where that is not known.
      this.lags = new Float64Array(map.cells.length);
    }

    /** Makes the cells of a partition anew; returns whether they have changed. */
    renew(partition) {
      const { map, lags } = this;
      const width = map.brokers.length;
      let isChanged = false;
      for (let cell = partition * width; cell < (partition + 1) * width; cell += 1) {
        const state = OF_MAP[map.cells[cell]];
        if (this.put(cell, state === UNREAD && lags[cell] > 0 ? levelOf(lags[cell] - 1) : state)) isChanged = true;
      }
      return isChanged;
    }

    /** Takes the lags of the partitions from `first` on; returns those whose cells have changed. */
    take(first, lags) {
      const width = this.map.brokers.length;
      const end = Math.min(first + Math.floor(lags.length / width), this.map.partitions);
      const changed = [];
      for (let partition = first; partition < end; partition += 1) {
        for (let broker = 0; broker < width; broker += 1) {
          this.lags[partition * width + broker] = Number(lags[(partition - first) * width + broker]) + 1;
        }
        if (this.renew(partition)) changed.push(partition);
      }
      return changed;
    }

    isOdd(state) {
      return state === OFFLINE || state > FIRST_LEVEL;
    }

    /** A few records behind is what a follower of a busy leader is. */
    isBad(state) {
      return state === OFFLINE || state > FIRST_LEVEL + 1;
    }

    /** "orders-3: leader 2; 1 is 0 records behind; 3 is 1,204 records behind". */
    described(partition) {
      const { brokers } = this.map;
      const said = [];
      for (const [index, id] of brokers.entries()) {
        const cell = partition * brokers.length + index;
        const state = this.cells[cell];
        if (state === LEADER) said.unshift(`leader ${id}`);
        else if (state === OFFLINE) said.push(`${id} is offline`);
        else if (state === UNREAD) said.push(`how far ${id} is behind is not known`);
        else if (state !== NONE) said.push(`${id} is ${words.counted(this.lags[cell] - 1, "record")} behind`);
      }
      return `${this.map.partitionName(partition)}: ${said.join("; ") || "no replicas"}`;
    }
  };

  // As many rows as the server has in a piece.
  const PIECE_ROWS = 1000;
  const AGAIN_MS = 5000;
  const LOOK_MS = 250;

  cockpit.tables = { PIECE_ROWS };

  /** Reads while `visible` returns [first, last] partition; `take` gets each piece, `say` a trouble, or "". */
  cockpit.LagReader = class {
    constructor(visible, take, say) {
      Object.assign(this, { visible, take, say, readAt: new Map(), timer: null, isReading: false, restUntil: 0 });
    }

    /** What was read belongs to another map now. */
    restart() {
      this.readAt.clear();
    }

    run(isOn) {
      clearInterval(this.timer);
      this.timer = isOn ? setInterval(() => this.read(), LOOK_MS) : null;
      if (isOn) this.read();
    }

    /** The piece in sight that was read longest ago; null if all are new. */
    due() {
      const range = document.hidden ? null : this.visible();
      if (range === null) return null;
      let [found, oldest] = [null, performance.now() - AGAIN_MS];
      for (let piece = Math.floor(range[0] / PIECE_ROWS); piece <= Math.floor(range[1] / PIECE_ROWS); piece += 1) {
        const at = this.readAt.get(piece) ?? -Infinity;
        if (at < oldest) [found, oldest] = [piece, at];
      }
      return found;
    }

    async read() {
      if (this.isReading || performance.now() < this.restUntil) return;
      this.isReading = true;
      for (let piece = this.due(); piece !== null && this.timer !== null; piece = this.due()) {
        this.readAt.set(piece, performance.now());
        try {
          const found = await cockpit.get(`/api/lags/map?piece=${piece}`);
          this.say("");
          this.take(found);
        } catch (error) {
          this.say(error.message);
          this.restUntil = performance.now() + AGAIN_MS;
          break;
        }
      }
      this.isReading = false;
    }
  };
}
