//! The outputs for flow records: files, standard output and IPFIX collectors.

use std::path::Path;

use steerage_meter::{
    Collector, Exporter, FilePattern, FlowFormat, FlowOutput, FlowWriter, FlowsTo, OpenCollector, OpenFlows, Rotation,
};

use crate::args::MeterArgs;
use crate::error::{CommandLineError, EndingError, Error, NEEDS_TIME};
use crate::run::Stopper;

const STDOUT: &str = "-";

#[derive(Debug)]
pub(super) struct Outputs {
    files: Vec<(FlowsTo, FlowFormat)>,
    collectors: Vec<Collector>,
}

impl Outputs {
    pub(super) fn of(args: &MeterArgs) -> Result<Self, Error> {
        let flows = &args.flows;
        let mut outputs = Self { files: Vec::new(), collectors: Vec::new() };
        if let Some(name) = &flows.file {
            outputs.files.push(file("--flows", name, args)?);
        }
        for name in &flows.export {
            let wrong = |what: &str| wrong("--export", name, what);
            if Collector::is_address(name) {
                let collector = Collector::parse(name).map_err(|error| wrong(&error.to_string()))?;
                outputs.collectors.push(collector.or_rate(flows.export_rate));
            } else if name == STDOUT {
                return Err(wrong("for standard output use --flows -"));
            } else {
                outputs.files.push(file("--export", name, args)?);
            }
        }
        let names = || outputs.names().map(|path| path.to_string_lossy().into_owned());
        if let Some(twice) = names().enumerate().find(|(nth, name)| names().take(*nth).any(|other| other == *name)) {
            return Err(wrong("--export", &twice.1, "name another file: these flows would be written there twice"));
        }
        if flows.rotate.is_some() && outputs.names().next().is_none() && flows.file.as_deref() != Some(STDOUT) {
            return Err(wrong("--export", &flows.export.join(" "), "a collector does not rotate: leave --rotate out"));
        }
        Ok(outputs)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().filter_map(|(to, _)| match to {
            FlowsTo::Stdout => None,
            FlowsTo::Files { name, .. } => Some(Path::new(name.as_str())),
        })
    }

    /// Returns true if there are IPFIX collectors, to which a run may have to connect again.
    pub(super) fn has_collectors(&self) -> bool {
        !self.collectors.is_empty()
    }

    pub(super) fn takes_stdout(&self) -> bool {
        self.files.iter().any(|(to, _)| matches!(to, FlowsTo::Stdout))
    }

    /// Opens the outputs. Call `open` before privileges are dropped, and before other threads
    /// start.
    pub(super) fn open(self) -> Result<OpenOutputs, Error> {
        // A shell would interpret the characters `?` and `&` in the address of a collector.
        let quoted = |address: String| if address.contains('?') { format!("'{address}'") } else { address };
        let over_tcp = self.collectors.iter().filter_map(Collector::over_tcp).map(quoted).collect();
        let collectors = self.collectors.into_iter().map(Collector::open).collect::<Result<_, _>>();
        Ok(OpenOutputs { files: self.files, collectors: collectors.map_err(EndingError::flows)?, over_tcp })
    }
}

#[derive(Debug)]
pub(super) struct OpenOutputs {
    files: Vec<(FlowsTo, FlowFormat)>,
    collectors: Vec<OpenCollector>,
    /// For each collector that gets flows over UDP, the address to use for TCP instead.
    over_tcp: Vec<String>,
}

impl OpenOutputs {
    /// Returns the advice to use TCP instead of UDP, because a run on a file can wait for a slow
    /// collector over TCP.
    pub(super) fn advice(&self) -> Option<String> {
        let over_tcp = (!self.over_tcp.is_empty()).then(|| self.over_tcp.join(" and "))?;
        Some(format!(
            "UDP does not report which flows arrive. For a file, use {over_tcp}, which loses no flow while the collector runs"
        ))
    }

    /// Starts a thread for each output. If the thread of an output fails, the run stops.
    pub(super) fn start(self, can_wait: bool, stopper: &Stopper) -> Result<Writers, Error> {
        let stop = || {
            let stopper = stopper.clone();
            move || stopper.stop()
        };
        let mut writers = Vec::new();
        for (to, format) in self.files {
            writers.push(FlowWriter::start(to, format, stop()).map_err(EndingError::flows)?);
        }
        for collector in self.collectors {
            let run = stopper.clone();
            let dropped = Box::new(move || run.dropped());
            writers.push(FlowWriter::export(collector, can_wait, dropped, stop()).map_err(EndingError::flows)?);
        }
        Ok(Writers(writers))
    }
}

#[derive(Debug, Default)]
pub(super) struct Writers(Vec<FlowWriter>);

impl Writers {
    pub(super) fn exporter(&self, can_wait: bool) -> Option<Exporter> {
        self.0.iter().map(|writer| writer.exporter(can_wait)).reduce(Exporter::and)
    }

    pub(super) fn outputs(&self) -> Vec<FlowOutput> {
        self.0.iter().map(FlowWriter::output).collect()
    }

    /// Passes the records of the open flows to the outputs, and waits until the outputs' threads
    /// have ended. The error names all outputs that failed.
    pub(super) fn finish(self, open: OpenFlows) -> Result<(), Error> {
        // Without outputs, no flow records are created, because a record needs more memory than its
        // flow.
        if self.0.is_empty() {
            return Ok(());
        }
        let rest = std::sync::Arc::new(open.into_records());
        let ends = self.0.into_iter().map(|writer| writer.finish(rest.clone()));
        let errors: Vec<_> = ends.filter_map(Result::err).collect();
        if errors.is_empty() { Ok(()) } else { Err(EndingError::Flows(errors).into()) }
    }
}

fn wrong(option: &'static str, name: &str, what: &str) -> Error {
    CommandLineError::FileName { option, name: name.to_owned(), what: what.to_owned() }.into()
}

fn file(option: &'static str, name: &str, args: &MeterArgs) -> Result<(FlowsTo, FlowFormat), Error> {
    let wrong = |what: &str| wrong(option, name, what);
    if name == STDOUT {
        if args.flows.rotate.is_some() {
            return Err(wrong("standard output does not rotate: leave --rotate out, or give a file's name"));
        }
        // Flow records on standard output have the same format (JSON or text) as the report.
        let format = if args.run.report.json { FlowFormat::JsonLines } else { FlowFormat::Csv };
        return Ok((FlowsTo::Stdout, format));
    }
    let format = FlowFormat::of_name(name).ok_or_else(|| {
        wrong(match option {
            "--export" => {
                "write a name that ends in .csv, .jsonl, .ipfix or .parquet, or ipfix://HOST:PORT for a collector"
            }
            _ => "write a name that ends in .csv, .jsonl, .ipfix or .parquet, or - for standard output",
        })
    })?;
    let pattern = FilePattern::parse(name).map_err(|error| wrong(&error.to_string()))?;
    if args.flows.rotate.is_some() && !pattern.has_time() {
        return Err(wrong(NEEDS_TIME));
    }
    let rotate = args.flows.rotate.map(|period| Rotation { period, inactive: args.flows.inactive });
    Ok((FlowsTo::Files { name: pattern, rotate }, format))
}
