#!/usr/bin/env bash
# Two real CPUs beside the simulation: measures what the path costs here and what two CPUs do, and compares both.
#   lab/measure-scale.sh [ROUNDS]
# It takes three minutes with 3 rounds, on a machine on which nothing else runs. The costs are in target/profile.toml afterwards, and the
# simulated experiments can use them: steerage-lab scale --profile target/profile.toml.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

rounds=${1:-3}
target=${CARGO_TARGET_DIR:-../target}
lab=${STEERAGE_LAB:-$target/release/steerage-lab}
[[ -x $lab ]] || { echo "measure-scale.sh: cargo build --release -p steerage-lab" >&2; exit 1; }
"$lab" profile >"$target/profile.toml"
"$lab" rps --rounds "$rounds" >"$target/rps.jsonl"
"$lab" predict "$target/rps.jsonl" --profile "$target/profile.toml"
