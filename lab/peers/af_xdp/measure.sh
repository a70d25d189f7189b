#!/usr/bin/env bash
# shellcheck disable=SC2034 # most of what is set here is read in veth.sh
# steerage receiving by AF_XDP, AF_PACKET and a TAP in turn, round after round, with one CPU and with two. See README.md.
#   measure.sh [ROUNDS [PACKETS [FLOWS [BYTES [PACKETS_A_SECOND]]]]]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

rounds=${1:-3} packets=${2:-1000000} flows=${3:-1000} bytes=${4:-60} rate=${5:-0}
send_cpus=${SEND_CPUS:-0} one=${RECEIVE_CPUS:-1} two=${RECEIVE_CPUS_2:-0-1}
steerage=${STEERAGE:-../../../target/release/steerage}
sender=../af_packet/send
[[ -x $sender ]] || { echo "no $sender: run make in ../af_packet" >&2; exit 1; }
[[ -x $steerage ]] || { echo "no $steerage: cargo build --release -p steerage-cli" >&2; exit 1; }
# shellcheck source=../common/veth.sh
. ../common/veth.sh

for ((round = first_round; round < first_round + rounds; round++)); do
    for cpus in "$one" "$two"; do
        count=("$steerage" count --cpus "$cpus" --seconds 0 --json -v)
        run "AF_XDP on $cpus" "$cpus" "${count[@]}" af_xdp:veth1 --take all
        run "AF_PACKET on $cpus" "$cpus" "${count[@]}" veth1 -Q in
        # Made by the receiver; what its kernel sends by it comes in.
        send_in=$b send_by=tap0 run "TAP on $cpus" "$cpus" "${count[@]}" tap:tap0,mtu=9000
    done
done
