#!/usr/bin/env bash
# Holds the dependencies to deny.toml. Bans, licences and sources are always checked; advisories
# where their database can be fetched within a minute, and otherwise a line says that they were not.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cargo deny --locked check --deny unmatched-skip --deny unnecessary-skip bans licenses sources

# Fetched apart from the check, so that an advisory that was found is not mistaken for a network
# that is not there, nor the other way round.
if reason=$(GIT_TERMINAL_PROMPT=0 timeout --kill-after=5 60 cargo deny fetch db 2>&1 </dev/null); then
    cargo deny --locked --offline check advisories
else
    why=$(grep -m 1 -oE 'fatal: .*|error: .*' <<<"$reason" || true)
    echo "advisories NOT checked: their database could not be fetched (${why:-no answer within 60 s})"
fi
