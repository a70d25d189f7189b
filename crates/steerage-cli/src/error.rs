//! The errors of the program. Each error has an exit code, and one line that says what was tried
//! and what to do.

mod command_line;
mod ending;
mod jobs;
mod search;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use steerage::flow::HashUnavailable;
use steerage::memory::{Excess, ExcessCause};
use steerage::{BuildError, CpuId, CpuMask, SetError};
use steerage_capture::filter::FilterError;
use steerage_control::metrics::BindError;
use steerage_control::{MountError, SocketError};
use steerage_device::OpenError;
use steerage_device::output::OutputError;
use steerage_doctor::NoInterface;
use steerage_guard::capabilities::PrivilegesError;
use steerage_guard::sandbox::SandboxError;
use steerage_router::kernel::KernelError;
use steerage_text::size;
use steerage_tune::TuneError;

use crate::usage::{self, WRONG_COMMAND_LINE};

pub(crate) use command_line::{CommandLineError, NEEDS_TIME};
pub(crate) use ending::EndingError;
pub(crate) use jobs::{JobsError, NOT_BY_JOBS};
pub(crate) use search::SearchError;

const FAILED: u8 = 1;

/// The exit code if the machine does not have the settings that `tune` has kept for it.
const DIFFERS: u8 = 3;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{}", usage::message(.0))]
    Usage(clap::Error),
    #[error(transparent)]
    CommandLine(#[from] CommandLineError),
    #[error(transparent)]
    Search(#[from] SearchError),
    #[error(transparent)]
    Ending(#[from] EndingError),
    #[error(transparent)]
    Jobs(#[from] JobsError),
    #[error(transparent)]
    RunFile(#[from] RunFileError),
    /// The program refused to do what the user asked. The text is the whole error message.
    #[error("{0}")]
    Refused(String),
    #[error(transparent)]
    Open(OpenError),
    #[error(transparent)]
    Filter(#[from] FilterError),
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error("{}", build(.0))]
    Build(#[from] BuildError),
    #[error("--hash: {0}")]
    Hash(HashUnavailable),
    #[error(
        "CPU {cpu} is offline: use CPUs of {online}, or enable it: echo 1 > /sys/devices/system/cpu/cpu{cpu}/online"
    )]
    Offline { cpu: CpuId, online: CpuMask },
    #[error(transparent)]
    NoInterface(#[from] NoInterface),
    #[error(transparent)]
    Privileges(#[from] PrivilegesError),
    #[error("{0}; --no-sandbox runs without it")]
    Sandbox(#[from] SandboxError),
    #[error("{}", kernel(.0))]
    Kernel(#[from] KernelError),
    #[error(transparent)]
    Metrics(#[from] BindError),
    #[error(transparent)]
    Web(BindError),
    #[error("--socket: {0}")]
    Socket(SocketError),
    #[error("--socket {name}: XDG_RUNTIME_DIR is not set: write a path, such as ./{name}.sock")]
    NoRuntimeDirectory { name: String },
    #[error("--control: {0}")]
    Mount(#[from] MountError),
    #[error("{}", page(.path, .error))]
    Page { path: PathBuf, error: io::Error },
    #[error(transparent)]
    Tune(#[from] TuneError),
    /// The machine's settings differ from those that `tune` has kept. The text is the whole error
    /// message.
    #[error("{0}")]
    TuneDiffers(String),
    #[error("cannot {operation}: {error}")]
    System { operation: &'static str, error: io::Error },
}

fn build(error: &BuildError) -> String {
    match error {
        BuildError::Memory(excess) => memory(excess),
        BuildError::Mask(SetError::NotOurCpu { cpu, ours }) => format!(
            "CPU {cpu} of the mask is not among the CPUs that work ({ours}): add it to --cpus, or leave it out of the mask"
        ),
        error => error.to_string(),
    }
}

fn memory(excess: &Excess) -> String {
    let (needed, limit) = (size(excess.needed), size(excess.limit));
    match &excess.cause {
        ExcessCause::Backlogs { queues, cpus, backlog, .. } => format!(
            "{queues} queue(s) with a backlog of {backlog} packets for each of {cpus} CPU(s) need {needed}, \
             but --memory allows {limit}: allow more, or use fewer --cpus"
        ),
        ExcessCause::Devices { bytes } => format!(
            "packets need {needed}, {} of it in the rings of devices, but --memory allows {limit}: \
             allow more, or use smaller rings (-B)",
            size(*bytes)
        ),
        _ => format!(
            "packets need {needed}, but --memory allows {limit}: allow more, or use fewer --cpus, queues or outputs"
        ),
    }
}

fn kernel(error: &KernelError) -> String {
    match error {
        KernelError::Route(error) => format!("--route: {error}"),
        error => error.to_string(),
    }
}

fn page(path: &std::path::Path, error: &io::Error) -> String {
    let advice = match error.kind() {
        io::ErrorKind::NotFound => "there is no such directory; make it with mkdir -p".to_owned(),
        _ => format!("{error}; name another directory"),
    };
    format!("cannot write a manual page to {}: {advice}", path.display())
}

impl Error {
    pub(crate) fn options(&self) -> Vec<&'static str> {
        match self {
            Self::CommandLine(error) => error.options(),
            Self::Offline { .. } => vec!["--cpus", "--rx-cpu"],
            Self::Hash(_) => vec!["--hash"],
            Self::Build(BuildError::Mask(SetError::NotOurCpu { .. })) => vec!["--rps-cpus", "--rps-cpus-list"],
            Self::Build(BuildError::Mask(SetError::NoCopybreak { .. })) => vec!["--copybreak"],
            Self::Build(BuildError::Memory { .. }) => vec!["--memory", "--backlog"],
            Self::Metrics(_) => vec!["--metrics"],
            Self::Web(_) => vec!["--web"],
            Self::Jobs(JobsError::Other(error)) => error.options(),
            _ => Vec::new(),
        }
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::CommandLine(_) | Self::Usage(_) => WRONG_COMMAND_LINE,
            Self::Open(OpenError::Spec(_)) | Self::Output(OutputError::Spec { .. }) => WRONG_COMMAND_LINE,
            Self::Filter(error) if error.is_mistake() => WRONG_COMMAND_LINE,
            Self::Build(BuildError::Mask(SetError::NotOurCpu { .. } | SetError::NoCopybreak { .. })) => {
                WRONG_COMMAND_LINE
            }
            Self::Jobs(error) => error.exit_code(),
            Self::TuneDiffers(_) => DIFFERS,
            Self::Ending(error) => return error.exit_code(),
            _ => FAILED,
        })
    }
}

impl From<OpenError> for Error {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Filter(error) => Self::Filter(error),
            error => Self::Open(error),
        }
    }
}

#[derive(Clone, Debug, thiserror::Error)]
#[error("{path}{}: {message}", .line.map(|line| format!(":{line}")).unwrap_or_default())]
pub(crate) struct RunFileError {
    pub(crate) path: String,
    pub(crate) line: Option<usize>,
    pub(crate) message: String,
}
