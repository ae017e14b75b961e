"use strict";
// Draws the report whose JSON stands in #data. No libraries, no network.
const data = JSON.parse(document.getElementById("data").textContent);
const page = document.getElementById("page");

// ---- words and numbers ----

const text = (value) => String(value ?? "").replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);
const whole = (value) => Math.round(value).toLocaleString("en-US");
/** Three digits that count, thousands apart. */
function digits(value) {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 100) return whole(value);
  if (size === 0) return "0";
  return String(+value.toPrecision(size >= 10 ? 3 : 2 + (size >= 1)));
}
/** A short form for axes. */
function short(value) {
  const size = Math.abs(value);
  if (size >= 1e9) return digits(value / 1e9) + " G";
  if (size >= 1e6) return digits(value / 1e6) + " M";
  if (size >= 1e4) return digits(value / 1e3) + " k";
  return digits(value);
}
/** Microseconds as a time with its unit. */
function time(us) {
  if (!Number.isFinite(us)) return ["–", ""];
  if (us >= 1e6) return [digits(us / 1e6), "s"];
  if (us >= 1e3) return [digits(us / 1e3), "ms"];
  return [digits(us), "µs"];
}
const timeText = (us) => time(us).join(" ");
function bytes(value) {
  for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 1024]]) {
    if (value >= size) return [digits(value / size), unit];
  }
  return [digits(value), "B"];
}
const bytesText = (value) => bytes(value).join(" ");

// ---- scales ----

function niceTicks(low, high, count) {
  const span = high - low || 1;
  const raw = span / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
  const ticks = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) ticks.push(+at.toPrecision(12));
  return ticks;
}
/** The same for bytes: steps of powers of two. */
function byteTicks(low, high) {
  const step = 2 ** Math.ceil(Math.log2((high - low || 1) / 5)), ticks = [];
  for (let at = Math.ceil(low / step) * step; at <= high; at += step) ticks.push(at);
  return ticks;
}
function logTicks(low, high) {
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
    for (const m of high / low > 1e4 ? [1] : high / low > 100 ? [1, 3] : high / low > 10 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 7]) {
      const at = m * 10 ** power;
      if (at >= low * 0.999 && at <= high * 1.001) ticks.push(at);
    }
  }
  return ticks;
}
function scale(values, axis, from, to) {
  let low = axis.min ?? Math.min(...values), high = axis.max ?? Math.max(...values);
  if (!Number.isFinite(low)) [low, high] = [axis.log ? 1 : 0, axis.log ? 10 : 1];
  if (axis.log) {
    low = Math.max(low, 1e-9) * (axis.tight ? 1 : 0.85);
    high = Math.max(high, low) * (axis.tight ? 1.0001 : 1.15);
    if (high / low < 4 && !axis.tight) { const middle = Math.sqrt(low * high); low = middle / 2; high = middle * 2; }
  } else if (high === low) {
    high = low + (low === 0 ? 1 : Math.abs(low) * 0.2);
  } else if (!axis.tight) {
    high += (high - low) * 0.06;
  }
  const place = axis.log ? Math.log : (v) => v;
  const at = (value) => from + ((place(Math.max(value, axis.log ? 1e-9 : -Infinity)) - place(low)) / (place(high) - place(low))) * (to - from);
  const ticks = axis.ticks ?? (axis.log ? logTicks(low, high) : axis.bytes ? byteTicks(low, high) : niceTicks(low, high, axis.count ?? 5));
  return { at, ticks, low, high };
}

// ---- plots ----

const LEFT = 62, RIGHT = 14, TOP = 10, BOTTOM = 34;

function frame(x, y, xAxis, yAxis, across, down) {
  const right = across - RIGHT, bottom = down - BOTTOM;
  let svg = "";
  for (const tick of y.ticks) {
    const at = y.at(tick).toFixed(1);
    svg += `<line class="grid-line" x1="${LEFT}" x2="${right}" y1="${at}" y2="${at}"/><text x="${LEFT - 8}" y="${+at + 4}" text-anchor="end">${text(yAxis.format(tick))}</text>`;
  }
  for (const tick of x.ticks) {
    const at = x.at(tick).toFixed(1);
    svg += `<line class="axis" x1="${at}" x2="${at}" y1="${bottom}" y2="${bottom + 4}"/><text x="${at}" y="${bottom + 17}" text-anchor="middle">${text(xAxis.format(tick))}</text>`;
  }
  return svg + `<line class="axis" x1="${LEFT}" x2="${right}" y1="${bottom}" y2="${bottom}"/><text x="${right}" y="${down - 2}" text-anchor="end">${text(xAxis.label)}</text>`;
}

