//! CPUs and sets of CPUs.
//!
//! The formats of CPU sets are those of the kernel's functions `bitmap_parse` and
//! `bitmap_parselist` and of its format `%*pb` (Linux, `lib/bitmap-str.c` and `lib/vsprintf.c`).
//! Scripts that write masks to `/sys/class/net/*/queues/rx-*/rps_cpus` need no change. Like the
//! kernel, the parser accepts any character except a hex digit as the separator before eight hex
//! digits: `x00000001` is CPU 0.

use std::fmt;
use std::io;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

const IDS: usize = 1 << u16::BITS;

const CHUNK_BITS: usize = 32;
const CHUNK_DIGITS: usize = CHUNK_BITS / 4;

/// The maximum number of characters of an invalid mask in an error message, which must fit on one
/// line.
const SHOWN_CHARS_MAX: usize = 32;

/// A logical CPU, identified by its number in the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CpuId(pub u16);

impl fmt::Display for CpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A set of CPUs, such as a mask that is written to `rps_cpus`.
///
/// ```
/// use steerage_topology::{CpuId, CpuMask};
///
/// let mask = CpuMask::parse_bitmap("00f0", 8)?;
/// assert_eq!(mask.to_list(), "4-7");
/// assert_eq!(mask, CpuMask::parse_list("4-7", 8)?);
/// assert_eq!(mask.first(), Some(CpuId(4)));
/// # Ok::<(), steerage_topology::MaskError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct CpuMask {
    /// CPU `64 i + b` is bit `b` of `words[i]`. The last word is not zero, so equal sets are equal.
    words: Vec<u64>,
}

impl CpuMask {
    /// Returns the empty set, which turns steering off if it is used as a mask.
    pub const fn new() -> Self {
        Self { words: Vec::new() }
    }

    /// Returns this process's CPU affinity, which the kernel has limited to the cpuset.
    ///
    /// # Errors
    /// Returns the error of `sched_getaffinity(2)`: `EINVAL` on a machine with more than 1024 CPUs.
    pub fn allowed() -> io::Result<Self> {
        let set = sched_getaffinity(Pid::from_raw(0))?;
        let may = |cpu: &usize| set.is_set(*cpu).unwrap_or(false);
        Ok((0..CpuSet::count()).filter(may).map(|cpu| CpuId(cpu as u16)).collect())
    }

    /// Parses a bitmap as in `rps_cpus`: hex digits in chunks of 32 bits, the highest CPUs first.
    /// Commas or white space separate the chunks. Parsing stops at the first newline or NUL. An
    /// empty text means the empty set.
    ///
    /// # Errors
    /// [`MaskErrorKind::Invalid`] if the text is not a hex number. [`MaskErrorKind::Overflow`] in
    /// three cases: a chunk has more than 8 digits, there are more chunks than `nr_cpu_ids` CPUs
    /// need (even if they are zero), or the mask has a CPU whose number is `nr_cpu_ids` or higher.
    pub fn parse_bitmap(text: &str, nr_cpu_ids: usize) -> Result<Self, MaskError> {
        let nr = nr_cpu_ids.min(IDS);
        let line = up_to_line_end(text);
        let mut mask = Self::new();
        // The bitmap is parsed from right to left, like in the kernel: of two errors, the rightmost
        // is reported.
        let mut left = without_separators_behind(line.as_bytes());
        for i in 0.. {
            if left.is_empty() {
                break;
            }
            if i >= nr.div_ceil(CHUNK_BITS) {
                return Err(MaskError::chunks(line, nr));
            }
            let bits = u64::from(take_chunk(&mut left)?);
            mask.set_word(i / 2, bits << (i % 2 * CHUNK_BITS));
        }
        match mask.last() {
            Some(cpu) if usize::from(cpu.0) >= nr => Err(MaskError::absent(MaskErrorKind::Overflow, line, nr)),
            _ => Ok(mask),
        }
    }

    /// Parses a list as in `rps_cpus_list`, such as `0-3,8`. `all` means all CPUs, and `N` the last
    /// CPU. `0-1023:2/256` means the first 2 of every 256 CPUs. Parsing stops at the first newline
    /// or NUL. An empty text means the empty set.
    ///
    /// # Errors
    /// [`MaskErrorKind::Range`] if the list has a CPU whose number is `nr_cpu_ids` or higher.
    /// [`MaskErrorKind::Invalid`] for all other errors in the text.
    pub fn parse_list(text: &str, nr_cpu_ids: usize) -> Result<Self, MaskError> {
        let nr = nr_cpu_ids.min(IDS);
        let mut mask = Self::new();
        for item in up_to_line_end(text).split(is_separator).filter(|item| !item.is_empty()) {
            let region = Region::parse(item, nr).ok_or_else(|| MaskError::list(item))?;
            if region.last >= nr {
                return Err(MaskError::absent(MaskErrorKind::Range, item, nr));
            }
            for start in (region.first..=region.last).step_by(region.group) {
                let end = start.saturating_add(region.used).min(region.last + 1);
                (start..end).for_each(|cpu| mask.insert(CpuId(cpu as u16)));
            }
        }
        Ok(mask)
    }

