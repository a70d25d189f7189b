//! `steerage explain`: why a packet goes where it goes, and whether traffic can be spread at all.

use std::io;
use std::path::Path;
use std::time::Duration;

use steerage::{Builder, FlowHasher, FlowKey, HashKey};
use steerage_apps::{Survey, Surveyed};
use steerage_device::Opened;
use steerage_device::af_packet::AfPacketOptions;
use steerage_device::capture::CaptureInfo;
use steerage_device::limit::Limit;
use steerage_device::synthetic::SyntheticOptions;

use crate::args::ExplainArgs;
use crate::control::Control;
use crate::error::Error;
use crate::machine;
use crate::metrics::Metrics;
use crate::privileges::{self, Files};
use crate::report::Printer;
use crate::report::explain::{self, Circumstances, Explanation, Interface, Machine, OfFlow, OfTraffic, Rate, RateFrom};
use crate::run::{self, Plan, Stopper};
use crate::setup;
use crate::signals;

/// How many packets of synthetic traffic without an end are looked at.
const SYNTHETIC_PACKETS: u64 = 1_000_000;

/// How long an interface is listened to by default: long enough for most of what comes only now and then.
const LISTENING: Duration = Duration::from_secs(10);
const LISTENING_NOTE: &str = "listening for 10 s (--seconds S, -c N; Ctrl-C ends it sooner)";

/// Explains a flow that is written out, or the traffic of a device.
pub(crate) fn run(args: &ExplainArgs, verbose: bool) -> Result<(), Error> {
    let hasher = setup::hasher(&args.hash)?.map_or_else(random, Ok)?;
    let function = args.function;
    let explanation = |what, hash| {
        // A device has a key of its own.
        let key_by_chance = args.hash.has_key_by_chance() && hash == hasher.name();
        Explanation { what, function, hash, key_by_chance, top: args.top }
    };
    // A flow is told from a file by the sign that no path of sense has: a file's can be written ./a>b.
    if let [what] = args.what.as_slice()
        && what.contains('>')
        && !what.contains('/')
    {
        let key: FlowKey = what.parse().map_err(Error::Flow)?;
        let hashed = function.affinity().key(key);
        let of_flow = OfFlow { flow: key, key: hashed, hash: hasher.hash(&hashed) };
        return print(&explanation(explain::What::Flow(of_flow), hasher.name()), args.json);
    }
    let Seen { survey, hash, circumstances, error } = match function.keeps_both_directions() {
        true => survey::<true>(args, &hasher, verbose)?,
        false => survey::<false>(args, &hasher, verbose)?,
    };
    if survey.all.packets == 0
        && let Some(error) = error
    {
        return Err(error);
    }
    let (device, layers) = (args.what.join(" "), args.hash.layers());
    let of_traffic = OfTraffic { device, survey, packet: args.packet, layers, circumstances };
    print(&explanation(explain::What::Traffic(Box::new(of_traffic)), hash), args.json)?;
    // What came before a fault is explained all the same.
    error.map_or(Ok(()), Err)
}

fn print(explanation: &Explanation, json: bool) -> Result<(), Error> {
    match explain::print(explanation, json) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(Error::Report),
    }
}

/// What came, and what the advice goes by.
struct Seen {
    survey: Surveyed,
    /// The hash by which packets were steered: its name, or `device`.
    hash: &'static str,
    circumstances: Circumstances,
    /// Why it ended, if it was not the end of the input.
    error: Option<Error>,
}

