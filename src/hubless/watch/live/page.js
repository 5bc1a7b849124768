// The page: keeps the state that the server sends, and shows it. Everything in it is untrusted and
// becomes text, never markup.

import { Chart, bytes, figure, look, prepare, colour, span } from "./chart.js";
import { MARKS, Strip, sample } from "./strip.js";

const at = (id) => document.getElementById(id);
const runs = new Map();
const charts = new Map();
let top = { name: "hubless", trouble: [], unreachable: "", awaited: "" };
let ahead = 0;
let connected = false;
let heard = false;
let chosen = null;
let axis = "round";

const now = () => Date.now() / 1000 + ahead;
const strip = new Strip(at("strip"), at("strip-caption"), now);

function connect() {
  const source = new EventSource("events");
  const receive = (event, whole) => {
    const message = JSON.parse(event.data);
    ahead = message.now - Date.now() / 1000;
    if (whole) runs.clear();
    for (const path of message.gone) drop(path);
    for (const [path, value] of Object.entries(message.set)) put(path, value);
    connected = heard = true;
    draw();
  };
  source.addEventListener("state", (event) => receive(event, true));
  source.addEventListener("change", (event) => receive(event, false));
  source.addEventListener("error", () => {
    connected = false;
    drawStatus();
    // it tries again by itself, unless it was turned away
    if (source.readyState === EventSource.CLOSED) {
      source.close();
      setTimeout(connect, 3000);
    }
  });
}

function put(path, value) {
  if (path === "top") {
    top = value;
    return;
  }
  const [number, part, ...rest] = path.split("/");
  const run = runs.get(number) || { lines: new Map() };
  runs.set(number, run);
  if (part === "lines") run.lines.set(rest.join("/"), Object.entries(value));
  else run[part] = value;
}

function drop(path) {
  const [number, part, ...rest] = path.split("/");
  const run = runs.get(number);
  if (!run) return;
  if (part === "lines") run.lines.delete(rest.join("/"));
  if (part === "summary") runs.delete(number);
}

function make(tag, text, name) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (name) element.className = name;
  return element;
}

const word = () => (complete().every(([, run]) => run.summary.in_rounds === false) ? "update" : "round");
const complete = () => [...runs].filter(([, run]) => run.summary);
const current = () => runs.get(chosen);

function choose() {
  const all = complete();
  if (all.some(([number]) => number === chosen)) return;
  const live = all.filter(([, run]) => run.summary.status === "live");
  const latest = live.pop() || all.pop();
  chosen = latest ? latest[0] : null;
}

function draw() {
  choose();
  at("name").textContent = top.name;
  document.title = `${top.name} · hubless`;
  at("unreachable").hidden = !top.unreachable;
  at("unreachable").textContent = top.unreachable ? `Cannot be read at the moment: ${top.unreachable}` : "";
  drawStatus();
  drawRuns();
  drawCharts();
  drawClients();
  drawTrouble();
  drawFacts();
}

function standing(run) {
  if (run.status === "ended") return run.reason ? `ended, ${run.reason}` : "ended";
  return run.status === "silent" ? `silent for ${span(now() - run.updated)}` : "live";
}

function drawStatus() {
  const status = at("status"), run = current()?.summary;
  let kind = "connecting", label = "connecting";
  if (heard && !connected) [kind, label] = ["disconnected", "disconnected, trying again"];
  else if (run) {
    kind = ["failed", "interrupted"].includes(run.reason) ? "failed" : run.status;
    label = standing(run);
  } else if (connected) label = top.awaited ? `waiting: ${top.awaited}` : "nothing yet";
  status.dataset.status = kind;
  if (status.textContent !== label) status.textContent = label;
  drawFigures(run);
}

