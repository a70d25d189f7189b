"use strict";
// The live page of a run. It reads the run's report (docs/report.md) once per second, and shows the rates between two reports.
// Texts of a report may come from packets, so they are only ever written as text.

const POLL_MS = 1000; // between two reports
const ANSWER_MS = 5000; // how long a report may take
const HISTORY_S = 300; // the chart: up to five minutes
const SPARK_S = 60; // the small chart of a CPU: a minute
const FLOWS_MAX = 50; // more rows than a screen has
const EVENTS_MAX = 50;
const MOVES_S = 10; // moves of one cause are one event in this time, so that the events can be read aloud
const STUCK_S = 1; // a packet function that has not returned for this long is a problem

const REASONS = {
  device: "lost before steerage polled them: by the kernel, or in a ring that overflowed",
  no_page: "no page was free for them",
  backlog_full: "too many packets already waited for their CPU",
  flow_limit: "their flow had filled half of a backlog",
  moving: "their flow was moving, and the parking lot was full",
  revoked: "they waited for a CPU that made no progress",
  handler_panicked: "the packet function panicked",
  tx_full: "the output had no room",
  tx_too_long: "longer than the output can send",
  tx_link_type: "another link type than the output",
  tx_cut: "a capture had cut them, so the output cannot send them",
  tx_refused: "the output refused them",
  tx_lost: "the output took them and did not send them",
};
const CAUSES = {
  mask: "a mask was written",
  cpu_died: "their CPU was declared dead",
  cpu_back: "a CPU came back",
  cpu_offline: "their CPU went offline or left the cpuset",
  joined: "a CPU joined",
  left: "a CPU left",
  balance: "to balance the load",
};
const ENDS = {
  input: "its input ended", packets: "it has received the wanted number of packets", seconds: "its time was over",
  signal: "a signal stopped it", error: "its device failed",
};

const key = location.hash.slice(1);
const at = (id) => document.getElementById(id);
const state = { now: null, before: null, history: [], flows: new Map(), dropping: new Set(), moved: new Map(), sort: "cpu", paused: false, lost: null };

// Numbers.

const whole = (number) => Math.round(number).toLocaleString("en");
function short(number) {
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (number >= size) return `${(number / size).toPrecision(3)} ${unit}`;
  }
  return number >= 10 || number === 0 ? `${Math.round(number)}` : number.toFixed(1);
}
/** A number with its unit, such as 17.2 kpps. */
function quantity(number, unit) {
  const text = short(number);
  return text.includes(" ") ? text + unit : `${text} ${unit}`;
}
const share = (part, all) => (all > 0 ? `${((100 * part) / all).toFixed(1)} %` : "0.0 %");
function duration(seconds) {
  if (seconds >= 3600) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  if (seconds >= 60) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  if (seconds >= 1) return `${seconds.toFixed(1)} s`;
  return seconds >= 1e-3 ? `${(seconds * 1e3).toFixed(1)} ms` : `${Math.round(seconds * 1e6)} us`;
}
const sum = (object) => Object.values(object).reduce((all, part) => all + part, 0);
const plural = (number, noun) => `${whole(number)} ${noun}${number === 1 ? "" : "s"}`;

// Elements. Text is changed in place, so that a reader's selection and a screen reader's position stay.

