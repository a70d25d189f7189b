//! Creates the instance that the command line describes, ready to start.
//!
//! | file | content |
//! |---|---|
//! | `cpus` | the CPUs that work, receive, and are in the mask |
//! | `devices` | opens the devices, with their filters |
//! | `hash` | the flow hash |
//! | `undoing` | defers interrupts for busy polling, and undoes the run's changes of the machine at the end |
//! | `interrupts` | begins polling on the CPUs that get a card's interrupts |
//!
//! This file builds the instance from the parsed options, and drops privileges after the devices
//! are open.

mod cpus;
mod devices;
mod hash;
mod interrupts;
pub(crate) mod undoing;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use steerage::{Affinity, Builder, CpuId, CpuMask, Handler, Instance, Output, SetError};
use steerage_capture::CaptureInfo;
use steerage_capture::tap::{Tap, Tapped};
use steerage_control::directory_names;
use steerage_device::Opened;
use steerage_device::af_xdp;
use steerage_device::drain::{Downstream, Drain};
use steerage_device::rate::Rate;
use steerage_guard::capabilities::{self, Needed};
use steerage_guard::sandbox::InForce;

use crate::args::{RunArgs, SteeringArgs};
use crate::control_tree::ControlTree;
use crate::error::{CommandLineError, Error};
use crate::metrics::Metrics;
use crate::sandbox::{Confinement, Direction, Needs};
use crate::service::ServiceManager;
use crate::signals::{self, HeldSignals};
use crate::web::Web;
use cpus::CpuSelection;
use undoing::Undoing;

pub(crate) use cpus::count_cpus;
pub(crate) use devices::{capture_options, check_filter};
use hash::hasher;
pub(crate) use hash::{hashing, own_hasher};

/// Opens the devices, drops privileges, and builds an instance. `maker` returns the function that
/// creates each CPU's handler. The argument of `maker` is true if all devices can wait, as files
/// can. `maker` is allowed to start threads that write the files listed in `needs`.
pub(crate) fn receiving<H, F>(
    args: &RunArgs,
    needs: Needs<'_>,
    maker: impl FnOnce(bool) -> Result<F, Error>,
) -> Result<(Instance<Tapped<H>>, RunServices), Error>
where
    H: Handler,
    F: Fn(CpuId) -> H + Send + Sync + 'static,
{
    let outputs = |_: &OpenedInputs| Ok(Vec::new());
    let sending_nothing = SendOptions { listens: true, rate: None, coalesce: false, outputs, input_end: None };
    sending(args, needs, sending_nothing, maker)
}

/// The services of a run, such as the control tree. Services are opened before privileges are
/// dropped. By default, a run has none.
#[derive(Debug, Default)]
pub(crate) struct RunServices {
    pub(crate) capture: Option<Arc<CaptureInfo>>,
    pub(crate) can_wait: bool,
    pub(crate) control: ControlTree,
    /// The clients that receive copies of packets through the control socket.
    pub(crate) tap: Arc<Tap>,
    pub(crate) signals: HeldSignals,
    pub(crate) service: ServiceManager,
    pub(crate) metrics: Metrics,
    pub(crate) web: Web,
    pub(crate) sandbox: Option<InForce>,
    /// Dropping this field undoes the run's changes to the machine.
    pub(crate) _undoing: Option<Undoing>,
}

pub(crate) struct SendOptions<O> {
    /// True if the command sends nothing to a network, so that received packets may wait for a
    /// short time (see
    /// [`AfXdpOptions::coalesce`](steerage_device::af_xdp::AfXdpOptions::coalesce)).
    pub(crate) listens: bool,
    /// The packet rate of inputs that can wait, such as files, in packets per second.
    pub(crate) rate: Option<u64>,
    /// If true, consecutive segments of a flow are merged before they reach the handler.
    pub(crate) coalesce: bool,
    pub(crate) outputs: O,
    /// How inputs that can wait end. `None` if an input ends when it has no more packets.
    pub(crate) input_end: Option<InputEnd>,
}

pub(crate) struct OpenedInputs {
    pub(crate) queues: Vec<usize>,
    pub(crate) capture: Option<Arc<CaptureInfo>>,
    pub(crate) can_wait: bool,
}

pub(crate) struct InputEnd {
    pub(crate) now: Arc<AtomicBool>,
    pub(crate) downstream: Box<dyn Downstream>,
}

