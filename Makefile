# The index of commands. Each says what it does, can be repeated, and leaves the host as it was.

.PHONY: help setup build run test fuzz bench lint
.DEFAULT_GOAL := help

help:  ## lists the commands
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

setup:  ## installs what is missing (Debian packages, BPF toolchain); needs root only for that
	@tests/setup.sh

build: setup  ## builds the three processes and cairnctl into target/debug
	cargo build --workspace

run: build  ## runs Cairn in a demo world of two nodes and four pods (root)
	@target/debug/demo

test: build  ## runs every test (root: they make network namespaces)
	cargo test --workspace

fuzz:  ## feeds calc documents and events, and the helper batches, for some minutes (CAIRN_FUZZ_RUNS: how many)
	CAIRN_FUZZ_RUNS=$${CAIRN_FUZZ_RUNS:-50000} cargo test --release -p calc -p privhelper --test fuzz

bench: setup  ## measures against the raw kernel and the reference, into target/bench.json, docs/bench.md and README (root)
	cargo build --release -p calc -p privhelper -p supervisor -p cairnctl -p tests
	@target/release/bench

lint:  ## checks formatting, lints, licences and sources
	@tests/setup.sh lint
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	PATH="$${XDG_CACHE_HOME:-$$HOME/.cache}/cairn/cargo-deny/bin:$$PATH" cargo deny check --hide-inclusion-graph bans licenses sources
