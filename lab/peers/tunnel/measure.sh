#!/usr/bin/env bash
# Two kernels that talk through a loop in C, and through steerage, in turn, round after round. See README.md.
#   measure.sh [ROUNDS [SECONDS [SERIES]]]
# SERIES is a pattern of grep: only series whose names match are measured.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

rounds=${1:-3} seconds=${2:-3} only=${3:-.}
target=${TARGET:-../../../target/release}
for needed in ./bridge ./udp "$target/steerage" "$target/examples/tun_bridge"; do
    [[ -x $needed ]] || { echo "no $needed: see README.md" >&2; exit 1; }
done
for needed in iperf3 ethtool jq; do
    command -v "$needed" >/dev/null || { echo "no $needed: apt-get install $needed" >&2; exit 1; }
done
# shellcheck disable=SC2034 # sample.sh reads them
cpu_a=0 cpu_b=1
# shellcheck source=../common/sample.sh
. ../common/sample.sh

a=steerage-tunnel-a-$$ b=steerage-tunnel-b-$$ r=steerage-tunnel-r-$$
tunnel='' server='' input=''
stop() { # a process of ours
    [[ -z $1 ]] || { kill "${2:--TERM}" "$1" 2>/dev/null || true; wait "$1" 2>/dev/null || true; }
}
take_down() {
    stop "$server"
    [[ -z $input ]] || { exec {input}>&-; input=''; }
    stop "$tunnel"
    server='' tunnel=''
    for ns in "$a" "$b" "$r"; do ip netns del "$ns" 2>/dev/null || true; done
}
trap take_down EXIT
trap 'exit 130' INT TERM

namespaces() {
    for ns in "$a" "$b" "$r"; do
        ip netns add "$ns"
        ip netns exec "$ns" sysctl -qw net.ipv6.conf.default.disable_ipv6=1
        ip -n "$ns" link set lo up
    done
}
# The counter NAME of the file FILE, in the namespace NS.
counter() { # NS FILE GROUP NAME
    ip netns exec "$1" awk -v group="$3:" -v name="$4" '
        $1 == group && !n { for (n = NF; n > 1 && $n != name; n--); next }
        $1 == group { print $n }' "/proc/net/$2"
}
ready() { # the file that a tunnel writes to
    until grep -q 'ready\|signals are listened to' "$1"; do
        kill -0 "$tunnel" 2>/dev/null || { cat "$1" >&2; return 1; }
        sleep 0.05
    done
}

# ---- ways

tun_up() {
    until ip -n "$a" link show tun0 >/dev/null 2>&1 && ip -n "$b" link show tun0 >/dev/null 2>&1; do sleep 0.05; done
    ip -n "$a" link set tun0 txqueuelen 1000 up
    ip -n "$b" link set tun0 txqueuelen 1000 up
    ip -n "$a" addr add 10.98.0.1/24 dev tun0
    ip -n "$b" addr add 10.98.0.2/24 dev tun0
    far=10.98.0.2
}
tun_loop() { # plain|offload
    ./bridge tun "$1" "$a" tun0 "$b" tun0 >"$said" & tunnel=$!
    ready "$said"
    tun_up
}
tun_steerage() { # plain|offload [steered]
    local on=off
    [[ $1 == plain ]] || on=on
    mkfifo "$scratch/input"
    "$target/examples/tun_bridge" "$a" tun0 "$b" tun0 "$on" "${@:2}" <"$scratch/input" >"$said" & tunnel=$!
    exec {input}>"$scratch/input"
    rm "$scratch/input"
    tun_up
}
tun_steered() {
    tun_steerage "$1" steered
}
veths() { # plain|offload
    local near
    ip -n "$r" link add r0 type veth peer name e0 netns "$a"
    ip -n "$r" link add r1 type veth peer name e0 netns "$b"
    for near in "$a:1:0" "$b:2:1"; do
        IFS=: read -r ns host side <<<"$near"
        ip -n "$ns" addr add "10.98.0.$host/24" dev e0
        ip -n "$ns" addr add "10.99.$side.2/24" dev e0
        ip -n "$ns" link set e0 up
        ip -n "$ns" route add default via "10.99.$side.1" 2>/dev/null || true
        ip -n "$r" addr add "10.99.$side.1/24" dev "r$side"
        ip -n "$r" link set "r$side" up
        ip -n "$ns" route replace default via "10.99.$side.1"
        [[ $1 == offload ]] || ip netns exec "$ns" ethtool -K e0 tx off tso off gso off >/dev/null
    done
}
veth_loop() { # plain|offload
    veths "$1"
    ./bridge packet "$1" "$r" r0 "$r" r1 >"$said" & tunnel=$!
    ready "$said"
    far=10.98.0.2
}
veth_steerage() {
    veths "$1"
    ip netns exec "$r" "$target/steerage" forward r0 r1 -v >"$scratch/report" 2>"$said" & tunnel=$!
    ready "$said"
    far=10.99.1.2
}
routed_up() { # hosts on veths of a router, whose kernel hands what they send to the TUNs n0 and n1
    local side ns
    for side in 0 1; do
        if ((side)); then ns=$b; else ns=$a; fi
        ip -n "$r" link set "n$side" txqueuelen 1000 up
        ip netns exec "$r" sysctl -qw "net.ipv4.conf.n$side.rp_filter=0" "net.ipv4.conf.r$side.rp_filter=0"
        ip -n "$r" rule add iif "r$side" lookup "10$side"
        ip -n "$r" route add default dev "n$side" table "10$side"
    done
    ip netns exec "$r" sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0
    far=10.99.1.2
}
routed_loop() { # plain|offload
    veths "$1"
    ./bridge tun "$1" "$r" n0 "$r" n1 >"$said" & tunnel=$!
    ready "$said"
    routed_up
}
routed_steerage() { # plain|offload [OPTION...]
    local on=off
    [[ $1 == plain ]] || on=on
    veths "$1"
    ip netns exec "$r" "$target/steerage" forward "tun:n0,offload=$on" "tun:n1,offload=$on" "${@:2}" -v \
        --route '10.99.0.0/24 dev n0' --route '10.99.1.0/24 dev n1' >"$scratch/report" 2>"$said" & tunnel=$!
    ready "$said"
    routed_up
}
routed_steered() {
    routed_steerage "$1" --rps-cpus 3
}

