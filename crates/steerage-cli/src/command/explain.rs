//! `steerage explain`: why a packet goes where it goes, and whether traffic can be spread at all.

use std::io;
use std::path::Path;

use steerage::{Builder, FlowHasher, FlowKey, HashKey};
use steerage_apps::{Survey, Surveyed};
use steerage_device::Opened;
use steerage_device::limit::Limit;
use steerage_device::synthetic::SyntheticOptions;

use crate::args::ExplainArgs;
use crate::control::Control;
use crate::error::Error;
use crate::metrics::Metrics;
use crate::privileges::{self, Files};
use crate::report::Printer;
use crate::report::explain::{self, Explanation, OfFlow, OfTraffic};
use crate::run::{self, Plan, Stopper};
use crate::setup;

/// How many packets of synthetic traffic without an end are looked at.
const SYNTHETIC_PACKETS: u64 = 1_000_000;

/// Explains a flow that is written out, or the traffic of a device.
pub(crate) fn run(args: &ExplainArgs, verbose: bool) -> Result<(), Error> {
    let hasher = setup::hasher(&args.hash)?.map_or_else(by_chance, Ok)?;
    let explanation =
        |what| Explanation { what, hash: hasher.name(), key_by_chance: args.hash.has_key_by_chance(), top: args.top };
    // A flow is told from a file by the sign that no path of sense has: a file's can be written ./a>b.
    if let [what] = args.what.as_slice()
        && what.contains('>')
        && !what.contains('/')
    {
        let key: FlowKey = what.parse().map_err(Error::Flow)?;
        let of_flow = OfFlow { key, hash: hasher.hash(&key.both_directions()) };
        return print(&explanation(explain::What::Flow(of_flow)), args.json);
    }
    let (survey, error) = survey(args, hasher.clone(), verbose)?;
    if survey.all.packets == 0
        && let Some(error) = error
    {
        return Err(error);
    }
    let of_traffic = OfTraffic { device: args.what.join(" "), survey, packet: args.packet, layers: args.hash.layers() };
    print(&explanation(explain::What::Traffic(Box::new(of_traffic))), args.json)?;
    // What came before the fault is told; that there was one is told after it.
    error.map_or(Ok(()), Err)
}

fn print(explanation: &Explanation, json: bool) -> Result<(), Error> {
    match explain::print(explanation, json) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(Error::Report),
    }
}

/// Runs the traffic through the path on one CPU, so that packets are numbered in their order. That their order is checked
/// has them hashed there as they would be for many CPUs, later fragments and all.
fn survey(args: &ExplainArgs, hasher: FlowHasher, verbose: bool) -> Result<(Surveyed, Option<Error>), Error> {
    let layers = args.hash.layers();
    let wanted = args.packet;
    let builder = Builder::new().virtual_cpus(1).check_order(true).device_hash(false).layers(layers).hash(hasher);
    let Opened { inputs, capture, .. } = open(args)?;
    privileges::give_up(&Files { read: args.what.iter().map(Path::new).collect(), ..Files::default() })?.let_go()?;
    let builder = inputs.into_iter().fold(builder, Builder::input);
    let instance = builder.build(move |_cpu| Survey::new(layers, wanted))?;
    let plan = Plan {
        seconds: None,
        packets: args.packets,
        printer: Printer::to_stdout(args.json),
        interval: None,
        note: None,
        live: !verbose && !args.json,
        capture,
        control: Control::default(),
        forwarding: None,
        metrics: Metrics::default(),
        meters: None,
        hurry: None,
        stopper: Stopper::default(),
    };
    let ended = run::to_end(instance, &plan)?;
    let error = ended.report.input_error().map(|error| Error::Device(error.message.clone()));
    match ended.outcome.reports.into_iter().next() {
        Some((_cpu, survey)) => Ok((survey, error)),
        None => Err(error.unwrap_or(Error::Panicked(ended.outcome.failed))),
    }
}

fn open(args: &ExplainArgs) -> Result<Opened, Error> {
    let opened = steerage_device::open_all(&args.what, None)?;
    let is_endless = |what: &String| SyntheticOptions::parse(what).is_ok_and(|options| options.packets.is_none());
    let endless = args.what.iter().any(is_endless);
    Ok(match args.packets.or(endless.then_some(SYNTHETIC_PACKETS)) {
        Some(packets) => Opened { inputs: Limit::over(opened.inputs, packets), ..opened },
        None => opened,
    })
}

fn by_chance() -> Result<FlowHasher, Error> {
    HashKey::random()
        .map(|key| FlowHasher::keyed(&key))
        .map_err(|error| Error::System { operation: "read a hash key from /dev/urandom", error })
}
