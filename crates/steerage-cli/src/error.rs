//! Every error of the program: one line that says what was tried and what to do, and the exit code.

mod jobs;

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use steerage::flow::{HashUnavailable, ParseFlowKeyError};
use steerage::stats::Drops;
use steerage::{BuildError, CpuId, CpuMask, SetError, policy::UnknownPolicy, topology::MaskError};
use steerage_capture::filter::FilterError;
use steerage_control::metrics::BindError;
use steerage_control::{ClientError, MountError, SocketError};
use steerage_device::OpenError;
use steerage_device::output::OutputError;
use steerage_guard::capabilities::PrivilegesError;
use steerage_guard::sandbox::SandboxError;
use steerage_meter::ExportError;

use crate::terminal::shell_word;
use crate::units::{counted, grouped, plural, size};
use crate::usage::{self, WRONG_COMMAND_LINE};

pub(crate) use jobs::{JobsError, NOT_BY_JOBS};

/// Exit code: an error.
const FAILED: u8 = 1;
/// Exit code: a packet was lost or out of order, and `--strict` was asked for.
const NOT_STRICT: u8 = 3;

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum Error {
    /// The arguments after a run file are wrong, or ask for help.
    Usage(clap::Error),
    /// An option's mask or list of CPUs cannot be read.
    Mask { option: &'static str, error: MaskError },
    /// An option has a mask for a queue that does not exist, or that has another mask already. The
    /// message says which.
    QueueMask { option: &'static str, message: String },
    /// An option's list of CPUs is empty.
    NoCpu { option: &'static str },
    /// A CPU exists but is offline.
    Offline { cpu: CpuId, online: CpuMask },
    /// There is no such policy.
    Policy(UnknownPolicy),
    /// This CPU lacks the instructions for a hash.
    Hash(HashUnavailable),
    /// `--pace` is given, but no input is a file.
    NothingToPace,
    /// `-f` is given, but a device cannot have a filter.
    NothingToFilter { device: String },
    /// There is no such interface.
    NoInterface(String),
    /// The expression of `-f` cannot be compiled.
    Filter(FilterError),
    /// The argument of explain looks like a flow, but cannot be parsed.
    Flow(ParseFlowKeyError),
    /// The device cannot be opened.
    Open(OpenError),
    /// Privileges cannot be dropped.
    Privileges(PrivilegesError),
    /// The sandbox cannot be entered.
    Sandbox(SandboxError),
    /// There is no such output.
    Output(OutputError),
    /// The command takes one output, but braces in the name stand for several.
    SeveralOutputs { spec: String },
    /// An output would overwrite another file of this run.
    SameFile { spec: String, what: &'static str },
    /// The command line does not allow forwarding. The text is the whole message.
    Forward(String),
    /// The instance cannot be built.
    Build(BuildError),
    /// Metrics cannot be served at the address.
    Metrics(BindError),
    /// The kernel refused something.
    System { operation: &'static str, error: io::Error },
    /// A device failed during the run. The text is the whole message.
    Device(String),
    /// The threads of these CPUs panicked.
    Panicked(Vec<CpuId>),
    /// The handlers of this many CPUs did not return in time.
    LeftBehind(usize),
    /// The name of a file or a collector for flows is wrong.
    FlowsName { option: &'static str, name: String, what: String },
    /// Flows could not be written.
    Flows(Vec<ExportError>),
    /// A run file is wrong.
    RunFile(RunFileError),
    /// The run file that was checked is wrong.
    Refused(String),
    /// A manual page could not be written.
    Page { path: PathBuf, error: io::Error },
    /// This command has no manual page.
    NoManualPage { name: String },
    /// The guide has no page of this name, and no command has it either.
    NoTopic { topic: String, nearest: Option<&'static str> },
    /// An input is a filter that was written without `-f`.
    BareFilter { filter: String },
    /// The socket for the control tree cannot be created.
    Socket(SocketError),
    /// The user named the socket, but there is no directory for sockets.
    NoRuntimeDirectory { name: String },
    /// The control tree could not be mounted.
    Mount(MountError),
    /// No instance was found.
    NoInstance(NoInstance),
    /// The search for instances failed.
    Instances(SocketError),
    /// No instance of this name runs.
    NoSuchInstance { name: String, why: NoInstance },
    /// More than one instance runs.
    SeveralInstances { names: Vec<String> },
    /// The connection to an instance failed.
    Connect { path: PathBuf, error: io::Error },
    /// The instance does not send its report.
    Watched(String),
    /// The instance refuses the request.
    Attribute { what: &'static str, path: String, error: ClientError },
    /// `parallel` failed.
    Jobs(JobsError),
    /// The report could not be written.
    Report(io::Error),
    /// Packets were not sent that should have been.
    NotSent { missing: Drops, received: u64 },
    /// `--strict` is given, and packets were lost or out of order.
    Strict { dropped: u64, in_flight: u64, reordered: u64 },
}

/// Why no instance was found.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NoInstance {
    /// Root looks only for instances of root.
    OfRoot,
    /// Neither this user nor root has an instance.
    OfUser,
    /// This user's instances have no socket, because there is no directory for it.
    NoDirectory,
}

const NO_DIRECTORY: &str =
    "without XDG_RUNTIME_DIR a run has a control socket only with --socket PATH; then name it with --to PATH";

impl fmt::Display for NoInstance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OfRoot => {
                f.write_str("no run of root was found: start one, or name another user's socket with --to PATH")
            }
            Self::OfUser => f.write_str("no run was found: start one, or name its socket with --to PATH"),
            Self::NoDirectory => write!(f, "no run was found: {NO_DIRECTORY}"),
        }
    }
}

impl Error {
    /// One output of flows cannot be used.
    pub(crate) fn flows(error: ExportError) -> Self {
        Self::Flows(vec![error])
    }

    /// The options that the error may be about.
    pub(crate) fn options(&self) -> Vec<&'static str> {
        match self {
            Self::Mask { option, .. } | Self::NoCpu { option } => vec![option],
            Self::QueueMask { option, .. } => vec![option],
            Self::Offline { .. } => vec!["--cpus", "--rx-cpu"],
            Self::Policy(_) => vec!["--policy"],
            Self::Hash(_) => vec!["--hash"],
            Self::NothingToPace => vec!["--pace"],
            Self::Build(BuildError::Mask(SetError::NotOurCpu { .. })) => vec!["--rps-cpus", "--rps-cpus-list"],
            Self::Build(BuildError::Memory { .. }) => vec!["--memory", "--backlog"],
            Self::FlowsName { option, .. } => vec![option],
            Self::Metrics(_) => vec!["--metrics"],
            Self::Jobs(JobsError::Other(error)) => error.options(),
            _ => Vec::new(),
        }
    }

    /// The exit code.
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::QueueMask { .. } => WRONG_COMMAND_LINE,
            Self::Mask { .. } | Self::NoCpu { .. } | Self::Policy(_) | Self::NothingToPace | Self::Flow(_) => {
                WRONG_COMMAND_LINE
            }
            Self::Open(OpenError::Spec(_))
            | Self::Output(OutputError::Spec { .. })
            | Self::SameFile { .. }
            | Self::SeveralOutputs { .. } => WRONG_COMMAND_LINE,
            Self::NothingToFilter { .. } => WRONG_COMMAND_LINE,
            Self::Filter(error) if error.is_mistake() => WRONG_COMMAND_LINE,
            Self::FlowsName { .. } | Self::Usage(_) | Self::BareFilter { .. } => WRONG_COMMAND_LINE,
            Self::NoTopic { .. } | Self::NoManualPage { .. } => WRONG_COMMAND_LINE,
            Self::Build(BuildError::Mask(SetError::NotOurCpu { .. })) => WRONG_COMMAND_LINE,
            Self::Strict { .. } => NOT_STRICT,
            Self::Jobs(error) => error.exit_code(),
            _ => FAILED,
        })
    }
}

