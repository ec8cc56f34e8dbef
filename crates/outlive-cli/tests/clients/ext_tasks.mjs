// The official client for tasks of MCP (ext-tasks), in protocol 2026-07-28, over the standard input and output or over HTTP: a job
// that succeeds, one that fails, one that is cancelled, and a run that asks whether to continue.
// Words: the modules, the run that asks, then the command of the server, or its URL and token.
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";
import assert from "node:assert/strict";

const [tools, asking, program, ...words] = process.argv.slice(2);
const load = (path) => import(pathToFileURL(`${tools}/node_modules/@modelcontextprotocol/ext-tasks/dist/${path}`).href);
const { withTasks } = await load("client/session.js");
const capabilities = { elicitation: {}, extensions: { "io.modelcontextprotocol/tasks": {} } };
const version = "2026-07-28";
const framing = {
  "io.modelcontextprotocol/protocolVersion": version,
  "io.modelcontextprotocol/clientInfo": { name: "test", version: "1" },
  "io.modelcontextprotocol/clientCapabilities": capabilities,
};

/** Sends messages over the standard input. @param {(message: object) => void} hear */
function speak(hear) {
  const server = spawn(program, words, { stdio: ["pipe", "pipe", "inherit"] });
  createInterface({ input: server.stdout }).on("line", (line) => hear(JSON.parse(line)));
  return { send: (message) => server.stdin.write(`${JSON.stringify(message)}\n`), kill: () => server.kill("SIGKILL") };
}

/** Posts messages. Each is answered by a stream of its own. @param {(message: object) => void} hear */
function post(hear) {
  const [token] = words;
  const send = async (message) => {
    const name = message.params.name ?? message.params.uri ?? message.params.taskId;
    const headers = {
      authorization: `Bearer ${token}`, "content-type": "application/json", accept: "application/json, text/event-stream",
      "mcp-protocol-version": version, "mcp-method": message.method, ...(name ? { "mcp-name": name } : {}),
    };
    const answer = await fetch(program, { method: "POST", headers, body: JSON.stringify(message) });
    let text = "";
    if (answer.headers.get("content-type")?.startsWith("application/json")) return hear(await answer.json());
    for await (const part of answer.body.pipeThrough(new TextDecoderStream())) {
      const events = (text + part).split("\n\n");
      text = events.pop();
      for (const event of events) {
        const data = event.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trim()).join("\n");
        if (data) hear(JSON.parse(data));
      }
    }
  };
  return { send, kill: () => {} };
}

/** A server, and the port by which the client reaches it. */
function connect() {
  const waiting = new Map();
  const listeners = new Set();
  let count = 0;
  const server = (program.startsWith("http") ? post : speak)((message) => {
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
      const answer = new Promise((answered) => waiting.set(id, answered));
      server.send({ jsonrpc: "2.0", id, method: request.method, params });
      return answer;
    },
    onServerRequest: () => () => {},
    onNotification: (listener) => (listeners.add(listener), () => listeners.delete(listener)),
    onInvalidated: () => () => {},
  };
  const asked = [];
  const onInputRequest = async (request) => (asked.push(request), { action: "accept", content: { next: "continue" } });
  return { port, session: withTasks(port, { onInputRequest }), asked, kill: server.kill };
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
// A client that subscribes is notified, beside what it asks for itself.
const heard = [];
first.port.onNotification((message) => heard.push(message));
const listened = await run(first.session, "sleep 1");
const { taskId } = listened.handle;
const ended = first.port.dispatch({ method: "subscriptions/listen", params: { notifications: { taskIds: [taskId] } } });
assert.equal((await listened.settle()).outcome.status, "completed");
assert.equal((await ended).kind, "result");
assert.deepEqual(heard.map(({ method }) => method), ["notifications/subscriptions/acknowledged", "notifications/tasks"]);
assert.deepEqual([heard[1].params.taskId, heard[1].params.status], [taskId, "completed"]);
const reference = { endpointId: "outlive", generation: "v2", taskId: asking, originalOperation: "tools/call" };
const gate = await (await first.session.resumeTask(reference)).settle();
assert.equal(gate.outcome.status, "completed", JSON.stringify(gate));
assert.deepEqual(first.asked.map(({ kind }) => kind), ["elicitation"]);
assert.match(first.asked[0].params.message, /is suspended: deploy to production\?\. Continue it, or cancel it\?$/);
await first.session.close();
first.kill();
console.log("5 tasks settled");
process.exit(0);