/** A card with lines over a common x. Each series: name, color, points, and maybe area, dots or steps. */
function lines({ title, say, series, x: xAxis, y: yAxis, warm, rule, wide }) {
  const shown = series.filter((s) => s.points.length > 0);
  if (shown.length === 0) return;
  const across = wide ? 1160 : 640, down = wide ? 310 : 250;
  const points = shown.flatMap((s) => s.points);
  const x = scale(points.map((p) => p[0]), { tight: true, ...xAxis }, LEFT, across - RIGHT);
  const values = points.map((p) => p[1]).filter((v) => !yAxis.log || v > 0);
  const y = scale(rule ? [...values, rule.value] : values, yAxis, down - BOTTOM, TOP);
  let svg = "";
  if (warm > x.low) {
    svg += `<rect class="warm" x="${LEFT}" y="${TOP}" width="${(x.at(warm) - LEFT).toFixed(1)}" height="${down - BOTTOM - TOP}"/>`;
    if (x.at(warm) > LEFT + 60) svg += `<text x="${LEFT + 6}" y="${TOP + 13}">warm-up</text>`;
  }
  svg += frame(x, y, xAxis, yAxis, across, down);
  if (rule) {
    const at = y.at(rule.value).toFixed(1);
    svg += `<line class="rule" x1="${LEFT}" x2="${across - RIGHT}" y1="${at}" y2="${at}"/><text x="${LEFT + 6}" y="${at - 5}">${text(rule.name)}</text>`;
  }
  for (const s of shown) {
    const place = s.points.filter((p) => !yAxis.log || p[1] > 0).map((p) => `${x.at(p[0]).toFixed(1)},${y.at(p[1]).toFixed(1)}`);
    if (s.area && place.length > 1) {
      const base = down - BOTTOM;
      svg += `<polygon points="${place[0].split(",")[0]},${base} ${place.join(" ")} ${place.at(-1).split(",")[0]},${base}" fill="${s.color}" opacity=".12"/>`;
    }
    if (s.bars) {
      const width = Math.max(1, ((across - LEFT - RIGHT) / s.bars) - 1.5);
      for (const p of s.points) {
        const top = y.at(p[1]);
        if (p[1] > 0) svg += `<rect x="${(x.at(p[0]) - width / 2).toFixed(1)}" y="${top.toFixed(1)}" width="${width.toFixed(1)}" height="${Math.max(0.8, down - BOTTOM - top).toFixed(1)}" rx="1.5" fill="${s.color}" opacity="${s.opacity ?? 0.85}"/>`;
      }
    } else if (!s.dots) {
      svg += `<polyline points="${place.join(" ")}" fill="none" stroke="${s.color}" stroke-width="${s.width ?? 1.8}" stroke-linejoin="round" stroke-linecap="round"/>`;
    }
    if (s.dots || place.length === 1) {
      for (const at of place) svg += `<circle cx="${at.split(",")[0]}" cy="${at.split(",")[1]}" r="4.5" fill="${s.hollow ? "var(--card)" : s.color}" stroke="${s.color}" stroke-width="2"/>`;
    }
  }
  svg += `<line class="cross" y1="${TOP}" y2="${down - BOTTOM}"/>`;
  const card = addCard(title, say, shown.length > 1 || series[0].always ? shown : [], wide);
  card.insertAdjacentHTML("beforeend", `<svg viewBox="0 0 ${across} ${down}" role="img" aria-label="${text(title)}">${svg}</svg><div class="tip"></div>`);
  hover(card, shown, x, xAxis, yAxis, across);
}

