#!/usr/bin/env bash
# Installs what is missing of the named needs, and nothing where all is there.
#
#   scripts/install-needs.sh NEED...
#
# NEED: make, build, server, redis-server, faketime, promtool, node, cargo-deny, rustfmt, clippy
# Debian packages come by apt-get, with sudo where the caller is not root. Elsewhere it says what is
# missing, for you to install.
set -euo pipefail

CARGO_DENY_VERSION=0.20.2

# Debian packages to install, gathered so that one apt-get does it.
packages=()

have() { command -v "$1" >/dev/null 2>&1; }

say() { printf '%s\n' "$*" >&2; }

fail() {
    say "error: $*"
    exit 1
}

as_root() {
    if [[ $EUID -eq 0 ]]; then
        "$@"
    elif have sudo; then
        sudo "$@"
    else
        fail "this needs root and there is no sudo; run as root: $*"
    fi
}

install_packages() {
    [[ ${#packages[@]} -gt 0 ]] || return 0
    have apt-get || fail "please install what is missing (Debian's names): ${packages[*]}"
    say "installing ${packages[*]}"
    as_root apt-get update -q
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${packages[@]}"
    packages=()
}

need_make() {
    have make || packages+=(make)
}

# Rust itself is the one thing that is expected to be there; with it a C compiler, which links it.
need_build() {
    have cargo || fail "cargo is not on PATH: install Rust as https://rustup.rs says, then try again"
    have cc || packages+=(gcc libc6-dev)
}

# A server for the embedded default, either kind.
need_server() {
    have valkey-server || have redis-server || packages+=(redis-server)
}

need_redis-server() {
    have redis-server || packages+=(redis-server)
}

# The tests set the clock of a Redis back with it.
need_faketime() {
    if ! have faketime || ! compgen -G '/usr/lib/*/faketime/libfaketime.so.1' >/dev/null; then
        packages+=(faketime)
    fi
}

# Checks metrics and alert rules. Debian has it in the package of the server, which would start one on its installation:
# so it is taken out of the package, which is not installed.
need_promtool() {
    have promtool && return
    have apt-get || fail "please install promtool, of Prometheus"
    local folder
    folder=$(mktemp -d)
    say "installing promtool"
    (
        cd "$folder"
        apt-get download -q prometheus || { as_root apt-get update -q && apt-get download -q prometheus; }
        dpkg-deb --extract prometheus_*.deb .
        as_root install -m 755 usr/bin/promtool /usr/local/bin/
    )
    rm -rf "$folder"
}

# Runs buf, which the npm registry delivers as a binary.
need_node() {
    have node || packages+=(nodejs)
    have npx || packages+=(npm)
}

need_rustfmt() {
    cargo fmt --version >/dev/null 2>&1 || rustup component add rustfmt
}

need_clippy() {
    cargo clippy --version >/dev/null 2>&1 || rustup component add clippy
}

need_cargo-deny() {
    # It fetches the advisories' database with git, over TLS.
    have git || packages+=(ca-certificates git)
    cargo deny --version >/dev/null 2>&1 && return
    need_build
    install_packages
    say "installing cargo-deny $CARGO_DENY_VERSION, which takes some minutes"
    cargo install cargo-deny --locked --version "$CARGO_DENY_VERSION"
}

[[ $# -gt 0 ]] || fail "usage: $0 NEED..."
for need in "$@"; do
    [[ $(type -t "need_$need") == function ]] || fail "no such need: $need"
    "need_$need"
done
install_packages
