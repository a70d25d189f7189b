//! Sets the kernel's own receive steering, measures whether it helped, and keeps it or takes it back.
//!
//! | module | purpose |
//! |---|---|
//! | `root` | [`Root`]: /sys and /proc below a directory, which tests replace |
//! | `machine` | [`Machine`]: reads and writes a [`Knob`], which is a file or a value of ethtool |
//! | `setting` | [`Setting`]: the values of knobs |
//! | `stage` | [`STAGES`]: the table of stages |
//! | `plan` | a [`Wish`] becomes a [`Plan`] of [`Change`]s |
//! | [`irq`] | the interrupts of a card, and irqbalance |
//! | [`facts`] | what the machine and the interface report |
//! | [`measure`] | measures settings in turn |
#![forbid(unsafe_code)]

mod error;
pub mod facts;
pub mod irq;
mod machine;
pub mod measure;
mod plan;
mod root;
mod setting;
mod stage;

pub use error::TuneError;
pub use machine::{Machine, same};
pub use plan::{Change, Plan, Stages, Value, Wish};
pub use root::Root;
pub use setting::{Difference, Knob, Setting};
pub use stage::{Kind, STAGES, Scope, Stage};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
