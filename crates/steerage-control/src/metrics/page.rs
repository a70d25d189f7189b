//! The page that Prometheus reads.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use steerage::{
    Snapshot,
    stats::{CpuSnapshot, OutputSnapshot, QueueSnapshot},
};

use super::families::{self, Family, Value};
use super::{Metric, Source};

pub(super) fn of(source: &Source) -> String {
    let now = Now {
        snapshot: source.handle.as_ref().map(|handle| handle.snapshot()),
        more: source.more.as_ref().map(|more| more()).unwrap_or_default(),
        version: source.version,
    };
    let mut registry = Registry::with_prefix("steerage");
    registry.register_collector(Box::new(now));
    let mut page = String::new();
    if let Err(error) = text::encode(&mut page, &registry) {
        tracing::error!("metrics cannot be written: {error}");
        return String::new();
    }
    in_prometheus_words(&page)
}

#[derive(Debug)]
struct Now {
    snapshot: Option<Snapshot>,
    more: Vec<Metric>,
    version: &'static str,
}

type Labels = Vec<(&'static str, String)>;

impl Collector for Now {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let version = [(vec![("version", self.version.to_owned())], &())];
        write(&mut encoder, &families::BUILD, &version)?;
        if let Some(snapshot) = &self.snapshot {
            write(&mut encoder, &families::WHOLE, &[(Vec::new(), snapshot)])?;
            write(&mut encoder, &families::QUEUES, &of_queues(&snapshot.queues))?;
            write(&mut encoder, &families::CPUS, &of_cpus(&snapshot.cpus))?;
            write(&mut encoder, &families::OUTPUTS, &of_outputs(&snapshot.outputs))?;
        }
        write_more(&mut encoder, &self.more)
    }
}

fn of_queues(queues: &[QueueSnapshot]) -> Vec<(Labels, &QueueSnapshot)> {
    let devices = distinct(queues.iter().map(|queue| (queue.device.as_str(), queue.queue)));
    let queues = queues.iter().zip(devices);
    queues.map(|(queue, device)| (vec![("device", device), ("queue", queue.queue.to_string())], queue)).collect()
}

fn of_cpus(cpus: &[CpuSnapshot]) -> Vec<(Labels, &CpuSnapshot)> {
    cpus.iter().map(|cpu| (vec![("cpu", cpu.cpu.to_string())], cpu)).collect()
}

fn of_outputs(outputs: &[OutputSnapshot]) -> Vec<(Labels, &OutputSnapshot)> {
    let names = distinct(outputs.iter().map(|output| (output.device.as_str(), 0)));
    outputs.iter().zip(names).map(|(output, name)| (vec![("output", name)], output)).collect()
}

/// The names of devices. If several devices have the same name, the later names get a suffix:
/// `synthetic`, `synthetic.2`. Prometheus refuses a page that contains a series twice.
fn distinct<'a>(devices: impl Iterator<Item = (&'a str, usize)>) -> Vec<String> {
    let mut seen: Vec<(&str, usize)> = Vec::new();
    let mut names = Vec::new();
    for device in devices {
        seen.push(device);
        let nth = seen.iter().filter(|other| **other == device).count();
        names.push(if nth == 1 { device.0.to_owned() } else { format!("{}.{nth}", device.0) });
    }
    names
}

/// Writes each family with its samples from all objects. Families without samples are omitted.
fn write<T>(encoder: &mut DescriptorEncoder<'_>, families: &[Family<T>], of: &[(Labels, &T)]) -> fmt::Result {
    for family in families {
        let mut samples = of.iter().flat_map(|(labels, one)| {
            (family.read)(one).into_iter().map(move |sample| {
                let more = sample.label.map(|(key, value)| (key, value.into_owned()));
                (labels.iter().cloned().chain(more).collect::<Labels>(), sample.value)
            })
        });
        let Some(first) = samples.next() else { continue };
        let mut encoder = encoder.encode_descriptor(family.name, family.help, None, family.kind)?;
        for (labels, value) in std::iter::once(first).chain(samples) {
            match labels.as_slice() {
                [] => put(&mut encoder, family.kind, value)?,
                _ => put(&mut encoder.encode_family(&labels)?, family.kind, value)?,
            }
        }
    }
    Ok(())
}

fn write_more(encoder: &mut DescriptorEncoder<'_>, metrics: &[Metric]) -> fmt::Result {
    for Metric { name, help, kind, samples } in metrics {
        let kind = kind.in_prometheus_words();
        let mut encoder = encoder.encode_descriptor(name, help, None, kind)?;
        for (label, value) in samples {
            let value = Value::Whole(*value);
            match label {
                None => put(&mut encoder, kind, value)?,
                Some(label) => put(&mut encoder.encode_family(&[*label])?, kind, value)?,
            }
        }
    }
    Ok(())
}

fn put(sample: &mut MetricEncoder<'_>, kind: MetricType, value: Value) -> fmt::Result {
    match (kind, value) {
        (MetricType::Counter, Value::Whole(value)) => sample.encode_counter::<Labels, _, u64>(&value, None),
        (MetricType::Counter, Value::Fraction(value)) => sample.encode_counter::<Labels, _, f64>(&value, None),
        (_, Value::Whole(value)) => sample.encode_gauge(&value),
        (_, Value::Fraction(value)) => sample.encode_gauge(&value),
    }
}

/// Converts OpenMetrics to the older format that every reader understands. In the older format,
/// HELP and TYPE of a counter use the name of its samples, and there is no end mark.
fn in_prometheus_words(page: &str) -> String {
    let mut text = String::with_capacity(page.len() + page.len() / 8);
    let mut help = "";
    for line in page.lines() {
        if line.starts_with("# HELP ") {
            // The next line shows whether this help text belongs to a counter.
            help = line;
            continue;
        }
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        match (words.as_slice(), help.splitn(4, ' ').nth(3)) {
            (["#", "TYPE", name, kind], Some(help)) => {
                let suffix = if *kind == "counter" { "_total" } else { "" };
                text.push_str(&format!("# HELP {name}{suffix} {help}\n# TYPE {name}{suffix} {kind}\n"));
            }
            (["#", ..], _) => {}
            _ => {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_device_twice_has_two_names() {
        let devices =
            [("eth0", 0), ("eth0", 1), ("synthetic", 0), ("synthetic", 0), ("synthetic", 1), ("synthetic", 0)];
        let names = distinct(devices.into_iter());
        assert_eq!(names, ["eth0", "eth0", "synthetic", "synthetic.2", "synthetic", "synthetic.3"]);
    }

    #[test]
    fn a_program_without_packets_has_only_its_own_metrics() {
        let more: super::super::More = Box::new(|| vec![Metric::counter("set", "Values.", 3)]);
        let page = of(&Source { handle: None, version: "1", more: Some(more) });
        let samples: Vec<&str> = page.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(samples, ["steerage_build_info{version=\"1\"} 1", "steerage_set_total 3"]);
    }

    #[test]
    fn counters_are_described_by_the_name_of_their_samples() {
        let page = "# HELP a_b What it is.\n# TYPE a_b counter\na_b_total{x=\"# TYPE \"} 1\n# HELP c Now.\n# TYPE c gauge\nc 2\n# EOF\n";
        let expected = "# HELP a_b_total What it is.\n# TYPE a_b_total counter\na_b_total{x=\"# TYPE \"} 1\n\
                        # HELP c Now.\n# TYPE c gauge\nc 2\n";
        assert_eq!(in_prometheus_words(page), expected);
    }
}
