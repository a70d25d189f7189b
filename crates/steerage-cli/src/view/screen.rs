//! The screen of `top` as lines of text: sections with a heading and as many rows as fit. Each
//! colour that has a meaning comes with a sign or a word of the same meaning.

use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Modifier, Style};
use ratatui_core::terminal::Frame;
use ratatui_core::text::{Line, Span, Text};
use steerage::Snapshot;
use steerage::stats::{CounterSnapshot, OutputSnapshot};
use steerage_text::{Column, bits_a_second, counted, grouped, packets_a_second, percent, printable, table, time};

use super::events::{apart, mask};
use super::keys::{FlowsBy, Mode, SortBy, Ui};
use super::model::{CpuRates, FlowRates, Model};
use super::names::{self, shortened};
use super::strip;
use crate::report::steering::regimes;
use crate::report::{FlowTotals, stuck};

/// The number of rows that each section keeps on a screen with too few rows.
const CPUS_MIN: usize = 4;
const QUEUES_MIN: usize = 3;
const BUCKETS_MIN: usize = 2;
const OUTPUTS_MIN: usize = 2;
const COUNTERS_MIN: usize = 2;
const FLOWS_MIN: usize = 1;
const EVENTS_MIN: usize = 1;

/// The width, in characters, for which the columns are designed. A wider screen shows longer names
/// and bars, and several CPUs side by side.
const WIDTH: usize = 80;

/// With at least this many rows of CPUs, a wide screen shows several CPUs in each row.
const CPU_ROWS: usize = 8;

const CPU_GAP: usize = 3;

/// The smallest and the largest width of a load bar, in characters.
const BAR_WIDTHS: (usize, usize) = (8, 48);

/// The width of the names of outputs and counters on a narrow screen, in characters.
const NAME_CHARS: usize = 24;

/// If there are more queues than this, the list begins near the selected queue.
const QUEUES_SHOWN: usize = 8;

const KEYS: &str = "q quit  s sort  up/down queue  m mask  PgUp/PgDn CPUs  h help";

const HELP: &[&str] = &[
    "q, Esc      quit; the run goes on",
    "s           sort CPUs by the next column (the one in brackets)",
    "r, p, b, d  sort flows by rate, packets, bytes or duration",
    "PgUp, PgDn  more CPUs",
    "up, down    choose a queue: its buckets are shown",
    "m           write a mask for that queue, as a list of CPUs such as 0-3,8;",
    "            an empty one: each packet stays where it is received",
    "h           this; any key leaves it",
    "",
    "rate     packets handled a second      share   its part of all",
    "busy     part of its time at work      own     part it had received itself",
    "backlog  packets that wait for it      wakes   times woken a second",
    "drops    lost for its sake a second; ! stands where there are any",
    "",
    "`steerage help top` and `steerage help report` say more",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Colours {
    Yes,
    No,
}

impl Colours {
    fn of(self, colour: Color) -> Style {
        if self == Self::Yes { Style::new().fg(colour) } else { Style::new() }
    }

    fn bad(self, is_bad: bool) -> Style {
        if is_bad { self.of(Color::Red).add_modifier(Modifier::BOLD) } else { Style::new() }
    }
}

struct Section {
    head: Line<'static>,
    rows: Vec<Line<'static>>,
    rows_min: usize,
    /// `things` is the number of objects (such as CPUs) in the section, and `across` is their
    /// number in each row.
    things: usize,
    across: usize,
}

impl Section {
    fn new(head: String, rows: Vec<Line<'static>>, rows_min: usize) -> Self {
        let head = Line::styled(head, Style::new().add_modifier(Modifier::BOLD));
        Self { head, things: rows.len(), rows, rows_min, across: 1 }
    }

    fn hidden(&self) -> usize {
        self.things.saturating_sub(self.rows.len() * self.across)
    }
}

/// Returns the width of a column for `names`, in characters. The column is at least `least` wide.
/// On screens of more than [`WIDTH`] columns, it grows up to the longest name.
fn room_for<'a>(names: impl Iterator<Item = &'a str>, least: usize, width: usize) -> usize {
    let longest = names.map(|name| printable(name).chars().count()).max().unwrap_or(0);
    longest.min(least + width.saturating_sub(WIDTH)).max(least)
}

