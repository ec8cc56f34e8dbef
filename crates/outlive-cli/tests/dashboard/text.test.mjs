// Texts for people, routes, queries, schedules and comparisons.
import assert from "node:assert/strict";
import { test } from "node:test";
import { ago, commandLine, duration, moment, quote, size, visible, words } from "../../src/server/dashboard/model/text.js";
import { keyOf, link, parse } from "../../src/server/dashboard/model/route.js";
import { fields, fits, inOrder, read, write } from "../../src/server/dashboard/model/query.js";
import { describe, values } from "../../src/server/dashboard/model/cron.js";
import { rows, stateOf, wordDiff } from "../../src/server/dashboard/model/compare.js";
import { layout } from "../../src/server/dashboard/model/graph.js";
import { asCommand, needsAttention, remaining, word } from "../../src/server/dashboard/model/run.js";

const run = { id: "a", name: "train", kind: "command", labels: { team: "ml" }, command: ["python", "train.py", "--lr", "3"], cwd: "/my dir", state: "failed", health: null, can: [], created_at: "2026-11-18T08:00:00Z", archived: false, step_of: null,
  started_at: "2026-11-18T08:00:00Z", ended_at: null, duration_ms: null, progress_done: 25, progress_total: 100, signal: null, exit_code: 1, reason: null, host: "h", created_by: "u@h", attempt: 1, steps: [] };

test("t4_08 a duration never has 60 seconds, and nothing is 0.0s", () => {
  assert.deepEqual([0, 1, 999, 1000, 1500, 9999, 59_999, 60_000, 119_999, 3_599_999, 3_600_000, 86_400_000, 90_000_000].map(duration),
    ["0ms", "1ms", "999ms", "1s", "1.5s", "9.9s", "59s", "1m 0s", "1m 59s", "59m 59s", "1h 0m", "1d 0h", "1d 1h"]);
  for (let ms = 0; ms < 8_000_000; ms += 977) assert.doesNotMatch(duration(ms), /\b60[ms]|^0\.0s/, String(ms));
});

test("moments are the same on every machine, and say the distance", () => {
  assert.equal(moment("2026-11-18T08:05:09Z", true), "2026-11-18 08:05:09 UTC");
  const now = Date.parse("2026-11-18T09:00:00Z");
  assert.deepEqual(["2026-11-18T08:59:55Z", "2026-11-18T09:10:00Z", "2026-11-18T09:00:00Z"].map((at) => ago(at, now)), ["5s ago", "in 10m 0s", "now"]);
  assert.deepEqual([0, 1023, 1536, 1 << 30].map(size), ["0 B", "1023 B", "1.5 KiB", "1.0 GiB"]);
});

test("t4_06 commands are quoted as a shell needs them, and read back", () => {
  const argv = ["echo", "a b", "it's", "", "$HOME", "x=1", "ü"];
  assert.equal(commandLine(argv), "echo 'a b' 'it'\\''s' '' '$HOME' x=1 'ü'");
  assert.deepEqual(words(commandLine(argv)), argv);
  assert.deepEqual(words('a "b \\"c\\" $d" e\\ f'), ["a", 'b "c" $d', "e f"]);
  assert.equal(words("a 'b"), null);
  assert.equal(quote("plain/word"), "plain/word");
  assert.equal(asCommand(run), "cd '/my dir' && outlive run --name train --label team=ml -- python train.py --lr 3");
});

test("hidden characters are written as escapes", () => {
  assert.equal(visible("a\u202eb\x1b\u3164"), "a\\u{202e}b\\u{1b}\\u{3164}");
  assert.equal(visible("\u{e0041}\u{1f600}\u2800"), "\\u{e0041}\u{1f600}\\u{2800}");
});

test("routes are read back from their links", () => {
  assert.equal(link(["run", "a/b", "log"], { stream: "err" }, "L3-L9"), "#/run/a%2Fb/log?stream=err#L3-L9");
  const route = parse("#/run/a%2Fb/log?stream=err#L3-L9");
  assert.deepEqual([route.page, route.id, route.tab, route.query.get("stream"), route.line, route.until], ["run", "a/b", "log", "err", 3, 9]);
  assert.deepEqual([parse("").page, parse("#/").page, parse("#/runs?text=%").page], ["overview", "overview", "runs"]);
  assert.deepEqual([keyOf("#key=0af"), keyOf("#/runs")], ["0af", null]);
});

test("a query is kept in the address and asked of the server", () => {
  const query = read(new URLSearchParams("view=failed&text=tr&label=team%3Dml&since=24h"));
  assert.deepEqual(read(new URLSearchParams(link(["runs"], write(query)).split("?")[1])), query);
  assert.deepEqual(fields(query, 10, null), { all: true, limit: 10, status: ["failed"], labels: ["team=ml"], unarchived: true, text: "tr", since: "24h" });
});

