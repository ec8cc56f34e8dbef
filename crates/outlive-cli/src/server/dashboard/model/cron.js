// @ts-check
// Schedules for people: `cron 0 3 * * 1-5` and `every 1h` as a sentence. When they come is the server's to say (`upcoming`).

const DAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"];
const RANGES = [[0, 59], [0, 23], [1, 31], [1, 12], [0, 7]];
const NAMES = { sun: 0, mon: 1, tue: 2, wed: 3, thu: 4, fri: 5, sat: 6, jan: 1, feb: 2, mar: 3, apr: 4, may: 5, jun: 6, jul: 7, aug: 8, sep: 9, oct: 10, nov: 11, dec: 12 };
const SHORT = { "@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@weekly": "0 0 * * 0", "@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *" };

/** The values of a field, or null where it is not a field of cron. @param {string} text @param {number} index @returns {number[]|null} */
export function values(text, index) {
  const [low, high] = RANGES[index];
  const found = new Set();
  for (const part of text.toLowerCase().split(",")) {
    const [, range, step] = /^([^/]+)(?:\/(\d+))?$/.exec(part) ?? [];
    if (!range) return null;
    const [from, to] = range === "*" ? [low, high] : bounds(range, step ? high : null);
    if (!Number.isInteger(from) || !Number.isInteger(to) || from < low || to > high) return null;
    for (let value = from; value <= to; value += Number(step ?? 1) || 1) found.add(index === 4 && value === 7 ? 0 : value);
  }
  return [...found].sort((a, b) => a - b);
}

/** @param {string} range @param {number|null} open */
function bounds(range, open) {
  const [from, to] = range.split("-").map((word) => (word in NAMES ? NAMES[word] : Number(word)));
  return [from, to ?? open ?? from];
}

/** @param {string} expression */
function parsed(expression) {
  const text = SHORT[expression.trim()] ?? expression.trim();
  const fields = text.split(/\s+/);
  if (fields.length !== 5) return null;
  const all = fields.map((field, index) => values(field, index));
  return all.every(Boolean) ? { fields, minutes: all[0], hours: all[1], days: all[2], months: all[3], weekdays: all[4] } : null;
}

const two = (/** @type {number} */ n) => String(n).padStart(2, "0");
const list = (/** @type {string[]} */ words) => (words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`);

/** The parts of a schedule: `cron EXPRESSION (ZONE)` or `every DURATION`. @param {string} schedule */
function split(schedule) {
  const [, kind = "", rest = "", zone = ""] = /^(cron|every)\s+(.+?)(?:\s+\(([^)]+)\))?(?:[;,].*missed.*)?$/.exec(schedule.trim()) ?? [];
  return { kind, rest, zone };
}

/** A schedule as a sentence; as it is where it is none that is known. @param {string} schedule */
export function describe(schedule) {
  const { kind, rest, zone } = split(schedule);
  if (kind === "every") return `every ${rest}`;
  const cron = kind === "cron" ? parsed(rest) : null;
  if (!cron) return schedule;
  return zone ? `${sentence(cron)} (${zone})` : sentence(cron);
}

/** @param {any} cron */
function sentence(cron) {
  const [minute, hour, day, month, weekday] = cron.fields;
  const when = times(cron, minute, hour);
  const on = [];
  if (weekday !== "*") on.push(weekday === "1-5" ? "on weekdays" : `on ${list(cron.weekdays.map((/** @type {number} */ one) => DAYS[one]))}`);
  if (day !== "*") on.push(`on day ${list(cron.days.map(String))} of the month`);
  if (month !== "*") on.push(`in ${list(cron.months.map((/** @type {number} */ one) => MONTHS[one - 1]))}`);
  const daily = hour !== "*" && !hour.includes("/") && !on.length ? "every day " : "";
  return `${daily}${when}${on.length ? ` ${on.join(day !== "*" && weekday !== "*" ? " or " : " ")}` : ""}`;
}

/** @param {any} cron @param {string} minute @param {string} hour */
function times(cron, minute, hour) {
  if (hour === "*") {
    if (minute === "*") return "every minute";
    const step = /^\*\/(\d+)$/.exec(minute);
    return step ? `every ${step[1]} minutes` : `every hour at minute ${list(cron.minutes.map(String))}`;
  }
  const step = /^\*\/(\d+)$/.exec(hour);
  if (step && cron.minutes.length === 1) return `every ${step[1]} hours at minute ${cron.minutes[0]}`;
  if (cron.hours.length * cron.minutes.length > 6) return `at minute ${minute} of hour ${hour}`;
  return `at ${list(cron.hours.flatMap((/** @type {number} */ one) => cron.minutes.map((/** @type {number} */ m) => `${two(one)}:${two(m)}`)))}`;
}
