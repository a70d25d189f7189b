//! A stage: one kind of knob, its bound and its reason. Stages are rows of a table.

use std::collections::BTreeMap;
use std::fmt;

use steerage::CpuMask;

use crate::machine::Machine;
use crate::setting::{Knob, Setting};

/// Which option makes a stage part of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Always: knobs of one interface that change nothing else.
    Interface,
    /// `--global`: knobs of the whole network namespace or machine.
    Global,
    /// `--irq`: the CPUs of interrupts.
    Irq,
    /// `--allow-reset`: knobs of the card, which may take the link down for a moment.
    Reset,
}

/// The kind of values that a stage's knobs have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A mask of CPUs.
    Cpus,
    /// A number.
    Number,
    /// Text, such as a table or a key.
    Text,
}

/// A row of the table of stages.
#[derive(Debug)]
pub struct Stage {
    /// The name, which is that of the kernel's file.
    pub name: &'static str,
    /// The option that it needs.
    pub scope: Scope,
    /// The knobs: `{iface}` is the interface, and `*` stands for each queue or interrupt.
    pub pattern: &'static str,
    /// The kind of its values.
    pub kind: Kind,
    /// The largest number that is ever set.
    pub max: u64,
    /// Why no larger number is set.
    pub bound: &'static str,
    /// The first Linux that has it.
    pub since: &'static str,
    /// Why the value is changed.
    pub why: &'static str,
}

/// What a candidate wants of a stage.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Value {
    /// Each knob has this mask.
    Cpus(CpuMask),
    /// Each knob has one of these CPUs, in turn.
    Spread(CpuMask),
    /// Each knob has this number. A mask of 0 is [`Value::Number`] 0, too.
    Number(u64),
    /// Each knob has this text.
    Text(String),
}

/// What a candidate wants: a value for each stage by its name. Stages without a value stay as they
/// are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wish(pub BTreeMap<&'static str, Value>);

impl Wish {
    /// Also wants this value.
    #[must_use]
    pub fn set(mut self, stage: &'static str, value: Value) -> Self {
        self.0.insert(stage, value);
        self
    }
}

/// A change of one knob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The name of the stage.
    pub stage: &'static str,
    /// What changes.
    pub knob: Knob,
    /// The value now.
    pub old: String,
    /// The value then.
    pub new: String,
    /// Why.
    pub why: &'static str,
}

impl Change {
    /// The command that a person would type.
    pub fn command(&self) -> String {
        format!("echo {} > {}", self.new, self.knob.0)
    }
}

/// What would be changed, and what was left out and why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The changes, in the order in which they are made.
    pub changes: Vec<Change>,
    /// One line for each thing that is left out, or cannot be undone exactly.
    pub notes: Vec<String>,
}

impl Plan {
    /// The values before.
    pub fn old(&self) -> Setting {
        Setting(self.changes.iter().map(|change| (change.knob.clone(), change.old.clone())).collect())
    }

    /// The values afterwards.
    pub fn new(&self) -> Setting {
        Setting(self.changes.iter().map(|change| (change.knob.clone(), change.new.clone())).collect())
    }
}

/// The stages that the options permit.
#[derive(Clone, Debug)]
pub struct Stages(Vec<Scope>);

impl Default for Stages {
    fn default() -> Self {
        Self(vec![Scope::Interface])
    }
}

impl Stages {
    /// Also permits these stages.
    #[must_use]
    pub fn with(mut self, scope: Scope) -> Self {
        self.0.push(scope);
        self
    }

    /// What must change so that the wish is fulfilled. Only reads. Knobs that have the value already
    /// are left out.
    pub fn plan(&self, machine: &mut Machine, interface: &str, wish: &Wish) -> Plan {
        let _ = (machine, interface, wish);
        Plan::default()
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.command())
    }
}
