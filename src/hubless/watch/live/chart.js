// Charts: one metric each, a line for every run or member, over rounds, time or bytes.

const DASHES = [[], [7, 3], [2, 3], [9, 3, 2, 3], [5, 5], [1, 2], [12, 4], [4, 2, 1, 2]];
const AT = { round: 0, time: 1, bytes: 2 };
const VALUE = 3;

export const colour = (name) =>
  getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

// the first eight differ in colour, and all of those in their dashes too
export const look = (place) => ({
  colour: `line-${place % 8}`,
  dash: DASHES[(place + Math.floor(place / 8)) % 8],
});

export const figure = (value) => {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
};

export function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) { count /= 1024; unit += 1; }
  return `${unit && count < 100 ? Number(count.toFixed(1)) : Math.round(count)} ${units[unit]}`;
}

export function span(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor(whole % 3600 / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor(whole % 86400 / 3600)} h`;
}

export function prepare(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  return pen;
}

function steps(low, high, most, scales) {
  const rough = (high - low) / most || 1;
  const scale = scales.find((scale) => scale >= rough);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = scale || [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
  const ticks = [];
  // adding 0 makes 0 of -0
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n += 1) ticks.push(n * step + 0);
  return ticks;
}

const SECONDS = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400];
const POWERS = [0, 1, 2, 3, 4].flatMap((k) => [1, 2, 5, 10, 20, 50, 100, 200, 500].map((n) => n * 1024 ** k));
const briefly = (seconds) => {
  if (seconds < 60) return `${Number(seconds.toFixed(2))} s`;
  if (seconds < 3600) return `${Number((seconds / 60).toFixed(1))} min`;
  return seconds < 172800 ? `${Number((seconds / 3600).toFixed(1))} h` : `${Number((seconds / 86400).toFixed(1))} d`;
};
const TICKS = {
  round: (low, high, most) => steps(low, high, most, [1, 2, 5]).filter(Number.isInteger),
  time: (low, high, most) => steps(low, high, most, high - low < 3 ? [] : SECONDS),
  bytes: (low, high, most) => steps(low, high, most, POWERS),
};
const SAID = { round: (x) => Math.round(x).toLocaleString("en"), time: briefly, bytes };
const FULL = { round: (x, word) => `${word} ${Math.round(x).toLocaleString("en")}`, time: (x) => `after ${span(x)}`, bytes: (x) => `after ${bytes(x)}` };

export class Chart {
  constructor(metric) {
    this.metric = metric;
    this.lines = [];
    this.axis = "round";
    this.hover = null;
    this.element = document.createElement("figure");
    this.element.className = "chart";
    this.element.style.margin = "0";
    const head = this.element.appendChild(document.createElement("div"));
    head.className = "head";
    head.appendChild(document.createElement("h3")).textContent = metric;
    this.now = head.appendChild(document.createElement("span"));
    this.now.className = "now";
    this.canvas = this.element.appendChild(document.createElement("canvas"));
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "img");
    this.caption = this.element.appendChild(document.createElement("figcaption"));
    this.caption.className = "caption";
    this.caption.setAttribute("aria-live", "polite");
    this.canvas.addEventListener("pointermove", (event) => this.point(event.offsetX));
    this.canvas.addEventListener("pointerdown", (event) => this.point(event.offsetX));
    this.canvas.addEventListener("pointerleave", () => this.leave());
    this.canvas.addEventListener("blur", () => this.leave());
    this.canvas.addEventListener("keydown", (event) => this.key(event));
  }

  // lines: [{name, place, points, chosen}]
  show(lines, axis, now, word) {
    this.lines = lines;
    this.word = word;
    this.axis = axis;
    this.now.textContent = now === undefined ? "" : figure(now);
    const label = now === undefined ? "" : `, now ${figure(now)}`;
    this.canvas.setAttribute("aria-label", `${this.metric} over ${axis === "round" ? `${word}s` : axis}${label}`);
    this.draw();
  }

  point(offset) {
    if (!this.frame) return;
    const { left, right, low, high } = this.frame;
    const share = (offset - left) / (right - left || 1);
    this.hover = Math.min(high, Math.max(low, low + share * (high - low)));
    this.draw();
  }

  key(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || !this.lines.length) return;
    event.preventDefault();
    const at = AT[this.axis];
    const longest = this.lines.reduce((a, b) => (a.points.length >= b.points.length ? a : b)).points;
    let index = longest.length - 1;
    if (this.hover !== null) index = nearest(longest, at, this.hover) + by;
    this.hover = longest[Math.min(longest.length - 1, Math.max(0, index))][at];
    this.draw();
  }

  leave() {
    this.hover = null;
    this.draw();
  }

  draw() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (!width || !this.lines.length) return;
    const pen = prepare(this.canvas, width, height);
    const at = AT[this.axis];
    const xs = this.lines.flatMap((line) => line.points.map((point) => point[at]));
    const ys = this.lines.flatMap((line) => line.points.map((point) => point[VALUE]));
    const low = Math.min(...xs), high = Math.max(...xs);
    const least = Math.min(...ys), most = Math.max(...ys);
    const room = (most - least || Math.abs(most) || 1) * 0.06;
    const bottom = least - room, top = most + room;
    pen.font = "11px system-ui, sans-serif";
    const marks = steps(bottom, top, 6, []);
    const gutter = Math.max(...marks.map((mark) => pen.measureText(figure(mark)).width)) + 8;
    const frame = { left: gutter, right: width - 8, top: 6, bottom: height - 20, low, high };
    this.frame = frame;
    const x = (value) => frame.left + (high > low ? (value - low) / (high - low) : 0.5) * (frame.right - frame.left);
    const y = (value) => frame.bottom - (value - bottom) / (top - bottom) * (frame.bottom - frame.top);
    this.axes(pen, x, y, marks, TICKS[this.axis](low, high, Math.max(2, Math.floor((frame.right - frame.left) / 60))));
    for (const line of this.lines) this.stroke(pen, line, x, y, at);
    this.read(pen, x, y, at);
  }

  axes(pen, x, y, marks, ticks) {
    const { left, right, bottom } = this.frame;
    pen.lineWidth = 1;
    pen.strokeStyle = colour("faint");
    pen.fillStyle = colour("quiet");
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (const mark of marks) {
      pen.beginPath();
      pen.moveTo(left, Math.round(y(mark)) + 0.5);
      pen.lineTo(right, Math.round(y(mark)) + 0.5);
      pen.stroke();
      pen.fillText(figure(Number(mark.toPrecision(12))), left - 6, y(mark));
    }
    pen.textBaseline = "alphabetic";
    for (const tick of ticks.length ? ticks : [this.frame.low]) {
      const label = SAID[this.axis](tick), half = pen.measureText(label).width / 2;
      pen.textAlign = "center";
      pen.fillText(label, Math.min(right + 6 - half, Math.max(left + half - 6, x(tick))), bottom + 15);
    }
  }

  stroke(pen, line, x, y, at) {
    const { colour: name, dash } = look(line.place);
    pen.strokeStyle = pen.fillStyle = colour(name);
    pen.globalAlpha = line.chosen ? 1 : 0.55;
    pen.lineWidth = line.chosen ? 2 : 1.4;
    pen.lineJoin = "round";
    pen.setLineDash(dash);
    pen.beginPath();
    line.points.forEach((point, i) => pen[i ? "lineTo" : "moveTo"](x(point[at]), y(point[VALUE])));
    pen.stroke();
    pen.setLineDash([]);
    const last = line.points[line.points.length - 1];
    pen.beginPath();
    pen.arc(x(last[at]), y(last[VALUE]), line.chosen ? 3 : 2.2, 0, 7);
    pen.fill();
    pen.globalAlpha = 1;
  }

  read(pen, x, y, at) {
    if (this.hover === null) {
      this.caption.textContent = "";
      return;
    }
    const points = this.lines.map((line) => [line, line.points[nearest(line.points, at, this.hover)]]);
    const closest = points.reduce((a, b) => (Math.abs(a[1][at] - this.hover) <= Math.abs(b[1][at] - this.hover) ? a : b))[1];
    pen.strokeStyle = colour("quiet");
    pen.lineWidth = 1;
    pen.beginPath();
    pen.moveTo(Math.round(x(closest[at])) + 0.5, this.frame.top);
    pen.lineTo(Math.round(x(closest[at])) + 0.5, this.frame.bottom);
    pen.stroke();
    for (const [line, point] of points) {
      pen.fillStyle = colour(look(line.place).colour);
      pen.beginPath();
      pen.arc(x(point[at]), y(point[VALUE]), 3.5, 0, 7);
      pen.fill();
    }
    const shown = points.slice(0, 8).map(([line, point]) => `${line.name ? `${line.name} ` : ""}${figure(point[VALUE])}`);
    const more = points.length > 8 ? `, and ${points.length - 8} more` : "";
    this.caption.textContent = `${FULL[this.axis](closest[at], this.word)}: ${shown.join(", ")}${more}`;
  }
}

function nearest(points, at, wanted) {
  let best = 0;
  for (let i = 1; i < points.length; i += 1) {
    if (Math.abs(points[i][at] - wanted) <= Math.abs(points[best][at] - wanted)) best = i;
  }
  return best;
}
