#!/usr/bin/env bash
# Two real CPUs beside the simulation: measures what the path costs here and what two CPUs do, and compares both.
#   lab/measure-scale.sh [ROUNDS]
# It takes six minutes with 7 rounds, on a machine on which nothing else runs. It writes two files, each from experiments of its own:
#   target/profile.toml  the costs of the path (replaces lab/scale/xeon.toml on the machine of that file)
#   target/rps.csv       what two CPUs do (replaces lab/results/text/rps-xeon.csv on that machine)
# The simulated experiments can use the costs: steerage-lab scale --profile target/profile.toml.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

rounds=${1:-7}
target=${CARGO_TARGET_DIR:-target}
lab=${STEERAGE_LAB:-$target/release/steerage-lab}
[[ -x $lab ]] || { echo "measure-scale.sh: cargo build --release -p steerage-lab" >&2; exit 1; }
"$lab" profile >"$target/profile.toml"
"$lab" rps --rounds "$rounds" >"$target/rps.jsonl"
"$lab" predict "$target/rps.jsonl" --profile "$target/profile.toml" --table "$target/rps.csv"
