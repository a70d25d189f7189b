//! The report as text: a summary line, and then a line for each subject.

use std::fmt::Write;
use std::time::Duration;

use steerage::{
    CpuId, CpuMask,
    limits::DEAD_AFTER,
    stats::{CpuSnapshot, DropReason, MemoryUse, OutputSnapshot, QueueSnapshot},
};
use steerage_text::{bit_rate, counted, grouped, percent, printable, rate, recorded, size, time, wrapped};

use super::{Report, flows, steering};

/// The width of the labels in characters.
const LABEL_WIDTH: usize = 12;

/// The width of the report in characters, for a terminal of 80 columns.
const WIDTH: usize = 80;

const GAP: &str = "   ";

/// The maximum number of queues in the text report. The JSON report contains all queues.
const QUEUES_SHOWN: usize = 8;

/// The number of outputs in the text report. The JSON report contains all outputs.
const OUTPUTS_SHOWN: usize = 16;

pub(super) fn page(report: &Report) -> String {
    let snapshot = report.snapshot();
    let mut page = head(report);
    page.push('\n');
    if let Some(flows) = &report.flows {
        page.push_str(&flows::page(flows));
        page.push('\n');
    }
    push_all(&mut page, "cpus", cpus(report));
    stuck(&snapshot.cpus).iter().for_each(|line| push(&mut page, "stuck", line));
    push_all(&mut page, "steering", steering::lines(snapshot, report.verbose));
    push_all(&mut page, "queues", queues(&snapshot.queues));
    push_all(&mut page, "outputs", outputs(&snapshot.outputs));
    push_all(&mut page, "exported", report.flows.iter().flat_map(flows::exported));
    if let Some(forwarded) = &report.document.app.forward {
        forwarded.lines().iter().for_each(|(label, line)| push(&mut page, label, line));
    }
    let (delivered, dropped) = (grouped(snapshot.delivered()), grouped(snapshot.dropped().total()));
    let (received, in_flight) = (grouped(snapshot.received()), grouped(snapshot.in_flight()));
    let balance = format!("{received} = delivered {delivered} + dropped {dropped} + in flight {in_flight}");
    push(&mut page, "received", &balance);
    for (reason, packets) in snapshot.dropped().iter() {
        let share = percent(packets as f64, snapshot.received() as f64);
        let line = format!("{} {} ({share:.1} %): {}", reason.name(), grouped(packets), advice(reason));
        push(&mut page, "dropped", &line);
    }
    let of_queues = |count: fn(&QueueSnapshot) -> u64| snapshot.queues.iter().map(count).sum();
    push_packets(&mut page, "unparsed", of_queues(|queue| queue.unparsed), ", steered by their MAC addresses");
    if let Some(capture) = &report.document.capture {
        push_packets(&mut page, "filtered", capture.filtered, " that did not match -f");
        push_packets(&mut page, "bad times", capture.bad_times, " with a time stamp out of range");
    }
    push_packets(&mut page, "passed", of_queues(|queue| queue.passed), ", left to the kernel");
    let mut events: Vec<(&str, u64)> = Vec::new();
    for (name, count) in snapshot.queues.iter().flat_map(|queue| &queue.device_counts).filter(|(_, count)| *count > 0) {
        match events.iter_mut().find(|(known, _)| known == name) {
            Some((_, sum)) => *sum += count,
            None => events.push((name, *count)),
        }
    }
    if !events.is_empty() {
        let events: Vec<String> = events.iter().map(|(name, count)| format!("{name} {}", grouped(*count))).collect();
        push(&mut page, "device", &events.join(", "));
    }
    let why_copied = ", because they were held too long in the ring of the device";
    push_packets(&mut page, "copied", of_queues(|queue| queue.copied), why_copied);
    match snapshot.reordered() {
        Some(reordered) => push(&mut page, "order", &format!("checked, {} out of order", grouped(reordered))),
        None if report.verbose => push(&mut page, "order", "not checked (--check-order)"),
        None => {}
    }
    snapshot.notes.iter().for_each(|text| page.push_str(&note(text)));
    if report.verbose {
        push(&mut page, "memory", &format!("{} in {}", size(snapshot.memory_bytes), snapshot.backing));
        by_purpose(&snapshot.memory).iter().for_each(|line| push(&mut page, "", line));
    }
    let MemoryUse { backlog, backlog_asked, backlog_max, .. } = snapshot.memory;
    if backlog_max < backlog_asked {
        let share =
            format!("only {} packets may wait for a CPU instead of {}", grouped(backlog), grouped(backlog_asked));
        push(&mut page, if report.verbose { "" } else { "memory" }, &format!("{share}: allow more with --memory"));
    }
    if report.verbose {
        let sandbox = match &report.sandbox {
            Some(in_force) => format!("no capabilities, {in_force}"),
            None => "no capabilities, and no sandbox (--no-sandbox)".to_owned(),
        };
        push(&mut page, "sandbox", &sandbox);
    }
    page
}

