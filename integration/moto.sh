#!/usr/bin/env bash
# Installs moto, the Python mock of AWS that the emulator is compared with, into a virtual environment in the cache
# folder, unless it is already installed. Prints the path of moto_server on standard output, and all else on standard
# error.
#
# Usage: integration/moto.sh
set -euo pipefail
# shellcheck source=integration/stages.sh
. "$(dirname "${BASH_SOURCE[0]}")/stages.sh"
arguments_check "$@"

version=5.2.5 # The first release with all 30 operations of Cloud Map.

tools=$(python_tools "moto-$version" "moto[server]==$version") || fail "MOTO_SERVER=skip leaves moto out"
echo "$tools/moto_server"
