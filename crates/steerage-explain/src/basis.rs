use std::time::Duration;

use steerage::Affinity;
use steerage_tune::{KernelLoad, Root};

use super::candidates::CandidateCpus;

/// A command that steers packets, such as `count`.
#[derive(Clone, Copy, Debug)]
pub struct Command {
    /// The name.
    pub name: &'static str,
    /// Which packets the packet function needs together on one CPU.
    pub affinity: Affinity,
    /// The operands of the command.
    pub operands: Operands,
}

/// The operands of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operands {
    /// Inputs.
    Inputs,
    /// Inputs, and an output.
    InputsAndOutput,
    /// Interfaces, each both an input and an output.
    Interfaces,
}

impl Command {
    /// Returns true if both directions of a flow stay on one CPU.
    pub fn keeps_both_directions(self) -> bool {
        self.affinity == Affinity::BothDirections
    }
}

/// A packet rate.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Packets per second.
    pub packets_a_second: f64,
    /// Where the rate comes from.
    pub from: RateFrom,
}

/// Where a rate comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateFrom {
    /// The rate of an interface, measured during the run.
    Listening,
    /// The average of a recording.
    Recording,
    /// The rate that the user stated.
    Asked,
}

/// What the advice is based on, besides the traffic.
#[derive(Debug)]
pub struct AdviceBasis {
    /// The command that should run.
    pub command: Command,
    /// The CPUs to choose from.
    pub candidates: CandidateCpus,
    /// The packet rate, if known.
    pub rate: Option<Rate>,
    /// The packet function's time per packet, if stated by the user.
    pub work: Option<Duration>,
    /// The devices, as the user wrote them.
    pub devices: Vec<String>,
    /// The interfaces among the devices.
    pub interfaces: Vec<InterfaceQueues>,
    /// A sentence about the packet metadata of each interface's network card.
    pub cards: Vec<String>,
    /// The kernel's CPU time on the packets, if the only device is an interface.
    pub kernel: Option<KernelLoad>,
}

/// An interface and its receive queues.
#[derive(Clone, Debug)]
pub struct InterfaceQueues {
    /// The name of the interface.
    pub name: String,
    /// The receive queues, or 1 if unknown.
    pub queues: usize,
}

impl InterfaceQueues {
    /// Reads the number of receive queues of an interface.
    pub fn read(name: &str) -> Self {
        Self { name: name.to_owned(), queues: Root::default().queues(name, "rx-").len().max(1) }
    }
}
