// The strip: a row for every client, a cell for every round or stretch of time, and in it a colour
// and a shape for what the client did.

import { colour, figure, prepare, span } from "./chart.js";

// by importance: where several fall into one cell, the first of these is drawn
export const MARKS = [
  ["wrong", 64], ["refused", 8], ["offline", 32], ["late", 4], ["trained", 1], ["waited", 2], ["skipped", 16],
];
const ROW = 14;
const HEAD = 18;

export function mark(pen, name, x, y, width, height, strength = 1) {
  pen.fillStyle = pen.strokeStyle = colour(name);
  pen.lineWidth = 1.5;
  const cx = x + width / 2, cy = y + height / 2, r = Math.min(width, height) / 2;
  const path = (...points) => {
    pen.beginPath();
    points.forEach(([px, py], i) => pen[i ? "lineTo" : "moveTo"](px, py));
  };
  if (name === "trained") {
    pen.globalAlpha = strength;
    pen.fillRect(x, y, width, height);
    pen.globalAlpha = 1;
  } else if (name === "waited") {
    pen.fillRect(x, y + height * 0.6, width, height * 0.4);
  } else if (name === "late") {
    path([x, y + height], [x + width, y + height], [cx, y]);
    pen.fill();
  } else if (name === "refused") {
    pen.lineWidth = Math.max(1.5, r * 0.45);
    path([cx - r * 0.85, cy - r * 0.85], [cx + r * 0.85, cy + r * 0.85]);
    pen.stroke();
    path([cx - r * 0.85, cy + r * 0.85], [cx + r * 0.85, cy - r * 0.85]);
    pen.stroke();
  } else if (name === "wrong") {
    path([cx, y], [x + width, cy], [cx, y + height], [x, cy]);
    pen.fill();
  } else if (name === "offline") {
    pen.strokeRect(x + 0.75, y + 0.75, Math.max(1, width - 1.5), height - 1.5);
  } else {
    pen.beginPath();
    pen.arc(cx, cy, Math.min(2, r), 0, 7);
    pen.fill();
  }
}

export function sample(name) {
  const canvas = document.createElement("canvas");
  canvas.style.width = canvas.style.height = "12px";
  canvas.setAttribute("aria-hidden", "true");
  mark(prepare(canvas, 12, 12), name, 1, 1, 10, 10);
  return canvas;
}

export class Strip {
  constructor(canvas, caption, now) {
    this.canvas = canvas;
    this.caption = caption;
    this.now = now;
    this.data = null;
    this.cursor = null;
    canvas.addEventListener("pointermove", (event) => this.point(event));
    canvas.addEventListener("pointerdown", (event) => this.point(event));
    canvas.addEventListener("pointerleave", () => this.leave());
    canvas.addEventListener("blur", () => this.leave());
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  show(data) {
    this.data = data;
    this.draw();
  }

  point(event) {
    if (!this.frame) return;
    const { gutter, step, columns } = this.frame;
    const row = Math.floor((event.offsetY - HEAD) / ROW), column = Math.floor((event.offsetX - gutter) / step);
    const inside = row < this.data.rows.length && row >= 0;
    this.cursor = inside ? { row, column: Math.min(columns - 1, Math.max(0, column)) } : null;
    this.draw();
  }

  key(event) {
    const by = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!by || !this.frame) return;
    event.preventDefault();
    const { columns } = this.frame, rows = this.data.rows.length;
    const from = this.cursor || { row: 0, column: columns - 1 };
    const moved = this.cursor ? by : [0, 0];
    this.cursor = {
      row: Math.min(rows - 1, Math.max(0, from.row + moved[0])),
      column: Math.min(columns - 1, Math.max(0, from.column + moved[1])),
    };
    const box = this.canvas.parentElement;
    const top = HEAD + this.cursor.row * ROW;
    if (top < box.scrollTop) box.scrollTop = top;
    if (top + 3 * ROW > box.scrollTop + box.clientHeight) box.scrollTop = top + 3 * ROW - box.clientHeight;
    this.draw();
  }

  leave() {
    this.cursor = null;
    this.draw();
  }

  draw() {
    const { data, canvas } = this;
    if (!data || !data.rows.length || !canvas.clientWidth) return;
    const width = canvas.clientWidth, height = data.rows.length * ROW + HEAD;
    canvas.style.height = `${height}px`;
    const pen = prepare(canvas, width, height);
    pen.font = "11px system-ui, sans-serif";
    const widest = Math.max(...["client", ...data.rows.map((row) => row.name)].map((name) => pen.measureText(name).width));
    const gutter = Math.min(Math.ceil(widest) + 10, Math.max(60, width * 0.28));
    // on a narrow screen several cells share one
    const least = 6;
    const together = Math.max(1, Math.ceil(data.columns * least / (width - gutter)));
    const columns = Math.ceil(data.columns / together);
    const step = Math.min(18, (width - gutter) / columns);
    this.frame = { gutter, step, columns, together };
    data.rows.forEach((row, i) => this.row(pen, row, i));
    this.head(pen);
    this.read(pen);
  }

