//! Meters flows: records the endpoints, times, traffic and end of each conversation.
//!
//! Each CPU has a table of the flows that are steered to it. `docs/meter.md` defines flows and
//! records. The modules, in the order in which a packet reaches them:
//!
//! | module | what it does |
//! |---|---|
//! | `options` | the options of a meter, with their defaults |
//! | `read`, `fragments` | reads a packet's headers, and finds its flow |
//! | `key`, `index`, `table` | find the flow's place in the table |
//! | `lists`, `wheel`, `flow_limit` | the flow that ends next, the flows of a bucket, and the limit for all flows |
//! | `flow`, `tcp`, `timeouts` | count the packet, and decide when a record ends |
//! | `names`, `cic` | look for names in packets, and collect flow statistics, if enabled |
//! | `record`, `output` | the record of a flow, and the formats of records |
//! | `columns`, `cic_columns` | the columns of a record, and those of its flow statistics |
//! | `column`, `batch` | columns in memory, for Arrow |
//! | `cells` | keeps spreadsheets from taking names for formulas |
//! | `writer_state`, `export` | hand records over to threads that write them |
//! | `record_ledger`, `record_writer` | count each record as written or lost, as the kernel accepts it |
//! | `file`, `disk` | files, and the operations on them that can fail |
//! | `parquet` | writes records as Parquet |
//! | `ipfix` | writes records as IPFIX, with a thread that sends them to a collector |
//! | `parts`, `code` | joins the flows of parts that are metered apart |
//! | `totals`, `counts`, `largest` | sum up all CPUs, at the end and during the run |
#![forbid(unsafe_code)]

mod batch;
mod cells;
mod cic;
mod cic_columns;
mod code;
mod column;
mod columns;
mod counts;
mod disk;
mod export;
mod file;
mod flow;
mod flow_limit;
mod fragments;
#[doc(hidden)]
pub mod fuzzing;
mod index;
mod ipfix;
mod key;
mod largest;
mod lists;
mod names;
mod options;
mod output;
mod parquet;
mod parts;
mod read;
mod record;
mod record_ledger;
mod record_writer;
mod settling;
mod summary;
mod table;
mod tcp;
#[cfg(test)]
mod tests;
mod timeouts;
mod totals;
mod wheel;
mod writer_state;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use steerage::flow::Layers;
use steerage::{
    Batch, BucketId, Cpu, Handler, Packet, Timestamp, WallTime,
    limits::HANDLE_BUDGET,
    packet::{Positions, Received},
};

pub use batch::{ColumnBatch, UnknownColumn};
pub use code::MalformedEdges;
pub use column::{Column, Values};
pub use counts::FlowCounts;
pub use export::{Exporter, FlowWriter};
pub use flow::{FlowEnd, Traffic};
pub use ipfix::{Collector, ExportRate, OpenCollector, ParseCollectorError};
pub use names::FlowNames;
pub use options::{ACTIVE_DEFAULT, FLOWS_DEFAULT, FLOWS_MAX, INACTIVE_DEFAULT, MeterOptions};
pub use output::{ExportError, FlowFormat, FlowsTo, Rotation};
pub use parts::{Edges, EdgesError, OtherTimeouts, PartEdges};
pub use record::FlowRecord;
use settling::Settling;
pub use steerage_guard::file::{FilePattern, ParsePatternError};
pub use summary::{By, Group, ReadFlowsError, Summary, UnknownGrouping};
pub use tcp::{ClosedBy, TcpDirection, TcpHealth};
pub use timeouts::{CLOSED_TIMEOUT, LATE_MAX};
pub use totals::{MeterReport, Metered, OpenFlows};
pub use writer_state::{FlowOutput, OutputCounts};