    /// Formats the set as a bitmap of `nr_cpu_ids` bits, without a newline: CPUs 0 to 3 of a
    /// machine with 12 CPUs are `00f`. CPUs from `nr_cpu_ids` on are omitted.
    pub fn to_bitmap(&self, nr_cpu_ids: usize) -> String {
        let nr = nr_cpu_ids.clamp(1, IDS);
        let chunk = |i: usize| (self.word(i / 2) >> (i % 2 * CHUNK_BITS)) as u32;
        let top = (nr - 1) / CHUNK_BITS;
        let top_bits = nr - top * CHUNK_BITS;
        let shown = chunk(top) & (u32::MAX >> (CHUNK_BITS - top_bits));
        let mut text = format!("{shown:0digits$x}", digits = top_bits.div_ceil(4));
        for i in (0..top).rev() {
            text += &format!(",{:0digits$x}", chunk(i), digits = CHUNK_DIGITS);
        }
        text
    }

    /// Formats the set as a list such as `0-3,8`, without a newline. The empty set becomes an empty
    /// text.
    pub fn to_list(&self) -> String {
        let mut text = String::new();
        let mut cpus = self.iter().peekable();
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if(|next| next.0 - 1 == last.0) {
                last = next;
            }
            let comma = if text.is_empty() { "" } else { "," };
            text += &match first == last {
                true => format!("{comma}{first}"),
                false => format!("{comma}{first}-{last}"),
            };
        }
        text
    }

    /// Returns the CPUs of the set in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = CpuId> + '_ {
        self.words.iter().enumerate().flat_map(|(i, word)| {
            let bits = (0..u64::BITS).filter(move |bit| word >> bit & 1 == 1);
            bits.map(move |bit| CpuId((i as u32 * u64::BITS + bit) as u16))
        })
    }

    /// Returns true if `cpu` is in the set.
    pub fn contains(&self, cpu: CpuId) -> bool {
        self.word(usize::from(cpu.0) / 64) >> (cpu.0 % 64) & 1 == 1
    }

    /// Adds `cpu`.
    pub fn insert(&mut self, cpu: CpuId) {
        let i = usize::from(cpu.0) / 64;
        self.set_word(i, self.word(i) | 1 << (cpu.0 % 64));
    }

    /// Removes `cpu`.
    pub fn remove(&mut self, cpu: CpuId) {
        if let Some(word) = self.words.get_mut(usize::from(cpu.0) / 64) {
            *word &= !(1 << (cpu.0 % 64));
        }
        self.trim();
    }

    /// Returns the number of CPUs in the set.
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Returns true if the set contains no CPU. An empty mask turns steering off.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Returns the lowest CPU of the set.
    pub fn first(&self) -> Option<CpuId> {
        self.iter().next()
    }

    /// Returns the highest CPU of the set.
    pub fn last(&self) -> Option<CpuId> {
        let top = self.words.len().checked_sub(1)?;
        Some(CpuId((top * 64) as u16 + self.words[top].ilog2() as u16))
    }

    /// Returns the CPUs that are in both sets.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let mut both = Self { words: self.words.iter().zip(&other.words).map(|(a, b)| a & b).collect() };
        both.trim();
        both
    }

    /// Checks that all CPUs in `named` exist. `self` must be the set of the CPUs that exist.
    ///
    /// # Errors
    /// Returns [`NoSuchCpu`] with the first CPU that does not exist.
    ///
    /// ```
    /// use steerage_topology::{CpuId, CpuMask};
    ///
    /// let machine = CpuMask::parse_list("0-3", 4)?;
    /// machine.check([CpuId(0), CpuId(3)]).expect("they exist");
    /// let error = machine.check([CpuId(3), CpuId(9)]).unwrap_err();
    /// assert_eq!(error.to_string(), "there is no CPU 9: the CPUs are 0-3");
    /// # Ok::<(), steerage_topology::MaskError>(())
    /// ```
    pub fn check(&self, named: impl IntoIterator<Item = CpuId>) -> Result<(), NoSuchCpu> {
        match named.into_iter().find(|cpu| !self.contains(*cpu)) {
            Some(cpu) => Err(NoSuchCpu { cpu, there: self.clone() }),
            None => Ok(()),
        }
    }

    fn word(&self, i: usize) -> u64 {
        self.words.get(i).copied().unwrap_or(0)
    }

    fn set_word(&mut self, i: usize, bits: u64) {
        if bits == 0 {
            return;
        }
        if self.words.len() <= i {
            self.words.resize(i + 1, 0);
        }
        self.words[i] |= bits;
    }

    fn trim(&mut self) {
        while self.words.last() == Some(&0) {
            self.words.pop();
        }
    }
}