pub(crate) fn draw(frame: &mut Frame<'_>, model: &Model, ui: &Ui, colours: Colours) {
    let area = frame.area();
    let foot = Rect { y: area.bottom().saturating_sub(1), height: area.height.min(1), ..area };
    let body = Rect { height: area.height.saturating_sub(1), ..area };
    let lines = if ui.mode == Mode::Help {
        HELP.iter().map(|line| Line::raw(*line)).collect()
    } else {
        page(model, ui, colours, usize::from(body.width), Some(usize::from(body.height)))
    };
    frame.render_widget(Text::from(lines), body);
    frame.render_widget(footer(model, ui, colours), foot);
}

/// If `height` is `None`, the lines include all rows.
pub(crate) fn lines(model: &Model, ui: &Ui, width: usize, height: Option<usize>) -> Vec<String> {
    let page = page(model, ui, Colours::No, width, height);
    page.iter().take(height.unwrap_or(usize::MAX)).map(|line| line.to_string().trim_end().to_owned()).collect()
}

fn footer(model: &Model, ui: &Ui, colours: Colours) -> Line<'static> {
    match (&ui.mode, &ui.said, &model.gone) {
        (Mode::Mask(text), ..) => {
            let name = model.now().queues.get(ui.queue).map_or(String::new(), names::queue);
            Line::raw(format!("CPUs for {name}: {text}_  (Enter writes, Esc leaves)"))
        }
        (_, _, Some(why)) => Line::styled(format!("{}; q quits", printable(why)), colours.bad(true)),
        (_, Some(said), _) => Line::styled(printable(said), Style::new().add_modifier(Modifier::BOLD)),
        _ => Line::styled(KEYS, colours.of(Color::DarkGray)),
    }
}

fn page(model: &Model, ui: &Ui, colours: Colours, width: usize, height: Option<usize>) -> Vec<Line<'static>> {
    let mut lines = head(model, colours);
    let mut sections = vec![cpus(model, ui, colours, width), queues(model, ui, colours, width)];
    sections.extend([buckets(model, ui, colours, width), outputs(model, colours, width), counters(model, width)]);
    sections.insert(if ui.flows_first { 0 } else { sections.len() }, flows(model, ui, width));
    sections.push(events(model, colours));
    sections.retain(|section| !section.rows.is_empty());
    if let Some(height) = height {
        fit(&mut sections, height.saturating_sub(lines.len()));
    }
    for section in sections {
        let hidden = section.hidden();
        lines.push(Line::default());
        lines.push(section.head);
        lines.extend(section.rows);
        if hidden > 0 {
            lines.push(Line::raw(format!("{hidden:>8} more")));
        }
    }
    lines
}

/// Shortens the last sections first. If the sections still do not fit, the end of the page is cut
/// off.
fn fit(sections: &mut [Section], height: usize) {
    // Each section has an empty line, a heading, and rows.
    let lines: usize = sections.iter().map(|section| 2 + section.rows.len()).sum();
    let mut over = lines.saturating_sub(height);
    for section in sections.iter_mut().rev().filter(|section| section.rows.len() > section.rows_min) {
        if over == 0 {
            return;
        }
        // One more row is cut, to make room for the line that says how many rows are hidden.
        let cut = (over + 1).min(section.rows.len() - section.rows_min);
        section.rows.truncate(section.rows.len() - cut);
        over = over.saturating_sub(cut - 1);
    }
}

