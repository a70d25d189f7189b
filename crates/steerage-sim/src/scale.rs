//! Simulates one run of the real receive path on a machine that a file describes.

use std::sync::Arc;
use std::time::Duration;

use steerage::{
    Balance, Batch, BuildError, Builder, Cpu, CpuId, CpuMask, Handler, Hash, Snapshot, Timestamp,
    flow::{FlowHasher, HashKey},
};

use crate::arrivals::{Arrivals, Streams, arrived, flow_of};
use crate::chance::Chance;
use crate::machine::{Machine, Profile};
use crate::meter::Meter;
use crate::world::World;

/// The memory that a run may use: enough for the rings of 256 queues to each of 1,024 CPUs.
const MEMORY_MAX: usize = 4 << 30;

const IDLE_POLL: Duration = Duration::from_micros(50);

/// How packets are spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steering {
    /// The receiving CPUs handle their packets themselves.
    None,
    /// The receiving CPUs only receive packets. CPUs that do not receive have equal shares of the
    /// flow hash.
    Collectors,
    /// All CPUs have equal shares of the flow hash, as in Linux.
    Hash,
    /// The policy `balance`.
    Balance,
}

/// The work of the packet function.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Work {
    /// The packet function takes this many nanoseconds for each packet.
    Fixed(f64),
    /// The times that the packet function takes are distributed exponentially, with this mean in
    /// nanoseconds.
    Exponential(f64),
}

/// The description of one simulated run.
#[derive(Clone, Debug, PartialEq)]
pub struct ScaleRun {
    /// The costs of the receive path.
    pub profile: Profile,
    /// The machine.
    pub machine: Machine,
    /// The number of CPUs that the run uses, beginning with CPU 0.
    pub cpus: usize,
    /// The number of CPUs, counted from CPU 0, over which the queues are distributed evenly.
    pub receivers: usize,
    /// The traffic.
    pub arrivals: Arrivals,
    /// How packets are spread.
    pub steering: Steering,
    /// The work of a packet.
    pub work: Work,
    /// The time before the measurement, during which CPUs join and queues fill.
    pub warm_up: Duration,
    /// The time that is measured.
    pub measured: Duration,
    /// The factor by which all times of the machine and of the traffic are multiplied, and the
    /// results divided. The library's time constants are not multiplied, so with a larger factor,
    /// fewer packets arrive between two load checks of the policy `balance` (10 ms).
    pub stretch: f64,
    /// The maximum number of packets that wait for a CPU, as in Linux's `netdev_max_backlog`.
    pub backlog: usize,
}

/// The results of a run.
#[derive(Clone, Debug)]
pub struct Scaled {
    /// Packets handled per second.
    pub per_second: f64,
    /// The share of received packets that were lost.
    pub lost: f64,
    /// The share of time for which the busiest CPU was busy.
    pub busiest: f64,
    /// The sum of the busy shares of all CPUs.
    pub cpus: f64,
    /// The times from arrival to the packet function, in nanoseconds, in ascending order.
    pub waits: Vec<u32>,
    /// The memory of packets and hand-over rings, in bytes.
    pub memory: u64,
    /// The number of packets that were handled after a later packet of their bucket.
    pub reordered: u64,
    /// The number of control actions per second: moves of buckets, and wake-ups of CPUs for
    /// control.
    pub control_per_second: f64,
    /// The number of all packets of the run.
    pub packets: u64,
    /// The real durations of the control calls, in milliseconds and in ascending order: the only
    /// field that differs between runs with the same seed.
    pub control_ms: Vec<f64>,
}

impl Scaled {
    /// The mean waiting time, in nanoseconds.
    pub fn mean_wait(&self) -> f64 {
        self.waits.iter().map(|wait| f64::from(*wait)).sum::<f64>() / self.waits.len().max(1) as f64
    }

    /// Returns a quantile of the waiting times, in nanoseconds: the 99th percentile if `permille`
    /// is 990.
    pub fn wait(&self, permille: usize) -> f64 {
        let at = (self.waits.len() * permille / 1000).min(self.waits.len().saturating_sub(1));
        self.waits.get(at).map_or(0.0, |wait| f64::from(*wait))
    }
}

impl ScaleRun {
    fn owners(&self) -> Vec<usize> {
        let queues = self.arrivals.queues;
        (0..queues).map(|queue| queue * self.receivers / queues).collect()
    }

