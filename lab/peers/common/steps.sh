# shellcheck shell=bash
# For lab/peers/run, which sources it: what is run in turn, how, and what becomes of what it says.
# shellcheck disable=SC2154 # lab/peers/run sets them

# Longer than any of them takes: it is stuck.
step_seconds_max=300
# What a step takes, in seconds, until it has been seen; those that are not named take less.
declare -A step_seconds=(
    [steerage-lab rps]=25 [steerage-lab delay]=15 [DPDK ring]=5 [steerage-lab handoff]=12 [capture/measure.sh]=18 [steerage-lab rr]=24
    [af_packet/measure.sh]=27 [listen/measure.sh]=65 [kernel/forward.sh]=33
)
step_seconds_others=4

refuse() {
    echo "lab/peers/run: $1" >&2
    exit 2
}

tell() { echo "lab/peers/run: $1" >&2; }

# Each step by its number: of which experiment it is, its name, its command, and how long it last took.
experiments=() labels=() commands=() took=() failed=()

step() { # EXPERIMENT LABEL COMMAND...
    local about=${step_seconds[$2]:-$step_seconds_others}
    [[ -z $quick ]] || about=1
    experiments+=("$1") labels+=("$2") took+=("$about") failed+=('')
    shift 2
    commands+=("$(printf '%q ' "$@")")
}

leave_out() { # EXPERIMENT WHAT WHY
    tell "$1: $2 is left out: $3"
    jq -cn --arg e "$1" --arg s "$2: $3" '{experiment: $e, skipped: $s}' >>"$scratch/skipped"
}

if_namespaces() { # EXPERIMENT: whether it can be run
    [[ -n $no_namespaces ]] || return 0
    leave_out "$1" "all of it" "$no_namespaces"
    return 1
}

# ---- one of them

running='' stopping='' began=''
stop() {
    [[ -n $began && -z $stopping ]] || exit 130
    stopping=1
    tell "ending; what has been measured is shown"
    end_step
}

# It leads a session and so a group of its own: all that it started is in it.
end_step() {
    [[ -n $running ]] || return 0
    kill -TERM -- "-$running" 2>/dev/null || true
    # What it set up it takes down again, and that takes a while.
    for _ in $(seq 100); do
        kill -0 -- "-$running" 2>/dev/null || break
        sleep 0.1
    done
    kill -KILL -- "-$running" 2>/dev/null || true
    running=''
}

clean_up() {
    end_step
    give_back_huge_pages
    rm -rf "$scratch"
}

run_step() { # NUMBER
    local at=$1 since=$SECONDS status=0
    local -a command
    eval "command=(${commands[at]})"
    setsid "${nice[@]}" timeout --foreground -k 10 "$step_seconds_max" "${command[@]}" \
        >"$scratch/out" 2>"$scratch/said" </dev/null &
    running=$!
    wait "$running" || status=$?
    [[ -z $stopping ]] || return 0
    running=''
    took[at]=$((SECONDS - since))
    if ((status)); then
        failed[at]=1
        leave_out "${experiments[at]}" "${labels[at]}" "$(tail -1 "$scratch/said")"
        return 0
    fi
    cat "$scratch/out" >>"$lines"
    # What a script could not run it says.
    { grep ' is left out: ' "$scratch/said" || true; } | sed 's/ is left out: /\t/' | while IFS=$'\t' read -r what why; do
        jq -cn --arg e "${experiments[at]}" --arg s "$what: $why" '{experiment: $e, skipped: $s}' >>"$scratch/skipped"
    done
}

# ---- all of them

seconds_left() { # FROM-STEP ROUND
    local at sum=0
    for at in "${!took[@]}"; do
        [[ -n ${failed[at]} ]] || sum=$((sum + took[at] * (rounds - $2 - (at < $1))))
    done
    echo "$sum"
}

run_rounds() {
    local round at left
    began=$SECONDS
    ((${#commands[@]})) || { tell "there is nothing left to run"; exit 1; }
    for ((round = 0; round < rounds; round++)); do
        if ((round && SECONDS + SECONDS - began > minutes * 60)); then
            tell "$round rounds of $rounds: another one would take longer than $minutes minutes"
            return 0
        fi
        began=$SECONDS
        for at in "${!commands[@]}"; do
            [[ -z ${failed[at]} ]] || continue
            left=$(seconds_left "$at" "$round")
            tell "round $((round + 1)) of $rounds, $(((left + 59) / 60)) min left: ${experiments[at]}: ${labels[at]}"
            run_step "$at"
            [[ -z $stopping ]] || return 0
        done
    done
}

# ---- the report

# A series that has another name by now would be compared with nothing, and nobody would notice.
miss_series() {
    jq -nr --slurpfile described "$root/lab/experiments.json" '
        [inputs | select(.values)] as $runs
        | ([$runs[].experiment] | unique[]) as $name
        | ([$runs[] | select(.experiment == $name).series] | unique) as $seen
        | $described[0][$name].compared[][0]
        | select(. as $of | $seen | index($of) | not)
        | "\($name) has no series \(.), which experiments.json compares: it was left out, or has another name"' "$lines" |
        sort -u | while IFS= read -r line; do tell "$line"; done
}

report() {
    touch "$scratch/skipped"
    [[ -s $lines ]] || { tell "nothing was measured"; exit 1; }
    [[ -n $stopping ]] || miss_series
    sort -u "$scratch/skipped" | cat "$scratch/beside" - >>"$lines"
    [[ -z $json ]] || cp "$lines" "$json"
    python3 "$root/lab/page.py" "$lines" ${page:+-o "$page"}
}
