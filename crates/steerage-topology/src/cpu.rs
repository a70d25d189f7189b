//! CPUs and sets of CPUs. Sets of CPUs are formatted and parsed in the same way as the kernel
//! formats and parses `rps_cpus`.
//!
//! The rules for the formats are those of the kernel's functions `bitmap_parse` and
//! `bitmap_parselist` and of its format `%*pb` (Linux, `lib/bitmap-str.c` and `lib/vsprintf.c`).
//! Therefore a script that was written for `/sys/class/net/*/queues/rx-*/rps_cpus` needs no change.
//! One rule of the kernel is surprising: if the character before eight hex digits is not a hex
//! digit, the kernel ignores this character. For example, `x00000001` is CPU 0.

use std::fmt;
use std::io;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// The number of different values of a [`CpuId`].
const IDS: usize = 1 << u16::BITS;

/// The number of bits in a chunk of a CPU bitmap. A chunk of a CPU bitmap is written as
/// [`CHUNK_DIGITS`] hex digits.
const CHUNK_BITS: usize = 32;
const CHUNK_DIGITS: usize = CHUNK_BITS / 4;

/// The maximum number of characters of an invalid mask that an error message shows, so that the
/// message fits on one line.
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
    /// The bitmap of the set: CPU `64 i + b` is bit `b` of `words[i]`. The last element of `words`
    /// is never zero, so that equal sets have equal bitmaps.
    words: Vec<u64>,
}

impl CpuMask {
    /// Returns the empty set of CPUs. If the empty set is used as a mask, it turns steering off.
    pub const fn new() -> Self {
        Self { words: Vec::new() }
    }

    /// Returns the CPUs on which this process may run. The returned set is the CPU affinity of the
    /// process, which the kernel has already limited to the process's cpuset.
    ///
    /// # Errors
    /// Returns the error of `sched_getaffinity(2)`: `EINVAL` on a machine with more than 1024 CPUs.
    pub fn allowed() -> io::Result<Self> {
        let set = sched_getaffinity(Pid::from_raw(0))?;
        let may = |cpu: &usize| set.is_set(*cpu).unwrap_or(false);
        Ok((0..CpuSet::count()).filter(may).map(|cpu| CpuId(cpu as u16)).collect())
    }

    /// Parses a set of CPUs in the bitmap format of `rps_cpus`. The bitmap consists of hex digits
    /// in chunks of 32 bits, and the highest CPUs come first. Commas or white space separate the
    /// chunks. Parsing stops at the first newline or NUL. An empty text, or a text that contains
    /// only commas, means the empty set.
    ///
    /// # Errors
    /// [`MaskErrorKind::Invalid`] if the text is not a hex number. [`MaskErrorKind::Overflow`] in
    /// three cases: a chunk has more than 8 digits, there are more chunks than `nr_cpu_ids` CPUs
    /// need (even if they are zero), or the mask has a CPU whose number is `nr_cpu_ids` or higher.
    pub fn parse_bitmap(text: &str, nr_cpu_ids: usize) -> Result<Self, MaskError> {
        let nr = nr_cpu_ids.min(IDS);
        let line = up_to_line_end(text);
        let mut mask = Self::new();
        // As in the kernel, the text is parsed from right to left. The direction of parsing matters
        // if a text contains two errors. The error that is farther to the right is reported.
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

    /// Parses a set of CPUs in the list format of `rps_cpus_list`. A list contains numbers and
    /// ranges, such as `0-3,8`. `all` means all CPUs, `N` means the last CPU, and `0-1023:2/256`
    /// means the first 2 of every 256 CPUs. Parsing stops at the first newline or NUL. An empty
    /// text means the empty set.
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

    /// Formats the set as a bitmap of `nr_cpu_ids` bits, without a newline. For example, the CPUs 0
    /// to 3 of 12 CPUs are formatted as `00f`. CPUs with numbers of `nr_cpu_ids` or higher are
    /// omitted.
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

    /// Formats the set as a list such as `0-3,8`, without a newline. The list of the empty set is
    /// an empty string.
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

    /// Returns true if the set contains no CPU. If the empty set is used as a mask, it turns
    /// steering off.
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

/// Pins the thread with the identifier `thread` to a CPU. The identifier 0 means the calling
/// thread.
///
/// # Errors
/// Returns the errors of [`pin`], and `ESRCH` if the thread does not exist.
pub fn pin_thread(thread: i32, cpu: CpuId) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(usize::from(cpu.0))?;
    Ok(sched_setaffinity(Pid::from_raw(thread), &set)?)
}

/// Returns the text up to the first newline or NUL. The kernel also ignores the text after the
/// first newline or NUL.
fn up_to_line_end(text: &str) -> &str {
    text.split(['\n', '\0']).next().unwrap_or("")
}

/// Returns true if `c` is a comma, or white space by the definition of C. Rust's
/// `is_ascii_whitespace` excludes the vertical tab.
fn is_separator(c: char) -> bool {
    matches!(c, ',' | ' ' | '\t' | '\r' | '\x0b' | '\x0c')
}

/// Removes the last chunk (at most 8 hex digits) of a bitmap in `left`, and returns the chunk's
/// value. The separators before the last chunk are removed too. Like the kernel, the function
/// ignores the byte before a chunk of 8 hex digits, unless this byte is a hex digit.
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

/// An item in a list of CPUs, such as `0-1023:2/256`. From the CPUs `first` to `last`, the list
/// item selects the first `used` CPUs of every `group` CPUs.
struct Region {
    first: usize,
    last: usize,
    used: usize,
    group: usize,
}

impl Region {
    /// Parses an item. Returns `None` if the text is not an item of a CPU list. `parse` does not
    /// check whether the CPUs of the item exist.
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

/// Parses a decimal number, or `N` for the last CPU. A number that is too large for `usize` is
/// replaced by a number that no CPU has.
fn number(text: &str, nr: usize) -> Option<usize> {
    if text == "N" {
        return Some(nr.saturating_sub(1));
    }
    if text.is_empty() {
        return None;
    }
    text.chars().try_fold(0usize, |n, c| Some(n.saturating_mul(10).saturating_add(c.to_digit(10)? as usize)))
}

/// The error number that the kernel would return for an invalid mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MaskErrorKind {
    /// `EINVAL`: the text is not a mask.
    Invalid,
    /// `EOVERFLOW`: the bitmap contains a CPU that the machine does not have, or the bitmap is too
    /// long.
    Overflow,
    /// `ERANGE`: the list contains a CPU that does not exist.
    Range,
}

/// The reason why a text is not a CPU mask of this machine. The error message is one line, and
/// explains how to write a mask.
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

/// Returns the beginning of `text` for an error message of one line. Unprintable characters are
/// escaped, because `text` may come from an untrusted source.
fn shown(text: &str) -> String {
    let mut shown: String = text.chars().take(SHOWN_CHARS_MAX).flat_map(char::escape_debug).collect();
    if text.chars().nth(SHOWN_CHARS_MAX).is_some() {
        shown.push_str("...");
    }
    shown
}

#[cfg(test)]
mod tests;
