//! Policies decide which CPUs of a mask handle packets. [`Hash`](struct@Hash) gives all CPUs equal
//! shares of the flow hash, as Linux does. [`Balance`] moves buckets according to the load.
//!
//! Programs can implement the trait [`Policy`]. The core moves buckets without reordering.
//!
//! Policies run outside of the packet path. [`PolicyControl`] reads the load and calls the
//! policies, on the thread of its caller, through the core's public
//! [`Handle`](steerage_core::control::Handle). Packets never wait for the control: if it is called
//! late or never, buckets stay on their CPUs, and if a CPU fails, the core assigns its buckets by
//! the stored [`Plan`]. steerage starts a thread that calls the policy control; programs with their
//! own threads, and the simulator, call it themselves.
//!
//! Each module imports only from modules that are below it in this table:
//!
//! | module | what it holds |
//! |---|---|
//! | `thread` | [`SharedControl`]: the control for several threads, and the thread that calls it |
//! | `names` | policies by name: [`POLICIES`] |
//! | `control` | [`PolicyControl`]: one policy per steering group, and what they share |
//! | `balance` | steering by load: [`Balance`], and its model of costs: [`predict`] |
//! | `load`, `distances`, `elephants` | the load meter, the distance between CPUs, and the flow that fills a bucket |
//! | `receivers` | which CPU polls a queue |
//! | `activity` | whether the instance is idle |
//! | `guarded`, `tester` | replaces a policy that fails; tests of policies: [`PolicyTester`] |
//! | `packing` | assigns buckets to CPUs by their loads |
//! | `policy` | the trait, its input and its output |
//! | `limits` | every limit, with its reason |
#![forbid(unsafe_code)]

mod activity;
mod balance;
mod control;
mod distances;
mod elephants;
mod guarded;
mod limits;
mod load;
mod names;
mod others;
mod packing;
mod policy;
mod receivers;
mod tester;
#[cfg(test)]
mod tests;
mod thread;

pub use activity::Activity;
pub use balance::{Balance, Costs, PathCosts, Prediction, RegimeKind, Workers, predict};
pub use control::{PolicyControl, Setting, first_plan, policy_info};
pub use distances::is_same_distance;
pub use guarded::Guarded;
pub use limits::{REFINE_EVERY, REFINE_EVERY_MAX, REFINE_RETRY};
pub use names::{POLICIES, UnknownPolicy};
pub use policy::{CpuLoad, GroupLoad, GroupStart, Hash, MapRequest, Policy, Window};
pub use steerage_core::placement::Plan;
pub use tester::PolicyTester;
pub use thread::{ControlThread, SharedControl};
