//! From the command line to an instance that is ready to start.
//!
//! | file | what happens there |
//! |---|---|
//! | `cpus` | the CPUs that work, receive, and are in the mask |
//! | `devices` | the devices are opened, with the filters of interfaces |
//! | `hash` | the flow hash |
//!
//! This file puts the parts together, and gives up the program's privileges once the devices are open.

mod cpus;
mod devices;
mod hash;

use std::path::Path;
use std::sync::Arc;

use steerage::{Affinity, Balance, Builder, CpuId, CpuMask, Handler, Instance, Output, SetError};
use steerage_control::directory_names;
use steerage_device::Opened;
use steerage_device::capture::CaptureInfo;
use steerage_device::privileges::{self, Needed};
use steerage_device::rate::Rate;

use crate::args::{RunArgs, SteeringArgs};
use crate::control_tree::ControlTree;
use crate::error::Error;
use crate::metrics::Metrics;
use crate::signals::{self, SignalHandlers};
use cpus::CpuSelection;

pub(crate) use cpus::count_cpus;
pub(crate) use hash::{hasher, hashing, random_key};

/// Opens the devices, gives up the privileges that this took, and builds an instance around them.
///
/// `maker` returns what makes each CPU's handler. Its argument says whether all devices can wait, as files can. It may
/// also start a thread that writes to files of the name `written`. With the instance come the services that the run
/// needs.
pub(crate) fn receiving<H, F>(
    args: &RunArgs,
    written: Option<&Path>,
    begins: InitialRegime,
    maker: impl FnOnce(bool) -> Result<F, Error>,
) -> Result<(Instance<H>, RunServices), Error>
where
    H: Handler,
    F: Fn(CpuId) -> H + Send + Sync + 'static,
{
    let sending_nothing = SendOptions { rate: None, originated: 0, outputs: |_: &[usize]| Ok(Vec::new()) };
    assemble(args, written, begins, sending_nothing, maker)
}

/// Like [`receiving`], for a packet function that sends. All packets get a flow hash, which chooses the output's queue.
pub(crate) fn sending<H, F>(
    args: &RunArgs,
    written: Option<&Path>,
    sending: SendOptions<impl FnOnce(&[usize]) -> Result<Vec<Output>, Error>>,
    maker: impl FnOnce(bool) -> Result<F, Error>,
) -> Result<(Instance<H>, RunServices), Error>
where
    H: Handler,
    F: Fn(CpuId) -> H + Send + Sync + 'static,
{
    assemble(args, written, InitialRegime::Inline, sending, maker)
}

/// Which CPUs work at the start. The policy `balance` measures the load and changes this within a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InitialRegime {
    /// The CPU that receives does all the work.
    Inline,
    /// For files, another CPU does the work if one is near. This is better if the packet function takes about as long
    /// as receiving.
    Collector,
}

/// The services of a run, which are opened before the privileges are given up.
#[derive(Debug)]
pub(crate) struct RunServices {
    /// What is known about the capture files, if there are any.
    pub(crate) capture: Option<Arc<CaptureInfo>>,
    /// The control socket and the mounted tree.
    pub(crate) control: ControlTree,
    /// The signals that stop the run or ask for a report.
    pub(crate) signals: SignalHandlers,
    /// The listener for Prometheus.
    pub(crate) metrics: Metrics,
}

/// How a packet function sends.
pub(crate) struct SendOptions<O> {
    /// The rate in packets per second at which inputs that can wait are read.
    pub(crate) rate: Option<u64>,
    /// The most packets that the function originates at a time.
    pub(crate) originated: usize,
    /// Opens the outputs. Its argument has the number of queues of each input.
    pub(crate) outputs: O,
}

