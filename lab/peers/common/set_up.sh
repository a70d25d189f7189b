# shellcheck shell=bash
# For lab/peers/run, which sources it: CPUs, packages, programs and huge pages.
# shellcheck disable=SC2154,SC2034 # lab/peers/run sets some, and reads some

no_namespaces='' no_dpdk='' eal=() nice=() huge_pages_before=''

choose_cpus() {
    local word list=() from to
    if [[ -n $cpus ]]; then
        [[ $cpus =~ ^[0-9]+,[0-9]+$ ]] || refuse "--cpus $cpus: give two, such as 0,1"
        IFS=, read -ra list <<<"$cpus"
    else
        for word in $(taskset -pc $$ | sed 's/.*: //; s/,/ /g'); do
            from=${word%-*} to=${word#*-}
            for ((; from <= to && ${#list[@]} < 2; from++)); do list+=("$from"); done
        done
    fi
    ((${#list[@]} == 2)) || refuse "it takes two CPUs, and this process may use ${#list[@]}"
    [[ ${list[0]} != "${list[1]}" ]] || refuse "--cpus $cpus: give two that differ"
    cpu_a=${list[0]} cpu_b=${list[1]}
    # Where it is allowed: others on the machine take a CPU without asking.
    [[ $(nice -n -20 nice 2>/dev/null) != -20 ]] || nice=(nice -n -20)
}

wants_dpdk() { wants rps || wants path || wants handoff || wants page-cache; }

packages_for_parts() {
    echo jq python3 gcc make libc6-dev util-linux
    if wants_dpdk; then echo pkg-config libdpdk-dev; fi
    if wants meter; then echo nfdump softflowd tshark; fi
    if wants listen || wants busy || wants forward; then echo iproute2 ethtool procps linux-libc-dev; fi
}

install_packages() {
    local package missing=()
    if type -P dpkg-query >/dev/null; then
        for package in $(packages_for_parts); do
            [[ $(dpkg-query -W -f '${Status}' "$package" 2>/dev/null) == *' installed' ]] || missing+=("$package")
        done
    fi
    if ((${#missing[@]} && install)) && ((EUID == 0)) && type -P apt-get >/dev/null; then
        tell "installing from Debian's packages: ${missing[*]}"
        export DEBIAN_FRONTEND=noninteractive
        # If they can't be had all together, as many as can.
        if ! apt-get install -y --no-install-recommends "${missing[@]}" >"$scratch/apt" 2>&1; then
            apt-get update >>"$scratch/apt" 2>&1 || true
            for package in "${missing[@]}"; do
                apt-get install -y --no-install-recommends "$package" >>"$scratch/apt" 2>&1 ||
                    tell "$package cannot be installed: $(grep '^E:' "$scratch/apt" | tail -1)"
            done
        fi
    elif ((${#missing[@]})); then
        tell "not installed, and what takes them is left out: ${missing[*]}"
    fi
    type -P jq >/dev/null || refuse "jq is not installed: apt-get install jq"
    ((EUID == 0)) || no_namespaces="network namespaces take root"
    type -P ip >/dev/null || no_namespaces="there is no ip: apt-get install iproute2"
}

build() {
    local dpdk='' target=${CARGO_TARGET_DIR:-}
    netring=${target:-$peers/netring/target}/release/netring-peer
    steerage=${STEERAGE:-}
    if [[ -z $steerage ]]; then
        steerage=${target:-$root/target}/release/steerage
        tell "building steerage"
        cargo build --quiet --release --manifest-path "$root/Cargo.toml" -p steerage-cli ||
            refuse "steerage cannot be built; name one in STEERAGE"
    fi
    lab=${STEERAGE_LAB:-}
    if [[ -z $lab ]]; then
        lab=${target:-$root/target}/release/steerage-lab
        cargo build --quiet --release --manifest-path "$root/Cargo.toml" -p steerage-lab ||
            refuse "steerage-lab cannot be built; name one in STEERAGE_LAB"
    fi
    # It is built beside steerage-lab.
    if wants busy && [[ -z ${STEERAGE_LAB:-} ]]; then
        cargo build --quiet --release --manifest-path "$root/Cargo.toml" -p steerage-lab --example listening ||
            leave_out busy "listen/measure.sh" "its program cannot be built"
    fi
    [[ $steerage == /* ]] || steerage=$PWD/$steerage
    [[ $lab == /* ]] || lab=$PWD/$lab
    [[ -x $steerage ]] || refuse "$steerage: no such program"
    [[ -x $lab ]] || refuse "$lab: no such program"
    tell "building the peers"
    make_one common capture
    : >"$scratch/beside"
    if wants_dpdk; then
        dpdk=$(pkg-config --modversion libdpdk 2>/dev/null) || no_dpdk="DPDK is not installed: apt-get install libdpdk-dev"
        [[ -n $no_dpdk ]] || make -s -C "$peers/dpdk" >"$scratch/made" 2>&1 ||
            no_dpdk="it cannot be built: $(grep -m 1 error "$scratch/made")"
        [[ -n $no_dpdk ]] || beside "DPDK $dpdk, lab/peers/dpdk: built for this machine, and, where a name ends in SSE4.2, for x86-64-v2; steerage is built for x86-64"
    fi
    if wants meter; then
        beside_package nfdump nfpcapd
        beside_package softflowd softflowd
        beside_package tshark tshark
    fi
    if [[ -z $no_namespaces ]] && { wants listen || wants forward; }; then
        make_one af_packet kernel
        if wants listen && ! cargo build --quiet --release --manifest-path "$peers/netring/Cargo.toml" 2>"$scratch/made"; then
            tell "netring cannot be built: $(grep -m 1 '^error' "$scratch/made")"
        elif wants listen; then
            beside "netring $(grep -A 1 '^name = "netring"$' "$peers/netring/Cargo.lock" | sed -n 's/^version = "\(.*\)"/\1/p'), lab/peers/netring"
        fi
    fi
}

make_one() { # DIRECTORY...
    local directory
    for directory in "$@"; do
        make -s -C "$peers/$directory" || refuse "lab/peers/$directory cannot be built"
    done
}

beside() { jq -cn --arg b "$1" '{beside: $b}' >>"$scratch/beside"; }

beside_package() { # PACKAGE PROGRAM
    local version
    version=$(dpkg-query -W -f '${Version}' "$1" 2>/dev/null) || return 0
    beside "$2 ($1 $version), lab/peers/capture"
}

# 256 MiB, half of which is asked for. DPDK wants pages of 2 MiB; with small ones it works as well, and more slowly.
huge_pages=128

take_huge_pages() {
    local path=/sys/kernel/mm/hugepages/hugepages-2048kB
    { wants_dpdk && [[ -z $no_dpdk ]]; } || return 0
    eal=(--no-pci --log-level error --lcores "0@$cpu_a" -m 128)
    if (($(cat $path/free_hugepages 2>/dev/null || echo 0) < huge_pages)) && [[ -w $path/nr_hugepages ]]; then
        huge_pages_before=$(<$path/nr_hugepages)
        echo $((huge_pages_before + huge_pages)) >$path/nr_hugepages || true
    fi
    if (($(cat $path/free_hugepages 2>/dev/null || echo 0) >= huge_pages / 2)); then
        eal+=(--in-memory)
        beside "DPDK in reserved pages of 2 MiB; steerage in transparent ones"
    else
        tell "no huge pages can be had: DPDK runs in small pages"
        eal+=(--no-huge --no-shconf)
        beside "DPDK in small pages"
    fi
}

give_back_huge_pages() {
    [[ -z $huge_pages_before ]] || echo "$huge_pages_before" >/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages || true
    huge_pages_before=''
}
