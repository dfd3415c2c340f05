"use strict";
// Draws the timelines of the page, and switches between light and dark. All figures of the page are HTML already.
const data = JSON.parse(document.getElementById("data").textContent);
const card = document.getElementById("card");
// the places of a span's list, as `lanes.py` writes it
const [LANE, ROW, STAGE, START, LENGTH, LABEL, STAGE_NAME, PLACE, BYTES, FLOPS, PEER, WAITED] = Array(12).keys();
const WAIT = -1, WHOLE = -2; // in place of a stage
const LEFT = 132, RIGHT = 10, TOP = 26;
const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';
const MOST_ARROWS = 4000; // drawn at once
const theme = { stamp: 0 };

const time = (us) => us === 0 ? "0 µs" : us < 0.9995 ? (us * 1e3).toPrecision(3) + " ns"
  : us < 999.5 ? us.toPrecision(3) + " µs" : us < 999.5e3 ? (us / 1e3).toPrecision(3) + " ms" : (us / 1e6).toPrecision(3) + " s";
const figure = (n) => n >= 99.5 ? n.toFixed(0) : n.toPrecision(3);
const exact = (us) => us.toFixed(2) + " µs";
function scaled(n, base, units) {
  let i = 0;
  while (n >= base * 0.9995 && i < units.length - 1) { n /= base; i++; }
  return (i ? n.toPrecision(n >= 100 ? 4 : 3) : n) + " " + units[i];
}

// ---------------------------------------------------------------- one timeline

