//! `--metrics` serves the metrics of a run to Prometheus.

use std::cell::RefCell;
use std::sync::Arc;

use steerage::Handle;
use steerage_capture::CaptureInfo;
use steerage_control::metrics::{Listener, Metric, More, Server, Source};
use steerage_meter::{FlowCounts, Metering};
use steerage_router::{Fate, Forwarded, Forwarding};
use steerage_tune::WatchCounts;

use crate::args::MetricsArgs;
use crate::error::Error;
use crate::terminal::print_to_stderr;

#[derive(Debug, Default)]
pub(crate) struct Metrics(RefCell<Option<Listener>>);

impl Metrics {
    /// Binds the address of the metrics server. Call `prepare` before devices are opened, so that a
    /// port in use is reported at once, and before privileges are dropped.
    pub(crate) fn prepare(args: &MetricsArgs, quiet: bool) -> Result<Self, Error> {
        let listener =
            args.metrics.map(|address| Listener::bind("metrics", address)).transpose().map_err(Error::Metrics)?;
        let listener = listener.map(|listener| listener.answering_to(&args.metrics_host));
        // The address is printed even with `-q`, if only this line shows the port that the kernel
        // chose.
        let asked = args.metrics.is_some_and(|address| address.port() == 0);
        if let Some(listener) = listener.as_ref().filter(|_| asked || !quiet) {
            print_to_stderr(format_args!("metrics at http://{}/metrics", listener.address()));
        }
        Ok(Self(RefCell::new(listener)))
    }

    /// Starts to serve metrics. `handle` is `None` if the command handles no packets.
    pub(crate) fn serve(&self, handle: Option<Handle>, more: Option<More>) -> Result<Option<Server>, Error> {
        let Some(listener) = self.0.take() else { return Ok(None) };
        let source = Source::new(handle).version(env!("CARGO_PKG_VERSION"));
        let served = listener.serve(match more {
            Some(more) => source.more(more),
            None => source,
        });
        served.map(Some).map_err(|error| Error::System { operation: "start a thread for metrics", error })
    }
}

pub(crate) fn of_flows(meters: Metering) -> More {
    Box::new(move || flows(&meters.so_far()))
}

fn flows(counts: &FlowCounts) -> Vec<Metric> {
    let ended = counts.total - counts.active;
    vec![
        Metric::gauge("flows_active", "Flows that go on.", counts.active),
        Metric::counter("flow_records", "Records of flows that ended or were cut.", ended),
        Metric::counter("flow_records_evicted", "Records of flows that had to make room, among these.", counts.evicted),
        Metric::counter("flow_records_written", "Records that were written or sent, in all outputs.", counts.written),
        Metric::counter("flow_records_lost", "Records that could not be written or sent, in all outputs.", counts.lost),
        Metric::gauge("flow_records_waiting", "Records that are neither written nor lost yet.", counts.waiting),
    ]
}

pub(crate) fn of_capture(capture: Arc<CaptureInfo>) -> More {
    Box::new(move || captured(capture.filtered()))
}

fn captured(filtered: u64) -> Vec<Metric> {
    vec![Metric::counter("filtered_packets", "Packets of capture files that the filter took out.", filtered)]
}

pub(crate) fn of_forwarding(forwarding: Arc<Forwarding>) -> More {
    Box::new(move || forwarded(&forwarding.so_far()))
}

fn forwarded(counts: &Forwarded) -> Vec<Metric> {
    let fates = Fate::ALL.map(|fate| (fate.name(), counts.get(fate)));
    let errors = [("sent", counts.icmp_sent), ("suppressed", counts.icmp_suppressed)];
    vec![
        Metric::counters("forward_packets", "Packets that were examined, by outcome.", "fate", fates),
        Metric::counters("forward_icmp_errors", "ICMP errors that were due, by outcome.", "outcome", errors),
    ]
}

pub(crate) fn of_watch(counts: Arc<WatchCounts>) -> More {
    Box::new(move || watched(&counts))
}

fn watched(counts: &WatchCounts) -> Vec<Metric> {
    vec![
        Metric::counters("tune_events", "Messages of the kernel about the interface.", "about", counts.events()),
        Metric::counters("tune_set_again", "Values that were set again, by stage.", "stage", counts.set_again()),
        Metric::counters("tune_failures", "Values that could not be set again, by stage.", "stage", counts.failures()),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use steerage_control::metrics::names;

    use super::*;

    #[test]
    fn the_page_of_metrics_names_all_of_them() {
        let own = [captured(0), flows(&FlowCounts::default()), forwarded(&Forwarded::default())];
        let own = own.iter().flatten().map(Metric::served_as);
        let known: BTreeSet<String> = names().into_iter().chain(own).collect();
        assert_eq!(named(include_str!("../../../docs/metrics.md"), "steerage_"), known);
        let watched = watched(&WatchCounts::default()).iter().map(Metric::served_as).collect();
        assert_eq!(named(include_str!("../../../docs/tune.md"), "steerage_tune_"), watched);
    }

    /// Returns the words of a page that begin with `begin`.
    fn named(page: &str, begin: &str) -> BTreeSet<String> {
        let words = page.split(|c: char| !c.is_ascii_lowercase() && c != '_');
        let is_metric = |word: &&str| word.starts_with(begin) && !["steerage_", "steerage_control"].contains(word);
        words.filter(is_metric).map(str::to_owned).collect()
    }
}
