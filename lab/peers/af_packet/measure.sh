#!/usr/bin/env bash
# shellcheck disable=SC2034 # most of what is set here is read in veth.sh
# Each receiver in turn, round after round, on one veth between two namespaces of our own. See README.md.
#   measure.sh [ROUNDS [PACKETS [FLOWS [BYTES [PACKETS_A_SECOND]]]]]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

rounds=${1:-3} packets=${2:-1000000} flows=${3:-1000} bytes=${4:-60} rate=${5:-0}
send_cpus=${SEND_CPUS:-0} one=${RECEIVE_CPUS:-1} two=${RECEIVE_CPUS_2:-0-1}
steerage=${STEERAGE:-../../../target/release/steerage}
netring=${NETRING:-../netring/target/release/netring-peer}
cpumap=../kernel/cpumap
sender=./send
[[ -x $sender && -x receive ]] || { echo "no $sender: run make" >&2; exit 1; }
# shellcheck source=../common/veth.sh
. ../common/veth.sh

[[ -x $netring ]] || echo "no $netring: netring is left out" >&2
[[ -x $cpumap ]] || echo "no $cpumap: CPUMAP is left out" >&2
[[ -x $steerage ]] || echo "no $steerage: steerage is left out" >&2

for ((round = first_round; round < first_round + rounds; round++)); do
    if [[ -x $steerage ]]; then
        count=("$steerage" count --seconds 0 --json -v)
        run "steerage count, 1 CPU" "$one" "${count[@]}" veth1 --cpus "$one"
        run "steerage count, 2 CPUs" "$two" "${count[@]}" veth1 --cpus "$two"
        run "steerage count, 2 queues" "$two" "${count[@]}" veth1 --queues 2 --rps-cpus 0 --cpus "$two"
        run "steerage count by AF_XDP, 1 CPU" "$one" "${count[@]}" af_xdp:veth1 --take all --cpus "$one"
    fi
    run "TPACKET_V3" "$one" ./receive veth1
    run "TPACKET_V3, fanout of 2" "$two" ./receive veth1 2
    if [[ -x $netring ]]; then
        run "netring" "$one" "$netring" veth1
        run "netring, fanout of 2" "$two" "$netring" veth1 2
    fi
    if [[ -x $cpumap ]]; then
        kernel_works=1 run "CPUMAP, dropped on 1 CPU" "$one" "$cpumap" veth1 drop "$one"
        kernel_works=1 run "CPUMAP, dropped on 2 CPUs" "$two" "$cpumap" veth1 drop "$send_cpus,$one"
    fi
done