fn head(model: &Model, colours: Colours) -> Vec<Line<'static>> {
    let now = model.now();
    let mut devices: Vec<String> = now.queues.iter().map(|queue| printable(&queue.device)).collect();
    devices.dedup();
    let (received, drops) = (model.rate(Snapshot::received), model.rate(|of| of.dropped().total()));
    let bits = bits_a_second(8.0 * model.rate(Snapshot::received_bytes));
    let delivered = packets_a_second(model.rate(Snapshot::delivered));
    let state = if model.gone.is_some() { "  GONE" } else { "" };
    let order = now.reordered().map_or(String::new(), |reordered| format!("  reordered {}", grouped(reordered)));
    let [in_flight, free, pages] = [now.in_flight(), now.pages_free, now.pages].map(grouped);
    let moved = counted(now.moves.buckets, "bucket");
    let mut lines = vec![
        Line::raw(format!(
            "steerage {}  up {}{state}  {}",
            printable(&model.seen.document.version),
            time(now.elapsed),
            devices.join(" ")
        )),
        Line::from(vec![
            Span::raw(format!("received {}  ", packets_a_second(received))),
            Span::styled(
                format!("dropped {} ({:.1} %){}", packets_a_second(drops), percent(drops, received), sign(drops)),
                colours.bad(drops > 0.0),
            ),
            Span::raw(format!("  delivered {delivered}  {bits}")),
        ]),
        Line::raw(format!("in flight {in_flight}{order}  moved {moved}  pages free {free} of {pages}")),
    ];
    let stuck = stuck(&now.cpus).into_iter().map(|line| format!("! {line}"));
    lines.extend(stuck.map(|line| Line::styled(line, colours.bad(true))));
    lines.extend(
        apart(now).map(|apart| Line::raw(format!("a cache line takes {} ns from CPU to CPU", apart.as_nanos()))),
    );
    lines.extend(now.groups.iter().filter_map(|group| regimes(&group.findings)).map(Line::raw));
    lines
}

/// The mark of a rate that should be 0 but is not.
fn sign(rate: f64) -> &'static str {
    if rate > 0.0 { " !" } else { "" }
}

fn cpus(model: &Model, ui: &Ui, colours: Colours, width: usize) -> Section {
    let mut cpus = model.cpus();
    let most_first = |of: fn(&CpuRates) -> f64| move |a: &CpuRates, b: &CpuRates| of(b).total_cmp(&of(a));
    match ui.sort {
        SortBy::Cpu => cpus.sort_by_key(|cpu| cpu.cpu),
        SortBy::Rate => cpus.sort_by(most_first(|cpu| cpu.rate)),
        SortBy::Busy => cpus.sort_by(most_first(|cpu| cpu.busy)),
        SortBy::Backlog => cpus.sort_by(most_first(|cpu| cpu.backlog as f64)),
        SortBy::Drops => cpus.sort_by(most_first(|cpu| cpu.drops)),
    }
    let cpus = &cpus[ui.first_cpu.min(cpus.len().saturating_sub(1))..];
    let most_across = cpus.len().div_ceil(CPU_ROWS).max(1);
    let across = ((width + CPU_GAP) / (WIDTH + CPU_GAP)).clamp(1, most_across);
    let each = ((width + CPU_GAP) / across).saturating_sub(CPU_GAP);
    let bar_width = (BAR_WIDTHS.0 + each.saturating_sub(WIDTH)).min(BAR_WIDTHS.1);
    let heads = vec![format!("{:<each$}", cpu_head(ui, bar_width)); across].join(&" ".repeat(CPU_GAP));
    let row = |cpus: &[CpuRates]| {
        let mut row = Line::default();
        for (nth, cpu) in cpus.iter().enumerate() {
            let gap = (nth * (each + CPU_GAP)).saturating_sub(row.width());
            row.spans.push(Span::raw(" ".repeat(gap)));
            row.spans.extend(cpu_cells(cpu, bar_width, colours));
        }
        row
    };
    let rows = cpus.chunks(across).map(row).collect();
    Section { things: cpus.len(), across, ..Section::new(heads.trim_end().to_owned(), rows, CPUS_MIN) }
}

fn cpu_head(ui: &Ui, bar_width: usize) -> String {
    let column = |column: &str| {
        if column == ui.sort.column() { format!("[{column}]") } else { column.to_owned() }
    };
    let [cpu, rate, busy, backlog, drops] = SortBy::ALL.map(|by| column(by.column()));
    let busy_width = bar(0.0, bar_width).len();
    format!(
        "{cpu:>5} {rate:>10} {:>6}  {busy:<busy_width$} {:>6} {backlog:>9} {:>8} {drops:>9}",
        "share", "own", "wakes/s"
    )
}

