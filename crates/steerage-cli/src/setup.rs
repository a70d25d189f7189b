//! From the command line to an instance that is ready to start.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use steerage::{Balance, BuildError, Builder, CpuId, CpuMask, FlowHasher, Handler, HashKey, Instance, Output, Policy};
use steerage_device::Opened;
use steerage_device::af_packet::AfPacketOptions;
use steerage_device::af_xdp::AfXdpOptions;
use steerage_device::capture::CaptureInfo;
use steerage_device::limit::Limit;
use steerage_device::rate::Rate;

use crate::args::{CpuArgs, HashArgs, HashChoice, RunArgs, SteeringArgs};
use crate::control::Control;
use crate::error::Error;
use crate::filter;
use crate::machine;
use crate::metrics::Metrics;
use crate::privileges::{self, Files};
use crate::signals::{self, Caught};

/// Opens the devices, gives up the privileges that took, and puts an instance together around them. `maker`, told
/// whether they can wait, says what makes each CPU's handler, and starts what writes to files of the name `written`.
/// Returns with the instance what else the run needs.
pub(crate) fn instance<H, F>(
    args: &RunArgs,
    written: Option<&Path>,
    begins: Begins,
    maker: impl FnOnce(bool) -> Result<F, Error>,
) -> Result<(Instance<H>, Around), Error>
where
    H: Handler,
    F: Fn(CpuId) -> H + Send + Sync + 'static,
{
    let sending_nothing = Sending { rate: None, originated: 0, outputs: |_: &[usize]| Ok(Vec::new()) };
    begun(args, written, begins, sending_nothing, maker)
}

/// Where the work begins, as long as nobody knows better and `balance` sees to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begins {
    /// Where packets are received, until that is too much.
    Inline,
    /// Of files on another CPU, if that is near: the function takes about as long as receiving does.
    Joined,
}

/// What comes with an instance.
#[derive(Debug)]
pub(crate) struct Around {
    /// What is known of the capture files, if there are any.
    pub(crate) capture: Option<Arc<CaptureInfo>>,
    /// How it is asked and told while it runs.
    pub(crate) control: Control,
    /// How it is stopped.
    pub(crate) signals: Caught,
    /// Where Prometheus asks.
    pub(crate) metrics: Metrics,
}

/// What a function sends by, and how much.
pub(crate) struct Sending<O> {
    /// So many packets a second, of what can wait.
    pub(crate) rate: Option<u64>,
    /// So many packets of its own making at a time.
    pub(crate) originated: usize,
    /// Makes the outputs, told how many queues each input has.
    pub(crate) outputs: O,
}

/// The same for a function that sends; it goes by flow hashes.
pub(crate) fn sending<H, F>(
    args: &RunArgs,
    written: Option<&Path>,
    sending: Sending<impl FnOnce(&[usize]) -> Result<Vec<Output>, Error>>,
    maker: impl FnOnce(bool) -> Result<F, Error>,
) -> Result<(Instance<H>, Around), Error>
where
    H: Handler,
    F: Fn(CpuId) -> H + Send + Sync + 'static,
{
    begun(args, written, Begins::Inline, sending, maker)
}

fn begun<H, F>(
    args: &RunArgs,
    written: Option<&Path>,
    begins: Begins,
    sending: Sending<impl FnOnce(&[usize]) -> Result<Vec<Output>, Error>>,
    maker: impl FnOnce(bool) -> Result<F, Error>,
) -> Result<(Instance<H>, Around), Error>
where
    H: Handler,
    F: Fn(CpuId) -> H + Send + Sync + 'static,
{
    // Before there is another thread, which could be the one that a signal comes to.
    let signals = signals::catch()?;
    // The command line first: its mistakes are told whether the device is there or not.
    let cpus = Cpus::read(&args.cpus)?;
    let builder = cpus.apply(steer(&args.steering)?, &args.cpus)?;
    let check_order = args.steering.check_order || args.report.strict;
    let metrics = Metrics::prepare(args)?;
    let Opened { inputs, capture, .. } = open(args)?;
    let takes = inputs.iter().any(|input| input.kind == "af_xdp");
    let can_wait = inputs.iter().flat_map(|input| &input.queues).all(|queue| queue.can_wait());
    let mut builder = builder.check_order(check_order).originated_max(sending.originated);
    if begins == Begins::Joined && can_wait && args.pace.is_none() && cpus.begin_joined(&args.cpus)? {
        builder = builder.policy(Balance::begin_joined());
    }
    let mut rx = cpus.rx.clone();
    let queues: Vec<usize> = inputs.iter().map(|input| input.queues.len()).collect();
    let each = sending.rate.filter(|_| can_wait).map(|rate| rate / inputs.len().max(1) as u64);
    for input in inputs {
        let input = match each {
            Some(rate) => Rate::new(input, rate),
            None => input,
        };
        let queues = input.queues.len();
        builder = builder.input_on(input, &rx, None);
        // The next device's queues go on where this one's ended.
        let next = queues % rx.len().max(1);
        rx.rotate_left(next);
    }
    // Last: where an input is not there, nothing is overwritten.
    let outputs = (sending.outputs)(&queues)?;
    let pins = takes || outputs.iter().any(|output| output.kind == "af_xdp");
    builder = builder.always_hash(!outputs.is_empty());
    builder = outputs.into_iter().fold(builder, Builder::output);
    let read = args.devices.iter().map(Path::new).collect();
    let control = Control::prepare(args)?;
    let kept = privileges::give_up(&Files { read, written, pins })?;
    let make = maker(can_wait)?;
    let instance = builder.build(make)?;
    kept.let_go()?;
    Ok((instance, Around { capture, control, signals, metrics }))
}

