// @ts-check
// Changes as they happen, from the worker that all tabs share or, without one, from a stream of this page.
import { Changes } from "./changes.js";

/**
 * Listens to changes. Answers with a function that begins the stream again at once, for a page that was signed in.
 * @param {(name: string, text: string) => void} heard
 * @returns {() => void}
 */
export function listen(heard) {
  let again = globalThis.SharedWorker ? share(heard, () => (again = alone(heard))) : alone(heard);
  addEventListener("online", () => again());
  return () => again();
}

/** A stream of this page. @param {(name: string, text: string) => void} heard @returns {() => void} */
function alone(heard) {
  const changes = new Changes(heard);
  changes.start();
  return () => changes.retry();
}

/** The stream that all tabs share. @param {(name: string, text: string) => void} heard @param {() => void} broken is called where the worker cannot be started @returns {() => void} */
function share(heard, broken) {
  const worker = new SharedWorker("/assets/net/live.js", { type: "module" });
  const { port } = worker;
  worker.onerror = () => {
    worker.onerror = null;
    port.close();
    broken();
  };
  port.onmessage = ({ data }) => heard(data.name, data.text);
  addEventListener("pagehide", () => port.postMessage("leave"));
  // A page that the browser kept aside has left the stream.
  addEventListener("pageshow", (event) => event.persisted && location.reload());
  return () => port.postMessage("again");
}
