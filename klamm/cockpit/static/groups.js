"use strict";
// The view Groups: the groups and transactional ids, and one group (#groups/g) with its members and lag.
{
  const { seen, address, hashOf, load, watch, rest, heading, tile, tiles, table, search } = cockpit.browse;

  const STATES = { Stable: "good", Empty: "calm", Dead: "bad" };
  const state = (name) => badge(STATES[name] ?? "busy", name || "unknown", "Groups");
  // Of the partitions of one member, and of rows of a table.
  const MOST_NAMED = 24;
  const MOST_ROWS = 500;

  const list = (filter) => (found) => {
    const lags = new Map((cockpit.now.groups ?? []).map((each) => [each.group, each]));
    const rows = found.groups
      .filter((each) => each.group.includes(filter))
      .map((each) => ({ ...each, ...lags.get(each.group) }));
    const known = rows.filter((each) => isShown(each.lag));
    const members = rows.reduce((sum, each) => sum + (each.members ?? 0), 0);
    const columns = [["Group", ""], ["State", "tight"], ["Members", "number"], ["Lag", "number"], ["Protocol", ""]];
    const shown = rows.sort((a, b) => (b.lag ?? -1) - (a.lag ?? -1) || a.group.localeCompare(b.group)).slice(0, MOST_ROWS);
    const hidden = hiddenGroups(cockpit.now);
    return [
      heading([], "Groups"),
      hidden === null ? null : h("p", { class: "why-not", role: "status" }, hidden),
      tiles(
        tile("Groups", words.count(found.count), `${rows.filter((each) => each.state === "Stable").length} stable, ${rows.filter((each) => each.state === "Empty").length} empty`),
        tile("Members", words.count(members), "of all groups"),
        tile("Lag", known.length ? words.count(words.sum(known.map((each) => each.lag))) : words.none, `records, of ${words.counted(known.length, "group")} with offsets`),
        tile("Rebalancing", words.count(rows.filter((each) => /Rebalance/.test(each.state)).length), "groups that wait for members",
          rows.some((each) => /Rebalance/.test(each.state)) ? "busy" : "calm")),
      panel("groups-panel", "All groups", {
        wide: true,
        aside: search("Find groups", filter, (text) => (location.hash = hashOf("groups", [], text ? { filter: text } : {})), "part of a name"),
        why: found.count ? null : "No consumer has joined a group or committed an offset yet. A group appears here with its members and lag as soon as one does.",
      },
      shown.length === 0 ? h("p", { class: "quiet" }, `No group has ${seen(filter)} in its name.`) : table("groups", columns, shown.map((each) => {
        const href = hashOf("groups", [each.group]);
        return {
          href,
          cells: [
            h("a", { href }, seen(each.group)),
            state(each.state),
            words.count(each.members),
            h("span", { title: isShown(each.lag) ? null : (each.why_not ?? null) }, words.count(each.lag)),
            seen(each.protocol_type) || "only commits offsets",
          ],
        };
      })),
      found.count > shown.length && !filter ? h("p", { class: "note" }, `${words.count(found.count - shown.length)} more are not shown: find them by name.`) : null),
    ];
  };

  const transactions = (found) =>
    panel("transactions-panel", "Transactional ids", {
      wide: true,
      aside: h("span", { class: "note" }, words.count(found.count)),
      why: found.count ? null : "No producer uses transactions. Each transactional id appears here with the state of its newest transaction.",
    },
    table("transactions", [["Transactional id", ""], ["State", ""], ["Producer", "number"], ["Coordinator", "number"]],
      found.transactions.slice(0, MOST_ROWS).map((each) => ({
        cells: [seen(each.transactional_id), badge(/Ongoing|Prepare/.test(each.state) ? "busy" : "calm", each.state, "Transactions"), each.producer_id, each.coordinator],
      }))));

  const named = (assignment) => {
    const names = assignment.slice(0, MOST_NAMED).map((of) => `${seen(of.topic)}-${of.partition}`);
    if (assignment.length > MOST_NAMED) names.push(`and ${words.count(assignment.length - MOST_NAMED)} more`);
    return names.join(", ") || "none";
  };

  const group = (found) => {
    const behind = found.partitions.filter((each) => each.lag > 0).length;
    return [
      heading([["Groups", "#groups"]], seen(found.group), state(found.state)),
      tiles(
        tile("Lag", words.count(found.lag), behind ? `records, in ${words.counted(behind, "partition")}` : isShown(found.lag) ? "all read to the end" : "not known"),
        tile("Members", words.count(found.members.length), found.assignment_strategy ? `assignment ${seen(found.assignment_strategy)}` : "no assignment now"),
        tile("Partitions", words.count(found.partitions.length), "with offsets or a member"),
        tile("Coordinator", `broker ${found.coordinator.broker_id}`, seen(`${found.coordinator.host}:${found.coordinator.port}`))),
      panel("members-panel", "Members", {
        wide: true,
        aside: found.members.length > MOST_ROWS ? h("span", { class: "note" }, `the first ${MOST_ROWS}`) : null,
        why: found.members.length ? null : "The group has no members now. Its offsets stay until they expire or are deleted.",
      },
      table("members", [["Member", ""], ["Client", ""], ["Host", ""], ["Partitions", "number"], ["Which", ""]],
        found.members.slice(0, MOST_ROWS).map((each) => ({
          cells: [seen(each.group_instance_id ?? each.consumer_id), seen(each.client_id), seen(each.host), words.count(each.assignment.length), named(each.assignment)],
        })))),
      panel("lag-panel", "Offsets and lag", {
        wide: true,
        why: found.partitions.length ? null : "The group has committed no offset, and no member has a partition.",
      },
      table("lag", [["Partition", ""], ["Committed", "number"], ["Log ends at", "number"], ["Lag", "number"], ["Client", ""]],
        found.partitions.slice(0, MOST_ROWS * 2).map((each) => {
          const href = hashOf("topics", [each.topic, each.partition], each.current_offset === null ? {} : { offset: each.current_offset });
          return {
            href,
            cells: [h("a", { href }, `${seen(each.topic)}-${each.partition}`), each.current_offset ?? words.none,
              each.log_end_offset ?? words.none, each.lag ?? words.none, seen(each.client_id) || words.none],
          };
        }))),
    ];
  };

  cockpit.view("groups", {
    title: "Groups",
    key: "5",
    isLive: true,
    states: ["Groups", "Transactions"],
    keys: [["/", "find a group"]],
    show(view, [name], { query }) {
      const element = h("div", { class: "stack" });
      view.append(element);
      if (name) {
        watch(element, address("/api/groups", { group: name }), group);
        return;
      }
      watch(element, "/api/groups", list(query.get("filter") ?? ""));
      const others = h("div", { class: "stack below" });
      view.append(others);
      load(others, "/api/transactions", transactions);
    },
    hide: rest,
  });
}
