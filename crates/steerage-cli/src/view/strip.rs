//! The hash buckets of a queue as two lines of characters. For each range of buckets, the upper
//! line shows how much traffic it has, and the lower line its CPU.

use ratatui_core::style::Color;

/// The characters for CPUs. With more CPUs than characters, several CPUs have the same character.
const NAMES: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyz";

const HEAT: &[u8] = b" .:-=+*#";

/// The number of cells on a screen of 80 columns, where each cell represents 64 buckets. On screens
/// with enough columns, the strip has two or four times as many cells.
const CELLS: usize = 64;

/// Some characters of a line, and the CPU that they represent.
type Cell = (String, Option<u16>);

/// Returns the heading, the line of loads and the line of CPUs. `buckets` contains the CPU and the
/// number of packets of each bucket.
pub(crate) fn of(buckets: &[(u16, u64)], width: usize) -> (String, Vec<Vec<Cell>>) {
    if buckets.is_empty() {
        return (String::new(), Vec::new());
    }
    let room = width.saturating_sub(2);
    let cells = if room < CELLS { room } else { CELLS << (room / CELLS).ilog2() };
    let cells = cells.clamp(1, buckets.len());
    let stretches =
        || (0..cells).map(|cell| &buckets[cell * buckets.len() / cells..(cell + 1) * buckets.len() / cells]);
    let loads: Vec<u64> = stretches().map(|stretch| stretch.iter().map(|(_, packets)| packets).sum()).collect();
    let most = loads.iter().copied().max().unwrap_or(0);
    let warmth = loads.iter().map(|load| (char::from(heat(*load, most)).to_string(), None));
    let names = stretches().map(owner).map(|cpu| (char::from(name(cpu)).to_string(), Some(cpu)));
    let indent = || std::iter::once(("  ".to_owned(), None));
    let head = format!("{} a cell; above, how much came for them", buckets.len() / cells);
    (head, vec![indent().chain(warmth).collect(), indent().chain(names).collect()])
}

fn owner(stretch: &[(u16, u64)]) -> u16 {
    let has = |cpu: u16| stretch.iter().filter(|(other, _)| *other == cpu).count();
    let mut cpus: Vec<u16> = stretch.iter().map(|(cpu, _)| *cpu).collect();
    cpus.sort_unstable();
    cpus.dedup();
    cpus.into_iter().rev().max_by_key(|cpu| has(*cpu)).unwrap_or(0)
}

/// Returns the character for a load, relative to the highest load of the strip.
fn heat(load: u64, most: u64) -> u8 {
    let part = if most > 0 { load as f64 / most as f64 } else { 0.0 };
    HEAT[(part * (HEAT.len() - 1) as f64).ceil() as usize]
}

fn name(cpu: u16) -> u8 {
    NAMES[usize::from(cpu) % NAMES.len()]
}

/// Returns the colour of a CPU. CPUs with neighbouring numbers have different colours. Without
/// colours, CPUs differ by their characters.
pub(crate) fn colour(cpu: u16) -> Color {
    [Color::Cyan, Color::Magenta, Color::Green, Color::Yellow, Color::Blue, Color::Red][usize::from(cpu) % 6]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(buckets: &[(u16, u64)], width: usize) -> Vec<String> {
        let text = |cells: Vec<Cell>| cells.into_iter().map(|(text, _)| text).collect();
        of(buckets, width).1.into_iter().map(text).collect()
    }

    #[test]
    fn a_cell_for_each_stretch() {
        let of_cpu = |bucket: u64| (bucket / 2048) as u16 * 11;
        let buckets: Vec<(u16, u64)> = (0..4096).map(|bucket| (of_cpu(bucket), 1 + 6 * (bucket / 2048))).collect();
        let lines = lines(&buckets, 80);
        assert_eq!(lines[1], format!("  {}{}", "0".repeat(32), "b".repeat(32)));
        assert_eq!(lines[0], format!("  {}{}", ".".repeat(32), "#".repeat(32)));
    }

    #[test]
    fn a_wide_screen_has_more_cells() {
        let buckets = vec![(0, 1); 4096];
        for (width, cells) in [(40, 38), (80, 64), (129, 64), (130, 128), (257, 128), (300, 256)] {
            assert_eq!(lines(&buckets, width)[1], format!("  {}", "0".repeat(cells)), "{width}");
        }
    }

    #[test]
    fn whoever_has_most_of_a_cell_has_it() {
        let idle = |cpus: &[u16]| cpus.iter().map(|cpu| (*cpu, 0)).collect::<Vec<_>>();
        assert_eq!(owner(&idle(&[3, 1, 1, 3, 3])), 3);
        assert_eq!(owner(&idle(&[2, 1])), 1);
        assert_eq!(lines(&idle(&[0, 0, 1, 1]), 4), ["    ", "  01"]);
        assert_eq!(lines(&[(7, 1); 5], 0), ["  #", "  7"]);
        assert!(lines(&[], 80).is_empty());
    }
}
