// Guards OpenClaw's agents through the streamguard gateway.
//
// A handler of before_tool_call that throws, or takes longer than the host allows, blocks the call: nothing here throws,
// and the gateway is given up earlier.

import { createHash } from "node:crypto";

import { Gateway } from "./gateway.js";
import { Runs } from "./runs.js";

const DEFAULT_URL = "http://127.0.0.1:8321";
const TIMEOUT_MS = 3000; // the gateway gives the guard 2 s
const LARGEST = 256 * 1024; // characters of arguments or of a result; what is larger goes as its hash
const STOPPED = "streamguard has stopped this call.";

export default {
  id: "streamguard",
  name: "streamguard",
  description: "Puts every tool call before the streamguard gateway, and obeys it.",
  register(api) {
    const config = api.pluginConfig ?? {};
    const guard = new Guard(
      new Gateway({
        url: config.url || process.env.STREAMGUARD_GATEWAY_URL || DEFAULT_URL,
        token: config.token || process.env.STREAMGUARD_GATEWAY_TOKEN,
        timeoutMs: config.timeoutMs || TIMEOUT_MS,
        logger: api.logger,
      }),
    );
    const quietly = (handle) => async (event, ctx) => {
      try {
        return await handle.call(guard, event ?? {}, ctx ?? {});
      } catch (error) {
        api.logger.warn(`streamguard: ${error?.name ?? "error"} in the plugin; the call goes ahead`);
        return undefined;
      }
    };
    api.on("before_tool_call", quietly(guard.before));
    api.on("after_tool_call", quietly(guard.after));
    api.on("before_compaction", quietly(guard.compacts));
    api.on("after_compaction", quietly(guard.compacted));
    api.on("session_end", quietly(guard.ended));
    api.registerAgentToolResultMiddleware?.(quietly(guard.warned), { runtimes: ["openclaw"] });
  },
};

class Guard {
  constructor(gateway) {
    this.gateway = gateway;
    this.runs = new Runs();
    this.tokensBefore = new WeakMap(); // run → tokens before the compaction under way
  }

  /** Ask the guard before a tool runs; return the block, or nothing. */
  async before(event, ctx) {
    const callId = event.toolCallId ?? ctx.toolCallId;
    const run = this.runs.of(event, ctx);
    if (run === undefined || !callId) return undefined;
    if (run.abort !== null) {
      run.refuse(callId);
      return { block: true, blockReason: run.abort };
    }
    const call = { ...scope("tool_call", run, ctx), call_id: callId, tool: event.toolName };
    const verdict = await run.after(() => this.gateway.ask({ ...call, ...sized("args", event.params) }));
    const message = verdict?.message || STOPPED;
    if (verdict?.action === "warn") run.warn(callId, message);
    if (verdict?.action !== "block" && verdict?.action !== "abort") return undefined;
    run.refuse(callId);
    if (verdict.action === "abort") run.abort = message;
    else void run.after(() => this.gateway.tell({ ...scope("tool_result", run, ctx), call_id: callId, status: "blocked" }));
    return { block: true, blockReason: message };
  }

  /** Tell the guard what came of a call. */
  async after(event, ctx) {
    const callId = event.toolCallId ?? ctx.toolCallId;
    const run = this.runs.of(event, ctx);
    if (run === undefined || !callId || run.refused.delete(callId)) return;
    const outcome = event.error ? { error: event.error } : sized("result", withoutWarning(run, callId, event.result));
    run.warnings.delete(callId);
    await run.after(() => this.gateway.tell({ ...scope("tool_result", run, ctx), call_id: callId, ...outcome }));
  }

  /** Put a warning before the model, below the result of the call that it is about. */
  async warned(event, ctx) {
    const message = this.runs.at(ctx)?.warnings.get(event.toolCallId);
    if (!message || !Array.isArray(event.result?.content)) return undefined;
    return { result: { ...event.result, content: [...event.result.content, { type: "text", text: message }] } };
  }

  async compacts(event, ctx) {
    const run = this.runs.at(ctx);
    if (run !== undefined && Number.isInteger(event.tokenCount)) this.tokensBefore.set(run, event.tokenCount);
  }

  /** Tell the guard that the context was compacted; an attempt that failed does not come here. */
  async compacted(event, ctx) {
    const run = this.runs.at(ctx);
    if (run === undefined) return;
    const tokens = {
      tokens_before: this.tokensBefore.get(run),
      tokens_after: Number.isInteger(event.tokenCount) ? event.tokenCount : undefined,
    };
    this.tokensBefore.delete(run);
    await run.after(() => this.gateway.tell({ ...scope("compaction", run, ctx), ...tokens }));
  }

  /** Tell the guard that a run is over, when its session is; a session that is compacted into a new one goes on. */
  async ended(event, ctx) {
    const run = this.runs.at({ sessionKey: ctx.sessionKey ?? event.sessionKey, sessionId: event.sessionId });
    if (run === undefined || event.reason === "compaction") return;
    this.runs.forget(run);
    await run.after(() => this.gateway.tell({ ...scope("run_ended", run, ctx), reason: event.reason }));
  }
}

function scope(type, run, ctx) {
  return { type, run_id: run.id, agent_id: ctx.agentId, session_id: ctx.sessionId };
}

/** Take our own warning off a result again: it must not look like progress. */
function withoutWarning(run, callId, result) {
  const message = run.warnings.get(callId);
  if (!message || !Array.isArray(result?.content)) return result;
  return { ...result, content: result.content.filter((part) => part?.text !== message) };
}

/** Return a field, or its hash if it is so large that it would be dropped on the way; nothing if it is no JSON. */
function sized(key, value) {
  let text;
  try {
    text = JSON.stringify(value);
  } catch {
    return {};
  }
  if (text === undefined) return {};
  return text.length <= LARGEST ? { [key]: value } : { [`${key}_hash`]: createHash("sha256").update(text).digest("hex") };
}
