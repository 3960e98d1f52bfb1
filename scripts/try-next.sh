#!/usr/bin/env bash
# What `make run` prints before it serves.
set -euo pipefail

cat <<'HINT'

Claimlock serves until Ctrl-C. Its first line says where: unless set otherwise, gRPC on
127.0.0.1:7420, health on 127.0.0.1:7421. Try next, in another terminal:

  curl http://127.0.0.1:7421/readyz

A first claim (make the same call twice, and the second is told that it is in flight):

  target/release/claimlock claim try-1 --operation 'POST /v1/charges'

More is in docs/first-five-minutes.md.

HINT
