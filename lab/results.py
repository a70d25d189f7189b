#!/usr/bin/env python3
"""Keeps the figures of README.md and docs/ equal to the tables in lab/results.

    python3 lab/results.py               fails if a page differs from a table
    python3 lab/results.py --write       writes the tables and the quoted figures into the pages
    python3 lab/results.py --from RUNS   makes the tables from the lines of steerage-lab and lab/peers
    python3 lab/results.py --root DIR    works on another checkout

lab/results/PAGE/TABLE.csv is a table of docs/PAGE.md, or of lab/notes/PAGE.md if docs/ has no such page. Its first line is the heading,
by which the table is found on the page. Each table of the pages in COMPLETE has such a file. The tables in lab/results/text are on no page. lab/results/quotes.txt lists the sentences and table rows that quote a figure: a line is
`PAGE: TEXT`, where each figure is replaced by a reference to the cell from which it comes:

    README.md: takes {path > device's hash, 1 target > near: receive} to {path > ... > near: receive} ns

{TABLE > ROW > COLUMN} names the row by its first cell, or by its first two cells with a comma between them, and is the first figure
of the cell; {TABLE > ROW > COLUMN > 2} is the second.
{TABLE > * > COLUMN} is the least figure of a column, {A : B} a ratio of two cells, and {A * 0.001} another unit. {} is a figure that was
not measured, such as a version. A quoted figure may be rounded. All other text of the line must be on
the page as it stands, where line breaks do not matter.

lab/results/tables.json describes the tables that --from makes: the heading of the first and of the last column, the columns between
them (heading, metric, whether the least and the most are shown, and perhaps a series: the cell is then how many times as fast that
series is as the row's, round by round), the page (performance, if none is named), whether a column says how far apart the CPUs were, and the rows (name,
experiment, series, text of the last column). A table with the key "x" has a row for each of these points of one experiment, and its columns are (heading, series); the last of the
first columns ("fixed") is divided by the best of those before it in the column "best". A table with the key "control" has a row for each of
these experiments (name, experiment, metric): how many rounds it had, and the same case beside itself, one round after the other. A table with
the key "versions" has a row for each of these series (name, experiment, series, x or null, metric), before and after a change: lab/measure-versions.sh runs two versions in turn. A
table has the runs with near CPUs, or with far CPUs if these are more.
lab/results/scale.json describes the tables of simulated runs.
"""

import argparse
import csv
import json
import pathlib
import re
import statistics
import sys
from decimal import ROUND_HALF_UP, Decimal

# Pages of which no table may lack a file in lab/results.
COMPLETE = ["docs/performance.md", "docs/scale.md"]
# Pages of which each figure with a decimal point must be in quotes.txt, if it is in a sentence or in the last column of the table with
# this heading.
QUOTED = {"README.md": "| steerage against | measured | ratio |", "docs/performance.md": None}
# The folder of tables that no page shows, although sentences quote them.
QUOTED_ONLY = "text"
# What lab/measure-versions.sh writes before the name of a series of the earlier version.
BEFORE = "before: "
HERE = pathlib.Path(__file__).resolve().parent
FIGURE = r"\d[\d,]*(?:\.\d+)?"


class Wrong(Exception):
    """A page differs from a table, or a reference leads nowhere."""


# ---- the tables


def read_tables(results):
    """The rows of each table by its name, the first of which is the heading, and the pages of the tables that pages show."""
    tables, pages = {}, {}
    root = results.parent.parent
    for path in sorted(results.glob("*/*.csv")):
        with open(path, encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file))
        if not rows or any(len(row) != len(rows[0]) for row in rows):
            raise Wrong(f"{path}: each line needs as many cells as the first one")
        if path.stem in tables:
            raise Wrong(f"{path}: another page has a table of this name: choose another name")
        tables[path.stem] = rows
        if path.parent.name != QUOTED_ONLY:
            of_docs = f"docs/{path.parent.name}.md"
            pages[path.stem] = of_docs if (root / of_docs).exists() else f"lab/notes/{path.parent.name}.md"
    return tables, pages


def figures(cell):
    return [Decimal(figure.replace(",", "")) for figure in re.findall(FIGURE, re.sub(r"\]\([^)]*\)|`[^`]*`", "]", cell))]


