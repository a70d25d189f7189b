//! The native part of the Python package `steerage`. `steerage/__init__.py` has the functions for
//! users, and converts the users' sources to paths, bytes or a pipe.
//!
//! | module | what it does |
//! |---|---|
//! | `run` | runs over a source, whose batches wait in a bounded queue |
//! | `meter` | a run that meters flows |
//! | `packets` | a run that makes a row for each packet |
//! | `split` | writes packets to several files, with whole flows in each |
//! | `parts` | merges parts of a recording |
//! | `ffi` | Arrow's C data interface, and all `unsafe` |
//! | `error` | errors as exceptions |
#![deny(unsafe_code)]

mod error;
mod ffi;
mod meter;
mod packets;
mod parts;
mod run;
mod split;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyCapsule};
use steerage::flow::Layers;
use steerage_meter::ColumnBatch;

use ffi::Batches;
use run::{Progress, Run, RunOptions, Source};

/// The input of a run. If the input is a pipe, the run closes the pipe.
#[derive(FromPyObject)]
enum GivenSource {
    Bytes(PyBackedBytes),
    Pipe(i32),
    Paths(Vec<PathBuf>),
    Live(String),
}

/// A source and its name for messages. The thread that writes into a pipe reports its error through
/// `feed`.
#[derive(FromPyObject)]
struct Given {
    source: GivenSource,
    name: String,
    feed: Option<Py<Feed>>,
    filter: Option<String>,
    cpus: Option<usize>,
    outer: bool,
    /// A Python function that gets the number of bytes read, the number of all bytes, and whether
    /// the run is over.
    progress: Option<Py<PyAny>>,
}

impl Given {
    fn split(self, py: Python<'_>) -> (Source, RunOptions) {
        let Self { source, name, feed, filter, cpus, outer, progress } = self;
        let source = match source {
            GivenSource::Bytes(bytes) => Source::Bytes(name, bytes),
            GivenSource::Paths(paths) => Source::Paths(paths),
            GivenSource::Live(name) => Source::Live(name),
            GivenSource::Pipe(fd) => Source::Pipe(name, ffi::take_descriptor(fd)),
        };
        let layers = if outer { Layers::Outer } else { Layers::Inner };
        let feed = feed.map_or_else(Arc::default, |feed| Arc::clone(&feed.borrow(py).0));
        (source, RunOptions { filter, cpus, layers, feed, progress: progress.map(Progress::new) })
    }
}

/// Reports the failure of a thread that writes into the pipe of a run.
#[pyclass(frozen)]
#[derive(Default)]
struct Feed(Arc<Mutex<Option<String>>>);

#[pymethods]
impl Feed {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// Stores the error because of which the thread stopped writing data into the pipe.
    fn fail(&self, message: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(message);
    }
}

/// A run, and the Arrow stream of its batches of rows.
#[pyclass(frozen, name = "Run")]
struct PyRun {
    run: Arc<Run>,
    is_taken: Mutex<bool>,
}

impl PyRun {
    /// Waits for the first batches. If `strict` is true, raises the exception of a run that has
    /// failed and has no more batches.
    fn started(py: Python<'_>, run: Run, strict: bool) -> PyResult<Self> {
        run.wait_for_first(py)?;
        let failure = run.received_whole().and_then(|ended| ended.failure.as_ref()).filter(|_| strict);
        match failure {
            Some(failure) => Err(failure.exception(py)),
            None => Ok(Self::new(run)),
        }
    }

    fn new(run: Run) -> Self {
        Self { run: Arc::new(run), is_taken: Mutex::new(false) }
    }
}

#[pymethods]
impl PyRun {
    /// Returns a capsule with the Arrow stream of the run. Each run has only one stream.
    fn stream<'py>(&self, py: Python<'py>, strict: bool) -> PyResult<Bound<'py, PyCapsule>> {
        if std::mem::replace(&mut *self.is_taken.lock().unwrap_or_else(PoisonError::into_inner), true) {
            return Err(PyRuntimeError::new_err("a run has one stream"));
        }
        ffi::stream(py, Box::new(RunStream { run: Arc::clone(&self.run), strict }))
    }

    /// Returns the rows that arrive in the next `seconds` seconds, and a flag that is true if the
    /// run is over.
    fn interval(&self, py: Python<'_>, seconds: f64) -> PyResult<(Rows, bool)> {
        let time = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        let (batches, report, is_over) = self.run.interval(py, time)?;
        if let Some(failure) = self.run.ended().filter(|_| is_over).and_then(|ended| ended.failure.as_ref()) {
            return Err(failure.exception(py));
        }
        Ok((Rows::new(self.run.schema().clone(), batches, Some(report.to_string())), is_over))
    }

    /// Stops the run.
    fn stop(&self) {
        self.run.stop();
    }

    /// The run's ledger (packet counters) as JSON. The value is `None` until the run has ended.
    #[getter]
    fn report(&self) -> Option<String> {
        self.run.ended().map(|ended| ended.report.to_string())
    }

    /// The edges of a part of a recording (flows that may continue in another part), as bytes. The
    /// value is `None` until the run has ended.
    #[getter]
    fn edges<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        let edges = self.run.ended().and_then(|ended| ended.edges.as_deref());
        edges.map(|edges| PyBytes::new(py, edges))
    }

    /// Raises the run's exception if the run has failed.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        let failure = self.run.ended().and_then(|ended| ended.failure.as_ref());
        failure.map_or(Ok(()), |failure| Err(failure.exception(py)))
    }

    /// The number of bytes that were read, and the total number of bytes if it is known.
    #[getter]
    fn progress(&self) -> (u64, Option<u64>) {
        self.run.progress()
    }
}

