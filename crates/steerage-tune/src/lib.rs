//! Changes settings of the kernel's own receive steering, measures whether a change helps, and
//! keeps or undoes the change.
//!
//! | module | purpose |
//! |---|---|
//! | `root` | [`Root`]: /sys and /proc below a directory, which tests replace |
//! | `machine` | [`Machine`]: reads and writes a [`Knob`], which is a file or a value of ethtool |
//! | `knob` | [`Knob`]: the name of a value, and the command that sets it |
//! | `setting` | [`Setting`]: the values of knobs |
//! | `stage` | [`STAGES`]: the table of stages |
//! | `plan` | a [`Wish`] becomes a [`Plan`] of [`Change`]s |
//! | [`irq`] | the interrupts of a card, and irqbalance |
//! | `unit` | the name of the systemd unit of an interface |
//! | `undo` | [`Undo`]: the file by which everything is restored |
//! | `lock` | [`Lock`]: one `tune` at a time for each interface |
//! | [`link_file`] | a setting as a .link file of systemd |
//! | `watch` | keeps a setting while links, queues and CPUs come and go |
//! | `guard` | whether this machine is reached through an interface |
//! | `distance` | how far CPUs are from the CPU that receives |
//! | [`facts`] | what the machine and the interface report |
//! | [`candidates`] | the settings that are worth measuring |
//! | `load` | [`KernelLoad`]: what the kernel spent on the packets of an interface |
//! | [`scoped`] | what `--global`, `--irq` and `--allow-reset` try |
//! | [`measure`] | measures settings in turn |
//! | [`purpose`] | what a card needs for a capture or a program with AF_XDP |
//! | [`verdict`] | decides from the counters whether a setting is kept |
#![forbid(unsafe_code)]

pub mod candidates;
mod distance;
mod error;
pub mod facts;
mod guard;
pub mod irq;
mod knob;
pub mod link_file;
mod load;
mod lock;
mod machine;
pub mod measure;
mod plan;
pub mod purpose;
mod root;
pub mod scoped;
mod setting;
mod stage;
mod undo;
mod unit;
pub mod verdict;
mod watch;

pub use distance::Distances;
pub use error::TuneError;
pub use guard::reached_through;
pub use knob::Knob;
pub use load::{CpuLoad, KernelLoad};
pub use lock::Lock;
pub use machine::Machine;
pub use plan::{Change, Plan, Stages, Value, Wish};
pub use root::Root;
pub use setting::{Difference, Setting};
pub use stage::{Kind, STAGES, Scope, Stage};
pub use undo::{Restored, Undo, create_directory};
pub use watch::{SetAgain, Watch, WatchCounts, Watched};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
