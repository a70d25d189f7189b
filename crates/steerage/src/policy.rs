//! Which CPUs of a mask have buckets, and which: by hash alone, as Linux, or by load.
//!
//! A policy says where buckets should be; that they get there in order is the business of moves. Each steering group has a
//! policy of its own. It is asked when its mask or the CPUs that can be used change, and, as often as it wants to be, what it
//! makes of the load.

mod balance;
mod spread;
#[cfg(test)]
mod tests;

use std::fmt;
use std::time::Duration;

use steerage_mem::hash::FlowKey;

use crate::cpu::CpuId;
use crate::ledger::MoveCause;
use crate::limits::{BUCKETS, LOOK_EVERY};
use crate::platform::Timestamp;

pub use balance::Balance;

/// What one CPU had to do, as a share of its time: 1 is all of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct CpuLoad {
    /// Busy with whatever it is. Above 1 where its backlog overflowed: what it would have taken to do it all.
    pub busy: f64,
    /// Of that, receiving: polling, hashing, handing over.
    pub receive: f64,
    /// In which share of its rounds there was at least as much to do as is done at a time. A CPU without that keeps up, however
    /// busy it seems: little at a time takes more time for each packet.
    pub full: f64,
    /// Packets of the group that it was done with.
    pub packets: u64,
    /// What others took of it, as far as it is known: other programs, a hypervisor's other guests.
    pub others: f64,
}

/// A measurement long enough to tell buckets apart, in which nothing moved.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Window<'a> {
    /// By CPU, over the whole window.
    pub cpus: &'a [CpuLoad],
    /// For each bucket, which share of a CPU's time it takes. In all, what the CPUs were busy with the group's packets.
    pub buckets: &'a [f64],
    /// How many samples that rests on.
    pub samples: u64,
}

/// A steering group as its policy sees it. CPUs are told by their places among the instance's, from 0.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct GroupLoad<'a> {
    /// The time now.
    pub now: Timestamp,
    /// Since the last look.
    pub elapsed: Duration,
    /// The CPUs of the mask that can be used, in the order in which they are to join; not empty.
    pub order: &'a [u16],
    /// How many of these poll a queue of the group: they come first. At least 1; where none does, the first stands in.
    pub owners: usize,
    /// For each bucket its CPU.
    pub map: &'a [u16; BUCKETS],
    /// What each CPU did since the last look.
    pub cpus: &'a [CpuLoad],
    /// One way of a cache line between the first of `order` and each CPU, as it was measured last; `None`: not yet.
    pub apart: &'a [Option<Duration>],
    /// Longer, and to the buckets: now and then.
    pub window: Option<Window<'a>>,
}

/// Where buckets should be.
#[derive(Clone, Debug, PartialEq)]
pub struct Wish {
    /// For each bucket the place of its CPU, one of those that can be used.
    pub map: Box<[u16; BUCKETS]>,
    /// Why.
    pub cause: MoveCause,
}

/// Says where buckets should be.
pub trait Policy: Send + fmt::Debug {
    /// Its name, in one word.
    fn name(&self) -> &'static str;

    /// Another one with the same settings that has seen nothing.
    fn fresh(&self) -> Box<dyn Policy>;

    /// Which CPUs are to have buckets, in equal shares, now that the mask or the CPUs that can be used have changed: a number of
    /// those in `order`, not none. `owners` of them, the first, poll a queue of the group. `active` have buckets now; where all
    /// of these can be used and nothing is to change, `None`.
    fn active(&mut self, order: &[u16], owners: usize, active: &[u16]) -> Option<Vec<u16>>;

    /// How often it wants to look at loads; `None`: never, and then nothing is measured for it.
    fn look_every(&self) -> Option<Duration> {
        Some(LOOK_EVERY)
    }

