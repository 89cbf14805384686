"use strict";
// The inspect page: polls ui/data once a second while it is visible, and shows it.
//
// Names, reasons, values and messages come from models, files and clients. All of them become text nodes (`h`, `text`);
// nothing here parses markup, and the policy of the document runs no other script.

const POLL_MS = 1000, TIMEOUT_MS = 8000, PAGE_ROWS = 50;
// Rates are computed over up to so many snapshots, so that they do not flicker.
const RATE_SNAPSHOTS = 5, PERCENTILE_SNAPSHOTS = 15, HISTORY_MAX = 180, HISTORY_MODELS_MAX = 200;
const PHASES = [["queue", "Queue"], ["input", "Input"], ["infer", "Model"], ["output", "Output"]];
const COUNTER_ORDER = ["total", "queue", "input", "infer", "output"];
// What a key may have: browsers send other characters in another encoding, or refuse the request.
const KEY = /^[ -~]*$/;
const SVG = "http://www.w3.org/2000/svg";

const byId = (id) => document.getElementById(id);

// Elements ---------------------------------------------------------------------------------------------------------

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, String(value));
  }
  for (const child of children.flat(2)) {
    if (child == null || child === false) continue;
    node.append(child instanceof Node ? child : String(child));
  }
  return node;
}

const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

function text(node, value) {
  const wanted = value == null ? "" : String(value);
  if (node.textContent !== wanted) node.textContent = wanted;
}

function attribute(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

// Numbers ----------------------------------------------------------------------------------------------------------

function number(value) {
  if (value == null || !isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e9) return (value / 1e9).toFixed(size >= 1e10 ? 0 : 1) + " G";
  if (size >= 1e6) return (value / 1e6).toFixed(size >= 1e7 ? 0 : 1) + " M";
  if (size >= 1e4) return (value / 1e3).toFixed(size >= 1e5 ? 0 : 1) + " k";
  if (size >= 100 || Number.isInteger(value)) return String(Math.round(value));
  return value.toFixed(size >= 10 ? 1 : 2);
}

function duration(ns) {
  if (ns == null || !isFinite(ns)) return "–";
  if (ns === 0) return "0";
  if (ns >= 60e9) return (ns / 60e9).toFixed(1) + " min";
  if (ns >= 1e9) return (ns / 1e9).toFixed(2) + " s";
  if (ns >= 1e6) return (ns / 1e6).toFixed(ns >= 1e8 ? 0 : ns >= 1e7 ? 1 : 2) + " ms";
  if (ns >= 1e3) return (ns / 1e3).toFixed(ns >= 1e5 ? 0 : 1) + " µs";
  return Math.round(ns) + " ns";
}

function bytes(count) {
  if (count == null) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0, value = count;
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
  return (unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)) + " " + units[unit];
}

function ago(ms) {
  const seconds = Math.max(0, Math.round(ms / 1000));
  if (seconds < 60) return seconds + " s";
  if (seconds < 3600) return Math.floor(seconds / 60) + " min " + (seconds % 60) + " s";
  if (seconds < 86400) return Math.floor(seconds / 3600) + " h " + Math.floor(seconds % 3600 / 60) + " min";
  return Math.floor(seconds / 86400) + " d " + Math.floor(seconds % 86400 / 3600) + " h";
}

const clock = (ms) => new Date(ms).toLocaleTimeString([], { hour12: false });
const sum = (object) => Object.values(object || {}).reduce((total, value) => total + value, 0);

// State ------------------------------------------------------------------------------------------------------------

const state = {
  now: null, before: [], failedSince: null, lastAt: null, keys: {}, note: {},
  histories: new Map(), totals: [], details: [], percentiles: [],
  models: { sort: "name", down: false, filter: "", page: 0 }, flags: { filter: "", given: false }, slowFilter: "",
  executing: new Map(),
};

const keyOf = (row) => row.namespace + "\n" + row.name + "\n" + row.version;
const view = () => {
  const [name, ...rest] = location.hash.slice(1).split("/");
  let model = null;
  try { model = name === "model" ? decodeURIComponent(rest.join("/")) : null; } catch { model = null; }
  return { name: name === "model" && model == null ? "models" : name || "models", model };
};

function index(snapshot) {
  snapshot.byKey = new Map(snapshot.models.map((row) => [keyOf(row), row]));
}

// What happened to a row between the oldest kept snapshot and now.
function change(row) {
  const key = keyOf(row);
  const base = state.before.find((old) => old.byKey.has(key));
  const old = base && base.byKey.get(key);
  const seconds = base ? (state.now.server.clock_ns - base.server.clock_ns) / 1e9 : 0;
  if (!old || old.ns == null || row.ns == null || seconds <= 0 || old.success > row.success) {
    return { rate: null, failed: null, average: null, phases: null };
  }
  const succeeded = row.success - old.success;
  const failed = sum(row.failures) + sum(row.refused) - sum(old.failures) - sum(old.refused);
  const phases = succeeded > 0 ? row.ns.map((ns, place) => (ns - old.ns[place]) / succeeded) : null;
  return { rate: (succeeded + failed) / seconds, failed: failed / seconds, average: phases && phases[0], phases };
}