fn note(text: &str) -> String {
    let mut lines = String::new();
    push(&mut lines, "note", &printable(text));
    wrapped(&lines, Some(WIDTH))
}

/// Returns the memory by purpose, without the purposes that use less than a tenth of a MiB.
fn by_purpose(memory: &MemoryUse) -> Vec<String> {
    let purposes = [
        ("backlogs", memory.backlogs),
        ("parking lots", memory.parked),
        ("kept packets", memory.kept),
        ("page caches", memory.caches),
        ("rings", memory.rings),
        ("devices", memory.lent),
        ("other pages", memory.others),
    ];
    let counts = purposes.into_iter().filter(|(_, bytes)| size(*bytes) != size(0));
    let mut lines: Vec<String> = Vec::new();
    for (purpose, bytes) in counts {
        let next = format!("{purpose} {}", size(bytes));
        match lines.last_mut() {
            Some(line) if LABEL_WIDTH + line.len() + 2 + next.len() < WIDTH => *line = format!("{line}, {next}"),
            _ => lines.push(next),
        }
    }
    lines
}

/// Adds `lines` to the page, the first line with `label`.
fn push_all(page: &mut String, label: &str, lines: impl IntoIterator<Item = String>) {
    for (at, line) in lines.into_iter().enumerate() {
        push(page, if at == 0 { label } else { "" }, &line);
    }
}

/// Adds a line about packets, unless there are none.
fn push_packets(page: &mut String, label: &str, packets: u64, what: &str) {
    if packets > 0 {
        push(page, label, &format!("{}{what}", counted(packets, "packet")));
    }
}

fn push(page: &mut String, label: &str, line: &str) {
    page.push_str(format!("{label:LABEL_WIDTH$}{line}").trim_end());
    page.push('\n');
}

fn head(report: &Report) -> String {
    let snapshot = report.snapshot();
    let mut devices: Vec<&str> = snapshot.queues.iter().map(|queue| queue.device.as_str()).collect();
    devices.dedup();
    let (received, bytes) = (snapshot.received(), counted(snapshot.received_bytes(), "byte"));
    let when = if report.document.ended_by.is_none() { "so far, " } else { "" };
    let mut speed = rate(received, snapshot.elapsed);
    if snapshot.dropped().total() > 0 {
        let _ = write!(speed, ", delivered {}", rate(snapshot.delivered(), snapshot.elapsed));
    }
    let devices = printable(&devices.join(" "));
    let (packets, elapsed) = (counted(received, "packet"), time(snapshot.elapsed));
    // If a run has several queues, the times and link types of its captures describe only a part of
    // the run.
    match report.document.capture.as_ref().filter(|_| snapshot.queues.len() == 1) {
        Some(capture) => {
            let links = if capture.links.is_empty() { String::new() } else { capture.links.join("+") + "  " };
            let recorded = capture.time().map_or(String::new(), |time| format!("{} recorded  ", recorded(time)));
            let bits = capture
                .time()
                .map_or(String::new(), |time| format!("; {} as recorded", bit_rate(snapshot.received_bytes(), time)));
            format!("{devices}  {links}{packets}  {bytes}  {recorded}{when}read in {elapsed} ({speed}{bits})\n")
        }
        None => {
            let bits = bit_rate(snapshot.received_bytes(), snapshot.elapsed);
            format!("{devices}  {packets}  {bytes}  {when}in {elapsed} ({speed}, {bits})\n")
        }
    }
}

