#!/usr/bin/env python3
"""Merges the JSON lines of several runs of steerage-lab and of the programs in lab/peers, compares the series, and draws them.

    cargo run --release -p steerage-lab -- rps > rps.jsonl
    python3 lab/page.py rps.jsonl                     tables and verdicts as text
    python3 lab/page.py rps.jsonl more.jsonl -o page.html
    python3 lab/page.py --performance [--check]       draws the charts of docs/performance.md and docs/scale.md from lab/results

A line is one run: {"experiment", "series", "x", "round", "apart_ns", "values"}. lab/experiments.json says what the metrics mean, which
series are compared, and what was published. Two other lines are read: {"experiment", "skipped"} and {"beside": "DPDK 22.11"}.

- Runs are pooled only if series, x and the distance of the CPUs are the same. Runs in which the CPUs moved are counted and left out.
- Series are compared within a round, in which they ran one after the other. A file is one set of rounds, and ratios are never taken
  across files. If a case comes again with the same round, the next turn has begun.
- A ratio above 1 says that the first series is better. The brackets hold the true median with a probability of 95 % (sign test); with
  fewer than nine rounds they are the least and the most. There is a difference if the brackets lie on one side of 1 and the median is
  farther from 1 than the brackets are wide.
"""

import argparse
import csv
import html
import json
import math
import pathlib
import signal
import statistics
import sys
from collections import defaultdict

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent

# Two rounds agree by luck in one of two cases.
ROUNDS_MIN = 3
# A smaller gain rounds to 1.00; series that differ by less than a tenth are alike.
LEAST_SHOWN, ALIKE = 1.005, 1.1
# The one-way time of a cache line, in nanoseconds, that separates near from far if all times are alike; and the least ratio of two
# typical times that are two kinds. Near and far differ by at least 2 on the measured hosts, and times of one kind by at most 1.6.
FAR_NANOS, APART_MIN = 100.0, 1.7
# Light and dark ground.
COLOURS = [("#0b62d6", "#6cb2ff"), ("#8250df", "#c8a2ff"), ("#b35900", "#ffb46b"), ("#1a7f37", "#6fdd8b"), ("#8c2f39", "#ff9aa2"),
           ("#57606a", "#b1bac4"), ("#0a7d8c", "#5fd3e0"), ("#9a6700", "#e3c04d")]


# ---- reading


def read(paths):
    """All runs, each with the set of rounds that it belongs to, and the other lines."""
    runs, notes, machines, simulated = [], [], [], []
    for number, path in enumerate(paths):
        seen, turns = defaultdict(set), defaultdict(int)
        for nth, line in enumerate((sys.stdin if path == "-" else open(path, encoding="utf-8")), 1):
            if not line.strip():
                continue
            try:
                run = json.loads(line)
            except ValueError:
                sys.exit(f"page: {path}:{nth} is no JSON line: give the output of steerage-lab")
            if run.get("machine") not in [None, *machines]:
                machines.append(run["machine"])
            if run.get("simulated") not in [None, *simulated]:
                simulated.append(run["simulated"])
            if "values" not in run:
                notes.append(run)
                continue
            name, case = run["experiment"], (run["series"], run.get("x"), run["round"])
            if case in seen[name]:
                seen[name].clear()
                turns[name] += 1
            seen[name].add(case)
            runs.append({**run, "x": run.get("x"), "round": (number, turns[name], run["round"])})
    if len(machines) > 1:
        sys.exit("page: the runs are of different machines or versions, and cannot be pooled:\n  " + "\n  ".join(machines))
    if len(simulated) > 1:
        sys.exit("page: the simulated runs have different costs, machines or seeds, and cannot be pooled:\n  " + "\n  ".join(simulated))
    machines += [f"simulated: {machine}" for machine in simulated]
    by_experiment = defaultdict(list)
    for run in runs:
        by_experiment[run["experiment"]].append(run)
    for runs in by_experiment.values():
        place(runs)
    return by_experiment, notes, machines


