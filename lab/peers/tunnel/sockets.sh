#!/usr/bin/env bash
# Datagrams of 1,400 bytes over loopback, received by a loop in C and by steerage in turn. See README.md.
#   sockets.sh [ROUNDS [SECONDS]]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

rounds=${1:-5} seconds=${2:-2} port=7790
target=${TARGET:-../../../target/release}
scratch=$(mktemp -d)
receiver=''
trap '[[ -z $receiver ]] || kill "$receiver" 2>/dev/null || true; rm -rf "$scratch"' EXIT

send() { # plain|offload
    ./udp send 127.0.0.1 "$port" "$1" "$seconds" 1400 >"$scratch/sent"
}
loop() { # plain|offload: Gbit/s of payload that arrived
    ./udp receive "$port" "$1" >"$scratch/received" &
    receiver=$!
    until grep -q ready "$scratch/received"; do sleep 0.05; done
    send "$1"
    wait "$receiver"
    sed -n 's/.*: \(.*\) Gbit.*/\1/p' "$scratch/received"
}
steerage() { # plain|offload [OPTIONS of the device]
    "$target/steerage" count "udp:127.0.0.1:$port${2:+,$2}" --json >"$scratch/report" 2>/dev/null &
    receiver=$!
    until ss -Hlun "sport = $port" | grep -q .; do sleep 0.05; done
    send "$1"
    kill -INT "$receiver"
    wait "$receiver" || true
    # Without the headers, which the device makes.
    jq -s --argjson seconds "$seconds" 'last.snapshot.queues[0].device_counts
        | (.wire_bytes - 28 * .wire_packets) * 8 / $seconds / 1e7 | round / 100' "$scratch/report"
}
# The buffer of the loop.
steerage_buffer() {
    steerage "$1" receive_buffer=33554432
}
# How many datagrams or messages the kernel has dropped so far, because a socket's buffer was full.
drops() {
    awk '$1 == "Udp:" && !n { for (n = NF; n > 1 && $n != "RcvbufErrors"; n--); next } $1 == "Udp:" { print $n }' /proc/net/snmp
}

for ((round = 0; round < rounds; round++)); do
    for kind in plain offload; do
        for way in loop steerage steerage_buffer; do
            before=$(drops)
            printf '%s %s %s Gbit/s, dropped %s, ' "$kind" "$way" "$($way "$kind")" "$(($(drops) - before))"
            [[ $way == loop ]] || jq -sj 'last.snapshot | "received \(.received) = delivered \(.delivered) + dropped \(.dropped), "' "$scratch/report"
            sed 's/ in .*: /, /' "$scratch/sent"
        done
    done
done
