//! The commands that steer packets, and what each of them keeps together on one CPU.
//!
//! The answer comes from the command's own packet function, where the path takes it from too. So `explain` and the command
//! cannot disagree.

use clap::ValueEnum;
use steerage::{Affinity, Handler};
use steerage_apps::forward::Forward;
use steerage_apps::meter::Meter;
use steerage_apps::respond::Respond;
use steerage_apps::{Count, Fanout};

use crate::args::DirectionArg;

/// A command that steers packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Function {
    #[default]
    Count,
    Meter,
    Fanout,
    Forward,
    Respond,
}

impl Function {
    /// What its packet function keeps together.
    pub(crate) fn affinity(self) -> Affinity {
        match self {
            Self::Count => Count::AFFINITY,
            Self::Meter => Meter::AFFINITY,
            Self::Fanout => Fanout::AFFINITY,
            Self::Forward => Forward::AFFINITY,
            Self::Respond => Respond::AFFINITY,
        }
    }

    /// Whether a flow is both of its directions.
    pub(crate) fn keeps_both_directions(self) -> bool {
        self.affinity() == Affinity::BothDirections
    }

    /// Which of an interface's packets it receives; `asked` by the command line.
    pub(crate) fn direction(self, asked: DirectionArg) -> DirectionArg {
        match self {
            Self::Count | Self::Meter | Self::Fanout => asked,
            // They send by the same interface, and would receive that again.
            Self::Forward | Self::Respond => DirectionArg::In,
        }
    }

    /// Its name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Count => "count",
            Self::Meter => "meter",
            Self::Fanout => "fanout",
            Self::Forward => "forward",
            Self::Respond => "respond",
        }
    }
}
