//! Serves metrics to Prometheus over HTTP: only `GET /metrics`.
//!
//! [`Listener::serve`] starts one thread. For each request, the thread reads the ledger without
//! disturbing the data path.
//!
//! docs/metrics.md describes each metric. No metric exists per flow or per bucket, so the number of
//! metrics depends only on queues and CPUs.

mod families;
mod page;

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use prometheus_client::metrics::MetricType;
use steerage::Handle;

pub use crate::http::{BindError, Listener, Server};
use crate::http::{Body, Resource, Site};
pub use families::names;

/// The default address for metrics: only this machine can connect. Prometheus keeps a list of
/// default ports from 9100 to 9999, and all of these ports are taken.
pub const ADDRESS_DEFAULT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 10_777);

/// The instance and the values that the metrics come from.
pub struct Source {
    /// The instance whose ledger is served. `None` for a program that handles no packets.
    pub handle: Option<Handle>,
    /// The program's version, for `steerage_build_info`.
    pub version: &'static str,
    /// The handler's own metrics, if it has any. The server calls this function for each page.
    pub more: Option<More>,
}

/// Returns a handler's own metrics. Each call must return the same metrics, with the current
/// values.
pub type More = Box<dyn Fn() -> Vec<Metric> + Send>;

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Source")
    }
}

/// A metric of a handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metric {
    /// The name according to Prometheus'
    /// [conventions](https://prometheus.io/docs/practices/naming/), without the prefix `steerage_`
    /// and without a counter's suffix `_total`.
    ///
    /// The ledger's metrics, which [`names`] lists, must not be repeated: Prometheus refuses a page
    /// that contains a metric twice.
    pub name: &'static str,
    /// The help text of the metric, as a sentence.
    pub help: &'static str,
    /// Whether the value can decrease.
    pub kind: MetricKind,
    /// The values. If the metric has several values, each has a label with a name and a value.
    pub samples: Vec<(Option<(&'static str, &'static str)>, u64)>,
}

/// Whether a metric's value can decrease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// The value only increases.
    Counter,
    /// The value increases and decreases.
    Gauge,
}

impl MetricKind {
    fn in_prometheus_words(self) -> MetricType {
        match self {
            Self::Counter => MetricType::Counter,
            Self::Gauge => MetricType::Gauge,
        }
    }
}

impl Metric {
    /// A metric with a single value that only increases.
    pub fn counter(name: &'static str, help: &'static str, value: u64) -> Self {
        Self { name, help, kind: MetricKind::Counter, samples: vec![(None, value)] }
    }

    /// A metric with several values that only increase. Each value has its own value of the label
    /// `label`.
    pub fn counters(
        name: &'static str,
        help: &'static str,
        label: &'static str,
        values: impl IntoIterator<Item = (&'static str, u64)>,
    ) -> Self {
        let samples = values.into_iter().map(|(value, count)| (Some((label, value)), count)).collect();
        Self { name, help, kind: MetricKind::Counter, samples }
    }

    /// A metric with a single value that increases and decreases.
    pub fn gauge(name: &'static str, help: &'static str, value: u64) -> Self {
        Self { name, help, kind: MetricKind::Gauge, samples: vec![(None, value)] }
    }

    /// The full name of the metric, as it is served.
    pub fn served_as(&self) -> String {
        families::served_as(self.name, self.kind.in_prometheus_words())
    }
}

const PATH: &str = "/metrics";

/// Prometheus' text format.
const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

impl Listener {
    /// Starts a thread that serves metrics.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn serve(self, source: Source) -> io::Result<Server> {
        let page = Resource::new(PATH, CONTENT_TYPE, "", Body::Made(Box::new(move |_| page::of(&source))));
        self.serve_site("metrics", Site::new(PATH, vec![page]).names_by("--metrics-host NAME"))
    }
}
