#!/usr/bin/env bash
# Shows weft's completion times next to those of the public simulator uet-htsim, for its own inputs.
set -euo pipefail
cd "$(dirname "$0")/.."

exec cargo test --profile ci --quiet -p weft --test reference_results -- --nocapture --include-ignored "$@"
