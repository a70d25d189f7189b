//! The report as one line of JSON. docs/report.md describes the keys. Keys are only added; a change of
//! meaning increases `schema`.

use std::io;
use std::time::{Duration, SystemTime};

use serde::{Serialize, Serializer};
use steerage::{
    CpuId, CpuMask, WallTime,
    stats::{
        CpuSnapshot, Drops, MemoryUse, MoveCause, MoveCounts, OutputSnapshot, PoolSnapshot, QueueSnapshot, Verdicts,
    },
};
use steerage_control::Audience;
use steerage_guard::sandbox::InForce;

use super::flows::FlowsJson;
use super::private::Form;
use super::steering::SteeringJson;
use super::{EndedBy, ForwardReport, Recorded, Report};

pub(super) const SCHEMA: u32 = 1;

/// The report for `audience` in one line, with its newline.
pub(super) fn report(report: &Report, audience: Audience) -> io::Result<String> {
    let mut text = serde_json::to_string(&ReportJson::of(report, &Form::of(audience)))?;
    text.push('\n');
    Ok(text)
}

#[derive(Serialize)]
struct ReportJson<'a> {
    schema: u32,
    r#type: &'static str,
    version: &'static str,
    #[serde(serialize_with = "rfc3339")]
    started: SystemTime,
    #[serde(serialize_with = "seconds")]
    seconds: Duration,
    ended_by: Option<EndedBy>,
    received: u64,
    received_bytes: u64,
    delivered: u64,
    #[serde(serialize_with = "by_reason")]
    dropped: Drops,
    in_flight: u64,
    filtered: u64,
    reordered: Option<u64>,
    verdicts: ByVerdict,
    queues: Vec<QueueJson<'a>>,
    cpus: Vec<CpuJson>,
    outputs: Vec<OutputJson<'a>>,
    input: InputEnd<'a>,
    capture: Option<CaptureJson<'a>>,
    flows: Option<FlowsJson<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    forward: Option<&'a ForwardReport>,
    steering: Vec<SteeringJson>,
    moves: MovesJson,
    memory: MemoryJson,
    sandbox: Option<SandboxJson>,
    /// The parts that this form leaves out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    withheld: Vec<&'static str>,
}

impl<'a> ReportJson<'a> {
    fn of(report: &'a Report, form: &Form) -> Self {
        let snapshot = &report.snapshot;
        let error = report.input_error();
        let handled_bytes =
            |cpu: CpuId| report.handled_bytes.iter().find(|(of, _)| *of == cpu).map(|(_, bytes)| *bytes);
        Self {
            schema: SCHEMA,
            r#type: "report",
            version: env!("CARGO_PKG_VERSION"),
            started: report.started,
            seconds: report.elapsed,
            ended_by: report.ended_by,
            received: snapshot.received(),
            received_bytes: snapshot.received_bytes(),
            delivered: snapshot.delivered(),
            dropped: snapshot.dropped(),
            in_flight: snapshot.in_flight(),
            filtered: report.capture.as_ref().map_or(0, |capture| capture.filtered),
            reordered: snapshot.reordered(),
            verdicts: ByVerdict::of(&snapshot.verdicts()),
            queues: snapshot.queues.iter().map(QueueJson::of).collect(),
            cpus: snapshot.cpus.iter().map(|cpu| CpuJson::of(cpu, handled_bytes(cpu.cpu))).collect(),
            outputs: snapshot.outputs.iter().map(OutputJson::of).collect(),
            input: InputEnd {
                error: error.map(|error| error.message.as_str()),
                offset: error.and_then(|error| error.offset),
            },
            capture: report.capture.as_ref().map(CaptureJson::of),
            flows: report.flows.as_ref().map(|flows| FlowsJson::of(flows, form)),
            forward: report.forwarded.as_ref(),
            steering: snapshot.groups.iter().map(|group| SteeringJson::of(group, form)).collect(),
            moves: MovesJson::of(snapshot.moves),
            memory: MemoryJson {
                bytes: snapshot.memory_bytes,
                backing: snapshot.backing.to_string(),
                page_bytes: snapshot.page_bytes,
                pages: snapshot.pages,
                pages_free: snapshot.pages_free,
                cap: snapshot.memory.cap,
                backlog: snapshot.memory.backlog,
                backlog_asked: snapshot.memory.backlog_asked,
                backlog_max: snapshot.memory.backlog_max,
                by_purpose: PurposeJson::of(&snapshot.memory),
            },
            sandbox: report.sandbox.as_ref().map(SandboxJson::of),
            // All parts have been made by now.
            withheld: form.withheld(),
        }
    }
}