/// Returns how many packets each CPU handled, in columns, and how evenly they are spread.
fn cpus(report: &Report) -> Vec<String> {
    let snapshot = report.snapshot();
    // The measure of evenness leaves out CPUs that only receive.
    let receives = |cpu: CpuId| snapshot.queues.iter().any(|queue| queue.cpu == cpu);
    let active: CpuMask = snapshot.groups.iter().flat_map(|group| group.active.iter().copied()).collect();
    let works = |cpu: CpuId, processed: u64| active.contains(cpu) || processed > 0;
    let worked: Vec<u64> = snapshot.cpus.iter().filter(|c| works(c.cpu, c.processed)).map(|c| c.processed).collect();
    let all: u64 = worked.iter().sum();
    let widest =
        |of: fn(&CpuSnapshot) -> u64| snapshot.cpus.iter().map(|cpu| grouped(of(cpu)).len()).max().unwrap_or(0);
    let (id_width, width) = (widest(|cpu| cpu.cpu.0.into()), widest(|cpu| cpu.processed));
    let cell = |cpu: &CpuSnapshot| match works(cpu.cpu, cpu.processed) {
        true => {
            let share = percent(cpu.processed as f64, all as f64);
            format!("{:>id_width$}: {:>width$} ({share:.1} %)", cpu.cpu.0, grouped(cpu.processed))
        }
        false if receives(cpu.cpu) => format!("{:>id_width$}: receives", cpu.cpu.0),
        false => format!("{:>id_width$}: idle", cpu.cpu.0),
    };
    let mut lines = in_columns(&snapshot.cpus.iter().map(cell).collect::<Vec<_>>());
    // If only one CPU is active at the end, the policy spreads packets unevenly on purpose.
    if let (2.., Some(busiest @ 1..)) = (active.len(), worked.iter().copied().max()) {
        let mean = all as f64 / worked.len() as f64;
        let evenness = format!("busiest {:.2} of mean", busiest as f64 / mean);
        match lines.as_mut_slice() {
            [line] if LABEL_WIDTH + line.len() + GAP.len() + evenness.len() <= WIDTH => {
                let _ = write!(line, "{GAP}{evenness}");
            }
            _ => lines.push(evenness),
        }
    }
    lines
}

/// A CPU is stuck if its handler has not returned for so long that the CPU may be declared dead.
pub(crate) fn stuck(cpus: &[CpuSnapshot]) -> Vec<String> {
    let stuck = cpus.iter().filter_map(|cpu| Some((cpu.cpu, cpu.in_handler.filter(|since| *since >= DEAD_AFTER)?)));
    let line = |(cpu, since): (CpuId, Duration)| format!("CPU {cpu} has not returned for {:.0} s", since.as_secs_f64());
    stuck.map(line).collect()
}

/// Puts the cells on one line, or into as many columns as fit.
fn in_columns(cells: &[String]) -> Vec<String> {
    let width = cells.iter().map(String::len).max().unwrap_or(0);
    let one_line = cells.join(GAP);
    if one_line.len() <= WIDTH - LABEL_WIDTH {
        return vec![one_line];
    }
    let across = ((WIDTH - LABEL_WIDTH + GAP.len()) / (width + GAP.len())).max(1);
    let line = |cells: &[String]| cells.iter().map(|cell| format!("{cell:width$}")).collect::<Vec<_>>().join(GAP);
    cells.chunks(across).map(|cells| line(cells).trim_end().to_owned()).collect()
}