impl FromIterator<CpuId> for CpuMask {
    fn from_iter<I: IntoIterator<Item = CpuId>>(cpus: I) -> Self {
        let mut mask = Self::new();
        cpus.into_iter().for_each(|cpu| mask.insert(cpu));
        mask
    }
}

impl fmt::Display for CpuMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.to_list())
    }
}

/// The error for a CPU that does not exist: see [`CpuMask::check`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoSuchCpu {
    /// The CPU that was named.
    pub cpu: CpuId,
    /// The CPUs that exist.
    pub there: CpuMask,
}

impl fmt::Display for NoSuchCpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no CPU {}: the CPUs are {}", self.cpu, self.there)
    }
}

impl std::error::Error for NoSuchCpu {}

/// Pins the calling thread to a CPU.
///
/// # Errors
/// Returns the error of `sched_setaffinity(2)`: `EINVAL` if this process may not run on the CPU.
///
/// ```
/// use std::thread;
/// use steerage_topology::{CpuMask, cpu};
///
/// let first = CpuMask::allowed()?.first().expect("this runs somewhere");
/// thread::spawn(move || cpu::pin(first)).join().expect("it does not panic")?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn pin(cpu: CpuId) -> io::Result<()> {
    pin_thread(0, cpu)
}

/// Pins the thread with the identifier `thread` (0 for the calling thread) to a CPU.
///
/// # Errors
/// Returns the errors of [`pin`], and `ESRCH` if the thread does not exist.
pub fn pin_thread(thread: i32, cpu: CpuId) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(usize::from(cpu.0))?;
    Ok(sched_setaffinity(Pid::from_raw(thread), &set)?)
}

fn up_to_line_end(text: &str) -> &str {
    text.split(['\n', '\0']).next().unwrap_or("")
}

/// Returns true for a comma, and for white space as in C: Rust's `is_ascii_whitespace` excludes the
/// vertical tab.
fn is_separator(c: char) -> bool {
    matches!(c, ',' | ' ' | '\t' | '\r' | '\x0b' | '\x0c')
}

/// Removes the last chunk (at most 8 hex digits) of the bitmap `left` and the separators before the
/// chunk, and returns the chunk's value. Like the kernel, `take_chunk` ignores the byte before a
/// chunk of 8 hex digits unless this byte is a hex digit.
fn take_chunk(left: &mut &[u8]) -> Result<u32, MaskError> {
    let all = String::from_utf8_lossy(left);
    let chunk = || all.rsplit(is_separator).next().unwrap_or_default();
    let mut bits = 0;
    for i in 0..=CHUNK_DIGITS {
        let Some((last, before)) = left.split_last() else { break };
        match char::from(*last).to_digit(16) {
            Some(_) if i == CHUNK_DIGITS => return Err(MaskError::digits(chunk())),
            Some(digit) => bits |= digit << (4 * i),
            None if i == CHUNK_DIGITS || is_separator((*last).into()) => {}
            None => return Err(MaskError::bitmap(chunk())),
        }
        *left = before;
        if is_separator((*last).into()) {
            break;
        }
    }
    *left = without_separators_behind(left);
    Ok(bits)
}

fn without_separators_behind(text: &[u8]) -> &[u8] {
    let end = text.iter().rposition(|byte| !is_separator((*byte).into())).map_or(0, |last| last + 1);
    &text[..end]
}

/// A list item such as `0-1023:2/256`: the first `used` CPUs of every `group` CPUs in a range.
struct Region {
    first: usize,
    last: usize,
    used: usize,
    group: usize,
}

