//! `--metrics`: what a run tells Prometheus.

use std::cell::RefCell;
use std::io::{self, Write};

use steerage::Handle;
use steerage_apps::meter::Metering;
use steerage_control::metrics::{FlowTotals, Listener, Server, Source};

use crate::args::RunArgs;
use crate::error::Error;

/// Where metrics are asked for, before there are any.
#[derive(Debug, Default)]
pub(crate) struct Metrics(RefCell<Option<Listener>>);

impl Metrics {
    /// Opens the door, if that is asked for: before privileges are given up, and before anything else is opened, so that a
    /// port that is taken is told at once.
    pub(crate) fn prepare(args: &RunArgs) -> Result<Self, Error> {
        let listener = args.metrics.metrics.map(Listener::bind).transpose().map_err(Error::Metrics)?;
        // Of a port that the kernel chose nobody knows but by this.
        let asked = args.metrics.metrics.is_some_and(|address| address.port() == 0);
        if let Some(listener) = listener.as_ref().filter(|_| asked || !args.report.quiet) {
            // With standard error closed there is nobody to tell.
            let _ = writeln!(io::stderr(), "metrics at http://{}/metrics", listener.address());
        }
        Ok(Self(RefCell::new(listener)))
    }

    /// Tells who asks, until the server is dropped.
    pub(crate) fn serve(&self, handle: Handle, meters: Option<&Metering>) -> Result<Option<Server>, Error> {
        let Some(listener) = self.0.take() else { return Ok(None) };
        let flows = meters.cloned().map(|meters| -> Box<dyn Fn() -> FlowTotals + Send> {
            Box::new(move || {
                let counts = meters.so_far();
                let ended = counts.total - counts.active;
                FlowTotals { active: counts.active, ended, evicted: counts.evicted, lost: counts.lost }
            })
        });
        let source = Source { handle, version: env!("CARGO_PKG_VERSION"), flows };
        let served = listener.serve(source);
        served.map(Some).map_err(|error| Error::System { operation: "start a thread for metrics", error })
    }
}
