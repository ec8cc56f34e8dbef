// The official client for tasks of MCP (ext-tasks), over the standard input and output, in protocol 2026-07-28: a job that
// succeeds, one that fails, and one that is cancelled.
// Words: the modules, then the command of the server.
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";
import assert from "node:assert/strict";

const [tools, program, ...words] = process.argv.slice(2);
const load = (path) => import(pathToFileURL(`${tools}/node_modules/@modelcontextprotocol/ext-tasks/dist/${path}`).href);
const { withTasks } = await load("client/session.js");
const capabilities = { extensions: { "io.modelcontextprotocol/tasks": {} } };
const framing = {
  "io.modelcontextprotocol/protocolVersion": "2026-07-28",
  "io.modelcontextprotocol/clientInfo": { name: "test", version: "1" },
  "io.modelcontextprotocol/clientCapabilities": capabilities,
};

/** A server, and the port by which the client reaches it. */
function connect() {
  const server = spawn(program, words, { stdio: ["pipe", "pipe", "inherit"] });
  const waiting = new Map();
  const listeners = new Set();
  let count = 0;
  createInterface({ input: server.stdout }).on("line", (line) => {
    const message = JSON.parse(line);
    const waits = waiting.get(message.id);
    if (waits) waits(message.error ? { kind: "error", error: message.error } : { kind: "result", result: message.result });
    else listeners.forEach((listener) => listener(message));
  });
  const port = {
    endpointId: "outlive",
    taskCapabilities: { generation: "v2", capabilities: {} },
    invalidated: false,
    dispatch(request) {
      const id = ++count;
      const params = { ...request.params, _meta: { ...request.params?._meta, ...framing } };
      server.stdin.write(`${JSON.stringify({ ...request, jsonrpc: "2.0", id, params })}\n`);
      return new Promise((answered) => waiting.set(id, answered));
    },
    onServerRequest: () => () => {},
    onNotification: (listener) => (listeners.add(listener), () => listeners.delete(listener)),
    onInvalidated: () => () => {},
  };
  return { port, session: withTasks(port), kill: () => server.kill("SIGKILL") };
}

const first = connect();
const found = await first.port.dispatch({ method: "server/discover", params: {} });
assert.ok(found.result.capabilities.extensions["io.modelcontextprotocol/tasks"], JSON.stringify(found));
const run = (session, script) => session.callTool("run", { argv: ["sh", "-c", script] });
for (const [script, isError, written] of [["sleep 0.5; echo done", false, "done\n"], ["sleep 0.5; exit 3", true, ""]]) {
  const { outcome } = await (await run(first.session, script)).settle();
  assert.deepEqual([outcome.status, outcome.result.isError], ["completed", isError], JSON.stringify(outcome));
  assert.equal(JSON.parse(outcome.result.content[0].text).output ?? "", written);
}
const long = await run(first.session, "sleep 300");
await long.cancel();
const { outcome } = await long.settle();
assert.equal(outcome.status, "cancelled", JSON.stringify(outcome));
await first.session.close();
first.kill();
console.log("3 tasks settled");
process.exit(0);
