//! The options of a run, which the caller chooses.

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
    /// The command of each job: a program and its arguments. In the program's name and in each
    /// argument, `{n}` is replaced by the number of the job, counted from 1. The placeholder
    /// `{jobs}` is replaced by the number of jobs. The placeholders `{fifo}`, `{file}` and `{tap}`
    /// in a command determine how the job gets its packets. `{fifo}` is replaced by the path of a
    /// pipe, `{file}` by the path of a complete file, and `{tap}` by the name of a network
    /// interface. A command without `{fifo}`, `{file}` and `{tap}` reads its packets from standard
    /// input.
    pub command: Vec<OsString>,
    /// Determines which packets must go to the same job, such as those of a flow.
    pub together: Together,
    /// The capture format in which jobs read their packets.
    pub format: Format,
    /// True if jobs get the inner frames of tunnels (VXLAN, Geneve, GRE, ERSPAN, TZSP and MPLS),
    /// without the outer headers.
    pub strip_tunnels: bool,
    /// A job is killed if it reads nothing for this time although packets wait for it. If this time
    /// is `None`, no job is killed for reading nothing.
    pub job_timeout: Option<Duration>,
    /// The destination of the jobs' output.
    pub collect: Collect,
    /// True if standard error is a terminal on which the progress line may be drawn.
    pub draws_progress: bool,
    /// The command that starts a waiting process for each job that reads a `{file}`. The waiting
    /// process waits until the job's file is complete. If this command is `None`, no process waits.
    /// The program of the job is then started when its file is complete.
    pub waiting_process: Option<WaitingProcess>,
}

impl Options {
    /// Returns the default options for `jobs` copies of `command`. Each flow stays in one job, and
    /// the lines of the jobs are printed in the order in which they arrive.
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

/// A function that returns the command for a waiting process, which later executes the job's
/// program. The waiting process calls a [function that waits](crate::start_when_ready), and then
/// executes `program`. This crate appends the arguments of `program` to the command.
///
/// A process in a sandbox cannot start programs while packets flow. Therefore a program with a
/// sandbox starts the waiting processes of all jobs before it enters the sandbox.
pub type WaitingProcess = fn(program: &OsStr) -> Command;

/// The format of the captures that jobs read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// The jobs read the format of the input file, or [`PcapNanos`](Self::PcapNanos) if the input
    /// is not a file.
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
        /// The number of header lines at the start of each job's output. The merged output contains
        /// the header lines only once. `None` means one header line if the command is tshark with
        /// `-E header=y`. For any other command, it means no header line.
        header: Option<usize>,
    },
    /// The jobs write directly to standard output, so the lines of different jobs may be mixed.
    Unmerged,
    /// The outputs are written to files in this directory. Job N runs in the subdirectory N, and
    /// its output is written to the files `stdout` and `stderr` in that subdirectory.
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

/// The order in which the jobs' outputs are merged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Lines of output are merged in the order in which the jobs write them. Packets are merged by
    /// time.
    #[default]
    Any,
    /// In the merged output, the output of job 1 comes first, then the output of job 2, and so on.
    Job,
    /// Lines of output are sorted by the time at the start of each line, and packets by their
    /// timestamps.
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
