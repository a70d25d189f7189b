//! Shows Markdown as plain text: as much of Markdown as docs/ uses.

/// The indentation of examples.
const EXAMPLE_INDENT: &str = "    ";

/// The space between two columns of a table.
const GAP: usize = 2;

/// Renders a page for this width. `page_of` finds the page of the guide that a link's target names.
pub(super) fn render(text: &str, width: usize, page_of: impl Fn(&str) -> Option<&'static str>) -> String {
    let inline = |text: &str| inline(text, &page_of);
    let mut out = String::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if line.starts_with("```") {
            let example = lines.by_ref().take_while(|line| !line.starts_with("```"));
            for line in example {
                out += format!("{EXAMPLE_INDENT}{line}").trim_end();
                out.push('\n');
            }
        } else if line.starts_with("<!--") || line.is_empty() {
            out += if out.ends_with("\n\n") || out.is_empty() { "" } else { "\n" };
        } else if let Some(heading) = line.strip_prefix('#') {
            let (level, title) =
                (1 + heading.len() - heading.trim_start_matches('#').len(), heading.trim_start_matches('#'));
            let title = inline(title.trim());
            let rule = if level == 1 { "=" } else { "-" };
            out += &format!("{title}\n");
            if level < 3 {
                out += &format!("{}\n", rule.repeat(title.chars().count()));
            }
        } else if line.starts_with('|') {
            let mut rows = vec![cells(line, &inline)];
            while let Some(row) = lines.next_if(|line| line.starts_with('|')) {
                rows.push(cells(row, &inline));
            }
            out += &table(&rows, width);
        } else {
            let (indent, marker) = marker(line);
            let mut paragraph = line[indent + marker..].to_owned();
            let continues = |next: &&str| {
                let is_block = next.starts_with("```") || next.starts_with('#') || next.starts_with('|');
                !next.is_empty() && !is_block && self::marker(next).1 == 0
            };
            while let Some(next) = lines.next_if(continues) {
                paragraph += " ";
                paragraph += next.trim();
            }
            let first = format!("{}{}", " ".repeat(indent), &line[indent..indent + marker]);
            let rest = " ".repeat(indent + marker);
            out += &wrapped(&inline(&paragraph), width, &first, &rest);
        }
    }
    out
}

/// The indentation of a line, and the length of the list marker that follows it.
fn marker(line: &str) -> (usize, usize) {
    let indent = line.len() - line.trim_start().len();
    let rest = &line[indent..];
    let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let marker = if rest.starts_with("- ") || rest.starts_with("* ") {
        2
    } else if digits > 0 && rest[digits..].starts_with(". ") {
        digits + 2
    } else {
        0
    };
    (indent, marker)
}

/// Fills lines up to `width`. The first line starts with `first`, the others with `rest`.
fn wrapped(text: &str, width: usize, first: &str, rest: &str) -> String {
    let (mut out, mut line) = (String::new(), first.to_owned());
    let mut is_empty = true;
    for word in text.split_whitespace() {
        if !is_empty && line.chars().count() + 1 + word.chars().count() > width {
            out += line.trim_end();
            out.push('\n');
            rest.clone_into(&mut line);
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line += word;
        is_empty = false;
    }
    out + line.trim_end() + "\n"
}

/// The cells of a table's row.
fn cells(row: &str, inline: &impl Fn(&str) -> String) -> Vec<String> {
    let row = row.trim().trim_start_matches('|').trim_end_matches('|').replace("\\|", "\u{0}");
    row.split('|').map(|cell| inline(cell.trim()).replace('\u{0}', "|")).collect()
}

/// Renders a table in columns if it fits, and otherwise as a list with a paragraph for each row.
fn table(rows: &[Vec<String>], width: usize) -> String {
    let is_rule = |row: &&Vec<String>| row.iter().all(|cell| cell.chars().all(|c| c == '-' || c == ':'));
    let rows: Vec<&Vec<String>> = rows.iter().filter(|row| !is_rule(row) || row.iter().all(String::is_empty)).collect();
    let Some(head) = rows.first() else { return String::new() };
    let columns = rows.iter().map(|row| row.len()).max().unwrap_or(0);
    let width_of = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width_of).collect();
    let before_last: usize = widths.iter().take(columns.saturating_sub(1)).map(|width| width + GAP).sum();
    let fits = before_last + widths.last().copied().unwrap_or(0) <= width;
    // If only the last column is too long, it is wrapped.
    if fits || (columns == 2 && before_last <= width / 2) {
        let mut out = String::new();
        for row in rows.iter().filter(|row| row.iter().any(|cell| !cell.is_empty())) {
            let (last, others) = row.split_last().map_or(("", &[][..]), |(last, others)| (last.as_str(), others));
            let mut first = String::new();
            for (cell, width) in others.iter().zip(&widths) {
                first += &format!("{cell:<width$}", width = width + GAP);
            }
            out += &wrapped(last, width, &first, &" ".repeat(before_last));
        }
        return out;
    }
    let mut out = String::new();
    for row in &rows[1..] {
        let mut cells = row.iter().zip(head.iter());
        if let Some((cell, _)) = cells.next() {
            out += &wrapped(cell, width, "", "");
        }
        for (cell, name) in cells.filter(|(cell, _)| !cell.is_empty()) {
            let label = if name.is_empty() || columns == 2 { String::new() } else { format!("{name}: ") };
            out += &wrapped(&format!("{label}{cell}"), width, "  ", "    ");
        }
    }
    out
}