function take(snapshot) {
  index(snapshot);
  if (state.now && (state.now.server.pid !== snapshot.server.pid || state.now.server.uptime_ms > snapshot.server.uptime_ms)) {
    Object.assign(state, { before: [], histories: new Map(), totals: [], details: [], percentiles: [], executing: new Map() });
  } else if (state.now) {
    state.before.push(state.now);
    if (state.before.length > RATE_SNAPSHOTS) state.before.shift();
  }
  state.now = snapshot;
  const total = { at: snapshot.server.clock_ns, rate: 0, failed: 0, queue: 0, running: 0 };
  const shown = view().model;
  for (const row of snapshot.models) {
    row.change = change(row);
    total.rate += row.change.rate || 0;
    total.failed += row.change.failed || 0;
    total.queue += row.queue || 0;
    total.running += row.running || 0;
    if (row.ns && (snapshot.models.length <= HISTORY_MODELS_MAX || row.name === shown)) {
      const key = keyOf(row);
      if (!state.histories.has(key)) state.histories.set(key, []);
      keep(state.histories.get(key), { at: total.at, queue: row.queue, running: row.running, ...row.change }, HISTORY_MAX);
    }
  }
  if (snapshot.models.length > HISTORY_MODELS_MAX) {
    for (const key of state.histories.keys()) if (key.split("\n")[1] !== shown) state.histories.delete(key);
  }
  if (!state.before.length) Object.assign(total, { rate: null, failed: null });
  keep(state.totals, total, HISTORY_MAX);
  if (snapshot.model) takeDetails(snapshot);
}

function keep(list, value, most) {
  list.push(value);
  if (list.length > most) list.shift();
}

// Histograms and executions of the model that is shown.
function takeDetails(snapshot) {
  if (state.details.length && state.details[0].model.name !== snapshot.model.name) {
    Object.assign(state, { details: [], percentiles: [], executing: new Map() });
  }
  const seen = new Map();
  for (const version of snapshot.model.versions) {
    for (const worker of version.workers || []) {
      const key = keyOf(version) + "\n" + worker.names, old = state.executing.get(key);
      const same = old && old.executions === worker.executions;
      seen.set(key, { executions: worker.executions, since: same ? old.since : snapshot.server.clock_ns });
    }
    const base = state.details[0] && state.details[0].model.versions.find((one) => keyOf(one) === keyOf(version));
    const shown = { at: snapshot.server.clock_ns, key: keyOf(version) };
    if (version.histograms) {
      const old = base && base.histograms && base.histograms.request;
      for (const share of [50, 95, 99]) shown["p" + share] = percentile(version.histograms.request, old, share / 100);
    }
    keep(state.percentiles, shown, HISTORY_MAX * snapshot.model.versions.length);
  }
  state.executing = seen;
  keep(state.details, snapshot, PERCENTILE_SNAPSHOTS);
}

// Nanoseconds below which `share` of the values between two readings of a histogram lie; within a bucket by its width.
function percentile(histogram, old, share) {
  const counts = histogram.counts.map((count, place) => count - (old ? old.counts[place] : 0));
  const all = counts.reduce((total, count) => total + count, 0);
  if (all <= 0) return null;
  let passed = 0;
  for (let place = 0; place < counts.length; place += 1) {
    if (passed + counts[place] >= share * all && counts[place] > 0) {
      const low = place === 0 ? 0 : histogram.bounds[place - 1];
      const high = place < histogram.bounds.length ? histogram.bounds[place] : low * 2;
      return (low + (high - low) * (share * all - passed) / counts[place]) * 1000;
    }
    passed += counts[place];
  }
  return null;
}

// Requests to the server -------------------------------------------------------------------------------------------

let timer = null, polling = false;

async function poll() {
  clearTimeout(timer);
  if (polling || document.visibilityState === "hidden") return;
  polling = true;
  const wanted = view().model;
  try {
    const snapshot = await ask("ui/data" + (wanted == null ? "" : "?model=" + encodeURIComponent(wanted)));
    take(snapshot);
    state.failedSince = null;
    state.lastAt = Date.now();
  } catch (error) {
    if (state.failedSince == null) state.failedSince = Date.now();
  }
  polling = false;
  show();
  timer = setTimeout(poll, POLL_MS);
}

async function ask(path) {
  // A snapshot needs no key but the one for configurations, and the keys for changes stay here until there is a change.
  const header = state.now && state.now.model && state.now.model.config_header;
  const headers = header && state.keys[header] ? { [header]: state.keys[header] } : {};
  const answer = await fetch("/" + path, { headers, signal: AbortSignal.timeout(TIMEOUT_MS), cache: "no-store" });
  if (!answer.ok) throw new Error("status " + answer.status);
  return answer.json();
}

// A change, with the header of its key; what the server says about it becomes the note beside the buttons.
async function ordered(place, path, header, body, done) {
  state.note[place] = { text: "Waiting for the server…", kind: "" };
  show();
  try {
    const answer = await fetch("/ui/" + path, { method: "POST", headers: { [header]: state.keys[header] || "" }, body });
    const told = await answer.text();
    let message = told;
    try { message = JSON.parse(told).error || told; } catch { /* no JSON */ }
    state.note[place] = answer.ok ? { text: done, kind: "good" } : { text: answer.status + ": " + message, kind: "bad" };
  } catch (error) {
    state.note[place] = { text: "The server did not answer.", kind: "bad" };
  }
  show();
  poll();
}

// Pieces -----------------------------------------------------------------------------------------------------------

const KINDS = { READY: "good", LOADING: "warn", UNLOADING: "warn", STARTING: "warn", LEAVING: "warn", UNAVAILABLE: "bad", FAILED: "bad", EXITING: "bad" };

