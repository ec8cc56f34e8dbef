// The official TypeScript SDK: lists and calls every tool, over the standard input and output, or over HTTP.
// Every answer comes once, and is small.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import assert from "node:assert/strict";

const [tools, how, run, ...words] = process.argv.slice(2);
const require = createRequire(`${tools}/`);
const load = (path) => import(pathToFileURL(require.resolve(`@modelcontextprotocol/sdk/${path}`)).href);
const { Client } = await load("client/index.js");
const inputs = {
  ps: { all: true, limit: 2 }, show: { run }, why: { run }, wait: { runs: [run] }, output: { run }, grep: { run, pattern: "h.llo" }, send: { run: "fed", text: "x" }, queue_show: { run },
  checkpoint_get: { run }, cancel: { all: true, dry_run: true }, resume: { dry_run: true },
  reap: { dry_run: true }, archive: { runs: [run], dry_run: true }, rm: { runs: [run] }, queue_add: { argv: ["true"] }, queue_cancel: { all: true, dry_run: true }, rerun: { run }, run: { argv: ["true"], watch: "20s" },
};
let transport;
if (how === "stdio") {
  const { StdioClientTransport } = await load("client/stdio.js");
  transport = new StdioClientTransport({ command: words[0], args: words.slice(1), env: process.env, stderr: "inherit" });
} else {
  const { StreamableHTTPClientTransport } = await load("client/streamableHttp.js");
  transport = new StreamableHTTPClientTransport(new URL(words[0]), { requestInit: { headers: { Authorization: `Bearer ${words[1]}` } } });
}
const client = new Client({ name: "test", version: "1" });
await client.connect(transport);
const listed = [];
for (let page = await client.listTools(); ; page = await client.listTools({ cursor: page.nextCursor })) {
  listed.push(...page.tools);
  if (!page.nextCursor) break;
}
const refused = [];
for (const tool of listed) {
  const result = await client.callTool({ name: tool.name, arguments: inputs[tool.name] ?? {} });
  const content = JSON.parse(result.content[0].text);
  assert.ok(result.structuredContent === undefined && result.content[0].text.length <= 8192, JSON.stringify(result));
  if (!result.isError) continue;
  assert.ok(content.error.code, JSON.stringify(result));
  refused.push(tool.name);
}
const read = await client.readResource({ uri: `outlive://runs/${run}/output` });
console.log(JSON.stringify({ tools: listed.map((tool) => tool.name), refused, output: read.contents[0].text }));
await client.close();
