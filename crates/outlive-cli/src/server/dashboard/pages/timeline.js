// @ts-check
// The event log of a run: what happened, when, by whom and on what evidence. Repeated reports are one line.
import { clock, duration, moment } from "../model/text.js";
import { empty, label } from "../view/parts.js";
import { h } from "../view/view.js";

/** Events with equal reports in a row counted together. @param {any[]} events @returns {{event: any, times: number}[]} */
export function grouped(events) {
  const found = [];
  for (const event of events) {
    const last = found.at(-1);
    const isReport = event.from === event.to && !event.reason;
    if (isReport && last && last.event.action === event.action && last.isReport) Object.assign(last, { event, times: last.times + 1 });
    else found.push({ event, times: 1, isReport });
  }
  return found;
}

/** @param {any} story @param {boolean} utc */
export function timelineTab(story, utc) {
  if (!story?.events.length) return empty("Nothing is recorded of it.");
  const began = Date.parse(story.events[0].at);
  return h("ol", { class: "timeline" }, grouped(story.events).map(({ event, times }, index) => {
    const moves = event.from && event.from !== event.to;
    return h("li", { key: index, class: moves || !event.from ? "moves" : "" },
      h("span", { class: "at num", title: moment(event.at, utc) }, clock(event.at, utc), h("span", { class: "quiet" }, ` +${duration(Date.parse(event.at) - began)}`)),
      h("span", { class: "what" }, h("strong", null, event.action.replaceAll("_", " ")), times > 1 ? h("span", { class: "quiet" }, ` ×${times}`) : null, moves ? [" ", label(event.from), " → ", label(event.to)] : !event.from ? [" ", label(event.to)] : null,
        event.reason ? h("span", { class: "reason" }, event.reason) : null),
      h("span", { class: "quiet" }, `attempt ${event.attempt}, by ${event.by.user}@${event.by.host}`));
  }), story.evidence ? h("li", { key: "evidence", class: "moves" }, h("span", { class: "at" }, "now"), h("span", { class: "what" }, h("strong", null, "not recorded yet"), h("span", { class: "reason" }, story.reason ?? "")), null) : null);
}