function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
function svg(name, attributes, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [attribute, value] of Object.entries(attributes)) element.setAttribute(attribute, value);
  if (text !== undefined) element.textContent = text;
  return element;
}
/** Fills a table. A column is [title, class, sort key]; a cell is a text or {text, part, line, bad}. The first cell names its row. */
function fill(table, columns, rows) {
  if (rows.length === 0) return table.replaceChildren();
  if (!table.tHead) {
    const head = table.createTHead().insertRow();
    for (const [title, kind, sort] of columns) {
      const cell = head.appendChild(document.createElement("th"));
      cell.scope = "col";
      cell.className = kind;
      if (sort) {
        const button = cell.appendChild(document.createElement("button"));
        button.type = "button";
        button.textContent = title;
        button.addEventListener("click", () => { state.sort = sort; render(); });
      } else cell.textContent = title;
    }
    table.createTBody();
  }
  columns.forEach(([, , sort], index) => {
    if (!sort) return;
    const order = state.sort !== sort ? "none" : sort === "cpu" ? "ascending" : "descending";
    table.tHead.rows[0].cells[index].setAttribute("aria-sort", order);
  });
  const body = table.tBodies[0];
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach((cells, index) => {
    const row = body.rows[index] ?? body.insertRow();
    cells.forEach((cell, column) => {
      let element = row.cells[column];
      if (!element) {
        element = row.appendChild(document.createElement(column === 0 ? "th" : "td"));
        if (column === 0) element.scope = "row";
      }
      const of = typeof cell === "string" ? { text: cell } : cell;
      const kind = [columns[column][1], of.part === undefined ? "" : "bar", of.bad ? "bad" : ""].join(" ").trim();
      if (element.className !== kind) element.className = kind;
      if (of.part !== undefined) element.style.setProperty("--part", `${Math.min(100, 100 * of.part)}%`);
      if (of.line) spark(element, of.line);
      else write(element, of.text);
    });
  });
}
/** A chart without axes in a cell: what the numbers beside it were in the last minute. */
function spark(cell, values) {
  if (!cell.firstElementChild) {
    cell.append(svg("svg", { class: "spark", viewBox: "0 0 120 20", "aria-hidden": "true" }));
    cell.firstElementChild.append(svg("polyline", { class: "line" }));
  }
  const highest = Math.max(1, ...values.map(([, value]) => value));
  const points = values.map(([time, value]) => `${(120 * (1 + time / SPARK_S)).toFixed(1)},${(19 - (18 * value) / highest).toFixed(1)}`);
  cell.firstElementChild.firstElementChild.setAttribute("points", points.join(" "));
}
/** The least 1, 2 or 5 times a power of ten that is not below the number. */
function ceiling(number) {
  const power = 10 ** Math.floor(Math.log10(number));
  return [1, 2, 5, 10].find((factor) => factor * power >= number) * power;
}
function chart() {
  const [width, height, left, top, bottom] = [at("chart").clientWidth || 600, 200, 64, 8, 24];
  const end = state.history.at(-1)?.at ?? 0;
  // The chart begins with one minute, and grows with the run.
  const minutes = Math.min(HISTORY_S / 60, Math.max(1, Math.ceil((end - (state.history[0]?.at ?? end)) / 60)));
  const highest = ceiling(Math.max(1, ...state.history.map((one) => Math.max(one.rate, one.drops))));
  const x = (time) => left + (1 + (time - end) / (60 * minutes)) * (width - left - 12);
  const y = (rate) => top + (1 - rate / highest) * (height - top - bottom);
  const parts = [];
  for (const part of [0, 0.5, 1]) {
    parts.push(svg("line", { class: "grid", x1: left, x2: width - 12, y1: y(part * highest), y2: y(part * highest) }));
    parts.push(svg("text", { x: left - 6, y: y(part * highest) + 4, "text-anchor": "end" }, short(part * highest)));
  }
  for (let minute = 0; minute <= minutes; minute++) {
    const text = minute === 0 ? "now" : `-${minute} min`;
    parts.push(svg("text", { x: x(end - 60 * minute), y: height - 6, "text-anchor": minute === 0 ? "end" : "middle" }, text));
  }
  for (const series of ["rate", "drops"]) {
    // A gap of some seconds, such as a pause, interrupts the line.
    const path = state.history.map((of, index) => {
      const joined = index > 0 && of.at - state.history[index - 1].at < 4;
      return `${joined ? "L" : "M"}${x(of.at).toFixed(1)} ${y(of[series]).toFixed(1)}`;
    });
    parts.push(svg("path", { class: series === "rate" ? "line" : "line dropped", d: path.join("") }));
  }
  at("chart").setAttribute("viewBox", `0 0 ${width} ${height}`);
  at("chart").replaceChildren(...parts);
  const { rate = 0, drops = 0 } = state.history.at(-1) ?? {};
  const most = Math.max(0, ...state.history.map((one) => one.rate));
  at("chart").setAttribute("aria-label", `The last ${minutes === 1 ? "minute" : `${minutes} minutes`}: ${short(rate)} packets per second are received now, and ` +
    `${short(drops)} dropped; the highest rate was ${short(most)}.`);
}

