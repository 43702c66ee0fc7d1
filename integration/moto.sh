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

cache=$CLOUDMAP_MCS_CACHE
venv=$cache/moto-$version

if [[ ! -f $venv/complete ]]; then
    if ! command -v python3 >/dev/null || ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
        echo "moto.sh: python3 with venv is missing; installing the packages python3 and python3-venv" >&2
        if ! command -v apt-get >/dev/null; then
            echo "moto.sh: apt-get is missing: install Python 3 with venv yourself, or set MOTO_SERVER=skip to leave moto out" >&2
            exit 1
        fi
        root=()
        [[ $EUID -eq 0 ]] || root=(sudo)
        "${root[@]}" "${APT[@]}" update -q >&2 || echo "moto.sh: apt-get update failed; trying with the lists that are there" >&2
        "${root[@]}" env DEBIAN_FRONTEND=noninteractive "${APT[@]}" install -qy --no-install-recommends python3 python3-venv >&2
    fi
    mkdir -p "$cache"
    # One at a time: several test runs may share the cache.
    exec 9>"$venv.lock"
    flock 9
    if [[ ! -f $venv/complete ]]; then
        echo "moto.sh: installing moto $version" >&2
        rm -rf "$venv"
        python3 -m venv "$venv" >&2
        "$venv/bin/pip" install --quiet --disable-pip-version-check --retries 10 --timeout 60 "moto[server]==$version" >&2
        touch "$venv/complete"
    fi
fi

echo "$venv/bin/moto_server"
