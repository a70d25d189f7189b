use std::cell::RefCell;
use std::ffi::{CStr, CString};
use std::fmt::Display;

use steerage::{BuildError, SetError};
use steerage_device::OpenError;

/// `steerage_status` of the C header, without `STEERAGE_OK`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Code {
    Argument = -1,
    Device = -2,
    Filter = -3,
    Build = -4,
    State = -5,
    Read = -6,
    Stuck = -7,
    Internal = -8,
}

const MEANINGS: [(Code, &CStr); 8] = [
    (Code::Argument, c"an argument is wrong"),
    (Code::Device, c"an input cannot be opened"),
    (Code::Filter, c"the filter is wrong"),
    (Code::Build, c"the CPUs, the memory or the threads do not suffice"),
    (Code::State, c"the call does not fit the state of the run"),
    (Code::Read, c"an input failed before its end"),
    (Code::Stuck, c"a function of the program did not return"),
    (Code::Internal, c"a bug in libsteerage"),
];

pub(crate) fn meaning(status: i32) -> &'static CStr {
    let known = MEANINGS.iter().find(|(code, _)| *code as i32 == status);
    known.map_or(if status >= 0 { c"no error" } else { c"unknown status" }, |(_, meaning)| meaning)
}

/// Why a call of the C library failed, in one line.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) code: Code,
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn new(code: Code, text: impl Display) -> Self {
        Self { code, text: text.to_string() }
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        let code = match error {
            OpenError::Device(_) => Code::Device,
            OpenError::Filter(_) => Code::Filter,
            _ => Code::Argument,
        };
        Self::new(code, error)
    }
}

impl From<BuildError> for Failure {
    fn from(error: BuildError) -> Self {
        let code = if matches!(error, BuildError::Mask(_)) { Code::Argument } else { Code::Build };
        Self::new(code, error)
    }
}

impl From<SetError> for Failure {
    fn from(error: SetError) -> Self {
        Self::new(Code::Argument, error)
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

pub(crate) fn record(failure: &Failure) {
    let text = failure.text.replace('\0', "");
    // While a thread ends, the text of its last error may already be destroyed.
    let _ = LAST.try_with(|last| last.replace(CString::new(text).unwrap_or_default()));
}

pub(crate) fn last<R>(read: impl FnOnce(&CStr) -> R) -> R {
    LAST.with(|last| read(&last.borrow()))
}
