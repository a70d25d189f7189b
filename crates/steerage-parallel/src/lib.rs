//! Divides the packets of a capture among many copies of a single-threaded tool.
//!
//! tshark, tcpdump, Zeek and many other tools read packets on only one CPU. This crate starts
//! several copies of such a tool, the *jobs*, and splits the packets of a capture or an interface
//! among them. A job gets all packets of its flows in order: both directions and all fragments. The
//! outputs of the jobs are merged, as if a single copy of the tool had written them.
//!
//! ```
//! use steerage_capture::CaptureOptions;
//! use steerage_parallel::{Collect, Options, Order};
//!
//! // Two copies of `wc -c` print how many bytes of capture each of them has read.
//! let mut options = Options::new(2, ["wc", "-c"]);
//! options.collect = Collect::Merged { order: Order::Job, tag: true, header: None };
//! let input = steerage_device::open_all(&["synthetic:packets=1000,flows=100"], &CaptureOptions::new())?;
//! let summary = steerage_parallel::run(options, input)?;
//! assert_eq!((summary.delivered, summary.lost, summary.failed), (1000, 0, 0));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`run()`] does all steps of a run. Programs that need their own instance, with a sandbox,
//! signals or reports, use [`Parallel`], which offers the steps one by one.
//!
//! A single CPU reads and splits the packets, because splitting costs little compared with the work
//! of the jobs. If the input is a file, reading pauses while the jobs have enough packets, so no
//! packet is lost. If packets of a live input arrive too fast for a job, some packets are lost, and
//! the [`Summary`] counts the lost packets. One thread reads and merges the outputs of all jobs.
//! Output that must wait is stored in unnamed temporary files. Another thread reports jobs that
//! read nothing, and kills jobs that still run after they should have ended.
//!
//! | file | content |
//! |---|---|
//! | `parallel` | [`Parallel`]: the steps of a run, and [`run()`] |
//! | `watch` | observes the jobs until all have ended |
//! | `jobs` | all jobs, as the threads of a run share them |
//! | `summary` | the results of the jobs, and whether splitting paid |
//! | `job` | the process of a job, from its start until it is reaped |
//! | `merge`, `sink` | merge the output of all jobs |
//! | `header`, `elements`, `times`, `kind`, `lines` | the kinds of output, and how each is cut |
//! | `spool` | output that waits for its turn |
//! | `gate` | a process that waits until it may become the program of a job |
//! | `feed` | how packets get to a job: a pipe, a file or an interface |
//! | `results` | the directories with the output of each job |
//! | `inherited` | a pipe or a file without a name, which a job inherits |
//! | `brake` | pauses reading while the jobs have enough input |
//! | `console`, `template` | standard error; the command of each job |
//! | `options`, `error` | what the caller decides; every error |
//!
//! Each file in this table imports only from files below it.
//!
//! Error messages name the options of `steerage parallel`, with which most people see them.
#![forbid(unsafe_code)]

mod brake;
mod console;
mod elements;
mod error;
mod feed;
mod gate;
mod header;
mod inherited;
mod job;
mod jobs;
mod kind;
mod lines;
mod merge;
mod options;
mod parallel;
mod results;
mod sink;
mod spool;
mod summary;
mod template;
mod times;
mod watch;

pub use error::Error;
pub use gate::start_when_ready;
pub use options::{Collect, Format, InputInfo, Options, Order, WaitingProcess};
pub use parallel::{Attended, Finished, Parallel, Stopper, run};
pub use steerage_apps::parallel::Together;
pub use summary::{JobSummary, Lost, Summary};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
