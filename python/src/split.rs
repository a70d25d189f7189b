//! Splits the packets of a source into several capture files, with whole flows in each file.

use std::path::PathBuf;

use pyo3::prelude::*;
use steerage::Builder;
use steerage::flow::{FlowHasher, HashKey};
use steerage_apps::parallel::{SplitOptions, Together};

use crate::Given;
use crate::error::Failure;
use crate::run::SIGNAL_LOOK;

/// Writes each packet to the file of its flow. Returns the number of packets.
#[pyfunction]
pub(crate) fn split(py: Python<'_>, given: Given, paths: Vec<PathBuf>, together: String) -> PyResult<u64> {
    let (source, options) = given.split(py);
    let started = py.detach(|| {
        let inputs = source.open(options.filter.as_deref())?.inputs;
        let together: Together = together.parse().map_err(|_| Failure::Together(together.clone()))?;
        let key = HashKey::random().map_err(|error| Failure::System("read a hash key from /dev/urandom", error))?;
        let hasher = FlowHasher::keyed(&key);
        let split = SplitOptions::new(paths.len(), together, hasher.clone(), options.layers);
        // With one CPU, the packets in each file keep their order, also across flows.
        let builder = Builder::new().virtual_cpus(1).hash(hasher).layers(options.layers).always_hash(true);
        let mut builder = inputs.into_iter().fold(builder, Builder::input);
        for path in &paths {
            builder = builder.output(steerage_capture::create(path)?);
        }
        Ok::<_, Failure>((builder.build(move |_cpu| split.split())?.start()?, options.feed))
    });
    let (running, feed) = started.map_err(|failure| failure.exception(py))?;
    let handle = running.handle();
    while !py.detach(|| handle.wait_finished(SIGNAL_LOOK)) {
        // If a signal raises an exception, dropping `running` stops the run.
        py.check_signals()?;
    }
    let snapshot = py.detach(|| running.join().snapshot);
    let fed = feed.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take().map(Failure::Feed);
    let output = || snapshot.outputs.iter().find_map(|output| output.error.clone().map(Failure::Write));
    match fed.or_else(|| Failure::of_run(&snapshot)).or_else(output) {
        Some(failure) => Err(failure.exception(py)),
        None => Ok(snapshot.verdicts().transmitted),
    }
}
