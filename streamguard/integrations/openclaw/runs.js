// What is known of the runs: in which order their events go out, what the guard said, and which run a session is at.

const MOST_RUNS = 1000; // the least recently active are forgotten first
const MOST_CALLS = 256; // of a run, that wait for their results

export class Run {
  constructor(id) {
    this.id = id;
    this.abort = null; // the message of the verdict that ended it
    this.refused = new Set(); // calls that did not run: what comes back of them is our own message
    this.warnings = new Map(); // call → what to put before the model with its result
    this.tail = Promise.resolve();
  }

  /** Do something after all that was begun for this run before: the guard must see results before the next call. */
  after(work) {
    const done = this.tail.then(work);
    this.tail = done.catch(() => {});
    return done;
  }

  refuse(callId) {
    this.refused.add(callId);
    if (this.refused.size > MOST_CALLS) this.refused.delete(this.refused.values().next().value);
  }

  warn(callId, message) {
    this.warnings.set(callId, message);
    if (this.warnings.size > MOST_CALLS) this.warnings.delete(this.warnings.keys().next().value);
  }
}

export class Runs {
  constructor() {
    this.runs = new Map(); // by id, the least recently active first
    this.sessions = new Map(); // session key or id → id of its latest run
  }

  /** Return the run that a hook is about, a new one if need be; undefined if the host does not say. */
  of(event, ctx) {
    const id = event.runId ?? ctx.runId ?? ctx.sessionId ?? ctx.sessionKey;
    if (typeof id !== "string" || !id.trim()) return undefined;
    const run = this.runs.get(id) ?? new Run(id);
    this.runs.delete(id);
    this.runs.set(id, run);
    for (const session of sessionsOf(ctx)) {
      this.sessions.delete(session);
      this.sessions.set(session, id);
    }
    forgetOldest(this.runs, MOST_RUNS);
    forgetOldest(this.sessions, 2 * MOST_RUNS);
    return run;
  }

  /** Return the run that a session is at; hooks of compactions name nothing else. */
  at(ctx) {
    const ids = [ctx.runId, ...sessionsOf(ctx).map((session) => this.sessions.get(session))];
    return ids.map((id) => this.runs.get(id)).find((run) => run !== undefined);
  }

  forget(run) {
    this.runs.delete(run.id);
    for (const [session, id] of this.sessions) if (id === run.id) this.sessions.delete(session);
  }
}

function sessionsOf(ctx) {
  return [ctx.sessionKey, ctx.sessionId].filter((session) => typeof session === "string" && session);
}

function forgetOldest(map, most) {
  while (map.size > most) map.delete(map.keys().next().value);
}
