#!/bin/sh
# Builds the BPF object from source.
#
#   ebpf/build.sh install     gets the toolchain, if it is not there; needs root where that is Debian's
#   ebpf/build.sh DIRECTORY   builds DIRECTORY/cairn-ebpf (privhelper/build.rs calls this)
#
# Of the two toolchains that can build `core` for BPF, it takes the first that is there with a bpf-linker
# of its LLVM: rustup's nightly with rust-src, or Debian's rustc-web with rust-web-src.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/cairn

say() { echo "ebpf/build.sh: $*" >&2; }

have_nightly() {
    command -v rustup >/dev/null && rustup run nightly rustc --version >/dev/null 2>&1 &&
        [ -d "$(rustup run nightly rustc --print sysroot)/lib/rustlib/src/rust/library/core" ]
}

have_debian() { [ -x /usr/bin/rustc ] && [ -x /usr/bin/cargo ] && [ -n "$(debian_source)" ]; }

debian_source() { ls -d /usr/lib/rustlib/src/rust/library/core 2>/dev/null || :; }

# Takes toolchain $1: sets rustc_run (how to run rustc and cargo), llvm (its LLVM's major version) and linker.
take() {
    kind=$1
    case $kind in
        nightly) rustc_run="rustup run nightly" ;;
        debian) rustc_run="env PATH=/usr/bin:/bin RUSTC_BOOTSTRAP=1" ;;
    esac
    llvm=$($rustc_run rustc -vV | sed -n 's/^LLVM version: \([0-9]*\).*/\1/p')
    linker=$cache/bpf-linker-$kind-llvm$llvm/bin/bpf-linker
}

# Takes the first toolchain that is there with its linker.
choose() {
    for toolchain in nightly debian; do
        if "have_$toolchain"; then
            take "$toolchain"
            [ ! -x "$linker" ] || return 0
        fi
    done
    return 1
}

install() {
    ! choose || return 0
    if ! have_nightly && command -v rustup >/dev/null && [ -z "${CI:-}" ] && ! have_debian; then
        say "asking rustup for nightly with rust-src"
        timeout 300 rustup toolchain install nightly --profile minimal --component rust-src ||
            say "rustup cannot get it; taking Debian's"
    fi
    if have_nightly; then
        take nightly
        ! build_linker || return 0
        say "there may be no bpf-linker for LLVM $llvm yet; taking Debian's toolchain"
    fi
    if ! have_debian && command -v apt-get >/dev/null; then
        say "installing Debian's rustc-web, cargo-web, rust-web-src"
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
            rustc-web cargo-web rust-web-src >/dev/null
    fi
    if have_debian; then
        take debian
        ! build_linker || return 0
    fi
    say "no toolchain that can build core for BPF, with its bpf-linker, could be installed"
    exit 1
}

# Builds bpf-linker for the toolchain taken. It must link to the very LLVM that rustc has, by the names that
# linker and loader look for.
build_linker() {
    say "building bpf-linker for LLVM $llvm (about a minute)"
    library=$(ldd "$($rustc_run rustc --print sysroot)/bin/rustc" | sed -n 's/.*libLLVM[^ ]* => \([^ ]*\) .*/\1/p')
    [ -n "$library" ] || { say "$kind's rustc has no libLLVM of its own to link to"; return 1; }
    prefix=$cache/llvm$llvm-$kind
    mkdir -p "$prefix/lib"
    ln -sfn "$library" "$prefix/lib/libLLVM.so"
    ln -sfn "$library" "$prefix/lib/$(basename "$library")"
    LLVM_PREFIX=$prefix cargo install --quiet bpf-linker --no-default-features \
        --features "llvm-$llvm" --root "$cache/bpf-linker-$kind-llvm$llvm"
}

build() {
    out=$1
    target=${EBPF_TARGET_DIR:-$out/ebpf-target}
    if ! choose; then
        say "the BPF toolchain is missing: run 'ebpf/build.sh install' (or 'make setup')"
        exit 1
    fi
    # Cargo runs inside cargo here: a target directory of its own, and nothing of the outer cargo's.
    (
        cd "$here"
        unset RUSTC RUSTC_WRAPPER RUSTC_WORKSPACE_WRAPPER RUSTFLAGS CARGO_ENCODED_RUSTFLAGS RUSTUP_TOOLCHAIN CARGO
        CARGO_TARGET_BPFEL_UNKNOWN_NONE_LINKER=$linker \
        CARGO_TARGET_BPFEL_UNKNOWN_NONE_RUSTFLAGS='-C debuginfo=0' \
        CARGO_TARGET_DIR=$target \
            $rustc_run cargo build --quiet --locked --release -Z build-std=core --target bpfel-unknown-none \
                --package ebpf --bin cairn-ebpf
    )
    cp "$target/bpfel-unknown-none/release/cairn-ebpf" "$out/cairn-ebpf"
}

case "${1:-}" in
    install) install ;;
    "" | -*) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 2 ;;
    *) build "$1" ;;
esac