use cic::{DepartedFeatures, Features};
use counts::{AllPublished, Published};
use export::RECORDS_AT_A_TIME;
use flow::{Flow, Seen};
use flow_limit::FlowLimit;
use fragments::{DepartedDatagrams, FlowsOfDatagrams};
use index::NONE;
use key::{Key, Seeds};
use largest::Largest;
use names::{DepartedNames, Names};
use parts::Collected;
use table::{Departed, Table};
use timeouts::{Clock, FirstTime, Timeouts, nanos};
use totals::Totals;

/// A flow needs one check while its timeout runs and one at its end, so with two checks per packet,
/// flows end as fast as they begin.
const LOOKS_PER_PACKET: usize = 2;

const LOOKS_PER_TICK: usize = 16_384;

/// Prefetching the flows of a whole batch would exhaust the CPU's line fill buffers.
const FETCHED_AHEAD: usize = 16;

/// The longest time that an ended record waits for its output, by the packet clock.
const HAND_OVER_AFTER: Duration = Duration::from_secs(1);

/// The time between two ticks while no packets arrive, unless the packet source can wait.
const TICK: Duration = Duration::from_millis(250);

/// The state that the meters of all CPUs share, and their constructor.
#[derive(Clone, Debug)]
pub struct Metering {
    options: MeterOptions,
    seeds: Seeds,
    limit: Arc<FlowLimit>,
    first_time: FirstTime,
    published: AllPublished,
    exporter: Option<Exporter>,
    is_part: bool,
}

impl Metering {
    /// Creates the shared state of meters that pass their records to `exporter`.
    ///
    /// ```
    /// use steerage::{Builder, Input};
    /// use steerage_meter::{MeterOptions, Metered, Metering};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let queue = steerage_device::synthetic::SyntheticOptions::new().packets(1000).flows(10);
    /// # let input: Input = queue.open()?;
    /// let metering = Metering::new(MeterOptions::default(), None);
    /// let running = Builder::new().virtual_cpus(4).input(input).build(move |_| metering.meter())?.start()?;
    /// let reports = running.join().reports.into_iter().map(|(_cpu, report)| report);
    /// let (metered, _open) = Metered::of(reports, 10);
    /// assert_eq!(metered.total, 10);
    /// assert_eq!(metered.top.iter().map(|flow| flow.forth().packets).sum::<u64>(), 1000);
    /// # Ok(())
    /// # }
    /// ```
    pub fn new(options: MeterOptions, exporter: Option<Exporter>) -> Self {
        let flows_max = options.flows_max.clamp(1, FLOWS_MAX);
        exporter.iter().for_each(|exporter| exporter.tell_sample(options.sample));
        let (seeds, limit) = (Seeds::by_chance(), FlowLimit::new(flows_max));
        let (first_time, published) = (FirstTime::new(), AllPublished::default());
        Self { options, seeds, limit, first_time, published, exporter, is_part: false }
    }

    /// Creates the state of the meter for a part of a recording: see [`Edges`]. Flows that other
    /// parts may continue go into the report ([`MeterReport::edges`]), and all other flows to
    /// `exporter`. In a part, the active timeout applies only if it goes by the clock. For a part,
    /// there are no flow statistics. The instance must have exactly one CPU.
    pub fn of_part(options: MeterOptions, exporter: Option<Exporter>) -> Self {
        let active = if options.active_by_clock { options.active } else { Duration::MAX };
        let options = MeterOptions { active, cic: false, ..options };
        Self { is_part: true, ..Self::new(options, exporter) }
    }

    /// Returns the counts of current and past flows. Any thread may call this function.
    pub fn so_far(&self) -> FlowCounts {
        // The outputs' counts are read before the meters' counts, so that no output shows a record
        // that its meter has not counted.
        let outputs: Vec<OutputCounts> = self.exporter.iter().flat_map(Exporter::counts).collect();
        self.published.sum(&self.limit, &outputs)
    }

