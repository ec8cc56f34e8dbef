// @ts-check
// Changes as they happen, from the worker that all tabs share or, without one, from a stream of this page.
import { Changes } from "./changes.js";

/**
 * Listens to changes. Answers with a function that begins the stream again at once, for a page that was signed in.
 * @param {(name: string, text: string) => void} heard
 * @returns {() => void}
 */
export function listen(heard) {
  if (!globalThis.SharedWorker) {
    const changes = new Changes(heard);
    changes.start();
    addEventListener("online", () => changes.retry());
    return () => changes.retry();
  }
  const { port } = new SharedWorker("/assets/net/live.js", { type: "module" });
  port.onmessage = ({ data }) => heard(data.name, data.text);
  addEventListener("pagehide", () => port.postMessage("leave"));
  // A page that the browser kept aside has left the stream.
  addEventListener("pageshow", (event) => event.persisted && location.reload());
  addEventListener("online", () => port.postMessage("again"));
  return () => port.postMessage("again");
}
