// One stream of changes for all tabs of this browser. A browser opens about six connections to a server, and a stream
// keeps one of them for as long as it lasts.

const tabs = new Set();
let changes = null;
let isLive = false;

function tell(name, text) {
  isLive = name === "hello" || (isLive && name !== "error");
  for (const tab of tabs) tab.postMessage({ name, text });
}

function begin() {
  changes?.close();
  changes = new EventSource("/v1/changes");
  for (const name of ["hello", "again", "runs", "error"]) changes.addEventListener(name, (event) => tell(name, event.data));
}

addEventListener("connect", (event) => {
  const [tab] = event.ports;
  tabs.add(tab);
  tab.onmessage = () => {
    tabs.delete(tab);
    if (tabs.size > 0) return;
    changes?.close();
    changes = null;
    isLive = false;
  };
  if (isLive) tab.postMessage({ name: "hello" });
  else if (!changes || changes.readyState === EventSource.CLOSED) begin();
});