def figure_of(tables, reference):
    """The value of a reference, without its braces."""
    if " : " in reference:
        over, under = (figure_of(tables, part) for part in reference.split(" : "))
        return over / under
    reference, factor = re.fullmatch(r"(.*?)(?: \* ([\d.]+))?", reference).groups()
    table, *cell = reference.split(" > ")
    if len(cell) < 2:
        raise Wrong(f"{{{reference}}}: write a table, a row and a column, with ' > ' between them")
    row, column, *nth = cell
    if table not in tables:
        raise Wrong(f"{{{reference}}}: lab/results has no table {table}")
    heading, *rows = tables[table]
    if row == "*" and heading.count(column) == 1:
        return min(figures(cells[heading.index(column)])[0] for cells in rows)
    found = [cells for cells in rows if row in (cells[0], ", ".join(cells[:2]))]
    if len(found) != 1 or heading.count(column) != 1:
        raise Wrong(f"{{{reference}}}: the table has {len(found)} rows {row!r}, and its columns are {', '.join(heading)}")
    there, at = figures(found[0][heading.index(column)]), int(nth[0]) if nth else 1
    if len(there) < at:
        raise Wrong(f"{{{reference}}}: the cell has {len(there)} figures")
    return there[at - 1] * Decimal(factor or 1)


def rounded(value, like):
    """The value with as many digits after the point as a quoted figure, and with commas if that has some."""
    digits = len(like.partition(".")[2])
    exact = value.quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)
    return f"{exact:,}" if "," in like else str(exact)


# ---- the tables of runs


def write_table(path, rows):
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def shown(value):
    return f"{value:,.0f}" if value >= 100 or not value else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def tables_of_runs(results, paths):
    """Writes the tables that tables.json describes. A table of which an experiment did not run stays as it is."""
    import page  # beside this file

    by_experiment, notes, machines = page.read(paths)
    conditions = [note for note in notes if "load" in note]
    if conditions:
        rows = [["quantity", "value"], ["load average of other programs at the start", max(note["load"] for note in conditions)],
                ["rounds", min(note["rounds"] for note in conditions)], ["machine", "; ".join(machines)]]
        write_table(results / QUOTED_ONLY / "seed-conditions.csv", rows)
    described = json.loads((HERE / "experiments.json").read_text())
    groups = {name: page.group(runs) for name, runs in by_experiment.items()}
    tables_of_simulations(results, groups)
    for name, table in json.loads((results / "tables.json").read_text()).items():
        make = rows_of_control if "control" in table else rows_of_versions if "versions" in table else rows_by_x if "x" in table else rows_by_series
        rows = make(table, groups, described)
        if rows:
            write_table(results / table.get("page", "performance") / f"{name}.csv", rows)


def runs_of(groups, series, x):
    """The place where a series ran most often, and there the values of each metric, by round."""
    places = {where: metrics for (where, at, of), metrics in groups.items() if of == series and (x is None or at == x)}
    where = max(places, key=lambda place: max(len(sum(rounds.values(), [])) for rounds in places[place].values()), default="")
    return where, places.get(where, {})


def cell(values, brackets):
    median = shown(statistics.median(values)) if values else ""
    return f"{median} [{shown(min(values))}..{shown(max(values))}]" if values and brackets else median


def rows_by_series(table, groups, described):
    if not all(experiment in groups for _, experiment, *_ in table["rows"]):
        return []
    last = [table["last"]] if table["last"] else []
    has_places = table.get("places", True)
    rows = [[table["first"], *(["CPUs"] if has_places else []), *(heading for heading, *_ in table["columns"]), *last]]
    for label, experiment, series, *published in table["rows"]:
        where, metrics = runs_of(groups.get(experiment, {}), series, table.get("at"))
        cells = []
        for _, metric, brackets, *than in table["columns"]:
            rounds = metrics.get(metric, {})
            values = sum(rounds.values(), [])
            if than:
                _, others = runs_of(groups.get(experiment, {}), than[0], table.get("at"))
                more = described[experiment]["metrics"][metric][2]
                pairs = [(statistics.median(of), statistics.median(rounds[at])) for at, of in others.get(metric, {}).items() if at in rounds]
                values = [of / row if more else row / of for of, row in pairs]
            shows = cell(values, brackets)
            # The other side wins.
            is_slower = than and values and statistics.median(values) < 0.995
            cells.append((re.sub("^[^ ]*", r"**\g<0>**", shows) if is_slower else shows) if where else "not measured")
        rows.append([label, *([where] if has_places else []), *cells, *(published or [""] * len(last))])
    return rows


