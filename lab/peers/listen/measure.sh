#!/usr/bin/env bash
# CPU time per packet, delay and loss of a program that listens, at steady rates, and the half of the work that the driver does. See
# README.md.
#   measure.sh [ROUNDS [SECONDS [PACKETS_A_SECOND...]]]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

rounds=${1:-3} seconds=${2:-2}
shift $(($# < 2 ? $# : 2))
rates=("$@")
# The last rate is more than a sender reaches.
((${#rates[@]})) || rates=(0 1000 10000 100000 500000 10000000)
target=${CARGO_TARGET_DIR:-../../../target}
listening=${LISTENING:-$target/release/examples/listening}
send_cpu=${SEND_CPUS:-0} cpu=${RECEIVE_CPUS:-1}
[[ -x $listening ]] || { echo "cargo build --release -p steerage-lab --example listening" >&2; exit 1; }

# shellcheck source=../common/namespaces.sh
. ../common/namespaces.sh
ip -n "$a" link add veth0 type veth peer name veth1 netns "$b"
ip -n "$a" addr add 10.9.0.1/24 dev veth0
ip -n "$b" addr add 10.9.0.2/24 dev veth1
ip -n "$a" link set veth0 up
ip -n "$b" link set veth1 up
# The packets are for a machine that does not exist, so no kernel answers them.
ip -n "$a" neigh add 10.9.0.2 lladdr 02:00:00:00:00:99 dev veth0 nud permanent
no_gro

cpu_a=$send_cpu cpu_b=$cpu
# shellcheck source=../common/sample.sh
. ../common/sample.sh

# How often each of the two CPUs ran the kernel's receiving: the sender's, and the receiver's.
receive_interrupts() {
    awk -v a=$((send_cpu + 2)) -v b=$((cpu + 2)) '$1 == "NET_RX:" { print $a, $b }' /proc/softirqs
}

# EMPTY_POLLS NANOSECONDS: defers the interrupts of the receiver's interface, which busy polling takes.
defer() {
    ip netns exec "$b" sh -c "echo $1 >/sys/class/net/veth1/napi_defer_hard_irqs; echo $2 >/sys/class/net/veth1/gro_flush_timeout"
}

# SERIES RATE DEVICE: prints a Sample.
run() {
    local series=$1 rate=$2 device=$3 before line t0 t1 from to sent send_ns received quantiles values here0 there0 here1 there1
    before=$(probe)
    coproc receiver { exec ip netns exec "$b" taskset -c "$cpu" "$listening" receive "$device" udp 2>&1; }
    # shellcheck disable=SC2154 # coproc sets it
    pid=$receiver_PID
    exec {from}<&"${receiver[0]}" {to}>&"${receiver[1]}"
    while IFS= read -r line <&"$from"; do [[ $line != ready ]] || break; done
    if [[ $device == *busy_poll* ]]; then defer 2 200000; fi
    read -r here0 there0 <<<"$(receive_interrupts)"
    t0=$(cpu_nanos "$pid")
    read -r sent send_ns <<<"$(ip netns exec "$a" taskset -c "$send_cpu" "$listening" send 10.9.0.2:9 "$rate" "$seconds")"
    t1=$(cpu_nanos "$pid")
    read -r here1 there1 <<<"$(receive_interrupts)"
    # The receiver ends with its input.
    eval "exec ${receiver[1]}>&-" "$to>&-"
    read -r _ received quantiles <<<"$(grep '^received' <&"$from")"
    wait "$pid"
    pid=
    exec {from}<&-
    defer 0 0
    values=$(awk -v s="$sent" -v r="$received" -v cpu=$((t1 - t0)) -v send="$send_ns" -v t="$seconds" -v more="$quantiles" \
        -v here=$((here1 - here0)) -v there=$((there1 - there0)) 'BEGIN {
        printf "cpu_percent %.2f softirqs_sender %d softirqs_receiver %d", cpu / t / 1e7, here / t, there / t
        if (!s) exit
        printf " mpps %.4f cpu_ns %.1f send_ns %.1f lost_percent %.3f %s", r / t / 1e6, cpu / s, send, 100 * (r < s ? s - r : 0) / s, more }')
    # shellcheck disable=SC2086 # to be split
    sample busy "$series" "$rate" "$round" "$(placement "$before" "$(probe)")" $values
}

for ((round = first_round; round < first_round + rounds; round++)); do
    for rate in "${rates[@]}"; do
        run "AF_PACKET" "$rate" af_packet:veth1,direction=in
        run "AF_XDP" "$rate" af_xdp:veth1,coalesce=off
        run "AF_XDP, coalesce=50us" "$rate" af_xdp:veth1,coalesce=50us
        run "AF_XDP, busy_poll=20" "$rate" af_xdp:veth1,busy_poll=20
    done
done
