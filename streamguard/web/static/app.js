"use strict";
// Everything that comes from the topics is put into the page as text: names of runs and tools are whatever agents say.

const $ = (id) => document.getElementById(id);
const COLOURS = ["--c0", "--c1", "--c2", "--c3", "--c4", "--c5"];
const STALE_MS = 5000;
let state = null, heard = 0, found = null, picked = null, open = null, listed = [];

function el(tag, cls, text) {
  const made = document.createElement(tag);
  if (cls) made.className = cls;
  if (text !== undefined && text !== null) made.textContent = text;
  return made;
}
const number = (value) => value === null || value === undefined ? "–" : value.toLocaleString("en-US");
const clock = (ms) => new Date(ms).toLocaleTimeString("en-GB");
function seconds(value) {
  if (value === null || value === undefined) return "–";
  return value < 1 ? `${Math.round(value * 1000)} ms` : `${value.toFixed(1)} s`;
}
function tag(verdict) {
  return verdict.shadow ? el("span", "tag shadow", `${verdict.action} · shadow`) : el("span", `tag ${verdict.action}`, verdict.action);
}

function show() {
  if (!state) return;
  $("f-risk").textContent = number(state.risks.length);
  $("f-runs").textContent = number(state.runs);
  $("f-p50").textContent = seconds(state.latency.p50);
  $("f-p99").textContent = seconds(state.latency.p99);
  const lags = state.partitions.map((one) => one.lag).filter((lag) => lag !== null);
  $("f-lag").textContent = lags.length ? number(lags.reduce((sum, lag) => sum + lag, 0)) : "–";
  const workers = new Set(state.partitions.map((one) => one.worker).filter(Boolean));
  $("f-group").textContent = number(workers.size);
  $("f-workers").textContent = `worker${workers.size === 1 ? "" : "s"}, group ${state.group.toLowerCase()}`;
  showRuns();
  showFeed();
  showChart();
  showPartitions();
}

function showRuns() {
  const search = $("q").value.trim();
  listed = search ? found || [] : state.risks;
  $("risk-title").textContent = search ? "Runs found" : "Runs at risk";
  $("risk-note").textContent = search ? `by run or agent: ${listed.length}` : "closest to a threshold first";
  const body = $("risks").tBodies[0], rows = listed.map(row);
  body.replaceChildren(...rows);
  $("risks").hidden = !listed.length;
  const empty = $("risk-empty");
  empty.hidden = listed.length > 0;
  empty.textContent = state.trouble ? `The topics cannot be read: ${state.trouble}` : search ? "No run or agent of the newest minutes has this in its name."
    : state.events ? "No run repeats itself." : "No events yet. Executors publish them; `streamguard demo --bootstrap HOST:PORT` makes some.";
}

function row(run) {
  const made = el("tr", run.run === picked ? "picked" : ""), near = el("td");
  made.append(el("td", "id", run.run), el("td", "soft", run.agent || ""));
  if (run.risk) {
    const part = Math.min(1, run.risk.count / run.risk.threshold), box = el("div", "near"), bar = el("span", `bar ${part >= 1 ? "full" : part >= 0.6 ? "high" : ""}`), fill = el("i");
    fill.style.width = `${part * 100}%`;
    bar.append(fill);
    box.append(el("b", "", `${run.risk.count} of ${run.risk.threshold}`), bar, el("em", "", `${run.risk.action === "warn" ? "warning" : "block"} · ${run.risk.detector} · ${run.risk.tool}`));
    near.append(box);
  }
  const last = el("td");
  last.append(el("span", `tag ${run.state}`, run.state));
  made.append(near, el("td", "n", number(run.calls)), last);
  made.addEventListener("click", () => openRun(run.run));
  return made;
}

function showFeed() {
  const feed = $("feed"), focused = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.verdict : null;
  feed.replaceChildren(...state.verdicts.map((verdict) => {
    const made = el("li"), about = el("button");
    about.type = "button";
    about.dataset.verdict = verdict.verdict_id;
    about.append(el("span", "id", verdict.run_id), el("em", "", `${verdict.detector || ""} · ${verdict.tool || ""} · ${verdict.count ?? ""} of ${verdict.threshold ?? ""}`));
    about.addEventListener("click", () => openRun(verdict.run_id));
    const what = el("span");
    what.append(tag(verdict));
    made.append(el("time", "", clock(verdict.source.timestamp)), what, about);
    return made;
  }));
  $("feed-empty").hidden = state.verdicts.length > 0;
  if (focused) { const again = feed.querySelector(`[data-verdict="${CSS.escape(focused)}"]`); if (again) again.focus(); }
}

