# shellcheck shell=bash
# For the scripts that measure forwarding, which source it: three network namespaces of our own, of which `r` routes from `a` to `b`.
# Wants send_cpu, one (the CPU that forwards), packets, flows, round and steerage.
# shellcheck disable=SC2154 # whoever sources this sets them

# shellcheck source=sample.sh
. "$(dirname "${BASH_SOURCE[0]}")/sample.sh"

a=steerage-peer-a-$$ r=steerage-peer-r-$$ b=steerage-peer-b-$$ pid='' log=$(mktemp) times=$(mktemp)
cleanup() {
    [[ -z $pid ]] || kill -KILL "$pid" 2>/dev/null || true
    for ns in "$a" "$r" "$b"; do ip netns del "$ns" 2>/dev/null || true; done
    rm -f "$log" "$times"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

for ns in "$a" "$r" "$b"; do
    ip netns add "$ns"
    ip netns exec "$ns" sysctl -qw net.ipv6.conf.default.disable_ipv6=1
done
# What `steerage send` makes up goes to this link address, and from 10/8 to 198.18.0.1.
ip -n "$r" link add r0 address 02:00:00:00:00:02 type veth peer name a0 address 02:00:00:00:00:01 netns "$a"
ip -n "$r" link add r1 type veth peer name b0 address 02:00:00:00:00:0b netns "$b"
ip -n "$a" link set a0 up
ip -n "$r" link set r0 up
ip -n "$r" link set r1 up
ip -n "$b" link set b0 up
ip -n "$r" addr add 10.255.255.1/8 dev r0
ip -n "$r" addr add 192.0.2.1/24 dev r1
ip -n "$r" neigh replace 192.0.2.2 lladdr 02:00:00:00:00:0b dev r1 nud permanent
ip -n "$r" route add 198.18.0.0/15 via 192.0.2.2

forwarding() { ip netns exec "$r" sysctl -qw net.ipv4.ip_forward="$1" net.ipv4.conf.r0.forwarding="$1" net.ipv4.conf.r1.forwarding="$1"; }
# As rps_cpus takes it: groups of 32 CPUs, the highest first.
mask() { # CPU...
    local cpu words=(0)
    for cpu in "$@"; do
        while ((cpu / 32 >= ${#words[@]})); do words+=(0); done
        words[cpu / 32]=$((words[cpu / 32] | 1 << cpu % 32))
    done
    local text='' at
    for ((at = ${#words[@]} - 1; at >= 0; at--)); do text+=$(printf '%s%x' "${text:+,}" "${words[at]}"); done
    echo "$text"
}
rps() { ip netns exec "$r" sh -c "echo $1 > /sys/class/net/r0/queues/rx-0/rps_cpus"; }
arrived() { ip netns exec "$b" cat /sys/class/net/b0/statistics/rx_packets; }

# What a script measures beside the packets: `account_begin` and `account_end` run before and after the flood, and `account SENT ARRIVED`
# prints more metrics. The sender's CPU time is in the file `times`.
account_begin() { :; }
account_end() { :; }
account() { :; }
TIMEFORMAT='%U %S'

flood() { # SERIES
    local before report sent seconds count last placed values
    placed=$(probe)
    before=$(arrived)
    account_begin
    { time report=$(ip netns exec "$a" "$steerage" send "${send_by:-a0}" "synthetic:flows=$flows,size=64,packets=$packets" \
        --rate max --cpus "$send_cpu" --json -q 2>&3 || true); } 3>&2 2>"$times" # packets that the interface refuses are an error
    account_end
    seconds=$(jq .snapshot.seconds <<<"$report")
    sent=$(jq .snapshot.verdicts.transmitted <<<"$report")
    # What is on its way still arrives: as long as any does.
    count=$(arrived)
    for _ in $(seq 20); do
        last=$count
        sleep 0.1
        count=$(arrived)
        ((count > last)) || break
    done
    values=$(awk -v s="$sent" -v c=$((count - before)) -v t="$seconds" 'BEGIN {
        printf "sent_mpps %.4f", s / t / 1e6
        if (c > 0) printf " mpps %.4f lost_percent %.3f", c / t / 1e6, 100 * (s - c) / s }')
    values+=" $(account "$sent" $((count - before)))"
    # shellcheck disable=SC2086 # to be split
    sample "${experiment:-forward}" "$1" null "$round" "$(placement "$placed" "$(probe)")" $values
}

kernel() { # SERIES [CPU...]
    local series=$1
    shift
    forwarding 1
    rps "$(mask "$@")"
    flood "$series"
    rps 0
    forwarding 0
}

# Runs a program in the router's namespace until it says that it is ready, floods, and ends it.
beside() { # SERIES READY COMMAND...
    local series=$1 ready=$2
    shift 2
    ip netns exec "$r" "$@" >"$log" 2>&1 &
    pid=$!
    until grep -q "$ready" "$log"; do
        kill -0 "$pid" 2>/dev/null || { echo "$series is left out: $(tail -1 "$log")" >&2; pid=''; return 0; }
        sleep 0.05
    done
    flood "$series"
    # Not INT: a shell has what it starts behind its back ignore that.
    kill -TERM "$pid"
    wait "$pid" || { echo "$series:" >&2; cat "$log" >&2; }
    pid=''
}

ours() { # SERIES CPUS INTERFACE...
    local series=$1 cpus=$2
    shift 2
    beside "$series" 'signals are listened to' "$steerage" forward "$@" --cpus "$cpus" -v
}

# Whether the kernel leaves the driver to those who poll busily.
defer() { # IRQS NANOSECONDS
    ip netns exec "$r" sh -c "for end in r0 r1; do
        echo $1 > /sys/class/net/\$end/napi_defer_hard_irqs; echo $2 > /sys/class/net/\$end/gro_flush_timeout; done"
}
