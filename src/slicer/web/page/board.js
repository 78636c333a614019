// Draws the board that the server sends: one event for what is there now, one for the last day. All text is set as
// text, so that a job's name is never read as HTML.
"use strict";

const DAY_S = 86400, BAR_PX = 4, COLOURS = 8, TICK_S = 5000, AGAIN_MS = 10000;
const SVG = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);
let board = null, timeline = { gpus: [] }, drawn = {};

function el(name, attributes, ...children) {
  const isDrawn = ["svg", "rect", "text", "title"].includes(name);
  const made = isDrawn ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  made.append(...children.map((each) => each instanceof Node ? each : String(each)));
  return made;
}

const swatch = (shade) => el("svg", { class: "swatch", "aria-hidden": "true" }, el("rect", { class: shade }));
const td = (content, attributes) => el("td", attributes, ...(Array.isArray(content) ? content : [content]));
const th = (content) => el("th", { scope: "row" }, content);
const list = (items) => items.length ? el("ul", {}, ...items.map((each) => el("li", {}, ...[each].flat()))) : "";
const seconds = () => Date.now() / 1000;
const size = (mib) => mib === null ? "-" : !mib ? "0" : mib < 1024 ? `${mib}.0M` : `${(mib / 1024).toFixed(1)}G`;
const short = (mib) => size(mib).replace(".0", "");  // behind "of"
const clock = (at) => new Date(at * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const percent = (part) => `${Math.min(100, Math.max(0, part * 100)).toFixed(2)}%`;
const plural = (count, what) => `${count} ${what}${count === 1 ? "" : "s"}`;

function span(length) {
  if (length === null || length === undefined) return "-";
  const whole = Math.max(0, Math.round(length));
  for (const [unit, size, below, part] of [["d", DAY_S, "h", 3600], ["h", 3600, "m", 60], ["m", 60, "s", 1]]) {
    if (whole >= size) {
      const rest = Math.floor((whole % size) / part);
      return `${Math.floor(whole / size)}${unit}${rest ? `${rest}${below}` : ""}`;
    }
  }
  return `${whole}s`;
}

// The sections and their tables: id, heading, columns. "#": a number, "-": only on a wide screen.
const SECTIONS = [
  ["gpus", "GPUs", ["GPU", "VRAM", "Busy", "-Sensors", "Used by"]],
  ["hours", "Last 24 hours", ["GPU", "User", "#Hours"]],
  ["jobs", "Jobs", ["Job", "-User", "Holds", "-Profile", "#For", "#Left"]],
  ["waiting", "Waiting", ["Job", "-User", "Wants", "#For", "#Starts", "-Why"]],
  ["failed", "Failed in the last 24 hours", ["Job", "-User", "Ended", "#When"]],
  ["reservations", "Reserved", ["GPUs", "For", "From", "Until"]],
  ["slots", "Slots", ["Slot", "#Held", "#Of"]],
  ["queues", "Queues", ["File", "State", "Jobs"]],
  ["servers", "Servers", ["Server", "State", "#For", "#Requests"]],
  ["users", "Users", ["User", "#GPUs", "#Waiting", "#Share", "#Due"]],
];

function build() {
  for (const [id, heading, columns] of SECTIONS) {
    const heads = columns.map((each) => el("th", { scope: "col", class: { "#": "number", "-": "wide" }[each[0]] || "" }, each.replace(/^[#-]/, "")));
    const table = el("table", {}, el("thead", {}, el("tr", {}, ...heads)), el("tbody", { id }));
    const inner = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-labelledby": `h-${id}` }, table);
    const parts = id === "hours"
      ? [el("div", { id: "timeline" }), el("p", { id: "legend", class: "legend" }), el("details", {}, el("summary", {}, "Hours by GPU and user"), table)]
      : [inner];
    byId("main").append(el("section", { "aria-labelledby": `h-${id}` }, el("h2", { id: `h-${id}` }, heading), ...parts));
  }
  const shades = ["used", "reserved", "free"].flatMap((each) => [swatch(each), el("span", {}, each)]);
  byId("gpus").closest("section").append(el("p", { class: "legend", "aria-hidden": "true" }, ...shades));
}

// Rows of a table, drawn again only if they have changed: what has the focus, or is selected, stays.
function fill(id, items, row, empty) {
  const key = JSON.stringify([items, empty, items.map((each) => row.clock ? row.clock(each) : 0)]);
  if (drawn[id] === key) return;
  drawn[id] = key;
  const body = byId(id), columns = body.parentElement.tHead.rows[0].cells.length;
  body.replaceChildren(...items.map((each) => el("tr", {}, ...row(each))));
  if (!items.length) body.append(el("tr", {}, td(empty, { class: "faint", colspan: columns })));
  body.closest("section").classList.toggle("empty", !items.length && empty === "");
}

function matches(each) {
  const wanted = byId("filter").value.trim().toLowerCase();
  return !wanted || [each.job, each.name, each.user, each.profile].some((word) => String(word || "").toLowerCase().includes(wanted));
}

function holder(each) {
  const memory = each.used_mib === null ? "" : ` ${size(each.used_mib)}`;
  const of = each.declared_mib === null ? ", whole" : ` of ${short(each.declared_mib)}`;
  return `${each.name || each.job} (${each.user})${memory}${of}`;
}

function memory(gpu) {
  if (gpu.used_mib === null) return "unknown";
  const total = gpu.memory_mib || 1, kept = Math.max(0, gpu.reserved_mib - gpu.used_mib);
  return [
    `${size(gpu.used_mib)} of ${short(gpu.memory_mib)}, ${size(gpu.reserved_mib)} reserved`,
    el("svg", { class: "bar", "aria-hidden": "true" },
      el("rect", { class: "used", x: "0", width: percent(gpu.used_mib / total) }),
      el("rect", { class: "reserved", x: percent(gpu.used_mib / total), width: percent(kept / total) })),
  ];
}

function gpuRow(gpu) {
  const foreign = gpu.foreign.map((each) =>
    el("span", { class: "mark" }, `no job: ${each.user || "another user"} ${size(each.used_mib)}`));
  const out = gpu.out_of_service ? [el("span", { class: "mark" }, `out of service: ${gpu.out_of_service}`)] : [];
  const sensors = [gpu.temperature_c == null ? "" : `${gpu.temperature_c} °C`, gpu.power_w == null ? "" : `${gpu.power_w} W`];
  return [
    th(el("span", {}, gpu.index, el("span", { class: "faint wide" }, ` ${gpu.name}`))),
    td(memory(gpu)), td((gpu.utilisation ?? "-") + (gpu.utilisation == null ? "" : "%")),
    td(sensors.filter(Boolean).join(", ") || "-", { class: "wide" }),
    td(list([...out, ...gpu.holders.map(holder), ...foreign]) || "free"),
  ];
}

function wants(each) {
  const parts = [], holds = Array.isArray(each.gpus);
  if (holds && each.gpus.length) parts.push(`GPU ${each.gpus.join(", ")}`);
  else if (each.gpus > 0) parts.push(plural(each.gpus, "GPU"));
  if (parts.length && each.vram_mib !== null) parts[0] = `${short(each.vram_mib)} ${holds ? "of" : "on"} ${parts[0]}`;
  for (const [name, count] of Object.entries(each.slots)) parts.push(`${count} ${name} slot${count === 1 ? "" : "s"}`);
  return parts.join(", ") || "-";
}

// The job's name, and on a narrow screen what has no column there.
const jobName = (each, marks, why) => th(el("span", {},
  each.name || each.job, each.name ? el("span", { class: "faint wide" }, ` ${each.job}`) : "", el("div", { class: "faint narrow" }, each.user),
  marks.length ? el("div", { class: "mark" }, marks.join(", ")) : "", why ? el("div", { class: "faint narrow" }, why) : ""));
const forText = (each) => span(seconds() - each.since);
const leftText = (each) => each.ends === null || (each.by && each.ends <= seconds()) ? "-"
  : each.ends <= seconds() ? "overdue" : `${each.by}${span(each.ends - seconds())}`;
const startText = (each) => each.begins ? "later" : each.starts === null ? "-" : each.starts - seconds() < 1 ? "now" : `~${span(each.starts - seconds())}`;

const jobRow = (each) => [
  jobName(each, each.marks), td(each.user, { class: "wide" }), td(wants(each)), td(each.profile || "-", { class: "wide" }),
  td(forText(each), { class: "number" }), td(leftText(each), { class: "number" }),
];
jobRow.clock = (each) => forText(each) + leftText(each);
const waitingRow = (each) => [
  jobName(each, [], each.why), td(each.user, { class: "wide" }), td(wants(each)), td(forText(each), { class: "number" }),
  td(startText(each), { class: "number" }), td(each.why, { class: "wide" }),
];
waitingRow.clock = (each) => forText(each) + startText(each);
const laterRow = (each) => ({ ...each, gpus: 0, vram_mib: null, slots: {}, why: `begins ${each.begins}` });
const failedRow = (each) => [
  jobName(each, each.jobs > 1 ? [`and ${each.jobs - 1} alike`] : []), td(each.user, { class: "wide" }), td(each.how),
  td(clock(each.ended), { class: "number" }),
];
const serverRow = (each) => [
  th(each.server), td(each.state), td(forText(each), { class: "number" }), td(each.requests, { class: "number" }),
];
serverRow.clock = forText;
const moment = (at) => new Date(at * 1000).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
const reservationRow = (each) => [
  th(each.gpus.join(", ")), td(each.user), td(each.from <= seconds() ? "now" : moment(each.from)), td(moment(each.until)),
];
reservationRow.clock = (each) => each.from <= seconds();
const slotRow = (each) => [th(each.slot), td(each.held, { class: "number" }), td(each.total === null ? "-" : each.total, { class: "number" })];
const queueRow = (each) => [
  th(each.file), td(each.state),
  td([Object.entries(each.counts).map(([what, count]) => `${count} ${what}`).join(", "), each.warning ? el("div", { class: "mark" }, each.warning) : ""]),
];
const most = (held, cap) => cap === null ? held : `${held} of ${cap}`;
const userRow = (each) => [
  th(each.user), td(most(each.gpus, each.max_gpus), { class: "number" }), td(each.waiting, { class: "number" }),
  td(each.share.toFixed(2), { class: "number" }), td(each.due.toFixed(2), { class: "number" }),
];

// -- the last day -----------------------------------------------------------------------------------------------------

function lanes() {
  const now = seconds(), bars = new Map(board.gpus.map((gpu) => [gpu.index, []]));
  for (const gpu of timeline.gpus) if (bars.has(gpu.index)) bars.get(gpu.index).push(...gpu.bars);
  for (const job of board.jobs) for (const index of job.gpus) bars.get(index)?.push([job.user, job.since, now, job.name || job.job]);
  return { now, bars };
}

// Drawn again only for a bar that came or went, and each minute: what the pointer rests on keeps its text.
function drawTimeline() {
  const { now, bars } = lanes(), from = now - DAY_S, hours = new Map();
  const least = BAR_PX * DAY_S / (byId("timeline").clientWidth || 1);
  const key = JSON.stringify([timeline, board.jobs.map((job) => job.job), [...bars.keys()], Math.floor(now / 60), least]);
  if (drawn.timeline === key) return;
  drawn.timeline = key;
  const users = [...new Set([...bars.values()].flat().map((bar) => bar[0]))].sort();
  const colour = (user) => `c${users.indexOf(user) % COLOURS}`;
  const rows = [...bars].map(([index, found]) => {
    const shown = found.filter((bar) => bar[2] > from).map(([user, began, ended, name]) => {
      const start = Math.max(began, from), key = JSON.stringify([index, user]);
      hours.set(key, (hours.get(key) || 0) + (ended - start) / 3600);
      const length = Math.max(ended - start, least);
      return el("rect", { class: colour(user), x: percent((Math.min(start, now - length) - from) / DAY_S), y: "0",
        height: "100%", width: percent(length / DAY_S) },
      el("title", {}, `${user}${name ? ` ${name}` : ""}, ${clock(began)} to ${ended === now ? "now" : clock(ended)}`));
    });
    return el("div", { class: "lane" }, el("span", {}, index), el("svg", { "aria-hidden": "true" }, ...shown));
  });
  const ticks = [];
  for (let at = Math.ceil(from / 14400) * 14400; at < now; at += 14400) {
    if (at - from < DAY_S * 0.87) ticks.push(el("text", { class: at % 28800 ? "wide" : "", x: percent((at - from) / DAY_S), y: "1rem" }, clock(at)));
  }
  byId("timeline").replaceChildren(...rows, el("div", { class: "lane axis" }, el("span"), el("svg", { "aria-hidden": "true" }, ...ticks)));
  byId("legend").replaceChildren(...users.flatMap((user) => [swatch(colour(user)), el("span", {}, user)]));
  const table = [...hours].map(([key, length]) => [...JSON.parse(key), length.toFixed(1)]);
  fill("hours", table, ([index, user, length]) => [th(index), td(user), td(length, { class: "number" })], "No GPU was held.");
  byId("timeline").closest("section").classList.toggle("empty", !bars.size);
}

// -- all of it --------------------------------------------------------------------------------------------------------

function draw() {
  if (board === null) return;
  const free = board.gpus.filter((gpu) => gpu.idle).length;
  byId("host").textContent = board.host;
  document.title = `${board.host}: ${free} of ${plural(board.gpus.length, "GPU")} free`;
  byId("summary").textContent = `${free} of ${plural(board.gpus.length, "GPU")} free. ${plural(board.jobs.length, "job")} running, `
    + `${board.waiting.length} waiting${board.all_users ? "" : " (one user's)"}.`;
  const notes = JSON.stringify(board.notes);
  if (drawn.notes !== notes) byId("notes").replaceChildren(...board.notes.map((note) => el("li", {}, note)));
  drawn.notes = notes;
  fill("gpus", board.gpus, gpuRow, board.no_gpus || "No GPUs.");
  fill("jobs", board.jobs.filter(matches), jobRow, board.jobs.length ? "No job matches the filter." : "No jobs are running.");
  const waiting = [...board.waiting, ...board.later.map(laterRow)];
  fill("waiting", waiting.filter(matches), waitingRow, waiting.length ? "No job matches the filter." : "Nobody waits.");
  fill("failed", (timeline.failed || []).filter(matches), failedRow, "");
  fill("reservations", board.reservations, reservationRow, "");
  fill("slots", board.slots, slotRow, "");
  fill("queues", board.queues, queueRow, "");
  fill("servers", board.servers, serverRow, "");
  fill("users", board.users, userRow, "");
  drawTimeline();
}

function connect() {
  const state = (text, lost) => { byId("state").textContent = text; byId("state").classList.toggle("lost", lost); };
  const events = new EventSource("events");
  events.addEventListener("open", () => state("live", false));
  events.addEventListener("board", (event) => { board = JSON.parse(event.data); draw(); });
  events.addEventListener("timeline", (event) => { timeline = JSON.parse(event.data); draw(); });
  events.addEventListener("error", () => {
    state("connection lost: the board may be old", true);
    if (events.readyState === EventSource.CLOSED) setTimeout(connect, AGAIN_MS);  // the browser has given up
  });
}

build();
byId("filter").addEventListener("input", draw);
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && event.target !== byId("filter")) { byId("filter").focus(); event.preventDefault(); }
  if (event.key === "Escape" && event.target === byId("filter")) { byId("filter").value = ""; draw(); }
});
addEventListener("resize", draw);
setInterval(draw, TICK_S);  // durations go on; nothing is asked for
connect();
