#!/usr/bin/env bash
# The kernel's forwarding, steered by RPS and by CPUMAP, and steerage's in turn, round after round, between namespaces of our own. See
# README.md.
#   forward.sh [ROUNDS [PACKETS [FLOWS]]]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

rounds=${1:-3} packets=${2:-2000000} flows=${3:-1000}
send_cpu=${SEND_CPU:-0} one=${FORWARD_CPU:-1}
steerage=${STEERAGE:-../../../target/release/steerage}
[[ -x $steerage ]] || { echo "no $steerage: cargo build --release -p steerage-cli, or name another in STEERAGE" >&2; exit 1; }
[[ -x cpumap ]] || { echo "no cpumap: run make" >&2; exit 1; }
cpu_a=$send_cpu cpu_b=$one
# shellcheck source=../common/sample.sh
. ../common/sample.sh

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
# As rps_cpus takes it: groups of 32 CPUs, the highest first.
mask() { # CPU...
    local cpu words=(0)
    for cpu in "$@"; do
        while ((cpu / 32 >= ${#words[@]})); do words+=(0); done
        words[cpu / 32]=$((words[cpu / 32] | 1 << cpu % 32))
    done
    local text='' at
    for ((at = ${#words[@]} - 1; at >= 0; at--)); do text+=$(printf '%s%x' "${text:+,}" "${words[at]}"); done
    echo "$text"
}
rps() { ip netns exec "$r" sh -c "echo $1 > /sys/class/net/r0/queues/rx-0/rps_cpus"; }
arrived() { ip netns exec "$b" cat /sys/class/net/b0/statistics/rx_packets; }

flood() { # SERIES
    local before report sent seconds count last placed values
    placed=$(probe)
    before=$(arrived)
    report=$(ip netns exec "$a" "$steerage" send a0 "synthetic:flows=$flows,size=64,packets=$packets" --rate max \
        --cpus "$send_cpu" --json -q)
    seconds=$(jq .snapshot.seconds <<<"$report")
    sent=$(jq .snapshot.verdicts.transmitted <<<"$report")
    # What is on its way still arrives: as long as any does.
    count=$(arrived)
    for _ in $(seq 20); do
        last=$count
        sleep 0.1
        count=$(arrived)
        ((count > last)) || break
    done
    values=$(awk -v s="$sent" -v c=$((count - before)) -v t="$seconds" 'BEGIN {
        printf "mpps %.4f sent_mpps %.4f lost_percent %.3f", c / t / 1e6, s / t / 1e6, 100 * (s - c) / s }')
    # shellcheck disable=SC2086 # to be split
    sample forward "$1" null "$round" "$(placement "$placed" "$(probe)")" $values
}

kernel() { # SERIES [CPU...]
    local series=$1
    shift
    forwarding 1
    rps "$(mask "$@")"
    flood "$series"
    rps 0
    forwarding 0
}

# Runs a program in the router's namespace until it says that it is ready, floods, and ends it.
beside() { # SERIES READY COMMAND...
    local series=$1 ready=$2
    shift 2
    ip netns exec "$r" "$@" >"$log" 2>&1 &
    pid=$!
    until grep -q "$ready" "$log"; do
        kill -0 "$pid" 2>/dev/null || { echo "$series is left out: $(tail -1 "$log")" >&2; pid=''; return 0; }
        sleep 0.05
    done
    flood "$series"
    # Not INT: a shell has what it starts behind its back ignore that.
    kill -TERM "$pid"
    wait "$pid" || { echo "$series:" >&2; cat "$log" >&2; }
    pid=''
}

ours() { # SERIES CPUS INTERFACE...
    local series=$1 cpus=$2
    shift 2
    beside "$series" 'signals are listened to' "$steerage" forward "$@" --cpus "$cpus" -v
}

# Whether the kernel leaves the driver to those who poll busily.
defer() { # IRQS NANOSECONDS
    ip netns exec "$r" sh -c "for end in r0 r1; do
        echo $1 > /sys/class/net/\$end/napi_defer_hard_irqs; echo $2 > /sys/class/net/\$end/gro_flush_timeout; done"
}

cpumap() { # SERIES CPUS
    forwarding 1
    beside "$1" ready ./cpumap r0 pass "$2"
    forwarding 0
}

for ((round = first_round; round < first_round + rounds; round++)); do
    kernel "kernel, no RPS"
    ours "steerage, 1 CPU" "$one" r0 r1
    ours "steerage by AF_XDP, 1 CPU" "$one" af_xdp:r0 af_xdp:r1 --take all
    defer 2 200000
    ours "steerage by AF_XDP, busy, 1 CPU" "$one" af_xdp:r0,busy_poll=20 af_xdp:r1,busy_poll=20 --take all
    defer 0 0
    kernel "kernel, RPS to the sender's CPU" "$send_cpu"
    kernel "kernel, RPS to 1 CPU" "$one"
    cpumap "kernel, CPUMAP to 1 CPU" "$one"
    kernel "kernel, RPS to 2 CPUs" "$send_cpu" "$one"
    cpumap "kernel, CPUMAP to 2 CPUs" "$send_cpu,$one"
    ours "steerage, 2 CPUs" "$send_cpu,$one" r0 r1
    ours "steerage by AF_XDP, 2 CPUs" "$send_cpu,$one" af_xdp:r0 af_xdp:r1 --take all
done