  row(pen, row, index) {
    const { gutter, step, columns } = this.frame;
    const top = HEAD + index * ROW;
    pen.fillStyle = colour("quiet");
    pen.textAlign = "left";
    pen.textBaseline = "middle";
    pen.fillText(fitting(pen, row.name, gutter - 8), 0, top + ROW / 2);
    const gap = step > 8 ? 2 : 1;
    for (let column = 0; column < columns; column += 1) {
      const { mask, level } = this.cell(row, column);
      const x = gutter + column * step, wide = Math.max(1, step - gap);
      pen.fillStyle = colour("cell");
      pen.fillRect(x, top + 1, wide, ROW - 3);
      const first = MARKS.find(([, bit]) => mask & bit);
      if (first) mark(pen, first[0], x, top + 1, wide, ROW - 3, 0.3 + 0.7 * level / 9);
    }
  }

  cell(row, column) {
    const { together } = this.frame;
    let mask = 0, level = 0;
    for (let i = column * together; i < Math.min((column + 1) * together, row.cells.length); i += 1) {
      mask |= row.cells.charCodeAt(i) - 48;
      level = Math.max(level, row.levels ? Number(row.levels[i]) : 9);
    }
    return { mask, level };
  }

  head(pen) {
    const { data, frame: { gutter, step, columns } } = this;
    pen.fillStyle = colour("quiet");
    pen.textBaseline = "alphabetic";
    pen.textAlign = "left";
    pen.fillText("client", 0, 10);
    pen.fillText(this.at(data.first), gutter, 10);
    if (columns * step > 130) {
      pen.textAlign = "right";
      const last = Math.max(data.first, data.first + data.columns * data.width - (data.axis === "round" ? 1 : 0));
      pen.fillText(this.at(last), gutter + columns * step, 10);
    }
  }

  at(value) {
    return this.data.axis === "round" ? `round ${value.toLocaleString("en")}` : `after ${span(value)}`;
  }

  read(pen) {
    const more = this.data.more ? left(this.data) : "";
    if (!this.cursor || !this.data.rows[this.cursor.row]) {
      this.caption.textContent = more;
      return;
    }
    const { gutter, step, together } = this.frame;
    const row = this.data.rows[this.cursor.row], column = Math.min(this.cursor.column, this.frame.columns - 1);
    pen.strokeStyle = colour("ink");
    pen.lineWidth = 1.5;
    pen.strokeRect(gutter + column * step - 1, HEAD + this.cursor.row * ROW, step, ROW - 1);
    const from = this.data.first + column * together * this.data.width;
    const to = from + together * this.data.width - 1;
    const when = to > from && this.data.axis === "round" ? `rounds ${from.toLocaleString("en")} to ${to.toLocaleString("en")}` : this.at(from);
    const did = MARKS.filter(([, bit]) => this.cell(row, column).mask & bit).map(([name]) => name);
    this.caption.textContent = `${row.name}, ${when}: ${did.join(", ") || "nothing"}${about(row.about, this.now())}`;
  }
}

function left({ more, full }) {
  const clients = `${more.toLocaleString("en")} more ${more === 1 ? "client" : "clients"}`;
  return full ? `Those who were active last; there are ${clients}.` : `${clients} did nothing so far.`;
}

function about(member, now) {
  if (!member) return "";
  const metrics = Object.entries(member.metrics).map(([name, value]) => `${name} ${figure(value)}`);
  const parts = [`now ${member.status}`];
  if (member.joined > 1) parts.push(`joined ${member.joined} times`);
  if (member.sequence >= 0) parts.push(`update ${member.sequence + 1}`, `${member.examples.toLocaleString("en")} examples`);
  if (member.staleness) parts.push(`${member.staleness} versions behind`);
  return `. ${[...parts, ...metrics, `heard of ${span(now - member.heard)} ago`].join(", ")}`;
}

function fitting(pen, text, width) {
  if (pen.measureText(text).width <= width) return text;
  let kept = text.length;
  while (kept > 1 && pen.measureText(`${text.slice(0, kept)}…`).width > width) kept -= 1;
  return `${text.slice(0, kept)}…`;
}
