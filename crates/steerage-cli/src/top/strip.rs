//! Which CPU has which buckets, on a strip: one character for each stretch of them, and above it how much the CPU has to do.

use ratatui::style::Color;

/// What a CPU is called on the strip. With more CPUs than these the names come again, and the legend says which.
const NAMES: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyz";

/// The least and the most work for a bucket, between which these stand.
const HEAT: &[u8] = b" .:-=+*#";

/// Cells on a strip: 64 buckets each, and 80 columns are enough for them.
const CELLS: usize = 64;

/// A piece of a line, and the CPU that it is about.
type Cell = (String, Option<u16>);

/// The head, and the lines: how warm the buckets are, and whose.
pub(super) fn of(buckets: &[u16], rates: &[(u16, f64)], width: usize) -> (String, Vec<Vec<Cell>>) {
    if buckets.is_empty() {
        return (String::new(), Vec::new());
    }
    let cells = CELLS.min(width.saturating_sub(2)).clamp(1, buckets.len());
    let owners: Vec<u16> = (0..cells).map(|cell| owner(stretch(buckets, cell, cells))).collect();
    let heat = heat(buckets, rates);
    let warmth = owners.iter().map(|cpu| (char::from(heat(*cpu)).to_string(), None));
    let names = owners.iter().map(|cpu| (char::from(name(*cpu)).to_string(), Some(*cpu)));
    let indent = || std::iter::once(("  ".to_owned(), None));
    let head = format!("{} a cell; above, its CPU's load a bucket", buckets.len() / cells);
    (head, vec![indent().chain(warmth).collect(), indent().chain(names).collect()])
}

fn stretch(buckets: &[u16], cell: usize, cells: usize) -> &[u16] {
    &buckets[cell * buckets.len() / cells..(cell + 1) * buckets.len() / cells]
}

/// Who has the most of them.
fn owner(stretch: &[u16]) -> u16 {
    let has = |cpu: u16| stretch.iter().filter(|other| **other == cpu).count();
    let mut cpus = stretch.to_vec();
    cpus.sort_unstable();
    cpus.dedup();
    cpus.into_iter().rev().max_by_key(|cpu| has(*cpu)).unwrap_or(0)
}

/// From a CPU to a sign: its packets a second for each bucket that it has, next to the CPU with the most.
fn heat(buckets: &[u16], rates: &[(u16, f64)]) -> impl Fn(u16) -> u8 {
    let each = |(cpu, rate): &(u16, f64)| {
        let has = buckets.iter().filter(|other| *other == cpu).count();
        (*cpu, if has == 0 { 0.0 } else { rate / has as f64 })
    };
    let loads: Vec<(u16, f64)> = rates.iter().map(each).collect();
    let most = loads.iter().map(|(_, load)| *load).fold(0.0, f64::max);
    move |cpu| {
        let load = loads.iter().find(|(of, _)| *of == cpu).map_or(0.0, |(_, load)| *load);
        let part = if most > 0.0 { load / most } else { 0.0 };
        HEAT[(part * (HEAT.len() - 1) as f64).ceil() as usize]
    }
}

fn name(cpu: u16) -> u8 {
    NAMES[usize::from(cpu) % NAMES.len()]
}

/// Neighbours differ; what says it without colour is the name.
pub(super) fn colour(cpu: u16) -> Color {
    [Color::Cyan, Color::Magenta, Color::Green, Color::Yellow, Color::Blue, Color::Red][usize::from(cpu) % 6]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(buckets: &[u16], rates: &[(u16, f64)], width: usize) -> Vec<String> {
        let text = |cells: Vec<Cell>| cells.into_iter().map(|(text, _)| text).collect();
        of(buckets, rates, width).1.into_iter().map(text).collect()
    }

    #[test]
    fn a_cell_for_each_stretch() {
        let buckets: Vec<u16> = (0..4096).map(|bucket| (bucket / 2048) as u16 * 11).collect();
        let lines = lines(&buckets, &[(0, 100.0), (11, 900.0)], 80);
        assert_eq!(lines[1], format!("  {}{}", "0".repeat(32), "b".repeat(32)));
        assert_eq!(lines[0], format!("  {}{}", ".".repeat(32), "#".repeat(32)));
    }

    #[test]
    fn whoever_has_most_of_a_cell_has_it() {
        assert_eq!(owner(&[3, 1, 1, 3, 3]), 3);
        assert_eq!(owner(&[2, 1]), 1);
        assert_eq!(lines(&[0, 0, 1, 1], &[], 4), ["    ", "  01"]);
        assert_eq!(lines(&[7; 5], &[(7, 1.0)], 0), ["  #", "  7"]);
        assert!(lines(&[], &[], 80).is_empty());
    }
}
