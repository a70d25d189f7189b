//! Sets the kernel's own receive steering, measures whether it helped, keeps it or takes it back.
//!
//! | module | purpose |
//! |---|---|
//! | `root` | [`Root`]: /sys and /proc below a directory, which tests replace |
//! | `machine` | [`Machine`]: reads and writes a [`Knob`], which is a file or a value of ethtool |
//! | `setting` | [`Setting`]: the values of knobs |
//! | `stage` | [`Stages`]: the table of stages; [`Wish`] becomes a [`Plan`] of [`Change`]s |
//! | [`facts`] | what the machine and the interface report |
//! | [`candidates`] | the settings that are worth measuring |
//! | [`measure`] | measures settings in turn |
//! | [`verdict`] | decides from the counters whether a setting is kept |
#![forbid(unsafe_code)]

pub mod candidates;
mod error;
pub mod facts;
mod machine;
pub mod measure;
mod root;
mod setting;
mod stage;
pub mod verdict;

pub use error::TuneError;
pub use machine::Machine;
pub use root::Root;
pub use setting::{Knob, Setting, same};
pub use stage::{Change, Kind, Plan, Scope, Stage, Stages, Value, Wish};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