// Reports.

function note(text, isBad = false) {
  const item = document.createElement("li");
  const time = item.appendChild(document.createElement("time"));
  time.textContent = new Date().toLocaleTimeString("en-GB");
  item.append(text);
  if (isBad) item.className = "bad";
  at("events").prepend(item);
  while (at("events").children.length > EVENTS_MAX) at("events").lastChild.remove();
}
function say(text, isBad = false) {
  write(at("status"), text);
  at("status").classList.toggle("bad", isBad);
}
const isSame = (old, report) => old.started === report.started && old.snapshot.seconds <= report.snapshot.seconds &&
  old.snapshot.received <= report.snapshot.received && old.snapshot.cpus.length === report.snapshot.cpus.length &&
  old.snapshot.queues.length === report.snapshot.queues.length;

function take(report) {
  const old = state.now;
  if (old && !isSame(old, report)) {
    Object.assign(state, { before: null, history: [], flows: new Map(), dropping: new Set(), moved: new Map() });
    note("Another run began.");
  } else if (old && old.snapshot.seconds < report.snapshot.seconds) {
    state.before = old;
    compare(old.snapshot, report.snapshot);
  }
  if (state.lost) note("A run answers again.");
  if (report.ended_by && !(old?.ended_by && isSame(old, report))) note(`The run ended: ${ENDS[report.ended_by] ?? report.ended_by}.`);
  Object.assign(state, { now: report, lost: null });
  const { seconds } = report.snapshot;
  if (state.history.at(-1)?.at !== seconds) {
    const rates = { at: seconds, rate: rate((one) => one.received), drops: rate((one) => sum(one.dropped)) };
    rates.cpus = report.snapshot.cpus.map((_, index) => rate((one) => one.cpus[index].processed));
    state.history.push(rates);
    while (state.history[0].at < seconds - HISTORY_S) state.history.shift();
  }
  say(report.ended_by ? `The run ended: ${ENDS[report.ended_by] ?? report.ended_by}. These are its last figures. ` +
    "If another run begins at this address, the page shows it." : state.paused ? "Paused." : "");
  at("main").hidden = false;
  render();
}
/** A rate per second between the last two reports; of the first report, since the run began. */
function rate(count) {
  const [now, old] = [state.now.snapshot, state.before?.snapshot];
  const seconds = now.seconds - (old ? old.seconds : 0);
  return seconds > 0 ? Math.max(0, count(now) - (old ? count(old) : 0)) / seconds : 0;
}
/** Notes what happened between two reports. */
function compare(old, now) {
  now.queues.forEach((queue, index) => {
    const was = old.queues[index].rps_cpus_list;
    if (was !== queue.rps_cpus_list) note(`${queue.device} rx-${queue.queue}: mask ${was || "none"} is now ${queue.rps_cpus_list || "none"}.`);
  });
  for (const [cause, buckets] of Object.entries(now.moves.by_cause)) {
    const last = state.moved.get(cause) ?? { buckets: old.moves.by_cause[cause] ?? 0, at: -MOVES_S };
    const moved = buckets - last.buckets;
    if (moved === 0 || now.seconds < last.at + MOVES_S) {
      state.moved.set(cause, last);
      continue;
    }
    state.moved.set(cause, { buckets, at: now.seconds });
    note(`${plural(moved, "bucket")} moved: ${CAUSES[cause] ?? cause}.`);
  }
  const dropping = new Set(Object.entries(now.dropped).filter(([reason, packets]) => packets > (old.dropped[reason] ?? 0)).map(([reason]) => reason));
  for (const reason of dropping) if (!state.dropping.has(reason)) note(`Drops began: ${reason}.`, true);
  for (const reason of state.dropping) if (!dropping.has(reason)) note(`Drops ended: ${reason}.`);
  state.dropping = dropping;
  now.cpus.forEach((cpu, index) => {
    if (cpu.panics > old.cpus[index].panics) note(`CPU ${cpu.cpu}: the packet function panicked.`, true);
    if (cpu.deaths > old.cpus[index].deaths) note(`CPU ${cpu.cpu} was declared dead.`, true);
  });
}