    /// A look at the load. Not while buckets move.
    fn look(&mut self, load: &GroupLoad<'_>) -> Option<Wish>;

    /// After a look: the CPU of which it wants to know how far it is from the first of the order. Measuring that takes both of
    /// them some microseconds, and wakes the other, so it is done every [`DISTANCE_EVERY`](crate::DISTANCE_EVERY) at most and less often the
    /// less it changes; and not where CPUs are not the machine's own.
    fn asks_distance(&self) -> Option<u16> {
        None
    }

    /// What it has come to.
    fn findings(&self) -> Findings {
        Findings::default()
    }
}

/// The names of the policies that are here.
pub const POLICIES: [&str; 3] = ["balance", "hash", "dry-run"];

/// The policy of that name, one of [`POLICIES`]; `None` if there is none.
pub fn policy(name: &str) -> Option<Box<dyn Policy>> {
    match name {
        "balance" => Some(Box::new(Balance::new())),
        "hash" => Some(Box::new(Hash)),
        "dry-run" => Some(Box::new(Balance::dry_run())),
        _ => None,
    }
}

impl Policy for Box<dyn Policy> {
    fn name(&self) -> &'static str {
        (**self).name()
    }

    fn fresh(&self) -> Box<dyn Policy> {
        (**self).fresh()
    }

    fn active(&mut self, order: &[u16], owners: usize, active: &[u16]) -> Option<Vec<u16>> {
        (**self).active(order, owners, active)
    }

    fn look_every(&self) -> Option<Duration> {
        (**self).look_every()
    }

    fn look(&mut self, load: &GroupLoad<'_>) -> Option<Wish> {
        (**self).look(load)
    }

    fn asks_distance(&self) -> Option<u16> {
        (**self).asks_distance()
    }

    fn findings(&self) -> Findings {
        (**self).findings()
    }
}

/// What a policy has found out.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Findings {
    /// CPUs that joined, so far.
    pub joined: u64,
    /// CPUs that left, so far.
    pub left: u64,
    /// The busiest CPU's load over the best that the buckets allow, when that was last measured.
    pub uneven: Option<f64>,
    /// One way of a cache line from the CPU that receives to the one that joined or is next, as it was measured last; `None` where
    /// it did not matter.
    pub apart: Option<Duration>,
    /// Handing packets over has paid where the function took so long for one, as far apart as CPUs are now.
    pub pays_at: Option<Duration>,
    /// It has not paid where the function took so long.
    pub fails_at: Option<Duration>,
    /// Buckets that would overfill a CPU or come near, with the share of one that each takes; the heaviest first.
    pub elephants: Vec<(u16, f64)>,
    /// Of a dry run: how many buckets it would move now.
    pub would_move: Option<usize>,
}

/// Equal shares of the hash to all CPUs of the mask, whatever the load: as Linux.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hash;

impl Policy for Hash {
    fn name(&self) -> &'static str {
        "hash"
    }

    fn fresh(&self) -> Box<dyn Policy> {
        Box::new(*self)
    }

    fn active(&mut self, order: &[u16], _owners: usize, _active: &[u16]) -> Option<Vec<u16>> {
        Some(order.to_vec())
    }

    fn look_every(&self) -> Option<Duration> {
        None
    }

    fn look(&mut self, _load: &GroupLoad<'_>) -> Option<Wish> {
        None
    }
}

/// The state of a group's steering, as it is shown.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct GroupSnapshot {
    /// The policy's name.
    pub policy: &'static str,
    /// The receive queues in it, numbered over all inputs.
    pub queues: Vec<usize>,
    /// The CPUs that have buckets, in the order in which they joined.
    pub active: Vec<CpuId>,
    /// Its heaviest buckets, where there are any that come near to filling a CPU.
    pub elephants: Vec<Elephant>,
    /// What the policy has found out.
    pub findings: Findings,
}

/// A bucket that takes much of a CPU alone.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Elephant {
    /// Its number.
    pub bucket: u16,
    /// What it takes, as a share of a CPU's time.
    pub load: f64,
    /// The flow that most of its packets are of, seen as its sender does; `None` if no flow stands out, or not enough was seen.
    pub flow: Option<FlowKey>,
}