function hover(card, series, x, xAxis, yAxis, across) {
  const svg = card.querySelector("svg"), cross = card.querySelector(".cross"), tip = card.querySelector(".tip");
  const all = [...new Set(series.flatMap((s) => s.points.map((p) => p[0])))].sort((a, b) => a - b);
  svg.addEventListener("mousemove", (event) => {
    const box = svg.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * across;
    const nearest = all.reduce((best, value) => (Math.abs(x.at(value) - at) < Math.abs(x.at(best) - at) ? value : best), all[0]);
    const rows = series.map((s) => [s, s.points.find((p) => p[0] === nearest)]).filter(([, p]) => p);
    tip.innerHTML = `<b>${text((xAxis.tell ?? xAxis.format)(nearest))}</b>` + rows.map(([s, p]) => `<div><span><i style="background:${s.color}"></i>${text(s.name)}</span><span>${text((yAxis.tell ?? yAxis.format)(p[1]))}</span></div>`).join("");
    for (const end of ["x1", "x2"]) cross.setAttribute(end, x.at(nearest));
    const left = (x.at(nearest) / across) * box.width;
    tip.style.left = left > box.width * 0.6 ? `${left - tip.offsetWidth + 4}px` : `${left + 28}px`;
    tip.style.top = "52px";
    for (const part of [cross, tip]) part.style.visibility = "visible";
  });
  svg.addEventListener("mouseleave", () => { for (const part of [cross, tip]) part.style.visibility = "hidden"; });
}

let grid;
function addGrid() { page.insertAdjacentHTML("beforeend", '<div class="grid"></div>'); grid = page.lastElementChild; }
function addCard(title, say, legend, wide) {
  const keys = (legend ?? []).map((s) => `<span><i style="background:${s.color}"></i>${text(s.name)}</span>`).join("");
  grid.insertAdjacentHTML("beforeend", `<section class="card${wide ? " wide" : ""}"><div class="head"><div><h2>${text(title)}</h2>${say ? `<div class="say">${text(say)}</div>` : ""}</div><div class="legend">${keys}</div></div></section>`);
  return grid.lastElementChild;
}
function addTable(title, say, head, rows, wide) {
  const cell = (value) => (typeof value === "object" ? `<td class="${value.kind}">${value.html ?? text(value.text)}</td>` : `<td>${text(value)}</td>`);
  const card = addCard(title, say, [], wide);
  card.insertAdjacentHTML("beforeend", `<div class="scroll"><table><thead><tr>${head.map((h) => `<th>${text(h)}</th>`).join("")}</tr></thead><tbody>${rows.map((row) => `<tr>${row.map(cell).join("")}</tr>`).join("")}</tbody></table></div>`);
  return card;
}
function tiles(list) {
  page.insertAdjacentHTML("beforeend", `<div class="tiles">${list.map(({ name, value: [value, unit], more }) => `<div class="tile"><div class="name">${text(name)}</div><div class="value">${text(value)}<span class="unit">${text(unit)}</span></div><div class="more" title="${text(more)}">${text(more)}</div></div>`).join("")}</div>`);
}
function header(title, badges, sub) {
  const marks = badges.map(([good, say]) => `<span class="badge ${good ? "good" : "bad"}">${text(say)}</span>`).join("");
  page.insertAdjacentHTML("beforeend", `<header><h1>${text(title)}</h1>${marks}</header><p class="sub">${text(sub)}</p>`);
}
function notes(list, bad) {
  if (list.length) page.insertAdjacentHTML("beforeend", `<ul class="notes${bad ? " bad" : ""}">${list.map((note) => `<li>${text(note)}</li>`).join("")}</ul>`);
}
function footer(say) { page.insertAdjacentHTML("beforeend", `<footer>${text(say)}</footer>`); }

const when = (unixMs) => new Date(unixMs).toISOString().replace("T", " ").slice(0, 19) + " UTC";
const SECONDS = { label: "seconds", min: 0, format: digits, tell: (s) => `${digits(s)} s`, count: 8 };
const BYTES = { min: 0, bytes: true, format: bytesText };
const TIMES = { log: true, format: timeText };

// ---- a run ----

