use super::lines::printable;
use super::numbers::short;

/// The number of spaces between columns. A table that would otherwise be too wide has only
/// `SMALL_GAP` spaces between columns.
const GAP: usize = 2;
const SMALL_GAP: usize = 1;

/// The minimum number of characters of a shortened address, without its port.
const ADDRESS_MIN: usize = 8;

/// The text that replaces the middle of a shortened address, in ASCII for terminals without UTF-8.
const LEFT_OUT: &str = "..";

/// A column of a table, with its heading.
#[derive(Debug)]
pub struct Column {
    heading: &'static str,
    cells: Vec<String>,
    short: Option<(&'static str, Vec<String>)>,
    kind: Kind,
    may_go: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Number,
    Word,
    /// An address, with or without a port. The port is never shortened.
    End,
}

impl Column {
    /// A column of numbers, which are right-aligned.
    pub fn numbers(heading: &'static str, cells: Vec<String>) -> Self {
        Self { heading, cells, short: None, kind: Kind::Number, may_go: false }
    }

    /// A column of whole numbers. In a narrow table, the numbers have their [`short`] form.
    pub fn counts(
        heading: &'static str,
        short_heading: &'static str,
        counts: impl Iterator<Item = u64> + Clone,
    ) -> Self {
        let shorter = counts.clone().map(short).collect();
        Self::numbers(heading, counts.map(|count| count.to_string()).collect()).or_short(short_heading, shorter)
    }

    /// A column of words, which are left-aligned. Words may come from packets or files, so control
    /// characters are escaped ([`printable`]).
    pub fn words(heading: &'static str, cells: Vec<String>) -> Self {
        Self { heading, cells: all_printable(cells), short: None, kind: Kind::Word, may_go: false }
    }

    /// A column of addresses with or without a port, escaped like words. In a narrow table, the
    /// middle of each address is left out.
    pub fn ends(heading: &'static str, cells: Vec<String>) -> Self {
        Self { heading, cells: all_printable(cells), short: None, kind: Kind::End, may_go: false }
    }

    /// Adds a shorter form of the column, for a table that is too wide.
    pub fn or_short(self, heading: &'static str, cells: Vec<String>) -> Self {
        Self { short: Some((heading, cells)), ..self }
    }

    /// Lets [`table`] leave out this column if the terminal is too narrow. Columns are left out
    /// from right to left, before addresses are shortened.
    pub fn may_go(self) -> Self {
        Self { may_go: true, ..self }
    }

    fn width(&self) -> usize {
        self.cells.iter().map(|cell| cell.chars().count()).max().unwrap_or(0).max(self.heading.len())
    }

