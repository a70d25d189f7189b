use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use landlock::{
    ABI, Access, AccessFs, AccessNet, AddRuleError, AddRulesError, BitFlags, LandlockStatus, PathBeneath, PathFd,
    Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};

use rustix::fs::FileType;

use super::{SandboxError, sys};

/// A kernel with an older version of Landlock enforces only the rules that it supports.
const ASKED: ABI = ABI::V6;

#[derive(Clone, Debug)]
pub(crate) enum Object {
    Path(PathBuf),
    Open(Arc<OwnedFd>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// The process may read the file or, for a directory, all files below it.
    Read,
    /// The process may write the file or, for a directory, create, rename and remove files below
    /// it.
    Write,
    Device,
    RemoveFile,
}

impl How {
    fn access(self) -> BitFlags<AccessFs> {
        let read = AccessFs::ReadFile | AccessFs::ReadDir;
        match self {
            Self::Read => read,
            Self::Write => {
                let write = AccessFs::WriteFile | AccessFs::Truncate | AccessFs::MakeReg | AccessFs::MakeDir;
                read | write | AccessFs::RemoveFile | AccessFs::RemoveDir
            }
            Self::Device => AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev,
            Self::RemoveFile => AccessFs::RemoveFile.into(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Enforced {
    All,
    /// The kernel enforces only some of the rules. The field is the version of Landlock that the
    /// kernel supports.
    Part(i32),
    Nothing,
    /// The kernel refused Landlock with this error number, for example because the seccomp filter
    /// of a container denies Landlock's system call.
    Refused(i32),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Reach {
    pub(crate) tcp: bool,
    pub(crate) signals: bool,
}

/// Restricts the files of this thread, and of threads that it starts later. A rule whose path does
/// not exist is skipped.
pub(crate) fn restrict(rules: &[(Object, How)], reach: Reach) -> Result<Enforced, SandboxError> {
    if let Some(error) = sys::landlock_refusal() {
        return Ok(Enforced::Refused(error.raw_os_error().unwrap_or_default()));
    }
    let scopes = if reach.signals { Scope::AbstractUnixSocket.into() } else { Scope::from_all(ASKED) };
    let ruleset = Ruleset::default().handle_access(AccessFs::from_all(ASKED)).map_err(SandboxError::landlock)?;
    let denied = if reach.tcp { AccessNet::BindTcp.into() } else { AccessNet::from_all(ASKED) };
    let ruleset = ruleset.handle_access(denied).map_err(SandboxError::landlock)?;
    let mut ruleset = ruleset.scope(scopes).and_then(Ruleset::create).map_err(SandboxError::landlock)?;
    for (object, how) in rules {
        let opened;
        let file = match object {
            Object::Open(file) => file.as_fd(),
            Object::Path(path) => {
                let Ok(open) = PathFd::new(path) else { continue };
                opened = open;
                opened.as_fd()
            }
        };
        let Ok(stat) = rustix::fs::fstat(file) else { continue };
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        let access = if is_directory { how.access() } else { how.access() & AccessFs::from_file(ASKED) };
        match (&mut ruleset).add_rule(PathBeneath::new(file, access)) {
            // Landlock accepts no rules for pipes, such as that of `<(command)`.
            Err(error) if is_about_a_pipe(&error) => {}
            added => drop(added.map_err(SandboxError::landlock)?),
        }
    }
    let status = ruleset.restrict_self().map_err(SandboxError::landlock)?;
    Ok(match (status.ruleset, status.landlock) {
        (RulesetStatus::FullyEnforced, _) => Enforced::All,
        (RulesetStatus::PartiallyEnforced, LandlockStatus::Available { effective_abi, .. }) => {
            Enforced::Part(effective_abi as i32)
        }
        _ => Enforced::Nothing,
    })
}

/// Returns true if the kernel refused a rule because the rule's file has no path, like a pipe.
fn is_about_a_pipe(error: &RulesetError) -> bool {
    match error {
        RulesetError::AddRules(AddRulesError::Fs(AddRuleError::AddRuleCall { source, .. })) => {
            source.raw_os_error() == Some(libc::EBADFD)
        }
        _ => false,
    }
}
