//! Merges parts of a recording. The *edges* of a part are the flows that may continue in a
//! neighbouring part. Parts can be merged in any order and in any groups.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyCapsule};
use steerage_meter::{ColumnBatch, Edges, FlowRecord, PartEdges};

use crate::run::{RECORDS_AT_A_TIME, take_full};
use crate::{Rows, ffi};

pub(crate) fn bytes_of_part(part: u64, edges: Edges) -> Vec<u8> {
    PartEdges { first: part, last: part, edges }.to_bytes()
}

/// Joins the edges (flows that another part may continue) of consecutive parts of a recording. Also
/// returns the records of flows that cannot continue in another part.
fn join(mut parts: Vec<PartEdges>) -> Result<(Vec<PartEdges>, Vec<FlowRecord>), String> {
    parts.sort_by_key(|part| part.first);
    let (mut joined, mut records): (Vec<PartEdges>, Vec<FlowRecord>) = (Vec::new(), Vec::new());
    for part in parts {
        match joined.last_mut() {
            Some(before) if before.last >= part.first => {
                let last = before.last.min(part.last);
                let twice = PartEdges { last, ..part }.name();
                return Err(format!("{twice}: merged twice: give each part once"));
            }
            Some(before) if before.last + 1 == part.first => {
                records.extend(before.edges.join(part.edges).map_err(|error| error.to_string())?);
                before.last = part.last;
            }
            _ => joined.push(part),
        }
    }
    Ok((joined, records))
}

/// The result of merging parts: the finished flows, and the edges (flows that may continue in
/// another part).
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

/// Merges the edges of parts (flows that may continue in another part) in any order. If `finish` is
/// true, also ends all flows that the remaining edges contain.
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

/// Finished flows, edges (flows that another part may continue), the first and the last number of
/// each merged sequence of parts, and the number of joined flows.
type MergedParts = (Rows, Vec<u8>, Vec<(u64, u64)>, u64);

fn merge_all(edges: &[PyBackedBytes], columns: Option<&[String]>, finish: bool) -> Result<MergedParts, String> {
    let joined = || ColumnBatch::all().and(ColumnBatch::joined());
    let schema = columns.map_or_else(|| Ok(ColumnBatch::all()), |names| joined().chosen(names));
    let schema = schema.map_err(|error| error.to_string())?;
    let mut parts = Vec::new();
    for edges in edges {
        parts.extend(PartEdges::read(edges).map_err(|error| error.to_string())?);
    }
    let (mut parts, mut records) = join(parts)?;
    let numbers = parts.iter().map(|part| (part.first, part.last)).collect();
    let joined = parts.iter().map(|part| part.edges.joined()).sum();
    if finish {
        if let [one, other, ..] = &parts[..] {
            let missing = PartEdges { first: one.last + 1, last: other.first - 1, ..one.clone() }.name();
            return Err(format!("{missing}: missing: merge all parts before the end"));
        }
        records.extend(parts.drain(..).flat_map(|part| part.edges.finish()));
    }
    let bytes = parts.iter().flat_map(PartEdges::to_bytes).collect();
    let (mut batch, mut batches) = (schema.clone(), Vec::new());
    for records in records.chunks(RECORDS_AT_A_TIME) {
        batch.add(records);
        batches.extend(take_full(&mut batch));
    }
    batches.push(batch);
    Ok((Rows::new(schema, batches, None), bytes, numbers, joined))
}

/// Returns the edges of parts (their open flows) as rows.
#[pyfunction]
pub(crate) fn edge_rows(py: Python<'_>, edges: PyBackedBytes) -> PyResult<Rows> {
    let rows = py.detach(|| {
        let parts = PartEdges::read(&edges).map_err(|error| error.to_string())?;
        let (mut batch, mut batches) = (PartEdges::columns(), Vec::new());
        parts.iter().for_each(|part| part.add_to(&mut batch, |batch| batches.extend(take_full(batch))));
        batches.push(batch);
        Ok::<_, String>(Rows::new(PartEdges::columns(), batches, None))
    });
    rows.map_err(PyValueError::new_err)
}

/// Reads edges that are stored as rows of an Arrow stream. Returns the edges as bytes, which are
/// the contents of the stream's column `state`.
#[pyfunction]
pub(crate) fn edges_of_rows<'py>(py: Python<'py>, stream: Bound<'py, PyCapsule>) -> PyResult<Bound<'py, PyBytes>> {
    let edges = ffi::binary_column(&stream, "state").map_err(PyValueError::new_err)?;
    Ok(PyBytes::new(py, &edges))
}
