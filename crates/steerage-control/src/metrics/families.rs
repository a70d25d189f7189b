//! The metrics of every count in the ledger (the packet counts of an instance).
//!
//! The names follow Prometheus' conventions (<https://prometheus.io/docs/practices/naming/>): they
//! contain the unit, and counters end in `_total`, which [`with_suffix`] adds.

use std::borrow::Cow;

use prometheus_client::metrics::MetricType;
use steerage::{
    CpuMask, Snapshot,
    stats::{CpuSnapshot, DropReason, Drops, MoveCause, OutputSnapshot, QueueSnapshot, Verdicts},
};

use super::PREFIX_DEFAULT;

pub(super) struct Family<T: 'static> {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) kind: MetricType,
    pub(super) read: fn(&T) -> Vec<Sample>,
}

pub(super) struct Sample {
    pub(super) label: Option<(&'static str, Cow<'static, str>)>,
    pub(super) value: Value,
}

#[derive(Clone, Copy)]
pub(super) enum Value {
    Whole(u64),
    Fraction(f64),
}

/// Returns the names of all metrics of a snapshot, with the default prefix.
pub fn names() -> Vec<String> {
    without_prefix().map(|name| format!("{PREFIX_DEFAULT}_{name}")).collect()
}

pub(super) fn without_prefix() -> impl Iterator<Item = String> {
    fn of<T>(families: &[Family<T>]) -> impl Iterator<Item = String> + '_ {
        families.iter().map(|family| with_suffix(family.name, family.kind))
    }
    let whole = of(&BUILD).chain(of(&WHOLE));
    whole.chain(of(&QUEUES)).chain(of(&CPUS)).chain(of(&OUTPUTS))
}

pub(super) fn with_suffix(name: &str, kind: MetricType) -> String {
    let suffix = if matches!(kind, MetricType::Counter) { "_total" } else { "" };
    format!("{name}{suffix}")
}

const fn counter<T>(name: &'static str, help: &'static str, read: fn(&T) -> Vec<Sample>) -> Family<T> {
    Family { name, help, kind: MetricType::Counter, read }
}

const fn gauge<T>(name: &'static str, help: &'static str, read: fn(&T) -> Vec<Sample>) -> Family<T> {
    Family { name, help, kind: MetricType::Gauge, read }
}

fn one(value: u64) -> Vec<Sample> {
    vec![Sample { label: None, value: Value::Whole(value) }]
}

fn seconds(time: std::time::Duration) -> Vec<Sample> {
    vec![Sample { label: None, value: Value::Fraction(time.as_secs_f64()) }]
}

fn fraction(value: f64) -> Vec<Sample> {
    vec![Sample { label: None, value: Value::Fraction(value) }]
}

fn each<const N: usize>(key: &'static str, values: [(&'static str, u64); N]) -> Vec<Sample> {
    values.map(|(label, value)| Sample { label: Some((key, label.into())), value: Value::Whole(value) }).into()
}

/// Returns a sample for every drop reason, even if its count is 0. If a sample appeared only with
/// the first drop, Prometheus would not count this drop as an increase.
fn by_reason(drops: &Drops) -> Vec<Sample> {
    each("reason", DropReason::ALL.map(|reason| (reason.name(), drops.get(reason))))
}

pub(super) const BUILD: [Family<()>; 1] = [gauge("build_info", "1, and the version.", |_| one(1))];

pub(super) const WHOLE: [Family<Snapshot>; 9] = [
    gauge("uptime_seconds", "Since the path was put together.", |all| seconds(all.elapsed)),
    counter("bucket_moves", "Buckets that changed their CPU.", |all| {
        each("cause", MoveCause::ALL.map(|cause| (cause.name(), all.moves.of(cause))))
    }),
    counter("bucket_move_slices", "Slices that buckets moved in.", |all| one(all.moves.slices)),
    gauge("active_cpus", "CPUs that have buckets.", |all| {
        let active: CpuMask = all.groups.iter().flat_map(|group| group.active.iter().copied()).collect();
        one(active.len() as u64)
    }),
    gauge("unevenness", "Load of the busiest CPU over the best that buckets allow, if it was measured.", |all| {
        let known = all.groups.iter().filter_map(|group| group.findings.uneven).reduce(f64::max);
        known.map(|uneven| Sample { label: None, value: Value::Fraction(uneven) }).into_iter().collect()
    }),
    gauge(
        "cpu_distance_seconds",
        "Time that a cache line takes from the receiving CPU to the CPU that joined last or is next, if it was measured.",
        |all| all.groups.iter().filter_map(|group| group.findings.apart).max().map(seconds).unwrap_or_default(),
    ),
    gauge("pages", "Pages of the shared pool.", |all| one(all.pages)),
    gauge("free_pages", "Pages that no queue holds.", |all| one(all.pages_free)),
    gauge("memory_bytes", "Packet memory and rings; never more than at the start.", |all| one(all.memory_bytes)),
];