struct RunStream {
    run: Arc<Run>,
    strict: bool,
}

impl RunStream {
    /// The consumer of an Arrow stream handles error texts, not Python exceptions.
    fn of_python<T>(&self, py: Python<'_>, result: PyResult<T>) -> Result<T, String> {
        result.map_err(|error| {
            if error::is_interrupt(py, &error) {
                ffi::interrupt();
            }
            error.to_string()
        })
    }
}

impl Batches for RunStream {
    fn schema(&self) -> (ColumnBatch, Vec<(String, String)>) {
        let report = self.run.received_whole().map(|ended| ended.report.to_string());
        (self.run.schema().clone(), metadata(report))
    }

    fn next(&mut self) -> Result<Option<ColumnBatch>, String> {
        let batch = match self.run.next_at_once() {
            Some(batch) if !self.run.is_progress_due(batch.is_none()) => batch,
            Some(batch) => Python::attach(|py| self.of_python(py, self.run.show_progress(py)).map(|()| batch))?,
            None => Python::attach(|py| self.of_python(py, self.run.next(py)))?,
        };
        let failure = self.run.ended().and_then(|ended| ended.failure.as_ref());
        match failure {
            Some(failure) if batch.is_none() && self.strict => Err(failure.to_string()),
            _ => Ok(batch),
        }
    }
}

/// Rows in memory.
#[pyclass(frozen)]
struct Rows {
    schema: ColumnBatch,
    batches: Arc<Vec<ColumnBatch>>,
    /// The ledger as JSON.
    #[pyo3(get)]
    report: Option<String>,
}

impl Rows {
    fn new(schema: ColumnBatch, batches: Vec<ColumnBatch>, report: Option<String>) -> Self {
        Self { schema, batches: Arc::new(batches), report }
    }
}

#[pymethods]
impl Rows {
    /// Returns a capsule with a new Arrow stream of the rows.
    fn stream<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        let batches = Arc::clone(&self.batches);
        let stream = RowStream { schema: self.schema.clone(), batches, report: self.report.clone(), next: 0 };
        ffi::stream(py, Box::new(stream))
    }

    /// A capsule with the schema.
    fn schema<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        ffi::schema(py, &self.schema, &metadata(self.report.clone()))
    }
}

struct RowStream {
    schema: ColumnBatch,
    batches: Arc<Vec<ColumnBatch>>,
    report: Option<String>,
    next: usize,
}

impl Batches for RowStream {
    fn schema(&self) -> (ColumnBatch, Vec<(String, String)>) {
        (self.schema.clone(), metadata(self.report.clone()))
    }

    fn next(&mut self) -> Result<Option<ColumnBatch>, String> {
        self.next += 1;
        Ok(self.batches.get(self.next - 1).cloned())
    }
}

fn metadata(report: Option<String>) -> Vec<(String, String)> {
    let version = ("steerage.version".to_owned(), env!("CARGO_PKG_VERSION").to_owned());
    let report = report.map(|report| ("steerage.report".to_owned(), report));
    [version].into_iter().chain(report).collect()
}

/// Raises an exception if one of the files cannot be opened, or is not a capture file.
#[pyfunction]
fn check_paths(py: Python<'_>, paths: Vec<PathBuf>) -> PyResult<()> {
    let opened = py.detach(|| Source::Paths(paths).open(None));
    opened.map(drop).map_err(|failure| failure.exception(py))
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<Feed>()?;
    module.add_class::<PyRun>()?;
    module.add_class::<Rows>()?;
    module.add_class::<parts::Merged>()?;
    module.add_function(wrap_pyfunction!(meter::meter, module)?)?;
    module.add_function(wrap_pyfunction!(packets::packets, module)?)?;
    module.add_function(wrap_pyfunction!(packets::packet_schema, module)?)?;
    module.add_function(wrap_pyfunction!(packets::explain, module)?)?;
    module.add_function(wrap_pyfunction!(split::split, module)?)?;
    module.add_function(wrap_pyfunction!(check_paths, module)?)?;
    module.add_function(wrap_pyfunction!(parts::merge, module)?)?;
    module.add_function(wrap_pyfunction!(parts::edge_rows, module)?)?;
    module.add_function(wrap_pyfunction!(parts::edges_of_rows, module)?)?;
    module.add_function(wrap_pyfunction!(meter::flow_schema, module)?)
}