function kindOf(row) {
  return row.state === "UNAVAILABLE" && row.reason === "unloaded" ? "" : KINDS[row.state] || "";
}

function badge(node, value, kind) {
  text(node, value);
  attribute(node, "class", "badge " + (kind || ""));
}

// A table whose rows stay the same elements, so that focus and selection survive an update.
function table(columns, options) {
  const body = h("tbody");
  const heads = columns.map((column) => {
    const title = column.sort
      ? h("button", { type: "button", onclick: () => options.onsort(column.sort) }, column.title)
      : column.title;
    return h("th", { scope: "col", class: column.kind === "number" ? "number" : null }, title);
  });
  const node = h("div", { class: "scroll" }, h("table", { class: "fold" },
    h("caption", { class: "skip" }, options.caption), h("thead", {}, h("tr", {}, heads)), body));
  const update = (rows) => {
    while (body.rows.length > rows.length) body.lastChild.remove();
    rows.forEach((row, place) => {
      let line = body.rows[place];
      if (!line) {
        line = h("tr", {}, columns.map((column) => h("td", { class: column.kind, "data-label": column.title }, h("div", {}, column.make && column.make()))));
        body.append(line);
      }
      columns.forEach((column, at) => {
        const cell = line.cells[at].firstChild;
        if (column.put) column.put(cell.firstChild, row);
        else text(cell, column.value(row));
        if (!column.put) cell.parentNode.classList.toggle("empty", cell.textContent === "–");
      });
    });
  };
  const sorted = (name, down) => columns.forEach((column, at) => {
    if (column.sort) attribute(heads[at], "aria-sort", column.sort === name ? (down ? "descending" : "ascending") : "none");
  });
  return { node, update, sorted };
}

function stack(values, whole) {
  const node = h("div", { class: "stack", role: "img" });
  putStack(node, values, whole);
  return node;
}

function putStack(node, values, whole) {
  const parts = [...values.map((value, place) => [PHASES[place][0], PHASES[place][1], value])];
  const rest = Math.max(0, whole - values.reduce((total, value) => total + value, 0));
  parts.push(["other", "Other", rest]);
  const all = parts.reduce((total, part) => total + part[2], 0) || 1;
  while (node.children.length < parts.length) node.append(h("i"));
  parts.forEach(([name, title, value], place) => {
    const piece = node.children[place];
    attribute(piece, "class", name);
    piece.style.width = (100 * value / all).toFixed(2) + "%";
    attribute(piece, "title", title + ": " + duration(value));
  });
  attribute(node, "aria-label", parts.map(([, title, value]) => title + " " + duration(value)).join(", "));
}

const phaseLegend = () => h("div", { class: "legend" },
  [...PHASES, ["other", "Other"]].map(([name, title]) => h("span", {}, h("i", { class: name }), title)));

