# shellcheck shell=bash
# For peers/run, which sources it: what is run in turn, how, and what becomes of what it says.
# shellcheck disable=SC2154 # peers/run sets them

# Longer than any of them takes: it is stuck.
step_seconds_max=300
# What a step takes, in seconds, until it has been seen; those that are not named take less.
declare -A step_seconds=(
    [steerage bench rps]=25 [steerage bench delay]=15 [DPDK ring]=5 [steerage bench handoff]=12 [capture/measure.sh]=18 [steerage bench rr]=24
    [af_packet/measure.sh]=27 [kernel/forward.sh]=33
)
step_seconds_others=4

refuse() {
    echo "peers/run: $1" >&2
    exit 2
}

tell() { echo "peers/run: $1" >&2; }

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

# What is measured with what, for people, where steerage's own reports don't say it: see experiments.json. Its experiments are those of which
# there is something.
declare_experiments() {
    jq -cn --slurpfile declared "$peers/experiments.json" --slurpfile machine "$scratch/machine" '
        [inputs] as $all
        | ([$all[] | .experiments // empty | .[]] | group_by(.name) | map(.[0])) as $known
        | ([$all[] | .experiment // empty] | unique) as $named
        | $machine[0] + {experiments: (
            [$declared[0].whole[] | select(.name as $n | $named | index($n))]
            + [$known[] | .name as $n | $declared[0].compared[$n] as $pairs | select($pairs)
               | . + {samples: [], charts: [], skipped: [], compared: $pairs}]
          )}
        | .machine.seconds = $seconds - ([$all[] | .machine.seconds // 0] | add) | .machine.command = $command' \
        --arg command "$command_line" --argjson seconds "$SECONDS" "$lines" "$scratch/skipped"
}

# A series that has another name by now would be compared with nothing, and nobody would notice.
miss_series() {
    jq -nr --slurpfile declared "$peers/experiments.json" '
        [inputs] as $all
        | ($all | map(.experiments // empty | .[] | .samples[]) + ($all | map(select(.series)))) as $samples
        | $declared[0].compared | to_entries[] | .key as $name
        | select(any($all[]; .experiments // [] | any(.name == $name)))
        | .value[].of as $of | select(all($samples[]; .experiment != $name or .series != $of))
        | "\($name) has no series \($of), which experiments.json compares: it was left out, or has another name"' "$lines" |
        sort -u | while IFS= read -r line; do tell "$line"; done
}

report() {
    local options=()
    touch "$scratch/skipped"
    [[ -s $lines ]] || { tell "nothing was measured"; exit 1; }
    [[ -n $stopping ]] || miss_series
    declare_experiments >"$scratch/declared"
    # An experiment of which everything was left out is in no report.
    jq -c --slurpfile declared "$scratch/declared" \
        'select(.experiment as $e | $declared[0].experiments | any(.name == $e))' "$scratch/skipped" | sort -u >"$scratch/told"
    cat "$scratch/beside" "$scratch/declared" "$scratch/told" >>"$lines"
    [[ -z $html ]] || options+=(--html "$html")
    if [[ $json == - ]]; then
        "$steerage" bench report "$lines" "${options[@]}" --json
        return
    fi
    "$steerage" bench report "$lines" "${options[@]}"
    [[ -z $json ]] || "$steerage" bench report "$lines" --json >"$json.part"
    [[ -z $json ]] || mv "$json.part" "$json"
}