/// How many CPUs it will be.
pub(crate) fn count_cpus(args: &CpuArgs) -> Result<usize, Error> {
    let cpus = Cpus::read(args)?;
    let all: CpuMask = cpus.workers(args)?.iter().chain(cpus.rx).collect();
    Ok(all.iter().count())
}

/// What can be found out of all this without opening a device: in two lines, which CPUs would do what.
pub(crate) fn check(args: &RunArgs) -> Result<String, Error> {
    let cpus = Cpus::read(&args.cpus)?;
    steer(&args.steering)?;
    for device in &args.devices {
        steerage_device::check(device)?;
    }
    if args.pace.is_some() && args.devices.iter().all(|device| steerage_device::is_synthetic(device)) {
        return Err(Error::NothingToPace);
    }
    let work = cpus.workers(&args.cpus)?;
    let rx: CpuMask = if cpus.rx.is_empty() { work.clone() } else { cpus.rx.iter().copied().collect() };
    let rps = cpus.rps.as_ref().unwrap_or(&work);
    if let Some(cpu) = rps.iter().find(|cpu| !work.contains(*cpu)) {
        return Err(Error::Build(BuildError::NotOurCpu { cpu, ours: work.to_string() }));
    }
    let spread = if rps.is_empty() {
        "packets stay where they are received".to_owned()
    } else {
        format!("packets are spread over {rps}")
    };
    Ok(format!("CPUs {work} work, {rx} receive, {spread}\n"))
}

fn open(args: &RunArgs) -> Result<Opened, Error> {
    let mut filters = filter::of_interfaces(args)?.into_iter();
    let opened = steerage_device::open_all_taking(
        &args.devices,
        args.pace,
        |interface| Ok(AfPacketOptions { filter: filters.next(), ..listening(interface, args) }),
        |interface| taking(interface, args),
    )?;
    if !args.report.quiet {
        // With standard error closed there is nobody to tell.
        opened.notes.iter().for_each(|note| drop(writeln!(io::stderr(), "{note}")));
    }
    if args.pace.is_some() && opened.capture.is_none() {
        return Err(Error::NothingToPace);
    }
    Ok(match args.stop.packets {
        Some(packets) => Opened { inputs: Limit::over(opened.inputs, packets), ..opened },
        None => opened,
    })
}

/// How an interface is listened to.
fn listening(interface: &str, args: &RunArgs) -> AfPacketOptions {
    let live = &args.live;
    let default = AfPacketOptions::new(interface);
    AfPacketOptions {
        queues: live.queues,
        buffer: live.buffer_size.unwrap_or(default.buffer),
        block_timeout: live.block_timeout.unwrap_or(default.block_timeout),
        promiscuous: !live.no_promiscuous,
        direction: live.direction.into(),
        kernel_hash: args.steering.hash.asks_kernel(),
        finish_checksums: live.forwards,
        ..default
    }
}

/// How packets are taken from one.
fn taking(interface: &str, args: &RunArgs) -> AfXdpOptions {
    AfXdpOptions {
        take: args.live.take.clone(),
        replace: args.live.replace,
        device_hash: args.steering.hash.asks_kernel(),
        ..AfXdpOptions::new(interface)
    }
}

/// The CPU masks of the command line, read by the kernel's rules.
struct Cpus {
    work: Option<CpuMask>,
    rx: Vec<CpuId>,
    rps: Option<CpuMask>,
}

impl Cpus {
    fn read(args: &CpuArgs) -> Result<Self, Error> {
        let nr = args.virtual_cpus.unwrap_or_else(machine::nr_cpu_ids);
        let list = |option, text: &Option<String>| -> Result<Option<CpuMask>, Error> {
            let Some(text) = text else { return Ok(None) };
            let mask = CpuMask::parse_list(text, nr).map_err(|error| Error::Mask { option, error })?;
            if mask.is_empty() { Err(Error::NoCpu { option }) } else { Ok(Some(mask)) }
        };
        let work = list("--cpus", &args.cpus)?;
        let rx = list("--rx-cpu", &args.rx_cpu)?;
        // Unlike the others these may be empty: that is how the kernel is told not to steer.
        let rps = match (&args.rps_cpus, &args.rps_cpus_list) {
            (Some(text), _) => {
                Some(CpuMask::parse_bitmap(text, nr).map_err(|error| Error::Mask { option: "--rps-cpus", error })?)
            }
            (None, Some(text)) => {
                Some(CpuMask::parse_list(text, nr).map_err(|error| Error::Mask { option: "--rps-cpus-list", error })?)
            }
            (None, None) => None,
        };
        if args.virtual_cpus.is_none() {
            [&work, &rx].into_iter().flatten().try_for_each(machine::check_online)?;
        }
        Ok(Self { work, rx: rx.iter().flat_map(CpuMask::iter).collect(), rps })
    }

