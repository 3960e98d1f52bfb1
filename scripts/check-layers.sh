#!/usr/bin/env bash
# Holds src/ to the map of its modules: who may use whom, and which folder alone may know a driver.
# CONTRIBUTING.md has the map in words.
#
#   scripts/check-layers.sh [ROOT]        checks ROOT/src (default: this repository); 1 if it finds something
#   scripts/check-layers.sh --self-test   proves on seeded trees that each rule catches what it is for
#
# Looks at code, not at words: comments and string literals are blanked first, so "redis-server" in a
# help text is fine. `use` trees are taken apart, so `use crate::{domain::Key, rpc::Status}` is seen.
# SQL is the exception: it lives in string literals, and is looked for there.
# The seeds of the self-test hold Rust, in which $ is not the shell's.
# shellcheck disable=SC2016
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# The program that reads one Rust file after another. Only POSIX awk, so that mawk will do.
read -r -d '' CHECKER <<'AWK' || true
BEGIN {
    # layer: the modules of the crate that it may use besides itself. main → cli → app → rpc →
    # coordinator → store, ledger → metrics, trace → domain; nothing points back. Settings end at app, which
    # hands plain values down.
    may["main"]        = "cli app rpc coordinator store ledger metrics trace domain config telemetry"
    may["cli"]         = "app rpc coordinator store ledger metrics trace domain config telemetry"
    may["app"]         = "rpc coordinator store ledger metrics trace domain config telemetry"
    may["rpc"]         = "coordinator store ledger metrics trace domain"
    may["coordinator"] = "store ledger metrics trace domain"
    may["store"]       = "metrics trace domain"
    may["ledger"]      = "metrics trace domain"
    may["metrics"]     = "domain"
    may["trace"]       = "domain"
    may["domain"]      = ""
    may["config"]      = "domain"
    may["telemetry"]   = "config trace domain"
    for (layer in may) known[layer] = 1

    # crate: the only layer that may name it.
    home["tonic"] = home["tonic_health"] = home["tonic_prost"] = home["tonic_reflection"] = "rpc"
    home["tonic_types"] = home["prost"] = home["prost_types"] = "rpc"
    # The service asks itself nothing: only the subcommands that act as a client do.
    home["claimlock_client"] = "cli"
    home["redis"] = home["bb8"] = home["bb8_redis"] = "store"
    home["prometheus_client"] = "metrics"
    home["opentelemetry"] = home["opentelemetry_sdk"] = home["opentelemetry_otlp"] = "trace"
    home["opentelemetry_http"] = home["tracing_opentelemetry"] = home["hyper_rustls"] = "trace"
    home["postgres"] = home["postgres_types"] = home["tokio_postgres"] = home["sqlx"] = "ledger"
    home["deadpool"] = home["deadpool_postgres"] = home["bb8_postgres"] = home["diesel"] = "ledger"

    # A statement on one line, the first line of a longer SELECT, or a file of statements.
    sql = "(^|[^A-Za-z_])(SELECT[ \t]+[A-Za-z_*(\"].*FROM[ \t]|INSERT INTO[ \t]|DELETE FROM[ \t]" \
        "|UPDATE[ \t]+[A-Za-z_.\"]+[ \t]+SET[ \t]|(CREATE|ALTER|DROP)[ \t]+(OR REPLACE[ \t]+)?(TABLE|SCHEMA|FUNCTION|INDEX|SEQUENCE)[ \t])" \
        "|(^[ \t]*|\")SELECT[ \t]+([*]|[a-z_.]+[(,]|[a-z_.]+[ \t]*$)|\\.sql\""
    status = 0
}

FNR == 1 { if (NR > 1) check_file(); start_file() }
{ split_line($0) }
END { if (NR > 0) check_file(); exit status }

function report(line, text) {
    status = 1
    if (!((shown, line, text) in told)) print shown ":" line ": " text
    told[shown, line, text] = 1
}