// Lines over time as inline SVG.
function chart(title, series, format, note) {
  const picture = h("div");
  const legend = h("div", { class: "legend" });
  const hint = h("p", { class: "soft small" }, note || "");
  const node = h("section", { class: "card" }, h("h3", {}, title), picture, legend, note ? hint : null);
  const values = series.map(([, kind, name]) => {
    const value = h("b");
    legend.append(h("span", {}, s("svg", { viewBox: "0 0 26 10", "aria-hidden": "true" }, s("line", { x1: 0, x2: 26, y1: 5, y2: 5, class: "line " + kind })), name + " ", value));
    return value;
  });
  const update = (points) => {
    const width = Math.max(260, picture.clientWidth || 500), height = 170, left = 54, right = 8, top = 10, bottom = 22;
    const all = points.flatMap((point) => series.map(([name]) => point[name])).filter((value) => value != null && isFinite(value));
    const high = nice(Math.max(...all, 0));
    const end = points.length ? points[points.length - 1].at : 0, span = HISTORY_MAX * POLL_MS * 1e6;
    const x = (at) => left + (width - left - right) * (1 - (end - at) / span);
    const y = (value) => top + (height - top - bottom) * (1 - value / high);
    const grid = [0, 0.5, 1].map((share) => [
      s("line", { class: "grid", x1: left, x2: width - right, y1: y(high * share), y2: y(high * share) }),
      s("text", { x: left - 6, y: y(high * share) + 4, "text-anchor": "end" }, format(high * share)),
    ]);
    const times = [[3, "start"], [2, "middle"], [1, "middle"], [0, "end"]].map(([minutes, anchor]) => s("text",
      { x: x(end - minutes * 60e9), y: height - 5, "text-anchor": anchor }, minutes ? "−" + minutes + " min" : "now"));
    const lines = series.map(([name, kind]) => s("path", { class: "line " + kind, d: path(points, name, x, y, left) }));
    const last = points[points.length - 1] || {};
    series.forEach(([name], place) => text(values[place], format(last[name])));
    const label = title + ": " + series.map(([name, , shown]) => shown + " " + format(last[name])).join(", ");
    picture.replaceChildren(s("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, grid, times, lines));
  };
  return { node, update };
}

function path(points, name, x, y, left) {
  let drawn = "", pen = false;
  for (const point of points) {
    const value = point[name], at = x(point.at);
    if (value == null || !isFinite(value) || at < left) { pen = false; continue; }
    drawn += (pen ? "L" : "M") + at.toFixed(1) + " " + y(value).toFixed(1);
    pen = true;
  }
  return drawn || "M0 0";
}

function nice(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 5, 8, 10].map((step) => step * power).find((step) => step >= value) || value;
}

function pairs(node, list) {
  if (node.children.length !== 2 * list.length) node.replaceChildren(...list.flatMap(() => [h("dt"), h("dd")]));
  list.forEach(([name, value], place) => { text(node.children[2 * place], name); text(node.children[2 * place + 1], value); });
}

function noteNode(place) {
  const node = h("p", { class: "note", role: "status" });
  return { node, update: () => {
    const note = state.note[place] || { text: "", kind: "" };
    text(node, note.text);
    attribute(node, "class", "note " + note.kind);
  } };
}

// The field for the value of a header; it stays in the memory of this page.
function keyField(header, id) {
  const told = h("span", { class: "reason", role: "status" });
  const field = h("input", { type: "password", id, autocomplete: "off", spellcheck: "false", size: 18, oninput: () => {
    const usable = KEY.test(field.value);
    if (field.value && usable) state.keys[header] = field.value; else delete state.keys[header];
    text(told, usable ? "" : "Not used: a header can have only printable ASCII characters.");
    show();
  } });
  field.value = state.keys[header] || "";
  return h("label", { for: id }, "Key (header " + header + ")", field, told);
}

// Views ------------------------------------------------------------------------------------------------------------

const VIEWS = { models: modelsView, model: modelView, slow: slowView, messages: messagesView, server: serverView };
let current = { key: null, update: () => {} };

function modelsView() {
  const tile = (title) => { const value = h("b", {}, "–"); return { node: h("div", { class: "tile" }, value, h("span", {}, title)), value }; };
  const tiles = ["Requests a second", "Failures a second", "Requests waiting", "Requests running", "Connections", "Request memory"].map(tile);
  const options = state.models;
  const redo = () => { options.page = 0; show(); };
  const search = h("input", { type: "search", "aria-label": "Filter models by name, state, backend or reason", placeholder: "Filter: name, state, backend", oninput: () => { options.filter = search.value; redo(); } });
  search.value = options.filter;
  const count = h("span", { class: "soft", role: "status" });
  const move = (by) => () => { options.page += by; show(); };
  const back = h("button", { type: "button", onclick: move(-1) }, "Previous"), next = h("button", { type: "button", onclick: move(1) }, "Next");
  const rows = table([
    { title: "Model", kind: "name", sort: "name", make: () => h("div", {}, h("a"), h("span", { class: "reason" })), put: (cell, row) => {
      text(cell.firstChild, row.name); attribute(cell.firstChild, "href", "#model/" + encodeURIComponent(row.name));
      text(cell.lastChild, row.reason === "unloaded" ? "" : row.reason); } },
    { title: "Version", kind: "number", sort: "version", value: (row) => row.version == null ? "–" : row.version },
    { title: "State", sort: "state", make: () => h("span"), put: (cell, row) => badge(cell, row.reason === "unloaded" ? "UNLOADED" : row.state, kindOf(row)) },
    { title: "Backend", sort: "backend", value: (row) => row.backend || "–" },
    { title: "Requests/s", kind: "number", sort: "rate", value: (row) => number(row.change.rate) },
    { title: "Latency", kind: "number", sort: "average", value: (row) => duration(row.change.average) },
    { title: "Waiting", kind: "number", sort: "queue", value: (row) => number(row.queue) },
    { title: "Running", kind: "number", sort: "running", value: (row) => number(row.running) },
    { title: "Succeeded", kind: "number", sort: "success", value: (row) => number(row.success) },
    { title: "Failed", kind: "number", sort: "failures", value: (row) => row.ns ? number(failuresOf(row)) : "–" },
  ], { caption: "Models", onsort: (name) => {
    options.down = options.sort === name ? !options.down : !["name", "version", "state", "backend"].includes(name);
    options.sort = name; redo();
  } });
  const loader = h("div");
  const node = h("div", {}, h("h2", { class: "skip" }, "Models"), h("div", { class: "tiles" }, tiles.map((one) => one.node)),
    h("section", { class: "card" }, h("div", { class: "tools" }, search, count, h("span", { class: "push" }), back, next), rows.node), loader);
  let loaderFor = null;
  const note = noteNode("load");
  const update = () => {
    const { models, shards, memory, management } = state.now, total = state.totals[state.totals.length - 1];
    [number(total.rate), number(total.failed), number(total.queue), number(total.running),
      number(shards.reduce((all, shard) => all + shard.connections, 0)), bytes(memory.requests_used)].forEach((value, place) => text(tiles[place].value, value));
    const words = options.filter.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (row) => words.every((word) => [row.name, row.state, row.backend, row.reason].some((part) => (part || "").toLowerCase().includes(word)));
    const found = words.length ? models.filter(fits) : [...models];
    found.sort(compare(options.sort, options.down));
    const pages = Math.max(1, Math.ceil(found.length / PAGE_ROWS));
    options.page = Math.min(Math.max(0, options.page), pages - 1);
    const first = options.page * PAGE_ROWS, part = found.slice(first, first + PAGE_ROWS);
    const range = found.length > PAGE_ROWS ? `${first + 1}–${first + part.length} of ${found.length}` : String(found.length);
    text(count, range + (found.length === 1 ? " version" : " versions") + (words.length ? ` (of ${models.length})` : "") + (state.now.models_left_out ? `; ${state.now.models_left_out} more are left out` : ""));
    back.disabled = options.page === 0; next.disabled = options.page >= pages - 1;
    back.hidden = next.hidden = pages === 1;
    rows.update(part);
    rows.sorted(options.sort, options.down);
    const header = management.mode === "explicit" ? management.repository_header : null;
    if (header !== loaderFor) { loaderFor = header; loader.replaceChildren(...(header ? [loadForm(header, note)] : [])); }
    if (header) loader.querySelector("button").disabled = !state.keys[header];
    note.update();
  };
  return { node, update };
}

function loadForm(header, note) {
  const name = h("input", { type: "text", id: "load-name", "aria-label": "Model to load", placeholder: "Model of the repository" });
  const order = (event) => { event.preventDefault(); if (name.value) ordered("load", "models/" + encodeURIComponent(name.value) + "/load", header, null, "Loaded " + name.value + "."); };
  return h("section", { class: "card" }, h("h3", {}, "Load a model"),
    h("form", { class: "tools", onsubmit: order }, name, keyField(header, "load-key"), h("button", { type: "submit" }, "Load")), note.node);
}

const failuresOf = (row) => row.failures ? sum(row.failures) + sum(row.refused) : -1;

function compare(name, down) {
  const value = (row) => {
    if (name === "rate" || name === "average") return row.change[name] == null ? -1 : row.change[name];
    if (name === "failures") return failuresOf(row);
    return row[name] == null ? (["name", "state", "backend"].includes(name) ? "" : -1) : row[name];
  };
  return (one, other) => {
    const [a, b] = [value(one), value(other)];
    const order = typeof a === "string" ? a.localeCompare(b, undefined, { numeric: true }) : a - b;
    return (down ? -order : order) || one.name.localeCompare(other.name, undefined, { numeric: true }) || (one.version || 0) - (other.version || 0);
  };
}

function modelView(name) {
  const status = h("span", { class: "badge" });
  const buttons = h("div", { class: "tools" }), note = noteNode("model"), missing = h("p", { class: "soft" }), versions = h("div");
  const reader = h("div");
  const node = h("div", {}, h("p", {}, h("a", { href: "#models" }, "← All models")), h("div", { class: "heading" }, h("h2", {}, name), status), buttons, note.node, reader, missing, versions);
  let madeButtons = "", readerFor = null, made = "", parts = [];
  state.note.model = null;
  const update = () => {
    const { management, model } = state.now;
    const header = management.mode === "explicit" ? management.repository_header : null;
    if (madeButtons !== String(header)) {
      madeButtons = String(header);
      const order = (action, done) => () => ordered("model", "models/" + encodeURIComponent(name) + "/" + action, header, null, done);
      buttons.replaceChildren(...(header ? [keyField(header, "model-key"),
        h("button", { type: "button", id: "load", onclick: order("load", "Loaded.") }, "Load"),
        h("button", { type: "button", id: "unload", onclick: order("unload", "Unloading: requests that were accepted are finished first.") }, "Unload")] : []));
    }
    for (const button of buttons.querySelectorAll("button")) button.disabled = !state.keys[header];
    note.update();
    // The key for configurations has a field of its own unless the field above is for the same header.
    const readHeader = model && model.config_header !== header ? model.config_header : null;
    if (model && readHeader !== readerFor) {
      readerFor = readHeader;
      reader.replaceChildren(...(readHeader ? [keyField(readHeader, "config-key")] : []));
      attribute(reader, "class", readHeader ? "tools" : "");
    }
    const shown = model && model.name === name ? model.versions : null;
    text(missing, shown ? (shown.length ? "" : "No version of this model was loaded.") : model === null ? "There is no model of this name." : "Waiting for the details.");
    missing.hidden = !missing.textContent;
    if (!shown) return;
    const key = JSON.stringify(shown.map((version) => [version.version, version.namespace, version.ns != null, version.histograms != null]));
    if (key !== made) { made = key; parts = shown.map(versionPart); versions.replaceChildren(...parts.map((part) => part.node)); }
    parts.forEach((part, place) => part.update(shown[place]));
    const states = [...new Set(shown.map((version) => version.reason === "unloaded" ? "UNLOADED" : version.state))];
    badge(status, states.join(", "), shown.length ? kindOf(shown[shown.length - 1]) : "");
  };
  return { node, update };
}

// One version of the model that is shown.
function versionPart(first) {
  const status = h("span", { class: "badge" }), reason = h("p", { class: "reason" }), facts = h("span", { class: "soft" });
  const heading = h("div", { class: "heading" }, h("h3", {}, "Version " + first.version), status, facts);
  if (first.ns == null) {
    const node = h("section", { class: "card" }, heading, reason);
    return { node, update: (version) => { badge(status, version.reason === "unloaded" ? "UNLOADED" : version.state, kindOf(version)); text(reason, version.reason === "unloaded" ? "" : version.reason); } };
  }
  const rate = chart("Requests a second", [["rate", "a", "all"], ["failed", "c", "failed"]], number);
  const latency = first.histograms
    ? chart("Latency, percentiles", [["p50", "a", "p50"], ["p95", "b", "p95"], ["p99", "c", "p99"]], duration)
    : chart("Latency, averages", [["average", "a", "whole request"], ["queueNs", "c", "queue"], ["inferNs", "b", "model"]], duration,
      "Percentiles need histograms: --metrics-config=histogram_phases=true.");
  const load = chart("Waiting and running", [["queue", "c", "waiting"], ["running", "b", "running"]], number);
  const phases = h("div"), phaseTable = table([{ title: "Phase", kind: "nowrap", value: (row) => row[0] }, { title: "Now", kind: "number", value: (row) => duration(row[1]) }, { title: "Always", kind: "number", value: (row) => duration(row[2]) },
    ...(first.histograms ? [50, 95, 99].map((share, place) => ({ title: "p" + share, kind: "number", value: (row) => duration(row[3 + place]) })) : [])], { caption: "Phases: averages now and since the load, and percentiles" });
  const counts = h("dl"), batches = h("div", { class: "bars" });
  const workers = table([
    { title: "Instance", kind: "name", value: (row) => row.names },
    { title: "Now", make: () => h("span"), put: (cell, row) => badge(cell, row.executions % 2 ? "EXECUTING" : "IDLE", row.executions % 2 ? "good" : "") },
    { title: "Since", kind: "number", value: (row) => row.since },
    { title: "Executions", kind: "number", value: (row) => number(Math.floor(row.executions / 2)) }], { caption: "Instances" });
  const tensors = table([{ title: "Tensor", kind: "name", value: (row) => row[1].name }, { title: "Kind", value: (row) => row[0] + (row[1].optional ? ", optional" : "") },
    { title: "Datatype", value: (row) => row[1].datatype }, { title: "Shape", value: (row) => "[" + row[1].dims.join(", ") + "]" }], { caption: "Tensors" });
  const config = table([{ title: "Setting", kind: "name mono", value: (row) => row.path }, { title: "Value", kind: "text mono", value: (row) => row.value }, { title: "Source", kind: "text", value: (row) => row.source }], { caption: "Configuration" });
  const configNote = h("p", { class: "soft" });
  const node = h("div", {}, h("section", { class: "card" }, heading, reason, counts),
    h("div", { class: "cards" }, rate.node, latency.node, load.node,
      h("section", { class: "card" }, h("h3", {}, "Phases of a request"), phases, phaseLegend(), phaseTable.node),
      h("section", { class: "card" }, h("h3", {}, "Executions by batch size"), batches),
      h("section", { class: "card" }, h("h3", {}, "Instances"), workers.node)),
    h("section", { class: "card" }, h("h3", {}, "Inputs and outputs"), tensors.node),
    h("section", { class: "card" }, h("h3", {}, "Configuration"), configNote, config.node));
  const update = (version) => {
    badge(status, version.state, kindOf(version));
    text(reason, version.reason);
    text(facts, `${version.backend}, loaded in ${duration(version.load_seconds * 1e9)}, generation ${version.generation}, max batch size ${version.max_batch_size}`);
    const row = state.now.byKey.get(keyOf(version)) || version, failures = version.failures || {};
    const refused = Object.entries(version.refused || {}).map(([why, count]) => [`Refused: ${why}`, number(count)]);
    pairs(counts, [["Succeeded", `${number(version.success)} requests, ${number(version.inferences)} inferences in ${number(version.executions)} executions`],
      ["Failed", ["rejected", "canceled", "backend", "other"].map((why) => `${number(failures[why])} ${why}`).join(", ")], ...refused,
      ["Cache hits", number(version.cache_hits)], ["Last execution", version.last_ms ? ago(state.now.server.now_ms - version.last_ms) + " ago" : "none"],
      ["Memory", (version.memory || []).map((one) => `${one.kind} ${one.id}: ${bytes(one.bytes)}`).join(", ") || "not reported"]]);
    const history = (state.histories.get(keyOf(version)) || []).map((point) => ({ ...point, queueNs: point.phases && point.phases[1], inferNs: point.phases && point.phases[3] }));
    rate.update(history);
    load.update(history);
    latency.update(version.histograms ? state.percentiles.filter((point) => point.key === keyOf(version)) : history);
    const now = row.change && row.change.phases, ever = version.success > 0 ? version.ns.map((ns) => ns / version.success) : [];
    const bar = now || ever;
    if (!phases.firstChild) phases.append(stack([0, 0, 0, 0], 0));
    putStack(phases.firstChild, bar.length ? bar.slice(1) : [0, 0, 0, 0], bar[0] || 0);
    const old = state.details[0] && state.details[0].model.versions.find((one) => keyOf(one) === keyOf(version));
    const names = ["request", "queue", "compute_input", "compute_infer", "compute_output"];
    phaseTable.update(COUNTER_ORDER.map((phase, place) => [phase === "total" ? "Request" : PHASES[place - 1][1], now && now[place], ever[place],
      ...(version.histograms ? [0.5, 0.95, 0.99].map((share) => percentile(version.histograms[names[place]], old && old.histograms && old.histograms[names[place]], share) ?? percentile(version.histograms[names[place]], null, share)) : [])]));
    putBatches(batches, version.batches || []);
    workers.update((version.workers || []).map((worker) => ({ ...worker, since: sinceOf(version, worker) })));
    tensors.update([...(version.inputs || []).map((one) => ["input", one]), ...(version.outputs || []).map((one) => ["output", one])]);
    const header = state.now.model.config_header;
    text(configNote, version.config ? (version.config.length ? "" : "The sources of these values are not known: the instances were changed while the model served.")
      : header ? `The configuration needs a key: the header ${header}.`
        : "The configuration is withheld: its group model-config has a key for gRPC only.");
    configNote.hidden = !configNote.textContent;
    config.update(version.config || []);
  };
  return { node, update };
}

// The server keeps no times of executions: the page sees since when the count has not changed.
function sinceOf(version, worker) {
  const seen = state.executing.get(keyOf(version) + "\n" + worker.names);
  const passed = seen ? state.now.server.clock_ns - seen.since : 0;
  return passed >= 1e9 ? ago(passed / 1e6) : "< 1 s";
}

function putBatches(node, batches) {
  const shown = [...batches].sort((one, other) => other.count - one.count).slice(0, 12).sort((one, other) => one.size - other.size);
  if (!shown.length) return node.replaceChildren(h("span", { class: "soft" }, "No execution yet."));
  const most = Math.max(...shown.map((batch) => batch.count), 1);
  if (node.children.length !== 3 * shown.length) node.replaceChildren(...shown.flatMap(() => [h("span"), h("div", { class: "track", "aria-hidden": "true" }, h("i")), h("span", { class: "soft" })]));
  shown.forEach((batch, place) => {
    text(node.children[3 * place], batch.size > 1e15 ? "larger" : batch.size === 0 ? "no batch" : batch.size + (batch.size === 1 ? " row" : " rows"));
    node.children[3 * place + 1].firstChild.style.width = (100 * batch.count / most).toFixed(1) + "%";
    text(node.children[3 * place + 2], `${number(batch.count)} × ${duration(batch.ns[1] / Math.max(1, batch.count))}`);
  });
}

function slowView() {
  const search = h("input", { type: "search", "aria-label": "Filter slow requests by model", placeholder: "Filter: model", oninput: () => { state.slowFilter = search.value; show(); } });
  search.value = state.slowFilter;
  const empty = h("p", { class: "soft" }, "No request of the last five minutes.");
  const rows = table([
    { title: "Model", kind: "name", make: () => h("a"), put: (cell, row) => { text(cell, row.model + " : " + row.version); attribute(cell, "href", "#model/" + encodeURIComponent(row.model)); } },
    { title: "Took", kind: "number", value: (row) => duration(row.ns[0]) },
    { title: "Phases", make: () => stack([0, 0, 0, 0], 0), put: (cell, row) => putStack(cell, row.ns.slice(1), row.ns[0]) },
    { title: "Queue", kind: "number", value: (row) => duration(row.ns[1]) },
    { title: "In the model", kind: "number", value: (row) => duration(row.ns[3]) },
    { title: "Rows", kind: "number", value: (row) => row.batch || "–" },
    { title: "Ended", kind: "number", value: (row) => ago(row.ago_ms) + " ago" },
    { title: "Ending", make: () => h("span"), put: (cell, row) => badge(cell, row.ending, row.ending.startsWith("failed") ? "bad" : "") }], { caption: "The slowest requests" });
  const node = h("section", { class: "card" }, h("div", { class: "tools" }, h("h2", {}, "The slowest requests of the last five minutes"), h("span", { class: "push" }), search), phaseLegend(), empty, rows.node);
  return { node, update: () => {
    const filter = state.slowFilter.toLowerCase(), found = state.now.slow.filter((row) => row.model.toLowerCase().includes(filter));
    empty.hidden = found.length > 0;
    rows.node.hidden = found.length === 0;
    rows.update(found);
  } };
}

function messagesView() {
  const empty = h("p", { class: "soft" }, "No warning and no error was logged.");
  const rows = table([
    { title: "Time", value: (row) => clock(row.at_ms) },
    { title: "Severity", make: () => h("span"), put: (cell, row) => badge(cell, row.severity.toUpperCase(), row.severity === "error" ? "bad" : "warn") },
    { title: "Message", kind: "message", value: (row) => row.text },
    { title: "Source", kind: "text mono", value: (row) => row.place }], { caption: "Warnings and errors" });
  const node = h("section", { class: "card" }, h("div", { class: "tools" }, h("h2", {}, "The last warnings and errors of the log")), empty, rows.node);
  return { node, update: () => { empty.hidden = state.now.messages.length > 0; rows.node.hidden = !empty.hidden; rows.update(state.now.messages); } };
}

function serverView() {
  const about = h("dl"), memory = h("dl"), log = h("dl"), change = h("div");
  const rate = chart("Requests a second, all models", [["rate", "a", "all"], ["failed", "c", "failed"]], number);
  const shards = table([{ title: "I/O thread", value: (row) => row.number }, { title: "Connections", kind: "number", value: (row) => number(row.connections) }, { title: "HTTP", kind: "number", value: (row) => number(row.http) },
    { title: "gRPC", kind: "number", value: (row) => number(row.grpc) }, { title: "Calls in flight", kind: "number", value: (row) => number(row.calls) }], { caption: "I/O threads" });
  const noGpu = h("p", { class: "soft" }, "The server uses no GPU.");
  const gpus = table([{ title: "GPU", kind: "text wide", value: (row) => `${row.id}: ${row.name}, ${row.capability}` }, { title: "Memory", kind: "text", value: (row) => `${bytes(row.used)} of ${bytes(row.total)}` },
    { title: "Pool", kind: "text", value: (row) => `${bytes(row.pool_used)} of ${bytes(row.pool_total)}` }, { title: "State", make: () => h("span"), put: (cell, row) => { badge(cell, row.failure ? "LOST" : "USED", row.failure ? "bad" : "good"); attribute(cell, "title", row.failure || ""); } }], { caption: "GPUs" });
  const filter = h("input", { type: "search", "aria-label": "Filter flags", placeholder: "Filter: flag, value, source", oninput: () => { state.flags.filter = filter.value; show(); } });
  filter.value = state.flags.filter;
  const given = h("input", { type: "checkbox", onchange: () => { state.flags.given = given.checked; show(); } });
  given.checked = state.flags.given;
  const flags = table([{ title: "Flag", kind: "name mono", value: (row) => "--" + row.name }, { title: "Value", kind: "text mono", value: (row) => row.value || "–" }, { title: "Source", value: (row) => row.source }], { caption: "Flags" });
  const node = h("div", {}, h("h2", { class: "skip" }, "Server"), h("div", { class: "cards" }, h("section", { class: "card" }, h("h3", {}, "Server"), about), rate.node,
    h("section", { class: "card" }, h("h3", {}, "Memory"), memory), h("section", { class: "card" }, h("h3", {}, "I/O threads"), shards.node),
    h("section", { class: "card" }, h("h3", {}, "GPUs"), noGpu, gpus.node), h("section", { class: "card" }, h("h3", {}, "Log"), log, change)),
    h("section", { class: "card" }, h("div", { class: "tools" }, h("h3", {}, "Flags"), filter, h("label", {}, given, "only those that are not the default")), flags.node));
  const note = noteNode("log");
  let changeFor = "";
  const update = () => {
    const { server, memory: used, management, log: settings } = state.now;
    pairs(about, [["Name", server.name], ["Version", `Nereid ${server.version}, answers as Triton ${server.triton_version}`], ["Build", server.build], ["State", server.state], ["Running for", ago(server.uptime_ms)],
      ["Process", server.pid], ["Model control", management.mode], ["Operations on models", management.operations], ["I/O threads that hang", server.stuck_shards], ["Answers to clients that had left", number(server.stale_deliveries)]]);
    pairs(memory, [["Requests and answers", `${bytes(used.requests_used)} of ${bytes(used.requests_limit)}`], ["Process, resident", bytes(used.resident)], ["Pinned pool", used.pinned_total ? `${bytes(used.pinned_used)} of ${bytes(used.pinned_total)}` : "none"],
      ["Machine or its group", used.machine_limit == null ? "not known" : `${bytes(used.machine_used)} of ${bytes(used.machine_limit)}`]]);
    rate.update(state.totals);
    shards.update(state.now.shards.map((shard, place) => ({ ...shard, number: place })));
    noGpu.hidden = state.now.gpus.length > 0;
    gpus.node.hidden = !noGpu.hidden;
    gpus.update(state.now.gpus);
    if (settings) pairs(log, [["Logged", [settings.info && "info", settings.warning && "warnings", settings.error && "errors"].filter(Boolean).join(", ") || "nothing"], ["Verbose level", settings.verbose_level], ["Format", settings.format], ["To", settings.file || "standard output and error"], ["Messages dropped", number(settings.dropped)]]);
    if (changeFor !== String(management.logging_header)) {
      changeFor = String(management.logging_header);
      change.replaceChildren(...(management.logging_header ? [logForm(management.logging_header, settings, note)] : []));
    }
    for (const button of change.querySelectorAll("button")) button.disabled = !state.keys[management.logging_header];
    note.update();
    const words = state.flags.filter.toLowerCase().split(/\s+/).filter(Boolean);
    flags.update(state.now.flags.filter((flag) => (!state.flags.given || flag.source !== "default") && words.every((word) => ("--" + flag.name + " " + flag.value + " " + flag.source).toLowerCase().includes(word))));
  };
  return { node, update };
}

function logForm(header, settings, note) {
  const level = h("input", { type: "number", id: "verbose", min: 0, max: 9, value: settings ? settings.verbose_level : 0 });
  const order = (event) => { event.preventDefault(); ordered("log", "logging", header, JSON.stringify({ log_verbose_level: Number(level.value) || 0 }), "The verbose level is changed."); };
  return h("div", {}, h("form", { class: "tools", onsubmit: order }, h("label", { for: "verbose" }, "Verbose level", level), keyField(header, "log-key"), h("button", { type: "submit" }, "Set")), note.node);
}

// The frame --------------------------------------------------------------------------------------------------------

function showFrame() {
  const alarm = byId("alarm"), failed = state.failedSince != null;
  alarm.hidden = !failed;
  document.body.classList.toggle("stale", failed);
  if (failed) text(alarm, `No answer from the server since ${clock(state.failedSince)}.` + (state.now ? " The values below are the last ones." : ""));
  text(byId("pulse"), failed ? "" : state.lastAt ? "Live, " + clock(state.lastAt) : "");
  for (const link of document.querySelectorAll("nav a")) {
    const here = link.dataset.view === view().name || (view().name === "model" && link.dataset.view === "models");
    if (here) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
  }
  if (!state.now) return;
  const { server } = state.now;
  text(byId("name"), server.name);
  badge(byId("state"), failed ? "NO ANSWER" : server.state, failed ? "bad" : KINDS[server.state]);
  text(byId("facts"), `${server.version}, running for ${ago(server.uptime_ms)}`);
  document.title = (view().model == null ? "" : view().model + " – ") + "Nereid " + server.name;
}

function show() {
  showFrame();
  if (!state.now) return;
  const { name, model } = view(), key = name + "\n" + (model || "");
  if (key !== current.key) {
    current = { key, ...(VIEWS[name] || modelsView)(model) };
    byId("content").replaceChildren(current.node);
  }
  current.update();
}

addEventListener("hashchange", () => { show(); scrollTo(0, 0); byId("content").focus({ preventScroll: true }); poll(); });
addEventListener("resize", () => show());
document.addEventListener("visibilitychange", () => poll());
poll();