    /// Those that work.
    fn workers(&self, args: &CpuArgs) -> Result<CpuMask, Error> {
        match (&self.work, args.virtual_cpus) {
            (Some(work), _) => Ok(work.clone()),
            (None, Some(count)) => Ok((0..count as u16).map(CpuId).collect()),
            (None, None) => machine::usable_cpus(),
        }
    }

    /// Whether there is somebody near to begin with.
    fn begin_joined(&self, args: &CpuArgs) -> Result<bool, Error> {
        if args.policy != Balance::new().name() || args.virtual_cpus.is_some() {
            return Ok(false);
        }
        let work = self.workers(args)?;
        let Some(receives) = self.rx.first().copied().or_else(|| work.first()) else { return Ok(false) };
        let mask = self.rps.as_ref().unwrap_or(&work);
        let others = mask.iter().filter(|cpu| !self.rx.contains(cpu) && *cpu != receives);
        // Where the one that receives may have no work, another one has all of it anyway.
        Ok(mask.contains(receives) && machine::has_near(receives, &others.collect()))
    }

    fn apply(&self, mut builder: Builder, args: &CpuArgs) -> Result<Builder, Error> {
        if let Some(count) = args.virtual_cpus {
            builder = builder.virtual_cpus(count);
        }
        builder = match (&self.work, args.virtual_cpus) {
            (Some(work), _) => builder.cpus(work.clone()),
            (None, Some(_)) => builder,
            (None, None) => builder.cpus(machine::usable_cpus()?),
        };
        if let Some(policy) = steerage::policy(&args.policy) {
            builder = builder.policy(policy);
        }
        Ok(match &self.rps {
            Some(rps) => builder.rps_cpus(rps.clone()),
            None => builder,
        })
    }
}

fn steer(args: &SteeringArgs) -> Result<Builder, Error> {
    let builder = Builder::new().backlog(args.backlog).dev_weight(args.dev_weight);
    let mut builder = hashing(builder, &args.hash, hasher(&args.hash)?);
    if let Some(units) = args.memory.lpc_size {
        builder = builder.lpc_size(units);
    }
    Ok(match args.memory.memory_max {
        Some(bytes) => builder.memory_max(bytes),
        None => builder,
    })
}

/// How packets are hashed, in every command that steers them and in `explain`. Which packets stay together is said by the
/// packet function itself (`Handler::AFFINITY`).
pub(crate) fn hashing(builder: Builder, args: &HashArgs, hasher: Option<FlowHasher>) -> Builder {
    let builder = builder.layers(args.layers()).device_hash(args.allows_device());
    match hasher {
        Some(hasher) => builder.hash(hasher),
        None => builder,
    }
}

/// The hash that was asked for; `None` leaves it to the library.
pub(crate) fn hasher(args: &HashArgs) -> Result<Option<FlowHasher>, Error> {
    let key = match (args.hash, args.hash_key) {
        (HashChoice::Auto | HashChoice::Device, None) => return Ok(None),
        (_, Some(key)) => key,
        (HashChoice::Aes | HashChoice::Siphash, None) => key_by_chance()?,
        // These are for agreement with hardware, and this is the key that hardware comes with.
        (HashChoice::Toeplitz | HashChoice::ToeplitzTable | HashChoice::ToeplitzGfni, None) => HashKey::MICROSOFT,
    };
    Ok(Some(match args.hash {
        HashChoice::Auto | HashChoice::Device => FlowHasher::keyed(&key),
        HashChoice::Siphash => FlowHasher::sip(&key),
        HashChoice::Toeplitz => FlowHasher::toeplitz(&key),
        HashChoice::ToeplitzTable => FlowHasher::toeplitz_table(&key),
        HashChoice::Aes => {
            FlowHasher::aes(&key).ok_or(Error::Hash { name: "aes", needs: "AES", instead: "siphash" })?
        }
        HashChoice::ToeplitzGfni => FlowHasher::toeplitz_gfni(&key).ok_or(Error::Hash {
            name: "toeplitz-gfni",
            needs: "GFNI or AVX2",
            instead: "toeplitz-table",
        })?,
    }))
}

fn key_by_chance() -> Result<HashKey, Error> {
    HashKey::random().map_err(|error| Error::System { operation: "read a hash key from /dev/urandom", error })
}