/// Returns the cells for one CPU, which are as wide as the headings of [`cpu_head`].
fn cpu_cells(cpu: &CpuRates, bar_width: usize, colours: Colours) -> [Span<'static>; 4] {
    let own = cpu.own.map_or("-".to_owned(), |share| format!("{:.0} %", 100.0 * share));
    let rest = format!(" {own:>6} {:>9} {:>8.0} ", grouped(cpu.backlog), cpu.wakes);
    [
        Span::raw(format!("{:>5} {:>10} {:>4.0} %  ", cpu.cpu, packets_a_second(cpu.rate), 100.0 * cpu.share)),
        Span::styled(bar(cpu.busy, bar_width), busy_style(cpu.busy, colours)),
        Span::raw(rest),
        Span::styled(format!("{:>9.0}{}", cpu.drops, sign(cpu.drops)), colours.bad(cpu.drops > 0.0)),
    ]
}

/// A CPU with at least this load is shown as nearly full, because bursts have to wait.
const NEARLY_FULL: f64 = 0.9;

fn busy_style(busy: f64, colours: Colours) -> Style {
    if busy >= NEARLY_FULL { colours.of(Color::Yellow) } else { colours.of(Color::Green) }
}

/// Returns a bar such as `[####....] 52 %`.
fn bar(part: f64, width: usize) -> String {
    let full = ((part * width as f64).round() as usize).min(width);
    format!("[{}{}] {:>3.0} %", "#".repeat(full), ".".repeat(width - full), 100.0 * part)
}

fn queues(model: &Model, ui: &Ui, colours: Colours, width: usize) -> Section {
    let devices = model.now().queues.iter().map(|queue| &*queue.device);
    let chars = room_for(devices, names::DEVICE_CHARS, width);
    // The first column: a mark of the selected queue, the device, and the queue's number.
    let column = chars + 8;
    let head =
        format!("{:<column$} {:>4} {:>11} {:>10}   {:>6}  {}", "  queue", "on", "rate", "drops/s", "cache", "CPUs");
    // A long list begins near the selected queue, so that this queue is visible.
    let first = if model.now().queues.len() > QUEUES_SHOWN { ui.queue.saturating_sub(QUEUES_MIN - 1) } else { 0 };
    let rows = model.queues().into_iter().enumerate().skip(first).map(|(at, of)| {
        let queue = of.queue;
        let chosen = if at == ui.queue { ">" } else { " " };
        let hits = of.cache_hits.map_or("-".to_owned(), |hits| format!("{:.0} %", 100.0 * hits));
        let name = format!("{chosen} {}", names::queue_within(queue, chars));
        Line::from(vec![
            Span::raw(format!("{name:<column$} {:>4} {:>11} ", queue.cpu, packets_a_second(of.rate))),
            Span::styled(format!("{:>10.0}{:<2}", of.drops, sign(of.drops)), colours.bad(of.drops > 0.0)),
            Span::raw(format!(" {hits:>6}  {} by {}", mask(&queue.rps_cpus), printable(&queue.hash))),
        ])
    });
    Section::new(head, rows.collect(), QUEUES_MIN)
}

fn buckets(model: &Model, ui: &Ui, colours: Colours, width: usize) -> Section {
    let chars = names::DEVICE_CHARS + width.saturating_sub(WIDTH);
    let name = model.now().queues.get(ui.queue).map_or(String::new(), |queue| names::queue_within(queue, chars));
    let (head, rows) = strip::of(&model.bucket_loads(), width);
    let colour = |cpu: Option<u16>| match (cpu, colours) {
        (Some(cpu), Colours::Yes) => Style::new().fg(strip::colour(cpu)),
        _ => Style::new(),
    };
    let row = |cells: Vec<(String, Option<u16>)>| {
        Line::from(cells.into_iter().map(|(text, cpu)| Span::styled(text, colour(cpu))).collect::<Vec<_>>())
    };
    Section::new(format!("  buckets of {name}: {head}"), rows.into_iter().map(row).collect(), BUCKETS_MIN)
}

fn outputs(model: &Model, colours: Colours, width: usize) -> Section {
    let chars = room_for(model.now().outputs.iter().map(|output| &*output.device), NAME_CHARS, width);
    let row = |(output, [packets, bytes, lost]): (&OutputSnapshot, [f64; 3])| {
        let (name, held) = (shortened(&output.device, chars), grouped(output.held));
        let (packets, bits) = (packets_a_second(packets), bits_a_second(8.0 * bytes));
        Line::from(vec![
            Span::raw(format!("  {name:<chars$} {packets:>12} {bits:>12} {held:>9} ")),
            Span::styled(format!("{lost:>9.0}{}", sign(lost)), colours.bad(lost > 0.0)),
        ])
    };
    let head = format!("  {:<chars$} {:>12} {:>12} {:>9} {:>9}", "output", "rate", "bits", "held", "drops/s");
    Section::new(head, model.outputs().into_iter().map(row).collect(), OUTPUTS_MIN)
}

