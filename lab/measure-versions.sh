#!/usr/bin/env bash
# The receive path, the page pool and `meter` of an earlier version beside this version, in turn.
#   lab/measure-versions.sh BEFORE [ROUNDS] >versions.jsonl
# BEFORE is the program `steerage` of an earlier version that still has `steerage bench`. The last one is 05573b8c:
#   git worktree add target/before 05573b8c
#   cargo build --release --manifest-path target/before/Cargo.toml --target-dir target/before/target -p steerage-cli
# Fifteen rounds take ten minutes, and measure the page pool in three of them. `python3 lab/results.py --from versions.jsonl` makes the table from the lines.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() { sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2; }
before=${1-} rounds=${2:-15}
[[ -x $before && $rounds =~ ^[1-9][0-9]{0,3}$ ]] || usage
target=${CARGO_TARGET_DIR:-target}
steerage=${STEERAGE:-$target/release/steerage} lab=${STEERAGE_LAB:-$target/release/steerage-lab}
[[ -x $steerage && -x $lab ]] || { echo "measure-versions.sh: cargo build --release -p steerage-cli -p steerage-lab" >&2; exit 1; }
cpu_a=${METER_CPU:-0} cpu_b=${METER_CPU_2:-1}
flows=1024
# Packets of each length: a capture of either takes tenths of seconds.
declare -A packets=([60]=2000000 [800]=500000) experiments=([60]=meter [800]=meter-800)
# shellcheck source=peers/common/sample.sh
. lab/peers/common/sample.sh
make -s -C lab/peers/capture generate >&2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
for length in "${!packets[@]}"; do
    lab/peers/capture/generate "${packets[$length]}" "$flows" "$length" >"$scratch/$length.pcap"
done

nice=(nice -n "$(((EUID == 0) * -20))")
bench_before() { # EXPERIMENT
    "${nice[@]}" "$before" bench "$1" --rounds 1 --json --cpus "$cpu_a,$cpu_b" 2>/dev/null | jq -c --arg experiment "$1" --argjson round "$round" \
        '.experiments[].samples[] | select(.experiment == $experiment) | {experiment, series: "before: \(.series)", x, round: $round, apart_ns, values}'
}
bench_now() { # EXPERIMENT
    "${nice[@]}" "$lab" "$1" --rounds 1 --cpus "$cpu_a,$cpu_b" 2>/dev/null | jq -c --argjson round "$round" '.round = $round'
}
metered() { # SERIES PROGRAM
    local near start end
    near=$(probe) start=$EPOCHREALTIME
    "${nice[@]}" taskset -c "$cpu_a" "$2" meter "$scratch/$length.pcap" --cpus "$cpu_a" >/dev/null 2>&1
    end=$EPOCHREALTIME
    # A clock's digits without its point are microseconds.
    sample "${experiments[$length]}" "$1" "$flows" "$round" "$(placement "$near" "$(probe)")" \
        packet_ns "$(awk -v n="${packets[$length]}" -v us=$((${end/[.,]/} - ${start/[.,]/})) 'BEGIN { printf "%.2f", 1000 * us / n }')"
}

for ((round = 0; round < rounds; round++)); do
    echo "measure-versions.sh: round $((round + 1)) of $rounds" >&2
    bench_before path
    bench_now path
    # It comes with three others, which take a minute.
    if ((round % 5 == 0)); then
        bench_before page-cache
        bench_now page-cache
    fi
    for length in "${!packets[@]}"; do
        metered "before: steerage meter, 1 CPU" "$before"
        metered "steerage meter, 1 CPU" "$steerage"
    done
done