function drawFigures(run) {
  const rows = [];
  if (run) {
    const total = run.rounds ? ` of ${run.rounds.toLocaleString("en")}` : "";
    if (run.in_rounds === false) rows.push(["updates", run.updates.toLocaleString("en")]);
    else rows.push(["round", `${run.round.toLocaleString("en")}${total}`]);
    if (run.left !== null && run.status === "live") rows.push(["left", span(run.left - (now() - run.updated))]);
    else if (run.began) rows.push([run.status === "ended" ? "took" : "so far", span((run.status === "ended" ? run.updated : now()) - run.began)]);
    const moved = run.bytes_down + run.bytes_up;
    if (moved) rows.push([run.bytes_down ? "moved" : "uploaded", bytes(moved)]);
    const clients = Object.values(run.counts).reduce((a, b) => a + b, 0);
    if (clients) rows.push(["clients", clients.toLocaleString("en")]);
  }
  at("figures").replaceChildren(...rows.map(([name, value]) => {
    const pair = make("div");
    pair.append(make("dt", name), make("dd", value));
    return pair;
  }));
  const progress = at("progress"), share = run?.rounds ? Math.min(1, run.round / run.rounds) : 0;
  progress.hidden = !run?.rounds;
  progress.setAttribute("aria-valuemax", run?.rounds || 1);
  progress.setAttribute("aria-valuenow", run?.round || 0);
  progress.firstElementChild.style.transform = `scaleX(${share})`;
}

function swatch(place) {
  const canvas = make("canvas");
  canvas.style.width = "26px";
  canvas.style.height = "10px";
  canvas.setAttribute("aria-hidden", "true");
  const pen = prepare(canvas, 26, 10), { colour: name, dash } = look(place);
  pen.strokeStyle = colour(name);
  pen.lineWidth = 2;
  pen.setLineDash(dash);
  pen.beginPath();
  pen.moveTo(0, 5);
  pen.lineTo(26, 5);
  pen.stroke();
  return canvas;
}

function drawRuns() {
  const all = complete();
  at("runs-section").hidden = all.length < 2;
  if (all.length < 2) return;
  const focused = document.activeElement?.name === "run" ? document.activeElement.value : null;
  at("runs").replaceChildren(...all.map(([number, { summary }], place) => {
    const row = make("label", undefined, "run"), input = make("input");
    Object.assign(input, { type: "radio", name: "run", value: number, checked: number === chosen });
    input.addEventListener("change", () => { chosen = number; draw(); });
    const total = summary.rounds ? ` of ${summary.rounds}` : "";
    const metrics = Object.entries(summary.metrics).slice(0, 3).map(([name, value]) => `${name} ${figure(value)}`);
    const progress = summary.in_rounds === false ? `${summary.updates} updates` : `round ${summary.round}${total}`;
    row.append(input, swatch(place), make("span", summary.name, "run-name"), make("span", standing(summary), "faint wide"), make("span", progress, "faint"), make("span", metrics.join("  "), "faint wide"));
    return row;
  }));
  if (focused !== null) [...document.getElementsByName("run")].find((input) => input.value === focused)?.focus();
}

function gather() {
  // every line has its place, and so its look, in all charts
  const places = new Map(), metrics = new Map();
  complete().forEach(([number, run], index) => {
    for (const [metric, lines] of run.lines) {
      for (const [name, points] of lines) {
        if (!points.length) continue;
        const several = run.summary.kind === "federation";
        const key = `${number}/${several ? name : ""}`;
        if (!places.has(key)) places.set(key, several ? places.size : index);
        const label = several ? name : (runs.size > 1 ? run.summary.name : "");
        const strong = several ? name === "all members" || lines.length < 3 : number === chosen;
        const line = { name: label, place: places.get(key), points, chosen: strong };
        metrics.set(metric, [...(metrics.get(metric) || []), line]);
      }
    }
  });
  return metrics;
}

