#!/bin/sh
# Installs what building, running and testing Cairn need on Debian 12, where it is missing: Debian
# packages, the BPF toolchain, and with "lint" also cargo-deny. Run again, it does nothing.
set -eu
cd "$(dirname "$0")/.."
say() { echo "setup: $*"; }

missing=
need() {  # need COMMAND PACKAGE
    command -v "$1" >/dev/null || missing="$missing $2"
}
need cc gcc
need ip iproute2
need ping iputils-ping
need unshare util-linux
need setpriv util-linux
need bpftool bpftool
need nft nftables
need sysctl procps
need busctl systemd
need dbus-daemon dbus
[ -e /usr/include/stdio.h ] || missing="$missing libc6-dev"
if [ -n "$missing" ]; then
    [ "$(id -u)" = 0 ] || { say "as root, please: missing are$missing"; exit 1; }
    say "installing$missing"
    apt-get update -qq
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
fi
command -v cargo >/dev/null || { say "a Rust toolchain is missing: get one with rustup"; exit 1; }

ebpf/build.sh install

if [ "${1:-}" = lint ]; then
    tools=${XDG_CACHE_HOME:-$HOME/.cache}/cairn/cargo-deny
    if ! [ -x "$tools/bin/cargo-deny" ]; then
        say "building cargo-deny (about three minutes)"
        cargo install --quiet --locked cargo-deny --root "$tools"
    fi
fi