function showChart() {
  const chart = $("chart"), names = Object.keys(state.minutes), made = [];
  const sums = Array.from({ length: 60 }, (_, minute) => names.reduce((sum, name) => sum + state.minutes[name][minute], 0));
  const most = Math.max(4, ...sums), below = new Array(60).fill(0);
  names.forEach((name, index) => state.minutes[name].forEach((count, minute) => {
    if (!count) return;
    const bar = document.createElementNS("http://www.w3.org/2000/svg", "rect"), height = 140 * count / most;
    const places = { x: minute * 10 + 1, width: 8, y: 145 - height - below[minute], height };
    for (const [key, value] of Object.entries(places)) bar.setAttribute(key, value);
    bar.style.fill = `var(${COLOURS[index % COLOURS.length]})`;
    below[minute] += height;
    made.push(bar);
  }));
  const ground = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  for (const [key, value] of Object.entries({ x: 0, y: 145, width: 600, height: 1 })) ground.setAttribute(key, value);
  ground.style.fill = "var(--line)";
  chart.replaceChildren(ground, ...made);
  $("legend").replaceChildren(...(names.length ? names : []).map((name, index) => {
    const item = el("li"), mark = el("i");
    mark.style.background = `var(${COLOURS[index % COLOURS.length]})`;
    item.append(mark, document.createTextNode(`${name} ${number(state.minutes[name].reduce((sum, count) => sum + count, 0))}`));
    return item;
  }));
}

function showPartitions() {
  $("part-note").textContent = `group ${state.group.toLowerCase()}`;
  $("parts").tBodies[0].replaceChildren(...state.partitions.map((one) => {
    const made = el("tr"), what = one.state;
    made.append(el("td", "n", one.partition), el("td", "id soft", one.worker || "–"), el("td", "n", number(one.committed)), el("td", "n", number(one.end)), el("td", "n", number(one.lag)), el("td", "soft", what));
    return made;
  }));
}

async function openRun(run) {
  open = run;
  if (!$("run").open) $("run").showModal();
  await refreshRun();
}

async function refreshRun() {
  if (!open) return;
  const asked = open, answer = await fetch(`/api/run?run_id=${encodeURIComponent(asked)}`), run = await answer.json();
  if (asked !== open) return; // another one was opened, or none
  $("run-title").textContent = open;
  if (!answer.ok) { $("run-note").textContent = run.error; $("steps").tBodies[0].replaceChildren(); return; }
  const risk = run.risk ? `, ${run.risk.count} of ${run.risk.threshold} to a ${run.risk.action === "warn" ? "warning" : "block"} by ${run.risk.detector}` : "";
  $("run-note").textContent = `${run.agent ? `agent ${run.agent}, ` : ""}partition ${run.partition}, ${number(run.calls)} calls since ${clock(run.begun)}, ${run.state}${risk}`;
  const counts = new Map(), hues = new Map(), letters = new Map();
  for (const step of run.steps) if (step.kind === "tool_call") counts.set(step.key, (counts.get(step.key) || 0) + 1);
  const rows = run.steps.map((step) => stepRow(step, counts, hues, letters));
  const box = document.querySelector("#run .scroll"), atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 40 || !$("steps").tBodies[0].rows.length;
  $("steps").tBodies[0].replaceChildren(...rows);
  if (atEnd) box.scrollTop = box.scrollHeight;
}

