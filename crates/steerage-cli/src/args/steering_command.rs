//! The commands that steer packets. Their packet functions say which packets stay on one CPU, so
//! `steerage explain` and a command cannot disagree.

use clap::ValueEnum;
use steerage::{Affinity, Handler};
use steerage_apps::{Count, Fanout};
use steerage_explain::{Command, Operands};
use steerage_meter::Meter;
use steerage_router::Forward;

use super::DirectionArg;

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
    pub(crate) fn affinity(self) -> Affinity {
        match self {
            Self::Count => Count::AFFINITY,
            Self::Meter => Meter::AFFINITY,
            Self::Fanout => Fanout::AFFINITY,
            Self::Forward => Forward::AFFINITY,
        }
    }

    pub(crate) fn keeps_both_directions(self) -> bool {
        self.affinity() == Affinity::BothDirections
    }

    /// `asked` is the direction on the command line.
    pub(crate) fn direction(self, asked: DirectionArg) -> DirectionArg {
        match self {
            Self::Count | Self::Meter | Self::Fanout => asked,
            // `forward` sends through the interfaces to which it listens, and would receive its own
            // packets.
            Self::Forward => DirectionArg::In,
        }
    }

    pub(crate) fn explained(self) -> Command {
        let (name, operands) = match self {
            Self::Count => ("count", Operands::Inputs),
            Self::Meter => ("meter", Operands::Inputs),
            Self::Fanout => ("fanout", Operands::InputsAndOutput),
            Self::Forward => ("forward", Operands::Interfaces),
        };
        Command { name, affinity: self.affinity(), operands }
    }
}
