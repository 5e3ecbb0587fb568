"use strict";
// The view Topics: the topics, the partitions and configurations of one (#topics/t), the records of a partition
// (#topics/t/0?offset=5).
{
  const { seen, moment, address, hashOf, load, watch, rest, heading, tile, tiles, table, parts, search, valueOf } = cockpit.browse;

  const health = (each) => [
    each.offline ? badge("bad", `${words.count(each.offline)} without a leader`) : null,
    each.under_replicated ? [" ", badge("busy", `${words.count(each.under_replicated)} under-replicated`)] : null,
    !each.offline && !each.under_replicated ? badge("good", "in sync") : null,
  ];

  const perSecond = (rate) => (isShown(rate) ? `${rate >= 100 || rate === 0 ? words.count(rate) : rate.toFixed(1)}/s` : words.none);

  // -- the list ---------------------------------------------------------------------------------------------------------

  const list = (filter, from) => (found) => {
    const { totals } = found;
    const columns = [["Topic", ""], ["State", "tight"], ["Partitions", "number"], ["Replicas", "number"], ["Records at most", "number"],
      ["Records written", "number"], ["Size", "number"]];
    const parameters = (more) => ({ ...(filter ? { filter } : {}), ...more });
    return [
      heading([], "Topics"),
      tiles(
        tile("Topics", words.count(totals.topics), `${words.count(totals.internal)} of them internal`),
        tile("Partitions", words.count(totals.partitions), `${words.count(totals.replicas)} replicas`),
        tile("Without a leader", words.count(totals.offline), totals.offline ? "can be neither read nor written" : "all can be read and written",
          totals.offline ? "bad" : "calm"),
        tile("Under-replicated", words.count(totals.under_replicated), totals.under_replicated ? "replicas are out of sync" : "all replicas are in sync",
          totals.under_replicated ? "busy" : "calm")),
      panel("topics-panel", filter ? `Topics with \u201c${seen(filter)}\u201d` : "All topics", {
        wide: true,
        aside: search("Find topics", filter, (text) => (location.hash = hashOf("topics", [], text ? { filter: text } : {})), "part of a name"),
        why: found.count ? null
          : filter ? "No topic has that in its name."
            : "The cluster has no topics yet. Each topic appears here with its partitions, records and size when it is created.",
      },
      table("topics", columns, found.topics.map((each) => {
        const href = hashOf("topics", [each.topic]);
        return {
          href,
          cells: [
            [h("a", { href }, seen(each.topic)), each.is_internal ? h("small", {}, " internal") : null],
            health(each), words.count(each.partitions), each.replication_factor, words.count(each.records),
            perSecond(each.records_per_s), words.bytes(each.size_bytes),
          ],
        };
      })),
      parts(from, found.topics.length, found.count, (to) => hashOf("topics", [], parameters(to ? { from: to } : {})))),
    ];
  };

  // -- one topic ----------------------------------------------------------------------------------------------------------

  const topicPage = (found, configs, from) => {
    const columns = [["Partition", ""], ["Leader", ""], ["ISR", ""], ["Replicas", ""], ["First offset", "number"], ["End offset", "number"],
      ["Records at most", "number"], ["Size", "number"], ["", "number"]];
    const known = found.partitions.filter((each) => isShown(each.end_offset) && isShown(each.start_offset));
    const records = known.reduce((sum, each) => sum + each.end_offset - each.start_offset, 0);
    const sizeOf = (each) => each.sizes[each.leader] ?? (Object.values(each.sizes).length ? Math.max(...Object.values(each.sizes)) : null);
    const sizes = found.partitions.map(sizeOf).filter(isShown);
    const short = found.partitions.filter((each) => each.is_under_replicated).length;
    const part = found.count > found.partitions.length ? "of the partitions shown" : "";
    return [
      heading([["Topics", "#topics"]], seen(found.topic), found.topic_id ? h("small", {}, `id ${found.topic_id}`) : null),
      tiles(
        tile("Partitions", words.count(found.count), `${words.count(found.partitions[0]?.replicas.length ?? null)} replicas each`),
        tile("Out of sync", words.count(short), short ? "see why" : "all replicas are in sync", short ? "busy" : "calm"),
        tile("Records at most", known.length ? words.count(records) : words.none, part || "first to end offsets"),
        tile("Size", sizes.length ? words.bytes(sizes.reduce((sum, each) => sum + each, 0)) : words.none, part || "of the leaders' logs")),
      panel("partitions-panel", "Partitions", { wide: true },
        table("partitions", columns, found.partitions.map((each) => {
          const href = hashOf("topics", [found.topic, each.partition]);
          const isShort = each.is_under_replicated;
          return {
            href,
            cells: [
              h("a", { href }, each.partition),
              each.leader < 0 ? badge("bad", "none") : each.leader,
              isShort ? [words.ids(each.isr), " ", badge("busy", `${each.isr.length} of ${each.replicas.length}`)] : words.ids(each.isr),
              words.ids(each.replicas),
              each.why_not ? h("span", { title: seen(each.why_not) }, words.none) : (each.start_offset ?? words.none),
              each.why_not ? h("span", { title: seen(each.why_not) }, words.none) : (each.end_offset ?? words.none),
              each.why_not || !isShown(each.start_offset) ? words.none : words.count(each.end_offset - each.start_offset),
              words.bytes(sizeOf(each)),
              h("a", { href: storyOf(found.topic, each.partition) }, "why?"),
            ],
          };
        })),
        parts(from, found.partitions.length, found.count, (to) => hashOf("topics", [found.topic], to ? { from: to } : {}))),
      configs,
    ];
  };

  const SOURCES = {
    DYNAMIC_TOPIC_CONFIG: "the topic",
    DYNAMIC_BROKER_CONFIG: "the broker, at run time",
    DYNAMIC_DEFAULT_BROKER_CONFIG: "all brokers, at run time",
    STATIC_BROKER_CONFIG: "the broker's file",
    DEFAULT_CONFIG: "the default",
  };
  const sourceOf = (source) => SOURCES[source] ?? source.toLowerCase().replaceAll("_", " ");

  // Kafka's largest numbers stand for no limit.
  const MOST_READ = 1e15;

  /** A large number of milliseconds or bytes as people read it. */
  const sizeText = (name, value) => {
    const write = /\.ms$/.test(name) ? words.duration : /\.bytes$/.test(name) ? words.bytes : null;
    const number = Number(value);
    return write !== null && number >= 1000 && number < MOST_READ ? h("small", {}, ` ${write(number)}`) : null;
  };

  const configTable = (id, configs) =>
    table(id, [["Key", ""], ["Value", ""], ["Set by", ""], ["Would else be", ""]], configs.map((each) => ({
      cells: [
        each.name,
        each.is_sensitive ? h("em", {}, "sensitive: not shown") : each.value === "" ? h("em", { class: "null" }, "empty")
          : [each.value, sizeText(each.name, each.value)],
        sourceOf(each.source),
        each.synonyms.length > 1
          ? each.synonyms.slice(1).map((other) => h("div", {}, `${other.value} (${sourceOf(other.source)}: ${other.name})`))
          : words.none,
      ],
    })));

  const configsPanel = ({ configs }) => {
    const rows = [...configs].sort((a, b) => a.name.localeCompare(b.name));
    const set = rows.filter((each) => each.source !== "DEFAULT_CONFIG");
    const defaults = rows.filter((each) => each.source === "DEFAULT_CONFIG");
    return panel("configs", "Configuration", { wide: true, aside: h("span", { class: "note" }, `${set.length} set, ${defaults.length} defaults`) },
      set.length ? configTable("configs-set", set) : h("p", { class: "quiet" }, "Nothing is set: all values are defaults."),
      h("details", {}, h("summary", {}, "Defaults"), configTable("configs-default", defaults)));
  };

  const showTopic = (element, topic, from) => {
    const configs = h("div", { "data-kept": "configs", id: "configs-place" });
    cockpit.get(address("/api/configs", { topic })).then(
      (value) => configs.replaceChildren(configsPanel(value)),
      (error) => configs.replaceChildren(panel("configs", "Configuration", { why: error.message })));
    watch(element, address("/api/topics", { topic, from: from || null }), (found) => topicPage(found, configs, from));
  };

  // -- records ------------------------------------------------------------------------------------------------------------

  const MARKS = { tombstone: "busy", aborted: "bad", "open transaction": "busy" };

  const record = (each, batch, page) => {
    const at = { offset: each.offset };
    const whole = hashOf("topics", [page.topic, page.partition], { ...at, whole: 1 });
    return h("article", { class: `record ${each.mark ? "marked-record" : ""}`, tabindex: "-1" },
      h("header", {},
        h("strong", {}, each.offset),
        moment(each.timestamp_ms),
        each.timestamp_type === "LogAppendTime" ? h("small", {}, "when it was appended") : null,
        each.mark ? badge(MARKS[each.mark] ?? "calm", each.mark) : null,
        batch ? h("small", { class: "batch" },
          `batch ${batch.base_offset} to ${batch.last_offset}, ${batch.compression === "none" ? "not compressed" : batch.compression}, ${words.bytes(batch.size_bytes)}`,
          batch.producer_id === null ? "" : `, producer ${batch.producer_id} epoch ${batch.producer_epoch}`,
          batch.is_transactional ? ", transactional" : "") : null),
      h("dl", {},
        h("dt", {}, "key"), h("dd", {}, valueOf(each.key, whole)),
        each.headers.map((header) => [h("dt", { class: "header" }, header.name), h("dd", {}, valueOf(header.value, whole))]),
        each.more_headers ? [h("dt", {}, ""), h("dd", {}, `and ${words.counted(each.more_headers, "more header")}`)] : null,
        h("dt", {}, "value"), h("dd", {}, valueOf(each.value, whole))));
  };

  const jump = (page) => {
    const go = (parameters) => (location.hash = hashOf("topics", [page.topic, page.partition], parameters));
    const offset = h("input", { type: "number", min: page.log_start_offset, max: page.end_offset, "aria-label": "Offset", placeholder: "offset" });
    const time = h("input", { type: "datetime-local", step: "1", "aria-label": "Time" });
    const form = h("form", { class: "search", role: "search" }, offset, time, h("button", { type: "submit" }, "Go"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (offset.value !== "") go({ offset: offset.value });
      else if (time.value !== "") go({ timestamp: new Date(time.value).getTime() });
    });
    return form;
  };

  const pager = (page) => {
    const link = (text, rel, parameters, isThere) =>
      isThere ? h("a", { href: hashOf("topics", [page.topic, page.partition], parameters), rel }, text) : h("span", { class: "quiet" }, text);
    return h("nav", { class: "pager", "aria-label": "Records" },
      link("first", "", { offset: page.log_start_offset }, page.start > page.log_start_offset),
      link("\u2190 earlier", "prev", { before: page.start }, page.start > page.log_start_offset),
      link("later \u2192", "next", { offset: page.next_offset }, page.next_offset < page.end_offset),
      link("last", "", { before: page.end_offset }, page.next_offset < page.end_offset));
  };

  const emptiness = (page) => {
    if (page.records.length) return null;
    if (page.end_offset === page.log_start_offset) {
      return page.end_offset === 0
        ? "No record was ever written to this partition. Records appear here with keys, headers and values."
        : `The log is empty: it begins and ends at ${page.end_offset}. What was before is deleted.`;
    }
    return page.next_offset >= page.end_offset ? "There is no record from here on: this is the end of the log." : "No record can be shown here; more follow later.";
  };

  const recordsPage = (page) => {
    const batches = new Map(page.batches.map((each) => [each.base_offset, each]));
    const broken = page.batches.filter((each) => each.error);
    const none = emptiness(page);
    return [
      heading([["Topics", "#topics"], [seen(page.topic), hashOf("topics", [page.topic])]], `${seen(page.topic)}-${page.partition}`,
        h("span", {}, `offsets ${page.log_start_offset} to ${page.end_offset}`),
        page.last_stable_offset >= 0 && page.last_stable_offset < page.high_watermark
          ? badge("busy", `stable up to ${page.last_stable_offset}: a transaction is open behind it`) : null,
        h("a", { href: storyOf(page.topic, page.partition) }, "why?")),
      h("div", { class: "bar-of-records" }, pager(page), jump(page)),
      page.stop ? h("p", { class: "why-not" }, `Fewer records than asked for: reading stopped ${page.stop}.`) : null,
      broken.map((each) => h("p", { class: "trouble" }, `The batch at ${each.base_offset} cannot be read: ${each.error}`)),
      none ? h("section", { class: "panel" }, h("p", { class: "quiet" }, none)) : null,
      h("div", { class: "records", id: "records" }, page.records.map((each) => record(each, batches.get(each.batch), page))),
    ];
  };

  const showRecords = (element, topic, partition, query) => {
    const parameters = { topic, partition };
    for (const name of ["offset", "before", "timestamp", "limit", "whole"]) parameters[name] = query.get(name);
    load(element, address("/api/records", parameters), recordsPage);
  };

  addEventListener("keydown", (event) => {
    const rel = { n: "next", p: "prev" }[event.key];
    if (!rel || event.ctrlKey || event.altKey || event.metaKey || event.target.closest?.("input, textarea, select, dialog")) return;
    document.querySelector(`main[data-view="topics"] .pager a[rel="${rel}"]`)?.click();
  });

  cockpit.view("topics", {
    title: "Topics",
    key: "4",
    isLive: true,
    keys: [["/", "find a topic; an offset in records"], ["n p", "later and earlier records"]],
    show(view, [topic, partition], { query }) {
      const element = h("div", { class: "stack" });
      view.append(element);
      const from = Math.max(0, Math.trunc(Number(query.get("from"))) || 0);
      const filter = query.get("filter") ?? "";
      if (partition !== undefined) showRecords(element, topic, partition, query);
      else if (topic) showTopic(element, topic, from);
      else watch(element, address("/api/topics", { filter, from: from || null }), list(filter, from));
    },
    hide: rest,
  });
}
