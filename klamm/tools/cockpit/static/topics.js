"use strict";
// The view Topics: the topics, the partitions and configurations of one (#topics/t), the records of a partition
// (#topics/t/0?offset=5).
{
  const { seen, moment, address, hashOf, load, search, valueOf } = cockpit.browse;

  const cells = (tag, values) => values.map((value) => h(tag, tag === "th" ? { scope: "col" } : {}, value));

  // -- the list ---------------------------------------------------------------------------------------------------------

  const list = (found, filter) => [
    search("Find topics", filter, (text) => (location.hash = hashOf("topics", [], text ? { filter: text } : {}))),
    found.count > found.topics.length
      ? h("p", { class: "note" }, `${words.counted(found.count, "topic")}; the first ${found.topics.length} are shown.`)
      : null,
    h("div", { class: "scroll-x" },
      h("table", { class: "rows", id: "topics" },
        h("thead", {}, h("tr", {}, cells("th", ["Topic", "Partitions", "Replicas", "State"]))),
        h("tbody", {}, found.topics.map((each) => {
          const href = hashOf("topics", [each.topic]);
          return h("tr", { tabindex: "0", "data-href": href },
            h("th", { scope: "row" }, h("a", { href }, seen(each.topic))),
            h("td", { class: "number" }, each.partitions),
            h("td", { class: "number" }, each.replication_factor),
            h("td", {},
              each.offline ? badge("bad", `${each.offline} without a leader`) : null,
              each.under_replicated ? badge("busy", `${each.under_replicated} under-replicated`) : null,
              !each.offline && !each.under_replicated ? badge("good", "in sync") : null));
        })))),
  ];

  // -- one topic ----------------------------------------------------------------------------------------------------------

  const topicPage = (found, configs) => [
    h("header", { class: "view-head" }, h("h2", {}, seen(found.topic)), h("span", {}, found.topic_id ?? "")),
    panel("partitions", "Partitions", {},
      h("div", { class: "scroll-x" },
        h("table", { class: "rows" },
          h("thead", {}, h("tr", {}, cells("th", ["Partition", "Leader", "ISR", "Replicas", "Offsets", "Records at most", "Size", ""]))),
          h("tbody", {}, found.partitions.map((each) => {
            const href = hashOf("topics", [found.topic, each.partition]);
            const size = each.sizes[each.leader] ?? Math.max(...Object.values(each.sizes), -1);
            return h("tr", { tabindex: "0", "data-href": href },
              h("th", { scope: "row" }, h("a", { href }, each.partition)),
              h("td", {}, each.leader < 0 ? badge("bad", "none") : each.leader),
              h("td", {}, words.ids(each.isr)),
              h("td", {}, words.ids(each.replicas)),
              h("td", {}, each.why_not ? seen(each.why_not) : `${each.start_offset} to ${each.end_offset}`),
              h("td", { class: "number" }, each.why_not ? words.none : words.count(each.end_offset - each.start_offset)),
              h("td", { class: "number" }, words.bytes(size < 0 ? null : size)),
              h("td", {}, h("a", { href: storyOf(found.topic, each.partition) }, "why?")));
          }))))),
    found.count > found.partitions.length
      ? h("p", { class: "note" }, `${words.counted(found.count, "partition")}; the first ${found.partitions.length} are shown.`)
      : null,
    configs,
  ];

  const SOURCES = {
    DYNAMIC_TOPIC_CONFIG: "the topic",
    DYNAMIC_BROKER_CONFIG: "the broker, at run time",
    DYNAMIC_DEFAULT_BROKER_CONFIG: "all brokers, at run time",
    STATIC_BROKER_CONFIG: "the broker's file",
    DEFAULT_CONFIG: "the default",
  };
  const sourceOf = (source) => SOURCES[source] ?? source.toLowerCase().replaceAll("_", " ");

  const configTable = ({ configs }) => {
    const set = (each) => each.source !== "DEFAULT_CONFIG";
    const rows = [...configs].sort((a, b) => set(b) - set(a) || a.name.localeCompare(b.name));
    return panel("configs", "Configuration", {},
      h("div", { class: "scroll-x" },
        h("table", {},
          h("thead", {}, h("tr", {}, cells("th", ["Key", "Value", "Set by", "Would else be"]))),
          h("tbody", {}, rows.map((each) =>
            h("tr", { class: set(each) ? "set" : null },
              h("th", { scope: "row" }, each.name),
              h("td", {}, each.is_sensitive ? h("em", {}, "sensitive: not shown") : each.value),
              h("td", {}, sourceOf(each.source)),
              h("td", {}, each.synonyms.slice(1).map((other) =>
                h("div", {}, `${other.value} (${sourceOf(other.source)}: ${other.name})`)))))))));
  };

  const showTopic = (element, topic) => {
    const configs = h("div");
    load(element, address("/api/topics", { topic }), (found) => {
      cockpit.get(address("/api/configs", { topic })).then(
        (value) => configs.replaceChildren(configTable(value)),
        (error) => configs.replaceChildren(h("p", { class: "trouble" }, error.message)));
      return topicPage(found, configs);
    });
  };

  // -- records ------------------------------------------------------------------------------------------------------------

  const MARKS = { tombstone: "busy", aborted: "bad", "open transaction": "busy" };

  const record = (each, batch, page) => {
    const whole = hashOf("topics", [page.topic, page.partition], { offset: each.offset, whole: 1 });
    return h("article", { class: `record ${each.mark ? "marked-record" : ""}`, tabindex: "-1" },
      h("header", {},
        h("strong", {}, each.offset),
        h("time", {}, moment(each.timestamp_ms)),
        h("small", {}, each.timestamp_type === "LogAppendTime" ? "when it was appended" : "when it was made"),
        each.mark ? badge(MARKS[each.mark] ?? "calm", each.mark) : null,
        batch ? h("small", { class: "batch" },
          `batch ${batch.base_offset} to ${batch.last_offset}, ${batch.compression}, ${words.bytes(batch.size_bytes)}`,
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
    const form = h("form", { class: "search" }, offset, time, h("button", { type: "submit" }, "Go"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (offset.value !== "") go({ offset: offset.value });
      else if (time.value !== "") go({ timestamp: new Date(time.value).getTime() });
    });
    return form;
  };

  const pager = (page) => {
    const link = (text, parameters, isThere) =>
      isThere ? h("a", { href: hashOf("topics", [page.topic, page.partition], parameters) }, text) : h("span", { class: "quiet" }, text);
    return h("nav", { class: "pager", "aria-label": "Records" },
      link("first", { offset: page.log_start_offset }, page.start > page.log_start_offset),
      link("\u2190 earlier", { before: page.start }, page.start > page.log_start_offset),
      link("later \u2192", { offset: page.next_offset }, page.next_offset < page.end_offset),
      link("last", { before: page.end_offset }, page.next_offset < page.end_offset),
      jump(page));
  };

  const recordsPage = (page) => {
    const batches = new Map(page.batches.map((each) => [each.base_offset, each]));
    const broken = page.batches.filter((each) => each.error);
    return [
      h("header", { class: "view-head" },
        h("h2", {}, h("a", { href: hashOf("topics", [page.topic]) }, seen(page.topic)), `-${page.partition}`),
        h("span", {}, `offsets ${page.log_start_offset} to ${page.end_offset}`),
        page.last_stable_offset >= 0 && page.last_stable_offset < page.high_watermark
          ? h("span", {}, `stable up to ${page.last_stable_offset}: a transaction is open behind it`) : null,
        h("a", { href: storyOf(page.topic, page.partition) }, "why?")),
      pager(page),
      page.stop ? h("p", { class: "why-not" }, `Fewer records than asked for: reading stopped ${page.stop}.`) : null,
      broken.map((each) => h("p", { class: "trouble" }, `The batch at ${each.base_offset} cannot be read: ${each.error}`)),
      page.records.length ? null : h("p", { class: "quiet" }, "There is no record here."),
      h("div", { class: "records", id: "records" }, page.records.map((each) => record(each, batches.get(each.batch), page))),
    ];
  };

  const showRecords = (element, topic, partition, query) => {
    const parameters = { topic, partition };
    for (const name of ["offset", "before", "timestamp", "limit", "whole"]) parameters[name] = query.get(name);
    load(element, address("/api/records", parameters), recordsPage);
  };

  cockpit.view("topics", {
    title: "Topics",
    key: "4",
    show(view, [topic, partition], { query }) {
      const element = h("div", { class: "stack" });
      view.append(element);
      if (partition !== undefined) showRecords(element, topic, partition, query);
      else if (topic) showTopic(element, topic);
      else load(element, address("/api/topics", { filter: query.get("filter") }), (found) => list(found, query.get("filter") ?? ""));
    },
  });
}
