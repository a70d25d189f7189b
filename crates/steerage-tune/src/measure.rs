//! Compares each candidate setting with the present setting, in turn, and keeps the candidates that
//! help.

use std::fmt;
use std::time::Duration;

use crate::candidates::{CANDIDATES_MAX, Candidate};
use crate::error::TuneError;
use crate::facts::{Facts, Sample};
use crate::machine::Machine;
use crate::plan::{Plan, Stages, Wish};
use crate::setting::Setting;
use crate::verdict::{Reason, Verdict, Window};

/// The minimum time between two changes, each of which may reorder packets in flight.
pub const WINDOW_MIN: Duration = Duration::from_secs(5);

/// The default number of pairs of windows. With six pairs, the confidence interval is 3.3 times as
/// wide as the standard deviation of the pairs' ratios. Five pairs would make the interval a
/// quarter wider than six pairs.
pub const PAIRS: usize = 6;

/// The default time between a change and the measurement. After a change, the backlogs still
/// contain packets that were steered before the change. A CPU that handles 100,000 packets per
/// second needs one second to empty the largest backlog that `tune` sets.
const SETTLE: Duration = Duration::from_secs(1);

/// The number of times that `tune` checks for drops during a window (one measurement).
const LOOKS: u32 = 10;

/// The options of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The length of a window (one measurement).
    pub window: Duration,
    /// The time between a change of settings and the measurement.
    pub settle: Duration,
    /// The number of pairs of windows for each candidate.
    pub pairs: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { window: WINDOW_MIN, settle: SETTLE, pairs: PAIRS }
    }
}

/// What is measured: an interface, or prepared counters in tests.
pub trait Site {
    /// Plans the changes that give the knobs the wanted values.
    fn plan(&mut self, wish: &Wish) -> Plan;

    /// Sets the knobs in `setting` to their values.
    ///
    /// # Errors
    /// Fails if a knob cannot be set.
    fn apply(&mut self, setting: &Setting) -> Result<(), TuneError>;

    /// Reads the counters of the interface and the CPUs.
    fn sample(&mut self) -> Sample;

    /// Waits for `time`. Returns false if the user wants to end the measurement.
    fn wait(&mut self, time: Duration) -> bool;
}

/// An interface of this machine.
pub struct Live<'a> {
    machine: &'a mut Machine,
    stages: &'a Stages,
    interface: &'a str,
    wait: &'a mut dyn FnMut(Duration) -> bool,
}

impl fmt::Debug for Live<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Live, {}", self.interface)
    }
}

impl<'a> Live<'a> {
    /// Prepares the measurement of an interface. The function `wait` waits, and returns false if
    /// the measurement should end.
    pub fn new(
        machine: &'a mut Machine,
        stages: &'a Stages,
        interface: &'a str,
        wait: &'a mut dyn FnMut(Duration) -> bool,
    ) -> Self {
        Self { machine, stages, interface, wait }
    }
}

impl Site for Live<'_> {
    fn plan(&mut self, wish: &Wish) -> Plan {
        self.stages.plan(self.machine, self.interface, wish)
    }

    fn apply(&mut self, setting: &Setting) -> Result<(), TuneError> {
        setting.apply(self.machine)
    }

    fn sample(&mut self) -> Sample {
        Sample::read(self.machine.root(), self.interface)
    }

    fn wait(&mut self, time: Duration) -> bool {
        (self.wait)(time)
    }
}

/// The comparison of a candidate with the best setting found before.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// The name of the candidate.
    pub name: String,
    /// The changes that the candidate makes.
    pub plan: Plan,
    /// The verdict, or `None` if the kernel refused the candidate's values.
    pub verdict: Option<Verdict>,
    /// Why the kernel refused the candidate's values.
    pub refused: Option<String>,
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.verdict, &self.refused) {
            (Some(verdict), _) => write!(f, "{}: {verdict}", self.name),
            (None, Some(why)) => write!(f, "{}: taken back: {why}", self.name),
            (None, None) => write!(f, "{}: not measured", self.name),
        }
    }
}

/// The result of a search for the best setting.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Search {
    /// The measured candidates, in the order of measurement.
    pub compared: Vec<Comparison>,
    /// The candidates that were not measured, because there were too many candidates or too few
    /// packets.
    pub left_out: Vec<String>,
    /// True if the user ended the measurement, after which all settings have their old values
    /// again.
    pub interrupted: bool,
}

impl Search {
    /// Returns true if the search ended because too few packets arrived.
    pub fn has_too_few_packets(&self) -> bool {
        let reason = |one: &Comparison| one.verdict.as_ref().map(|verdict| verdict.reason);
        self.compared.last().and_then(reason) == Some(Reason::TooFew)
    }