def place(runs):
    """Sets where the CPUs of each run were: near, far, moved or alone. The times of the experiment decide: they are divided so that the
    differences within both parts are smallest (by logarithm, as Otsu divides the pixels of a picture)."""
    times = sorted(time for run in runs for time in run.get("apart_ns") or [] if time > 0)
    limit = math.inf
    if times:
        limit = 0.0 if times[len(times) // 2] > FAR_NANOS else math.inf
        logs = [math.log(time) for time in times]
        between = lambda at: at * (len(logs) - at) * (statistics.fmean(logs[at:]) - statistics.fmean(logs[:at])) ** 2
        if len(times) > 1:
            at = max(range(1, len(times)), key=between)
            near, far = times[:at][at // 2], times[at:][(len(times) - at) // 2]
            if far / near >= APART_MIN:
                limit = math.sqrt(near * far)
    for run in runs:
        apart = run.get("apart_ns")
        far = [time > limit for time in apart or []]
        run["where"] = "simulated" if "simulated" in run else "alone" if not apart else "moved" if len(set(far)) > 1 else "far" if far[0] else "near"


def order(x):
    return (x is not None, x or 0)


def group(runs):
    """The values of each metric by (where, x, series), in the order of a table, and by round."""
    series = list(dict.fromkeys(run["series"] for run in runs))
    groups = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for run in runs:
        if run["where"] != "moved":
            for metric, value in run["values"].items():
                groups[run["where"], run["x"], run["series"]][metric][run["round"]].append(value)
    places = ["near", "far", "alone", "simulated"]
    return dict(sorted(groups.items(), key=lambda item: (places.index(item[0][0]), order(item[0][1]), series.index(item[0][2]))))


# ---- comparing


def compare(groups, of, over, metric, more_is_better):
    """The verdict at each place and point where both series ran: (where, x, ratio, low, high, rounds, verdict)."""
    for (where, x, series), metrics in groups.items():
        other = groups.get((where, x, over), {}).get(metric, {})
        if series != of or not other:
            continue
        pairs = [(statistics.median(values), statistics.median(other[at])) for at, values in metrics[metric].items() if at in other]
        pairs = [pair if more_is_better else pair[::-1] for pair in pairs]
        ratios = sorted(1.0 if ours == theirs else ours / theirs if theirs else math.inf for ours, theirs in pairs)
        if ratios:
            yield where, x, *judge(ratios)


def judge(ratios):
    rounds, ratio = len(ratios), statistics.median(ratios)
    cut = outside(rounds)
    low, high = ratios[cut], ratios[-1 - cut]
    if rounds < ROUNDS_MIN:
        return ratio, low, high, rounds, f"too few runs ({rounds} of {ROUNDS_MIN})"
    size = lambda ratio: abs(math.log(ratio)) if 0 < ratio < math.inf else math.inf
    tiny = size(ratio) < math.log(LEAST_SHOWN)
    width = 0.0 if low == high else size(high / low) if 0 < low and high < math.inf else math.inf
    one_side, alike = low > 1 or high < 1, low >= 1 / ALIKE and high <= ALIKE
    if one_side and size(ratio) >= width and not tiny:
        verdict = f"{times(ratio)} times [{times(low)}..{times(high)}]{', worse' if high < 1 else ''}"
    elif alike and (tiny or not one_side):
        verdict = f"no difference ({times(low)}..{times(high)})"
    else:
        verdict = f"unclear ({times(low)}..{times(high)})"
    return ratio, low, high, rounds, verdict


def outside(rounds):
    """How many ratios lie outside of the brackets at either end: as many as keep the chance that the true median does too at 5 %."""
    chance, heads = 0, 0
    while True:
        chance += math.comb(rounds, heads)
        if 40 * chance > 2**rounds:
            return max(heads - 1, 0)
        heads += 1


def times(ratio):
    return "over 999" if ratio > 999 else f"{ratio:.{0 if ratio >= 99.95 else 1 if ratio >= 9.995 else 2 if ratio >= 0.0995 else 3}f}"


# ---- drawing

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 400, 56, 220, 46, 56


def svg(title, height, marks):
    used = [(n, pair) for n, pair in enumerate(COLOURS) if any(f'class="t{n}"' in mark for mark in marks)]
    sides = [f".s{n}{{stroke:{light};fill:none}}text.t{n},rect.t{n}{{fill:{light}}}" for n, (light, _) in used]
    darks = [f".s{n}{{stroke:{dark};fill:none}}text.t{n},rect.t{n}{{fill:{dark}}}" for n, (_, dark) in used]
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<title>{html.escape(title)}</title>",
        "<style>text{font:13px sans-serif;fill:#1f2328}.axis{stroke:#8c959f}.grid{stroke:#d0d7de}polyline{stroke-width:2.5}.ground{fill:#fff}",
        "".join(sides),
        "@media(prefers-color-scheme:dark){.ground{fill:#0d1117}text{fill:#e6edf3}.grid{stroke:#30363d}" + "".join(darks) + "}</style>",
        f'<rect class="ground" width="{WIDTH}" height="{height}"/>',
        f'<text x="8" y="24" font-weight="bold">{html.escape(title)}</text>', *marks, "</svg>"]) + "\n"


