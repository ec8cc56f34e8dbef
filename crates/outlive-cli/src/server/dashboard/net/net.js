// @ts-check
// Requests to the server: operations and the session. What the server refuses is an error with its words.

/** What the server refused, or that it could not be reached (`status` 0). */
export class Refused extends Error {
  /** @param {number} status @param {string} message @param {string|null} [hint] @param {string} [code] */
  constructor(status, message, hint = null, code = "") {
    super(message);
    this.status = status;
    this.hint = hint;
    this.code = code;
  }
}

/** Called when a request shows that this browser is signed out. */
export const signedOut = new EventTarget();

/** How long to wait for an answer, in milliseconds. */
const LONGEST = 60_000;

/** @param {string} method @param {string} path @param {any} [fields] @returns {Promise<any>} */
async function ask(method, path, fields) {
  let reply;
  try {
    const body = fields === undefined ? undefined : JSON.stringify(fields);
    reply = await fetch(path, { method, headers: body ? { "Content-Type": "application/json" } : {}, body, signal: AbortSignal.timeout(LONGEST) });
  } catch (error) {
    const isLate = /** @type {Error} */ (error).name === "TimeoutError";
    throw new Refused(0, isLate ? "The server did not answer within a minute; whether it was done is not known." : "The server cannot be reached.");
  }
  const text = await reply.text().catch(() => "");
  /** @type {any} */
  let answer = {};
  try {
    answer = text ? JSON.parse(text) : {};
  } catch {
    throw new Refused(reply.status, `The server answered ${reply.status} with something that is not JSON.`);
  }
  if (reply.ok) return answer;
  const { message = reply.statusText, hint = null, code = "" } = answer.error ?? {};
  if (reply.status === 401 && path !== "/session") signedOut.dispatchEvent(new Event("signedout"));
  throw new Refused(reply.status, message, hint, code);
}

/** Calls an operation, such as `queue list`. @param {string} operation @param {Record<string, any>} [fields] @returns {Promise<any>} */
export function call(operation, fields = {}) {
  return ask("POST", `/v1/${operation.replaceAll(" ", "/")}`, fields);
}

/** @typedef {{user: string, role: string, registry: string, version: string, everywhere: boolean, operations: string[]}} Session */

/** Who this browser is to the server. @returns {Promise<Session>} */
export function session() {
  return ask("GET", "/session");
}

/** Signs in with the key of a link or with a token. @param {{key: string}|{token: string}} credential */
export function signIn(credential) {
  return ask("POST", "/session", credential);
}

/** Ends the session of this browser, or of all browsers. @param {boolean} everywhere */
export function signOut(everywhere) {
  return ask("DELETE", everywhere ? "/session?everywhere=true" : "/session");
}

/** A link that signs another browser in once. @returns {Promise<{link: string}>} */
export function newLink() {
  return ask("POST", "/session/link", {});
}

/** The description of the API. @returns {Promise<any>} */
export function describe() {
  return ask("GET", "/v1/openapi.json");
}
