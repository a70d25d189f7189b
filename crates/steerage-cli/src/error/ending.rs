//! The errors with which a run can end.

use std::io;
use std::process::ExitCode;

use steerage::stats::Drops;
use steerage::{CpuId, CpuMask};
use steerage_meter::{ExportError, ReadFlowsError};
use steerage_text::{counted, grouped, plural};

use super::FAILED;

/// The exit code if `--strict` was given and a packet was lost or out of order.
const NOT_STRICT: u8 = 3;

#[derive(Debug, thiserror::Error)]
pub(crate) enum EndingError {
    /// A device failed. The text is the whole error message.
    #[error("{0}")]
    Device(String),
    #[error(
        "the packet function panicked on CPU {}: this is a bug; please report it with the lines above",
        .0.iter().copied().collect::<CpuMask>()
    )]
    Panicked(Vec<CpuId>),
    #[error("{0} CPU(s) did not stop in time: their packets count as in flight")]
    LeftBehind(usize),
    #[error("{}", .0.iter().map(ExportError::to_string).collect::<Vec<_>>().join("; "))]
    Flows(Vec<ExportError>),
    #[error("cannot read the flows of {file}: {error}")]
    FlowFile { file: String, error: ReadFlowsError },
    #[error("cannot write the report to standard output: {0}; redirect it to another place")]
    Report(io::Error),
    #[error(
        "{} of {} were not sent: {missing}; `steerage help report` says what to do",
        grouped(.missing.total()),
        counted(*.received, "packet")
    )]
    NotSent { missing: Drops, received: u64 },
    #[error(
        "--strict: {dropped} {} dropped, {in_flight} not finished, {reordered} out of order: the report says where",
        plural(*.dropped, "packet")
    )]
    Strict { dropped: u64, in_flight: u64, reordered: u64 },
}

impl EndingError {
    pub(crate) fn flows(error: ExportError) -> Self {
        Self::Flows(vec![error])
    }

    pub(super) fn exit_code(&self) -> ExitCode {
        ExitCode::from(if matches!(self, Self::Strict { .. }) { NOT_STRICT } else { FAILED })
    }
}