def lines(title, label, series, ratio=False):
    """A line for each series: (name, {x: value}). Points stand at equal distances, in order of x."""
    xs = sorted({x for _, points in series for x in points})
    most = max(value for _, points in series for value in points.values()) or 1.0
    step = next(step for step in (m * 10.0**e for e in range(-9, 12) for m in (1, 2, 5)) if most / step <= 6)
    top = step * math.ceil(most / step)
    x = lambda at: LEFT + (WIDTH - LEFT - RIGHT) * (xs.index(at) / (len(xs) - 1) if len(xs) > 1 else 0.5)
    y = lambda value: TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / top)
    marks = []
    for nth in range(round(top / step) + 1):
        value = nth * step
        kind = "axis" if value == (1 if ratio else 0) else "grid"
        marks.append(f'<line class="{kind}" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>')
        marks.append(f'<text x="{LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value:g}</text>')
    marks += [f'<text x="{x(at):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{at:g}</text>' for at in xs]
    marks.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 12}" text-anchor="middle">{html.escape(label)}</text>')
    ends = []
    for n, (name, points) in enumerate(series):
        drawn = [(x(at), y(points[at])) for at in xs if at in points]
        marks.append(f'<polyline class="s{n % len(COLOURS)}" points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in drawn)}"/>')
        ends.append((drawn[-1][1], n, name))
    # Names stand at the ends of their lines, and not on each other.
    last = -math.inf
    for at, n, name in sorted(ends):
        last = max(at, last + 17)
        marks.append(f'<text class="t{n % len(COLOURS)}" x="{WIDTH - RIGHT + 8}" y="{last + 4:.1f}">{html.escape(name)}</text>')
    return svg(title, max(HEIGHT, round(last) + 20), marks)


def bars(title, values):
    """A bar for each name: (name, median, least, most), with a line from the least to the most."""
    top = max(most for *_, most in values) or 1.0
    at = lambda value: 260 + 400 * value / top
    marks = []
    for n, (name, median, least, most) in enumerate(values):
        y = TOP + 26 * n
        marks.append(f'<text x="252" y="{y + 14}" text-anchor="end">{html.escape(name)}</text>')
        marks.append(f'<rect class="t{n % len(COLOURS)}" x="260" y="{y}" width="{at(median) - 260:.1f}" height="18"/>')
        marks.append(f'<line class="axis" x1="{at(least):.1f}" x2="{at(most):.1f}" y1="{y + 9}" y2="{y + 9}"/>')
        marks.append(f'<text x="{at(most) + 6:.1f}" y="{y + 14}">{median:.4g}</text>')
    return svg(title, TOP + 26 * len(values) + 12, marks)