fn assemble<H, F>(
    args: &RunArgs,
    written: Option<&Path>,
    begins: InitialRegime,
    sending: SendOptions<impl FnOnce(&[usize]) -> Result<Vec<Output>, Error>>,
    maker: impl FnOnce(bool) -> Result<F, Error>,
) -> Result<(Instance<H>, RunServices), Error>
where
    H: Handler,
    F: Fn(CpuId) -> H + Send + Sync + 'static,
{
    // While there is one thread: a signal could be delivered to another thread before the handlers are installed.
    let signals = signals::install()?;
    // The command line comes first: its mistakes are reported whether the device exists or not.
    let cpus = CpuSelection::parse(&args.cpus)?;
    let builder = cpus.apply(steering_builder(&args.steering)?, &args.cpus)?;
    let check_order = args.steering.check_order || args.report.strict;
    let metrics = Metrics::prepare(args)?;
    let Opened { inputs, capture, .. } = devices::open(args)?;
    let takes = inputs.iter().any(|input| input.kind == "af_xdp");
    let can_wait = inputs.iter().flat_map(|input| &input.queues).all(|queue| queue.capabilities().can_wait);
    let mut builder = builder.check_order(check_order).originated_max(sending.originated);
    if args.live.outer_flows && args.steering.hash.allows_device() {
        builder = builder.device_affinity(Affinity::OneDirection);
    }
    if begins == InitialRegime::Collector && can_wait && args.pace.is_none() && cpus.begins_as_collector(&args.cpus)? {
        builder = builder.policy(Balance::begin_joined());
    }
    let mut rx = cpus.rx.clone();
    let queues: Vec<usize> = inputs.iter().map(|input| input.queues.len()).collect();
    let names: Vec<String> = inputs.iter().map(|input| input.name.get()).collect();
    let directories = directory_names(inputs.iter().map(|input| input.kind).zip(names.iter().map(String::as_str)));
    let devices: Vec<(String, usize)> = directories.into_iter().zip(queues.iter().copied()).collect();
    let masks = cpus.queue_masks(&devices)?;
    builder = masks.own.into_iter().fold(builder, |builder, (queue, mask)| builder.queue_rps_cpus(queue, mask));
    let each = sending.rate.filter(|_| can_wait).map(|rate| rate / inputs.len().max(1) as u64);
    for input in inputs {
        let input = match each {
            Some(rate) => Rate::new(input, rate),
            None => input,
        };
        let queues = input.queues.len();
        builder = builder.input_on(input, &rx, None);
        // The next device's queues continue with the next CPU of the list.
        let next = queues % rx.len().max(1);
        rx.rotate_left(next);
    }
    // Outputs come last: if an input is missing, no file is overwritten.
    let outputs = (sending.outputs)(&queues)?;
    let pins = takes || outputs.iter().any(|output| output.kind == "af_xdp");
    builder = builder.always_hash(!outputs.is_empty());
    builder = outputs.into_iter().fold(builder, Builder::output);
    let control = ControlTree::prepare(args, masks.off)?;
    let needed = args.devices.iter().map(Path::new).fold(Needed::default().pinned_memory(pins), Needed::read_file);
    let kept = privileges::drop_except(&written.into_iter().fold(needed, Needed::written_files))?;
    let make_handler = maker(can_wait)?;
    let instance = builder.build(make_handler)?;
    kept.drop_start_up()?;
    Ok((instance, RunServices { capture, control, signals, metrics }))
}

/// Checks the command line without opening a device. Returns a line that says what each CPU would do.
pub(crate) fn check(args: &RunArgs) -> Result<String, Error> {
    let cpus = CpuSelection::parse(&args.cpus)?;
    let _ = steering_builder(&args.steering)?;
    for device in &args.devices {
        steerage_device::check(device)?;
    }
    if args.pace.is_some() && args.devices.iter().all(|device| steerage_device::is_synthetic(device)) {
        return Err(Error::NothingToPace);
    }
    let work = cpus.workers(&args.cpus)?;
    let rx: CpuMask = if cpus.rx.is_empty() { work.clone() } else { cpus.rx.iter().copied().collect() };
    if let Some(cpu) = cpus.masks().flat_map(CpuMask::iter).find(|cpu| !work.contains(*cpu)) {
        return Err(Error::Build(SetError::NotOurCpu { cpu, ours: work.to_string() }.into()));
    }
    let spread = |mask: &CpuMask, queue: &str| {
        if mask.is_empty() {
            format!("packets{queue} stay where they are received")
        } else {
            format!("packets{queue} are spread over {mask}")
        }
    };
    let of_queues = cpus.of_queues.iter().map(|queue| spread(&queue.mask, &format!(" of {}", queue.name)));
    let spread: Vec<String> = [spread(cpus.rps.as_ref().unwrap_or(&work), "")].into_iter().chain(of_queues).collect();
    Ok(format!("CPUs {work} work, {rx} receive, {}\n", spread.join(", ")))
}

/// A builder with the steering options of the command line.
fn steering_builder(args: &SteeringArgs) -> Result<Builder, Error> {
    let builder = Builder::new().backlog(args.backlog).dev_weight(args.dev_weight);
    let mut builder = hashing(builder, &args.hash, hasher(&args.hash)?);
    if let Some(pages) = args.memory.lpc_pages {
        builder = builder.lpc_pages(pages);
    }
    Ok(match args.memory.memory_max {
        Some(bytes) => builder.memory_max(bytes),
        None => builder,
    })
}
