//! The commands that steer packets, and which packets each command keeps together on one CPU.
//!
//! The answers come from the packet function of each command, as on the packet path. Therefore
//! `steerage explain` and the command cannot disagree.

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
    /// Returns which packets the command's packet function keeps on one CPU.
    pub(crate) fn affinity(self) -> Affinity {
        match self {
            Self::Count => Count::AFFINITY,
            Self::Meter => Meter::AFFINITY,
            Self::Fanout => Fanout::AFFINITY,
            Self::Forward => Forward::AFFINITY,
        }
    }

    /// Returns true if both directions of a flow stay on one CPU.
    pub(crate) fn keeps_both_directions(self) -> bool {
        self.affinity() == Affinity::BothDirections
    }

    /// Returns the direction of the packets that the command receives from an interface, if the
    /// command line requests the direction `asked`.
    pub(crate) fn direction(self, asked: DirectionArg) -> DirectionArg {
        match self {
            Self::Count | Self::Meter | Self::Fanout => asked,
            // `forward` sends through the interfaces to which it listens. In the other direction,
            // it would receive the packets that it has sent.
            Self::Forward => DirectionArg::In,
        }
    }

    /// Returns the command in the form that `steerage_explain` uses.
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
