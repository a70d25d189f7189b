//! The options that the caller chooses for a run.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use steerage_apps::parallel::Together;
use steerage_capture::CaptureInfo;

/// The options of a run. [`Options::new`] sets the defaults.
#[derive(Clone, Debug)]
pub struct Options {
    /// The number of jobs: at least 1, and at most
    /// [`OUTPUTS_MAX`](steerage::limits::OUTPUTS_MAX).
    pub jobs: usize,
    /// The program of each job and its arguments. In every word of the command, `{n}` stands for
    /// the number of the job, counted from 1, and `{jobs}` stands for the number of jobs. Three
    /// placeholders choose how the job gets its packets. `{fifo}` stands for the path of a pipe,
    /// `{file}` for the path of a complete file, and `{tap}` for the name of an interface. Without
    /// any of these placeholders, the job reads its packets from standard input.
    pub command: Vec<OsString>,
    /// Which packets must go to the same job.
    pub together: Together,
    /// The format in which jobs read packets.
    pub format: Format,
    /// True if jobs get the inner frames of tunnels, without the outer headers (VXLAN, Geneve, GRE,
    /// ERSPAN, TZSP and MPLS).
    pub strip_tunnels: bool,
    /// A job is killed if it reads nothing for this time although packets wait. With `None`, no job
    /// is killed.
    pub job_timeout: Option<Duration>,
    /// Where the output of the jobs goes.
    pub collect: Collect,
    /// True if standard error is a terminal on which the progress line may be drawn.
    pub draws_progress: bool,
    /// Creates the process in which a job that reads a `{file}` waits until its file is complete.
    /// If the value is `None`, the program of the job is started when the file is complete.
    pub waiting_process: Option<WaitingProcess>,
}

impl Options {
    /// Returns the options for `jobs` copies of this command. Each flow stays in one job, and the
    /// lines of the jobs are printed in the order in which they arrive.
    pub fn new(jobs: usize, command: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        Self {
            jobs,
            command: command.into_iter().map(Into::into).collect(),
            together: Together::default(),
            format: Format::default(),
            strip_tunnels: false,
            job_timeout: None,
            collect: Collect::default(),
            draws_progress: false,
            waiting_process: None,
        }
    }
}

/// A function that returns the command of a waiting process. The process
/// [waits](crate::start_when_ready), and then becomes `program`. The arguments of `program` are
/// appended to the command.
///
/// A process in a sandbox cannot start programs while packets flow, so it starts the waiting
/// processes of all jobs before.
pub type WaitingProcess = fn(program: &OsStr) -> Command;

/// The format of the capture that jobs read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// The format of the input, or [`PcapNanos`](Self::PcapNanos) if the input is not a file.
    #[default]
    AsInput,
    /// pcap with microseconds.
    Pcap,
    /// pcap with nanoseconds.
    PcapNanos,
    /// pcapng.
    Pcapng,
}

/// Where the output of the jobs goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Collect {
    /// The outputs are merged and written to standard output.
    Merged {
        /// The order of lines, elements and packets.
        order: Order,
        /// True if each line begins with the number of the job and a tab.
        tag: bool,
        /// The number of lines at the start of each output that are printed only once. `None` means
        /// 1 if the command is a tshark with the option for a header, and otherwise 0.
        header: Option<usize>,
    },
    /// The jobs write to standard output themselves, so their lines may mix.
    Unmerged,
    /// The outputs go to files. Job N runs in the subdirectory N of this directory, and its output
    /// goes to the files `stdout` and `stderr` in the subdirectory.
    Results(PathBuf),
}

impl Default for Collect {
    fn default() -> Self {
        Self::Merged { order: Order::Any, tag: false, header: None }
    }
}

impl Collect {
    pub(super) fn order(&self) -> Order {
        match self {
            Self::Merged { order, .. } => *order,
            Self::Unmerged | Self::Results(_) => Order::Any,
        }
    }
}

/// The order of the merged output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Lines in the order in which they arrive, and packets by time.
    #[default]
    Any,
    /// The output of job 1, then the output of job 2, and so on.
    Job,
    /// Sorted by the times at the start of lines, or by the times of packets.
    Time,
}

/// The known facts about the input before its packets are read.
#[derive(Clone, Debug, Default)]
pub struct InputInfo {
    /// The capture files, if the input has any.
    pub capture: Option<Arc<CaptureInfo>>,
    /// True if all inputs can wait, as files can.
    pub can_wait: bool,
    /// True if capture files are replayed at a certain rate.
    pub is_paced: bool,
}
