//! `steerage explain` shows why a packet goes to a certain CPU, and whether traffic can be spread.

use std::borrow::Cow;
use std::path::Path;
use std::time::Duration;

use nix::net::if_::if_nametoindex;
use steerage::{Builder, FlowKey, flow::FlowHasher};
use steerage_capture::CaptureInfo;
use steerage_device::Opened;
use steerage_device::af_packet::AfPacketOptions;
use steerage_device::synthetic::SyntheticOptions;
use steerage_explain::{
    AdviceBasis, Analyze, CandidateCpus, Explanation, FlowExplanation, InterfaceQueues, Rate, RateFrom, Subject,
    TrafficExplanation,
};
use steerage_guard::capabilities::{self, Needed};
use steerage_netlink::netdev;
use steerage_text::wrapped;
use steerage_tune::facts::Sample;
use steerage_tune::{KernelLoad, Root};

use crate::args::ExplainArgs;
use crate::error::{CommandLineError, EndingError, Error};
use crate::host_cpus;
use crate::instance::{self, RunServices};
use crate::report::{Printer, SCHEMA};
use crate::run::{self, RunOptions};
use crate::sandbox::{Confinement, Direction, Needs, SandboxProfile};
use crate::signals;
use crate::stdout;
use crate::terminal::width;

const SYNTHETIC_PACKETS: u64 = 1_000_000;

/// The time for which `explain` listens. In 10 s, most flows appear, even most of the flows with
/// few packets.
pub(super) const LISTENING: Duration = Duration::from_secs(10);
const LISTENING_NOTE: &str = "listening for 10 s (--seconds S, -c N; Ctrl-C ends it sooner)";

pub(crate) fn run(args: &ExplainArgs, verbose: bool) -> Result<(), Error> {
    let hasher = instance::own_hasher(&args.hash)?;
    let command = args.command.explained();
    let explanation = |what, hash: Cow<'static, str>| {
        // If the device computes the hash, the hash key is not that of the command line.
        let random_key = args.hash.has_random_key() && hash == hasher.name();
        Explanation { what, command, hash, random_key, top: args.top }
    };
    // Words with `>` are a flow. A file with `>` in its name can be given as ./a>b.
    let what = args.what.join(" ");
    if what.contains('>') && !what.contains('/') {
        let key: FlowKey = what.parse().map_err(CommandLineError::Flow)?;
        let hashed = command.affinity.key(key);
        let flow = FlowExplanation { flow: key, key: hashed, hash: hasher.hash(&hashed) };
        return print(&explanation(Subject::Flow(flow), hasher.name().into()), args.json);
    }
    let Seen { traffic, hash, error } = match command.keeps_both_directions() {
        true => survey::<true>(args, &hasher, verbose)?,
        false => survey::<false>(args, &hasher, verbose)?,
    };
    if traffic.survey.all.packets == 0
        && let Some(error) = error
    {
        return Err(error);
    }
    print(&explanation(Subject::Traffic(Box::new(traffic)), hash), args.json)?;
    // If the input fails, the packets before the failure are explained, too.
    error.map_or(Ok(()), Err)
}

fn print(explanation: &Explanation, json: bool) -> Result<(), Error> {
    let text = match json {
        true => explanation.json(SCHEMA).map_err(EndingError::Report)?,
        false => wrapped(&explanation.to_string(), width()),
    };
    stdout::print(text)
}

struct Seen {
    traffic: TrafficExplanation,
    /// The hash that steered the packets, or `device` if the device computed it.
    hash: Cow<'static, str>,
    error: Option<Error>,
}