pub(super) const QUEUES: [Family<QueueSnapshot>; 20] = [
    counter("received_packets", "Packets received, those lost before us among them.", |queue| one(queue.received)),
    counter("received_bytes", "Their bytes on the wire, without those lost before us.", |queue| {
        one(queue.received_bytes)
    }),
    counter("delivered_packets", "Packets that the packet function got, by verdict.", |queue| {
        let Verdicts { consumed, discarded, kept, transmitted, .. } = queue.verdicts;
        let of = [("consumed", consumed), ("discarded", discarded), ("kept", kept), ("transmitted", transmitted)];
        each("verdict", of)
    }),
    counter("dropped_packets", "Packets lost, by reason.", |queue| by_reason(&queue.dropped)),
    gauge(
        "in_flight_packets",
        "Packets received, and neither delivered nor dropped yet.",
        |queue| one(queue.in_flight),
    ),
    counter("reordered_packets", "Packets handled out of order, if order is checked.", |queue| {
        queue.reordered.map(one).unwrap_or_default()
    }),
    counter("hashed_packets", "Packets whose flow hash steerage computed on arrival.", |queue| one(queue.hashed)),
    counter("unparsed_packets", "Packets without a flow that is known, steered by their link addresses.", |queue| {
        one(queue.unparsed)
    }),
    counter("fragments_full", "Fragments for whose datagram there was no place to note the flow.", |queue| {
        one(queue.fragments_full)
    }),
    counter("fragments_aged", "Later fragments that came after their datagram's time.", |queue| {
        one(queue.fragments_aged)
    }),
    counter("copied_packets", "Packets copied so that the device's ring could go on.", |queue| one(queue.copied)),
    counter("device_events", "Counts that only this kind of device has, by the kernel's names.", |queue| {
        let sample = |(name, count): &(Cow<'static, str>, u64)| Sample {
            label: Some(("event", name.clone())),
            value: Value::Whole(*count),
        };
        queue.device_counts.iter().map(sample).collect()
    }),
    counter("passed_packets", "Packets that the device saw and left to the kernel.", |queue| one(queue.passed)),
    gauge("queue_cpus", "CPUs that the queue's packets are spread over.", |queue| one(queue.rps_cpus.len() as u64)),
    gauge("queue_failed", "1 if an error ended the queue.", |queue| one(queue.error.is_some().into())),
    counter("page_pool_alloc", "Pages wanted: from the local cache, from the shared pool, or in vain.", |queue| {
        let pool = &queue.pool;
        each("from", [("fast", pool.alloc_fast), ("slow", pool.alloc_slow), ("empty", pool.alloc_empty)])
    }),
    counter("page_pool_recycle", "Pages that came home: to the local cache, past it, or after being kept.", |queue| {
        let pool = &queue.pool;
        let full = pool.recycle_cache_full;
        each("to", [("cached", pool.recycle_cached), ("cache_full", full), ("kept", pool.recycle_kept)])
    }),
    counter("page_pool_lpc", "Pages taken or brought home past what the local cache is for.", |queue| {
        let pool = &queue.pool;
        let (warm_up, full) = (("warm_up", pool.lpc_warm_up), ("full", pool.lpc_full));
        each("event", [warm_up, full, ("passed_by", pool.lpc_passed_by), ("wrong_numa", pool.lpc_wrong_numa)])
    }),
    counter("page_pool_rx_copybreak", "Pages that stayed in the ring since their packet was copied out.", |queue| {
        one(queue.pool.rx_copybreak)
    }),
    gauge("page_pool_kept_pages", "Pages that packet functions keep.", |queue| one(queue.pool.kept)),
];

pub(super) const CPUS: [Family<CpuSnapshot>; 18] = [
    counter("cpu_polled_packets", "Packets that the CPU took off its queues.", |cpu| one(cpu.polled)),
    counter("cpu_handed_in_packets", "Packets that other CPUs handed to it.", |cpu| one(cpu.handed_in)),
    counter("cpu_processed_packets", "Packets that it handled.", |cpu| one(cpu.processed)),
    counter("cpu_inline_packets", "Packets that it had polled itself, among these.", |cpu| one(cpu.inline)),
    counter("cpu_dropped_packets", "Packets lost for this CPU's sake, by reason.", |cpu| by_reason(&cpu.dropped)),
    counter("cpu_busy_seconds", "Time in rounds that did something.", |cpu| seconds(cpu.busy)),
    counter("cpu_rounds", "Rounds that did something.", |cpu| one(cpu.rounds)),
    counter("time_squeeze", "Rounds that ended early because their time was over.", |cpu| one(cpu.time_squeeze)),
    gauge("backlog_packets", "Packets that wait for the CPU.", |cpu| one(cpu.backlog)),
    gauge("backlog_max_packets", "The most packets of one queue that it ever found waiting.", |cpu| {
        one(cpu.backlog_max)
    }),
    counter("wakeups", "Times that another CPU woke it for packets.", |cpu| one(cpu.wakes_received)),
    counter("wakeups_sent", "Times that it woke another CPU for packets.", |cpu| one(cpu.wakes_sent)),
    counter("wakeups_for_control", "Times that it was woken for something other than packets.", |cpu| {
        one(cpu.wakes_for_control)
    }),
    counter("handler_panics", "Times that its packet function panicked.", |cpu| one(cpu.panics)),
    counter("cpu_deaths", "Times that it was declared dead.", |cpu| one(cpu.deaths)),
    counter("cpu_originated_packets", "Packets of its packet function's own making, sent and lost.", |cpu| {
        each("outcome", [("sent", cpu.originated), ("dropped", cpu.originated_dropped)])
    }),
    gauge("cpu_others_ratio", "Share of its time that others had lately.", |cpu| fraction(cpu.others)),
    gauge("cpu_handler_seconds", "How long its packet function has not returned; 0 while it is not called.", |cpu| {
        seconds(cpu.in_handler.unwrap_or_default())
    }),
];

pub(super) const OUTPUTS: [Family<OutputSnapshot>; 5] = [
    counter("output_packets", "Packets sent by the output.", |output| one(output.packets)),
    counter("output_bytes", "Their bytes.", |output| one(output.bytes)),
    counter("output_dropped_packets", "Packets that it was to send and that were lost, by reason.", |output| {
        by_reason(&output.dropped)
    }),
    gauge("output_held_packets", "Packets that it has taken and not sent yet; they are in flight.", |output| {
        one(output.held)
    }),
    gauge("output_failed", "1 if an error ended the output on a CPU.", |output| one(output.error.is_some().into())),
];
