//! A *plan* lists the knobs that must change to reach the values of a `Wish`.

use std::collections::BTreeMap;

use steerage::{CpuId, CpuMask};

use crate::irq;
use crate::knob::Knob;
use crate::machine::Machine;
use crate::setting::Setting;
use crate::stage::{Kind, STAGES, Scope, Stage};

/// The value that a stage's knobs should get.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Value {
    /// Each knob gets this CPU mask. An empty mask turns the feature of the knob (such as RPS) off.
    Cpus(CpuMask),
    /// The CPUs are divided among the knobs. If the knobs are interrupts, or if there are more
    /// knobs than CPUs, each knob gets one CPU.
    Spread(CpuMask),
    /// Each knob gets this number.
    Number(u64),
    /// Each knob gets this text.
    Text(String),
}

/// The values that knobs should get, by the name of the stage. The knobs of other stages stay as
/// they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wish(pub BTreeMap<&'static str, Value>);

impl Wish {
    /// Adds a value for the knobs of a stage.
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
    /// The knob that is changed.
    pub knob: Knob,
    /// The value before the change.
    pub old: String,
    /// The value after the change.
    pub new: String,
    /// The reason for the change.
    pub why: &'static str,
}

impl Change {
    /// Returns the shell command that makes this change.
    pub fn command(&self) -> String {
        self.knob.command(&self.new)
    }
}

/// The changes that fulfil a `Wish`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The changes, in the order of the table of stages.
    pub changes: Vec<Change>,
    /// Notes for the user about what the plan omits, or what cannot be undone exactly.
    pub notes: Vec<String>,
    /// Knobs that the kernel may reset, such as the knobs of all queues when the number of queues
    /// changes.
    pub dependent: Setting,
}

impl Plan {
    /// Returns the old values of the changed knobs and of the knobs that the changes may reset.
    pub fn old(&self) -> Setting {
        let mut old = self.dependent.clone();
        old.0.extend(self.changes.iter().map(|change| (change.knob.clone(), change.old.clone())));
        old
    }

    /// Returns the values of the changed knobs after the changes.
    pub fn new_setting(&self) -> Setting {
        Setting(self.changes.iter().map(|change| (change.knob.clone(), change.new.clone())).collect())
    }

    /// Returns true if a stage of the plan may take the link down.
    pub fn may_take_the_link_down(&self) -> bool {
        self.changes.iter().any(|change| Stage::named(change.stage).is_some_and(|stage| stage.scope == Scope::Reset))
    }
}

/// The stages that the command-line options permit.
#[derive(Clone, Debug)]
pub struct Stages(Vec<Scope>);

impl Default for Stages {
    fn default() -> Self {
        Self(vec![Scope::Interface])
    }
}

impl Stages {
    /// Also permits the stages of `scope`.
    #[must_use]
    pub fn with(mut self, scope: Scope) -> Self {
        self.0.push(scope);
        self
    }

    /// Returns true if stages with this [`Scope`] (command-line option) are permitted.
    pub fn has(&self, scope: Scope) -> bool {
        self.0.contains(&scope)
    }

    /// Returns the permitted stages, in the order of the table of stages.
    pub fn iter(&self) -> impl Iterator<Item = &'static Stage> + '_ {
        STAGES.iter().filter(|stage| self.0.contains(&stage.scope))
    }

    /// Plans the changes that fulfil `wish`. The plan omits knobs that already have the wanted
    /// value.
    pub fn plan(&self, machine: &mut Machine, interface: &str, wish: &Wish) -> Plan {
        let mut plan = Plan::default();
        for stage in self.iter() {
            let Some(value) = wish.0.get(stage.name) else { continue };
            let before = plan.changes.len();
            plan_stage(machine, interface, stage, value, &mut plan);
            if plan.changes.len() > before && !stage.not_restored.is_empty() {
                plan.notes.push(format!("{}: {}", stage.name, stage.not_restored));
            }
        }
        if plan.changes.iter().any(|change| change.stage.starts_with("channels")) {
            let of_queues =
                STAGES.iter().filter(|stage| stage.pattern.contains("/queues/") || stage.name == "rss_table");
            let knobs: Vec<Knob> = of_queues.flat_map(|stage| knobs(machine, interface, stage)).collect();
            plan.dependent = Setting::read(machine, knobs);
        }
        plan
    }
}

fn plan_stage(machine: &mut Machine, interface: &str, stage: &'static Stage, value: &Value, plan: &mut Plan) {
    let (knobs, notes) = knobs_and_notes(machine, interface, stage);
    plan.notes.extend(notes);
    let count = knobs.len();
    for (nth, knob) in knobs.into_iter().enumerate() {
        let Ok(old) = machine.read(&knob) else {
            // Knobs that cannot be read are skipped, such as `xps_cpus` of a device with one
            // transmit queue.
            tracing::debug!(%knob, "has no value");
            continue;
        };
        let new = text(machine, stage, value, nth, count);
        if !machine.is_same(&knob, &old, &new) {
            plan.changes.push(Change { stage: stage.name, knob, old, new, why: stage.why });
        }
    }
}

/// Returns the value as text. Numbers are limited to the maximum of the stage.
fn text(machine: &Machine, stage: &Stage, value: &Value, nth: usize, count: usize) -> String {
    let online = machine.topology().online();
    let mask = |cpus: &CpuMask| cpus.and(online).to_bitmap(machine.nr_cpu_ids());
    match value {
        Value::Cpus(cpus) => mask(cpus),
        Value::Spread(cpus) => {
            let cpus: Vec<CpuId> = cpus.and(online).iter().collect();
            let alone = stage.scope == Scope::Irq || count >= cpus.len();
            let own = cpus.iter().enumerate().filter(|(at, _)| match alone {
                true => *at == nth % cpus.len().max(1),
                false => at % count == nth,
            });
            mask(&own.map(|(_, cpu)| *cpu).collect())
        }
        Value::Number(number) if stage.kind == Kind::PowerOfTwo && *number > 0 => {
            number.checked_next_power_of_two().unwrap_or(stage.max).min(stage.max).to_string()
        }
        Value::Number(number) => number.min(&stage.max).to_string(),
        Value::Text(text) => text.clone(),
    }
}

pub(crate) fn knobs(machine: &Machine, interface: &str, stage: &Stage) -> Vec<Knob> {
    knobs_and_notes(machine, interface, stage).0
}

fn knobs_and_notes(machine: &Machine, interface: &str, stage: &Stage) -> (Vec<Knob>, Vec<String>) {
    if stage.scope == Scope::Irq {
        return irq::knobs(machine, interface);
    }
    let name = stage.pattern.replace("{iface}", interface);
    let Some((start, end)) = name.split_once('*') else {
        let exists = name.starts_with(crate::knob::CARDS)
            || (name == crate::knob::DISSECTOR && machine.has_dissector())
            || machine.root().exists(&name);
        let note =
            (!exists).then(|| format!("{}: this kernel does not have it (Linux {} does)", stage.name, stage.since));
        return (exists.then_some(Knob(name)).into_iter().collect(), note.into_iter().collect());
    };
    let (directory, prefix) = start.rsplit_once('/').unwrap_or(("", start));
    let names = machine.root().names(directory);
    let queues = names.iter().filter(|name| name.starts_with(prefix));
    (queues.map(|queue| Knob(format!("{directory}/{queue}{end}"))).collect(), Vec::new())
}
