# shellcheck shell=bash
# For the measure.sh of a peer, which sources it: two namespaces of our own with a veth between them, and a run of one receiver.
# Wants send_cpus, one (the receiver's CPU), packets, flows, bytes, rate, round and sender, the path of af_packet's `send`.
# shellcheck disable=SC2154 # whoever sources this sets them

# shellcheck source=../common/namespaces.sh
. "$(dirname "${BASH_SOURCE[0]}")/namespaces.sh"
ip -n "$a" link add veth0 mtu 9000 type veth peer name veth1 mtu 9000 netns "$b"
ip -n "$a" link set veth0 arp off up
ip -n "$b" link set veth1 arp off up
no_gro

cpu_a=$send_cpus cpu_b=$one
# shellcheck source=../common/sample.sh
. "$(dirname "${BASH_SOURCE[0]}")/sample.sh"

# SERIES CPUS COMMAND...: sent by `send_by` of the namespace `send_in`, or else by the veth. A Sample of `experiment`, or of `listen`; with
# kernel_works=1 without the receiver's CPU time, which is the kernel's.
run() {
    local series=$1 cpus=$2 line sent ended received cpu seconds mpps before values from said=
    shift 2
    before=$(probe)
    coproc receiver { exec ip netns exec "$b" taskset -c "$cpus" "$@" 2>&1; }
    # The names of a coprocess go away when it ends.
    # shellcheck disable=SC2154 # coproc sets it
    pid=$receiver_PID
    exec {from}<&"${receiver[0]}"
    while IFS= read -r line <&"$from"; do
        [[ $line != ready && $line != *"signals are listened to"* ]] || break
        said=$line
    done
    if ! kill -0 "$pid" 2>/dev/null; then
        echo "$series is left out: $said" >&2
        pid=
        exec {from}<&-
        return 0
    fi
    sent=$(ip netns exec "${send_in:-$a}" taskset -c "$send_cpus" "$sender" "${send_by:-veth0}" "$packets" "$flows" "$bytes" "$rate")
    cpu=$(cpu_nanos "$pid")
    kill -TERM "$pid"
    ended=$(cat <&"$from")
    wait "$pid" || echo "$series: $ended" >&2
    pid=
    exec {from}<&-
    if [[ $ended == *'"type":"report"'* ]]; then # steerage's, among the lines of -v
        received=$(grep '"type":"report"' <<<"$ended" | jq .snapshot.delivered)
    else
        read -r _ received _ <<<"$(grep '^received' <<<"$ended")"
    fi
    read -r _ _ _ seconds _ mpps <<<"$sent"
    values=$(awk -v s="$packets" -v r="$received" -v t="$seconds" -v m="$mpps" -v c="$cpu" -v k="${kernel_works:-0}" 'BEGIN {
        printf "mpps %.4f sent_mpps %.4f lost_percent %.3f", r / t / 1e6, m, 100 * (r < s ? s - r : 0) / s
        if (!k) printf " cpu_ns %.1f", c / s }')
    # shellcheck disable=SC2086 # to be split
    sample "${experiment:-listen}" "$series" null "$round" "$(placement "$before" "$(probe)")" $values
}
