#!/usr/bin/env bash
# Compares the mask that `steerage tune` chooses with all masks set by hand, and shows that tune takes an unhelpful mask back. See README.md.
#   measure.sh [ROUNDS [SECONDS [WINDOW]]]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

rounds=${1:-11} seconds=${2:-1} window=${3:-5s}
# Windows below five seconds are for tests, and say so.
windows=--window
[[ $window == [5-9]s || $window == ??*s ]] || windows=--test-window
steerage=${STEERAGE:-${CARGO_TARGET_DIR:-../../../target}/release/steerage}
divisions=${DIVISIONS:-1500} flows=${FLOWS:-64} send_cpu=${SEND_CPU:-0} masks=${MASKS:-0 1 2 3}
[[ -x $steerage ]] || { echo "cargo build --release -p steerage-cli" >&2; exit 1; }

# shellcheck source=../common/namespaces.sh
. ../common/namespaces.sh
sink= state=$(mktemp -d)
end() { for process in $sink $pid; do kill "$process" 2>/dev/null || true; done; sink='' pid=''; }
trap 'end; cleanup; rm -rf "$state"' EXIT
ip -n "$a" link add veth0 type veth peer name veth1 netns "$b"
ip -n "$a" link set veth0 up
ip -n "$b" link set veth1 up
no_gro

in_b() { ip netns exec "$b" "$@"; }
set_mask() { in_b sh -c "echo $1 > /sys/class/net/veth1/queues/rx-0/rps_cpus"; }
mask() { in_b cat /sys/class/net/veth1/queues/rx-0/rps_cpus; }
packets() { in_b cat /sys/class/net/veth1/statistics/rx_packets; }
# DIVISIONS RATE: starts the work and the traffic.
start() {
    coproc { exec ip netns exec "$b" python3 sink.py veth1 "$1"; }
    sink=$COPROC_PID
    read -r _ <&"${COPROC[0]}"
    ip netns exec "$a" "${SENDER:-$steerage}" send veth0 "synthetic:flows=$flows" --cpus "$send_cpu" --rate "$2" --seconds 0 >/dev/null 2>&1 &
    pid=$!
}
# The packets that arrive in a second.
rate() {
    local before after t0 t1
    t0=$EPOCHREALTIME before=$(packets)
    sleep "$seconds"
    t1=$EPOCHREALTIME after=$(packets)
    awk -v n=$((after - before)) -v t="$(echo "$t1 - $t0" | bc)" 'BEGIN { printf "%.0f", n / t }'
}
tune() { in_b env STEERAGE_STATE_DIR="$state" "$steerage" tune veth1 "$@"; }

echo "== an unhelpful mask: one CPU other than the one that receives, and packets that cost nothing" >&2
start 1 max
set_mask 2
tune --apply "$windows" "$window"
echo "{\"series\":\"unhelpful\",\"before\":\"2\",\"after\":\"$(mask)\"}"
tune --undo >&2
end

echo "== the heavy receiver: $divisions divisions for each packet" >&2
start "$divisions" max
set_mask 0
tune --apply "$windows" "$window"
chosen=$(mask)
echo "tune chose $chosen" >&2
for round in $(seq "$rounds"); do
    for candidate in $masks tune; do
        set_mask "${candidate/tune/$chosen}"
        echo "{\"series\":\"$candidate\",\"round\":$round,\"mask\":\"${candidate/tune/$chosen}\",\"pps\":$(rate)}"
    done
done | tee "$state/rows" | jq -c .
jq -rs 'group_by(.series) | map({series: .[0].series, median: (map(.pps) | sort | .[length / 2 | floor])})
    | (map(select(.series != "tune").median) | max) as $best | .[] | "\(.series)\t\(.median)\t\(.median / $best * 100 | round / 100)"' "$state/rows" >&2
tune --undo >&2