// The parts of the page.

function render() {
  const { snapshot } = state.now;
  const devices = [...new Set(snapshot.queues.map((queue) => queue.device))];
  write(at("devices"), devices.length > 3 ? `${devices.slice(0, 3).join(", ")} and ${devices.length - 3} more` : devices.join(", "));
  write(at("about"), `version ${state.now.version}, running for ${duration(snapshot.seconds)}`);
  const packets = rate((one) => one.received);
  document.title = `${quantity(packets, "pps")} - steerage`;
  ledger(snapshot);
  problems(snapshot);
  const tiles = [["Received", quantity(packets, "pps")], ["Bits received", quantity(8 * rate((one) => one.received_bytes), "bit/s")],
    ["Dropped", quantity(rate((one) => sum(one.dropped)), "pps")]];
  if (at("now").children.length === 0) {
    for (const [name] of tiles) {
      const tile = at("now").appendChild(document.createElement("div"));
      tile.appendChild(document.createElement("dt")).textContent = name;
      tile.appendChild(document.createElement("dd"));
    }
  }
  tiles.forEach(([, text], index) => write(at("now").children[index].lastChild, text));
  chart();
  cpus(snapshot);
  queues(snapshot);
  drops(snapshot);
  moves(snapshot);
  outputs(snapshot);
  counters(snapshot);
  flows(state.now);
}
function ledger(of) {
  const dropped = sum(of.dropped);
  let text = `Of ${plural(of.received, "received packet")}, ${whole(of.delivered)} were delivered (${share(of.delivered, of.received)}), ` +
    `${whole(dropped)} were dropped and ${whole(of.in_flight)} are in flight`;
  text += of.reordered === null ? "." : `; ${whole(of.reordered)} were handled out of order.`;
  if (of.delivered + dropped + of.in_flight !== of.received) text += " These numbers do not add up: please report it.";
  write(at("ledger"), text);
}
function problems(of) {
  const found = [];
  for (const queue of of.queues) if (queue.error) found.push(`${queue.device} rx-${queue.queue}: ${queue.error.message}`);
  for (const output of of.outputs) if (output.error) found.push(`${output.device}: ${output.error}`);
  for (const cpu of of.cpus) {
    if (cpu.handler_seconds >= STUCK_S) found.push(`CPU ${cpu.cpu}: the packet function does not return`);
  }
  const list = at("problems");
  if ([...list.children].map((item) => item.textContent).join("\n") === found.join("\n")) return;
  list.replaceChildren(...found.map((text) => Object.assign(document.createElement("li"), { textContent: text })));
}
function cpus(of) {
  const last = state.history.at(-1).at;
  const minute = state.history.filter((one) => one.at >= last - SPARK_S);
  const all = rate((one) => one.cpus.reduce((total, cpu) => total + cpu.processed, 0));
  const rows = of.cpus.map((cpu, index) => {
    const packets = rate((one) => one.cpus[index].processed);
    const delay = cpu.backlog === 0 ? 0 : packets > 0 ? cpu.backlog / packets : Infinity;
    return { cpu: cpu.cpu, packets, delay, waiting: cpu.backlog, drops: rate((one) => sum(one.cpus[index].dropped)),
      busy: Math.min(1, rate((one) => one.cpus[index].busy_seconds)), wakes: rate((one) => one.cpus[index].wakes_received),
      line: minute.map((one) => [one.at - last, one.cpus[index]]) };
  });
  rows.sort((one, other) => (state.sort === "cpu" ? 0 : other[state.sort] - one[state.sort]) || one.cpu - other.cpu);
  const columns = [["CPU", "", "cpu"], ["Packets/s", "", "packets"], ["Last minute", "text"], ["Share", ""], ["Busy", "", "busy"],
    ["Waiting", "", "waiting"], ["Delay", "", "delay"], ["Wakes/s", "", "wakes"], ["Dropped/s", "", "drops"]];
  fill(at("cpus"), columns, rows.map((row) => [`${row.cpu}`, short(row.packets), { line: row.line }, share(row.packets, all),
    { text: `${Math.round(100 * row.busy)} %`, part: row.busy }, whole(row.waiting),
    { text: row.delay === Infinity ? "stuck" : row.delay === 0 ? "0" : duration(row.delay), bad: row.delay === Infinity },
    short(row.wakes), { text: short(row.drops), bad: row.drops > 0 }]));
}
function queues(of) {
  const columns = [["Queue", "name"], ["Polled by", ""], ["Spread over CPUs", "text"], ["Hash", "text"], ["Packets/s", ""], ["Dropped/s", ""]];
  fill(at("queues"), columns, of.queues.map((queue, index) => {
    const lost = rate((one) => sum(one.queues[index].dropped));
    return [`${queue.device} rx-${queue.queue}`, `CPU ${queue.cpu}`, queue.rps_cpus_list || "none", queue.hash,
      short(rate((one) => one.queues[index].received)), { text: short(lost), bad: lost > 0 }];
  }));
}
function drops(of) {
  const rows = Object.entries(of.dropped).filter(([, packets]) => packets > 0);
  at("no-drops").hidden = rows.length > 0;
  fill(at("drops"), [["Reason", "text"], ["Packets", ""], ["Per second", ""], ["What happened", "prose"]], rows.map(([reason, packets]) => {
    const lost = rate((one) => one.dropped[reason] ?? 0);
    return [reason, whole(packets), { text: short(lost), bad: lost > 0 }, REASONS[reason] ?? ""];
  }));
}
function moves(of) {
  const { buckets, slices, by_cause: causes } = of.moves;
  write(at("moved"), buckets === 0 ? "No flow has moved to another CPU." :
    `${plural(buckets, "bucket")} of flows moved to another CPU, in ${plural(slices, "step")}.`);
  const rows = Object.entries(causes).filter(([, moved]) => moved > 0);
  fill(at("moves"), [["Cause", "text"], ["Buckets", ""], ["Why", "prose"]], rows.map(([cause, moved]) => [cause, whole(moved), CAUSES[cause] ?? ""]));
}
function outputs(of) {
  at("outputs-section").hidden = of.outputs.length === 0;
  const columns = [["Output", "name"], ["Packets/s", ""], ["Bits/s", ""], ["Held", ""], ["Dropped", ""]];
  fill(at("outputs"), columns, of.outputs.map((output, index) => [output.device, short(rate((one) => one.outputs[index].packets)),
    short(8 * rate((one) => one.outputs[index].bytes)), whole(output.held),
    { text: whole(sum(output.dropped)), bad: sum(output.dropped) > 0 }]));
}
function counters(of) {
  const all = of.counters ?? [];
  at("counters-section").hidden = all.length === 0;
  const columns = [["Counter", "name"], ["Per second", ""], ["Total", ""], ["Unit", "text"], ["What is counted", "prose"]];
  fill(at("counters"), columns, all.map(({ name, total, unit, help }) => {
    const perSecond = rate((one) => one.counters?.find((other) => other.name === name)?.total ?? 0);
    return [name, short(perSecond), whole(total), unit, help];
  }));
}
/** An end of a flow. The ports of ICMP are its identifier. */
function end(address, port, kind) {
  if (!port || !["tcp", "udp", "sctp"].includes(kind)) return address ?? "-";
  return address?.includes(":") ? `[${address}]:${port}` : `${address}:${port}`;
}
function flows(report) {
  const top = report.traffic?.top ?? [];
  const old = state.flows;
  const rows = top.slice(0, FLOWS_MAX).map((flow) => {
    const id = JSON.stringify([flow.first, flow.kind, flow.source, flow.source_port, flow.destination, flow.destination_port]);
    const bytes = flow.bytes + flow.bytes_back;
    const was = old.get(id);
    const seconds = report.snapshot.seconds - (was?.at ?? 0);
    // A meter publishes the counts of a flow several times per second.
    const bits = was && bytes === was.bytes && seconds < 3 ? was.bits : was && seconds > 0 ? (8 * (bytes - was.bytes)) / seconds : 0;
    const changed = !was || bytes !== was.bytes || seconds >= 3;
    return { id, flow, seen: changed ? { bytes, bits, at: report.snapshot.seconds } : was };
  });
  state.flows = new Map(rows.map((row) => [row.id, row.seen]));
  const columns = [["Source", "text"], ["Destination", "text"], ["Kind", "text"], ["Name", "name"], ["Bits/s", ""], ["Packets", ""], ["Bytes", ""]];
  fill(at("flows"), columns, rows.map(({ flow, seen }) => [end(flow.source, flow.source_port, flow.kind),
    end(flow.destination, flow.destination_port, flow.kind), flow.kind, flow.tls_sni || flow.http_host || flow.dns_query || "",
    short(seen.bits), whole(flow.packets + flow.packets_back), quantity(flow.bytes + flow.bytes_back, "B")]));
  const large = (report.traffic?.elephants ?? []).map((one) => {
    const load = report.snapshot.groups[one.group]?.elephants.find((other) => other.bucket === one.bucket)?.load;
    return `${one.flow} takes ${share(load ?? 0, 1)} of a CPU.`;
  });
  const counts = report.app.flows;
  const counted = counts ? `${plural(counts.active, "active flow")}, ${plural(counts.total, "record")}.` : "";
  const why = !report.traffic ? "Only root and the user of the run may see its flows: open the address that steerage printed, with its key." :
    top.length > 0 ? "" : counts ? "The largest flows are not known yet." : "This command does not meter flows; steerage meter does.";
  write(at("no-flows"), [counted, ...large, why].filter(Boolean).join(" "));
}

