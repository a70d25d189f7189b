# shellcheck shell=bash
# For the scripts that measure listeners, which source it: two network namespaces of our own, `a` that sends and `b` that receives, and
# the process `pid` that is ended with the script.

a=steerage-peer-a-$$ b=steerage-peer-b-$$ pid=
cleanup() {
    [[ -z $pid ]] || kill -KILL "$pid" 2>/dev/null || true
    ip netns del "$a" 2>/dev/null || true
    ip netns del "$b" 2>/dev/null || true
}
trap cleanup EXIT
trap 'exit 130' INT TERM

# Neither end sends anything of its own.
for ns in "$a" "$b"; do
    ip netns add "$ns"
    ip netns exec "$ns" sysctl -qw net.ipv6.conf.default.disable_ipv6=1
done

# Packets arrive as they are sent.
no_gro() { ip netns exec "$b" ethtool -K veth1 gro off >/dev/null 2>&1 || echo "no ethtool: gro may be on" >&2; }

# The scheduler counts nanoseconds; the clock ticks of /proc/PID/stat are 10 ms long, and miss a thread that sleeps at each tick.
cpu_nanos() { # of all threads of a process
    cat "/proc/$1"/task/*/schedstat | awk '{ nanos += $1 } END { printf "%.0f", nanos }'
}
