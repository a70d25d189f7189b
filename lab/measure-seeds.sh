#!/usr/bin/env bash
# Repeats the published experiments, and writes their results to lab/results and the pages.
#   sudo lab/measure-seeds.sh [ROUNDS [RUNS.jsonl]]
# It takes ten minutes with 3 rounds, and network namespaces, which it removes at the end. RUNS.jsonl keeps the line of each run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

rounds=${1:-3} runs=${2:-../target/seeds.jsonl}
target=${CARGO_TARGET_DIR:-../target}
lab=${STEERAGE_LAB:-$target/release/steerage-lab}
STEERAGE=$(realpath "${STEERAGE:-$target/release/steerage}")
export STEERAGE
[[ $EUID == 0 ]] || { echo "measure-seeds.sh: network namespaces take root: sudo lab/measure-seeds.sh" >&2; exit 1; }
[[ -x $STEERAGE && -x $lab ]] || { echo "measure-seeds.sh: cargo build --release -p steerage-cli -p steerage-lab" >&2; exit 1; }
[[ ! -s $runs ]] || { echo "measure-seeds.sh: $runs has runs already: move it, or name another file" >&2; exit 1; }
for peer in common af_packet kernel; do make -s -C "peers/$peer"; done

# Each in a session of its own, because many kernels share the CPUs out by sessions. Several turns, so that there are enough rounds at
# one distance of the CPUs if the host moves them.
{
    read -r load _ </proc/loadavg
    echo "{\"load\": $load, \"rounds\": $rounds}"
    setsid -w "$lab" rps-queues rps-tun handoff-rate late-metadata-drop page-cache-rate rr --rounds "$rounds"
    setsid -w peers/kernel/collector.sh "$rounds"
    setsid -w peers/af_packet/hash.sh "$rounds"
} >"$runs"
python3 results.py --from "$runs" --write
