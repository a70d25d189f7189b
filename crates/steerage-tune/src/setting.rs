use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::TuneError;
use crate::knob::Knob;
use crate::machine::Machine;

/// A setting: knobs and their values, in the kernel's text format.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Setting(pub BTreeMap<Knob, String>);

/// A knob whose present value differs from the expected value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The knob that differs.
    pub knob: Knob,
    /// The expected value.
    pub wanted: String,
    /// The present value, or `None` if the knob no longer exists.
    pub now: Option<String>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.now {
            Some(now) => write!(f, "{} is {now}, and not {}", self.knob, self.wanted),
            None => write!(f, "{} is gone", self.knob),
        }
    }
}

impl Setting {
    /// Reads the present values of the knobs. Knobs that cannot be read are omitted.
    pub fn read(machine: &mut Machine, knobs: impl IntoIterator<Item = Knob>) -> Self {
        Self(knobs.into_iter().filter_map(|knob| machine.read(&knob).ok().map(|value| (knob, value))).collect())
    }

    /// Sets all knobs whose present value differs from this setting, in the order of their names.
    /// If a knob cannot be set, the remaining knobs are set nevertheless.
    ///
    /// # Errors
    /// Returns the first error.
    pub fn apply(&self, machine: &mut Machine) -> Result<(), TuneError> {
        let mut outcome = Ok(());
        for (knob, value) in &self.0 {
            let has_value = machine.read(knob).is_ok_and(|now| machine.is_same(knob, &now, value));
            if !has_value {
                outcome = outcome.and(machine.write(knob, value));
            }
        }
        outcome
    }

    /// Returns the knobs of this setting whose present value differs from the value in the setting.
    pub fn differences(&self, machine: &mut Machine) -> Vec<Difference> {
        let mut differences = Vec::new();
        for (knob, wanted) in &self.0 {
            let now = machine.read(knob).ok();
            if !now.as_ref().is_some_and(|now| machine.is_same(knob, now, wanted)) {
                differences.push(Difference { knob: knob.clone(), wanted: wanted.clone(), now });
            }
        }
        differences
    }
}
