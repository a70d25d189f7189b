//! The values of knobs, which can be read, applied and compared.

use std::collections::BTreeMap;

use crate::error::TuneError;
use crate::machine::Machine;

/// A name of one value of the machine. It is a file of /sys or /proc, or a value of ethtool, whose
/// name begins with `/ethtool/IFACE/`, such as `/ethtool/eth0/rings/rx`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Knob(pub String);

/// The values of some knobs, in the kernel's own words.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Setting(pub BTreeMap<Knob, String>);

impl Setting {
    /// The present values of the knobs. Knobs that have no value now are left out.
    pub fn read(machine: &mut Machine, knobs: impl IntoIterator<Item = Knob>) -> Self {
        Self(knobs.into_iter().filter_map(|knob| machine.read(&knob).ok().map(|value| (knob, value))).collect())
    }

    /// Sets all knobs to these values, in order, and leaves out knobs that have the value already.
    /// If one fails, the others are set nevertheless.
    ///
    /// # Errors
    ///
    /// The first failure.
    pub fn apply(&self, machine: &mut Machine) -> Result<(), TuneError> {
        let mut first = Ok(());
        for (knob, value) in &self.0 {
            if !machine.read(knob).is_ok_and(|now| same(&now, value)) {
                first = first.and(machine.write(knob, value));
            }
        }
        first
    }

    /// The knobs whose present value differs, with that value (`None` if the knob has vanished).
    pub fn differences(&self, machine: &mut Machine) -> Vec<(Knob, Option<String>)> {
        let now = self.0.iter().map(|(knob, value)| (knob, value, machine.read(knob).ok()));
        now.filter(|(_, value, now)| !now.as_ref().is_some_and(|now| same(now, value)))
            .map(|(knob, _, now)| (knob.clone(), now))
            .collect()
    }
}

/// Whether two texts of the kernel are the same value: masks may have more leading zeros, and
/// commas between their words.
pub fn same(one: &str, other: &str) -> bool {
    fn digits(text: &str) -> impl Iterator<Item = char> + '_ {
        text.trim().chars().filter(|c| *c != ',').skip_while(|c| *c == '0')
    }
    digits(one).eq(digits(other))
}
