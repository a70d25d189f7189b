#!/usr/bin/env bash
# The kernel's forwarding and steerage's in turn, round after round, between namespaces of our own. See README.md.
#   measure.sh [ROUNDS [PACKETS [FLOWS]]]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

rounds=${1:-3} packets=${2:-2000000} flows=${3:-1000}
send_cpu=${SEND_CPU:-0} one=${FORWARD_CPUS:-1} two=${FORWARD_CPUS_2:-0-1}
steerage=${STEERAGE:-../../target/release/steerage}
[[ -x $steerage ]] || { echo "no $steerage: cargo build --release -p steerage-cli, or name another in STEERAGE" >&2; exit 1; }

a=steerage-fwd-a-$$ r=steerage-fwd-r-$$ b=steerage-fwd-b-$$ pid='' log=$(mktemp)
cleanup() {
    [[ -z $pid ]] || kill -KILL "$pid" 2>/dev/null || true
    for ns in "$a" "$r" "$b"; do ip netns del "$ns" 2>/dev/null || true; done
    rm -f "$log"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

for ns in "$a" "$r" "$b"; do
    ip netns add "$ns"
    ip netns exec "$ns" sysctl -qw net.ipv6.conf.default.disable_ipv6=1
done
# What `steerage send` makes up goes to this link address, and from 10/8 to 198.18.0.1.
ip -n "$r" link add r0 address 02:00:00:00:00:02 type veth peer name a0 address 02:00:00:00:00:01 netns "$a"
ip -n "$r" link add r1 type veth peer name b0 address 02:00:00:00:00:0b netns "$b"
ip -n "$a" link set a0 up
ip -n "$r" link set r0 up
ip -n "$r" link set r1 up
ip -n "$b" link set b0 up
ip -n "$r" addr add 10.255.255.1/8 dev r0
ip -n "$r" addr add 192.0.2.1/24 dev r1
ip -n "$r" neigh replace 192.0.2.2 lladdr 02:00:00:00:00:0b dev r1 nud permanent
ip -n "$r" route add 198.18.0.0/15 via 192.0.2.2

forwarding() { ip netns exec "$r" sysctl -qw net.ipv4.ip_forward="$1" net.ipv4.conf.r0.forwarding="$1" net.ipv4.conf.r1.forwarding="$1"; }
rps() { ip netns exec "$r" sh -c "echo $1 > /sys/class/net/r0/queues/rx-0/rps_cpus"; }
arrived() { ip netns exec "$b" cat /sys/class/net/b0/statistics/rx_packets; }

flood() { # NAME
    local before report sent seconds count last
    before=$(arrived)
    report=$(ip netns exec "$a" "$steerage" send a0 "synthetic:flows=$flows,size=64,packets=$packets" --rate max \
        --cpus "$send_cpu" --json -q)
    seconds=$(grep -o '"seconds":[0-9.]*' <<<"$report" | head -1 | cut -d: -f2)
    sent=$(grep -o '"transmitted":[0-9]*' <<<"$report" | head -1 | cut -d: -f2)
    # What is on its way still arrives: as long as any does.
    count=$(arrived)
    for _ in $(seq 20); do
        last=$count
        sleep 0.1
        count=$(arrived)
        ((count > last)) || break
    done
    awk -v n="$1" -v s="$sent" -v c=$((count - before)) -v t="$seconds" 'BEGIN {
        printf "%-24s sent %9d at %.3f Mpps   arrived %9d at %.3f Mpps (%5.1f %%)\n", n, s, s / t / 1e6, c, c / t / 1e6, 100 * c / s }'
}

kernel() { # NAME RPS_MASK
    forwarding 1
    rps "$2"
    flood "$1"
    rps 0
    forwarding 0
}

ours() { # NAME CPUS INTERFACE...
    local name=$1 cpus=$2
    shift 2
    ip netns exec "$r" "$steerage" forward "$@" --cpus "$cpus" -v >"$log" 2>&1 &
    pid=$!
    until grep -q 'signals are listened to' "$log"; do
        kill -0 "$pid" 2>/dev/null || { echo "$name: $(tail -1 "$log")" >&2; pid=''; return; }
        sleep 0.05
    done
    flood "$name"
    kill -INT "$pid"
    wait "$pid" || { echo "$name:" >&2; cat "$log" >&2; }
    pid=''
    grep -E '^dropped|^not ' "$log" | sed 's/^/    /' || true
}

for ((round = 1; round <= rounds; round++)); do
    kernel "kernel, rps_cpus 0" 0
    ours "steerage, 1 CPU" "$one" r0 r1
    ours "steerage AF_XDP, 1 CPU" "$one" af_xdp:r0 af_xdp:r1 --take all
    kernel "kernel, rps_cpus 3" 3
    ours "steerage, 2 CPUs" "$two" r0 r1
    ours "steerage AF_XDP, 2 CPUs" "$two" af_xdp:r0 af_xdp:r1 --take all
done
