use std::borrow::Cow;
use std::cell::Cell;
use std::error::Error;
use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use steerage_topology::CpuId;

use crate::counter::Counter;
use crate::limits::{COUNTER_NAME_MAX, COUNTERS_MAX};

const LINE_COUNTS: usize = 16;

/// The counts of one CPU, in two cache lines because CPUs fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Line([Counter; LINE_COUNTS]);

const _: () = assert!(size_of::<Line>() == 128 && LINE_COUNTS.is_power_of_two());

#[derive(Clone, Debug, PartialEq, Eq)]
struct Declared {
    name: Cow<'static, str>,
    help: Cow<'static, str>,
    unit: Cow<'static, str>,
}

#[derive(Debug, Default)]
struct Set {
    declared: Vec<Declared>,
    /// The counts of each CPU. The count of counter `n` is in the `Line` with the number `n /
    /// LINE_COUNTS`.
    lines: Vec<(CpuId, Vec<Arc<Line>>)>,
}

impl Set {
    fn line(&mut self, cpu: CpuId, nth: usize) -> Arc<Line> {
        let at = self.lines.iter().position(|(other, _)| *other == cpu).unwrap_or_else(|| {
            self.lines.push((cpu, Vec::new()));
            self.lines.len() - 1
        });
        let lines = &mut self.lines[at].1;
        while lines.len() <= nth {
            lines.push(Arc::default());
        }
        Arc::clone(&lines[nth])
    }

    fn counts(&self, counter: usize) -> impl Iterator<Item = u64> + '_ {
        let (nth, at) = (counter / LINE_COUNTS, counter % LINE_COUNTS);
        self.lines.iter().map(move |(_, lines)| lines.get(nth).map_or(0, |line| line.0[at].get()))
    }
}

/// The counters of a packet function. Each counter has a name, and one count for each CPU, which
/// only that CPU writes. Adding to a count takes no lock, but only a load and a store in a cache
/// line that no other CPU writes. Any thread can read the counts at any time.
///
/// `Builder::counters` returns the counters of an instance, which appear in its snapshots, in
/// metrics, and in `steerage top`. Tests create their own set of counters.
///
/// A count outlives its handler: after a panic, the next handler of the CPU adds to the same count.
/// After a flow has moved to another CPU, the new CPU counts the flow's packets. Use a counter's
/// total over all CPUs, because flows may move.
///
/// ```
/// # mod steerage { pub mod stats { pub use steerage_ledger::*; } pub use steerage_topology::CpuId; }
/// use steerage::CpuId;
/// use steerage::stats::Counters;
///
/// let counters = Counters::new();
/// let passed = counters.add("passed", "Packets within the rate of their flow.", "packets")?;
/// // A handler asks for its count once, when it is made, and adds to it for each packet or batch.
/// let on_cpu_1 = passed.on(CpuId(1));
/// on_cpu_1.add(64);
/// assert_eq!(passed.total(), 64);
/// # Ok::<(), steerage::stats::CounterError>(())
/// ```
///
/// A clone of `Counters` refers to the same counters.
#[derive(Clone, Default)]
pub struct Counters(Arc<Mutex<Set>>);

impl Counters {
    /// Creates an empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Declares a counter.
    ///
    /// The name has lower-case letters, digits and `_`, without prefix, unit or `_total`. `help` is
    /// a sentence, and `unit` a plural such as `packets`, or empty for a plain number. The metric's
    /// name is `PREFIX_NAME_UNIT_total`.
    ///
    /// If a counter with the same name, help text and unit exists, `add` returns it, so that the
    /// function that creates the handlers may declare the same counters for each CPU.
    ///
    /// # Errors
    /// Returns [`CounterError`] if the name or the unit is malformed, if there are already
    /// [`COUNTERS_MAX`] counters, or if a counter with this name has another help text or unit.
    pub fn add(
        &self,
        name: impl Into<Cow<'static, str>>,
        help: impl Into<Cow<'static, str>>,
        unit: impl Into<Cow<'static, str>>,
    ) -> Result<NamedCounter, CounterError> {
        let new = Declared { name: name.into(), help: help.into(), unit: unit.into() };
        if !is_name(&new.name) || new.name.ends_with(SUFFIX) {
            return Err(CounterError::Name(new.name.into_owned()));
        }
        if !new.unit.is_empty() && !is_name(&new.unit) {
            return Err(CounterError::Unit { counter: new.name.into_owned(), unit: new.unit.into_owned() });
        }
        let mut set = self.locked();
        let at = match set.declared.iter().position(|other| other.name == new.name) {
            Some(at) if set.declared[at] == new => at,
            Some(_) => return Err(CounterError::Differs(new.name.into_owned())),
            None if set.declared.len() >= COUNTERS_MAX => return Err(CounterError::TooMany(new.name.into_owned())),
            None => {
                set.declared.push(new);
                set.declared.len() - 1
            }
        };
        drop(set);
        Ok(NamedCounter { counters: self.clone(), at })
    }

