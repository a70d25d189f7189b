//! The errors of commands that connect to a run, such as `get`, `set` and `top`.

use steerage_control::{ClientError, instances};

#[derive(Debug, thiserror::Error)]
pub(crate) enum SearchError {
    #[error(transparent)]
    NotReached(#[from] instances::SearchError),
    #[error("{0}")]
    Report(String),
    #[error("{what} {path}: {error}")]
    Attribute { what: &'static str, path: String, error: ClientError },
}

impl From<instances::SearchError> for super::Error {
    fn from(error: instances::SearchError) -> Self {
        Self::Search(error.into())
    }
}
