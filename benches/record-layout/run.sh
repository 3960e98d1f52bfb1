#!/usr/bin/env bash
# Compares layouts for the record of a completed claim with a response of 200 bytes: bytes in Redis per claim, and
# script time per write and per read, all in one run on a server of its own. Prints ratios to the layout in use.
# Needs redis-server, redis-cli and redis-benchmark on PATH.
set -euo pipefail
cd "$(dirname "$0")"

# Bytes are taken over many keys. Times are taken in many short samples, in turn, and the best sample counts: whatever else
# the machine does meets all layouts alike.
readonly MANY=20000 FEW=1000 CALLS=10000 ROUNDS=12
dir=$(mktemp -d)
socket=$dir/redis.sock
redis-server --port 0 --unixsocket "$socket" --save '' --appendonly no --dir "$dir" --logfile "$dir/log" &
server=$!
trap 'kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; rm -rf "$dir"' EXIT
cli() { redis-cli -s "$socket" "$@"; }
for _ in $(seq 100); do [ "$(cli PING 2>/dev/null)" = PONG ] && break; sleep 0.05; done

fill() { # sha, how many keys
  for i in $(seq 0 $(($2 - 1))); do
    printf 'EVALSHA %s 2 cl:c:{default//%012d} cl:c:{default//%012d}:r write\n' "$1" "$i" "$i"
  done | cli >/dev/null
}
dataset() { cli INFO memory | tr -d '\r' | sed -n 's/^used_memory_dataset://p'; }

# Microseconds of script time per call, from the server's own statistics.
script_time() { # sha, what
  cli CONFIG RESETSTAT >/dev/null
  redis-benchmark -s "$socket" -q -n "$CALLS" -r "$FEW" -P 16 \
    EVALSHA "$1" 2 'cl:c:{default//__rand_int__}' 'cl:c:{default//__rand_int__}:r' "$2" >/dev/null
  cli INFO commandstats | sed -n 's/^cmdstat_evalsha:.*usec_per_call=\([0-9.]*\).*/\1/p'
}

layouts=(one-hash hash-and-response json packed-by-name packed-in-order packed-by-index)
declare -A bytes write read
for layout in "${layouts[@]}"; do
  sha=$(cli SCRIPT LOAD "$(cat record.lua "$layout.lua")")
  cli FLUSHALL >/dev/null
  before=$(dataset)
  fill "$sha" "$MANY"
  bytes[$layout]=$((($(dataset) - before) / MANY))
done
for _ in $(seq "$ROUNDS"); do
  for layout in "${layouts[@]}"; do
    sha=$(cli SCRIPT LOAD "$(cat record.lua "$layout.lua")")
    cli FLUSHALL >/dev/null
    fill "$sha" "$FEW"
    for what in write read; do
      took=$(script_time "$sha" "$what")
      declare -n best=$what
      if [ -z "${best[$layout]:-}" ] || awk "BEGIN { exit !($took < ${best[$layout]}) }"; then best[$layout]=$took; fi
    done
  done
done

used=packed-by-index
cli INFO server | tr -d '\r' | sed -n 's/^redis_version:/Redis /p'
printf '%-20s %8s %8s %10s %8s %10s %8s\n' layout bytes ratio 'write µs' ratio 'read µs' ratio
for layout in "${layouts[@]}"; do
  ratio() { awk "BEGIN { printf \"%.2f\", $1 / $2 }"; }
  printf '%-20s %8s %8s %10s %8s %10s %8s\n' "$layout" \
    "${bytes[$layout]}" "$(ratio "${bytes[$layout]}" "${bytes[$used]}")" \
    "${write[$layout]}" "$(ratio "${write[$layout]}" "${write[$used]}")" \
    "${read[$layout]}" "$(ratio "${read[$layout]}" "${read[$used]}")"
done
