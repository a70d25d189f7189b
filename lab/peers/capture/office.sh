#!/usr/bin/env bash
# The flows of an office's traffic, by whole processes on two CPUs, in turn, round after round: the times that README names.
#   office.sh [ROUNDS [PACKETS]]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

rounds=${1:-5} packets=${2:-650000}
cpu_a=${METER_CPU:-0} cpu_b=${METER_CPU_2:-1}
steerage=${STEERAGE:-../../../target/release/steerage}
# shellcheck source=../common/sample.sh
. ../common/sample.sh

type -P tshark >/dev/null || { echo "no tshark: apt-get install tshark" >&2; exit 1; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM
file=$scratch/office.pcap
"$steerage" send "pcap:$file" "synthetic:packets=$packets,flows=5000,zipf=1,mix=tcp4+udp4+tcp6,size=800" -q
echo "$packets packets, $(stat -c %s "$file") bytes" >&2

timed() { # SERIES COMMAND...
    local series=$1 before start end
    shift
    before=$(probe)
    start=$EPOCHREALTIME
    taskset -c "$cpu_a,$cpu_b" "$@" >"$scratch/said" 2>&1 || { cat "$scratch/said" >&2 && return 1; }
    end=$EPOCHREALTIME
    # A clock's digits without its point are microseconds.
    sample office "$series" null "$round" "$(placement "$before" "$(probe)")" \
        seconds "$(awk -v us=$((${end/[.,]/} - ${start/[.,]/})) 'BEGIN { printf "%.4f", us / 1e6 }')"
}

for ((round = first_round; round < first_round + rounds; round++)); do
    timed "steerage meter" "$steerage" meter "$file"
    timed "tshark" tshark -q -r "$file" -z conv,tcp
done