    /// Returns the plans of the kept candidates, in order.
    pub fn kept(&self) -> impl Iterator<Item = &Plan> {
        let is_kept = |one: &&Comparison| one.verdict.as_ref().is_some_and(|verdict| verdict.keep);
        self.compared.iter().filter(is_kept).map(|one| &one.plan)
    }
}

/// Compares each candidate with the best setting found before it. `search` skips candidates that
/// change nothing, measures at most [`CANDIDATES_MAX`] candidates, and calls `report` for each.
///
/// # Errors
/// Fails if a knob cannot get its old value back. After an error, the caller restores the old
/// values from the undo file.
pub fn search(
    site: &mut dyn Site,
    facts: &Facts,
    candidates: impl IntoIterator<Item = Candidate>,
    options: &Options,
    report: &mut dyn FnMut(&Comparison),
) -> Result<Search, TuneError> {
    let (mut search, mut is_silent) = (Search::default(), false);
    for candidate in candidates {
        let plan = site.plan(&candidate.wish);
        if plan.changes.is_empty() {
            continue;
        }
        if is_silent || search.compared.len() == CANDIDATES_MAX {
            search.left_out.push(candidate.name);
            continue;
        }
        let mut comparison = Comparison { name: candidate.name, plan, verdict: None, refused: None };
        match compare(site, facts, &comparison.plan, options) {
            Ok(Some(verdict)) => comparison.verdict = Some(verdict),
            Ok(None) => {
                search.interrupted = true;
                comparison.plan.old_first(site)?;
                let kept: Vec<Plan> = search.kept().cloned().collect();
                kept.iter().rev().try_for_each(|plan| plan.old_first(site))?;
                return Ok(search);
            }
            Err(error) => comparison.refused = Some(error.to_string()),
        }
        if !comparison.verdict.as_ref().is_some_and(|verdict| verdict.keep) {
            comparison.plan.old_first(site)?;
        }
        report(&comparison);
        is_silent = comparison.verdict.as_ref().is_some_and(|verdict| verdict.reason == Reason::TooFew);
        search.compared.push(comparison);
    }
    Ok(search)
}

impl Plan {
    fn old_first(&self, site: &mut dyn Site) -> Result<(), TuneError> {
        site.apply(&self.old())
    }
}

/// Measures the old and the new setting in turn, and leaves the new setting active. Returns `None`
/// if the user ends the measurement.
fn compare(site: &mut dyn Site, facts: &Facts, plan: &Plan, options: &Options) -> Result<Option<Verdict>, TuneError> {
    let threads = facts.threaded == Some(true) || plan.changes.iter().any(|change| change.stage == "threaded");
    let card = facts.driver.is_some();
    let measured = |passed: &Sample, seconds| Window::of(passed, seconds, card, threads);
    let (mut olds, mut pairs) = (Vec::new(), Vec::new());
    for _ in 0..options.pairs {
        site.apply(&plan.old())?;
        let Some((old, _)) = window(site, options, measured, None) else { return Ok(None) };
        olds.push(old);
        site.apply(&plan.new_setting())?;
        let Some((new, drops_rose)) = window(site, options, measured, Some(&olds)) else { return Ok(None) };
        pairs.push((old, new));
        if drops_rose || Verdict::of(&pairs, false).reason == Reason::TooFew {
            return Ok(Some(Verdict::of(&pairs, drops_rose)));
        }
    }
    Ok(Some(Verdict::of(&pairs, false)))
}

/// Measures one window. The returned boolean is true if the window ended early, with more losses
/// than the windows in `before`.
fn window(
    site: &mut dyn Site,
    options: &Options,
    measured: impl Fn(&Sample, f64) -> Window,
    before: Option<&[Window]>,
) -> Option<(Window, bool)> {
    if !site.wait(options.settle) {
        return None;
    }
    let first = site.sample();
    let look = options.window / LOOKS;
    let mut seconds = 0.0;
    loop {
        if !site.wait(look) {
            return None;
        }
        seconds += look.as_secs_f64();
        let passed = site.sample().since(&first);
        // A wait may take longer than requested, so the length of the window is computed from the
        // counters.
        let exact = if passed.uptime > 0 { passed.uptime as f64 / 100.0 } else { seconds };
        let window = measured(&passed, exact);
        if before.is_some_and(|before| window.loses_more_than(before)) {
            return Some((window, true));
        }
        if seconds >= options.window.as_secs_f64() * (1.0 - 0.5 / f64::from(LOOKS)) {
            return Some((window, false));
        }
    }
}

#[cfg(test)]
mod tests;