function run() {
  const sides = [["send", "sent", "var(--c0)"], ["receive", "received", "var(--c2)"]].filter(([side]) => data[side]);
  const names = { produce: "Produce", consume: "Consume", e2e: "End to end", replay: "Replay" };
  const badges = [[data.clean, data.clean ? "clean" : "with errors"]];
  if (data.verify) badges.push([data.verify.sound, data.verify.sound ? "every message accounted for" : "messages unaccounted for"]);
  const targets = data.targets.map(([address, queues]) => `${address} (${queues} queues)`).join(", ");
  header(`${names[data.mode] ?? data.mode} on ${data.options.topic ?? ""}`, badges, `${when(data.started_unix_ms)} · ${digits(data.measured_seconds)} s measured · ${targets} · ${data.tool}`);
  notes(troubles(sides), true);
  notes(data.warnings, false);
  runTiles(sides);
  addGrid();
  if (data.knee) kneePlot();
  timePlots(sides);
  distributions(sides);
  processes();
  runTables(sides);
  const options = Object.entries(data.options).filter(([, value]) => value !== null && value !== false && !(Array.isArray(value) && value.length === 0));
  page.insertAdjacentHTML("beforeend", `<details><summary>All options of this run</summary><dl>${options.map(([name, value]) => `<div><dt>${text(name)}</dt><dd title="${text(value)}">${text(value)}</dd></div>`).join("")}</dl></details>`);
  footer(`${data.processors} processors. Latencies are kept in HdrHistograms of three digits. In an open loop they count from when a request was meant to be sent, so that a stall shows in every request that it delayed.`);
}

function troubles(sides) {
  const list = [];
  for (const [side, verb] of sides) {
    const s = data[side];
    for (const e of s.errors) list.push(`${whole(e.count)} × response code ${e.code} ${e.remark}`);
    for (const [field, say] of [["unanswered", "requests without an answer"], ["strays", "answers to nothing"], ["breaks", "broken connections"], ["unsent", "requests due and not sent"], ["bad_records", "records not as they should be"]]) {
      if (s[field]) list.push(`${whole(s[field])} ${say} (${verb})`);
    }
  }
  for (const g of data.groups) if (g.missing || g.surplus) list.push(`group ${g.name}: ${whole(g.missing)} messages missing, ${whole(g.surplus)} too many`);
  return list;
}

function runTiles(sides) {
  const list = [];
  if (data.knee) list.push({ name: "knee", value: data.knee.rate ? [whole(data.knee.rate), "msg/s"] : ["none", ""], more: `p99 under ${digits(data.knee.p99_bound_ms)} ms` });
  for (const [side, verb] of sides) {
    const s = data[side];
    const asked = side === "send" && data.rate_asked ? `${whole(data.rate_asked)} asked` : `${short(s.messages)} in all`;
    list.push({ name: `${verb}`, value: [whole(s.messages_per_second), "msg/s"], more: `${digits(s.megabytes_per_second)} MB/s, ${asked}` });
  }
  const last = sides.at(-1)[0], latency = data[last].latency;
  const of = last === "send" ? "of a request" : data.mode === "e2e" ? "from send to receive" : "of a pull";
  for (const [name, field] of [["median", "p50_us"], ["p99", "p99_us"], ["p99.9", "p999_us"]]) list.push({ name, value: time(latency[field]), more: of });
  if (data.broker) {
    const b = data.broker;
    list.push({ name: "broker CPU", value: [digits(b.cores), "cores"], more: b.cpu_seconds_per_million ? `${digits(b.cpu_seconds_per_million)} s per million` : "" });
    list.push({ name: "broker memory", value: bytes(b.rss_bytes), more: `${bytesText(b.rss_bytes_max)} at most` });
  }
  list.push({ name: "harness CPU", value: [digits(data.harness.cpu_us_per_message ?? 0), "µs/msg"], more: `a thread used ${whole(data.harness.busiest_thread * 100)}%` });
  tiles(list);
}

/** The middle of a stretch of so many seconds that ends at a time, to the hundredth. */
const middle = (end, seconds) => Math.round((end - seconds / 2) * 100) / 100;

