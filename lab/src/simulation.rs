//! The settings of simulated experiments: the costs of the receive path, and the machine.

use std::fs;
use std::path::Path;

use steerage_sim::{Machine, Profile};

use crate::error::LabError;

/// The costs on the machine that docs/performance.md describes.
const PROFILE: &str = include_str!("../scale/zen5.toml");

const MACHINE: &str = include_str!("../scale/server.toml");

/// The costs, the machine and the seed of simulated experiments.
#[derive(Clone, Debug)]
pub struct Simulation {
    /// The costs of the receive path.
    pub profile: Profile,
    /// The simulated machine.
    pub machine: Machine,
    /// The seed of the traffic. The same seed gives the same output.
    pub seed: u64,
}

impl Simulation {
    /// Reads the files `profile` and `machine`, or the default files of the repository.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read, or if its content is invalid.
    pub fn read(profile: Option<&Path>, machine: Option<&Path>, seed: u64) -> Result<Self, LabError> {
        let text = |path: Option<&Path>, own: &str| path.map_or_else(|| Ok(own.to_owned()), fs::read_to_string);
        let wrong = |what, path: Option<&Path>, why: &dyn std::fmt::Display| {
            let name = path.map_or_else(|| "the default".to_owned(), |path| path.display().to_string());
            LabError::set_up(what, format!("{name}: {why}; lab/scale has examples").replace('\n', " "))
        };
        let no_profile = |why: &dyn std::fmt::Display| wrong("a profile", profile, why);
        let no_machine = |why: &dyn std::fmt::Display| wrong("a description of a machine", machine, why);
        Ok(Self {
            profile: Profile::parse(&text(profile, PROFILE).map_err(|error| no_profile(&error))?)
                .map_err(|error| no_profile(&error))?,
            machine: Machine::parse(&text(machine, MACHINE).map_err(|error| no_machine(&error))?)
                .map_err(|error| no_machine(&error))?,
            seed,
        })
    }

    /// Makes the settings from the files of the repository.
    #[expect(clippy::missing_panics_doc, reason = "a test reads the files")]
    pub fn of_the_repository() -> Self {
        Self::read(None, None, 1).expect("the files of the repository have a meaning")
    }
}
