"use strict";
// Time travel: the moments of a recording. A bar above every view has the timeline, a slider and the time; the view
// Travel has the entries around the moment, two marks A and B, and the difference between them.
//
// A moment is the number of an entry: the state just after it. The other views show the chosen moment because
// `cockpit.address` adds it to what they ask the server for, and because a new moment reaches them as events: `now`, and
// `missed`, after which they load what they have loaded before.
{
  // The width of the timeline in its own units, and its height.
  const WIDTH = 1000;
  const HEIGHT = 24;
  // A letter stands this far behind the one before, in parts of the width; one like it further.
  const LETTER_APART = 0.009;
  const SAME_APART = 0.03;
  const ENTRIES_AROUND = 60;
  // A moment is asked for when the slider has rested this long.
  const REST_MS = 60;
  const PLAY_EVERY_MS = 500;
  const SECOND_MS = 1000;
  // A letter for each mark, so that colour is not needed.
  const LETTERS = {
    election: "E", isr: "I", controller: "C", broker: "B", topic: "T",
    reassignment: "R", fault: "F", server: "S", failure: "!", event: "",
  };

  const travel = {
    head: null,
    entry: 0,
    at_ms: 0,
    a: null,
    b: null,
    difference: null,
    playing: null,
    bar: null,
    shown: null,
    asked: 0,
  };

  /** The address of something at the chosen moment. What is said about the recording itself belongs to no moment. */
  const address = (path) => {
    const [plain, query] = path.split("?", 2);
    const parameters = new URLSearchParams(query ?? "");
    if (travel.head === null || plain.startsWith("/api/recording") || parameters.has("at")) return path;
    parameters.set("entry", travel.entry);
    return `${plain}?${parameters}`;
  };

  const clock = (ms) => new Date(ms).toISOString().slice(11, 23);
  const since = (ms) => `+${((ms - travel.head.first_ms) / SECOND_MS).toFixed(3)} s`;
  const share = (ms) => (ms - travel.head.first_ms) / Math.max(1, travel.head.last_ms - travel.head.first_ms);

  // -- moving ---------------------------------------------------------------------------------------------------------

  let resting = null;

  /** Chooses a moment; the views follow when the slider rests. */
  const choose = (entry) => {
    travel.entry = Math.min(Math.max(0, entry), travel.head.entries - 1);
    travel.bar.slider.value = travel.entry;
    clearTimeout(resting);
    resting = setTimeout(load, REST_MS);
  };

  const load = async () => {
    const asked = (travel.asked += 1);
    try {
      const now = await cockpit.get("/api/now");
      // Only the newest question matters.
      if (asked !== travel.asked) return;
      travel.at_ms = now.time_ms;
      cockpit.now = now;
      drawBar();
      for (const [event, data] of [["now", now], ["missed", {}]]) {
        for (const listener of cockpit.listeners ?? []) listener(event, data);
        cockpit.shown?.update?.(event, data);
      }
    } catch (error) {
      say(error.message);
    }
  };

  const seek = async (ms) => {
    const now = await cockpit.get(`/api/now?at=${Math.round(Math.max(travel.head.first_ms, ms))}`);
    choose(now.entry);
  };

  const bySecond = (step) => seek(travel.at_ms + step * SECOND_MS).catch((error) => say(error.message));

  const byMark = async (back) => {
    const found = await cockpit.get(`/api/recording/next?entry=${travel.entry}${back ? "&back=1" : ""}`);
    if (found.entry !== null) choose(found.entry);
    return found.entry !== null;
  };

  const play = () => {
    if (travel.playing !== null) {
      clearInterval(travel.playing);
      travel.playing = null;
    } else {
      travel.playing = setInterval(async () => {
        if (!(await byMark(false).catch(() => false)) && travel.playing !== null) play();
      }, PLAY_EVERY_MS);
    }
    drawBar();
  };

  const mark = async (name) => {
    travel[name] = { entry: travel.entry, at_ms: travel.at_ms };
    travel.difference = null;
    drawBar();
    if (travel.a === null || travel.b === null) return draw();
    try {
      travel.difference = await cockpit.get(`/api/recording/difference?a=${travel.a.entry}&b=${travel.b.entry}`);
    } catch (error) {
      say(error.message);
    }
    return draw();
  };

  const say = (text) => {
    travel.bar.trouble.textContent = seen(text);
  };

  // -- the bar --------------------------------------------------------------------------------------------------------

  const svgElement = (tag, attributes, ...children) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  };

  /** The letters above bars with marks, as far as they have space. */
  const letters = (marked) => {
    const row = h("div", { class: "letters", "aria-hidden": "true" });
    let last = { at: -1, letter: "" };
    for (const { at, mark } of marked) {
      const letter = LETTERS[mark] ?? "";
      if (letter === "" || at - last.at < (letter === last.letter ? SAME_APART : LETTER_APART)) continue;
      const drawn = h("span", { class: `mark-${mark}` }, letter);
      drawn.style.left = `${(100 * at).toFixed(2)}%`;
      row.append(drawn);
      last = { at, letter };
    }
    return row;
  };

  /** A bar for each stretch of time; its height tells how much happened, its letter and class what matters most. */
  const timeline = () => {
    const { timeline: bars, marks } = travel.head;
    const most = Math.max(1, ...bars.map((bar) => bar.entries));
    const marked = [];
    const drawn = bars.map((bar) => {
      const counts = marks.filter((name) => bar.marks[name]).map((name) => `${bar.marks[name]} ${name}`);
      const first = marks.find((name) => bar.marks[name]) ?? "none";
      const height = 3 + Math.round((HEIGHT - 4) * Math.sqrt(bar.entries / most));
      const x = (share(bar.from_ms) * (WIDTH - 4)).toFixed(1);
      marked.push({ at: x / WIDTH, mark: first });
      const title = svgElement("title", {}, `${clock(bar.from_ms)}: ${counts.join(", ") || `${bar.entries} entries`}`);
      return svgElement("rect", { x, y: HEIGHT - height, width: 2.5, height, class: `mark-${first}` }, title);
    });
    const picture = svgElement("svg", {
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", class: "timeline", role: "img",
      "aria-label": `What happened from ${clock(travel.head.first_ms)} to ${clock(travel.head.last_ms)}`,
    });
    picture.append(...drawn);
    picture.addEventListener("click", (event) => {
      const box = picture.getBoundingClientRect();
      const part = (event.clientX - box.left) / Math.max(1, box.width);
      seek(travel.head.first_ms + part * (travel.head.last_ms - travel.head.first_ms)).catch((error) => say(error.message));
    });
    return [letters(marked), picture];
  };

  const button = (text, label, press) => h("button", { type: "button", "aria-label": label, title: label, onclick: press }, text);

  const makeBar = () => {
    const slider = h("input", {
      type: "range", min: 0, max: travel.head.entries - 1, step: 1, value: travel.entry, id: "moment",
      "aria-label": "Moment, by entry", oninput: (event) => choose(Number(event.target.value)),
    });
    const time = h("output", { for: "moment", id: "moment-time" });
    const playing = button("play", "Play or pause (space)", play);
    const marks = h("span", { class: "travel-marks" });
    const trouble = h("p", { class: "trouble", role: "alert" });
    const bar = h("section", { class: "travel-bar", "aria-label": "Moment of the recording" },
      timeline(),
      slider,
      h("div", { class: "travel-tools" },
        button("\u25c0\u25c0", "The mark before (p)", () => byMark(true)),
        button("\u25c0", "The entry before (left)", () => choose(travel.entry - 1)),
        playing,
        button("\u25b6", "The next entry (right)", () => choose(travel.entry + 1)),
        button("\u25b6\u25b6", "The next mark (n)", () => byMark(false)),
        time,
        button("A", "Set the mark A here (a)", () => mark("a")),
        button("B", "Set the mark B here (b)", () => mark("b")),
        marks),
      trouble);
    travel.bar = { bar, slider, time, playing, marks, trouble };
    trouble.textContent = seen(travel.head.trouble ?? "");
    document.getElementById("view").before(bar);
  };

  const drawBar = () => {
    const { slider, time, playing, marks } = travel.bar;
    slider.setAttribute("aria-valuetext", `entry ${travel.entry}, ${clock(travel.at_ms)}`);
    time.textContent = `${clock(travel.at_ms)} UTC, ${since(travel.at_ms)}, entry ${travel.entry} of ${travel.head.entries - 1}`;
    playing.textContent = travel.playing === null ? "play" : "pause";
    const named = ["a", "b"].filter((name) => travel[name] !== null);
    morph(marks, named.map((name) => h("span", {}, h("strong", {}, name.toUpperCase()), ` ${since(travel[name].at_ms)}`)));
  };

  // -- the view -------------------------------------------------------------------------------------------------------

  const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

  /** A value that differs; of one with named fields those that differ from the other's. */
  const cell = (value, other) => {
    if (value === null || value === undefined) return "\u2013";
    if (!isObject(value)) return typeof value === "string" ? value : JSON.stringify(value);
    return Object.entries(value)
      .filter(([name, each]) => !isObject(other) || JSON.stringify(each) !== JSON.stringify(other[name]))
      .map(([name, each]) => `${name.replaceAll("_", " ")} ${Array.isArray(each) ? words.ids(each) : each ?? "none"}`)
      .join("; ");
  };

  const differenceOf = () => {
    if (travel.a === null || travel.b === null) {
      return h("p", { class: "quiet" }, "Set the marks A and B, with the buttons or the keys a and b: what differs between them appears here.");
    }
    const found = travel.difference;
    if (found === null) return h("p", { class: "quiet" }, "The difference is being made.");
    return [
      h("ul", { id: "difference-words" }, found.words.map((line) => h("li", {}, line))),
      h("div", { class: "scroll-x" },
        h("table", { id: "difference-table" },
          h("caption", { class: "note" }, `${found.count} values differ${found.count > found.changed.length ? `; the first ${found.changed.length}` : ""}`),
          h("thead", {}, h("tr", {}, ["What", "Which", "At A", "At B"].map((title) => h("th", { scope: "col" }, title)))),
          h("tbody", {}, found.changed.map((each) =>
            h("tr", {}, [each.section, each.key, cell(each.before, each.after), cell(each.after, each.before)].map((text) => h("td", {}, text))))))),
    ];
  };

  const draw = async () => {
    const shown = travel.shown;
    if (shown === null) return;
    const first = Math.max(0, travel.entry - ENTRIES_AROUND / 2);
    let listed;
    try {
      listed = await cockpit.get(`/api/recording/entries?first=${first}&limit=${ENTRIES_AROUND}`);
    } catch (error) {
      return say(error.message);
    }
    // Another view is shown meanwhile.
    if (shown !== travel.shown) return undefined;
    const held = cockpit.now.faults ?? [];
    const { difference } = travel;
    const between = difference === null ? null
      : h("span", { class: "note" }, `from A (${since(difference.a.time_ms)}) to B (${since(difference.b.time_ms)})`);
    shown.replaceChildren(
      h("header", { class: "view-head" }, h("h2", {}, travel.head.name), h("span", { class: "beside-name" }, travel.head.about)),
      held.length > 0 ? h("ul", { class: "faults", "aria-label": "Faults that hold" }, held.map((text) => h("li", {}, text))) : "",
      panel("difference", "Difference", { wide: true, aside: between }, differenceOf()),
      panel("entries-panel", "Entries", { wide: true, aside: h("span", { class: "note" }, "around the moment") },
        h("div", { class: "scroll-x" },
          h("table", { class: "rows", id: "entries" },
            h("thead", {}, h("tr", {}, ["Entry", "Time", "Mark", "What"].map((title) => h("th", { scope: "col" }, title)))),
            h("tbody", {}, listed.entries.map((each) =>
              h("tr", {
                class: each.number === travel.entry ? "chosen" : null,
                "aria-current": each.number === travel.entry ? "true" : null,
                onclick: () => choose(each.number),
              },
              h("td", {}, each.number),
              h("td", {}, since(each.time_ms)),
              h("td", {}, each.mark ?? ""),
              h("td", {}, each.text))))))),
    );
    return undefined;
  };

  const onKey = (event) => {
    if (travel.bar === null || event.ctrlKey || event.altKey || event.metaKey || event.defaultPrevented) return;
    const isSlider = event.target === travel.bar.slider;
    if (!isSlider && event.target.closest?.("input, textarea, select, canvas, [role=grid], dialog")) return;
    const actions = {
      ArrowLeft: () => (event.shiftKey ? bySecond(-1) : choose(travel.entry - 1)),
      ArrowRight: () => (event.shiftKey ? bySecond(1) : choose(travel.entry + 1)),
      Home: () => isSlider && choose(0),
      End: () => isSlider && choose(travel.head.entries - 1),
      " ": play,
      n: () => byMark(false),
      p: () => byMark(true),
      a: () => mark("a"),
      b: () => mark("b"),
    };
    const action = actions[event.key];
    if (action === undefined || (event.key === " " && event.target.closest?.("button, summary, a"))) return;
    if (!isSlider && (event.key === "Home" || event.key === "End")) return;
    event.preventDefault();
    action();
  };

  if (cockpit.settings.recording) {
    cockpit.address = address;
    addEventListener("keydown", onKey);
    addEventListener("DOMContentLoaded", async () => {
      try {
        travel.head = await cockpit.get("/api/recording");
      } catch (error) {
        document.getElementById("connection").textContent = seen(error.message);
        return;
      }
      travel.entry = cockpit.now.entry;
      travel.at_ms = cockpit.now.time_ms;
      makeBar();
      drawBar();
      draw();
    });
  }

  cockpit.view("travel", {
    title: "Travel",
    key: "6",
    keys: [
      ["\u2190 \u2192", "the entry before, the next entry; with Shift by a second"],
      ["p n", "the mark before, the next mark"],
      ["Space", "play or pause"],
      ["a b", "set the mark A or B"],
    ],
    show(element) {
      travel.shown = h("div", { class: "travel stack" });
      element.append(travel.shown);
      if (!cockpit.settings.recording) {
        travel.shown.append(
          panel("past", "Travel through a recording", {},
            h("p", { class: "quiet" }, "A live cluster has no past here. Record it, and open the file:"),
            command(atCluster("klamm record cluster.klamm --seconds 60")),
            command("klamm cockpit cluster.klamm")));
      } else if (travel.head !== null) {
        draw();
      }
    },
    update(event) {
      if (event === "now" && travel.head !== null) draw();
    },
    hide() {
      travel.shown = null;
    },
  });
}
