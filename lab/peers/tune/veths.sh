#!/usr/bin/env bash
# Measures the CPU time of `steerage tune --watch` while 1,000 veths are created and deleted in its network namespace. See README.md.
#   veths.sh [VETHS [ROUNDS]]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

veths=${1:-1000} rounds=${2:-3}
steerage=${STEERAGE:-${CARGO_TARGET_DIR:-../../../target}/release/steerage}
[[ -x $steerage ]] || { echo "cargo build --release -p steerage-cli" >&2; exit 1; }

# shellcheck source=../common/namespaces.sh
. ../common/namespaces.sh
state=$(mktemp -d)
trap 'cleanup; rm -rf "$state"' EXIT
ip -n "$a" link add veth0 type veth peer name veth1 netns "$b"
ip -n "$a" link set veth0 up
ip -n "$b" link set veth1 up

tune() { exec ip netns exec "$b" env STEERAGE_STATE_DIR="$state" "$steerage" tune veth1 "$@"; }
# A setting that is kept without measuring.
(tune --for listen --apply) >"$state/out"
coproc { tune --watch; }
pid=$COPROC_PID
until read -r line <&"${COPROC[0]}" && [[ $line == watching* ]]; do :; done

for nth in $(seq "$veths"); do echo "link add v$nth type veth peer name w$nth"; done >"$state/add"
for nth in $(seq "$veths"); do echo "link del v$nth"; done >"$state/del"
for round in $(seq "$rounds"); do
    cpu=$(cpu_nanos "$pid") start=$EPOCHREALTIME
    for list in add del; do ip -n "$b" -batch "$state/$list"; done
    # The messages of the last deletions are read after a pause.
    sleep 1
    seconds=$(echo "$EPOCHREALTIME - $start - 1" | bc) cpu=$(($(cpu_nanos "$pid") - cpu))
    awk -v round="$round" -v veths="$veths" -v cpu="$cpu" -v seconds="$seconds" \
        'BEGIN { printf "{\"round\":%d,\"veths\":%d,\"seconds\":%.1f,\"cpu_ms\":%.1f,\"cpu_percent\":%.2f}\n", round, veths, seconds, cpu / 1e6, cpu / 1e7 / seconds }'
done
kill "$pid"
wait "$pid" || true
pid=
