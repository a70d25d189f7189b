#!/usr/bin/env bash
# Whole processes that meter the same capture, in turn, round after round. See README.md.
#   measure.sh [ROUNDS [PACKETS [FLOWS...]]]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

rounds=${1:-3} packets=${2:-2000000}
flows=("${@:3}")
((${#flows[@]})) || flows=(1024 65536)
# tshark takes seconds for what takes others tenths.
tshark_packets=$((packets / 8))
# The lengths of the packets, each with its experiment and its number of packets: long packets fill a file sooner.
declare -A experiments=([60]=meter [800]=meter-800 [mix]=meter-mix)
declare -A packets_of=([60]=$packets [800]=$((packets / 4)) [mix]=$((packets / 2)))
cpu_a=${METER_CPU:-0} cpu_b=${METER_CPU_2:-1}
steerage=${STEERAGE:-../../../target/release/steerage}
# A Python that has nfstream: PYTHON=venv/bin/python.
python=${PYTHON:-python3}
nfstream='
import sys
from nfstream import NFStreamer
flows = NFStreamer(source=sys.argv[1], n_dissections=0, n_meters=1, max_nflows=1 << 20)
print(sum(1 for _ in flows))
'
# Takes datagrams, and drops what its buffer has no room for.
sink_port=9996
sink='
import signal, socket, sys
sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sink.bind(("127.0.0.1", int(sys.argv[1])))
signal.pause()
'
# Whatever takes longer is stuck.
seconds_max=60
# softflowd tells flows apart as long as it has room for them; its default is 8192.
softflowd_flows=131072
# shellcheck source=../common/sample.sh
. ../common/sample.sh

[[ -x meter && -x generate ]] || { echo "no meter: run make" >&2; exit 1; }
scratch=$(mktemp -d) pid=
"$python" -c "$sink" "$sink_port" &
sink_pid=$!
cleanup() {
    kill "$sink_pid" 2>/dev/null || true
    # timeout hands a signal on to what it runs.
    [[ -z $pid ]] || kill -TERM "$pid" 2>/dev/null || true
    rm -rf "$scratch"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

for count in "${flows[@]}"; do
    for length in "${!experiments[@]}"; do
        ./generate "${packets_of[$length]}" "$count" "$length" >"$scratch/$count.$length.pcap"
    done
    ./generate "$tshark_packets" "$count" >"$scratch/$count.short.pcap"
done

metered() { # SERIES CPUS PACKETS COMMAND...
    local series=$1 cpus=$2 of=$3 before start end
    shift 3
    before=$(probe)
    start=$EPOCHREALTIME
    taskset -c "$cpus" timeout -k 1 "$seconds_max" "$@" >"$scratch/said" 2>&1 &
    pid=$!
    if ! wait "$pid"; then
        pid=
        echo "$series is left out: $(tail -1 "$scratch/said")" >&2
        return 0
    fi
    end=$EPOCHREALTIME pid=
    # A clock's digits without its point are microseconds.
    sample "${experiments[$length]}" "$series" "$x" "$round" "$(placement "$before" "$(probe)")" \
        mpps "$(awk -v n="$of" -v us=$((${end/[.,]/} - ${start/[.,]/})) 'BEGIN { printf "%.4f", n / us }')"
}

if_there() { # SERIES CPUS PACKETS COMMAND...
    if type -P "$4" >/dev/null; then metered "$@"; else echo "$1 is left out: no $4" >&2; fi
}

for ((round = first_round; round < first_round + rounds; round++)); do
    for x in "${flows[@]}"; do
        for length in "${!experiments[@]}"; do
            file=$scratch/$x.$length.pcap of=${packets_of[$length]}
            if_there "steerage meter, 1 CPU" "$cpu_a" "$of" "$steerage" meter "$file" --cpus "$cpu_a"
            if_there "steerage meter, 2 CPUs" "$cpu_a,$cpu_b" "$of" "$steerage" meter "$file" --cpus "$cpu_a,$cpu_b"
            if_there "steerage count, 1 CPU" "$cpu_a" "$of" "$steerage" count "$file" --cpus "$cpu_a"
            metered "loop in C" "$cpu_a" "$of" ./meter "$file"
        done
        length=60 file=$scratch/$x.60.pcap records=$scratch/records
        # All of it on one CPU, and with the thread that exports on the other one.
        if_there "steerage meter, 1 CPU, IPFIX" "$cpu_a" "$packets" \
            "$steerage" meter "$file" --cpus "$cpu_a" --export "ipfix://127.0.0.1:$sink_port"
        if_there "steerage meter, 1 CPU and IPFIX" "$cpu_a,$cpu_b" "$packets" \
            "$steerage" meter "$file" --cpus "$cpu_a" --export "ipfix://127.0.0.1:$sink_port"
        mkdir "$records"
        if_there "nfpcapd" "$cpu_a" "$packets" nfpcapd -r "$file" -w "$records"
        rm -rf "$records"
        # With a control socket softflowd 1.1.0 now and then waits for one that never connects, in place of reading.
        if_there "softflowd" "$cpu_a" "$packets" softflowd -r "$file" -m "$softflowd_flows" -n 127.0.0.1:9995 \
            -p "$scratch/softflowd.pid" -c none
        if "$python" -c "import nfstream" 2>/dev/null; then
            metered "nfstream" "$cpu_a" "$tshark_packets" "$python" -c "$nfstream" "$scratch/$x.short.pcap"
        fi
        if_there "tshark" "$cpu_a,$cpu_b" "$tshark_packets" tshark -r "$scratch/$x.short.pcap" -q -z conv,udp
    done
done
