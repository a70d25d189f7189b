//! The information on which the advice of `steerage explain` is based, in addition to the traffic.

use std::fs;
use std::time::Duration;

use steerage::Affinity;
use steerage_tune::KernelLoad;

use super::candidates::CandidateCpus;

/// A command of the program `steerage` that steers packets, such as `count`.
#[derive(Clone, Copy, Debug)]
pub struct Command {
    /// The command's name on the command line.
    pub name: &'static str,
    /// Which packets the command's packet function needs together on one CPU.
    pub affinity: Affinity,
    /// What follows the name.
    pub operands: Operands,
}

/// The kind of operands (interfaces, for example) that a command needs on its command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operands {
    /// Inputs.
    Inputs,
    /// Inputs, and an output.
    InputsAndOutput,
    /// The operands are interfaces, and each interface is both an input and an output.
    Interfaces,
}

impl Command {
    /// Whether both directions of a flow stay on one CPU.
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
    /// The packet rate of an interface, as measured during the run.
    Listening,
    /// The average packet rate of a recording.
    Recording,
    /// The packet rate that the user specified.
    Asked,
}

/// The information on which the advice of `steerage explain` is based, in addition to the traffic.
#[derive(Debug)]
pub struct AdviceBasis {
    /// The command that should run.
    pub command: Command,
    /// The CPUs from which the advice chooses.
    pub candidates: CandidateCpus,
    /// The packet rate, if it is known.
    pub rate: Option<Rate>,
    /// The time that the packet function takes per packet, if the user stated this time.
    pub work: Option<Duration>,
    /// The names of the devices, as the user wrote them.
    pub devices: Vec<String>,
    /// The network interfaces among the devices.
    pub interfaces: Vec<InterfaceQueues>,
    /// For each interface, a sentence about the packet metadata that its network card provides.
    pub cards: Vec<String>,
    /// The CPU time that the kernel spent on the packets, if the only device is an interface.
    pub kernel: Option<KernelLoad>,
}

/// An interface, with the number of its receive queues.
#[derive(Clone, Debug)]
pub struct InterfaceQueues {
    /// The name of the interface.
    pub name: String,
    /// The number of receive queues, or 1 if the number cannot be read.
    pub queues: usize,
}

impl InterfaceQueues {
    /// Reads the number of receive queues of an interface of this machine.
    pub fn read(name: &str) -> Self {
        let entries = fs::read_dir(format!("/sys/class/net/{name}/queues")).into_iter().flatten().flatten();
        let is_rx = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with("rx-");
        Self { name: name.to_owned(), queues: entries.filter(is_rx).count().max(1) }
    }
}