    /// Reads all counters in the order of declaration, with the counts of `cpus`.
    pub fn snapshot(&self, cpus: &[CpuId]) -> Vec<CounterSnapshot> {
        let set = self.locked();
        let places: Vec<_> = set.lines.iter().map(|(cpu, _)| cpus.iter().position(|other| other == cpu)).collect();
        let read = |(counter, Declared { name, help, unit }): (usize, &Declared)| {
            let (mut total, mut by_cpu) = (0, vec![0; cpus.len()]);
            for (count, place) in set.counts(counter).zip(&places) {
                total += count;
                if let Some(place) = place {
                    by_cpu[*place] = count;
                }
            }
            CounterSnapshot { name: name.clone(), help: help.clone(), unit: unit.clone(), total, by_cpu }
        };
        set.declared.iter().enumerate().map(read).collect()
    }

    /// The code that holds this lock never panics, and is never called to count packets.
    fn locked(&self) -> MutexGuard<'_, Set> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = self.locked();
        f.debug_list().entries(set.declared.iter().map(|declared| &declared.name)).finish()
    }
}

const SUFFIX: &str = "_total";

fn is_name(text: &str) -> bool {
    let is_legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    text.len() <= COUNTER_NAME_MAX
        && text.as_bytes().first().is_some_and(u8::is_ascii_lowercase)
        && text.bytes().all(is_legal)
}

/// A counter that was declared with [`Counters::add`]. Clones of a `NamedCounter` refer to the same
/// counter.
#[derive(Clone)]
pub struct NamedCounter {
    counters: Counters,
    at: usize,
}

impl NamedCounter {
    /// Returns the count of `cpu`. Call `on` when the CPU's handler is created. Only the thread of
    /// this CPU may add to the count, or else some additions are lost.
    pub fn on(&self, cpu: CpuId) -> CpuCounter {
        let line = self.counters.locked().line(cpu, self.at / LINE_COUNTS);
        CpuCounter { line, at: self.at % LINE_COUNTS, one_thread: PhantomData }
    }

    /// Returns the sum of the counts of all CPUs.
    pub fn total(&self) -> u64 {
        self.counters.locked().counts(self.at).sum()
    }
}

impl fmt::Debug for NamedCounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.counters.locked().declared[self.at].name.clone();
        f.debug_struct("NamedCounter").field("name", &name).field("total", &self.total()).finish()
    }
}

/// The count of one CPU, for the CPU's handler.
pub struct CpuCounter {
    line: Arc<Line>,
    at: usize,
    /// Prevents two threads from sharing the count.
    one_thread: PhantomData<Cell<u64>>,
}

impl CpuCounter {
    /// Adds `n` to the count.
    #[inline(always)]
    pub fn add(&self, n: u64) {
        self.line.0[self.at % LINE_COUNTS].add(n);
    }

    /// The count of this CPU.
    #[inline(always)]
    pub fn get(&self) -> u64 {
        self.line.0[self.at % LINE_COUNTS].get()
    }
}

impl fmt::Debug for CpuCounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CpuCounter").field(&self.get()).finish()
    }
}

/// The value of a packet function's counter at one point in time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[non_exhaustive]
pub struct CounterSnapshot {
    /// The name of the counter.
    pub name: Cow<'static, str>,
    /// The counter's help text: a sentence that says what is counted.
    pub help: Cow<'static, str>,
    /// The unit, such as `packets`. Empty for a mere number.
    pub unit: Cow<'static, str>,
    /// The sum of all counts, including those of CPUs that do not belong to the instance.
    pub total: u64,
    /// The count of each CPU, in the order of [`Snapshot::cpus`](crate::Snapshot::cpus).
    pub by_cpu: Vec<u64>,
}

/// The reason why a counter could not be declared.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CounterError {
    /// The name cannot be used as the name of a metric.
    Name(String),
    /// The unit cannot be used as the unit of a metric.
    Unit {
        /// The name of the counter.
        counter: String,
        /// The unit.
        unit: String,
    },
    /// A counter with this name already exists, and has another help text or unit.
    Differs(String),
    /// There are already [`COUNTERS_MAX`] counters.
    TooMany(String),
}

impl fmt::Display for CounterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let form = "small letters, digits and `_`, and the first is a letter";
        match self {
            Self::Name(name) => write!(
                f,
                "cannot declare the counter `{}`: a name has up to {COUNTER_NAME_MAX} {form}, and does not end in `{SUFFIX}`",
                name.escape_debug()
            ),
            Self::Unit { counter, unit } => write!(
                f,
                "cannot declare the counter `{counter}` in `{}`: a unit is empty, or has up to {COUNTER_NAME_MAX} {form}",
                unit.escape_debug()
            ),
            Self::Differs(name) => write!(
                f,
                "cannot declare the counter `{name}`: a counter of this name has another help text or unit; choose another \
                 name"
            ),
            Self::TooMany(name) => {
                write!(f, "cannot declare the counter `{name}`: there are {COUNTERS_MAX} counters already")
            }
        }
    }
}