def rows_by_x(table, groups, _):
    found = groups.get(table["experiment"])
    if not found:
        return []
    headings, fixed = [heading for heading, _ in table["columns"]], table.get("fixed", 0)
    best = ["best"] if fixed else []
    rows = [[table["first"], *headings[:fixed], *best, *headings[fixed:]]]
    for x in table["x"]:
        values = [sum(runs_of(found, series, x)[1].get(table["metric"], {}).values(), []) for _, series in table["columns"]]
        medians = [statistics.median(some) if some else 0.0 for some in values]
        cells = [shown(median) if some else "not measured" for median, some in zip(medians, values)]
        best = [f"{medians[fixed - 1] / max(medians[:fixed - 1]):.2f}"] if fixed else []
        rows.append([f"{x:,}", *cells[:fixed], *best, *cells[fixed:]])
    return rows


def rows_of_control(table, groups, _):
    """Compares each case with itself: its run in a round relative to its run in the round before. A difference between two cases that is
    smaller than what nine of ten such ratios show is none."""
    if not all(experiment in groups for _, experiment, _ in table["control"]):
        return []
    rows = [[table["first"], "rounds", "a round relative to the one before", "nine of ten such ratios"]]
    for label, experiment, metric in table["control"]:
        cases = [[statistics.median(of) for _, of in sorted(metrics[metric].items())] for metrics in groups[experiment].values() if metric in metrics]
        ratios = sorted(after / before for case in cases for before, after in zip(case, case[1:]) if before)
        if not ratios:
            return []
        least, most = (ratios[round(part * (len(ratios) - 1))] for part in (0.05, 0.95))
        rounds = statistics.median(len(case) for case in cases)
        rows.append([label, f"{rounds:.0f}", shown(statistics.median(ratios)), f"{shown(least)}..{shown(most)}"])
    return rows


def rows_of_versions(table, groups, _):
    """A series of two versions, and how many times the time of the earlier one the later one takes, round by round."""
    if not all(any(series.startswith(BEFORE) for _, _, series in groups.get(experiment, {})) for _, experiment, *_ in table["versions"]):
        return []
    rows = [[table["first"], "CPUs", "before", "now", "now relative to before"]]
    for label, experiment, series, x, metric in table["versions"]:
        where, before = runs_of(groups[experiment], BEFORE + series, x)
        now = groups[experiment].get((where, x, series), {})
        times = [rounds.get(metric, {}) for rounds in (before, now)]
        pairs = [statistics.median(times[1][at]) / statistics.median(of) for at, of in times[0].items() if at in times[1]]
        if not pairs:
            return []
        ratio = cell(pairs, True)
        is_slower = statistics.median(pairs) > 1.005
        medians = [shown(statistics.median(sum(rounds.values(), []))) for rounds in times]
        rows.append([label, where, *medians, re.sub("^[^ ]*", r"**\g<0>**", ratio) if is_slower else ratio])
    return rows


def tables_of_simulations(results, groups):
    """Writes the tables that scale.json describes: a row for each point of an axis, or a published figure beside the simulated one."""
    for name, table in json.loads((results / "scale.json").read_text()).items():
        runs = groups.get(table["experiment"])
        if not runs:
            continue
        value = lambda x, series, metric: runs.get(("simulated", x, series), {}).get(metric, {})
        cell = lambda x, series, metric: shown(statistics.median(sum(value(x, series, metric).values(), [])))
        if "published" in table:
            rows = [["machine", "metric", "published", "simulated", "ratio", "what the model leaves out"]]
            for label, series, metric, unit, published, leaves_out in table["published"]:
                simulated = statistics.median(sum(value(None, series, metric).values(), []))
                rows.append([label, unit, shown(published), shown(simulated), f"{simulated / published:.2f}", leaves_out])
        else:
            rows = [[f"{table['first']} (simulated)", *(heading for heading, _, _ in table["columns"])]]
            for x in sorted({x for _, x, _ in runs if x is not None}):
                rows.append([f"{x:,.0f}", *(cell(x, *of) if value(x, *of) else "" for _, *of in table["columns"])])
        write_table(results / "scale" / f"{name}.csv", rows)


# ---- the pages


def row_text(cells):
    # A row begins with a space even if its first cell is empty.
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in cells)