/// Packets are numbered in order, because a single CPU receives them. The packets are hashed with
/// the fragment table, as in a run on several CPUs.
fn survey<const BOTH: bool>(args: &ExplainArgs, hasher: &FlowHasher, verbose: bool) -> Result<Seen, Error> {
    let layers = args.hash.layers();
    let wanted = args.packet;
    let builder = instance::hashing(Builder::new(), &args.hash, Some(hasher.clone())).virtual_cpus(1).always_hash(true);
    let signals = signals::install()?;
    let Opened { inputs, capture, .. } = open(args)?;
    let live = inputs.iter().filter(|input| is_live(input.kind)).map(|input| input.name.get());
    let live: Vec<String> = live.collect();
    let cards = live.iter().filter_map(|name| known_to_card(name)).collect();
    let by_default = !live.is_empty() && args.packets.is_none() && args.seconds.is_none();
    let needed = args.what.iter().map(Path::new).fold(Needed::default(), Needed::read_file);
    let kept = capabilities::drop_except(&needed)?;
    let needs = args.what.iter().fold(Needs::of(SandboxProfile::Explain), Needs::reads);
    let needs = inputs.iter().fold(needs, |needs, input| needs.device(input.kind, Direction::In));
    let confinement = Confinement::of_files(needs, &args.sandbox)?;
    let signals = signals.hold()?;
    let builder = inputs.into_iter().fold(builder, Builder::input);
    let hasher = hasher.clone();
    let make = move |_cpu| Analyze::<BOTH>::new(hasher.clone(), layers, wanted);
    let instance = builder.build(confinement.of_packet_threads(make)?)?;
    kept.drop_start_up()?;
    let sandbox = confinement.of_calls()?;
    let services = RunServices { capture: capture.clone(), signals, sandbox, ..RunServices::default() };
    let options = RunOptions {
        seconds: args.seconds.or(by_default.then_some(LISTENING)).filter(|seconds| !seconds.is_zero()),
        packets: args.packets,
        printer: Printer::to_stdout(args.json),
        note: (by_default && !args.json).then_some(LISTENING_NOTE),
        live_table: !verbose && !args.json,
        ..RunOptions::of(services, verbose)
    };
    // The name of the only device, if the device is an interface of this machine.
    let root = Root::default();
    let interface = match live.as_slice() {
        [interface] if args.what.len() == 1 && args.virtual_cpus.is_none() => Some(interface),
        _ => None,
    };
    let interface = interface.filter(|name| root.exists(&format!("/sys/class/net/{name}")));
    let before = interface.map(|interface| Sample::read(&root, interface));
    let ended = run::to_end(instance, &options)?;
    let load = |(interface, before): (&String, &Sample)| {
        KernelLoad::between(&root, interface, before, &Sample::read(&root, interface))
    };
    let kernel = interface.zip(before.as_ref()).map(load);
    let error: Option<Error> =
        ended.report.input_error().map(|error| EndingError::Device(error.message.clone()).into());
    let rate = if live.is_empty() {
        capture.and_then(|capture| recorded(&capture)).or_else(|| asked(args))
    } else {
        let seen = |load: &KernelLoad| {
            let time = Duration::try_from_secs_f64(load.seconds).unwrap_or_default();
            rate(load.packets, time, RateFrom::Listening)
        };
        let snapshot = ended.report.snapshot();
        kernel.as_ref().and_then(seen).or_else(|| rate(snapshot.received(), snapshot.elapsed, RateFrom::Listening))
    };
    let hash = ended.report.snapshot().queues.first().map_or(Cow::Borrowed(""), |queue| queue.hash.clone());
    let basis = AdviceBasis {
        command: args.command.explained(),
        candidates: args.virtual_cpus.map_or_else(
            || {
                let receiver = kernel.as_ref().and_then(|load| load.receiver);
                CandidateCpus::this(host_cpus::topology().clone(), host_cpus::nr_cpu_ids(), receiver)
            },
            CandidateCpus::even,
        ),
        rate,
        work: args.work,
        devices: args.what.clone(),
        cards,
        interfaces: live.iter().map(|name| InterfaceQueues::read(name)).collect(),
        kernel_backlog: root.number("/proc/sys/net/core/netdev_max_backlog"),
        kernel,
    };
    let snapshot = ended.report.document.snapshot;
    match ended.outcome.reports.into_iter().next() {
        Some((_cpu, survey)) => {
            let traffic =
                TrafficExplanation { device: args.what.join(" "), survey, snapshot, packet: wanted, layers, basis };
            Ok(Seen { traffic, hash, error })
        }
        None => Err(error.unwrap_or_else(|| EndingError::Panicked(ended.outcome.failed).into())),
    }
}

/// Returns a note about the metadata that the driver reports to AF_XDP for each packet, or `None`
/// if the driver reports no metadata. Kernels before Linux 6.8 do not say whether a driver reports
/// metadata.
fn known_to_card(interface: &str) -> Option<String> {
    let support = if_nametoindex(interface).ok().and_then(|index| netdev::xdp_support(index).ok())?;
    let time = "the time at which it received the packet (on the card's clock)";
    let known =
        [(support.hash, "a flow hash"), (support.time, time), (support.vlan_tag, "the VLAN tag that it removed")];
    let known: Vec<&str> =
        known.into_iter().filter(|(is_known, _)| *is_known == Some(true)).map(|(_, what)| what).collect();
    (!known.is_empty())
        .then(|| format!("card: by AF_XDP in native mode, {interface} also reports {}.", known.join(", ")))
}

/// Returns true if the packets of the device arrive whether or not the run is ready.
fn is_live(kind: &str) -> bool {
    !matches!(kind, "synthetic" | "capture")
}

fn rate(packets: u64, time: Duration, from: RateFrom) -> Option<Rate> {
    let rate = Rate { packets_a_second: packets as f64 / time.as_secs_f64(), from };
    (packets > 0 && rate.packets_a_second.is_finite()).then_some(rate)
}

fn recorded(capture: &CaptureInfo) -> Option<Rate> {
    rate(capture.packets().saturating_sub(1), capture.recorded()?, RateFrom::Recording)
}

fn asked(args: &ExplainArgs) -> Option<Rate> {
    let rates = args.what.iter().map(|what| SyntheticOptions::parse(what).ok()?.rate);
    rate(rates.sum::<Option<u64>>()?, Duration::from_secs(1), RateFrom::Asked)
}

/// Returns true for the words before a `>` that the shell took for a redirection, as in
/// `tcp 10.0.0.1:5`.
fn is_half_flow(what: &[String]) -> bool {
    matches!(what, [protocol, from] if format!("{protocol} {from} > {from}").parse::<FlowKey>().is_ok())
}

fn open(args: &ExplainArgs) -> Result<Opened, Error> {
    let filter = args.filter.as_deref();
    if is_half_flow(&args.what) {
        return Err(CommandLineError::HalfFlow { what: args.what.join(" ") }.into());
    }
    instance::check_filter(&args.what, filter)?;
    let opened = steerage_device::open_all_with(&args.what, &instance::capture_options(filter), |interface| {
        let direction = args.command.direction(args.direction);
        let options = AfPacketOptions::new(interface).direction(direction);
        let options = options.device_hash(args.hash.of_interfaces(false));
        Ok(match filter {
            Some(filter) => options.filtered(filter)?,
            None => options,
        })
    })?;
    let is_endless = |what: &String| SyntheticOptions::parse(what).is_ok_and(|options| options.packets.is_none());
    let endless = args.what.iter().any(is_endless);
    Ok(match args.packets.or(endless.then_some(SYNTHETIC_PACKETS)) {
        Some(packets) => opened.limited(packets),
        None => opened,
    })
}