/// Like [`receiving`], for a handler that sends packets. Each packet gets a flow hash, which
/// selects the queue of the output.
pub(crate) fn sending<H, F>(
    args: &RunArgs,
    needs: Needs<'_>,
    sending: SendOptions<impl FnOnce(&OpenedInputs) -> Result<Vec<Output>, Error>>,
    maker: impl FnOnce(bool) -> Result<F, Error>,
) -> Result<(Instance<Tapped<H>>, RunServices), Error>
where
    H: Handler,
    F: Fn(CpuId) -> H + Send + Sync + 'static,
{
    let signals = signals::install()?;
    // Mistakes in the command line are reported even if a device does not exist.
    let cpus = CpuSelection::parse(&args.cpus)?;
    let builder = cpus.apply(steering_builder(&args.steering)?, &args.cpus)?;
    let check_order = args.steering.check_order || args.report.strict;
    let metrics = Metrics::prepare(&args.metrics, args.report.quiet)?;
    let web = Web::prepare(&args.web)?;
    let service = ServiceManager::connect();
    let Opened { inputs, capture, .. } = devices::open(args, sending.listens)?;
    let undoing = Undoing::begin(args.report.quiet)?;
    let kinds: Vec<&str> = inputs.iter().map(|input| input.kind).collect();
    let takes = kinds.contains(&"af_xdp");
    let can_wait = inputs.iter().flat_map(|input| &input.queues).all(|queue| queue.capabilities().can_wait);
    let mut builder = builder.check_order(check_order).coalesce(sending.coalesce);
    if args.live.outer_flows && args.steering.hash.allows_device() {
        builder = builder.device_affinity(Affinity::OneDirection);
    }
    let mut rx = cpus.rx.clone();
    let queues: Vec<usize> = inputs.iter().map(|input| input.queues.len()).collect();
    let inputs = match sending.input_end {
        Some(InputEnd { now, downstream }) if can_wait => Drain::over(inputs, &now, downstream),
        _ => inputs,
    };
    let names: Vec<String> = inputs.iter().map(|input| input.name.get()).collect();
    let directories = directory_names(inputs.iter().map(|input| input.kind).zip(names.iter().map(String::as_str)));
    let devices: Vec<(String, usize)> = directories.into_iter().zip(queues.iter().copied()).collect();
    let masks = cpus.queue_masks(&devices)?;
    builder = masks.own.into_iter().fold(builder, |builder, (queue, mask)| builder.queue_rps_cpus(queue, mask));
    let each = sending.rate.filter(|_| can_wait).map(|rate| rate / inputs.len().max(1) as u64);
    for input in inputs {
        let input = set_if_given(input, each, Rate::new);
        let queues = input.queues.len();
        builder = builder.input_on(input, &rx, None);
        // The CPU after that of this device's last queue polls the first queue of the next device.
        let next = queues % rx.len().max(1);
        rx.rotate_left(next);
    }
    // Outputs are opened last, so that no file is overwritten if an input does not exist.
    let opened = OpenedInputs { queues, capture: capture.clone(), can_wait };
    let outputs = (sending.outputs)(&opened)?;
    let pins = takes || outputs.iter().any(|output| output.kind == "af_xdp");
    let needs = kinds.into_iter().fold(needs, |needs, kind| needs.device(kind, Direction::In));
    let needs = needs.follows_bonds(af_xdp::follows_bonds());
    let needs = outputs.iter().fold(needs, |needs, output| needs.device(output.kind, Direction::Out));
    builder = builder.always_hash(!outputs.is_empty());
    builder = outputs.into_iter().fold(builder, Builder::output);
    let control = ControlTree::prepare(args, masks.off)?;
    let needed = args.devices.iter().map(Path::new).fold(Needed::default().pinned_memory(pins), Needed::read_file);
    let kept = capabilities::drop_except(&needs.written().iter().copied().fold(needed, Needed::written_files))?;
    let needs = args.devices.iter().fold(needs, Needs::reads);
    let needs = control.needs(needs);
    // Threads that write and open files inherit the sandbox's restriction of files, so these
    // threads start after it.
    let confinement = Confinement::of_files(needs, &args.sandbox)?;
    let make_handler = maker(can_wait)?;
    // All files and devices whose opening may hang are open by now. The threads of the instance
    // inherit the signal mask, so signals are blocked before the instance starts.
    let signals = signals.hold()?;
    let tap = Arc::new(Tap::default());
    let instance = builder.build(confinement.of_packet_threads(tap.around(make_handler))?)?;
    if args.cpus.rx_cpu.is_none() && args.cpus.virtual_cpus.is_none() {
        interrupts::poll_where_interrupts_are(&instance);
    }
    kept.drop_start_up()?;
    // AF_XDP attaches its program and pins memory while the instance is built, so system calls are
    // restricted afterwards. No packet thread has started.
    let sandbox = confinement.of_calls()?;
    Ok((
        instance,
        RunServices { capture, can_wait, control, tap, signals, service, metrics, web, sandbox, _undoing: undoing },
    ))
}

/// Checks the command line without opening a device. Returns a line about the CPUs and how packets
/// are spread.
pub(crate) fn check(args: &RunArgs) -> Result<String, Error> {
    let cpus = CpuSelection::parse(&args.cpus)?;
    let _ = steering_builder(&args.steering)?;
    for device in &args.devices {
        steerage_device::check(device)?;
    }
    if args.pace.is_some() && args.devices.iter().all(|device| steerage_device::is_synthetic(device)) {
        return Err(CommandLineError::NothingToPace.into());
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

fn steering_builder(args: &SteeringArgs) -> Result<Builder, Error> {
    let builder = Builder::new().backlog(args.backlog).dev_weight(args.dev_weight);
    let builder = hashing(builder, &args.hash, hasher(&args.hash)?);
    let builder = set_if_given(builder, args.memory.lpc_pages, Builder::lpc_pages);
    let builder = set_if_given(builder, args.memory.copybreak, Builder::copybreak);
    Ok(set_if_given(builder, args.memory.memory_max, Builder::memory_max))
}

fn set_if_given<B, V>(builder: B, value: Option<V>, set: impl FnOnce(B, V) -> B) -> B {
    match value {
        Some(value) => set(builder, value),
        None => builder,
    }
}
