//! Profiles of realistic traffic.

use std::fmt;

/// Realistic traffic: the option `profile`.
///
/// ```
/// use steerage_device::synthetic::{Profile, SyntheticOptions};
///
/// let input = SyntheticOptions::new().profile(Profile::Office).packets(1000).open()?;
/// assert_eq!(input.queues.len(), 1);
/// # Ok::<(), steerage_device::synthetic::SpecError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Profile {
    /// Clients of an office that look up names, fetch pages, make calls and save a backup.
    Office,
}

impl Profile {
    /// All profiles.
    pub const ALL: [Self; 1] = [Self::Office];

    /// The profile's name in the option `profile`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Office => "office",
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
