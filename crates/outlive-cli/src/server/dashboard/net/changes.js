// @ts-check
// The stream of changes: begun, watched and begun again after a restart of the server, a cut network or a revoked session.

/** How long to wait before the stream is begun again, in milliseconds: longer each time it fails. */
const WAITS = [500, 1000, 2000, 4000, 8000];
/** The server sends something every 5 seconds at least; a stream that is silent for longer than this was cut, in milliseconds. */
const SILENCE = 15_000;
/** How long to wait for the answer whether this browser is signed in: a network may swallow the question, in milliseconds. */
const PROBE = 5_000;
const EVENTS = ["hello", "again", "runs", "workers", "output", "alive"];

export class Changes {
  /** @param {(name: string, text: string) => void} tell */
  constructor(tell) {
    this.tell = tell;
    /** `connecting`, `live`, `offline` or `signed out`. */
    this.state = "connecting";
    this.source = null;
    this.failures = 0;
    this.timer = 0;
    this.silence = 0;
    /** The server did not answer when it was asked last. */
    this.isAway = false;
  }

  start() {
    if (this.source || this.timer) return;
    this.begin();
  }

  /** Begins at once, whatever was waited for. */
  retry() {
    this.stop();
    this.begin();
  }

  stop() {
    clearTimeout(this.timer);
    clearTimeout(this.silence);
    this.timer = 0;
    this.source?.close();
    this.source = null;
  }

  /** @param {string} state */
  become(state) {
    if (this.state === state) return;
    this.state = state;
    this.tell("state", state);
  }

  begin() {
    this.timer = 0;
    const source = new EventSource("/v1/changes");
    this.source = source;
    for (const name of EVENTS) {
      source.addEventListener(name, (event) => {
        if (source !== this.source) return;
        this.failures = 0;
        this.watch(source);
        this.become("live");
        if (name !== "alive") this.tell(name, event.data);
      });
    }
    source.onerror = () => source === this.source && this.failed();
    this.watch(source);
  }

  /** A network that is cut may leave the stream open and silent. @param {EventSource} source */
  watch(source) {
    clearTimeout(this.silence);
    this.silence = /** @type {any} */ (setTimeout(() => source === this.source && this.failed(), SILENCE));
  }

  /** The browser would try again by itself after some failures and never after others; so it always begins anew here. */
  async failed() {
    this.stop();
    this.become("offline");
    const reply = await fetch("/session", { signal: AbortSignal.timeout(PROBE) }).catch(() => null);
    if (this.source || this.timer) return;
    if (reply?.status === 401) return this.become("signed out");
    const isBack = this.isAway && reply !== null;
    this.isAway = reply === null;
    if (isBack) return this.begin();
    // A question is given up sooner than a stream: where the network swallows both, its return is noticed by the former.
    const next = () => (this.isAway ? this.failed() : this.begin());
    this.timer = /** @type {any} */ (setTimeout(next, WAITS[Math.min(this.failures, WAITS.length - 1)]));
    this.failures++;
  }
}
