// The streamguard gateway: fails open, within a short time, and says so once for an outage. Logs hold no payload.

const PAUSE_MS = 5000; // after a request that got no answer in time, nobody waits for the next ones
const REFUSED = "refuses";

export class Gateway {
  constructor({ url, token, timeoutMs, logger }) {
    this.url = url.replace(/\/+$/, "");
    this.headers = { "content-type": "application/json", ...(token ? { authorization: `Bearer ${token}` } : {}) };
    this.timeoutMs = timeoutMs;
    this.logger = logger;
    this.away = false;
    this.pausedUntil = 0;
  }

  /** Return what the guard says to a call; null: nothing, the call goes ahead. */
  async ask(call) {
    const said = await this.post("/v1/gate", call);
    return said !== null && typeof said === "object" ? said : null;
  }

  /** Publish an event, whatever becomes of it. */
  async tell(event) {
    await this.post("/v1/events?ack=0", event);
  }

  /** Return the answer; null if there is none. Never throws. */
  async post(path, event) {
    if (Date.now() < this.pausedUntil) return null;
    try {
      const response = await fetch(this.url + path, {
        method: "POST",
        headers: this.headers,
        body: JSON.stringify(event),
        signal: AbortSignal.timeout(this.timeoutMs),
      });
      const said = await response.json(); // read in any case: the connection is used again
      if (!response.ok) throw Object.assign(new Error(`status ${response.status}`), { name: REFUSED });
      this.answers();
      return said;
    } catch (error) {
      this.fails(error);
      return null;
    }
  }

  answers() {
    this.pausedUntil = 0;
    if (this.away) this.logger.info("streamguard: the gateway answers again");
    this.away = false;
  }

  fails(error) {
    if (error?.name === "TimeoutError") this.pausedUntil = Date.now() + PAUSE_MS;
    if (this.away) return;
    this.away = true;
    const why = error?.name === REFUSED ? `the gateway refuses, ${error.message}` : "the gateway does not answer";
    this.logger.warn(`streamguard: ${why}; tool calls go ahead unguarded`);
  }
}