impl Region {
    /// Parses a list item, and does not check whether the CPUs exist.
    fn parse(item: &str, nr: usize) -> Option<Self> {
        let (range, pattern) = match item.split_once(':') {
            Some((range, pattern)) => (range, Some(pattern)),
            None => (item, None),
        };
        let (first, last) = match range.split_once('-') {
            Some((first, last)) => (number(first, nr)?, number(last, nr)?),
            None if range.eq_ignore_ascii_case("all") => (0, nr.saturating_sub(1)),
            None if pattern.is_some() => return None,
            None => (number(range, nr)?, number(range, nr)?),
        };
        let (used, group) = match pattern {
            Some(pattern) => {
                let (used, group) = pattern.split_once('/')?;
                (number(used, nr)?, number(group, nr)?)
            }
            None => (usize::MAX, usize::MAX),
        };
        let sound = first <= last && group > 0 && used <= group;
        sound.then_some(Self { first, last, used, group })
    }
}

/// Parses a decimal number, or `N` for the last CPU. A number that is too large becomes
/// `usize::MAX`, which is the number of no CPU.
fn number(text: &str, nr: usize) -> Option<usize> {
    if text == "N" {
        return Some(nr.saturating_sub(1));
    }
    if text.is_empty() {
        return None;
    }
    text.chars().try_fold(0usize, |n, c| Some(n.saturating_mul(10).saturating_add(c.to_digit(10)? as usize)))
}

/// The error number that the kernel returns for an invalid mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MaskErrorKind {
    /// `EINVAL`: the text is not a mask.
    Invalid,
    /// `EOVERFLOW`: the bitmap is too long, or contains a CPU that does not exist.
    Overflow,
    /// `ERANGE`: the list contains a CPU that does not exist.
    Range,
}

/// The reason why a text is no CPU mask of this machine, with a message of one line that says how
/// to write a mask.
///
/// ```
/// use steerage_topology::{CpuMask, MaskErrorKind};
///
/// let error = CpuMask::parse_list("0-9", 8).unwrap_err();
/// assert_eq!((error.kind(), error.errno_name()), (MaskErrorKind::Range, "ERANGE"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MaskError {
    kind: MaskErrorKind,
    message: String,
}

impl MaskError {
    /// Returns the kind of error.
    pub fn kind(&self) -> MaskErrorKind {
        self.kind
    }

    /// Returns the name of the kernel's error number: `EINVAL`, `EOVERFLOW` or `ERANGE`.
    pub fn errno_name(&self) -> &'static str {
        match self.kind {
            MaskErrorKind::Invalid => "EINVAL",
            MaskErrorKind::Overflow => "EOVERFLOW",
            MaskErrorKind::Range => "ERANGE",
        }
    }

    fn bitmap(chunk: &str) -> Self {
        let stripped = chunk.strip_prefix("0x").or_else(|| chunk.strip_prefix("0X"));
        let message = match stripped.filter(|rest| take_chunk(&mut rest.as_bytes()).is_ok() && !rest.is_empty()) {
            Some(rest) => format!("`{}` is not a CPU mask: write hex digits without 0x, such as {rest}", shown(chunk)),
            None => format!("`{}` is not a CPU mask: write hex digits, such as f for CPUs 0 to 3", shown(chunk)),
        };
        Self { kind: MaskErrorKind::Invalid, message }
    }

    fn digits(chunk: &str) -> Self {
        let text = shown(chunk);
        let message = format!("`{text}` is too long for a CPU mask: write a comma after every 8 digits from the right");
        Self { kind: MaskErrorKind::Overflow, message }
    }

    fn chunks(line: &str, nr: usize) -> Self {
        let most = nr.div_ceil(CHUNK_BITS);
        let text = shown(line);
        let message =
            format!("`{text}` is too long for a mask of {nr} CPUs: write at most {most} group(s) of 8 digits");
        Self { kind: MaskErrorKind::Overflow, message }
    }

    fn absent(kind: MaskErrorKind, text: &str, nr: usize) -> Self {
        let last = nr.saturating_sub(1);
        let message = format!("`{}` has a CPU that there isn't: the last of {nr} is CPU {last}", shown(text));
        Self { kind, message }
    }

    fn list(item: &str) -> Self {
        let message = format!("`{}` is not a list of CPUs: write such as 0-3,8 or all", shown(item));
        Self { kind: MaskErrorKind::Invalid, message }
    }
}

impl fmt::Display for MaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for MaskError {}

/// Escapes unprintable characters, because `text` may come from an untrusted source.
fn shown(text: &str) -> String {
    let mut shown: String = text.chars().take(SHOWN_CHARS_MAX).flat_map(char::escape_debug).collect();
    if text.chars().nth(SHOWN_CHARS_MAX).is_some() {
        shown.push_str("...");
    }
    shown
}

#[cfg(test)]
mod tests;