function drawCharts() {
  const metrics = gather();
  for (const [metric, chart] of charts) {
    if (!metrics.has(metric)) {
      chart.element.remove();
      charts.delete(metric);
    }
  }
  for (const [metric, lines] of metrics) {
    if (!charts.has(metric)) {
      charts.set(metric, new Chart(metric));
      at("charts").append(charts.get(metric).element);
    }
    // what matters most is drawn last
    lines.sort((a, b) => a.chosen - b.chosen);
    const entry = Object.entries(current()?.summary?.metrics || {}).find(([name]) => name === metric);
    charts.get(metric).show(lines, axis, entry?.[1], word());
  }
  at("axis-round").textContent = `${word()}s`;
  at("no-charts").hidden = metrics.size > 0;
  at("axis").hidden = metrics.size === 0;
  const named = new Map();
  for (const line of [...metrics.values()].flat()) if (line.name) named.set(line.place, line.name);
  // where there are several runs their list says which line is whose
  const federated = complete().some(([, run]) => run.summary.kind === "federation");
  at("lines").hidden = !federated || named.size < 2;
  at("lines").replaceChildren(...[...named].sort((a, b) => a[0] - b[0]).map(([place, name]) => {
    const item = make("li");
    item.append(swatch(place), make("span", name, "word"));
    return item;
  }));
}

const SHAPES = new Map([["training", "trained"], ["waiting", "waited"], ["silent", "wrong"]]);
const ORDER = ["silent", "training", "trained", "joined", "restarted", "waiting", "late", "refused", "offline", "skipped", "idle", "left"];

function drawClients() {
  const run = current();
  const counts = Object.entries(run?.summary?.counts || {}).filter(([, count]) => count);
  counts.sort((a, b) => ORDER.indexOf(a[0]) - ORDER.indexOf(b[0]));
  at("share").replaceChildren(...counts.map(([state, count]) => {
    const part = make("div", undefined, state);
    part.style.flexGrow = count;
    return part;
  }));
  at("counts").replaceChildren(...counts.map(([state, count]) => {
    const item = make("li"), shape = SHAPES.get(state) || state;
    if (MARKS.some(([name]) => name === shape)) item.append(sample(shape));
    item.append(make("span", `${count.toLocaleString("en")} ${state}`));
    return item;
  }));
  const last = run?.summary?.kind === "simulation" ? `Clients in the last round` : "Clients";
  if (at("clients-title").textContent !== last) at("clients-title").textContent = last;
  const data = run?.strip;
  at("strip-part").hidden = !data?.rows?.length;
  if (!data?.rows?.length) return;
  const masks = new Set(data.rows.flatMap((row) => [...row.cells].map((c) => c.charCodeAt(0) - 48)));
  const used = MARKS.filter(([, bit]) => [...masks].some((mask) => mask & bit));
  at("marks").replaceChildren(...used.map(([name]) => {
    const item = make("li");
    item.append(sample(name), make("span", name));
    return item;
  }));
  strip.show(data);
  drawStripTitle(data);
}

function drawStripTitle(data) {
  // on a narrow screen a cell stands for several of those that the server sent
  const width = data.width * (strip.frame?.together || 1);
  const rounds = width === 1 ? "round by round" : `${width} rounds to a cell`;
  const shades = data.rows.some((row) => row.levels) ? ", darker where more often" : "";
  const title = `Who did what, ${data.axis === "round" ? rounds : `${span(width)} to a cell`}${shades}`;
  if (at("strip-title").textContent !== title) at("strip-title").textContent = title;
}

function drawTrouble() {
  // of what is not there, or not known yet, nothing can be said
  at("no-trouble").hidden = top.trouble.length > 0 || !current();
  at("trouble").replaceChildren(...top.trouble.slice(0, 12).map((trouble) => {
    const item = make("li"), when = new Date(trouble.time * 1000);
    const stamp = make("time", when.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false }));
    stamp.title = when.toLocaleString();
    const who = trouble.client ? `${trouble.client} ${trouble.kind}` : `${trouble.run} ${trouble.kind}`;
    const again = trouble.times > 1 ? ` (${trouble.times} times)` : "";
    item.append(stamp, make("b", who), make("p", `${trouble.text}${again}`));
    return item;
  }));
}

function drawFacts() {
  const facts = Object.entries(current()?.summary?.facts || {});
  at("facts-part").hidden = !facts.length;
  at("facts").replaceChildren(...facts.flatMap(([name, value]) => [make("dt", name), make("dd", value)]));
}

at("axis").addEventListener("change", (event) => { axis = event.target.value; drawCharts(); });
window.addEventListener("resize", () => { for (const chart of charts.values()) chart.draw(); drawClients(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
setInterval(drawStatus, 1000);
connect();
