//! The commands that steer packets. Their packet functions say which packets stay on one CPU, so
//! `steerage explain` and a command cannot disagree.

use clap::ValueEnum;
use steerage::Handler;
use steerage_apps::{Count, Fanout};
use steerage_device::af_packet::Direction;
use steerage_explain::{Command, Operands};
use steerage_meter::Meter;
use steerage_router::Forward;

/// A command that steers packets: a value of `explain --for`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum SteeringCommand {
    #[default]
    Count,
    Meter,
    Fanout,
    Forward,
}

impl SteeringCommand {
    /// `asked` is the direction on the command line.
    pub(crate) fn direction(self, asked: Direction) -> Direction {
        match self {
            Self::Count | Self::Meter | Self::Fanout => asked,
            // If `forward` also received outgoing packets, it would receive the packets that it
            // sends.
            Self::Forward => Direction::In,
        }
    }

    pub(crate) fn explained(self) -> Command {
        let (name, affinity, operands) = match self {
            Self::Count => ("count", Count::AFFINITY, Operands::Inputs),
            Self::Meter => ("meter", Meter::AFFINITY, Operands::Inputs),
            Self::Fanout => ("fanout", Fanout::AFFINITY, Operands::InputsAndOutput),
            Self::Forward => ("forward", Forward::AFFINITY, Operands::Interfaces),
        };
        Command { name, affinity, operands }
    }
}
