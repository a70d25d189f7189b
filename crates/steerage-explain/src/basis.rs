use std::time::Duration;

use steerage::Affinity;
use steerage_tune::{KernelLoad, Root};

use super::candidates::CandidateCpus;

/// A command that steers packets, such as `count`.
#[derive(Clone, Copy, Debug)]
pub struct Command {
    /// The name of the command.
    pub name: &'static str,
    /// Which packets the command's packet function needs together on one CPU.
    pub affinity: Affinity,
    /// The kind of operands that the command has.
    pub operands: Operands,
}

/// The kind of operands that a command has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operands {
    /// The command's operands are inputs.
    Inputs,
    /// The command's operands are inputs and an output.
    InputsAndOutput,
    /// The command's operands are interfaces, each of which is both an input and an output.
    Interfaces,
}

impl Command {
    /// Returns true if the command needs that both directions of a flow stay on one CPU.
    pub fn keeps_both_directions(self) -> bool {
        self.affinity == Affinity::BothDirections
    }
}

/// A packet rate, and its origin.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// The rate in packets per second.
    pub packets_a_second: f64,
    /// The origin of the rate.
    pub from: RateFrom,
}

/// The origin of a packet rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateFrom {
    /// The rate was measured on an interface during the run.
    Listening,
    /// The rate is the average of a recording (a capture file).
    Recording,
    /// The user stated the rate.
    Asked,
}

/// The facts on which the advice is based, in addition to the traffic.
#[derive(Debug)]
pub struct AdviceBasis {
    /// The command of steerage for which the advice is given.
    pub command: Command,
    /// The CPUs from which the advice chooses.
    pub candidates: CandidateCpus,
    /// The packet rate, if known.
    pub rate: Option<Rate>,
    /// The packet function's time per packet, if the user stated it.
    pub work: Option<Duration>,
    /// The devices, as the user wrote them.
    pub devices: Vec<String>,
    /// The devices that are interfaces, with their queues.
    pub interfaces: Vec<InterfaceQueues>,
    /// A sentence about the packet metadata of each interface's network card.
    pub cards: Vec<String>,
    /// The kernel's `netdev_max_backlog`, which the advice never lowers. `None` if unknown.
    pub kernel_backlog: Option<u64>,
    /// The CPU time that the kernel spent on the packets, if the only device is an interface.
    pub kernel: Option<KernelLoad>,
}

/// An interface and the number of its receive queues.
#[derive(Clone, Debug)]
pub struct InterfaceQueues {
    /// The name of the interface.
    pub name: String,
    /// The number of receive queues, or 1 if unknown.
    pub queues: usize,
}

impl InterfaceQueues {
    /// Reads the number of receive queues of an interface.
    pub fn read(name: &str) -> Self {
        Self { name: name.to_owned(), queues: Root::default().queues(name, "rx-").len().max(1) }
    }
}
