use std::str::FromStr;
use std::{error, fmt};

use crate::balance::Balance;
use crate::policy::{Hash, Policy};

/// The names of the policies in this crate.
pub const POLICIES: [&str; 3] = ["balance", "hash", "dry-run"];

/// Parses the name of a policy, which must be one of [`POLICIES`].
///
/// ```
/// use steerage_policy::Policy;
///
/// let policy: Box<dyn Policy> = "hash".parse()?;
/// assert_eq!(policy.to_string(), "hash");
///
/// let error = "rss".parse::<Box<dyn Policy>>().unwrap_err();
/// assert_eq!(error.to_string(), "`rss` is not a policy: write one of balance, hash, dry-run");
/// # Ok::<(), steerage_policy::UnknownPolicy>(())
/// ```
impl FromStr for Box<dyn Policy> {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        match name {
            "balance" => Ok(Box::new(Balance::new())),
            "hash" => Ok(Box::new(Hash)),
            "dry-run" => Ok(Box::new(Balance::dry_run())),
            _ => Err(UnknownPolicy(name.to_owned())),
        }
    }
}

/// Prints the [name](Policy::name), which can be parsed into a `Box<dyn Policy>`.
impl fmt::Display for dyn Policy + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The error for a name that is not in [`POLICIES`].
///
/// ```
/// use steerage_policy::{Policy, UnknownPolicy};
///
/// let error: UnknownPolicy = "rss".parse::<Box<dyn Policy>>().unwrap_err();
/// assert_eq!(error.to_string(), "`rss` is not a policy: write one of balance, hash, dry-run");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPolicy(String);

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is not a policy: write one of {}", self.0.escape_debug(), POLICIES.join(", "))
    }
}

impl error::Error for UnknownPolicy {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_print_the_names_that_they_are_read_from() {
        for name in POLICIES {
            let policy: Box<dyn Policy> = name.parse().unwrap();
            assert_eq!((policy.name(), policy.to_string().as_str()), (name, name));
            assert_eq!(policy.fresh().to_string(), name);
        }
    }

    #[test]
    fn an_unknown_name_is_quoted_on_one_line() {
        for (wrong, quoted) in [("", "``"), ("Hash", "`Hash`"), ("hash ", "`hash `"), ("a\nb", "`a\\nb`")] {
            let error = wrong.parse::<Box<dyn Policy>>().unwrap_err().to_string();
            assert_eq!(error, format!("{quoted} is not a policy: write one of balance, hash, dry-run"));
        }
    }
}