function stepRow(step, counts, hues, letters) {
  const stopped = step.verdicts.some((verdict) => !verdict.shadow && verdict.action !== "warn" && verdict.action !== "allow");
  const made = el("tr", `${stopped ? "stopped" : ""} ${step.kind === "tool_call" ? "" : "minor"}`), what = el("td"), said = el("td");
  if (step.kind === "tool_call") {
    const repeats = counts.get(step.key) > 1, call = el("span", `call ${repeats ? "" : "once"}`);
    if (repeats && !hues.has(step.key)) hues.set(step.key, hues.size);
    call.style.setProperty("--hue", (hues.get(step.key) * 67 + 210) % 360);
    call.append(el("i", "", repeats ? String(hues.get(step.key) + 1) : "·"), el("b", "", step.tool), el("span", "soft id", step.call_id));
    what.append(call);
  } else what.append(el("span", "soft", step.kind === "tool_result" ? "result" : step.kind === "run_ended" ? "the run ended" : step.kind === "blocked" ? "blocked: nothing ran" : step.kind));
  if (step.outcome && !letters.has(step.outcome)) letters.set(step.outcome, letters.size);
  const order = letters.get(step.outcome), letter = step.outcome ? String.fromCharCode(65 + order % 26) + (order > 25 ? Math.floor(order / 26) + 1 : "") : "";
  for (const verdict of step.verdicts) said.append(tag(verdict), el("span", "soft", ` ${verdict.detector || ""} ${verdict.count ?? ""} `));
  made.append(el("td", "n soft", step.offset), el("td", "soft", clock(step.time)), what, el("td", "", letter), said);
  return made;
}

function closeRun() { open = null; $("run").close(); }

async function search() {
  const text = $("q").value.trim();
  found = text ? await (await fetch(`/api/runs?q=${encodeURIComponent(text)}`)).json() : null;
  if (text === $("q").value.trim() && state) showRuns();
}

function pick(step) {
  if (!listed.length) return;
  const at = listed.findIndex((run) => run.run === picked), next = Math.min(listed.length - 1, Math.max(0, at + step));
  picked = listed[next].run;
  showRuns();
  const chosen = document.querySelector("#risks tr.picked");
  if (chosen) chosen.scrollIntoView({ block: "nearest" });
}

function theme() {
  const dark = getComputedStyle(document.documentElement).colorScheme === "dark" || (!document.documentElement.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("theme", document.documentElement.dataset.theme); } catch { /* a browser that keeps nothing */ }
}

document.addEventListener("keydown", (event) => {
  const typing = event.target instanceof HTMLInputElement;
  if (event.key === "Escape") { if (typing) { $("q").value = ""; $("q").blur(); search(); } else if ($("run").open) closeRun(); return; }
  if (typing && event.key === "Enter") { event.preventDefault(); if (listed.length) { picked = listed[0].run; $("q").blur(); openRun(picked); } return; }
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const keys = { "/": () => $("q").focus(), j: () => pick(1), ArrowDown: () => pick(1), k: () => pick(-1), ArrowUp: () => pick(-1), t: theme, "?": () => $("keys").showModal(),
    Enter: () => { if (picked && !$("run").open && document.activeElement === document.body) openRun(picked); } };
  if (keys[event.key]) { if (event.key !== "Enter") event.preventDefault(); keys[event.key](); }
});
$("search").addEventListener("submit", (event) => event.preventDefault());
$("q").addEventListener("input", search);
$("theme").addEventListener("click", theme);
$("help").addEventListener("click", () => $("keys").showModal());
$("close").addEventListener("click", closeRun);
$("run").addEventListener("close", () => { open = null; });
$("keys").addEventListener("click", () => $("keys").close());
try { const kept = localStorage.getItem("theme"); if (kept) document.documentElement.dataset.theme = kept; } catch { /* likewise */ }

const source = new EventSource("/api/stream");
source.onmessage = (event) => {
  state = JSON.parse(event.data);
  heard = Date.now();
  show();
  if ($("q").value.trim()) search();
  refreshRun();
};
source.onerror = () => { if (source.readyState === EventSource.CLOSED) location.reload(); }; // its session is over: to the login
setInterval(() => {
  const link = $("link"), live = heard && Date.now() - heard < STALE_MS;
  link.className = `link ${live && !state.trouble ? "live" : heard || (state && state.trouble) ? "stale" : ""}`;
  link.lastElementChild.textContent = !heard ? "connecting" : !live ? `no news since ${clock(heard)}` : state.trouble ? "Kafka not readable" : "live";
}, 500);