    /// Returns the current flows with the most bytes (at most [`MeterOptions::top`]), largest
    /// first.
    ///
    /// The flow table is scanned every few seconds, unless the packet source can wait.
    pub fn largest_so_far(&self) -> Vec<FlowRecord> {
        self.published.largest(self.options.top)
    }

    /// Creates a CPU's meter.
    pub fn meter(&self) -> Meter {
        let timeouts = Timeouts::new(self.options.active, self.options.active_by_clock, self.options.inactive);
        Meter {
            layers: self.options.layers,
            can_wait: self.options.can_wait,
            sample_max: u32::MAX / self.options.sample.max(1),
            seeds: self.seeds,
            timeouts,
            clock: Clock::new(self.options.epoch.as_nanos(), timeouts.inactive, self.first_time.clone()),
            table: Table::new(timeouts, &self.limit),
            settling: Settling::new(Some(0)),
            datagrams: FlowsOfDatagrams::new(self.seeds),
            names: Names::new(self.options.names, self.is_part),
            features: Features::new(self.options.cic),
            batch: Box::new([Seen::of(Key::other()); HANDLE_BUDGET]),
            places: [NONE; HANDLE_BUDGET],
            totals: Totals::new(self.options.top),
            published: self.published.one_more(),
            largest: Largest::new(self.options.top),
            exporter: self.exporter.clone(),
            ended: Vec::new(),
            ended_since: 0,
            handled_bytes: 0,
            has_super_frames: false,
            part: self.is_part.then(Box::default),
        }
    }
}

/// Meters the flows of one CPU.
pub struct Meter {
    layers: Layers,
    can_wait: bool,
    /// With sampling, flows are metered up to this hash, whose halves are swapped because the upper
    /// half orders the flow table.
    sample_max: u32,
    seeds: Seeds,
    timeouts: Timeouts,
    clock: Clock,
    table: Table,
    settling: Settling,
    datagrams: FlowsOfDatagrams,
    names: Names,
    features: Features,
    batch: Box<[Seen; HANDLE_BUDGET]>,
    places: [u32; HANDLE_BUDGET],
    totals: Totals,
    published: Arc<Published>,
    largest: Largest,
    exporter: Option<Exporter>,
    ended: Vec<FlowRecord>,
    ended_since: u64,
    handled_bytes: u64,
    has_super_frames: bool,
    part: Option<Box<Collected>>,
}

impl fmt::Debug for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Meter of {} flows", self.table.len())
    }
}

/// The flows of a bucket that moves to another CPU.
#[derive(Debug)]
pub struct MovedFlows {
    flows: Option<Departed>,
    datagrams: DepartedDatagrams,
    names: DepartedNames,
    features: DepartedFeatures,
}

impl Meter {
    /// Several small loops need fewer registers than one large loop, and load many cache lines at
    /// the same time.
    #[inline(never)]
    fn look_ahead(&mut self, batch: &mut Batch<'_>, path: Timestamp) -> usize {
        let count = batch.len().min(HANDLE_BUDGET);
        let Self { batch: all_seen, layers, handled_bytes, .. } = self;
        let mut bytes = 0;
        let others = batch.read_common(|nth, Received { data, time, wire_len, .. }| {
            let (Some(seen), Some(time)) = (all_seen.get_mut(nth), time) else { return false };
            (seen.time, seen.bytes) = (time.as_nanos(), wire_len as u32);
            if read::plain_ethernet(data, *layers, seen).is_none() {
                return false;
            }
            bytes += data.len() as u64;
            true
        });
        *handled_bytes += bytes;
        let timed = if others.is_empty() { true } else { self.look_ahead_slowly(batch, others, path) };
        if let Some(last) = self.batch[..count].last() {
            self.clock.note(last.time, timed, path);
        }
        for seen in &mut self.batch[..count] {
            seen.hash = seen.flow.key.hash(&self.seeds);
            self.table.prefetch_candidate(seen.hash);
        }
        count
    }