// `view` is the window that all timelines of the page share: what of `total` is shown, and who redraws
function timeline(root, run, view) {
  const canvas = root.querySelector("canvas"), keys = root.querySelector(".keys"), pen = canvas.getContext("2d");
  const spans = run.spans;
  const longest = new Float64Array(run.lanes.length);
  let lit = null, pointer = null, chosen = null, all = run.arrows.length <= 400;
  let held = null, hatch = null, stamp = -1, queued = false;

  // places are those of `report/drawing.py`, below the axis
  const bands = run.bands.map(([rank, top, bottom]) => ({ rank, top: top + TOP, bottom: bottom + TOP }));
  for (const lane of run.lanes) { lane.y += TOP; lane.spans = []; }
  const height = Math.max(TOP, ...bands.map((b) => b.bottom)) + 8;
  for (const s of spans) {
    run.lanes[s[LANE]].spans.push(s);
    longest[s[LANE]] = Math.max(longest[s[LANE]], s[LENGTH]);
  }
  const before = new Map(), after = new Map(); // of a span: those that it needs by event or flag, and those that need it
  for (const [a, b] of run.arrows) {
    if (!before.has(spans[b])) before.set(spans[b], []);
    if (!after.has(spans[a])) after.set(spans[a], []);
    before.get(spans[b]).push(spans[a]); after.get(spans[a]).push(spans[b]);
  }

  const path = new Set(run.path.map((i) => spans[i]));
  let pathOnly = false;

  const width = () => canvas.clientWidth;
  const plot = () => width() - LEFT - RIGHT;
  const xOf = (t) => LEFT + (t - view.from) / (view.to - view.from) * plot();
  const tOf = (x) => view.from + (x - LEFT) / plot() * (view.to - view.from);
  const stop = (s) => s[START] + s[LENGTH];
  const fill = (s) => s[STAGE] === WHOLE ? run.whole[1] : s[STAGE] === WAIT ? hatch : run.stages[s[STAGE]][1];
  function firstAfter(i, t) { // the first span of a lane that could still run at t
    const all = run.lanes[i].spans, goal = t - longest[i];
    let a = 0, b = all.length;
    while (a < b) { const m = (a + b) >> 1; if (all[m][START] < goal) a = m + 1; else b = m; }
    return a;
  }
  const dimmed = (s) => lit !== null && lit !== s[STAGE] || pathOnly && !path.has(s);
  function box(s) {
    const lane = run.lanes[s[LANE]], h = lane.h / lane.rows;
    return [lane.y + s[ROW] * h, lane.rows > 1 ? h - 1 : h];
  }
  function pattern() {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 6;
    const p = tile.getContext("2d");
    p.fillStyle = theme.lane; p.fillRect(0, 0, 6, 6);
    p.strokeStyle = theme.hatch; p.lineWidth = 1.2; p.beginPath();
    for (const d of [-6, 0, 6]) { p.moveTo(d - 1, 7); p.lineTo(d + 7, -1); }
    p.stroke();
    return pen.createPattern(tile, "repeat");
  }

  // ---- drawing

  function draw() {
    queued = false;
    if (stamp !== theme.stamp) { hatch = pattern(); stamp = theme.stamp; }
    const dots = window.devicePixelRatio || 1, w = width();
    if (canvas.width !== Math.round(w * dots) || canvas.height !== Math.round(height * dots)) {
      canvas.width = Math.round(w * dots); canvas.height = Math.round(height * dots);
      canvas.style.height = height + "px";
    }
    pen.setTransform(dots, 0, 0, dots, 0, 0);
    pen.fillStyle = theme.page; pen.fillRect(0, 0, w, height);
    pen.fillStyle = theme.band;
    for (const b of bands) round(0, b.top, w, b.bottom - b.top, 6);
    pen.save(); pen.beginPath(); pen.rect(LEFT, 0, plot(), height); pen.clip();
    pen.fillStyle = theme.lane;
    for (const lane of run.lanes) pen.fillRect(LEFT, lane.y, plot(), lane.h);
    drawGrid();
    const labels = [];
    run.lanes.forEach((lane, i) => drawLane(lane, i, labels));
    const end = xOf(run.duration);
    pen.strokeStyle = theme.end; line(end, TOP - 4, end, height - 10);
    drawArrows();
    for (const label of labels) drawLabel(...label);
    pen.restore();
    drawNames();
    if (pointer && pointer.x >= LEFT) {
      pen.strokeStyle = theme.soft; pen.globalAlpha = 0.6; line(pointer.x, TOP - 4, pointer.x, height - 10); pen.globalAlpha = 1;
    }
  }
  function round(x, y, w, h, r) { pen.beginPath(); pen.roundRect(x, y, w, h, r); pen.fill(); }
  function line(x1, y1, x2, y2) { pen.beginPath(); pen.moveTo(x1, y1); pen.lineTo(x2, y2); pen.stroke(); }
  function drawGrid() {
    const raw = (view.to - view.from) / Math.max(2, plot() / 110), power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999999);
    const [scale, unit] = view.to < 2000 ? [1, "µs"] : view.to < 2e6 ? [1e3, "ms"] : [1e6, "s"];
    const digits = Math.max(0, -Math.floor(Math.log10(step / scale) + 1e-9));
    pen.font = "11px " + FONT; pen.textBaseline = "alphabetic";
    for (let i = Math.ceil(view.from / step - 1e-9); i * step <= view.to + step * 1e-9; i++) {
      const x = Math.round(xOf(i * step)) + 0.5;
      pen.strokeStyle = theme.grid; pen.setLineDash([1, 3]); line(x, TOP - 2, x, height - 10);
      pen.setLineDash([]); pen.fillStyle = theme.soft;
      pen.textAlign = x < LEFT + 20 ? "left" : x > LEFT + plot() - 24 ? "right" : "center";
      pen.fillText((i * step / scale).toFixed(digits) + " " + unit, x, TOP - 12);
    }
  }
  function drawLane(lane, i, labels) {
    const covered = new Map(); // row and stage → right end of what is painted: each dot is painted once
    for (let k = firstAfter(i, view.from); k < lane.spans.length && lane.spans[k][START] <= view.to; k++) {
      const s = lane.spans[k];
      if (stop(s) < view.from) continue;
      const a = Math.max(xOf(s[START]), LEFT - 20), b = Math.min(xOf(stop(s)), LEFT + plot() + 20), wide = b - a;
      const key = s[ROW] * 1000 + s[STAGE];
      if (wide < 0.6 && covered.get(key) >= b) continue;
      const [top, h] = box(s);
      pen.globalAlpha = dimmed(s) ? 0.15 : 1;
      pen.fillStyle = fill(s);
      const shown = wide < 3 ? Math.max(wide, 0.7) : wide - 0.9; // a hair between neighbours
      if (shown > 6 && h > 6) round(a, top, shown, h, 2.5); else pen.fillRect(a, top, shown, h);
      covered.set(key, a + Math.max(wide, 0.7));
      if (s === chosen) {
        pen.strokeStyle = theme.strong; pen.lineWidth = 2;
        pen.strokeRect(a + 1, top + 1, Math.max(shown - 2, 1), h - 2); pen.lineWidth = 1;
      }
      if (h >= 13 && s[STAGE] !== WAIT) labels.push([s, Math.max(a, LEFT), Math.min(b, LEFT + plot()), top + h / 2 + 0.5]);
    }
    pen.globalAlpha = 1;
  }
  function drawLabel(s, left, right, middle) {
    if (right - left <= 16 || dimmed(s)) return;
    pen.font = "10.5px " + FONT; pen.textAlign = "center"; pen.textBaseline = "middle"; pen.fillStyle = "#fff";
    const peer = s[PEER] >= 0 ? "→" + s[PEER] : "";
    const words = [run.texts[s[LABEL]], (run.texts[s[STAGE_NAME]] + " " + peer).trim(), peer];
    const fitting = words.find((t) => t && pen.measureText(t).width + 8 < right - left);
    if (!fitting) return;
    pen.strokeStyle = fill(s); pen.lineWidth = 3; pen.lineJoin = "round"; // an arrow behind a label does not cross its letters
    pen.strokeText(fitting, (left + right) / 2, middle); pen.lineWidth = 1;
    pen.fillText(fitting, (left + right) / 2, middle);
  }
  function drawArrows() {
    pen.strokeStyle = pen.fillStyle = theme.arrow;
    if (pathOnly) {
      pen.lineWidth = 1.6;
      run.path.slice(1).forEach((b, i) => arrow(spans[run.path[i]], spans[b], 5));
      pen.lineWidth = 1;
    } else if (all && run.arrows.length) {
      const shown = run.arrows.filter(([a, b]) => stop(spans[a]) >= view.from && spans[b][START] <= view.to).slice(0, MOST_ARROWS);
      pen.globalAlpha = chosen ? 0.12 : Math.max(0.12, Math.min(0.5, 40 / shown.length));
      for (const [a, b] of shown) arrow(spans[a], spans[b], 3.5);
    }
    pen.globalAlpha = 1; pen.lineWidth = 1.6;
    for (const s of before.get(chosen) || []) arrow(s, chosen, 6);
    for (const s of after.get(chosen) || []) arrow(chosen, s, 6);
    pen.lineWidth = 1;
  }
  function arrow(a, b, head) { // from the stop of one to the start of the other; a launch may have begun before it
    const [topA, hA] = box(a), [topB, hB] = box(b), x1 = xOf(stop(a)), y1 = topA + hA / 2;
    const x2 = xOf(Math.min(Math.max(b[START], stop(a)), stop(b))), y2 = topB + hB / 2;
    const bend = Math.max(10, Math.min(60, Math.abs(x2 - x1) / 2));
    pen.beginPath(); pen.moveTo(x1, y1); pen.bezierCurveTo(x1 + bend, y1, x2 - bend, y2, x2 - head, y2); pen.stroke();
    pen.beginPath(); pen.moveTo(x2, y2); pen.lineTo(x2 - head * 1.5, y2 - head * 0.7); pen.lineTo(x2 - head * 1.5, y2 + head * 0.7); pen.fill();
  }
  function drawNames() {
    pen.textBaseline = "middle"; pen.textAlign = "left"; pen.fillStyle = theme.text; pen.font = "600 12.5px " + FONT;
    for (const b of bands) pen.fillText("rank " + b.rank, 10, (b.top + b.bottom) / 2);
    pen.textAlign = "right"; pen.fillStyle = theme.soft; pen.font = "11px " + FONT;
    for (const lane of run.lanes) {
      const name = lane.name.length > 12 ? lane.name.slice(0, 11) + "…" : lane.name;
      if (lane.h >= 10) pen.fillText(name, LEFT - 8, lane.y + lane.h / 2);
    }
  }
  function redraw() { if (!queued) { queued = true; requestAnimationFrame(draw); } }

  // ---- what is shown

  function show(a, b) { // the window stays inside the run, and no narrower than a nanosecond
    const length = Math.min(Math.max(b - a, 1e-3), view.total);
    view.from = Math.min(Math.max(a, 0), view.total - length); view.to = view.from + length;
    for (const redraw of view.redraws) redraw(); // of all timelines that share the window
  }
  function zoom(factor, t) { show(t - (t - view.from) * factor, t + (view.to - t) * factor); }
  function into(s) { // zoom so that a work and what is around it can be seen
    const room = Math.max(s[LENGTH], view.total / 1e5);
    show(s[START] - room, stop(s) + room);
  }
  function find(x, yy) {
    if (x < LEFT) return null;
    const t = tOf(x), slack = (view.to - view.from) / plot() * 1.5, i = run.lanes.findIndex((l) => yy >= l.y && yy <= l.y + l.h);
    if (i < 0) return null;
    const list = run.lanes[i].spans;
    let best = null, gap = Infinity;
    for (let k = firstAfter(i, t - slack); k < list.length && list[k][START] <= t + slack; k++) {
      const s = list[k], [top, h] = box(s);
      if (yy < top || yy > top + h) continue;
      const far = Math.max(s[START] - t, t - stop(s), 0);
      if (far <= slack && far < gap) { best = s; gap = far; }
    }
    return best;
  }
  function describe(s, px, py) {
    card.textContent = "";
    const head = document.createElement("b"), list = document.createElement("dl");
    head.textContent = run.texts[s[LABEL]];
    card.append(head, list);
    const say = (name, words) => {
      const dt = document.createElement("dt"), dd = document.createElement("dd");
      dt.textContent = name; dd.textContent = words;
      list.append(dt, dd);
    };
    const lane = run.lanes[s[LANE]];
    // works inside a launch share its multiprocessors: their own rates would mislead
    const inside = s[STAGE] >= 0 && lane.spans.some((w) => w[STAGE] === WHOLE && w[START] <= s[START] && stop(w) >= stop(s));
    const per = (n, unit) => s[LENGTH] && !inside ? " at " + figure(n / s[LENGTH]) + unit : "";
    const some = (those) => those.slice(0, 3).map((o) => run.texts[o[LABEL]] + " on rank " + run.lanes[o[LANE]].rank).join("; ")
      + (those.length > 3 ? "; and " + (those.length - 3) + " more" : "");
    say("where", "rank " + lane.rank + ", " + lane.name);
    say("stage", run.texts[s[STAGE_NAME]] + (s[STAGE] === WHOLE ? " (all of the launch)" : s[STAGE] === WAIT ? " (waiting)" : ""));
    say("time", exact(s[START]) + " – " + exact(stop(s)));
    say("length", time(s[LENGTH]));
    if (s[WAITED]) say("waited", time(s[WAITED]) + ", the mean over all blocks");
    if (s[PEER] >= 0) say("peer", "rank " + s[PEER]);
    if (s[BYTES]) say("moves", scaled(s[BYTES], 1024, ["B", "KiB", "MiB", "GiB"]) + per(s[BYTES] / 1e3, " GB/s"));
    if (s[FLOPS]) say("computes", scaled(s[FLOPS], 1000, ["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP"]) + per(s[FLOPS] / 1e6, " TFLOP/s"));
    if (before.has(s)) say("needs", some(before.get(s)));
    if (after.has(s)) say("needed by", some(after.get(s)));
    say("line", run.texts[s[PLACE]]);
    card.style.display = "block";
    const r = card.getBoundingClientRect();
    card.style.left = Math.max(8, Math.min(px + 14, innerWidth - r.width - 8)) + "px";
    card.style.top = Math.max(8, py + 18 + r.height > innerHeight ? py - r.height - 12 : py + 18) + "px";
  }
  function choose(s) { // by key: brought into the window, and told beside it
    if (!s) return;
    chosen = s;
    if (s[START] < view.from || stop(s) > view.to) { const half = (view.to - view.from) / 2, middle = s[START] + s[LENGTH] / 2; show(middle - half, middle + half); }
    const r = canvas.getBoundingClientRect(), [top, h] = box(s);
    describe(s, r.left + Math.max(LEFT, xOf(s[START])), r.top + top + h - 10);
    redraw();
  }
  function none() { pointer = chosen = null; card.style.display = "none"; redraw(); }

  // ---- pointer and keys

  const scrolls = () => document.documentElement.scrollHeight > innerHeight + 4; // then the plain wheel is the page's
  canvas.addEventListener("wheel", (event) => {
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (!sideways && scrolls() && !event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    if (sideways) { const d = event.deltaX / plot() * (view.to - view.from); show(view.from + d, view.to + d); }
    else zoom(Math.exp(Math.max(-80, Math.min(80, event.deltaY)) * 0.004), tOf(event.clientX - canvas.getBoundingClientRect().left));
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    held = { x: event.clientX, from: view.from, to: view.to };
    canvas.setPointerCapture(event.pointerId); canvas.classList.add("held");
  });
  canvas.addEventListener("pointermove", (event) => {
    if (held) {
      const d = (held.x - event.clientX) / plot() * (held.to - held.from);
      show(held.from + d, held.to + d); card.style.display = "none";
      return;
    }
    const r = canvas.getBoundingClientRect();
    pointer = { x: event.clientX - r.left, y: event.clientY - r.top };
    chosen = find(pointer.x, pointer.y);
    if (chosen) describe(chosen, event.clientX, event.clientY); else card.style.display = "none";
    redraw();
  });
  for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => { held = null; canvas.classList.remove("held"); });
  canvas.addEventListener("pointerleave", none);
  canvas.addEventListener("blur", none);
  canvas.addEventListener("dblclick", () => show(0, view.total));
  const beside = (step) => {
    if (!chosen) return spans.find((s) => s[STAGE] >= 0 && s[START] >= view.from);
    const list = run.lanes[chosen[LANE]].spans;
    return list[list.indexOf(chosen) + step];
  };
  const lane = (step) => { // the work of the next stream that runs nearest to the chosen one's middle
    if (!chosen) return beside(1);
    const middle = chosen[START] + chosen[LENGTH] / 2, far = (s) => Math.max(s[START] - middle, middle - stop(s), 0);
    for (let i = chosen[LANE] + step; run.lanes[i]; i += step) {
      if (run.lanes[i].spans.length) return run.lanes[i].spans.reduce((a, b) => far(b) < far(a) ? b : a);
    }
    return null;
  };
  const last = (those) => (those || []).reduce((a, b) => !a || stop(b) > stop(a) ? b : a, null);
  const first = (those) => (those || []).reduce((a, b) => !a || b[START] < a[START] ? b : a, null);
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const step = (view.to - view.from) * 0.15, middle = pointer && pointer.x > LEFT ? tOf(pointer.x) : (view.from + view.to) / 2;
    const doing = {
      ArrowLeft: () => show(view.from - step, view.to - step), a: () => show(view.from - step, view.to - step),
      ArrowRight: () => show(view.from + step, view.to + step), d: () => show(view.from + step, view.to + step),
      "+": () => zoom(0.7, middle), "=": () => zoom(0.7, middle), w: () => zoom(0.7, middle),
      "-": () => zoom(1.4, middle), s: () => zoom(1.4, middle), 0: () => show(0, view.total),
      n: () => choose(beside(1)), p: () => choose(beside(-1)), ArrowDown: () => choose(lane(1)), ArrowUp: () => choose(lane(-1)),
      "[": () => choose(last(before.get(chosen))), "]": () => choose(first(after.get(chosen))),
      Enter: () => chosen && into(chosen), f: () => arrowsButton.click(), c: () => pathButton.click(), Escape: none,
    }[event.key];
    if (doing) { doing(); event.preventDefault(); }
  });

  // ---- the legend: a button a stage, and one for the arrows

  function button(name, title, chip) {
    const made = document.createElement("button");
    made.type = "button"; made.title = title;
    made.setAttribute("aria-pressed", "false");
    if (chip) made.append(chip);
    made.append(name);
    keys.append(made);
    return made;
  }
  const entries = run.stages.map(([name, colour], i) => [name, i, colour]);
  if (run.waits) entries.push(["waiting", WAIT, null]);
  if (run.whole) entries.push([run.whole[0], WHOLE, run.whole[1]]);
  const buttons = entries.map(([name, stage, colour]) => {
    const chip = document.createElement("i");
    if (colour) chip.style.background = colour; else chip.className = "wait";
    const made = button(name, "show only this stage", chip);
    made.onclick = () => {
      lit = lit === stage ? null : stage;
      buttons.forEach((b, i) => b.setAttribute("aria-pressed", String(entries[i][1] === lit)));
      redraw();
    };
    return made;
  });
  const arrowsButton = button("→ all arrows", "from what was waited for to what waited; hovering shows those of one work");
  arrowsButton.hidden = !run.arrows.length;
  arrowsButton.setAttribute("aria-pressed", String(all));
  arrowsButton.onclick = () => { all = !all; arrowsButton.setAttribute("aria-pressed", String(all)); redraw(); };
  const pathButton = button("critical path", "the chain of works that set the run's time");
  pathButton.hidden = !run.path.length;
  pathButton.onclick = () => { pathOnly = !pathOnly; pathButton.setAttribute("aria-pressed", String(pathOnly)); redraw(); };
  const hint = document.createElement("span");
  hint.className = "hint";
  keys.append(hint);
  new ResizeObserver(() => {
    hint.textContent = "drag to move · " + (scrolls() ? "Ctrl + wheel" : "wheel") + " to zoom · double-click for all";
    redraw();
  }).observe(canvas);
  view.redraws.push(redraw);
  draw();
}

