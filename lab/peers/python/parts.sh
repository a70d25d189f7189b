#!/usr/bin/env bash
# The rate at which one core meters a part of a recording: the lines of the table in docs/cluster.md.
#
#   lab/peers/python/parts.sh target/peers-python/bin/python
#
# The Python needs steerage and pyarrow. The captures lie in the page cache, and are deleted at the end.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
python=${1:?the Python of an environment with steerage and pyarrow}
make -s -C lab/peers/capture generate
scratch=$(mktemp -d)
trap 'rm -r "$scratch"' EXIT
declare -A packets=([60]=8000000 [mix]=2000000 [800]=1000000)
for bytes in 60 mix 800; do
    for flows in 1024 65536; do
        lab/peers/capture/generate "${packets[$bytes]}" "$flows" "$bytes" >"$scratch/one.pcap"
        for how in "" --object; do
            echo "== $flows flows${how:+, as a file object}"
            # shellcheck disable=SC2086 # an empty word is none
            "$python" examples/cluster/rate.py $how "$scratch/one.pcap"
        done
        rm "$scratch/one.pcap"
    done
done
