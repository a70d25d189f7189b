//! The errors of `parallel`. The exit codes of `parallel` are those of GNU parallel.

use steerage_parallel::Error as ParallelError;

use super::Error;

/// The exit code if more than 100 jobs failed.
const MANY_FAILED: u8 = 101;
pub(crate) const NOT_BY_JOBS: u8 = 255;

#[derive(Debug, thiserror::Error)]
pub(crate) enum JobsError {
    #[error(transparent)]
    Parallel(#[from] ParallelError),
    #[error(transparent)]
    Other(Box<Error>),
}

impl JobsError {
    pub(super) fn exit_code(&self) -> u8 {
        match self {
            Self::Parallel(ParallelError::Failed { failed, .. }) => {
                u8::try_from(*failed).unwrap_or(u8::MAX).min(MANY_FAILED)
            }
            _ => NOT_BY_JOBS,
        }
    }
}

impl From<ParallelError> for Error {
    fn from(error: ParallelError) -> Self {
        Self::Jobs(error.into())
    }
}
