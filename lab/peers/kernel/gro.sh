#!/usr/bin/env bash
# `steerage forward` with and without `--gro` in turn, between namespaces whose kernels merge and cut nothing: a TCP transfer by iperf3, and
# small packets of many flows. See README.md.
#   gro.sh [ROUNDS [SECONDS [PACKETS [FLOWS]]]]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

rounds=${1:-5} seconds=${2:-3} packets=${3:-1000000} flows=${4:-1000}
send_cpu=${SEND_CPU:-0} one=${FORWARD_CPU:-1}
steerage=${STEERAGE:-../../../target/release/steerage}
[[ -x $steerage ]] || { echo "no $steerage: cargo build --release -p steerage-cli, or name another in STEERAGE" >&2; exit 1; }
cpu_a=$send_cpu cpu_b=$one experiment=gro
# shellcheck source=../common/router.sh
. ../common/router.sh

ip -n "$a" addr add 10.0.0.2/8 dev a0
ip -n "$a" route add 192.0.2.0/24 via 10.255.255.1
ip -n "$b" addr add 192.0.2.2/24 dev b0
ip -n "$b" route add 10.0.0.0/8 via 192.0.2.1
for end in "$a a0" "$r r0" "$r r1" "$b b0"; do
    read -r ns interface <<<"$end"
    ip netns exec "$ns" ethtool -K "$interface" tx off tso off gso off gro off >/dev/null
done
ip netns exec "$b" iperf3 -s >/dev/null &
server=$!
trap 'kill "$server" 2>/dev/null || true; cleanup' EXIT

cpu_ns() { cat /proc/"$pid"/task/*/schedstat 2>/dev/null | awk '{ sum += $1 } END { printf "%.0f", sum }'; }

# Replaces the flood of router.sh while the kind is "transfer".
eval "small_$(declare -f flood)"
flood() { # SERIES
    [[ $kind == transfer ]] || { small_flood "$1"; return; }
    local placed before gbits
    placed=$(probe)
    before=$(cpu_ns)
    gbits=$(ip netns exec "$a" iperf3 -c 192.0.2.2 -t "$seconds" -J | jq '.end.sum_received | [.bits_per_second / 1e9, .bytes] | @tsv' -r)
    # shellcheck disable=SC2046,SC2086 # to be split
    sample "$experiment" "$1" null "$round" "$(placement "$placed" "$(probe)")" \
        $(awk -v cpu=$(($(cpu_ns) - before)) '{ printf "gbits %.3f cpu_ns_per_kb %.1f", $1, cpu / ($2 / 1000) }' <<<"$gbits")
}

for ((round = first_round; round < first_round + rounds; round++)); do
    for kind in transfer small; do
        ours "$kind" "$one" r0 r1
        ours "$kind, --gro" "$one" r0 r1 --gro
        ours "$kind by AF_XDP" "$one" af_xdp:r0 af_xdp:r1 --take all
        ours "$kind by AF_XDP, --gro" "$one" af_xdp:r0 af_xdp:r1 --take all --gro
    done
done