def charts(about, groups):
    """The charts of an experiment: medians of each metric, and the ratios of the compared series."""
    for metric, (title, unit, _) in about["metrics"].items():
        for where in dict.fromkeys(where for where, _, _ in groups):
            points = {(x, series): list(sum(metrics[metric].values(), [])) for (place, x, series), metrics in groups.items()
                      if place == where and metric in metrics}
            heading = f"{title}, {unit} ({where})"
            if len({x for x, _ in points}) > 1:
                names = dict.fromkeys(series for _, series in points)
                yield lines(heading, about["x"], [(name, {x: statistics.median(values) for (x, series), values in points.items()
                                                          if series == name}) for name in names])
            elif points:
                yield bars(heading, [(name, statistics.median(values), min(values), max(values)) for (_, name), values in points.items()])
    ratios = defaultdict(lambda: defaultdict(dict))
    for of, over, metric in about["compared"]:
        for where, x, ratio, *_ in compare(groups, of, over, metric, about["metrics"][metric][2]):
            if x is not None and ratio < math.inf:
                ratios[metric, where][f"{of} / {over}"][x] = ratio
    for (metric, where), series in ratios.items():
        if max(map(len, series.values())) > 1:
            yield lines(f"Gain in {about['metrics'][metric][0]} ({where})", about["x"], list(series.items()), ratio=True)


# ---- the report


def table(about, groups):
    """The rows of the table, the first of which are the headings."""
    yield ["where", *([about["x"]] if about["x"] else []), "series", "runs", *(f"{title}, {unit}" for title, unit, _ in about["metrics"].values())]
    for (where, x, series), metrics in groups.items():
        row = [where, *([f"{x:g}" if x is not None else "-"] if about["x"] else []), series]
        row.append(str(max(sum(map(len, rounds.values())) for rounds in metrics.values())))
        for metric in about["metrics"]:
            values = sum(metrics[metric].values(), []) if metric in metrics else []
            row.append(f"{statistics.median(values):.4g} [{min(values):.4g}..{max(values):.4g}]" if values else "-")
        yield row


def verdicts(about, groups):
    for of, over, metric in about["compared"]:
        title, _, more = about["metrics"][metric]
        found = list(compare(groups, of, over, metric, more))
        if found:
            yield f"{of} over {over}, {title}", [(where, "" if x is None else f"{x:g}", verdict) for where, x, *_, verdict in found]


