# shellcheck shell=bash
# For the scripts of the peers: how far apart two CPUs are, and the line that says what a run came to, a Sample of steerage's report.
# Sourced; wants cpu_a and cpu_b, the two CPUs that the packets' way leads over.
# shellcheck disable=SC2154 # whoever sources this sets them

common=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[[ -x $common/near ]] || make -s -C "$common" near >&2
# In which round the first is; whoever calls for one round at a time says which it is.
# shellcheck disable=SC2034 # for whoever sources this
first_round=${ROUND:-0}
# As steerage's: a line takes some 60 ns one way where they share a cache, and 200 where they don't.
far_ns=110

probe() {
    if [[ $cpu_a == "$cpu_b" ]]; then echo alone; else "$common/near" "$cpu_a" "$cpu_b"; fi
}

placement() { # BEFORE AFTER, of probe
    if [[ $1 == alone || $2 == alone ]]; then
        echo alone
    elif (($1 > far_ns && $2 > far_ns)); then
        echo far
    elif (($1 <= far_ns && $2 <= far_ns)); then
        echo near
    else
        echo moved
    fi
}

sample() { # EXPERIMENT SERIES X|null ROUND PLACEMENT [METRIC VALUE]...
    local values='' comma='' line
    line=$(printf '{"experiment":"%s","series":"%s","x":%s,"round":%d,"placement":"%s"' "$1" "$2" "$3" "$4" "$5")
    shift 5
    while (($# >= 2)); do
        values+="$comma\"$1\":$2"
        comma=,
        shift 2
    done
    echo "$line,\"values\":{$values}}"
}
