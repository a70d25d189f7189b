#!/usr/bin/env bash
# The WireGuard gateway of examples/wireguard with each way of merging in turn: a TCP transfer to it and from it, and small datagrams to it. The
# other end is the same program as it is by default. See README.md.
#   gateway.sh [ROUNDS [SECONDS]]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

rounds=${1:-3} seconds=${2:-3}
far_cpu=${FAR_CPU:-0} near_cpu=${NEAR_CPU:-1}
example=../../../examples/wireguard
gateway=${GATEWAY:-$example/target/release/steerage-wireguard}
[[ -x $gateway ]] || { echo "no $gateway: cargo build --release --manifest-path examples/wireguard/Cargo.toml, or name another in GATEWAY" >&2; exit 1; }
[[ -x udp ]] || { echo "no udp: run make" >&2; exit 1; }
for needed in iperf3 jq openssl taskset; do
    command -v "$needed" >/dev/null || { echo "no $needed: apt-get install $needed" >&2; exit 1; }
done
# shellcheck disable=SC2034 # sample.sh reads them
cpu_a=$far_cpu cpu_b=$near_cpu
# shellcheck source=../common/sample.sh
. ../common/sample.sh

near=steerage-gateway-n-$$ far=steerage-gateway-f-$$ scratch=$(mktemp -d) programs=()
take_down() {
    for program in "${programs[@]}"; do
        kill "$program" 2>/dev/null || true
        wait "$program" 2>/dev/null || true
    done
    programs=()
    for ns in "$near" "$far"; do ip netns del "$ns" 2>/dev/null || true; done
}
trap 'take_down; rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM

# Starts a program on the CPU of its end. Its process is in `started`.
begin() { # NAMESPACE CPU COMMAND...
    local ns=$1 cpu=$2
    shift 2
    ip netns exec "$ns" taskset -c "$cpu" "$@" >>"$scratch/log" 2>&1 &
    started=$!
    programs+=("$started")
}
address() { # NAMESPACE ADDRESS
    for _ in $(seq 100); do
        ip -n "$1" link show wg0 >/dev/null 2>&1 && break
        sleep 0.1
    done
    ip -n "$1" addr add "$2" dev wg0
    ip -n "$1" link set wg0 up
}
set_up() { # OPTION...
    for ns in "$near" "$far"; do
        ip netns add "$ns"
        ip netns exec "$ns" sysctl -qw net.ipv6.conf.default.disable_ipv6=1
        ip -n "$ns" link set lo up
    done
    ip -n "$near" link add veth0 type veth peer name veth0 netns "$far"
    ip -n "$near" addr add 10.210.0.1/24 dev veth0
    ip -n "$far" addr add 10.210.0.2/24 dev veth0
    ip -n "$near" link set veth0 up
    ip -n "$far" link set veth0 up
    begin "$near" "$near_cpu" "$gateway" "$scratch/near.conf" wg0 "$@"
    measured=$started
    address "$near" 10.99.0.1/24
    begin "$far" "$far_cpu" "$gateway" "$scratch/far.conf" wg0
    address "$far" 10.99.0.2/24
    begin "$near" "$near_cpu" iperf3 -s
    for _ in $(seq 50); do
        ! ip netns exec "$far" ping -c 1 -W 1 10.99.0.1 >/dev/null 2>&1 || return 0
    done
    echo "the tunnel carries nothing:" >&2
    cat "$scratch/log" >&2
    return 1
}

cpu_ns() { cat /proc/"$measured"/task/*/schedstat | awk '{ sum += $1 } END { printf "%.0f", sum }'; }

# Metrics of a TCP transfer: Gbit/s, and the CPU time of the measured gateway for 1,000 bytes of payload.
transfer() { # NAME OPTION...
    local name=$1 before came
    shift
    before=$(cpu_ns)
    came=$(ip netns exec "$far" taskset -c "$far_cpu" iperf3 -c 10.99.0.1 -t "$seconds" -J "$@" |
        jq -r '.end.sum_received | [.bits_per_second / 1e9, .bytes] | @tsv')
    awk -v name="$name" -v cpu=$(($(cpu_ns) - before)) '{ printf "gbits_%s %.3f cpu_ns_per_kb_%s %.1f ", name, $1, name, cpu / ($2 / 1000) }' <<<"$came"
}

# Metrics of datagrams of 64 bytes, of which more are sent than arrive.
small() {
    local before receiver said
    ip netns exec "$near" taskset -c "$near_cpu" timeout $((seconds + 10)) ./udp receive 7791 plain >"$scratch/received" &
    receiver=$!
    for _ in $(seq 100); do
        ! grep -q ready "$scratch/received" || break
        sleep 0.05
    done
    before=$(cpu_ns)
    ip netns exec "$far" taskset -c "$far_cpu" ./udp send 10.99.0.1 7791 plain "$seconds" 64 >/dev/null
    said=$(cpu_ns)
    wait "$receiver"
    grep -v ready "$scratch/received" | awk -v cpu=$((said - before)) '{ printf "mpps %.4f cpu_ns_per_datagram %.0f", $2 / $7 / 1e6, cpu / $2 }'
}

ways=("nothing merged|--no-offload" "merged before the function|--no-offload --gro" "merged by the kernel|" "merged by the kernel and before the function|--gro")
python3 "$example/keys" "$scratch"
for ((round = first_round; round < first_round + rounds; round++)); do
    for way in "${ways[@]}"; do
        IFS='|' read -r series options <<<"$way"
        # shellcheck disable=SC2086 # to be split
        set_up $options
        placed=$(probe)
        values="$(transfer to) $(transfer from -R) $(small)"
        # shellcheck disable=SC2086 # to be split
        sample gateway "$series" null "$round" "$(placement "$placed" "$(probe)")" $values
        take_down
    done
done