// The loop.

async function poll() {
  let report = null;
  try {
    if (!state.paused) report = await read();
  } catch (error) {
    lose(error);
  }
  setTimeout(poll, POLL_MS);
  if (report) take(report);
}
async function read() {
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  const answer = await fetch("report", { headers, cache: "no-store", signal: AbortSignal.timeout(ANSWER_MS) });
  const report = await answer.json();
  if (report.gone) throw new Error(report.gone);
  return report;
}
function lose(error) {
  const ended = state.now?.ended_by;
  if (!state.lost) {
    if (state.now && !ended) note("The run does not answer any more.");
    state.lost = new Date();
  }
  if (ended) return;
  const since = state.lost.toLocaleTimeString("en-GB");
  const why = error.name === "Error" ? ` (${error.message})` : "";
  say(state.now ? `The run has not answered since ${since}${why}: it has probably ended. The last figures stay, until a run answers here.` :
    `No run answers here${why}.`, true);
}
at("pause").addEventListener("click", () => {
  state.paused = !state.paused;
  at("pause").setAttribute("aria-pressed", `${state.paused}`);
  write(at("pause"), state.paused ? "Go on" : "Pause");
  say(state.paused ? "Paused." : "");
});
addEventListener("hashchange", () => location.reload());
addEventListener("resize", () => { if (state.now) render(); });
poll();