    #[inline(always)]
    fn look_up(&mut self, packets: Range<usize>) {
        for (seen, place) in self.batch[packets.clone()].iter().zip(&mut self.places[packets]) {
            *place = self.table.candidate(seen.hash);
            self.table.prefetch(*place);
        }
    }

    /// Returns true if the last packet of the batch or an earlier packet had a timestamp.
    #[inline(never)]
    fn look_ahead_slowly(&mut self, batch: &mut Batch<'_>, which: Positions, path: Timestamp) -> bool {
        // A packet without a timestamp gets the time of the packet before it.
        let first = || batch.iter_mut().find_map(|packet| packet.received().time).map(WallTime::as_nanos);
        let mut latest = self.clock.packet_time(first);
        for (nth, (packet, seen)) in batch.iter_mut().zip(self.batch.iter_mut()).enumerate() {
            if !which.contains(nth) {
                latest = Some(seen.time);
                self.part.iter_mut().for_each(|part| part.see(seen.time));
                continue;
            }
            let Received { data, total_len, link, time, wire_len, .. } = packet.received();
            latest = time.map(WallTime::as_nanos).or(latest);
            let time = self.clock.of_packet(latest, path);
            self.part.iter_mut().for_each(|part| part.see(time));
            if read::plain(data, link, self.layers, seen).is_none() {
                let found = read::dissect(data, link, self.layers);
                *seen = Seen { time, bytes: wire_len as u32, ..read::dissected(data, wire_len, &found) };
                if self.part.as_mut().is_some_and(|part| part.keep(&found, seen, &self.datagrams)) {
                    seen.flow.key = Key::WAITING;
                } else {
                    // Of nested datagrams, the innermost is followed first, as in steering.
                    for fragment in found.fragments.iter().rev().flatten() {
                        seen.flow = self.datagrams.follow(fragment, seen.flow, packet.bucket(), time);
                    }
                }
            }
            self.has_super_frames |= packet.offload().is_some_and(|offload| offload.is_super_frame());
            seen.time = time;
            seen.bytes = wire_len as u32;
            self.handled_bytes += total_len as u64;
        }
        latest.is_some()
    }

    /// A packet's headers are read again only if the packet begins a flow, because each read
    /// rebuilds the packet's metadata (measured: a quarter of the time for counting a packet).
    #[inline(never)]
    fn count<const IS_PART: bool>(&mut self, batch: &mut Batch<'_>, count: usize) {
        let (mut packets, mut passed) = (batch.iter_mut(), 0);
        let count = count.min(HANDLE_BUDGET);
        let group = |from: usize| from.min(count)..(from + FETCHED_AHEAD).min(count);
        self.look_up(group(0));
        for from in (0..count).step_by(FETCHED_AHEAD) {
            self.look_up(group(from + FETCHED_AHEAD));
            for nth in group(from) {
                let (seen, place) = (&self.batch[nth], self.places[nth]);
                if seen.hash.rotate_left(u32::BITS / 2) > self.sample_max {
                    continue;
                }
                let goes_on = |flow: &Flow| match IS_PART {
                    true => flow.surely_goes_on(seen, &self.timeouts),
                    false => flow.ends_before(seen, &self.timeouts).is_none(),
                };
                match self.table.at_mut(place) {
                    Some(flow) if flow.is(seen) && goes_on(flow) => {
                        if flow.add(seen) {
                            self.table.reschedule(place);
                        }
                    }
                    Some(flow) if IS_PART && flow.is(seen) => {
                        let seen = *seen;
                        self.go_on(place, &seen);
                    }
                    _ => {
                        if let Some(packet) = packets.nth(nth - passed) {
                            self.count_slowly(&packet, nth);
                        }
                        passed = nth + 1;
                    }
                }
            }
        }
    }

