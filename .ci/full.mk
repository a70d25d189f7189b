# The steps of .ci/full, in the order in which they run. Each recipe is one bash script (`set -euo pipefail`), which .ci/step runs with
# the functions of .ci/functions. `skip REASON` ends a step that cannot run here.

STAMPS ?= target/full/none
FUZZ := $(patsubst fuzz/fuzz_targets/%.rs,fuzz/%,$(wildcard fuzz/fuzz_targets/*.rs))
ARM := $(addprefix arm/,$(shell .ci/arm --list))
MUTANTS := mutants/1 mutants/2
MUTANTS_OF_MOVES := mutants_of_moves/1 mutants_of_moves/2
STEPS := gate without_tools instructions packages deny semver features oldest_rust site live_page as_pasted c_library parquet wheel ray spark merging python_oldest collectors attacks debian values static_binaries reproducible $(ARM) wireguard moves rounds other_kernel cards \
    mistakes policy simulator loom miri thread_sanitizer $(FUZZ) $(MUTANTS_OF_MOVES) $(MUTANTS)

SHELL := .ci/step
.SHELLFLAGS = $@
.ONESHELL:
.SUFFIXES:
.PHONY: all list $(STEPS) arm fuzz mutants mutants_of_moves

all: $(STEPS)
arm: $(ARM)
fuzz: $(FUZZ)
mutants: $(MUTANTS)
mutants_of_moves: $(MUTANTS_OF_MOVES)
$(STEPS): %: $(STAMPS)/%
list: # each step on a line
	@: $(foreach step,$(STEPS),$(info $(step)))

# In a bare root, if this machine can make one.
$(STAMPS)/gate:
	@if ((EUID == 0)) && command -v debootstrap >/dev/null; then .ci/bare; else bash .ci/run; fi

# On a machine without the tools that tests start, the tests skip and do not fail.
$(STAMPS)/without_tools:
	@programs=$$PWD/target/without-tools
	rm -rf "$$programs"
	mkdir -p "$$programs"
	tools=' tshark dumpcap editcap capinfos mergecap tcpdump ethtool fusermount fusermount3 ping nc nfpcapd nfcapd nfdump nfacctd iperf3 parallel traceroute zstd g++ c++ pkg-config pkgconf mkdocs prometheus-node-exporter promtool '
	IFS=: read -ra folders <<<"$$PATH"
	for folder in "$${folders[@]}"; do
	    for program in "$$folder"/*; do
	        [[ ! -x $$program || $$tools == *" $${program##*/} "* || -e $$programs/$${program##*/} ]] || ln -s "$$program" "$$programs/"
	    done
	done
	env --default-signal=INT,QUIT -u CI PATH="$$programs" cargo test --workspace --locked --no-fail-fast

# Instructions a packet. The counts do not depend on how busy or fast the machine is. It fails if a packet takes more of them than were
# written down. Its build, optimised across all crates, takes longer than it may take in the gate: run it after each change of the path.
$(STAMPS)/instructions:
	@needs valgrind:valgrind
	runner=$$(sed -n '/^name = "gungraun-runner"/{n;s/.*"\(.*\)"/\1/p}' Cargo.lock)
	cargo_program gungraun-runner "$$runner" gungraun-runner --version
	cargo bench -p steerage-lab --bench instructions --locked

# Builds each package as crates.io would get it, out of packages alone.
$(STAMPS)/packages:
	@cargo publish --workspace --dry-run --locked --allow-dirty

# Licences and sources of all crates, and which of our crates imports which. Tests may import what they like.
$(STAMPS)/deny:
	@cargo_program cargo-deny 0.20.2 cargo deny --version
	cargo deny --exclude-dev check --hide-inclusion-graph bans
	cargo deny check --hide-inclusion-graph licenses sources

# The public interface against that of the last release.
$(STAMPS)/semver:
	@tag=$$(git describe --tags --abbrev=0 --match 'v*' 2>/dev/null) || skip "nothing is released yet"
	cargo semver-checks --version >/dev/null 2>&1 || skip "no cargo-semver-checks here (cargo install --locked cargo-semver-checks)"
	cargo semver-checks --workspace --baseline-rev "$$tag"

# Each feature of the crates that programs depend on, alone and none of them. Warnings count: code that only another feature uses
# is left out with it.
$(STAMPS)/features:
	@export RUSTFLAGS="-D warnings" CARGO_TARGET_DIR=target/features
	for crate in steerage-control:metrics,mount,socket,web,http,report steerage-device:af_xdp,capture,tap steerage:serde; do
	    name=$${crate%%:*}
	    cargo check -p "$$name" --locked --no-default-features --lib
	    for feature in $$(tr , ' ' <<<"$${crate#*:}"); do
	        cargo check -p "$$name" --locked --no-default-features --features "$$feature" --lib
	    done
	done
	cargo check -p steerage-device --locked --no-default-features --examples
	cargo test -p steerage-device --locked --no-default-features --lib absent::
	cargo check --workspace --locked --no-default-features

# The libraries with the oldest Rust that they name. Neither rust-version nor clippy notices a syntax that came later.
$(STAMPS)/oldest_rust:
	@command -v rustup >/dev/null || skip "no rustup here, which installs the oldest Rust (https://rustup.rs)"
	rust=$$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
	rustup toolchain install "$$rust" --profile minimal --no-self-update || skip "rustup cannot install Rust $$rust here"
	libraries=$$(cargo metadata --no-deps --format-version 1 --locked | python3 -c '
	import json, sys
	for package in json.load(sys.stdin)["packages"]:
	    is_library = any("lib" in target["kind"] for target in package["targets"])
	    if is_library and package["publish"] != [] and package["rust_version"] == sys.argv[1]:
	        print(package["name"])' "$$rust")
	[[ -n $$libraries ]] || { echo "no library names Rust $$rust" >&2; exit 1; }
	for library in $$libraries; do
	    echo "== $$library with Rust $$rust"
	    CARGO_TARGET_DIR=target/oldest-rust cargo "+$$rust" check -p "$$library" --lib --locked
	    CARGO_TARGET_DIR=target/oldest-rust cargo "+$$rust" check -p "$$library" --lib --locked --all-features
	done

# What cargo-c installs is what packaging/c-library installs, and the example runs with it.
$(STAMPS)/c_library:
	@needs gcc:gcc pkg-config:pkg-config nm:binutils
	cargo_program cargo-c 0.10.24+cargo-0.98.0 cargo cinstall --version
	prefix=$$PWD/target/c-library
	rm -rf "$$prefix"
	cargo cinstall -p steerage-c --release --prefix "$$prefix/cargo-c" --libdir lib
	packaging/c-library "$$prefix/script"
	for one in cargo-c script; do
	    folder=$$prefix/$$one
	    (cd "$$folder" && find include lib -name 'libsteerage.so*' -o -name '*.h' -o -name '*.pc' | sort) >"$$folder/files"
	    nm -D --defined-only --format=posix "$$folder/lib/libsteerage.so" | cut -d ' ' -f 1 >"$$folder/symbols"
	    gcc -Wall -Wextra -Werror examples/c/count.c -Wl,-rpath,"$$folder/lib" -o "$$folder/count" \
	        $$(PKG_CONFIG_PATH=$$folder/lib/pkgconfig pkg-config --cflags --libs steerage)
	    "$$folder/count" examples/demo.pcapng >"$$folder/counted"
	done
	for file in files symbols counted; do diff "$$prefix/cargo-c/$$file" "$$prefix/script/$$file"; done

# The site as it is published, with the theme from PyPI. Each page is opened.
$(STAMPS)/site:
	@needs chromium:chromium
	python3 -m venv target/site-tools && target/site-tools/bin/pip install --quiet 'mkdocs-material>=9,<10' ||
	    skip "no venv, or no PyPI here (Debian: python3-venv)"
	target/site-tools/bin/mkdocs build -q -f .ci/site.yml
	python3 .ci/site-pages target/site-material target/site-pictures

# The live page of a run, in a browser. The gate tests its server.
$(STAMPS)/live_page:
	@needs chromium:chromium
	cargo build --profile test -p steerage-cli --locked
	python3 .ci/live-page target/debug/steerage target/live-page-pictures

# The programs of the guide, in new packages with the Cargo.toml of their pages. The gate compiles them within the workspace.
$(STAMPS)/as_pasted:
	@.ci/as-pasted

# The Parquet files of all captures, in readers that come from PyPI. The gate reads those of examples/demo.pcapng.
$(STAMPS)/parquet:
	@python3 -m venv target/parquet-readers && target/parquet-readers/bin/pip install --quiet duckdb pyarrow polars pytz ||
	    skip "no venv, or no PyPI here (Debian: python3-venv)"
	cargo build --profile test -p steerage-cli --locked
	captures=$${STEERAGE_CAPTURES:-../shared/captures}
	[[ -f $$captures/afs.pcap ]] || skip "there is no $$captures/afs.pcap: set STEERAGE_CAPTURES"
	target/parquet-readers/bin/python .ci/parquet target/debug/steerage "$$captures"

# 5,000 random recordings in parts, where the gate takes 64.
$(STAMPS)/merging:
	@PROPTEST_CASES=$${PROPTEST_CASES:-5000} timeout --foreground 2h \
	    cargo test -p steerage-meter --test it --locked parts_are_the_whole -- --nocapture

# The wheel as docs/python.md builds it, in a virtual environment that has nothing else and reaches no index.
$(STAMPS)/wheel:
	@rm -rf target/wheel
	python3 -m venv target/wheel/build && target/wheel/build/bin/pip install --quiet 'maturin>=1.9,<2' ||
	    skip "no venv, or no PyPI here (Debian: python3-venv)"
	target/wheel/build/bin/maturin build --manifest-path python/Cargo.toml --out target/wheel
	python3 -m venv target/wheel/fresh
	target/wheel/fresh/bin/pip install --quiet --no-index target/wheel/*.whl
	target/wheel/fresh/bin/python .ci/wheel

# The oldest versions of the libraries that docs/python.md names. pandas 3 takes Python 3.11.
$(STAMPS)/python_oldest:
	@python3 -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' ||
	    skip "the oldest libraries are for Python 3.11 and 3.12"
	cargo build --profile test -p steerage-python --locked
	python_env target/python-oldest pytest numpy==1.26.4 $$(sed -n 's/^| `\([a-z]*==[0-9.]*\)`.*/\1/p' docs/python.md) ||
	    skip "no venv, or no PyPI here"
	CI=true target/python-oldest/bin/pytest -q -p no:cacheprovider python/tests/test_consumers.py

# Sixteen files, and a worker that is killed in the middle of one. The engines come from PyPI.
$(STAMPS)/ray:
	@needs editcap:wireshark-common
	cargo build --profile test -p steerage-python --locked
	python_env target/ray ray pyarrow duckdb fsspec aiohttp || skip "no venv, or no PyPI here (Debian: python3-venv)"
	# Ray gives up if its agents have not started after 15 s (ray-project/ray#65983). Their modules are compiled here, which takes longer than
	# that on a busy machine.
	PYTHONDONTWRITEBYTECODE= target/ray/bin/python -c 'import ray.dashboard.agent, ray._private.runtime_env.agent.main'
	target/ray/bin/python .ci/cluster with_ray.py

$(STAMPS)/spark:
	@needs editcap:wireshark-common java:openjdk-17-jre-headless
	cargo build --profile test -p steerage-python --locked
	python_env target/spark pyspark pandas pyarrow duckdb fsspec aiohttp || skip "no venv, or no PyPI here (Debian: python3-venv)"
	target/spark/bin/python .ci/cluster with_spark.py

# Ten minutes in which a collector is restarted every 10 s. The gate takes a few seconds.
$(STAMPS)/collectors:
	@STEERAGE_EXPORT_SECONDS=600 cargo test -p steerage-cli --test it --locked export_restarts -- --nocapture --test-threads 1

# Puts every forbidden system call into the threads of the commands. The gate does it for `count`.
$(STAMPS)/attacks:
	@((EUID == 0)) || skip "it takes root"
	STEERAGE_ATTACKS=1 CI=true cargo test -p steerage-cli --test it --locked attacks

# The flows of each capture of a folder, against tshark's. STEERAGE_CAPTURES names folders of your own.
$(STAMPS)/values:
	@needs tshark:tshark
	captures=$${STEERAGE_CAPTURES:-../shared/captures}
	for folder in $$captures; do [[ -d $$folder ]] || skip "there is no $$folder: set STEERAGE_CAPTURES"; done
	cargo build --profile test -p steerage-cli --locked
	.ci/values target/debug/steerage $$captures

# The Debian package, in a bare root and under systemd.
$(STAMPS)/debian:
	@((EUID == 0)) || skip "it takes root"
	needs debootstrap:debootstrap systemd-nspawn:systemd-container dpkg-shlibdeps:dpkg-dev
	packaging/deb
	packaging/tests/bare-root
	packaging/tests/systemd

# The static binaries, and the image of a container, by podman too if it is here. Needs the nightly that packaging/static names.
$(STAMPS)/static_binaries:
	@needs musl-gcc:musl-tools aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu qemu-aarch64-static:qemu-user-static
	packaging/static x86_64 aarch64
	qemu-aarch64-static target/static/aarch64/steerage meter examples/demo.pcapng -t 1
	packaging/tests/container x86_64
	if command -v podman >/dev/null; then packaging/tests/podman x86_64; fi

# Two builds of one commit, in two folders, have the same bytes.
$(STAMPS)/reproducible:
	@packaging/reproduce deb
	packaging/reproduce static x86_64

# The tests on 64-bit Arm, by qemu. Needs nightly with rust-src.
$(addprefix $(STAMPS)/,$(ARM)):
	@needs aarch64-linux-gnu-gcc:"gcc-aarch64-linux-gnu libc6-dev-arm64-cross" qemu-aarch64-static:qemu-user-static
	.ci/arm $(@F)

# The example is a workspace of its own. Its test installs nothing: wireguard-go is built below target/.
$(STAMPS)/wireguard:
	@command -v go >/dev/null && ((EUID == 0)) || skip "wireguard-go takes Go, and network namespaces take root"
	GOBIN=$$PWD/target/tools/bin go install golang.zx2c4.com/wireguard@latest
	cargo fmt --manifest-path examples/wireguard/Cargo.toml --check
	cargo clippy --manifest-path examples/wireguard/Cargo.toml --all-targets --locked -- -D warnings
	CI=true cargo test --release --manifest-path examples/wireguard/Cargo.toml --locked

# Each queue of the model has three packets instead of two.
$(STAMPS)/moves:
	@STEERAGE_MOVES_PACKETS=3 timeout --foreground 1h cargo test -p steerage-moves --locked -- --nocapture
	STEERAGE_CASES=1000000 timeout --foreground 1h cargo test --release -p steerage-moves --locked random

# A minute, where the gate takes three seconds.
$(STAMPS)/rounds:
	@STEERAGE_SECONDS=60 cargo test -p steerage --test rounds --locked

# Another kernel than this machine's, which has VLAN interfaces and bonds.
$(STAMPS)/other_kernel:
	@needs qemu-system-x86_64:qemu-system-x86 busybox:busybox-static depmod:kmod cpio:cpio tcpdump:tcpdump xdp-loader:xdp-tools
	export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER=$$PWD/.ci/other-kernel CI=true STEERAGE_VLANS=1
	cargo test -p steerage-device --lib --locked -- bond::
	cargo test -p steerage-cli --test it --locked -- offloads:: bonds:: dispatcher::

# The real drivers of cards that qemu emulates, under the newest kernel of Debian's backports. Without KVM, this takes half an hour.
$(STAMPS)/cards:
	@needs qemu-system-x86_64:qemu-system-x86 busybox:busybox-static depmod:kmod cpio:cpio ethtool:ethtool tcpdump:tcpdump python3:python3
	((EUID == 0)) && [[ -e /dev/net/tun ]] || skip "the cards are joined by TAP interfaces, which take root and /dev/net/tun"
	CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER=$$PWD/.ci/other-kernel CI=true STEERAGE_KERNEL_OF=trixie-backports \
	    STEERAGE_CARDS="igb e1000e virtio-net-pci vmxnet3" \
	    cargo test -p steerage-cli --test it --locked -- cards:: --nocapture --test-threads 1

$(STAMPS)/mistakes:
	@bash .ci/mistakes

# Each test of the policy runs all of its machines, where the gate runs four.
$(STAMPS)/policy:
	@STEERAGE_CASES=1000000 timeout --foreground 1h cargo test --release -p steerage-policy --lib --locked

# Each test that goes by seeds runs the first 1,500, where the gate runs 40 to 1,000. With 5,000 it takes about two hours.
$(STAMPS)/simulator:
	@STEERAGE_SEEDS=$${STEERAGE_SEEDS:-1500} timeout --foreground 3h cargo test -p steerage-sim --tests --locked

# One preemption more than in the gate.
$(STAMPS)/loom:
	@CARGO_TARGET_DIR=target/loom RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=4 \
	    timeout --foreground 2h cargo test -p steerage-mem --test '*' --profile loom --locked

$(STAMPS)/miri:
	@cargo +nightly miri --version >/dev/null 2>&1 || skip "no Miri here (rustup component add miri rust-src --toolchain nightly)"
	MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=3 CARGO_TARGET_DIR=target/miri \
	    cargo +nightly miri test -p steerage-mem --lib --

# One test reserves more address space than the sanitizer leaves.
$(STAMPS)/thread_sanitizer:
	@[[ -d $$(rustc +nightly --print sysroot 2>/dev/null)/lib/rustlib/src/rust/library ]] ||
	    skip "no source of the standard library (rustup component add rust-src --toolchain nightly)"
	RUSTFLAGS=-Zsanitizer=thread CARGO_TARGET_DIR=target/tsan \
	    cargo +nightly test -Zbuild-std --target "$$(uname -m)-unknown-linux-gnu" -p steerage-mem --lib -- --skip room_costs_nothing

$(addprefix $(STAMPS)/,$(FUZZ)):
	@.ci/fuzz $(@F) $@

$(addprefix $(STAMPS)/,$(MUTANTS_OF_MOVES)):
	@MUTANTS_SHARD=$(@F)/$(words $(MUTANTS_OF_MOVES)) bash .ci/mutants moves

$(addprefix $(STAMPS)/,$(MUTANTS)):
	@MUTANTS_SHARD=$(@F)/$(words $(MUTANTS)) bash .ci/mutants