function start_file(    rest, parts, count) {
    shown = FILENAME; sub(root, "", shown); sub(/^\//, "", shown)
    rest = shown; sub(/^src\//, "", rest); sub(/\.rs$/, "", rest)
    count = split(rest, parts, "/")
    layer = parts[1]
    # How many `super` lead from this file's module to the crate's root.
    depth = (parts[count] == "mod") ? count - 1 : count
    tokens = 0; state = "code"; nesting = 0
}

# Takes a line apart into tokens of code, and the text of its literals. Comments vanish.
function split_line(line,    i, c, rest, text, code, n) {
    code = ""; text = ""; i = 1; n = length(line)
    while (i <= n) {
        c = substr(line, i, 1); rest = substr(line, i)
        if (state == "comment") {
            if (rest ~ /^\*\//) { if (--nesting == 0) state = "code"; i += 2 }
            else if (rest ~ /^\/\*/) { nesting++; i += 2 }
            else i++
        } else if (state == "string") {
            if (c == "\\") { text = text substr(line, i, 2); i += 2 }
            else { text = text c; if (c == "\"") state = "code"; i++ }
        } else if (state == "raw") {
            if (substr(line, i, length(closing)) == closing) { text = text "\""; state = "code"; i += length(closing) }
            else { text = text c; i++ }
        } else if (rest ~ /^\/\//) {
            break
        } else if (rest ~ /^\/\*/) {
            state = "comment"; nesting = 1; code = code " "; i += 2
        } else if (c == "\"") {
            state = "string"; code = code " \""; text = text " \""; i++
        } else if (rest ~ /^[bc]?r#*"/ && substr(line, i - 1, 1) !~ /[A-Za-z0-9_]/) {
            match(rest, /^[bc]?r#*"/)
            closing = substr(rest, 1, RLENGTH); sub(/^[bc]?r/, "", closing); sub(/"/, "", closing)
            closing = "\"" closing
            state = "raw"; code = code " \""; text = text " \""; i += RLENGTH
        } else if (rest ~ /^'(\\.[^']*|[^'\\]|[\200-\377]+)'/) {
            match(rest, /^'(\\.[^']*|[^'\\]|[\200-\377]+)'/); code = code " "; i += RLENGTH
        } else { code = code c; i++ }
    }
    if (layer != "ledger" && text ~ sql)
        report(FNR, "SQL outside src/ledger/")
    tokenize(code)
}

function tokenize(code) {
    while (code != "") {
        if (match(code, /^[ \t\r]+/)) { code = substr(code, RLENGTH + 1); continue }
        if (match(code, /^(r#)?[A-Za-z_][A-Za-z0-9_]*/) || match(code, /^::/) || match(code, /^./)) {
            tok[++tokens] = substr(code, 1, RLENGTH); at[tokens] = FNR
            code = substr(code, RLENGTH + 1)
        }
    }
}

function is_name(k) { return k >= 1 && k <= tokens && tok[k] ~ /^(r#)?[A-Za-z_]/ }

function check_file(    k, path, first) {
    if (!(layer in known) && layer != "lib") {
        report(1, "no such layer: " layer " (give the file a place on the map, or the map a layer)")
        return
    }
    for (k = 1; k <= tokens; k++) {
        if (tok[k] == "use") {
            k = use_tree(k + 1, "")
        } else if (tok[k] == "crate" && tok[k - 1] == "extern") {
            check_path(tok[k + 1], at[k], 1)
        } else if (is_name(k) && tok[k + 1] == "::" && !(tok[k - 1] == "::" && (is_name(k - 2) || tok[k - 2] == ">"))) {
            path = tok[k]; first = k
            while (tok[k + 1] == "::" && is_name(k + 2)) { path = path "::" tok[k + 2]; k += 2 }
            check_path(path, at[first], 0)
        }
    }
}

# Reads the tree of a `use` from token k on, and checks each path in it. Returns the token it ends at.
function use_tree(k, prefix,    path, line, next_k) {
    path = prefix; line = at[k]
    if (tok[k] == "::") k++
    while (k <= tokens) {
        if (tok[k] == "{") {
            k++
            while (k <= tokens && tok[k] != "}") {
                if (tok[k] == ",") { k++; continue }
                next_k = use_tree(k, path)
                k = (next_k > k) ? next_k : k + 1
            }
            return k + 1
        }
        if (is_name(k) || tok[k] == "*") {
            path = path (path == "" ? "" : "::") tok[k]; line = at[k]; k++
            if (tok[k] == "::") { k++; continue }
            if (tok[k] == "as") k += 2
        }
        break
    }
    check_path(path, line, 1)
    return k
}

# A path as it stands in the code, such as crate::store::Keys or tonic::Status.
function check_path(path, line, imported,    seg, count, i, target, up) {
    gsub(/r#/, "", path)
    count = split(path, seg, "::")
    if (seg[1] == "crate" || seg[1] == "claimlock") {
        if (count > 1) check_arrow(seg[2], line, path)
        return
    }
    if (seg[1] == "self" || seg[1] == "super") {
        i = 1; up = 0
        while (i <= count && (seg[i] == "self" || seg[i] == "super")) { if (seg[i] == "super") up++; i++ }
        if (up >= depth && i <= count && seg[i] in known) check_arrow(seg[i], line, path)
        return
    }
    if ((seg[1] in home) && home[seg[1]] != layer && (imported || count > 1))
        report(line, seg[1] " outside src/" home[seg[1]] "/")
}

function check_arrow(target, line, path,    allowed) {
    if (layer == "lib" || target == layer) return
    allowed = " " may[layer] " "
    if (index(allowed, " " target " ")) return
    if (target in known) report(line, layer " must not use crate::" target)
    else report(line, path " is not in a layer")
}
AWK

# check ROOT: prints each violation under ROOT/src as file:line: what, and fails if there is one.
check() {
    local root=$1 files=()
    [[ -d $root/src ]] || { echo "$root has no src/" >&2; return 2; }
    mapfile -d '' -t files < <(find "$root/src" -name '*.rs' -print0 | sort -z)
    [[ ${#files[@]} -gt 0 ]] || { echo "no Rust files under $root/src" >&2; return 2; }
    # An empty file has no line from which awk would learn of it; it has nothing to check either.
    LC_ALL=C awk -v "root=$root" "$CHECKER" "${files[@]}"
}

# ---------------------------------------------------------------------------------------------
# Self-test

failures=0
seeded=0

# plant FILE: puts standard input into FILE of a fresh clean tree at $tree.
plant() {
    rm -rf "$tree"
    clean_tree
    mkdir -p "$tree/$(dirname "$1")"
    cat >"$tree/$1"
}

# catches FILE:LINE TEXT: the tree must have one violation, there, with TEXT in it.
catches() {
    local found
    seeded=$((seeded + 1))
    if found=$(check "$tree"); then
        echo "not caught: $1: $2" >&2
    elif [[ $(wc -l <<<"$found") -eq 1 && $found == "$1: "*"$2"* ]]; then
        return
    else
        printf 'expected one line "%s: … %s …", got:\n%s\n' "$1" "$2" "$found" >&2
    fi
    failures=$((failures + 1))
}

# passes WHAT: the tree must be clean.
passes() {
    local found
    seeded=$((seeded + 1))
    found=$(check "$tree") && return
    printf 'false alarm on %s:\n%s\n' "$1" "$found" >&2
    failures=$((failures + 1))
}

clean_tree() {
    mkdir -p "$tree"/src/{domain,metrics,trace,coordinator,store,ledger,rpc,cli}
    printf '%s\n' 'pub mod app;' 'pub use crate::app::run;' >"$tree/src/lib.rs"
    printf '%s\n' 'use claimlock::cli;' 'fn main() { cli::run() }' >"$tree/src/main.rs"
    printf '%s\n' 'use crate::{config::Settings, rpc, store::{self, Pool}};' 'use crate::coordinator;' >"$tree/src/app.rs"
    printf '%s\n' 'use crate::domain::Tenant;' 'pub const A: &str = "crate::rpc, redis://localhost, redis-server";' >"$tree/src/config.rs"
    printf '%s\n' 'use crate::app;' >"$tree/src/cli/serve.rs"
    printf '%s\n' 'use tonic::Status;' 'use prost::Message as _;' 'use crate::coordinator::Claims;' >"$tree/src/rpc/mod.rs"
    printf '%s\n' 'use crate::store::Pool;' 'use super::locks;' >"$tree/src/coordinator/claims.rs"
    printf '%s\n' 'use prometheus_client::registry::Registry;' 'use crate::domain;' >"$tree/src/metrics/mod.rs"
    printf '%s\n' 'use {bb8_redis::bb8, redis::Script};' 'use crate::domain;' 'mod redis_url;' >"$tree/src/store/mod.rs"
    printf '%s\n' 'use tokio_postgres::Client;' 'const Q: &str = "SELECT key FROM claims";' >"$tree/src/ledger/mod.rs"
    cat >"$tree/src/domain/key.rs" <<'RUST'
//! Not for crate::rpc, nor redis::Client. // tonic::Status
/* crate::store /* nested: crate::ledger */ redis::cmd */
use crate::domain::Tenant;
use super::Scope;
const URL: &str = "redis://x"; // a comment after a string that holds two slashes
const RAW: &str = r#"use "crate::rpc" and tonic::Status"#;
const LONG: &str = "use
    crate::rpc::Status and redis::cmd \" still a string";
fn quote<'a>(c: &'a char) -> bool { *c == '"' || *c == '\'' || *c == 'é' || *c == '"' }
fn local(redis: u8) -> u8 { let tonic = redis; tonic }
const HELP: &str = "SELECT a database, UPDATE it: words, not SQL. Deleted from here.";
mod tests { use super::*; use super::super::Scope; }
RUST
}

self_test() {
    tree=$(mktemp -d)
    trap 'rm -rf "$tree"' EXIT

    clean_tree
    passes "the clean tree"

    # A driver outside its folder: however it is written.
    plant src/coordinator/a.rs <<<'use tonic::Status;'
    catches src/coordinator/a.rs:1 "tonic outside src/rpc/"
    plant src/app.rs <<<'fn a() -> Result<(), tonic::transport::Error> { Ok(()) }'
    catches src/app.rs:1 "tonic outside src/rpc/"
    plant src/app.rs <<<'use tonic_health::server::health_reporter;'
    catches src/app.rs:1 "tonic_health outside src/rpc/"
    plant src/domain/a.rs <<<'#[derive(prost::Message)] struct A;'
    catches src/domain/a.rs:1 "prost outside src/rpc/"
    plant src/domain/a.rs <<<'fn a(t: ::prost_types::Timestamp) {}'
    catches src/domain/a.rs:1 "prost_types outside src/rpc/"
    plant src/rpc/a.rs < <(printf '\n/* two\nlines */ fn a() { redis::cmd("PING"); }\n')
    catches src/rpc/a.rs:3 "redis outside src/store/"
    plant src/rpc/a.rs <<<'const U: &str = "redis://x"; fn a() { redis::cmd("PING"); }'
    catches src/rpc/a.rs:1 "redis outside src/store/"
    plant src/coordinator/a.rs <<<'use redis;'
    catches src/coordinator/a.rs:1 "redis outside src/store/"
    plant src/coordinator/a.rs <<<'extern crate redis as r;'
    catches src/coordinator/a.rs:1 "redis outside src/store/"
    plant src/coordinator/a.rs < <(printf 'use {\n    std::fmt,\n    bb8::Pool,\n};\n')
    catches src/coordinator/a.rs:3 "bb8 outside src/store/"
    plant src/ledger/a.rs <<<'use bb8_redis::RedisConnectionManager;'
    catches src/ledger/a.rs:1 "bb8_redis outside src/store/"
    plant src/store/a.rs <<<'use tokio_postgres::Client;'
    catches src/store/a.rs:1 "tokio_postgres outside src/ledger/"
    plant src/app.rs <<<'fn a() { sqlx::query("x"); }'
    catches src/app.rs:1 "sqlx outside src/ledger/"
    plant src/app.rs <<<'use deadpool_postgres::Pool;'
    catches src/app.rs:1 "deadpool_postgres outside src/ledger/"

    plant src/store/a.rs <<<'use prometheus_client::registry::Registry;'
    catches src/store/a.rs:1 "prometheus_client outside src/metrics/"

    plant src/telemetry.rs <<<'use opentelemetry_sdk::trace::SdkTracerProvider;'
    catches src/telemetry.rs:1 "opentelemetry_sdk outside src/trace/"

    # SQL outside the ledger.
    plant src/store/a.rs <<<'const Q: &str = "SELECT key FROM claims WHERE tenant = $1";'
    catches src/store/a.rs:1 "SQL outside src/ledger/"
    plant src/coordinator/a.rs < <(printf 'const Q: &str = r#"\n    INSERT INTO claims VALUES (1)\n"#;\n')
    catches src/coordinator/a.rs:2 "SQL outside src/ledger/"
    plant src/coordinator/a.rs < <(printf 'const Q: &str = "\n    SELECT key\n      FROM claims";\n')
    catches src/coordinator/a.rs:2 "SQL outside src/ledger/"
    plant src/cli/a.rs <<<'const Q: &str = "UPDATE claims SET state = 1";'
    catches src/cli/a.rs:1 "SQL outside src/ledger/"
    plant src/app.rs <<<'const Q: &str = include_str!("../migrations/0001_claims.sql");'
    catches src/app.rs:1 "SQL outside src/ledger/"

    # Arrows that point back, or across.
    plant src/cli/a.rs <<<'fn main() { claimlock::main::run() }'
    catches src/cli/a.rs:1 "cli must not use crate::main"
    plant src/app.rs <<<'use crate::cli::Serve;'
    catches src/app.rs:1 "app must not use crate::cli"
    plant src/rpc/a.rs <<<'fn a() { crate::app::run() }'
    catches src/rpc/a.rs:1 "rpc must not use crate::app"
    plant src/rpc/a.rs <<<'use crate::config::Settings;'
    catches src/rpc/a.rs:1 "rpc must not use crate::config"
    plant src/coordinator/a.rs <<<'use crate::rpc::status;'
    catches src/coordinator/a.rs:1 "coordinator must not use crate::rpc"
    plant src/coordinator/a.rs <<<'use crate::telemetry;'
    catches src/coordinator/a.rs:1 "coordinator must not use crate::telemetry"
    plant src/store/a.rs < <(printf 'use crate::{\n    domain::Key,\n    coordinator::{Claims, Locks},\n};\n')
    catches src/store/a.rs:3 "store must not use crate::coordinator"
    plant src/store/a.rs <<<'use crate::ledger::Row;'
    catches src/store/a.rs:1 "store must not use crate::ledger"
    plant src/ledger/a.rs <<<'pub(in crate::store) fn a() {}'
    catches src/ledger/a.rs:1 "ledger must not use crate::store"
    plant src/domain/a.rs <<<'use crate::store::Pool;'
    catches src/domain/a.rs:1 "domain must not use crate::store"
    plant src/domain/a.rs <<<'use super::super::store::Pool;'
    catches src/domain/a.rs:1 "domain must not use crate::store"
    plant src/domain/mod.rs <<<'use super::{config};'
    catches src/domain/mod.rs:1 "domain must not use crate::config"
    plant src/domain/a.rs <<<'use crate::*;'
    catches src/domain/a.rs:1 "crate::* is not in a layer"
    plant src/domain/a.rs <<<'macro_rules! a { () => { $crate::rpc::status() } }'
    catches src/domain/a.rs:1 "domain must not use crate::rpc"
    plant src/metrics/a.rs <<<'use crate::store::Store;'
    catches src/metrics/a.rs:1 "metrics must not use crate::store"
    plant src/trace/a.rs <<<'use crate::rpc::status;'
    catches src/trace/a.rs:1 "trace must not use crate::rpc"
    plant src/config.rs <<<'use crate::app;'
    catches src/config.rs:1 "config must not use crate::app"
    plant src/telemetry.rs <<<'use crate::rpc;'
    catches src/telemetry.rs:1 "telemetry must not use crate::rpc"

    # A module that is on no map.
    plant src/utils.rs <<<'fn a() {}'
    catches src/utils.rs:1 "no such layer: utils"

    # No code, no verdict.
    rm -rf "$tree/src"
    if check "$tree" 2>/dev/null; then
        echo "a tree without src/ passed" >&2
        failures=$((failures + 1))
    fi

    if [[ $failures -gt 0 ]]; then
        echo "layers: self-test failed, $failures of $seeded" >&2
        return 1
    fi
    echo "layers: self-test passed, $seeded seeded trees"
}

case ${1:-} in
--self-test) self_test ;;
-*)
    echo "usage: $0 [--self-test | ROOT]" >&2
    exit 2
    ;;
*)
    check "${1:-$here}"
    echo "layers: ok"
    ;;
esac
