//! Compares each candidate setting with the present setting by measuring both in turn. Settings
//! that help are kept, and all other settings are undone.

use std::fmt;
use std::time::Duration;

use crate::candidates::{CANDIDATES_MAX, Candidate};
use crate::error::TuneError;
use crate::facts::{Facts, Sample};
use crate::machine::Machine;
use crate::plan::{Plan, Stages, Wish};
use crate::setting::Setting;
use crate::verdict::{Reason, Verdict, Window};

/// The minimum time between two changes of settings on a machine that is in use. A minimum is
/// necessary because each change may reorder packets that are in flight.
pub const WINDOW_MIN: Duration = Duration::from_secs(5);

/// The default number of pairs of measurement windows (measuring times). With six pairs of
/// measurements, the confidence interval is 3.3 times as wide as the deviation of a single pair.
/// With five pairs of measurements, the confidence interval would be wider by a quarter.
pub const PAIRS: usize = 6;

/// The default time between a change of a setting and the measurement. Directly after a change, the
/// backlogs still contain packets that were steered with the previous setting. This default time is
/// enough for a CPU that handles 100,000 packets per second to empty the largest backlog that
/// `tune` sets.
const SETTLE: Duration = Duration::from_secs(1);

/// During one measurement window, dropped packets are checked this number of times.
const LOOKS: u32 = 10;

/// How to measure.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The length of a window.
    pub window: Duration,
    /// The time between a change of a setting and the measurement.
    pub settle: Duration,
    /// The number of pairs of measurement windows for each candidate.
    pub pairs: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { window: WINDOW_MIN, settle: SETTLE, pairs: PAIRS }
    }
}

/// What is measured: an interface of a machine, or a test with prepared counters.
pub trait Site {
    /// Plans which knobs must change to set the values in `wish`.
    fn plan(&mut self, wish: &Wish) -> Plan;

    /// Sets the knobs of a setting.
    ///
    /// # Errors
    /// Fails if a knob cannot be set.
    fn apply(&mut self, setting: &Setting) -> Result<(), TuneError>;

    /// Reads the present values of the counters.
    fn sample(&mut self) -> Sample;

    /// Waits for the duration `time`. Returns false if the user wants to end the measurement.
    fn wait(&mut self, time: Duration) -> bool;
}

/// A measurement of an interface of this machine.
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
    /// Creates a measurement of the interface. The function `wait` waits for a duration. `wait`
    /// returns false if the measurement should end.
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

/// The result of comparing a candidate with the best setting found before it.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// The name of the candidate.
    pub name: String,
    /// The changes that the candidate setting makes.
    pub plan: Plan,
    /// The verdict on the candidate, or `None` if the kernel refused the setting.
    pub verdict: Option<Verdict>,
    /// The reason why the kernel refused the setting.
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

/// The result of a search.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Search {
    /// The results for the candidates that were measured, in the order of measurement.
    pub compared: Vec<Comparison>,
    /// The names of the candidates that were not measured, because there were too many candidates
    /// or too few packets.
    pub left_out: Vec<String>,
    /// True if the user ended the measurement. After the user has ended the measurement, all
    /// settings have the values from before the measurement.
    pub interrupted: bool,
}

impl Search {
    /// Returns true if the measurement ended because too few packets arrived.
    pub fn has_too_few_packets(&self) -> bool {
        let reason = |one: &Comparison| one.verdict.as_ref().map(|verdict| verdict.reason);
        self.compared.last().and_then(reason) == Some(Reason::TooFew)
    }

    /// Returns the plans of the candidates that were kept, in the order of measurement.
    pub fn kept(&self) -> impl Iterator<Item = &Plan> {
        let is_kept = |one: &&Comparison| one.verdict.as_ref().is_some_and(|verdict| verdict.keep);
        self.compared.iter().filter(is_kept).map(|one| &one.plan)
    }
}

/// Compares each candidate setting with the best setting found before it. At most
/// [`CANDIDATES_MAX`] candidates are measured, and candidates that change nothing are skipped. The
/// function `report` is called with the result for each candidate.
///
/// # Errors
/// Fails if a knob cannot be set to its old value. If a knob could not be set to its old value, the
/// caller restores all settings from its undo file.
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

/// Measures the old and the new setting alternately. After the comparison, the new setting is
/// active. Returns `None` if the user wants to end the measurement.
fn compare(site: &mut dyn Site, facts: &Facts, plan: &Plan, options: &Options) -> Result<Option<Verdict>, TuneError> {
    let threads = facts.threaded == Some(true) || plan.changes.iter().any(|change| change.stage == "threaded");
    let card = facts.driver.is_some();
    let (mut olds, mut pairs) = (Vec::new(), Vec::new());
    for _ in 0..options.pairs {
        site.apply(&plan.old())?;
        let Some((old, _)) = window(site, options, |passed, seconds| Window::of(passed, seconds, card, threads), None)
        else {
            return Ok(None);
        };
        olds.push(old);
        site.apply(&plan.new_setting())?;
        let measured = |passed: &Sample, seconds| Window::of(passed, seconds, card, threads);
        let Some((new, drops_rose)) = window(site, options, measured, Some(&olds)) else { return Ok(None) };
        pairs.push((old, new));
        if drops_rose {
            return Ok(Some(Verdict::of(&pairs, true)));
        }
        if Verdict::of(&pairs, false).reason == Reason::TooFew {
            break;
        }
    }
    Ok(Some(Verdict::of(&pairs, false)))
}

/// Measures one window. The returned boolean is true if the measurement window ended early, because
/// more packets were lost than in the windows in `before`.
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
        // The exact length of the measurement window is read from the counters, because a wait may
        // take longer than requested on a busy machine.
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