# ---- traffic

tcp() { # STREAMS
    ip netns exec "$a" iperf3 -c "$far" -t "$seconds" -O 1 -P "$1" -J | jq '.end.sum_received.bits_per_second / 1e9'
}
udp() { # plain|offload
    ip netns exec "$b" ./udp receive 7777 "$1" >"$scratch/received" &
    local receiver=$!
    until grep -q ready "$scratch/received"; do sleep 0.05; done
    ip netns exec "$a" ./udp send "$far" 7777 "$1" "$seconds" 1400 >/dev/null
    wait "$receiver"
    sed -n 's/.*: \(.*\) Gbit.*/\1/p' "$scratch/received"
}

measure() { # SERIES WAY plain|offload
    local before values
    grep -q -- "$only" <<<"$1" || return 0
    : >"$said"
    namespaces
    "$2" "$3"
    ip netns exec "$b" iperf3 -s >/dev/null & server=$!
    until ip netns exec "$b" ss -Hltn sport = 5201 | grep -q .; do sleep 0.05; done
    before=$(probe)
    values="tcp_1 $(tcp 1) tcp_8 $(tcp 8) udp_plain $(udp plain) udp_offload $(udp offload)"
    values+=" sack_reorder $(counter "$a" netstat TcpExt TCPSACKReorder)"
    values+=" checksum_errors $(($(counter "$b" snmp Tcp InCsumErrors) + $(counter "$b" snmp Udp InCsumErrors)))"
    # shellcheck disable=SC2086 # to be split
    sample tunnel "$1" null "$round" "$(placement "$before" "$(probe)")" $values
    take_down
}

scratch=$(mktemp -d)
said=$scratch/said
trap 'take_down; rm -rf "$scratch"' EXIT
# shellcheck disable=SC2154 # sample.sh sets it
for ((round = first_round; round < first_round + rounds; round++)); do
    measure "TUN, loop in C" tun_loop plain
    measure "TUN, steerage" tun_steerage plain
    measure "TUN, loop in C, offloads" tun_loop offload
    measure "TUN, steerage, offloads" tun_steerage offload
    measure "TUN, steerage, offloads, steered" tun_steered offload
    measure "TUN of a router, loop in C, offloads" routed_loop offload
    measure "TUN of a router, steerage forward, offloads" routed_steerage offload
    measure "TUN of a router, steerage forward, offloads, steered" routed_steered offload
    measure "veth, loop in C" veth_loop plain
    measure "veth, loop in C, offloads" veth_loop offload
    measure "veth, steerage forward, offloads" veth_steerage offload
done
