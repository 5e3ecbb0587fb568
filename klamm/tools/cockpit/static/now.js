"use strict";
// The view Now: the newest Now document.
{
  let shown = null;
  const draw = (now) => {
    shown.replaceChildren(
      h("p", {}, now.controller.id === null ? "No controller is known." : `The controller is broker ${now.controller.id}.`),
      h("table", {},
        h("thead", {}, h("tr", {}, h("th", {}, "Broker"), h("th", {}, "Address"), h("th", {}, "State"))),
        h("tbody", {}, now.brokers.map((broker) =>
          h("tr", {},
            h("td", {}, broker.id),
            h("td", {}, broker.host ? `${broker.host}:${broker.port}` : ""),
            h("td", {}, broker.alive ? "alive" : `down: ${broker.why_not}`))))),
      h("ul", {}, now.findings.map((finding) => h("li", {}, finding.text))),
    );
  };
  cockpit.view("now", {
    title: "Now",
    key: "1",
    show(element, rest, { now }) {
      shown = h("div");
      element.append(shown);
      draw(now);
    },
    update(event, data) {
      if (event === "now") draw(data);
    },
    hide() {
      shown = null;
    },
  });
}