test("t4_08 archived runs fit no list that did not ask for them", () => {
  const now = Date.parse("2026-11-18T09:00:00Z");
  const fit = (text, of) => fits({ ...run, ...of }, read(new URLSearchParams(text)), now);
  assert.deepEqual([fit("view=failed"), fit("view=failed", { archived: true }), fit("view=failed&archived=yes", { archived: true }), fit("view=succeeded")], [true, false, true, false]);
  assert.deepEqual([fit("text=TRAIN.py"), fit("text=nothing"), fit("label=team%3Dml"), fit("label=team%3Dx"), fit("since=30m"), fit("since=2h"), fit("kind=x")], [true, false, true, false, false, true, false]);
  const listed = [["a", 1], ["b", 5], ["c", null], ["d", 1]].map(([id, duration_ms]) => ({ ...run, id, duration_ms, started_at: null }));
  const sorted = (/** @type {string} */ sort) => listed.slice().sort(inOrder(sort, now)).map((one) => one.id).join("");
  // What has no value comes last both ways, and of one value the newest first.
  assert.deepEqual(["", "duration", "-duration"].map(sorted), ["dcba", "dabc", "bdac"]);
});

test("progress tells when a run will be done", () => {
  const now = Date.parse("2026-11-18T08:10:00Z");
  assert.equal(remaining({ ...run, state: "running" }, now), 30 * 60_000);
  assert.equal(remaining(run, now), null);
  assert.deepEqual([{ state: "dead" }, { state: "running", health: "orphaned" }, { state: "running", health: "late" }, { state: "dead", archived: true }].map((of) => needsAttention({ ...run, ...of })), [true, true, false, false]);
});

test("schedules are sentences", () => {
  assert.deepEqual(["cron 0 3 * * *", "cron */15 * * * *", "cron 30 9 * * 1-5", "cron 0 */6 * * *", "cron 5 4 1 * *", "cron * * * * *", "every 1h", "cron 0 0 * * sun", "cron x", "cron 7 * * * *", "cron 0 3 * * * (Europe/Berlin)"].map(describe), [
    "every day at 03:00", "every 15 minutes", "at 09:30 on weekdays", "every 6 hours at minute 0", "at 04:05 on day 1 of the month", "every minute", "every 1h", "at 00:00 on Sunday", "cron x", "every hour at minute 7", "every day at 03:00 (Europe/Berlin)"]);
  assert.deepEqual(values("1-9/3,20", 0), [1, 4, 7, 20]);
});

test("two runs are compared by what is recorded of them", () => {
  const field = (name, left, right, measured = false) => ({ field: name, left, right, equal: JSON.stringify(left) === JSON.stringify(right), measured });
  const answer = {
    fields: [field("duration_ms", 1000, 2500, true), field("command", "a 1", "a 2"), field("labels", { team: "ml" }, {}), field("state", "failed", "succeeded"), field("env HOME_ms", "/a", "/b"), field("signal", null, null), field("kind", "k", "k")],
    steps: [{ name: "fetch", left: { state: "succeeded", duration_ms: 900 }, right: null, equal: false }],
  };
  const found = rows(answer, true);
  assert.deepEqual(found.filter((row) => !row.same).map((row) => [row.name, row.left, row.right, row.ratio].join("|")),
    ["command|a 1|a 2|", "labels|team=ml||", "state|failed|succeeded|", "env HOME_ms|/a|/b|", "step fetch|succeeded 900ms||", "duration|1s|2.5s|×2.50"]);
  assert.deepEqual([found.some((row) => row.name === "signal"), stateOf(answer, "right")], [false, "succeeded"]);
  assert.deepEqual(wordDiff(["a", "b", "c"], ["a", "x", "c"]).map((one) => `${one.in}:${one.word}`), ["both:a", "left:b", "right:x", "both:c"]);
});

test("a list is narrowed to a host and a user, as the server does", () => {
  const now = Date.parse("2026-11-18T09:00:00Z");
  const fit = (text) => fits(run, read(new URLSearchParams(text)), now);
  assert.deepEqual(["host=h", "host=x", "user=u", "user=h", "user=u&host=h"].map(fit), [true, false, true, false, true]);
  const query = read(new URLSearchParams("host=h&user=u"));
  assert.deepEqual([write(query).host, fields(query, 1, null).user], ["h", "u"]);
  assert.equal(word({ state: "pending", can: ["cancel", "unpause"] }), "paused");
});

test("runs that wait stand right of what they wait for", () => {
  const runs = [{ id: "d", waits_for: ["b", "c"] }, { id: "b", waits_for: ["a"] }, { id: "c", waits_for: ["a"] }, { id: "alone", waits_for: [] }];
  const placed = layout(runs, 10);
  assert.deepEqual(Object.fromEntries(placed.places.map(({ id, column }) => [id, column])), { a: 0, b: 1, c: 1, d: 2 });
  assert.deepEqual([placed.columns, placed.rows, placed.edges.length, placed.left], [3, 2, 4, 0]);
  assert.deepEqual(new Set(placed.places.map(({ column, row }) => `${column} ${row}`)).size, 4, "two runs in one place");
  assert.deepEqual([layout(runs, 3).left, layout([], 3).columns], [2, 0]);
  assert.equal(layout([{ id: "x", waits_for: ["y"] }, { id: "y", waits_for: ["x"] }], 10).edges.length, 2, "a circle ends");
});
