#!/usr/bin/env bash
# shellcheck disable=SC2034 # most of what is set here is read in veth.sh
# The CPU time of steerage's own hash beside the hash that comes with a packet, on a veth and on a bridge, in turn. See README.md.
#   hash.sh [ROUNDS [PACKETS [FLOWS [BYTES [PACKETS_A_SECOND]]]]]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

rounds=${1:-3} packets=${2:-400000} flows=${3:-1000} bytes=${4:-60} rate=${5:-200000}
send_cpus=${SEND_CPUS:-0} one=${RECEIVE_CPUS:-1} experiment=hash
steerage=${STEERAGE:-../../../target/release/steerage}
sender=./send
[[ -x $sender ]] || { echo "no $sender: run make" >&2; exit 1; }
[[ -x $steerage ]] || { echo "no $steerage: cargo build --release -p steerage-cli, or name another in STEERAGE" >&2; exit 1; }
# shellcheck source=../common/veth.sh
. ../common/veth.sh
ip -n "$b" link add br0 type bridge
ip -n "$b" link set br0 up

# Two CPUs handle packets, because one CPU needs no hash.
count=("$steerage" count --seconds 0 --json -v --policy hash --cpus "$send_cpus,$one" --rx-cpu "$one")
for ((round = first_round; round < first_round + rounds; round++)); do
    for way in "aes our hash" "device the device's hash"; do
        read -r hash name <<<"$way"
        run "veth by AF_PACKET, $name" "$send_cpus,$one" "${count[@]}" --hash "$hash" veth1 -Q in
        run "veth by AF_XDP, $name" "$send_cpus,$one" "${count[@]}" --hash "$hash" af_xdp:veth1,coalesce=200us --take all
        ip -n "$b" link set veth1 master br0
        run "bridge by AF_PACKET, $name" "$send_cpus,$one" "${count[@]}" --hash "$hash" br0 -Q in
        ip -n "$b" link set veth1 nomaster
    done
done
