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
# shellcheck source=../common/router.sh
. ../common/router.sh

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