/// Runs the traffic through the path on one CPU, so that packets are numbered in their order. They are hashed there as they
/// are for many CPUs, with the fragment table.
fn survey<const BOTH: bool>(args: &ExplainArgs, hasher: &FlowHasher, verbose: bool) -> Result<Seen, Error> {
    let layers = args.hash.layers();
    let wanted = args.packet;
    let builder = setup::hashing(Builder::new(), &args.hash, Some(hasher.clone())).virtual_cpus(1).always_hash(true);
    let Opened { inputs, capture, .. } = open(args)?;
    let live = inputs.iter().filter(|input| is_live(input.kind)).map(|input| input.name.get());
    let live: Vec<String> = live.collect();
    let by_default = !live.is_empty() && args.packets.is_none() && args.seconds.is_none();
    privileges::give_up(&Files { read: args.what.iter().map(Path::new).collect(), ..Files::default() })?.let_go()?;
    let builder = inputs.into_iter().fold(builder, Builder::input);
    let hasher = hasher.clone();
    let instance = builder.build(move |_cpu| Survey::<BOTH>::new(hasher.clone(), layers, wanted))?;
    let plan = Plan {
        seconds: args.seconds.or(by_default.then_some(LISTENING)).filter(|seconds| !seconds.is_zero()),
        packets: args.packets,
        printer: Printer::to_stdout(args.json),
        interval: None,
        note: (by_default && !args.json).then_some(LISTENING_NOTE),
        live: !verbose && !args.json,
        capture: capture.clone(),
        control: Control::default(),
        signals: signals::catch()?,
        forwarding: None,
        responding: None,
        metrics: Metrics::default(),
        meters: None,
        hurry: None,
        stopper: Stopper::default(),
    };
    let ended = run::to_end(instance, &plan)?;
    let error = ended.report.input_error().map(|error| Error::Device(error.message.clone()));
    let rate = if live.is_empty() {
        capture.and_then(|capture| recorded(&capture)).or_else(|| asked(args))
    } else {
        rate(ended.report.snapshot.received(), ended.report.elapsed, RateFrom::Listening)
    };
    let hash = ended.report.snapshot.queues.first().map_or("", |queue| queue.hash);
    let circumstances = Circumstances {
        function: args.function,
        machine: args.virtual_cpus.map_or_else(|| Machine::this(machine::nr_cpu_ids()), Machine::even),
        rate,
        work: args.work,
        devices: args.what.clone(),
        interfaces: live.iter().map(|name| Interface::read(name)).collect(),
    };
    match ended.outcome.reports.into_iter().next() {
        Some((_cpu, survey)) => Ok(Seen { survey, hash, circumstances, error }),
        None => Err(error.unwrap_or(Error::Panicked(ended.outcome.failed))),
    }
}

/// Whether packets come by themselves: the device can't wait.
fn is_live(kind: &str) -> bool {
    !matches!(kind, "synthetic" | "capture")
}

fn rate(packets: u64, time: Duration, from: RateFrom) -> Option<Rate> {
    let rate = Rate { packets_a_second: packets as f64 / time.as_secs_f64(), from };
    (packets > 0 && rate.packets_a_second.is_finite()).then_some(rate)
}

/// The average rate of a capture whose packets have times.
fn recorded(capture: &CaptureInfo) -> Option<Rate> {
    rate(capture.packets().saturating_sub(1), capture.recorded()?, RateFrom::Recording)
}

/// The sum of `synthetic:rate=` of all devices.
fn asked(args: &ExplainArgs) -> Option<Rate> {
    let rates = args.what.iter().map(|what| SyntheticOptions::parse(what).ok()?.rate);
    rate(rates.sum::<Option<u64>>()?, Duration::from_secs(1), RateFrom::Asked)
}

fn open(args: &ExplainArgs) -> Result<Opened, Error> {
    let opened = steerage_device::open_all_with(&args.what, None, |interface| {
        let direction = args.function.direction(args.direction).into();
        Ok(AfPacketOptions { direction, kernel_hash: args.hash.asks_kernel(), ..AfPacketOptions::new(interface) })
    })?;
    let is_endless = |what: &String| SyntheticOptions::parse(what).is_ok_and(|options| options.packets.is_none());
    let endless = args.what.iter().any(is_endless);
    Ok(match args.packets.or(endless.then_some(SYNTHETIC_PACKETS)) {
        Some(packets) => Opened { inputs: Limit::over(opened.inputs, packets), ..opened },
        None => opened,
    })
}

fn random() -> Result<FlowHasher, Error> {
    HashKey::random()
        .map(|key| FlowHasher::keyed(&key))
        .map_err(|error| Error::System { operation: "read a hash key from /dev/urandom", error })
}
