#!/usr/bin/env bash
# A CPU that only collects, live: where receiving and forwarding run, and what each CPU spends on a packet, in turn, round after round.
# See README.md.
#   collector.sh [ROUNDS [PACKETS [FLOWS]]]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

rounds=${1:-3} packets=${2:-1000000} flows=${3:-1000}
send_cpu=${SEND_CPU:-0} one=${FORWARD_CPU:-1} experiment=collector
steerage=${STEERAGE:-../../../target/release/steerage}
[[ -x $steerage ]] || { echo "no $steerage: cargo build --release -p steerage-cli, or name another in STEERAGE" >&2; exit 1; }
cpu_a=$send_cpu cpu_b=$one
# shellcheck source=../common/router.sh
. ../common/router.sh

# A bridge without ports drops what is sent to it: this is the cost of sending alone.
ip -n "$a" link add sink type bridge
ip -n "$a" link set sink up

# The CPU time of threads, which includes the softirqs that interrupt a thread. A softirq that interrupts an idle CPU is in no thread,
# so the forwarding of the kernel on an idle CPU is missing.
thread_nanos() { # CPU
    local task nanos of_cpu=0
    for task in "/proc/$(pgrep -x "ksoftirqd/$1")" ${pid:+/proc/"$pid"/task/*}; do
        [[ $task != /proc/*/task/* || $(cat "$task/comm" 2>/dev/null) == "steerage/$1" ]] || continue
        read -r nanos _ <"$task/schedstat" && of_cpu=$((of_cpu + nanos))
    done
    echo "$of_cpu"
}
account_begin() { nanos_a=$(thread_nanos "$send_cpu") nanos_b=$(thread_nanos "$one"); }
account_end() { nanos_a=$(($(thread_nanos "$send_cpu") - nanos_a)) nanos_b=$(($(thread_nanos "$one") - nanos_b)); }
# The sender's CPU spends time on each sent packet, and the other CPU on each packet that arrives.
account() { # SENT ARRIVED
    awk -v s="$1" -v c="$2" -v a="$nanos_a" -v b="$nanos_b" '{
        printf "cpu_a_ns %.0f cpu_b_ns %.0f", (($1 + $2) * 1e9 + a) / s, b / (c > 0 ? c : s) }' "$times"
}

# SERIES COMMAND...: a command of steerage that receives by r0.
steered() {
    local series=$1
    shift
    beside "$series" 'signals are listened to' "$steerage" "$@" -v
}
collect_here=(--cpus "$send_cpu,$one" --rx-cpu "$send_cpu" --rps-cpus "$(mask "$one")" --policy hash)
collect_there=(--cpus "$send_cpu,$one" --rx-cpu "$one" --rps-cpus "$(mask "$send_cpu")" --policy hash)
xdp=(af_xdp:r0 af_xdp:r1 --take all)

for ((round = first_round; round < first_round + rounds; round++)); do
    send_by=sink flood "sending alone"
    kernel "kernel, no RPS"
    kernel "kernel, RPS to the other CPU" "$one"
    steered "AF_PACKET, received and not forwarded" count r0 -Q in --seconds 0 --cpus "$one"
    steered "AF_PACKET, the other CPU" forward r0 r1 --cpus "$one"
    steered "AF_PACKET, the sender's CPU collects" forward r0 r1 "${collect_here[@]}"
    steered "AF_PACKET, the other CPU collects" forward r0 r1 "${collect_there[@]}"
    steered "AF_XDP, received and not forwarded" count af_xdp:r0 --take all --seconds 0 --cpus "$one"
    steered "AF_XDP, the other CPU" forward "${xdp[@]}" --cpus "$one"
    steered "AF_XDP, the sender's CPU collects" forward "${xdp[@]}" "${collect_here[@]}"
    steered "AF_XDP, the other CPU collects" forward "${xdp[@]}" "${collect_there[@]}"
    defer 2 200000
    steered "AF_XDP, busy, the other CPU" forward af_xdp:r0,busy_poll=20 af_xdp:r1,busy_poll=20 --take all --cpus "$one"
    defer 0 0
done
