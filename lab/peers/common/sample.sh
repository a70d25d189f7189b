# shellcheck shell=bash
# For the scripts of the peers: how far apart two CPUs are, and the line that says what a run came to, as steerage-lab prints it.
# Sourced; wants cpu_a and cpu_b, the two CPUs that the packets' way leads over.
# shellcheck disable=SC2154 # whoever sources this sets them

common=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[[ -x $common/near ]] || make -s -C "$common" near >&2
# In which round the first is; whoever calls for one round at a time says which it is.
# shellcheck disable=SC2034 # for whoever sources this
first_round=${ROUND:-0}

probe() {
    if [[ $cpu_a == "$cpu_b" ]]; then echo alone; else "$common/near" "$cpu_a" "$cpu_b"; fi
}

# The times before and after a run, for sample. lab/page.py decides by the times of all runs what is near and what is far.
placement() { # BEFORE AFTER, of probe
    if [[ $1 == alone || $2 == alone ]]; then echo alone; else echo "$1,$2"; fi
}

sample() { # EXPERIMENT SERIES X|null ROUND PLACEMENT [METRIC VALUE]...
    local values='' comma='' line apart=''
    [[ $5 == alone ]] || apart=",\"apart_ns\":[$5]"
    line=$(printf '{"experiment":"%s","series":"%s","x":%s,"round":%d%s' "$1" "$2" "$3" "$4" "$apart")
    shift 5
    while (($# >= 2)); do
        values+="$comma\"$1\":$2"
        comma=,
        shift 2
    done
    echo "$line,\"values\":{$values}}"
}