    fn shorten(&mut self) {
        if let Some((heading, cells)) = self.short.take() {
            (self.heading, self.cells) = (heading, cells);
        }
    }
}

fn all_printable(cells: Vec<String>) -> Vec<String> {
    cells.iter().map(|cell| printable(cell)).collect()
}

/// Returns the headings and a line for each row, for a terminal of `width` characters. If `width`
/// is `None`, the width is not limited.
pub fn table(mut columns: Vec<Column>, width: Option<usize>) -> Vec<String> {
    let width = width.unwrap_or(usize::MAX);
    let mut gap = GAP;
    let total = |columns: &[Column], gap: usize| {
        columns.iter().map(Column::width).sum::<usize>() + gap * columns.len().saturating_sub(1)
    };
    for at in 0..columns.len() {
        if total(&columns, gap) > width {
            columns[at].shorten();
        }
    }
    if total(&columns, gap) > width {
        gap = SMALL_GAP;
    }
    while total(&columns, gap) > width {
        let Some(last) = columns.iter().rposition(|column| column.may_go) else { break };
        columns.remove(last);
    }
    // If there are two columns of addresses, the wider column is shortened first.
    while total(&columns, gap) > width {
        let ends = columns.iter_mut().filter(|column| column.kind == Kind::End);
        let Some(widest) = ends.max_by_key(|column| column.width()) else { break };
        let wanted = widest.width() - 1;
        widest.cells.iter_mut().for_each(|cell| *cell = shortened(cell, wanted));
        if widest.width() > wanted {
            break;
        }
    }
    // Addresses and ports matter more than the last column of words (the name of a VLAN or tunnel).
    let over = total(&columns, gap).saturating_sub(width);
    if let Some(words) = columns.iter_mut().rev().find(|column| over > 0 && column.kind == Kind::Word) {
        let wanted = words.width().saturating_sub(over).max(words.heading.len());
        words.cells.iter_mut().for_each(|cell| *cell = cell.chars().take(wanted).collect());
    }
    let rows = columns.iter().map(|column| column.cells.len()).max().unwrap_or(0);
    let headings = line(&columns, gap, |column| column.heading);
    let cell = |row: usize| move |column: &Column| column.cells.get(row).map_or(String::new(), Clone::clone);
    std::iter::once(headings).chain((0..rows).map(|row| line(&columns, gap, cell(row)))).collect()
}

fn line<T: std::fmt::Display>(columns: &[Column], gap: usize, cell: impl Fn(&Column) -> T) -> String {
    let padded = |column: &Column| {
        let (cell, width) = (cell(column).to_string(), column.width());
        if column.kind == Kind::Number { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
    };
    let cells: Vec<String> = columns.iter().map(padded).collect();
    cells.join(&" ".repeat(gap)).trim_end().to_owned()
}

/// Replaces the middle of the address if `end` is longer than `width`, but keeps at least
/// `ADDRESS_MIN` characters of the address. The port stays.
fn shortened(end: &str, width: usize) -> String {
    let length = end.chars().count();
    if length <= width {
        return end.to_owned();
    }
    let from = match end.rfind("]:") {
        Some(at) => at,
        // An address has no port if it contains no colon, or several colons and no brackets.
        None if end.matches(':').count() == 1 => end.find(':').unwrap_or(end.len()),
        None => end.len(),
    };
    let (address, port) = end.split_at(from);
    let address: Vec<char> = address.chars().collect();
    let kept = width.saturating_sub(port.len() + LEFT_OUT.len()).max(ADDRESS_MIN);
    if address.len() <= kept + LEFT_OUT.len() {
        return end.to_owned();
    }
    let (front, back) = (&address[..kept - kept / 2], &address[address.len() - kept / 2..]);
    front.iter().copied().chain(LEFT_OUT.chars()).chain(back.iter().copied()).chain(port.chars()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(width: Option<usize>) -> Vec<String> {
        let owned = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
        let columns = vec![
            Column::numbers("duration", owned(["1.234", "12.345"])).or_short("time", owned(["1.2", "12.3"])),
            Column::words("kind", owned(["tcp", "udp"])),
            Column::ends("source", owned(["10.0.0.1:65535", "[2001:db8:20:a::32]:49152"])),
        ];
        table(columns, width)
    }

    #[test]
    fn columns_shrink_before_lines_wrap() {
        assert_eq!(
            shown(None),
            ["duration  kind  source", "   1.234  tcp   10.0.0.1:65535", "  12.345  udp   [2001:db8:20:a::32]:49152",]
        );
        assert_eq!(shown(Some(41)), shown(None));
        assert_eq!(shown(Some(40))[2], "12.3  udp   [2001:db8:20:a::32]:49152");
        assert_eq!(shown(Some(35))[2], "12.3 udp  [2001:db8:20:a::32]:49152");
        assert_eq!(shown(Some(30))[2], "12.3 udp  [2001:..a::32]:49152");
        assert!(shown(Some(30)).iter().all(|line| line.len() <= 30));
        assert!(shown(Some(10))[1].ends_with(":65535") && shown(Some(10))[2].ends_with("]:49152"));
    }

    #[test]
    fn the_last_words_are_cut_before_a_line_is_too_long() {
        let owned = |cell: &str| vec![cell.to_owned()];
        let columns =
            || vec![Column::ends("source", owned("[2001:db8:20:a::32]:49152")), Column::words("in", owned("vlan=10"))];
        assert_eq!(table(columns(), Some(22))[1], "[200..::32]:49152 vlan");
        assert_eq!(table(columns(), Some(33))[1], "[2001:db8:20:a::32]:49152 vlan=10");
    }

    /// The text in a file of flows may come from an attacker.
    #[test]
    fn no_cell_writes_to_the_terminal() {
        let cell = || vec!["a\x1b[2J\nb".to_owned()];
        let shown = table(vec![Column::words("proto", cell()), Column::ends("source", cell())], Some(20));
        assert!(shown.iter().all(|line| !line.contains(char::is_control)), "{shown:?}");
    }

    #[test]
    fn a_column_goes_before_an_address_is_shortened() {
        let owned = |cell: &str| vec![cell.to_owned()];
        let columns = || {
            let [bytes, seconds] = [("bytes", "1000"), ("seconds", "12.3")]
                .map(|(head, cell)| Column::numbers(head, owned(cell)).may_go());
            vec![Column::ends("source", owned("[2001:db8:20:a::32]:49152")), bytes, seconds]
        };
        let shown = |width| table(columns(), Some(width))[1].split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(shown(39), ["[2001:db8:20:a::32]:49152", "1000", "12.3"]);
        assert_eq!(shown(38), ["[2001:db8:20:a::32]:49152", "1000"]);
        assert_eq!(shown(30), ["[2001:db8:20:a::32]:49152"]);
        assert_eq!(shown(20), ["[2001:..a::32]:49152"]);
    }

    #[test]
    fn stations_have_no_port() {
        assert_eq!(shortened("02:00:00:00:00:01", 14), "02:00:..:00:01");
        assert_eq!(shortened("2001:db8:20:a::32", 14), "2001:d..:a::32");
    }
}
