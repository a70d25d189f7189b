//! Mistakes in the command line. After such a mistake, the program does nothing, and its exit code
//! is 2.

use steerage::flow::ParseFlowKeyError;
use steerage::policy::UnknownPolicy;
use steerage::topology::MaskError;
use steerage_text::shell_word;

/// The error message if the name of a rotating file contains no time.
pub(crate) const NEEDS_TIME: &str =
    "with --rotate each file needs a name of its own: put the time in, such as %Y%m%d-%H%M";

#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandLineError {
    #[error("{option}: {error}")]
    Mask { option: &'static str, error: MaskError },
    #[error("{option}: {message}")]
    QueueMask { option: &'static str, message: String },
    #[error("{option} names no CPU: write such as 0-3,8 or all")]
    NoCpu { option: &'static str },
    #[error("--policy: {0}")]
    Policy(UnknownPolicy),
    #[error("--pace is for capture files: give synthetic traffic a rate=N instead")]
    NothingToPace,
    #[error("{}", nothing_to_filter(.device))]
    NothingToFilter { device: String },
    #[error(transparent)]
    Flow(#[from] ParseFlowKeyError),
    #[error("{what} is half of a flow: write the whole flow in quotes: steerage explain '{what} > ADDRESS:PORT'")]
    HalfFlow { what: String },
    #[error("{spec} stands for several outputs, and send has one: use fanout for several")]
    SeveralOutputs { spec: String },
    #[error("only --undo takes several interfaces: write the command once for each of {}", .interfaces.join(", "))]
    SeveralInterfaces { interfaces: Vec<String> },
    #[error("output {spec}: this file is {what}: give each output a file of its own")]
    SameFile { spec: String, what: &'static str },
    #[error("{option} {name}: {what}")]
    FileName { option: &'static str, name: String, what: String },
    #[error("there is no manual page for {name}: `steerage --help` lists the commands")]
    NoManualPage { name: String },
    #[error(
        "there is no page or command {topic}{}; `steerage help` lists all",
        .nearest.map(|nearest| format!("; a similar one exists: {nearest}")).unwrap_or_default()
    )]
    NoTopic { topic: String, nearest: Option<&'static str> },
    #[error("{filter} is a filter, not an input: write -f {} after the input", shell_word(.filter))]
    BareFilter { filter: String },
}

fn nothing_to_filter(device: &str) -> String {
    if device.starts_with("af_xdp:") {
        return format!(
            "-f is for interfaces and capture files: choose the packets of {device} with --take, see `steerage help af_xdp`"
        );
    }
    format!("-f is for interfaces and capture files, and {device} is neither: leave -f out")
}

impl CommandLineError {
    pub(super) fn options(&self) -> Vec<&'static str> {
        match self {
            Self::Mask { option, .. } | Self::NoCpu { option } => vec![option],
            Self::QueueMask { option, .. } | Self::FileName { option, .. } => vec![option],
            Self::Policy(_) => vec!["--policy"],
            Self::NothingToPace => vec!["--pace"],
            _ => Vec::new(),
        }
    }
}
