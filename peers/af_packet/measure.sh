#!/usr/bin/env bash
# Each receiver in turn, round after round, on one veth between two namespaces of our own. See README.md.
#   measure.sh [ROUNDS [PACKETS [FLOWS [BYTES [PACKETS_A_SECOND]]]]]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

rounds=${1:-3} packets=${2:-1000000} flows=${3:-1000} bytes=${4:-60} rate=${5:-0}
send_cpus=${SEND_CPUS:-0} one=${RECEIVE_CPUS:-1} two=${RECEIVE_CPUS_2:-0-1}
steerage=${STEERAGE:-../../target/release/steerage}
netring=${NETRING:-../netring/target/release/netring-peer}
sender=./send
. ../veth.sh

for ((round = 1; round <= rounds; round++)); do
    run "TPACKET_V3" "$one" ./receive veth1
    run "TPACKET_V3 fanout 2" "$two" ./receive veth1 2
    if [[ -x $netring ]]; then
        run "netring" "$one" "$netring" veth1
        run "netring fanout 2" "$two" "$netring" veth1 2
    fi
    if [[ -x $steerage ]] && "$steerage" count --help | grep -q -- --block-timeout; then
        run "steerage" "$one" "$steerage" count veth1 --cpus "$one" --seconds 0 --json -v
        run "steerage 2 CPUs" "$two" "$steerage" count veth1 --cpus "$two" --seconds 0 --json -v
        run "steerage 2 queues" "$two" "$steerage" count veth1 --queues 2 --rps-cpus 0 --cpus "$two" --seconds 0 --json -v
    fi
done
