//! Parts of a recording: the edges of parts as bytes, and their merging.
//!
//! The bytes have *runs*, each of which is the edges of parts that follow one another, with the
//! numbers of the first and the last of these parts. Merging joins runs that have become
//! neighbours, so parts can be merged in any order and grouping.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use steerage_meter::{ColumnBatch, Edges, FlowRecord};

use crate::Rows;
use crate::run::BATCH_ROWS;

/// The number of a run's first and last part, and the length of its edges.
const HEAD_BYTES: usize = 24;

struct Run {
    first: u64,
    last: u64,
    edges: Edges,
}

/// The edges of one part as bytes.
pub(crate) fn bytes_of_part(part: u64, edges: &Edges) -> Vec<u8> {
    let mut bytes = Vec::new();
    write((part, part), edges, &mut bytes);
    bytes
}

fn write((first, last): (u64, u64), edges: &Edges, to: &mut Vec<u8>) {
    let edges = edges.to_bytes();
    for number in [first, last, edges.len() as u64] {
        to.extend_from_slice(&number.to_le_bytes());
    }
    to.extend_from_slice(&edges);
}

fn read(mut bytes: &[u8], runs: &mut Vec<Run>) -> Result<(), String> {
    while !bytes.is_empty() {
        let malformed = || steerage_meter::MalformedEdges.to_string();
        let (head, rest) = bytes.split_first_chunk::<HEAD_BYTES>().ok_or_else(malformed)?;
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|nth| head[at + nth]));
        let (edges, rest) = rest.split_at_checked(number(16) as usize).ok_or_else(malformed)?;
        let edges = Edges::from_bytes(edges).map_err(|error| error.to_string())?;
        runs.push(Run { first: number(0), last: number(8), edges });
        bytes = rest;
    }
    Ok(())
}

fn named(first: u64, last: u64) -> String {
    if first == last { format!("part {first}") } else { format!("parts {first} to {last}") }
}

/// Joins neighbouring runs, and returns the records of flows that no other part continues.
fn join(mut runs: Vec<Run>) -> Result<(Vec<Run>, Vec<FlowRecord>), String> {
    runs.sort_by_key(|run| run.first);
    let (mut joined, mut records): (Vec<Run>, Vec<FlowRecord>) = (Vec::new(), Vec::new());
    for run in runs {
        match joined.last_mut() {
            Some(before) if before.last >= run.first => {
                let twice = named(run.first, before.last.min(run.last));
                return Err(format!("{twice}: merged twice: give each part once"));
            }
            Some(before) if before.last + 1 == run.first => {
                records.extend(before.edges.join(run.edges).map_err(|error| error.to_string())?);
                before.last = run.last;
            }
            _ => joined.push(run),
        }
    }
    Ok((joined, records))
}

/// The result of merging: finished flows, and the edges of what was merged.
#[pyclass(frozen)]
pub(crate) struct Merged {
    #[pyo3(get)]
    rows: Py<Rows>,
    edges: Vec<u8>,
    #[pyo3(get)]
    parts: Vec<(u64, u64)>,
    #[pyo3(get)]
    joined: u64,
}

#[pymethods]
impl Merged {
    #[getter]
    fn edges<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.edges)
    }
}

/// Merges edges in any order. With `finish`, ends all flows at the edges too.
#[pyfunction]
pub(crate) fn merge(
    py: Python<'_>,
    edges: Vec<PyBackedBytes>,
    columns: Option<Vec<String>>,
    finish: bool,
) -> PyResult<Merged> {
    let merged = py.detach(|| merge_all(&edges, columns.as_deref(), finish));
    let (rows, edges, parts, joined) = merged.map_err(PyValueError::new_err)?;
    Ok(Merged { rows: Py::new(py, rows)?, edges, parts, joined })
}

/// The finished flows, the edges, the first and last part of each run, and how many flows were joined.
type MergedParts = (Rows, Vec<u8>, Vec<(u64, u64)>, u64);

fn merge_all(edges: &[PyBackedBytes], columns: Option<&[String]>, finish: bool) -> Result<MergedParts, String> {
    let schema = columns.map_or_else(|| Ok(ColumnBatch::all()), ColumnBatch::of).map_err(|error| error.to_string())?;
    let mut runs = Vec::new();
    edges.iter().try_for_each(|edges| read(edges, &mut runs))?;
    let (mut runs, mut records) = join(runs)?;
    let parts = runs.iter().map(|run| (run.first, run.last)).collect();
    let joined = runs.iter().map(|run| run.edges.joined()).sum();
    if finish {
        if let [one, other, ..] = &runs[..] {
            return Err(format!("{}: missing: merge all parts before the end", named(one.last + 1, other.first - 1)));
        }
        records.extend(runs.drain(..).flat_map(|run| run.edges.finish()));
    }
    let mut bytes = Vec::new();
    runs.iter().for_each(|run| write((run.first, run.last), &run.edges, &mut bytes));
    let batches = records.chunks(BATCH_ROWS).map(|records| {
        let mut batch = schema.clone();
        batch.add(records);
        batch
    });
    let batches = batches.collect();
    Ok((Rows::new(schema, batches, None), bytes, parts, joined))
}
