#!/usr/bin/env bash
# CPU time per packet of programs that listen, by the scheduler's counters in nanoseconds, and the delay of packets by AF_XDP. See README.md.
#   measure.sh [ROUNDS [SECONDS [PACKETS_A_SECOND...]]]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

rounds=${1:-3} seconds=${2:-5}
shift $(($# < 2 ? $# : 2))
rates=("$@")
((${#rates[@]})) || rates=(1000 100000 500000)
target=${CARGO_TARGET_DIR:-../../../target}
steerage=${STEERAGE:-$target/release/steerage}
before=${STEERAGE_BEFORE:-} # another program to measure in turn
listening=${LISTENING:-$target/release/examples/listening}
send_cpu=${SEND_CPUS:-0} cpu=${RECEIVE_CPUS:-1}
[[ -x $steerage && -x $listening ]] ||
    { echo "cargo build --release -p steerage-cli && cargo build --release -p steerage-lab --example listening" >&2; exit 1; }

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

# NAME RATE READY COMMAND...: runs a receiver, whose output contains READY when it listens, and prints a line of JSON.
run() {
    local name=$1 rate=$2 ready=$3 line sent ended t0 t1 from to received
    shift 3
    coproc receiver { exec ip netns exec "$b" taskset -c "$cpu" "$@" 2>&1; }
    # shellcheck disable=SC2154 # coproc sets it
    pid=$receiver_PID
    exec {from}<&"${receiver[0]}" {to}>&"${receiver[1]}"
    while IFS= read -r line <&"$from"; do [[ $line != *"$ready"* ]] || break; done
    t0=$(cpu_nanos "$pid")
    sent=$(ip netns exec "$a" taskset -c "$send_cpu" "$listening" send 10.9.0.2:9 "$rate" "$seconds")
    t1=$(cpu_nanos "$pid")
    # The receiver of delays ends with its input.
    if [[ $1 == "$listening" ]]; then eval "exec ${receiver[1]}>&-" "$to>&-"; else kill -TERM "$pid"; fi
    ended=$(cat <&"$from")
    wait "$pid" || echo "$name: $ended" >&2
    pid=
    exec {from}<&-
    if [[ $ended == *'"type":"report"'* ]]; then
        received=$(grep '"type":"report"' <<<"$ended" | jq .snapshot.delivered)
        ended=
    else
        read -r _ received ended <<<"$(grep '^received' <<<"$ended")"
    fi
    awk -v name="$name" -v rate="$rate" -v s="$sent" -v r="$received" -v ns=$((t1 - t0)) -v t="$seconds" -v more="$ended" 'BEGIN {
        printf "{\"series\":\"%s\",\"rate\":%d,\"sent\":%d,\"lost_percent\":%.3f,\"cpu_ns\":%.0f,\"cpu_percent\":%.1f", name, rate, s,
            100 * (r < s ? s - r : 0) / s, ns / s, ns / t / 1e7
        n = split(more, word, " ")
        for (i = 1; i < n; i += 2) printf ",\"%s\":%s", word[i], word[i + 1]
        print "}" }'
}

for ((round = 0; round < rounds; round++)); do
    for rate in "${rates[@]}"; do
        for program in $before "$steerage"; do
            [[ $program == "$steerage" ]] && of='' || of=', before'
            count=("$program" count --cpus "$cpu" --seconds 0 --json -v)
            run "AF_XDP$of" "$rate" "signals are listened to" "${count[@]}" af_xdp:veth1 --take udp
            run "AF_PACKET$of" "$rate" "signals are listened to" "${count[@]}" veth1 -Q in
        done
        run "AF_XDP, coalesce=off" "$rate" "signals are listened to" "${count[@]}" af_xdp:veth1,coalesce=off --take udp
        [[ ! -x ../af_packet/receive ]] || run "TPACKET_V3, by hand" "$rate" ready ../af_packet/receive veth1
        for time in off 50us 200us; do
            run "delay, coalesce=$time" "$rate" ready "$listening" receive "af_xdp:veth1,coalesce=$time" udp
        done
    done
done
