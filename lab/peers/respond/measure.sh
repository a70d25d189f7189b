#!/usr/bin/env bash
# Requests and responses over 500 connections: the kernel's stack and `steerage respond` as the server, in turn, round after
# round, between namespaces of our own; the client is `steerage bench rr`. See README.md.
#   measure.sh [ROUNDS [SECONDS [CONNECTIONS [REQUEST [RESPONSE]]]]]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

rounds=${1:-3} seconds=${2:-3} connections=${3:-500} request=${4:-1} response=${5:-1}
client_cpu=${CLIENT_CPU:-0} one=${SERVER_CPU:-1} two=${SERVER_CPUS_2:-0-1} both=${RPS_MASK:-3} port=5000
steerage=${STEERAGE:-../../target/release/steerage}
[[ -x $steerage ]] || { echo "no $steerage: cargo build --release -p steerage-cli, or name another in STEERAGE" >&2; exit 1; }

a=steerage-rr-a-$$ b=steerage-rr-b-$$ pid='' log=$(mktemp) server=$(mktemp)
stop() {
    [[ -n $pid ]] || return 0
    # Not INT: a shell has what it starts behind its back ignore that.
    kill -TERM "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
    pid=''
}
cleanup() {
    [[ -z $pid ]] || kill -KILL "$pid" 2>/dev/null || true
    for ns in "$a" "$b"; do ip netns del "$ns" 2>/dev/null || true; done
    rm -f "$log" "$server"
}
trap cleanup EXIT
trap 'exit 130' INT TERM
${CC:-cc} -O2 -o "$server" server.c

for ns in "$a" "$b"; do
    ip netns add "$ns"
    ip netns exec "$ns" sysctl -qw net.ipv6.conf.default.disable_ipv6=1
done
ip -n "$a" link add a0 address 02:00:00:00:00:01 type veth peer name b0 address 02:00:00:00:00:02 netns "$b"
ip -n "$a" link set a0 up
ip -n "$b" link set b0 up
ip -n "$a" addr add 10.0.0.1/24 dev a0

rps() { # MASK: of both ends
    ip netns exec "$a" sh -c "echo $1 > /sys/class/net/a0/queues/rx-0/rps_cpus"
    ip netns exec "$b" sh -c "echo $1 > /sys/class/net/b0/queues/rx-0/rps_cpus"
}

load() { # NAME
    local report
    ip -n "$a" neigh flush dev a0
    if ! report=$(ip netns exec "$a" taskset -c "$client_cpu" "$steerage" bench rr "10.0.0.2:$port" -n "$connections" \
        --request "$request" --response "$response" --seconds "$seconds" --warm-up 1 --json); then
        printf '%-34s failed\n' "$1"
        return
    fi
    number() { grep -o "\"$1\":[0-9.]*" <<<"$report" | head -1 | cut -d: -f2; }
    awk -v n="$1" -v r="$(number per_second)" -v p50="$(number p50)" -v p99="$(number p99)" -v c="$(number process_cpus)" \
        -v m="$(number machine_cpus)" -v l="$(number broken)" 'BEGIN {
        printf "%-34s %8.1f k/s   p50 %7.0f us   p99 %7.0f us   CPUs: client %.2f, machine %.2f   broken %d\n",
            n, r / 1e3, p50 / 1e3, p99 / 1e3, c, m, l }'
}

kernel() { # NAME RPS_MASK
    ip -n "$b" addr add 10.0.0.2/24 dev b0
    rps "$2"
    ip netns exec "$b" taskset -c "$one" "$server" "$port" "$request" "$response" &
    pid=$!
    until ip netns exec "$b" ss -Hltn "sport = :$port" | grep -q .; do kill -0 "$pid"; sleep 0.05; done
    load "$1"
    stop
    rps 0
    ip -n "$b" addr del 10.0.0.2/24 dev b0
}

ours() { # NAME DEVICE OPTION...
    local name=$1
    shift
    ip netns exec "$b" "$steerage" respond "$@" --address 10.0.0.2 --rr "$port:$request:$response" -v >"$log" 2>&1 &
    pid=$!
    until grep -q 'signals are listened to' "$log"; do
        kill -0 "$pid" 2>/dev/null || { echo "$name: $(tail -1 "$log")" >&2; pid=''; return 0; }
        sleep 0.05
    done
    load "$name"
    stop
}

for ((round = 1; round <= rounds; round++)); do
    kernel "kernel, rps_cpus 0" 0
    ours "respond b0, CPU $one" b0 --cpus "$one"
    ours "respond af_xdp:b0, CPU $one" af_xdp:b0 --cpus "$one" --trust-checksums
    kernel "kernel, rps_cpus $both" "$both"
    ours "respond b0, CPUs $two" b0 --cpus "$two" --rx-cpu "$one"
    ours "respond af_xdp:b0, CPUs $two" af_xdp:b0 --cpus "$two" --rx-cpu "$one" --trust-checksums
done
