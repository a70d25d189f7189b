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
    /// The number of jobs, from 1 to [`OUTPUTS_MAX`](steerage::limits::OUTPUTS_MAX).
    pub jobs: usize,
    /// The command of each job: a program and its arguments, in which `{n}` stands for the number
    /// of the job, counted from 1, and `{jobs}` for the number of jobs. The job gets its packets
    /// through `{fifo}` (the path of a pipe), `{file}` (the path of a complete file), `{tap}` (the
    /// name of a network interface) or, without these placeholders, standard input.
    pub command: Vec<OsString>,
    /// Determines which packets must go to the same job, such as all packets of a flow.
    pub together: Together,
    /// The capture format in which jobs read their packets.
    pub format: Format,
    /// If true, jobs get the inner frames of tunnels (VXLAN, Geneve, GRE, ERSPAN, TZSP and MPLS).
    pub strip_tunnels: bool,
    /// A job is killed if it reads nothing for this time although packets wait for it.
    pub job_timeout: Option<Duration>,
    /// The destination of the jobs' output.
    pub collect: Collect,
    /// True if standard error is a terminal on which the progress line may be drawn.
    pub draws_progress: bool,
    /// For each job that reads a `{file}`, starts a process that waits until the file is complete.
    /// If `None`, the program of the job is started when the job's file is complete.
    pub waiting_process: Option<WaitingProcess>,
}

impl Options {
    /// Returns the defaults: each flow stays in one job, and lines are printed as they arrive.
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

/// Returns the command for a process that calls [`start_when_ready`](crate::start_when_ready),
/// which waits until the packets are complete and then executes `program`. This crate appends the
/// arguments of `program`.
///
/// A process in a sandbox cannot start programs while packets flow, so it starts the waiting
/// processes before it enters the sandbox.
pub type WaitingProcess = fn(program: &OsStr) -> Command;

/// The format of the captures that jobs read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// The format of the input file, or [`PcapNanos`](Self::PcapNanos) if the input is not a file.
    #[default]
    AsInput,
    /// pcap with microseconds.
    Pcap,
    /// pcap with nanoseconds.
    PcapNanos,
    /// pcapng.
    Pcapng,
}

/// The destination of the jobs' output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Collect {
    /// The outputs of the jobs are merged and written to standard output.
    Merged {
        /// The order of the lines, JSON elements or packets in the merged output.
        order: Order,
        /// True if each line of the merged output begins with the number of the job and a tab.
        tag: bool,
        /// The number of header lines at the start of each job's output, which the merged output
        /// has only once. `None` means one line for tshark with `-E header=y`, and otherwise none.
        header: Option<usize>,
    },
    /// The jobs write directly to standard output, so the lines of different jobs may be mixed.
    Unmerged,
    /// Job N runs in the subdirectory `N` of this directory, and writes the files `stdout` and
    /// `stderr` to the subdirectory.
    Results(PathBuf),
}

impl Default for Collect {
    fn default() -> Self {
        Self::Merged { order: Order::Any, tag: false, header: None }
    }
}

impl Collect {
    /// Returns the `order`, `tag` and `header` of the merged output.
    pub(super) fn merged(&self) -> (Order, bool, Option<usize>) {
        match self {
            Self::Merged { order, tag, header } => (*order, *tag, *header),
            Self::Unmerged | Self::Results(_) => (Order::Any, false, None),
        }
    }
}

/// The order in which the jobs' outputs are merged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Lines are merged in the order in which the jobs write them, and packets by time.
    #[default]
    Any,
    /// The output of job 1 comes first, then the output of job 2, and so on.
    Job,
    /// Lines are merged by the time at their start, and packets by their timestamps.
    Time,
}

/// The properties of a run's input that are known before its packets are read.
#[derive(Clone, Debug, Default)]
pub struct InputInfo {
    /// The properties of the capture files, if the input contains capture files.
    pub capture: Option<Arc<CaptureInfo>>,
    /// True if all inputs can wait without losing packets, as files can.
    pub can_wait: bool,
    /// True if the packets of the capture files are replayed at a certain rate (`--pace`).
    pub is_paced: bool,
}