function timePlots(sides) {
  const warm = Math.max(0, ...data.series.filter((s) => s.warmup).map((s) => s.at));
  // What is shorter than half a second is no rate.
  const of = (side, value) => data.series.filter((s) => s[side] && s[side].seconds > 0.5).map((s) => [middle(s.at, s[side].seconds), value(s[side])]);
  lines({
    title: "Throughput", say: "messages a second", warm, x: SECONDS, y: { min: 0, format: short, tell: (v) => `${whole(v)} msg/s` },
    series: sides.map(([side, name, color]) => ({ name, color, area: true, points: of(side, (s) => s.messages / s.seconds) })),
  });
  for (const [side] of sides) {
    const say = { send: "send to answer, each second", receive: data.mode === "e2e" ? "send to receive, each second" : "pulls that found something, each second" }[side];
    lines({
      title: side === "send" ? "Latency of sends" : data.mode === "e2e" ? "Age at arrival" : "Latency of pulls", say, warm, x: SECONDS, y: TIMES,
      series: [["max", "max_us"], ["p99.9", "p999_us"], ["p99", "p99_us"], ["p90", "p90_us"], ["p50", "p50_us"]].map(([name, field], at) => ({ name, color: `var(--p${4 - at})`, points: of(side, (s) => s[field]).filter((p) => p[1] > 0) })),
    });
  }
  if (data.series.some((s) => s.send?.errors || s.receive?.errors)) {
    lines({ title: "Errors", say: "answers with an error code a second", warm, x: SECONDS, y: { min: 0, format: short }, series: sides.map(([side, name]) => ({ name, color: "var(--c1)", area: true, points: of(side, (s) => s.errors / s.seconds) })) });
  }
}

function distributions(sides) {
  const label = { send: "send to answer", receive: data.mode === "e2e" ? "send to receive" : "pull" };
  // A quantile's place: how many nines it has.
  const nines = (q) => -Math.log10(1 - q);
  const series = sides.map(([side, , color]) => ({ name: label[side], color, always: true, points: data[side].curve.filter(([q]) => q < 1).map(([q, us]) => [nines(q), us]).filter((p) => p[1] > 0) }));
  const most = Math.max(1, ...series.flatMap((s) => s.points.map((p) => p[0])));
  const marks = [[nines(0.5), "50"], [1, "90"], [2, "99"], [3, "99.9"], [4, "99.99"], [5, "99.999"], [6, "99.9999"]].filter(([at]) => at <= most);
  lines({
    title: "Latency by percentile", say: "all of the measured time", series, y: TIMES,
    x: { label: "percentile", min: 0, max: most, ticks: marks.map(([at]) => at), format: (at) => marks.find(([mark]) => mark === at)?.[1] ?? "", tell: (at) => `${+(100 * (1 - 10 ** -at)).toPrecision(7)} %` },
  });
  const ratio = 2 ** 0.25, spread = sides.flatMap(([side]) => data[side].buckets.filter(([, count]) => count > 0).map(([us]) => us));
  const bars = spread.length ? Math.max(12, Math.round(Math.log(Math.max(...spread) / Math.min(...spread)) / Math.log(ratio)) + 2) : 12;
  lines({
    title: "Latency distribution", say: "part of all, by latency", x: { label: "latency", log: true, format: timeText, tell: (us) => `up to ${timeText(us)}` },
    y: { min: 0, format: (part) => `${digits(part * 100)} %` },
    series: sides.map(([side, , color]) => { const total = data[side].latency.count || 1; return { name: label[side], color, bars, always: true, opacity: sides.length > 1 ? 0.6 : 0.85, points: data[side].buckets.filter(([, count]) => count > 0).map(([us, count]) => [us, count / total]) }; }),
  });
}

function processes() {
  const warm = Math.max(0, ...data.series.filter((s) => s.warmup).map((s) => s.at));
  const rate = (field) => data.series.slice(1).flatMap((s, at) => {
    const before = data.series[at], seconds = s.at - before.at;
    return s[field] === null || seconds <= 0.5 ? [] : [[middle(s.at, seconds), (s[field] - before[field]) / seconds]];
  });
  const broker = data.broker ? rate("broker_cpu_seconds") : [];
  lines({
    title: "Processor time", say: "cores in use, each second", warm, x: SECONDS, y: { min: 0, format: digits, tell: (v) => `${digits(v)} cores` },
    series: [{ name: "broker", color: "var(--c0)", area: true, points: broker }, { name: "harness", color: "var(--c1)", points: rate("harness_cpu_seconds"), always: true }],
  });
  lines({
    title: "Broker memory", say: "resident", warm, x: SECONDS, y: BYTES,
    series: [{ name: "resident", color: "var(--c4)", area: true, points: data.series.filter((s) => s.broker_rss_bytes).map((s) => [s.at, s.broker_rss_bytes]) }],
  });
  lines({
    title: "Replication lag", say: "bytes of the masters' logs that the slaves lack", warm, x: SECONDS, y: BYTES,
    series: [{ name: "behind", color: "var(--c3)", area: true, points: data.series.filter((s) => s.replication_lag_bytes !== null).map((s) => [s.at, s.replication_lag_bytes]) }],
  });
}