impl fmt::Display for Error {
    #[expect(clippy::too_many_lines, reason = "a few lines for each error, and no logic")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mask { option, error } => write!(f, "{option}: {error}"),
            Self::QueueMask { option, message } => write!(f, "{option}: {message}"),
            Self::NoCpu { option } => write!(f, "{option} names no CPU: write such as 0-3,8 or all"),
            Self::Offline { cpu, online } => {
                write!(
                    f,
                    "CPU {cpu} is offline: use CPUs of {online}, or enable it: echo 1 > /sys/devices/system/cpu/cpu{cpu}/online"
                )
            }
            Self::Policy(error) => write!(f, "--policy: {error}"),
            Self::Hash(error) => write!(f, "--hash: {error}"),
            Self::NothingToPace => f.write_str("--pace is for capture files: give synthetic traffic a rate=N instead"),
            Self::NothingToFilter { device } if device.starts_with("af_xdp:") => write!(
                f,
                "-f is for interfaces and capture files: choose the packets of {device} with --take, see `steerage help af_xdp`"
            ),
            Self::NothingToFilter { device } => {
                write!(f, "-f is for interfaces and capture files, and {device} is neither: leave -f out")
            }
            Self::NoInterface(name) => write!(f, "there is no interface {name}: `ip link` lists the interfaces"),
            Self::Filter(error) => error.fmt(f),
            Self::Flow(error) => error.fmt(f),
            Self::Open(error) => error.fmt(f),
            Self::Privileges(error) => error.fmt(f),
            Self::Sandbox(error) => write!(f, "{error}; --no-sandbox runs without it"),
            Self::Output(error) => error.fmt(f),
            Self::SeveralOutputs { spec } => {
                write!(f, "{spec} stands for several outputs, and send has one: use fanout for several")
            }
            Self::SameFile { spec, what } => {
                write!(f, "output {spec}: this file is {what}: give each output a file of its own")
            }
            // The library does not know the names of our options.
            Self::Build(BuildError::Memory { needed, cap, queues, cpus, backlog }) => write!(
                f,
                "{queues} queue(s) with a backlog of {backlog} packets for each of {cpus} CPU(s) need {}, but --memory allows {}: \
                 allow more, or use a shorter --backlog or fewer --cpus",
                size(*needed),
                size(*cap)
            ),
            Self::Build(BuildError::Mask(SetError::NotOurCpu { cpu, ours })) => {
                write!(
                    f,
                    "CPU {cpu} of the mask is not among the CPUs that work ({ours}): add it to --cpus, or leave it out of the mask"
                )
            }
            Self::Build(error) => error.fmt(f),
            Self::Metrics(error) => error.fmt(f),
            Self::System { operation, error } => write!(f, "cannot {operation}: {error}"),
            Self::Device(message) | Self::Forward(message) => f.write_str(message),
            Self::Panicked(cpus) => {
                let cpus: CpuMask = cpus.iter().copied().collect();
                write!(
                    f,
                    "the packet function panicked on CPU {cpus}: this is a bug; please report it with the lines above"
                )
            }
            Self::LeftBehind(cpus) => {
                write!(f, "{cpus} CPU(s) did not stop in time: their packets count as in flight")
            }
            Self::FlowsName { option, name, what } => write!(f, "{option} {name}: {what}"),
            Self::Flows(errors) => {
                let errors: Vec<String> = errors.iter().map(ExportError::to_string).collect();
                f.write_str(&errors.join("; "))
            }
            Self::RunFile(error) => error.fmt(f),
            Self::Refused(why) => f.write_str(why),
            Self::Page { path, error } if error.kind() == io::ErrorKind::NotFound => write!(
                f,
                "cannot write a manual page to {}: there is no such directory; make it with mkdir -p",
                path.display()
            ),
            Self::Page { path, error } => {
                write!(f, "cannot write a manual page to {}: {error}; name another directory", path.display())
            }
            Self::NoManualPage { name } => {
                write!(f, "there is no manual page for {name}: `steerage --help` lists the commands")
            }
            Self::NoTopic { topic, nearest } => {
                write!(f, "there is no page or command {topic}")?;
                nearest.map_or(Ok(()), |nearest| write!(f, "; a similar one exists: {nearest}"))?;
                f.write_str("; `steerage help` lists all")
            }
            Self::BareFilter { filter } => {
                write!(f, "{filter} is a filter, not an input: write -f {} after the input", shell_word(filter))
            }
            Self::Socket(error) => write!(f, "--socket: {error}"),
            Self::NoRuntimeDirectory { name } => {
                write!(f, "--socket {name}: XDG_RUNTIME_DIR is not set: write a path, such as ./{name}.sock")
            }
            Self::Mount(error) => write!(f, "--control: {error}"),
            Self::NoInstance(why) => why.fmt(f),
            Self::Instances(error) => write!(f, "cannot look for runs: {error}"),
            Self::NoSuchInstance { name, why: NoInstance::NoDirectory } => {
                write!(f, "no run {name} was found: {NO_DIRECTORY}")
            }
            Self::NoSuchInstance { name, .. } => {
                write!(f, "no run {name} was found: `steerage get` lists the runs, and --to PATH names any socket")
            }
            Self::SeveralInstances { names } => {
                write!(f, "there are {} runs: choose one with --to: {}", names.len(), names.join(", "))
            }
            Self::Connect { path, error } => {
                write!(f, "cannot connect to {}: {error}; name the socket of a run", path.display())
            }
            Self::Watched(why) => write!(f, "{why}; name the socket of a run"),
            Self::Attribute { what, path, error } => write!(f, "{what} {path}: {error}"),
            Self::Usage(error) => f.write_str(&usage::message(error)),
            Self::Jobs(error) => error.fmt(f),
            Self::Report(error) => {
                write!(f, "cannot write the report to standard output: {error}; redirect it to another place")
            }
            Self::NotSent { missing, received } => {
                let (lost, all) = (grouped(missing.total()), counted(*received, "packet"));
                write!(f, "{lost} of {all} were not sent: {missing}; `steerage help report` says what to do")
            }
            Self::Strict { dropped, in_flight, reordered } => {
                let packets = plural(*dropped, "packet");
                write!(
                    f,
                    "--strict: {dropped} {packets} dropped, {in_flight} not finished, {reordered} out of order: the report says where"
                )
            }
        }
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

impl From<PrivilegesError> for Error {
    fn from(error: PrivilegesError) -> Self {
        Self::Privileges(error)
    }
}

impl From<SandboxError> for Error {
    fn from(error: SandboxError) -> Self {
        Self::Sandbox(error)
    }
}

impl From<BuildError> for Error {
    fn from(error: BuildError) -> Self {
        Self::Build(error)
    }
}

/// A mistake in a run file, with its line.
#[derive(Clone, Debug)]
pub(crate) struct RunFileError {
    pub(crate) path: String,
    pub(crate) line: Option<usize>,
    pub(crate) message: String,
}

impl fmt::Display for RunFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path)?;
        self.line.map_or(Ok(()), |line| write!(f, ":{line}"))?;
        write!(f, ": {}", self.message)
    }
}

impl From<RunFileError> for Error {
    fn from(error: RunFileError) -> Self {
        Self::RunFile(error)
    }
}
