//! What the caller decides about a run.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use steerage_apps::parallel::Together;
use steerage_capture::CaptureInfo;

/// The options of a run. [`Options::new`] has the defaults.
#[derive(Clone, Debug)]
pub struct Options {
    /// The number of jobs: at least 1, and at most
    /// [`OUTPUTS_MAX`](steerage::limits::OUTPUTS_MAX).
    pub jobs: usize,
    /// The program of each job and its arguments. In every word, `{n}` stands for the number of the
    /// job, from 1, and `{jobs}` for the number of jobs. One of these words says how the job gets its
    /// packets: `{fifo}` is the path of a pipe, `{file}` of a complete file, and `{tap}` the name of
    /// an interface. Without any of them, the packets come on standard input.
    pub command: Vec<OsString>,
    /// Which packets must go to the same job.
    pub together: Together,
    /// The format in which jobs read packets.
    pub format: Format,
    /// Whether jobs get the inner frame of tunnels (VXLAN, Geneve, GRE, ERSPAN, TZSP and MPLS).
    pub strip_tunnels: bool,
    /// Kills a job that reads nothing for this time although packets wait. `None` kills none.
    pub job_timeout: Option<Duration>,
    /// Where the output of the jobs goes.
    pub collect: Collect,
    /// Whether standard error is a terminal on which a line with the progress may be redrawn.
    pub draws_progress: bool,
    /// The process in which a job that reads a `{file}` waits until its file is complete. Without
    /// such a process, the program of the job is started at that time.
    pub waiting_process: Option<WaitingProcess>,
}

impl Options {
    /// Runs `jobs` copies of this command, which keep flows together and whose lines are printed as
    /// they come.
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

/// Makes the command of a process that [waits](crate::start_when_ready) until it becomes this
/// program. The arguments of the program are appended to the command.
///
/// A process that is confined to a sandbox cannot start programs once packets flow, so it starts all
/// processes of its jobs before.
pub type WaitingProcess = fn(program: &OsStr) -> Command;

/// The format of the capture that jobs read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// The format of the input, or [`PcapNanos`](Self::PcapNanos) if the input is no file.
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
    /// To standard output, as one output.
    Merged {
        /// The order of lines, elements and packets.
        order: Order,
        /// Whether each line begins with the number of the job and a tab.
        tag: bool,
        /// The number of lines at the start of each output that are printed only once. `None` is 1
        /// for a tshark that was asked for a header, and else 0.
        header: Option<usize>,
    },
    /// The jobs write to standard output themselves, so their lines may mix.
    Unmerged,
    /// To files: job N runs in the subdirectory N of this directory, which gets the files `stdout`
    /// and `stderr`.
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
    /// Lines as they come, and packets by time.
    #[default]
    Any,
    /// The output of job 1, then that of job 2, and so on.
    Job,
    /// By the times at which lines begin, and by the times of packets.
    Time,
}

/// What is known about the input before its packets are read.
#[derive(Clone, Debug, Default)]
pub struct InputInfo {
    /// The capture files, if the input has any.
    pub capture: Option<Arc<CaptureInfo>>,
    /// Whether all inputs can wait, as files can.
    pub can_wait: bool,
    /// Whether files are replayed at a pace.
    pub is_paced: bool,
}