/// The sandbox that is in force.
#[derive(Serialize)]
struct SandboxJson {
    seccomp: bool,
    landlock: &'static str,
}

impl SandboxJson {
    fn of(in_force: &InForce) -> Self {
        Self { seccomp: in_force.seccomp(), landlock: in_force.landlock() }
    }
}

#[derive(Serialize)]
struct ByVerdict {
    consumed: u64,
    discarded: u64,
    kept: u64,
    transmitted: u64,
}

impl ByVerdict {
    fn of(verdicts: &Verdicts) -> Self {
        Self {
            consumed: verdicts.consumed,
            discarded: verdicts.discarded,
            kept: verdicts.kept,
            transmitted: verdicts.transmitted,
        }
    }
}

#[derive(Serialize)]
struct QueueJson<'a> {
    device: &'a str,
    kind: &'static str,
    mode: Option<&'static str>,
    queue: usize,
    cpu: u16,
    hash: &'static str,
    received: u64,
    delivered: u64,
    #[serde(serialize_with = "by_reason")]
    dropped: Drops,
    in_flight: u64,
    hashed: u64,
    unparsed: u64,
    fragments_full: u64,
    fragments_aged: u64,
    copied: u64,
    passed: u64,
    #[serde(serialize_with = "by_name")]
    device_counts: Vec<(&'static str, u64)>,
    received_bytes: u64,
    reordered: Option<u64>,
    rps_cpus_list: String,
    pool: PoolJson,
}

impl<'a> QueueJson<'a> {
    fn of(queue: &'a QueueSnapshot) -> Self {
        Self {
            device: &queue.device,
            kind: queue.kind,
            mode: Some(queue.mode).filter(|mode| !mode.is_empty()),
            queue: queue.queue,
            cpu: queue.cpu.0,
            hash: queue.hash,
            received: queue.received,
            delivered: queue.verdicts.total(),
            dropped: queue.dropped,
            in_flight: queue.in_flight,
            hashed: queue.hashed,
            unparsed: queue.unparsed,
            fragments_full: queue.fragments_full,
            fragments_aged: queue.fragments_aged,
            copied: queue.copied,
            passed: queue.passed,
            device_counts: queue.device_counts.clone(),
            received_bytes: queue.received_bytes,
            reordered: queue.reordered,
            rps_cpus_list: queue.rps_cpus.iter().copied().collect::<CpuMask>().to_list(),
            pool: PoolJson::of(&queue.pool),
        }
    }
}

#[derive(Serialize)]
struct PoolJson {
    alloc_fast: u64,
    alloc_slow: u64,
    alloc_empty: u64,
    recycle_cached: u64,
    recycle_cache_full: u64,
    recycle_kept: u64,
    rx_copybreak: u64,
    lpc_warm_up: u64,
    lpc_passed_by: u64,
    lpc_wrong_numa: u64,
    kept: u64,
}

impl PoolJson {
    fn of(pool: &PoolSnapshot) -> Self {
        Self {
            alloc_fast: pool.alloc_fast,
            alloc_slow: pool.alloc_slow,
            alloc_empty: pool.alloc_empty,
            recycle_cached: pool.recycle_cached,
            recycle_cache_full: pool.recycle_cache_full,
            recycle_kept: pool.recycle_kept,
            rx_copybreak: pool.rx_copybreak,
            lpc_warm_up: pool.lpc_warm_up,
            lpc_passed_by: pool.lpc_passed_by,
            lpc_wrong_numa: pool.lpc_wrong_numa,
            kept: pool.kept,
        }
    }
}

#[derive(Serialize)]
struct CpuJson {
    cpu: u16,
    polled: u64,
    handed_in: u64,
    processed: u64,
    inline: u64,
    #[serde(serialize_with = "by_reason")]
    dropped: Drops,
    #[serde(serialize_with = "seconds")]
    busy_seconds: Duration,
    backlog_max: u64,
    wakes_sent: u64,
    wakes_received: u64,
    wakes_for_control: u64,
    handled_bytes: Option<u64>,
    backlog: u64,
    rounds: u64,
    time_squeeze: u64,
    panics: u64,
    deaths: u64,
    others: f64,
    #[serde(serialize_with = "seconds")]
    handler_seconds: Duration,
}