impl Error for CounterError {}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn counts_add_up_and_each_cpu_has_its_own() {
        let counters = Counters::new();
        let passed = counters.add("passed", "Packets within their rate.", "packets").unwrap();
        let bytes = counters.add("seen", "", "bytes").unwrap();
        let (one, two, elsewhere) = (passed.on(CpuId(1)), passed.on(CpuId(2)), passed.on(CpuId(9)));
        one.add(3);
        two.add(4);
        elsewhere.add(5);
        bytes.on(CpuId(2)).add(64);
        let read = counters.snapshot(&[CpuId(0), CpuId(1), CpuId(2)]);
        let shown = |of: &CounterSnapshot| (of.name.to_string(), of.unit.to_string(), of.total, of.by_cpu.clone());
        assert_eq!(shown(&read[0]), ("passed".to_owned(), "packets".to_owned(), 12, vec![0, 3, 4]));
        assert_eq!(shown(&read[1]), ("seen".to_owned(), "bytes".to_owned(), 64, vec![0, 0, 64]));
        drop(one);
        passed.on(CpuId(1)).add(1);
        assert_eq!((passed.on(CpuId(1)).get(), passed.total()), (4, 13));
    }

    #[test]
    fn lines_of_cpus_are_apart() {
        let counters = Counters::new();
        let all: Vec<NamedCounter> =
            (0..LINE_COUNTS + 1).map(|nth| counters.add(format!("of_{nth}"), "", "").unwrap()).collect();
        let at = |counter: &NamedCounter, cpu| {
            let count = counter.on(CpuId(cpu));
            std::ptr::from_ref(&count.line.0[count.at]) as usize
        };
        let lines = |cpu| all.iter().map(move |counter| at(counter, cpu) / 128).collect::<Vec<_>>();
        let (mut one, two) = (lines(0), lines(1));
        assert!(one.iter().all(|line| !two.contains(line)), "{one:?} {two:?}");
        one.dedup();
        assert_eq!(one.len(), 2, "as few lines as possible: {one:?}");
        all[LINE_COUNTS].on(CpuId(1)).add(7);
        assert_eq!((all[0].total(), all[LINE_COUNTS].total()), (0, 7));
    }

    #[test]
    fn a_reader_disturbs_no_count() {
        const ADDED: u64 = 20_000;
        let counters = Counters::new();
        let counter = counters.add("added", "", "").unwrap();
        let (of_reader, ended) = (counters.clone(), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut before = 0;
                while !ended.load(Ordering::Relaxed) {
                    let now = of_reader.snapshot(&[CpuId(0), CpuId(1)])[0].total;
                    assert!(now >= before, "{now} after {before}");
                    before = now;
                }
            });
            let writers = [0, 1].map(|cpu| {
                let counter = &counter;
                scope.spawn(move || {
                    let count = counter.on(CpuId(cpu));
                    (0..ADDED).for_each(|_| count.add(1));
                })
            });
            let joined = writers.map(|writer| writer.join());
            ended.store(true, Ordering::Relaxed);
            joined.into_iter().for_each(Result::unwrap);
        });
        assert_eq!(counter.total(), 2 * ADDED);
    }

    #[test]
    fn a_counter_is_declared_once_and_by_a_metrics_name() {
        let counters = Counters::new();
        let first = counters.add("passed", "Help.", "packets").unwrap();
        first.on(CpuId(0)).add(2);
        assert_eq!(counters.add("passed", "Help.", "packets").unwrap().total(), 2);
        assert_eq!(counters.add("passed", "Help.", "bytes").unwrap_err(), CounterError::Differs("passed".to_owned()));
        for name in
            ["", "Passed", "0k", "_a", "pas sed", "a-b", "\u{e4}", "passed_total", &"x".repeat(COUNTER_NAME_MAX + 1)]
        {
            let error = counters.add(name.to_owned(), "", "").unwrap_err();
            assert_eq!(error, CounterError::Name(name.to_owned()));
            assert!(!error.to_string().contains('\n'), "{error}");
        }
        let swapped = counters.add("limited", "packets", "Packets above their rate.").unwrap_err();
        assert!(swapped.to_string().starts_with("cannot declare the counter `limited` in `Packets above"), "{swapped}");
        for nth in 1..COUNTERS_MAX {
            counters.add(format!("of_{nth}"), "", "").unwrap();
        }
        assert_eq!(counters.add("last", "", "").unwrap_err(), CounterError::TooMany("last".to_owned()));
        assert_eq!(format!("{counters:?}").matches("of_").count(), COUNTERS_MAX - 1);
    }
}