fn counters(model: &Model, width: usize) -> Section {
    let chars = room_for(model.now().counters.iter().map(|counter| &*counter.name), NAME_CHARS, width);
    let row = |(counter, rate): (&CounterSnapshot, f64)| {
        let (name, unit) = (shortened(&counter.name, chars), shortened(&counter.unit, NAME_CHARS));
        let [rate, total] = [rate.round() as u64, counter.total].map(grouped);
        Line::raw(format!("  {name:<chars$} {rate:>12} {total:>16}  {unit}").trim_end().to_owned())
    };
    let head = format!("  {:<chars$} {:>12} {:>16}  {}", "counter", "per second", "total", "unit");
    Section::new(head, model.counters().into_iter().map(row).collect(), COUNTERS_MIN)
}

fn flows(model: &Model, ui: &Ui, width: usize) -> Section {
    let metered = &model.seen.document.app.flows;
    let counts = metered.iter().map(|flows| {
        let FlowTotals { active, total, evicted, lost } = flows.counts;
        let [active, total, evicted, lost] = [active, total, evicted, lost].map(grouped);
        format!("  {active} active  {total} so far  {evicted} evicted  {lost} not written")
    });
    let is_private = metered.is_some() && model.seen.traffic.is_none();
    let why = is_private.then(|| "  only root and the user of the run may see which flows there are".to_owned());
    let largest = if model.flows.is_empty() { Vec::new() } else { flow_table(model, ui, width) };
    Section::new("  flows".to_owned(), counts.chain(why).chain(largest).map(Line::raw).collect(), FLOWS_MIN)
}

fn flow_table(model: &Model, ui: &Ui, width: usize) -> Vec<String> {
    let mut flows: Vec<&FlowRates> = model.flows.iter().collect();
    flows.sort_by(|a, b| match ui.flows_by {
        FlowsBy::Rate => b.rates[0].total_cmp(&a.rates[0]),
        FlowsBy::Packets => b.flow.packets().cmp(&a.flow.packets()),
        FlowsBy::Bytes => b.flow.bytes().cmp(&a.flow.bytes()),
        FlowsBy::Duration => b.duration.cmp(&a.duration),
    });
    let of = |cell: &dyn Fn(&FlowRates) -> String| flows.iter().map(|of| cell(of)).collect::<Vec<_>>();
    let (sources, destinations) = flows.iter().map(|of| of.flow.id.ends().into()).unzip();
    // On a narrow screen, complete addresses are more useful than totals. The column by which the
    // flows are sorted is always shown.
    let less = |column: Column, by: FlowsBy| if ui.flows_by == by { column } else { column.may_go() };
    let packets = Column::counts("packets", "pkts", flows.iter().map(|of| of.flow.packets()));
    let bytes = Column::counts("bytes", "bytes", flows.iter().map(|of| of.flow.bytes()));
    let seconds = Column::numbers("seconds", of(&|of| format!("{:.1}", of.duration.as_secs_f64())))
        .or_short("s", of(&|of| format!("{:.0}", of.duration.as_secs_f64())));
    let columns = vec![
        Column::numbers("rate", of(&|of| bits_a_second(8.0 * of.rates[0]))),
        Column::counts("packets/s", "pps", flows.iter().map(|of| of.rates[1].round() as u64)),
        Column::words("proto", of(&|of| of.flow.id.kind.clone())),
        Column::ends("source", sources),
        Column::ends("destination", destinations),
        less(packets, FlowsBy::Packets),
        less(bytes, FlowsBy::Bytes),
        less(seconds, FlowsBy::Duration),
    ];
    table(columns, Some(width))
}

fn events(model: &Model, colours: Colours) -> Section {
    let row = |event: &super::events::Event| {
        let sign = if event.is_bad { "!" } else { " " };
        Line::styled(format!("{sign} {:>12}  {}", time(event.at), event.what), colours.bad(event.is_bad))
    };
    Section::new("  events".to_owned(), model.events.iter().map(row).collect(), EVENTS_MIN)
}
