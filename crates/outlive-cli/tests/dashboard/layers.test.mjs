// The modules of the dashboard are layers: a module imports only from its own layer and those before it.
import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { dirname, join, normalize } from "node:path";
import { test } from "node:test";

const root = new URL("../../src/server/dashboard/", import.meta.url).pathname;
const LAYERS = ["model", "net", "view", "pages", "."];

test("imports point one way, and every module says what it is responsible for", () => {
  const files = readdirSync(root, { recursive: true }).filter((name) => name.endsWith(".js"));
  assert.ok(files.length > 20);
  for (const file of files) {
    const text = readFileSync(join(root, file), "utf8");
    assert.match(text, /^\/\/ @ts-check\n\/\/ [A-Z`]/, file);
    assert.ok(text.split("\n").length <= 500, `${file} is too long`);
    for (const [, from] of text.matchAll(/^import .* from "(.+)";$/gm)) {
      const target = normalize(join(dirname(file), from));
      assert.ok(LAYERS.indexOf(dirname(target)) <= LAYERS.indexOf(dirname(file)), `${file} imports ${target}`);
    }
  }
});