def cells_of(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def with_table(page, text, name, rows):
    """The page with the table, which has the same heading."""
    lines, heading = text.split("\n"), row_text(rows[0])
    at = [nth for nth, line in enumerate(lines) if line == heading]
    if len(at) != 1:
        raise Wrong(f"{page}: {len(at)} tables have the heading of lab/results table {name}: {heading}")
    end = at[0]
    while end < len(lines) and lines[end].startswith("|"):
        end += 1
    table = [heading, "|" + "---|" * len(rows[0]), *map(row_text, rows[1:])]
    return "\n".join(lines[:at[0]] + table + lines[end:])


def headings(text):
    lines = re.sub(r"```.*?```", "", text, flags=re.S).split("\n")
    return [line for line, below in zip(lines, lines[1:]) if below.startswith("|---")]


def with_quote(page, text, quote, value_of):
    """The page with the figures of one line of quotes.txt. `value_of` has a reference and the figure that is there."""
    parts = re.split(r"\{([^}]*)\}", quote)
    pattern = "".join(f"({FIGURE})" if nth % 2 else re.sub(r"(\\ )+", r"\\s+", re.escape(part)) for nth, part in enumerate(parts))
    found = list(re.finditer(pattern, text))
    if len(found) != 1:
        raise Wrong(f"{page}: this text is there {len(found)} times, not once: {quote}")
    for nth in range(len(parts) // 2, 0, -1):
        start, end = found[0].span(nth)
        text = text[:start] + value_of(parts[2 * nth - 1], text[start:end]) + text[end:]
    return text


def unquoted(page, text, quotes):
    """The lines of a page that have a figure which no line of quotes.txt has."""
    for _, _, quote in (quote for quote in quotes if quote[0] == page):
        text = with_quote(page, text, quote, lambda _, figure: "#")
    heading = ""
    for line in re.sub(r"```.*?```", "", text, flags=re.S).split("\n"):
        if not line.startswith("|"):
            heading = ""
            wrong = re.search(r"\d\.\d", re.sub(r"`[^`]*`|\]\([^)]*\)", "", line))
        else:
            heading = heading or line
            wrong = heading == QUOTED[page] and figures(cells_of(line)[-1])
        if wrong:
            yield line


def pages_as_measured(root):
    """The text of each page as it is and as it should be."""
    results = root / "lab/results"
    tables, page_of = read_tables(results)
    quotes = [line.partition(": ") for line in (results / "quotes.txt").read_text().splitlines() if line and not line.startswith("#")]
    names = dict.fromkeys([*page_of.values(), *COMPLETE, *(page for page, _, _ in quotes)])
    was = {page: (root / page).read_text() for page in names}
    now = dict(was)
    for name, page in page_of.items():
        now[page] = with_table(page, now[page], name, tables[name])
    for page in COMPLETE:
        known = {row_text(tables[name][0]) for name in page_of if page_of[name] == page}
        for heading in headings(now[page]):
            if heading not in known:
                raise Wrong(f"{page}: lab/results has no file for the table {heading}")
    for page, _, quote in quotes:
        measured = lambda reference, like: rounded(figure_of(tables, reference), like) if reference else like
        now[page] = with_quote(page, now[page], quote, measured)
    for page in QUOTED:
        for line in unquoted(page, now[page], quotes):
            raise Wrong(f"{page}: add the figures of this line to lab/results/quotes.txt: {line}")
    return was, now


def differences(was, now):
    for page, text in now.items():
        for nth, (old, new) in enumerate(zip(was[page].split("\n"), text.split("\n")), 1):
            if old != new:
                yield f"{page}:{nth} differs from lab/results, which says: {new}"
                break
        else:
            if was[page] != text:
                yield f"{page}: a table has more or fewer rows than in lab/results"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="runs", nargs="+", metavar="RUNS", help="JSON lines of runs, from which tables are made")
    parser.add_argument("--write", action="store_true", help="write the figures into the pages")
    parser.add_argument("--root", type=pathlib.Path, default=HERE.parent, help="the checkout")
    args = parser.parse_args()
    try:
        if args.runs:
            tables_of_runs(args.root / "lab/results", args.runs)
        was, now = pages_as_measured(args.root)
        wrong = list(differences(was, now))
    except (Wrong, OSError) as error:
        sys.exit(f"results: {error}")
    if args.write:
        for page, text in now.items():
            if text != was[page]:
                (args.root / page).write_text(text)
                print(f"wrote {page}")
    elif wrong:
        sys.exit("\n".join([f"results: {line}" for line in wrong] + ["results: run python3 lab/results.py --write, or correct the table"]))


if __name__ == "__main__":
    main()
