//! Explains which CPU handles which packets, how evenly the packets would be spread over the CPUs,
//! and which settings to change.
//!
//! [`Analyze`] is a packet function that makes an [`Analysis`] of a device's traffic. An
//! [`Explanation`] shows one packet in detail, the busiest CPU's share for several numbers of CPUs,
//! the largest flows, and traffic that cannot be spread. The advice says how many CPUs, which mask
//! and which hash to use, with the commands for steerage and for the kernel. The advice is based on
//! the costs per packet that the policy `balance` assumes.
//!
//! ```
//! use steerage::flow::{FlowHasher, HashKey, Layers};
//! use steerage::{Affinity, Builder};
//! use steerage_explain::{
//!     AdviceBasis, Analyze, CandidateCpus, Command, Explanation, Operands, Subject, TrafficExplanation,
//! };
//!
//! let hasher = FlowHasher::keyed(&HashKey::MICROSOFT);
//! let input = steerage_device::open("synthetic:packets=1000,flows=100")?;
//! let builder = Builder::new().virtual_cpus(1).input(input).always_hash(true).hash(hasher.clone());
//! let analyze = move |_cpu| Analyze::<true>::new(hasher.clone(), Layers::Inner, 1);
//! let mut outcome = builder.build(analyze)?.start()?.join();
//!
//! let command = Command { name: "count", affinity: Affinity::BothDirections, operands: Operands::Inputs };
//! let basis = AdviceBasis {
//!     command,
//!     candidates: CandidateCpus::even(4),
//!     rate: None,
//!     work: None,
//!     devices: vec!["synthetic".to_owned()],
//!     interfaces: Vec::new(),
//!     cards: Vec::new(),
//!     kernel_backlog: None,
//!     kernel: None,
//! };
//! let traffic = TrafficExplanation {
//!     device: "synthetic".to_owned(),
//!     survey: outcome.reports.remove(0).1,
//!     snapshot: outcome.snapshot,
//!     packet: 1,
//!     layers: Layers::Inner,
//!     basis,
//! };
//! let what = Subject::Traffic(Box::new(traffic));
//! let explanation = Explanation { what, command, hash: "aes".into(), random_key: false, top: 10 };
//! assert!(explanation.to_string().starts_with("synthetic  1,000 packets"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | file | content |
//! |---|---|
//! | `page`, `json` | the explanation as text, and as one line of JSON |
//! | `suggest` | the advice: how many CPUs, which mask, which hash, and the commands |
//! | `kernel` | what the kernel spends on an interface, and whether another mask would help |
//! | `advice` | notes about traffic that cannot be spread |
//! | `shares` | how an even map divides traffic among CPUs |
//! | `explained` | [`Explanation`]: what is explained |
//! | `basis`, `candidates` | what the advice is based on: the command, the rate, the CPUs |
//! | `analysis` | [`Analyze`]: the packet function |
//!
//! Each file imports only files from rows below its own row in the table.
#![forbid(unsafe_code)]

mod advice;
mod analysis;
mod basis;
mod candidates;
mod explained;
mod json;
mod kernel;
mod page;
mod shares;
mod suggest;

pub use analysis::{ANALYSIS_FLOWS_MAX, Analysis, Analyze, AnalyzedFlow, PacketDetail, Volume};
pub use basis::{AdviceBasis, Command, InterfaceQueues, Operands, Rate, RateFrom};
pub use candidates::CandidateCpus;
pub use explained::{Explanation, FlowExplanation, Subject, TrafficExplanation};