    /// Adds the packets and headers of each super-frame that [`count`](Self::count) has not
    /// counted.
    #[cold]
    #[inline(never)]
    fn count_super_frames(&mut self, batch: &mut Batch<'_>, count: usize) {
        self.has_super_frames = false;
        for (packet, seen) in batch.iter_mut().zip(&self.batch[..count.min(HANDLE_BUDGET)]) {
            let Some(offload) = packet.offload().filter(|_| seen.hash.rotate_left(u32::BITS / 2) <= self.sample_max)
            else {
                continue;
            };
            let len = packet.total_len();
            let more = offload.packets(len) as u64 - 1;
            let traffic = Traffic {
                packets: more,
                bytes: (offload.wire_bytes(len) - len) as u64,
                ip_bytes: more * (offload.header_bytes() - offload.network_at()) as u64,
            };
            let place = self.table.find(&seen.flow.key, seen.hash);
            if let Some(flow) = place.and_then(|place| self.table.at_mut(place)) {
                flow.add_more(seen, traffic);
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn count_each_slowly(&mut self, batch: &mut Batch<'_>, count: usize) {
        self.look_up(0..count);
        for (nth, packet) in batch.iter_mut().enumerate().take(count) {
            if self.batch[nth].hash.rotate_left(u32::BITS / 2) <= self.sample_max {
                self.count_slowly(&packet, nth);
                if self.names.is_on() {
                    self.names.look(&self.batch[nth], &packet.received(), self.layers);
                }
                if self.features.is_on() {
                    self.features.add(&self.batch[nth], &packet.received(), self.layers);
                }
            }
        }
    }

    /// Counts a packet that begins a flow or a record, or whose flow shares its hash with another
    /// flow.
    #[cold]
    #[inline(never)]
    fn count_slowly(&mut self, packet: &Packet<'_>, nth: usize) {
        let (seen, candidate) = (self.batch[nth], self.places[nth]);
        if let Some(part) = self.part.as_mut().filter(|_| seen.flow.key == Key::WAITING) {
            return part.pass();
        }
        let place = match self.table.at(candidate) {
            Some(flow) if flow.is(&seen) => Some(candidate),
            _ => self.table.find(&seen.flow.key, seen.hash),
        };
        match place {
            Some(place) => self.go_on(place, &seen),
            None => self.begin(packet.bucket(), &seen),
        }
    }

    #[inline(never)]
    fn go_on(&mut self, place: u32, seen: &Seen) {
        let Some(flow) = self.table.at_mut(place) else { return };
        let (cut, is_cut) = match &mut self.part {
            Some(part) if flow.continues() => (None, part.cut(flow, seen, &self.timeouts, &mut self.names)),
            _ => {
                let why = flow.ends_before(seen, &self.timeouts);
                (why.map(|why| FlowRecord::new(flow.restart(seen, why), why)), why.is_some())
            }
        };
        let closed = flow.add(seen);
        if is_cut || closed {
            self.table.reschedule(place);
            cut.into_iter().for_each(|record| self.end(record));
        }
    }

    fn begin(&mut self, bucket: BucketId, seen: &Seen) {
        self.shed();
        if let Some(evicted) = self.table.make_room() {
            self.end(FlowRecord::new(evicted, FlowEnd::Resources));
        }
        let mut flow = Flow::begin(seen, bucket);
        if let Some(part) = &mut self.part {
            part.begin(&mut flow, seen, &self.timeouts);
        }
        flow.add(seen);
        // The first packet of a flow must not mark the flow as recently used.
        flow.take_used();
        self.table.insert(flow);
    }

    fn shed(&mut self) {
        while let Some(evicted) = self.table.shed() {
            self.end(FlowRecord::new(evicted, FlowEnd::Resources));
        }
    }

    fn end(&mut self, mut record: FlowRecord) {
        if let Some(part) = self.part.as_mut().filter(|_| record.flow().continues()) {
            return part.end(record.flow(), record.end(), &mut self.names);
        }
        if self.names.is_on() {
            let (flow, why) = (record.flow(), record.end());
            let names = self.names.end(&flow.key, flow.hash, why);
            record = record.with_names(names);
        }
        if self.features.is_on() {
            let cic = self.features.end(&record.flow().key, record.flow().hash);
            record = record.with_cic(cic);
        }
        self.totals.add(&record);
        self.published.publish(&self.totals);
        if self.exporter.is_some() {
            if self.ended.is_empty() {
                self.ended_since = self.clock.now();
            }
            self.ended.push(record);
            if self.ended.len() >= RECORDS_AT_A_TIME {
                self.hand_over();
            }
        }
    }

    fn hand_over(&mut self) {
        if let (Some(exporter), false) = (&self.exporter, self.ended.is_empty()) {
            let records = std::mem::replace(&mut self.ended, Vec::with_capacity(RECORDS_AT_A_TIME));
            exporter.send(records, self.clock.now());
        }
    }

    fn expire(&mut self, looks: usize) {
        for _ in 0..looks {
            match self.table.look(self.clock.now()) {
                Some(Some(flow)) => self.end(FlowRecord::new(flow, flow.reason_when_over())),
                Some(None) => {}
                None => return,
            }
        }
    }
}

impl Handler for Meter {
    type Moved = MovedFlows;
    type Report = MeterReport;

    fn handle(&mut self, batch: &mut Batch<'_>, cpu: &mut Cpu) {
        let count = self.look_ahead(batch, cpu.now());
        if self.names.is_on() || self.features.is_on() {
            self.count_each_slowly(batch, count);
        } else if self.part.is_some() {
            self.count::<true>(batch, count);
        } else {
            self.count::<false>(batch, count);
        }
        if self.has_super_frames {
            self.count_super_frames(batch, count);
        }
        // With a live input, the packet clock hardly runs ahead of packets that wait while their
        // bucket moves.
        if !self.can_wait || self.settling.is_over(cpu.last_move(), count) {
            self.expire(LOOKS_PER_PACKET * count);
        }
        if !self.ended.is_empty() && self.clock.now().abs_diff(self.ended_since) >= nanos(HAND_OVER_AFTER) {
            self.hand_over();
        }
    }

    fn tick(&mut self, cpu: &mut Cpu) -> Option<Timestamp> {
        if self.can_wait {
            return None; // The clock follows the packets.
        }
        self.clock.advance(cpu.now());
        self.expire(LOOKS_PER_TICK);
        self.largest.go_on(&self.table, LOOKS_PER_TICK, &self.published);
        self.hand_over();
        Some(cpu.now() + TICK)
    }

    fn bucket_leaves(&mut self, bucket: BucketId) -> Option<MovedFlows> {
        let flows = self.table.depart(bucket);
        let keys = || flows.iter().flat_map(|departed| &departed.flows).map(|flow| (&flow.key, flow.hash));
        let (names, features) = (self.names.depart(keys()), self.features.depart(keys()));
        let moved = MovedFlows { flows, datagrams: self.datagrams.depart(bucket), names, features };
        (moved.flows.is_some() || !moved.datagrams.is_empty()).then_some(moved)
    }

    fn bucket_arrives(&mut self, bucket: BucketId, moved: MovedFlows) {
        if let Some(flows) = moved.flows {
            self.table.arrive(bucket, flows);
            self.names.arrive(moved.names);
            self.features.arrive(moved.features);
            self.shed();
        }
        self.datagrams.arrive(bucket, moved.datagrams);
    }

    fn finish(mut self, _cpu: &mut Cpu) -> MeterReport {
        self.hand_over();
        MeterReport {
            totals: self.totals,
            open: self.table.into_flows(),
            names: self.names,
            features: self.features,
            now: self.clock.of_packets(),
            timeouts: self.timeouts,
            handled_bytes: self.handled_bytes,
            part: self.part.map(|part| part.ended(self.datagrams)),
        }
    }
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
