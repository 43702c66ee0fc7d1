#!/usr/bin/env bash
# Tries changed inputs on everything that decodes what others wrote, each target for some time, on all cores (`make fuzz`), and
# prints a row for each; or, with arguments, with these. The first input that fails is printed with the command that replays
# it, and the script fails.
#
# Usage: integration/fuzz.sh [--target NAME] [--seconds N] [--inputs N] [--seed SEED]
#        integration/fuzz.sh --target NAME --seed SEED --number N
#
#   SECONDS_EACH=n   seconds of each target [default: 600]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. integration/stages.sh
arguments_check "$@"
use_target
build_release --quiet --bin fuzz

if [ $# -gt 0 ]; then
	exec "$CARGO_TARGET_DIR/release/fuzz" "$@"
fi
exec "$CARGO_TARGET_DIR/release/fuzz" --seconds "${SECONDS_EACH:-600}"