function kneePlot() {
  const { tries, p99_bound_ms: bound, rate } = data.knee;
  const sorted = [...tries].sort((a, b) => a.rate - b.rate);
  // Of several tries at one rate, the last decided.
  const last = [...new Map(sorted.map((t) => [t.rate, t])).values()];
  const dots = (borne) => sorted.filter((t) => t.borne === borne && t.p99_us > 0).map((t) => [t.rate, t.p99_us]);
  lines({
    title: "The knee", say: rate ? `${whole(rate)} msg/s is the highest rate whose p99 stays under ${digits(bound)} ms` : `no rate stayed under ${digits(bound)} ms`, wide: true,
    x: { label: "messages a second asked for", log: true, tight: false, format: short, tell: (v) => `${whole(v)} msg/s` }, y: TIMES, rule: { value: bound * 1e3, name: `bound ${digits(bound)} ms` },
    series: [{ name: "p50", color: "var(--p0)", points: last.filter((t) => t.p50_us > 0).map((t) => [t.rate, t.p50_us]) }, { name: "p99, borne", color: "var(--c2)", dots: true, points: dots(true) }, { name: "p99, not borne", color: "var(--bad)", dots: true, hollow: true, points: dots(false) }],
  });
  addTable("Rates that were tried", "in their order", ["asked for", "sent", "p50", "p99", ""], tries.map((t) => [whole(t.rate), whole(t.achieved), timeText(t.p50_us), timeText(t.p99_us), t.borne ? { kind: "better", text: "borne" } : { kind: "worse", text: t.reason }]), true);
}

function runTables(sides) {
  const fields = ["p50_us", "p90_us", "p99_us", "p999_us", "max_us", "mean_us"];
  const row = (name, l) => [name, whole(l.count), ...fields.map((f) => timeText(l[f]))];
  const rows = sides.map(([side]) => row(side === "send" ? "send request" : data.mode === "e2e" ? "send to receive" : "pull with messages", data[side].latency));
  if (data.send?.lag) rows.push(row("sent late by the harness", data.send.lag));
  if (data.groups.length > 1) for (const g of data.groups) rows.push(row(`group ${g.name}`, g.latency));
  addTable("Latencies", "", ["", "count", "p50", "p90", "p99", "p99.9", "max", "mean"], rows, true);
  if (!data.verify) return;
  const v = data.verify, mark = (count) => (count ? { kind: "bad", text: whole(count) } : "0");
  const card = addTable("Every message accounted for", `${whole(v.acknowledged)} were acknowledged`, ["group", "arrived", "lost", "duplicated", "reordered", "corrupt", "there unacknowledged"],
    v.groups.map((g) => [g.name, whole(g.arrived), mark(g.lost), mark(g.duplicated), v.order ? mark(g.reordered) : "not judged", mark(g.corrupt), whole(g.unacknowledged)]), true);
  const found = v.groups.flatMap((g) => g.texts);
  if (found.length) card.insertAdjacentHTML("beforeend", `<ul class="lists">${found.map((t) => `<li>${text(t)}</li>`).join("")}</ul>`);
}

// ---- a comparison ----