fn queues(queues: &[QueueSnapshot]) -> Vec<String> {
    let line = |queue: &QueueSnapshot| {
        let mask: CpuMask = queue.rps_cpus.iter().copied().collect();
        let received = if queues.len() > 1 { format!(": {}", grouped(queue.received)) } else { String::new() };
        let spread = match mask.len() {
            0 | 1 if mask.contains(queue.cpu) => "handled there".to_owned(),
            1 => format!("all to CPU {mask}"),
            _ => format!("over CPUs {mask} by {}", hash(&queue.hash)),
        };
        let mode = if queue.mode.is_empty() { String::new() } else { format!(" ({})", queue.mode) };
        format!("rx-{}{mode} on CPU {}{received}, {spread}", queue.queue, queue.cpu)
    };
    first_lines(queues, QUEUES_SHOWN, line)
}

fn outputs(outputs: &[OutputSnapshot]) -> Vec<String> {
    let all: u64 = outputs.iter().map(|output| output.packets).sum();
    let line = |output: &OutputSnapshot| {
        let share = percent(output.packets as f64, all as f64);
        let (sent, bytes) = (counted(output.packets, "packet"), counted(output.bytes, "byte"));
        let mut line = format!("{}: {sent} {bytes} ({share:.1} %)", printable(&output.device));
        if output.dropped.total() > 0 {
            let _ = write!(line, ", dropped {}", grouped(output.dropped.total()));
        }
        if output.held > 0 {
            let _ = write!(line, ", {} not written yet", grouped(output.held));
        }
        if output.error.is_some() {
            line.push_str(", failed");
        }
        line
    };
    first_lines(outputs, OUTPUTS_SHOWN, line)
}

/// Returns a line for each of the first `most` entries, and a line with the number of the others.
fn first_lines<T>(all: &[T], most: usize, line: impl Fn(&T) -> String) -> Vec<String> {
    let mut lines: Vec<String> = all.iter().take(most).map(line).collect();
    if all.len() > most {
        lines.push(format!("and {} more: --json has them all", all.len() - most));
    }
    lines
}

fn hash(name: &str) -> String {
    if name == "device" { "the device's hash".to_owned() } else { format!("{name} hash") }
}

/// Returns advice on drops with this reason. docs/report.md contains more details.
fn advice(reason: DropReason) -> &'static str {
    match reason {
        DropReason::Device => "the receiving CPU was too slow; see --rx-cpu",
        DropReason::NoPage => "no page was free for the device's ring",
        DropReason::BacklogFull => "a CPU cannot keep up; see --cpus, --backlog",
        DropReason::FlowLimit => "one flow filled the backlog of a CPU",
        DropReason::Moving => "their flow took too long to move to another CPU",
        DropReason::Revoked => "they waited for a CPU that was stuck",
        DropReason::HandlerPanicked => "the packet function panicked; see -v",
        DropReason::TxFull => "an output had no room for them",
        DropReason::TxTooLong => "an output cannot send packets of their length; see its MTU",
        DropReason::TxLinkType => "an output has another link type",
        DropReason::TxCut => "a capture has cut them, so they cannot be sent",
        DropReason::TxRefused => "an output takes none, or failed",
        DropReason::TxLost => "an output failed, or the run ended, before they were written",
        _ => "see `steerage help report`",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_fit_the_page() {
        let text = "CPU 1: the handler panicked once and was made again, so its report covers only the packets after the last time";
        let expected = "note        CPU 1: the handler panicked once and was made again, so its report
            covers only the packets after the last time\n";
        assert_eq!(note(text), expected);
    }

    #[test]
    fn columns_fill_the_width_and_no_more() {
        let cells: Vec<String> = (0..16).map(|cpu| format!("{cpu}: 100,000 (6.2 %)")).collect();
        let lines = in_columns(&cells);
        assert_eq!(lines.len(), 6);
        assert_eq!(lines[0], "0: 100,000 (6.2 %)    1: 100,000 (6.2 %)    2: 100,000 (6.2 %)");
        assert!(lines.iter().all(|line| line.len() + LABEL_WIDTH <= WIDTH));

        let long = vec!["x".repeat(WIDTH), "y".to_owned()];
        assert_eq!(in_columns(&long), [long[0].clone(), "y".to_owned()]);
        assert_eq!(in_columns(&cells[..3]), ["0: 100,000 (6.2 %)   1: 100,000 (6.2 %)   2: 100,000 (6.2 %)"]);
    }
}
