"use strict";
// The view Groups: the groups and transactional ids, and one group (#groups/g) with its members and lag.
{
  const { seen, moment, address, hashOf, load } = cockpit.browse;

  const head = (titles) => h("thead", {}, h("tr", {}, titles.map((title) => h("th", { scope: "col" }, title))));
  const STATES = { Stable: "good", Empty: "calm", Dead: "bad" };
  const state = (name) => badge(STATES[name] ?? "busy", name || "unknown");

  const list = (found) => [
    panel("groups", "Groups", { why: found.count ? null : "The cluster has no groups." },
      h("div", { class: "scroll-x" },
        h("table", { class: "rows" },
          head(["Group", "State", "Protocol"]),
          h("tbody", {}, found.groups.map((each) => {
            const href = hashOf("groups", [each.group]);
            return h("tr", { tabindex: "0", "data-href": href },
              h("th", { scope: "row" }, h("a", { href }, seen(each.group))),
              h("td", {}, state(each.state)),
              h("td", {}, seen(each.protocol_type) || "only commits offsets"));
          }))))),
  ];

  const transactions = (element) =>
    cockpit.get("/api/transactions").then(
      (found) => element.replaceChildren(
        panel("transactions", "Transactions", { why: found.count ? null : "No transactional id is known." },
          h("div", { class: "scroll-x" },
            h("table", {},
              head(["Transactional id", "State", "Producer", "Coordinator"]),
              h("tbody", {}, found.transactions.map((each) =>
                h("tr", {},
                  h("th", { scope: "row" }, seen(each.transactional_id)),
                  h("td", {}, each.state),
                  h("td", { class: "number" }, each.producer_id),
                  h("td", { class: "number" }, each.coordinator)))))))),
      (error) => element.replaceChildren(panel("transactions", "Transactions", { why: error.message })));

  const group = (found) => [
    h("header", { class: "view-head" },
      h("h2", {}, seen(found.group)),
      state(found.state),
      h("span", {}, `lag ${words.count(found.lag)}`),
      h("span", {}, `coordinator ${found.coordinator.broker_id}`),
      h("span", {}, found.assignment_strategy ? `assignment ${seen(found.assignment_strategy)}` : "")),
    panel("members", "Members", { why: found.members.length ? null : "The group has no members now." },
      h("div", { class: "scroll-x" },
        h("table", {},
          head(["Member", "Client", "Host", "Partitions"]),
          h("tbody", {}, found.members.map((each) =>
            h("tr", {},
              h("th", { scope: "row" }, seen(each.group_instance_id ?? each.consumer_id)),
              h("td", {}, seen(each.client_id)),
              h("td", {}, seen(each.host)),
              h("td", {}, each.assignment.map((of) => `${seen(of.topic)}-${of.partition}`).join(", ") || "none"))))))),
    panel("lag", "Offsets and lag", { why: found.partitions.length ? null : "The group has committed no offset." },
      h("div", { class: "scroll-x" },
        h("table", { class: "rows" },
          head(["Partition", "Committed", "Log ends at", "Lag", "Client"]),
          h("tbody", {}, found.partitions.map((each) => {
            const href = hashOf("topics", [each.topic, each.partition], each.current_offset === null ? {} : { offset: each.current_offset });
            return h("tr", { tabindex: "0", "data-href": href },
              h("th", { scope: "row" }, h("a", { href }, `${seen(each.topic)}-${each.partition}`)),
              h("td", { class: "number" }, each.current_offset ?? words.none),
              h("td", { class: "number" }, each.log_end_offset ?? words.none),
              h("td", { class: "number" }, each.lag ?? words.none),
              h("td", {}, seen(each.client_id)));
          }))))),
  ];

  cockpit.view("groups", {
    title: "Groups",
    key: "5",
    show(view, [name]) {
      const element = h("div", { class: "stack" });
      view.append(element);
      if (name) {
        load(element, address("/api/groups", { group: name }), group);
        return;
      }
      const others = h("div");
      view.append(others);
      load(element, "/api/groups", list);
      transactions(others);
    },
  });
}
