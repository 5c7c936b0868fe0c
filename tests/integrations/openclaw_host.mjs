// Runs the plugin in a host: OpenClaw's own loader and hook runner (its dist folder is given), or, for "bare", the
// smallest thing that has the same API. Steps come as JSON on stdin; what came of each goes as JSON to stdout.

import path from "node:path";
import { pathToFileURL } from "node:url";

const [dist, plugin, config] = process.argv.slice(2);
const logs = [];
const note = (level) => (text) => logs.push(`${level} ${text}`);
const logger = { debug: () => {}, info: note("info"), warn: note("warn"), error: note("error") };
const load = (...parts) => import(pathToFileURL(path.join(...parts)).href);

const host = dist === "bare" ? await bare() : await openclaw();
const steps = JSON.parse(await new Response(process.stdin).text());
const under_way = []; // the host does not wait for hooks that only look on
const said = [];
for (const step of steps) said.push(await take(step));
await Promise.all(under_way);
process.stdout.write(JSON.stringify({ said, logs }) + "\n", () => process.exit(0));

async function take({ hook, event, ctx, result, error }) {
  if (hook !== "call") {
    under_way.push(host.observe(hook, event, ctx));
    return null;
  }
  const decision = await host.before(event, ctx);
  // What OpenClaw makes of a blocked call also comes back as a result.
  const blocked = { content: [{ type: "text", text: decision?.blockReason }], details: { status: "blocked" } };
  const shown = decision?.block ? blocked : await host.middleware({ ...event, args: event.params, result }, ctx);
  under_way.push(host.observe("after_tool_call", { ...event, result: shown, error }, ctx));
  return { ...decision, shown: shown?.content?.map((part) => part.text) };
}

async function openclaw() {
  const { loadOpenClawPlugins } = await load(dist, "plugins/loader.js");
  const { getGlobalHookRunner } = await load(dist, "plugins/hook-runner-global.js");
  const { createAgentToolResultMiddlewareRunner } = await load(dist, "plugin-sdk/agent-harness.js");
  const entry = { enabled: true, config: JSON.parse(config) };
  const plugins = { load: { paths: [plugin] }, allow: ["streamguard"], entries: { streamguard: entry } };
  const registry = loadOpenClawPlugins({ config: { plugins }, onlyPluginIds: ["streamguard"], logger });
  const loaded = registry.plugins.find(({ id }) => id === "streamguard");
  if (loaded?.status !== "loaded") throw new Error(`not loaded: ${loaded?.error}`);
  const runner = getGlobalHookRunner();
  const observers = {
    after_tool_call: "runAfterToolCall",
    before_compaction: "runBeforeCompaction",
    after_compaction: "runAfterCompaction",
    session_end: "runSessionEnd",
  };
  return {
    before: (event, ctx) => runner.runBeforeToolCall(event, ctx),
    observe: (hook, event, ctx) => runner[observers[hook]](event, ctx),
    middleware: (event, ctx) =>
      createAgentToolResultMiddlewareRunner({ ...ctx, runtime: "openclaw" }).applyToolResultMiddleware(event),
  };
}

async function bare() {
  const hooks = {};
  let middleware;
  const { default: entry } = await load(plugin, "index.js");
  entry.register({
    pluginConfig: JSON.parse(config),
    logger,
    on: (name, handle) => (hooks[name] = handle),
    registerAgentToolResultMiddleware: (handle) => (middleware = handle),
  });
  return {
    before: (event, ctx) => hooks.before_tool_call(event, ctx),
    observe: (hook, event, ctx) => hooks[hook](event, ctx),
    middleware: async (event, ctx) => (await middleware(event, ctx))?.result ?? event.result,
  };
}
