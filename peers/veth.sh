# For the measure.sh of a peer, which sources it: two namespaces of our own with a veth between them, and a run of one receiver.
# Wants send_cpus, packets, flows, bytes, rate and sender, the path of af_packet's `send`.

a=steerage-peer-a-$$ b=steerage-peer-b-$$ pid=
cleanup() {
    [[ -z $pid ]] || kill -KILL "$pid" 2>/dev/null || true
    ip netns del "$a" 2>/dev/null || true
    ip netns del "$b" 2>/dev/null || true
}
trap cleanup EXIT
trap 'exit 130' INT TERM

ip netns add "$a"
ip netns add "$b"
# Neither end sends anything of its own, and none merges.
for ns in "$a" "$b"; do ip netns exec "$ns" sysctl -qw net.ipv6.conf.default.disable_ipv6=1; done
ip -n "$a" link add veth0 mtu 9000 type veth peer name veth1 mtu 9000 netns "$b"
ip -n "$a" link set veth0 arp off up
ip -n "$b" link set veth1 arp off up
ip netns exec "$b" ethtool -K veth1 gro off >/dev/null 2>&1 || echo "no ethtool: gro may be on" >&2

ticks=$(getconf CLK_TCK)
cpu_seconds() { # of a process, user and system
    local stat
    stat=$(<"/proc/$1/stat")
    # shellcheck disable=SC2086 # to be split
    set -- ${stat##*) }
    awk -v t=$((${12} + ${13})) -v hz="$ticks" 'BEGIN { printf "%.2f", t / hz }'
}

run() { # NAME CPUS COMMAND...: sent by `send_by` of the namespace `send_in`, or else by the veth
    local name=$1 cpus=$2 line sent ended received dropped cpu
    shift 2
    coproc receiver { exec ip netns exec "$b" taskset -c "$cpus" "$@" 2>&1; }
    # The names of a coprocess go away when it ends.
    pid=$receiver_PID
    exec {from}<&"${receiver[0]}"
    while IFS= read -r line <&$from; do
        [[ $line != ready && $line != *"signals are listened to"* ]] || break
    done
    sent=$(ip netns exec "${send_in:-$a}" taskset -c "$send_cpus" "$sender" "${send_by:-veth0}" "$packets" "$flows" "$bytes" "$rate")
    cpu=$(cpu_seconds "$pid")
    kill -TERM "$pid"
    ended=$(cat <&$from)
    wait "$pid" || echo "$name: $ended" >&2
    pid=
    exec {from}<&-
    if [[ $ended == *'"received":'* ]]; then # steerage's report: the first are those of the whole
        received=$(grep -o '"delivered":[0-9]*' <<<"$ended" | head -1 | cut -d: -f2)
        dropped=$(($(grep -o '"received":[0-9]*' <<<"$ended" | head -1 | cut -d: -f2) - received))
    else
        read -r _ received _ dropped _ <<<"$(grep '^received' <<<"$ended")"
    fi
    read -r _ _ _ seconds _ mpps <<<"$sent"
    awk -v n="$name" -v s="$packets" -v r="$received" -v d="$dropped" -v t="$seconds" -v m="$mpps" -v c="$cpu" 'BEGIN {
        printf "%-22s sent %9d at %.3f Mpps   received %9d (%.3f Mpps)   dropped %9d   unseen %6d   CPU %5.2f s of %5.2f\n",
            n, s, m, r, r / t / 1e6, d, s - r - d, c, t }'
}