impl CpuJson {
    fn of(cpu: &CpuSnapshot, handled_bytes: Option<u64>) -> Self {
        Self {
            cpu: cpu.cpu.0,
            polled: cpu.polled,
            handed_in: cpu.handed_in,
            processed: cpu.processed,
            inline: cpu.inline,
            dropped: cpu.dropped,
            busy_seconds: cpu.busy,
            backlog_max: cpu.backlog_max,
            wakes_sent: cpu.wakes_sent,
            wakes_received: cpu.wakes_received,
            wakes_for_control: cpu.wakes_for_control,
            handled_bytes,
            backlog: cpu.backlog,
            rounds: cpu.rounds,
            time_squeeze: cpu.time_squeeze,
            panics: cpu.panics,
            deaths: cpu.deaths,
            others: cpu.others,
            handler_seconds: cpu.in_handler.unwrap_or_default(),
        }
    }
}

#[derive(Serialize)]
struct OutputJson<'a> {
    device: &'a str,
    kind: &'static str,
    packets: u64,
    bytes: u64,
    #[serde(serialize_with = "by_reason")]
    dropped: Drops,
    held: u64,
    error: Option<&'a str>,
}

impl<'a> OutputJson<'a> {
    fn of(output: &'a OutputSnapshot) -> Self {
        let OutputSnapshot { device, kind, packets, bytes, dropped, held, error, .. } = output;
        let (packets, bytes, dropped, held) = (*packets, *bytes, *dropped, *held);
        Self { device, kind, packets, bytes, dropped, held, error: error.as_deref() }
    }
}

#[derive(Serialize)]
struct InputEnd<'a> {
    error: Option<&'a str>,
    offset: Option<u64>,
}

#[derive(Serialize)]
struct CaptureJson<'a> {
    links: &'a [String],
    first: Option<Rfc3339>,
    last: Option<Rfc3339>,
    recorded_seconds: Option<f64>,
    bad_times: u64,
    bytes_read: u64,
    bytes_total: Option<u64>,
}

impl<'a> CaptureJson<'a> {
    fn of(recorded: &'a Recorded) -> Self {
        Self {
            links: &recorded.links,
            first: recorded.times.map(|(earliest, _)| Rfc3339(earliest)),
            last: recorded.times.map(|(_, latest)| Rfc3339(latest)),
            // Times in capture files have nanoseconds.
            recorded_seconds: recorded.time().map(|time| time.as_nanos() as f64 / 1e9),
            bad_times: recorded.bad_times,
            bytes_read: recorded.bytes_read,
            bytes_total: recorded.bytes_total,
        }
    }
}

/// A time of day with nanoseconds.
struct Rfc3339(WallTime);

impl Serialize for Rfc3339 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&humantime::format_rfc3339_nanos(self.0.into()))
    }
}

#[derive(Serialize)]
struct MovesJson {
    buckets: u64,
    slices: u64,
    #[serde(serialize_with = "by_cause")]
    by_cause: MoveCounts,
}

impl MovesJson {
    fn of(moves: MoveCounts) -> Self {
        Self { buckets: moves.buckets, slices: moves.slices, by_cause: moves }
    }
}

#[derive(Serialize)]
struct MemoryJson {
    bytes: u64,
    backing: String,
    page_bytes: u64,
    pages: u64,
    pages_free: u64,
    cap: u64,
    backlog: u64,
    backlog_asked: u64,
    backlog_max: u64,
    by_purpose: PurposeJson,
}

#[derive(Serialize)]
struct PurposeJson {
    backlogs: u64,
    parked: u64,
    kept: u64,
    caches: u64,
    others: u64,
    rings: u64,
    lent: u64,
}

impl PurposeJson {
    fn of(memory: &MemoryUse) -> Self {
        let MemoryUse { backlogs, parked, kept, caches, others, rings, lent, .. } = *memory;
        Self { backlogs, parked, kept, caches, others, rings, lent }
    }
}

fn by_name<S: Serializer>(counts: &[(&'static str, u64)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(counts.iter().copied())
}

pub(super) fn by_reason<S: Serializer>(drops: &Drops, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(drops.iter().map(|(reason, packets)| (reason.name(), packets)))
}

fn by_cause<S: Serializer>(moves: &MoveCounts, serializer: S) -> Result<S::Ok, S::Error> {
    let counts = MoveCause::ALL.into_iter().map(|cause| (cause.name(), moves.of(cause)));
    serializer.collect_map(counts.filter(|(_, buckets)| *buckets > 0))
}

/// Seconds with six decimals: they are readable, and no time here is more exact.
pub(super) fn seconds<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_micros() as f64 / 1e6)
}

pub(super) fn rfc3339<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&humantime::format_rfc3339_micros(*time))
}