// ---------------------------------------------------------------- the page

const THEMES = ["system", "light", "dark"], root = document.documentElement, themeButton = document.getElementById("theme");
const longest = Math.max(...data.runs.map((run) => run ? run.duration : 0)) || 1;
const view = { from: 0, to: longest, total: longest, redraws: [] };
function readTheme() { // custom properties hold both themes' colours: only a computed colour tells which one holds
  const probe = document.createElement("i");
  document.body.append(probe);
  for (const name of ["page", "band", "lane", "grid", "end", "strong", "text", "soft", "hatch", "arrow"]) {
    probe.style.color = "var(--" + name + ")";
    theme[name] = getComputedStyle(probe).color;
  }
  probe.remove();
  theme.stamp++;
  for (const redraw of view.redraws) redraw();
}
function setTheme(name) {
  if (name === "system") delete root.dataset.theme; else root.dataset.theme = name;
  themeButton.textContent = "theme: " + name;
  readTheme();
}
const nextTheme = () => setTheme(THEMES[(THEMES.indexOf(root.dataset.theme || "system") + 1) % THEMES.length]);
themeButton.addEventListener("click", nextTheme);
document.addEventListener("keydown", (event) => { if (event.key === "t" && !event.ctrlKey && !event.metaKey && !event.altKey) nextTheme(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", readTheme);
// report.html#theme=dark&from=100&to=120: the theme, and a window in microseconds
const asked = new URLSearchParams(location.hash.slice(1));
setTheme(THEMES.includes(asked.get("theme")) ? asked.get("theme") : "system");
if (Number(asked.get("to")) > Number(asked.get("from"))) {
  view.from = Math.max(0, Number(asked.get("from")));
  view.to = Math.max(view.from + 1e-3, Math.min(longest, Number(asked.get("to"))));
}
for (const place of document.querySelectorAll(".timeline")) timeline(place, data.runs[place.dataset.run], view);
// `ficco watch` writes the page again: it reloads itself with the same theme and window, unless somebody points at it
if (data.watched) setInterval(() => {
  if (card.style.display === "block") return;
  const kept = new URLSearchParams({ theme: root.dataset.theme || "system" });
  if (view.to - view.from < view.total) { kept.set("from", view.from); kept.set("to", view.to); }
  history.replaceState(null, "", "#" + kept);
  location.reload();
}, 1500);