function compare() {
  const names = data.endpoints, base = names[0];
  const unclean = data.rows.flatMap((row) => Object.entries(row.unclean).map(([name, count]) => `${row.name}: ${count} of ${data.rounds} runs of ${name} had errors`)).concat(data.rows.flatMap((row) => Object.entries(row.failed).flatMap(([name, whys]) => whys.map((why) => `${row.name}: nothing at ${name}, ${why}`))));
  header(data.title, [[unclean.length === 0, unclean.length ? "some runs had errors" : "all runs clean"]], `${when(data.started_unix_ms)} · ${data.rounds} ${data.rounds === 1 ? "round" : "rounds"}, in turn · ${names.join(", ")} · ${data.machine} · ${data.tool}`);
  notes(unclean, true);
  notes(data.notes, false);
  addGrid();
  for (const other of names.slice(1)) advantages(base, other);
  for (const row of data.rows) rowTable(row, names, base);
  for (const fact of data.facts) addCard(fact.name, "", [], true).insertAdjacentHTML("beforeend", `<pre>${text(fact.text)}</pre>`);
  footer(`Medians of all rounds, with the lowest and the highest beside them. A factor above 1 means that ${base} did better; it is taken round by round, between runs that followed each other. Made by: ${data.command}`);
}

/** How many times better the first endpoint did than another, row by row, with the spread over the rounds. */
function advantages(base, other) {
  const list = data.rows.flatMap((row) => row.measures.filter((m) => m.advantage[other]).map((m) => ({ row: row.name, name: m.name, ...m.advantage[other] })));
  if (list.length === 0) return;
  const high = 26, left = 372, width = 1160, right = 96, height = list.length * high + 34;
  const x = scale(list.flatMap((a) => [a.low, a.high, 1]), { log: true }, left, width - right);
  let svg = "";
  for (const tick of x.ticks) svg += `<line class="grid-line" x1="${x.at(tick)}" x2="${x.at(tick)}" y1="0" y2="${height - 28}"/><text x="${x.at(tick)}" y="${height - 10}" text-anchor="middle">${digits(tick)}×</text>`;
  svg += `<line class="rule" x1="${x.at(1)}" x2="${x.at(1)}" y1="0" y2="${height - 28}"/>`;
  list.forEach((a, at) => {
    const y = at * high + 14, color = a.median >= 1 ? "var(--c2)" : "var(--bad)";
    const first = at === 0 || list[at - 1].row !== a.row;
    if (first && at > 0) svg += `<line class="grid-line" x1="0" x2="${width}" y1="${y - 13}" y2="${y - 13}"/>`;
    if (first) svg += `<text x="0" y="${y + 4}" style="fill:var(--ink);font-size:12px">${text(a.row.length > 42 ? a.row.slice(0, 41) + "…" : a.row)}<title>${text(a.row)}</title></text>`;
    svg += `<text x="${left - 12}" y="${y + 4}" text-anchor="end">${text(a.name)}</text>`;
    svg += `<line x1="${x.at(a.low)}" x2="${Math.max(x.at(a.high), x.at(a.low) + 1)}" y1="${y}" y2="${y}" stroke="${color}" stroke-width="6" opacity=".28" stroke-linecap="round"/><circle cx="${x.at(a.median)}" cy="${y}" r="4.5" fill="${color}"/>`;
    svg += `<text x="${width - 4}" y="${y + 4}" text-anchor="end" style="fill:var(--ink);font-size:12px">${digits(a.median)}×</text>`;
  });
  const card = addCard(`${base} against ${other}`, "how many times better, the median with the spread over the rounds; left of the line it is worse", [], true);
  card.insertAdjacentHTML("beforeend", `<svg viewBox="0 0 ${width} ${height}" role="img" aria-label="${text(base)} against ${text(other)}">${svg}</svg>`);
}

function rowTable(row, names, base) {
  const figure = (m, name) => {
    const f = m.figures[name];
    if (!f) return "";
    const spread = f.values.length > 1 ? `<span class="spread">${digits(f.low)} – ${digits(f.high)}</span>` : "";
    return { kind: "", html: `${digits(f.median)}${spread}` };
  };
  const factor = (m, name) => {
    const a = m.advantage[name];
    if (!a) return "";
    const spread = a.values.length > 1 ? `<span class="spread">${digits(a.low)} – ${digits(a.high)}</span>` : "";
    return { kind: a.low > 1 ? "better" : a.high < 1 ? "worse" : "", html: `${digits(a.median)}×${spread}` };
  };
  const rows = row.measures.map((m) => [m.name, ...names.map((name) => figure(m, name)), ...names.slice(1).map((name) => factor(m, name))]);
  addTable(row.name, row.command, ["", ...names, ...names.slice(1).map((name) => `against ${name}`)], rows, true);
}

if (page.dataset.kind === "run") run();
else compare();