/// Removes the marks of bold print and links. A link to a page of the guide becomes the command
/// that shows the page.
fn inline(text: &str, page_of: &impl Fn(&str) -> Option<&'static str>) -> String {
    let mut out = String::new();
    let mut rest = text;
    let mut in_code = false;
    while let Some(next) = rest.chars().next() {
        if next == '`' {
            in_code = !in_code;
        } else if !in_code && rest.starts_with("**") {
            rest = &rest[2..];
            continue;
        } else if !in_code
            && next == '['
            && let Some((name, target, behind)) = link(rest)
        {
            out += &linked(&inline(name, page_of), target, page_of);
            rest = behind;
            continue;
        }
        out.push(next);
        rest = &rest[next.len_utf8()..];
    }
    out
}

/// The text and the target of the link that `text` begins with, and what follows it.
fn link(text: &str) -> Option<(&str, &str, &str)> {
    let (name, rest) = text.strip_prefix('[')?.split_once("](")?;
    let (target, behind) = rest.split_once(')')?;
    (!name.contains('[')).then_some((name, target, behind))
}

fn linked(name: &str, target: &str, page_of: &impl Fn(&str) -> Option<&'static str>) -> String {
    if target.starts_with("http") {
        return if name == target { name.to_owned() } else { format!("{name} <{target}>") };
    }
    let file = target.split('#').next().unwrap_or_default();
    let page = file.rsplit('/').next().and_then(|file| file.strip_suffix(".md")).and_then(page_of);
    match page {
        Some(page) if name.ends_with(".md") || name == page => format!("`steerage help {page}`"),
        Some(page) => format!("{name} (steerage help {page})"),
        None => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page_of(name: &str) -> Option<&'static str> {
        ["report", "meter"].into_iter().find(|page| *page == name)
    }

    #[test]
    fn text_is_filled_and_links_become_commands() {
        let page = "# A **title**\n\nOne\ntwo [three](https://x.y) `a**b`.\n\n- an item that is\n  long enough\n- see [report](report.md#x)\n\n```sh\n$ steerage   meter\n```\n";
        let expected = "A title\n=======\n\nOne two three\n<https://x.y>\n`a**b`.\n\n- an item that is\n  long enough\n- see `steerage help\n  report`\n\n    $ steerage   meter\n";
        assert_eq!(render(page, 20, page_of), expected);
    }

    #[test]
    fn tables_are_columns_if_they_fit() {
        let page = "| a | b |\n|---|---|\n| one | two \\| three |\n";
        assert_eq!(render(page, 20, page_of), "a    b\none  two | three\n");
        assert_eq!(render(page, 12, page_of), "a    b\none  two |\n     three\n");
        let wide = "| a | b | c |\n|---|---|---|\n| one | two and more | three |\n";
        assert_eq!(render(wide, 16, page_of), "one\n  b: two and\n    more\n  c: three\n");
    }
}