def report(paths, page):
    by_experiment, notes, machines = read(paths)
    described = json.loads((HERE / "experiments.json").read_text())
    if not by_experiment:
        sys.exit("page: there are no runs: give the output of steerage-lab")
    text, body = list(machines), [f"<p>{html.escape(line)}</p>" for line in machines]
    text += [f"beside: {note['beside']}" for note in notes if "beside" in note]
    body += [f"<p>Beside: {html.escape(note['beside'])}</p>" for note in notes if "beside" in note]
    escape = lambda cells, tag: "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"
    for name, runs in by_experiment.items():
        if name not in described:
            sys.exit(f"page: lab/experiments.json does not describe {name}: describe its metrics there")
        about, groups = described[name], group(runs)
        heading, *rows = table(about, groups)
        skipped = list(dict.fromkeys(note["skipped"] for note in notes if note.get("experiment") == name and "skipped" in note))
        moved = sum(run["where"] == "moved" for run in runs)
        skipped += [f"{moved} runs in which the CPUs moved"] if moved else []
        widths = [max(len(row[n]) for row in [heading, *rows]) for n in range(len(heading))]
        text += ["", f"{name}: {about['title']}", about["question"], *([f"Published: {about['published']}"] if about["published"] else []), ""]
        text += ["  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in [heading, *rows]]
        body += [f"<h2>{html.escape(name)}: {html.escape(about['title'])}</h2><p>{html.escape(about['question'])}</p>"]
        body += [f"<p>Published: {html.escape(about['published'])}</p>"] if about["published"] else []
        body += [f"<figure>{chart}</figure>" for chart in (charts(about, groups) if page else [])]
        body += ["<table>", escape(heading, "th"), *(escape(row, "td") for row in rows), "</table>"]
        for title, found in verdicts(about, groups):
            beside = [f"published: {of['ratio']:.2f} ({of['set_up']})" for of in about["beside"] if title.startswith(f"{of['of']} over {of['over']},")]
            text += ["", f"  {title}:", *("    " + "  ".join(filter(None, line)) for line in found), *(f"    {line}" for line in beside)]
            body += [f"<h3>{html.escape(title)}</h3><ul>", *(f"<li>{html.escape('  '.join(filter(None, line)))}</li>" for line in found)]
            body += [*(f"<li>{html.escape(line)}</li>" for line in beside), "</ul>"]
        text += ["", *(f"  left out: {line}" for line in skipped)] if skipped else []
        body += [f"<p>Left out: {html.escape(line)}</p>" for line in skipped]
    if page:
        style = "body{font:15px sans-serif;max-width:70em;margin:2em auto;padding:0 1em;color-scheme:light dark}td,th{text-align:left;padding:.1em 1em .1em 0}"
        pathlib.Path(page).write_text(f'<!doctype html><html lang="en"><meta charset="utf-8"><title>steerage-lab</title><style>{style}</style>'
                                      + "\n".join(body) + "</html>\n")
    else:
        print("\n".join(text))


# ---- the charts of README.md and docs/

BASE = "no steering"
# The column of the table, and its name in the chart.
COLUMNS = [
    ("balance", "steerage, default policy"),
    ("both, hash", "steerage, both CPUs always"),
    ("`rte_ring`", "rte_ring, all to the other CPU"),
    ("`rte_ring`, 45 % kept", "rte_ring, best split by hand"),
    ("`rte_distributor`", "rte_distributor"),
]


def rows_of(table):
    """The rows of a table of lab/results, by the number in their first column."""
    with open(HERE / "results" / table, encoding="utf-8", newline="") as file:
        number = lambda cell: float(cell.replace(",", ""))
        rows = [list(row.items()) for row in csv.DictReader(file)]
        return {int(number(row[0][1])): {name: number(cell) for name, cell in row[1:]} for row in rows}


def performance():
    """The table of two CPUs, which docs/performance.md has as well."""
    rows = {work: rates for work, rates in rows_of("performance/rps.csv").items() if work > 0}
    series = [(name, {work: rates[column] / rates[BASE] for work, rates in rows.items()}) for column, name in COLUMNS]
    return lines("Packets per second on two CPUs, relative to one CPU", "work per packet, in nanoseconds", series, ratio=True)


def scale():
    """What docs/scale.md says about losses: the part of the packets that is handled."""
    rows = rows_of("scale/scale-lost.csv")
    series = [(name, {cpus: 1 - lost[name] / 100 for cpus, lost in rows.items()}) for name in next(iter(rows.values()))]
    return lines("Simulated: handled part of the packets, at 70 % load", "CPUs; a queue for four CPUs, or 1 queue", series, ratio=True)


def scale_delay():
    """How long packets wait, without `none`, whose queues are full."""
    rows = rows_of("scale/scale-delay.csv")
    series = [(name, {cpus: waits[name] for cpus, waits in rows.items()}) for name in next(iter(rows.values())) if not name.startswith("none")]
    return lines("Simulated: wait until a packet is handled, in us, at 70 % load", "CPUs; a queue for four CPUs", series)


def scale_queues():
    """What 1,024 CPUs handle with each number of queues."""
    rows = rows_of("scale/scale-queues.csv")
    series = [(name.split(":")[0], {queues: rates[name] for queues, rates in rows.items()}) for name in next(iter(rows.values())) if name.endswith("Mpps")]
    return lines("Simulated: million packets per second of 1,024 CPUs", "queues", series)


def draw(check):
    charts = [("performance.svg", performance()), ("scale.svg", scale()), ("scale-delay.svg", scale_delay()), ("scale-queues.svg", scale_queues())]
    for name, chart in charts:
        picture = ROOT / "docs" / name
        if not check:
            picture.write_text(chart)
        elif not picture.exists() or picture.read_text() != chart:
            sys.exit(f"page: docs/{name} is out of date: run python3 lab/page.py --performance")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", metavar="FILE", help="JSON lines of runs; - is standard input")
    parser.add_argument("-o", "--output", metavar="PAGE", help="write a page with charts, in place of text")
    parser.add_argument("--performance", action="store_true", help="draw the charts of docs/performance.md and docs/scale.md")
    parser.add_argument("--check", action="store_true", help="with --performance: fail if a picture is out of date")
    args = parser.parse_args()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader such as `head` may leave
    if args.performance:
        draw(args.check)
    elif args.files:
        report(args.files, args.output)
    else:
        parser.error("give files, or --performance")


if __name__ == "__main__":
    main()
