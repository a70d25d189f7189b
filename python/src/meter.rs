//! A run that meters the flows of a source.

use std::time::{Duration, SystemTime};

use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use serde_json::{Map, Value};
use steerage::WallTime;
use steerage_meter::{ColumnBatch, FlowRecord, FlowWriter, Meter, MeterOptions, MeterReport, Metered, Metering};

use crate::error::Failure;
use crate::run::{Batching, Run, RunOptions, Source, Stop, Work};
use crate::{Given, PyRun, ffi, metadata, parts};

/// The maximum number of open flows that are written at a time at the end of a run.
const PASSED_AT_A_TIME: usize = 8192;

#[derive(FromPyObject)]
pub(crate) struct GivenMeter {
    columns: Option<Vec<String>>,
    /// The active timeout in seconds. `inactive`: the inactive timeout in seconds.
    active: f64,
    inactive: f64,
    by_clock: bool,
    max_flows: usize,
    names: bool,
    cic: bool,
    /// The number of the part, if the source is one part of a recording.
    part: Option<u64>,
}

/// `cic` selects the flow statistics of CICFlowMeter. Without names, returns only the flow
/// statistics if `cic` is true, and otherwise all columns of flows. If `cic` is false, the names
/// may include `joined`, a column of flows that were merged from parts of a recording.
fn columns(names: Option<&[String]>, cic: bool) -> Result<ColumnBatch, Failure> {
    Ok(match names {
        Some(names) if cic => ColumnBatch::all().and(ColumnBatch::cic()).chosen(names)?,
        Some(names) => ColumnBatch::all().and(ColumnBatch::joined()).chosen(names)?,
        None if cic => ColumnBatch::cic(),
        None => ColumnBatch::all(),
    })
}

/// Starts a run that meters flows, and waits for its first batches.
#[pyfunction]
pub(crate) fn meter(py: Python<'_>, given: Given, options: GivenMeter, strict: bool) -> PyResult<PyRun> {
    let (source, run_options) = given.split(py);
    let is_live = matches!(source, Source::Live(_));
    let run = py.detach(|| start(source, run_options, &options)).map_err(|failure| failure.exception(py))?;
    // A run over a live source does not wait for the first rows, which may arrive much later.
    if is_live { Ok(PyRun::new(run)) } else { PyRun::started(py, run, strict) }
}

/// Returns a capsule with the Arrow schema of flows. `report` is the ledger (packet counters) of
/// the last run as JSON.
#[pyfunction]
#[pyo3(signature = (names, report, cic))]
pub(crate) fn flow_schema<'py>(
    py: Python<'py>,
    names: Option<Vec<String>>,
    report: Option<String>,
    cic: bool,
) -> PyResult<Bound<'py, PyCapsule>> {
    let columns = columns(names.as_deref(), cic).map_err(|failure| failure.exception(py))?;
    ffi::schema(py, &columns, &metadata(report))
}

fn start(source: Source, run_options: RunOptions, given: &GivenMeter) -> Result<Run, Failure> {
    // In a capture without time stamps, all packets have the time 0.
    let is_live = matches!(source, Source::Live(_));
    let options = MeterOptions {
        active: seconds(given.active),
        active_by_clock: given.by_clock,
        inactive: seconds(given.inactive),
        flows_max: given.max_flows,
        top: 0,
        layers: run_options.layers,
        names: given.names,
        cic: given.cic,
        epoch: if is_live { now() } else { WallTime::from_nanos(0) },
        can_wait: !is_live,
        ..MeterOptions::default()
    };
    let columns = columns(given.columns.as_deref(), given.cic)?;
    let part = given.part;
    Run::start(source, run_options, columns, |batching, stop| work(options, part, batching, stop))
}

fn work(options: MeterOptions, part: Option<u64>, batching: &Batching, stop: Stop) -> Result<Work<Meter>, Failure> {
    let to = batching.clone();
    let writer = FlowWriter::pass_to("Arrow", move |records| to.lock().add(records), move || stop.stop())?;
    let new = if part.is_some() { Metering::of_part } else { Metering::new };
    let metering = new(options, Some(writer.exporter(options.can_wait)));
    let counting = metering.clone();
    let finish = move |mut reports: Vec<MeterReport>, batching: &Batching| {
        let output = writer.output();
        // After an error of the flow writer, the stream simply ends for the consumer.
        let _ = writer.finish(Vec::new());
        let mut lost = output.counts().lost;
        let mut passed = output.counts().written;
        let mut pass = |records: &mut dyn Iterator<Item = FlowRecord>| {
            loop {
                let some: Vec<_> = records.take(PASSED_AT_A_TIME).collect();
                if some.is_empty() {
                    break;
                }
                passed += some.len() as u64;
                if batching.lock().add(&some).is_err() {
                    lost += some.len() as u64;
                }
            }
        };
        let (edges, flows, evicted) = if part.is_some() {
            let edges = reports.pop().and_then(MeterReport::edges);
            let edges = edges.map(|(edges, records)| {
                pass(&mut records.into_iter());
                edges
            });
            (edges, passed, counting.so_far().evicted)
        } else {
            let (metered, open) = Metered::of(reports, 0);
            pass(&mut open.records());
            (None, metered.total, metered.evicted)
        };
        let mut counts = Map::new();
        let at_edges = edges.as_ref().map(|edges| edges.flows() as u64);
        let named = [("flows", Some(flows)), ("evicted", Some(evicted)), ("lost", Some(lost)), ("at_edges", at_edges)];
        for (name, count) in named {
            counts.extend(count.map(|count| (name.to_owned(), Value::from(count))));
        }
        (counts, edges.zip(part).map(|(edges, part)| parts::bytes_of_part(part, edges)))
    };
    Ok(Work { make: Box::new(move || metering.meter()), finish: Box::new(finish) })
}

fn now() -> WallTime {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    WallTime::from_nanos(since_1970.as_nanos() as u64)
}

/// A time too long for `Duration` (such as infinity) means no timeout.
fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}
