// @ts-check
// One stream of changes for all tabs of this browser (a SharedWorker). A browser opens six connections to a server over HTTP/1.1,
// and a stream keeps one of them for as long as it lasts. `stream.js` uses the same code in a page without SharedWorker.
import { Changes } from "./changes.js";

const tabs = new Set();
const changes = new Changes((name, text) => {
  for (const tab of tabs) tab.postMessage({ name, text });
});

addEventListener("connect", (event) => {
  const [tab] = /** @type {any} */ (event).ports;
  tabs.add(tab);
  tab.onmessage = (/** @type {MessageEvent} */ { data }) => {
    if (data === "again") return changes.retry();
    tabs.delete(tab);
    if (!tabs.size) changes.stop();
  };
  tab.postMessage({ name: "state", text: changes.state });
  changes.start();
});