    /// Runs the simulation. The result depends only on the fields of this `ScaleRun`.
    ///
    /// # Errors
    /// Returns an error if the instance cannot be built.
    pub fn once(&self) -> Result<Scaled, BuildError> {
        let Self { profile, machine, arrivals, stretch, .. } = self;
        let owners = self.owners();
        let all: CpuMask = (0..self.cpus).map(|cpu| CpuId(cpu as u16)).collect();
        let mask = match self.steering {
            Steering::None => CpuMask::new(),
            Steering::Collectors => all.iter().filter(|cpu| !owners.contains(&usize::from(cpu.0))).collect(),
            Steering::Hash | Steering::Balance => all,
        };
        let rx: Vec<CpuId> = owners.iter().map(|cpu| CpuId(*cpu as u16)).collect();
        let builder = Builder::new()
            .virtual_cpus(self.cpus)
            .rps_cpus(mask)
            .check_order(true)
            .memory_max(MEMORY_MAX)
            .backlog(self.backlog)
            .device_hash(false)
            .hash(FlowHasher::keyed(&HashKey::MICROSOFT));
        let builder = match self.steering {
            Steering::Balance => builder.policy(Balance::new()),
            _ => builder.policy(Hash),
        };
        let stretched = Arrivals { per_second: arrivals.per_second / stretch, ..*arrivals };
        let meter = Meter::new(profile.slowed(*stretch), machine.clone(), owners);
        let begin = Timestamp::ZERO + self.warm_up.mul_f64(*stretch);
        let end = begin + self.measured.mul_f64(*stretch);
        let (of_handlers, work, seed) = (Arc::clone(&meter), self.work.slowed(*stretch), arrivals.seed);
        let (input, streams) = stretched.open(*stretch);
        let make = move |cpu: CpuId| Served {
            streams: streams.clone(),
            meter: Arc::clone(&of_handlers),
            cpu: cpu.0.into(),
            work,
            chance: Chance::new(seed ^ 0x5eed << 16 ^ u64::from(cpu.0)),
            begin,
            waits: Vec::new(),
        };
        let instance = builder.input_on(input, &rx, None).build(make)?;
        let mut world = World::described(instance, meter, IDLE_POLL.mul_f64(*stretch), seed);
        let at_begin = read(&mut world, begin);
        let at_end = read(&mut world, end);
        let seconds = self.measured.as_secs_f64();
        let nanos = end.since(begin).as_nanos() as f64;
        let shares: Vec<f64> =
            at_end.busy.iter().zip(&at_begin.busy).map(|(end, begin)| (end - begin) / nanos).collect();
        let since = |count: fn(&Snapshot) -> u64| (count(&at_end.snapshot) - count(&at_begin.snapshot)) as f64;
        let received = since(Snapshot::received);
        let mut control_ms: Vec<f64> = world.control_took().iter().map(|took| took.as_secs_f64() * 1e3).collect();
        control_ms.sort_by(f64::total_cmp);
        let mut waits: Vec<u32> = world.finish().into_iter().flatten().collect();
        waits.iter_mut().for_each(|wait| *wait = (f64::from(*wait) / stretch) as u32);
        waits.sort_unstable();
        let control = |snapshot: &Snapshot| {
            snapshot.moves.buckets + snapshot.cpus.iter().map(|cpu| cpu.wakes_for_control).sum::<u64>()
        };
        Ok(Scaled {
            per_second: since(Snapshot::delivered) / seconds,
            lost: since(|snapshot| snapshot.dropped().total()) / received.max(1.0),
            busiest: shares.iter().copied().fold(0.0, f64::max),
            cpus: shares.iter().sum(),
            waits,
            memory: at_end.snapshot.memory.bytes(),
            reordered: at_end.snapshot.reordered().unwrap_or(0),
            control_per_second: since(control) / nanos * 1e9,
            packets: at_end.snapshot.received(),
            control_ms,
        })
    }
}

struct Reading {
    snapshot: Snapshot,
    busy: Vec<f64>,
}

fn read(world: &mut World<Served>, until: Timestamp) -> Reading {
    while world.now() < until && world.step() {}
    Reading { snapshot: world.handle().snapshot(), busy: world.busy() }
}

impl Work {
    fn slowed(self, by: f64) -> Self {
        match self {
            Self::Fixed(nanos) => Self::Fixed(nanos * by),
            Self::Exponential(nanos) => Self::Exponential(nanos * by),
        }
    }
}

#[derive(Debug)]
struct Served {
    meter: Arc<Meter>,
    cpu: usize,
    work: Work,
    chance: Chance,
    begin: Timestamp,
    waits: Vec<u32>,
    streams: Option<Arc<Streams>>,
}

impl Handler for Served {
    type Moved = ();
    type Report = Vec<u32>;

    fn handle(&mut self, batch: &mut Batch<'_>, cpu: &mut Cpu) {
        let now = cpu.now().as_nanos();
        let queue = batch.queue();
        self.meter.take(self.cpu, queue, batch.len());
        for packet in batch.iter_mut() {
            if let Some(arrived) = arrived(packet.data()).filter(|arrived| *arrived >= self.begin) {
                let wait = (now + self.meter.since_phase_began(self.cpu)).saturating_sub(arrived.as_nanos());
                self.waits.push(u32::try_from(wait).unwrap_or(u32::MAX));
            }
            let nanos = match self.work {
                Work::Fixed(nanos) => nanos,
                Work::Exponential(mean) => -self.chance.unit().ln() * mean,
            };
            self.meter.spend(self.cpu, nanos);
            if let Some((streams, flow)) = self.streams.as_ref().zip(flow_of(packet.data())) {
                streams.answer(queue, flow, now + self.meter.since_phase_began(self.cpu));
            }
        }
    }

    fn finish(self, _: &mut Cpu) -> Vec<u32> {
        self.waits
    }
}
