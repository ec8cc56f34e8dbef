// Output as lines: streams, carriage returns, colours, searches.
import assert from "node:assert/strict";
import { test } from "node:test";
import { PLAIN, overwrite, parts, strip } from "../../src/server/dashboard/model/ansi.js";
import { ERRORS, LONGEST, Lines, columns, matches, nextOf, pattern } from "../../src/server/dashboard/model/lines.js";

const piece = (stream, text) => ({ at: "2026-11-18T08:00:00Z", stream, text, base64: null, left_out: null });
const shown = (...pieces) => {
  const lines = new Lines();
  for (const one of pieces) lines.add([one]);
  return lines.texts;
};

test("t4_05 a carriage return overwrites as in a terminal", () => {
  assert.deepEqual(shown(piece("out", "10%\r20%\nwhole\r\nlast\rover")), ["20%", "whole", "over"]);
  assert.deepEqual(shown(piece("out", "abcdef\rXY\n")), ["XYcdef"]);
  assert.deepEqual(shown(piece("out", "abcdef\r\x1b[KXY\n")), ["XY"]);
  assert.deepEqual(shown(piece("out", "50%\r"), piece("out", "60%\r"), piece("out", "70%\n")), ["70%"], "across pieces");
  assert.deepEqual(shown(piece("out", "one\r"), piece("out", "\ntwo")), ["one", "two"], "a line end in two pieces");
  assert.equal(strip(overwrite("\x1b[31mred\x1b[0m\rgr")), "grd");
  const bar = Array.from({ length: 5000 }, (_, i) => `\r[${"#".repeat(i % 50)}] ${i}`).join("");
  assert.equal(shown(piece("out", bar)).length, 1);
});

test("t4_05 stdout does not continue a line of stderr", () => {
  assert.deepEqual(shown(piece("err", "warn"), piece("out", "out 1\nou"), piece("err", "ing\n"), piece("out", "t 2\n")), ["warning", "out 1", "out 2"]);
});

test("t4_05 background, reverse, strike and all colours are kept", () => {
  const look = (text) => parts(text, PLAIN).parts.map(({ text: of, style }) => [of, style.fg, style.bg, style.reverse, style.strike]);
  assert.deepEqual(look("\x1b[31;42ma\x1b[7mb\x1b[27;9mc\x1b[0md"), [["a", 1, 2, false, false], ["b", 1, 2, true, false], ["c", 1, 2, false, true], ["d", null, null, false, false]]);
  assert.deepEqual(look("\x1b[38;5;208mo\x1b[48;2;1;2;300mt\x1b[97;104mu"), [["o", "rgb(255 135 0)", null, false, false], ["t", "rgb(255 135 0)", "rgb(1 2 255)", false, false], ["u", 15, 12, false, false]]);
  const lines = new Lines();
  lines.add([piece("out", "\x1b[32mgreen\nstill\x1b[0m\nplain\n"), piece("out", "cut \x1b[3"), piece("out", "1mred\x1b[m\n")]);
  assert.deepEqual([0, 1, 2, 3].map((line) => lines.parts(line).map(({ text, style }) => [text, style.fg])), [[["green", 2]], [["still", 2]], [["plain", null]], [["cut ", null], ["red", 1]]]);
  assert.equal(strip("\x1b]0;title\x07\x1b[2Jtext\x1b(B\u202e"), "text");
  assert.equal(strip("\u28ff\u2800\u{e0041}\u115f\u28ff"), "\u28ff \u28ff", "plots keep their columns");
});

test("a line may change as long as its stream has not ended it", () => {
  const lines = new Lines();
  const settled = (...added) => (lines.add(added), [lines.settled, lines.length]);
  assert.deepEqual(settled(piece("out", "one\ntwo")), [1, 2]);
  assert.deepEqual(settled(piece("err", "a\nb\nc\n")), [1, 5], "stdout may still write to its second line");
  assert.deepEqual(settled(piece("out", "!\n")), [5, 5]);
});

test("t8_08 a line without an end costs no more than its length", () => {
  const lines = new Lines();
  const long = "x".repeat(1 << 20);
  for (let i = 0; i < 8; i++) lines.add([piece("out", long)]);
  assert.equal(lines.texts.reduce((sum, text) => sum + text.length, 0), 8 << 20);
  assert.equal(lines.length, (8 << 20) / LONGEST);
  for (const text of ["\x1b[".repeat(1 << 16), "\x1b]".repeat(1 << 16), "\x1b".repeat(1 << 17), "\x1b[1;".repeat(1 << 15)]) assert.ok(strip(text).length <= text.length);
});

test("what is not text or not stored is a remark", () => {
  const lines = new Lines();
  lines.add([piece("out", "a"), { ...piece("out", null), left_out: 12 }, { ...piece("err", null), base64: "AAAA" }, piece("out", "b")]);
  assert.deepEqual(lines.texts, ["a", "[12 bytes are not stored]", "[3 bytes that are no text]", "b"]);
});

test("a search finds lines, and goes on at the other end", () => {
  const texts = ["Error: one", "fine", "an error", "ERROR 3", "failed to open", "(.*)"];
  assert.deepEqual(matches(texts, pattern("error")), [0, 2, 3]);
  assert.deepEqual(matches(texts, pattern("Error")), [0]);
  assert.deepEqual(matches(texts, pattern("/^an|3$/")), [2, 3]);
  assert.deepEqual(matches(texts, pattern("(.*)")), [5]);
  assert.deepEqual(matches(texts, ERRORS), [0, 2, 3, 4]);
  assert.equal(pattern("/(/"), null);
  assert.deepEqual([[-1, false], [0, false], [3, false], [2, true], [0, true]].map(([line, back]) => nextOf([0, 2, 3], line, back)), [0, 1, 0, 0, 2]);
  assert.deepEqual(["abc", "漢字", "\ta"].map(columns), [3, 4, 9]);
});
