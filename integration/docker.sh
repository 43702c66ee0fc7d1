#!/usr/bin/env bash
# Docker and kind really (`SUITES=docker make test`): builds both targets of the Dockerfile for both architectures, and runs
# `make kind-quickstart` and `make kind-quickstart-down` with an engine of its own, which disturbs no other one.
# docs/testing.md says what differs from the images that people have.
#
# Usage: integration/docker.sh [up]
#
#   up    only starts the engine with all images; the next run ends it. By hand then, as it prints
#
#   ARCHITECTURES=amd64   the architectures for which the images are built [default: amd64 arm64]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. integration/stages.sh
. integration/observe.sh
arguments_check "$@"
. integration/docker/engine.sh
. integration/docker/bases.sh
. integration/docker/node.sh
case ${1:-} in '' | up) ;; *) misused "there is no command '$1'" ;; esac
output=$("$TESTBED" check 2>&1) || {
	printf '%s\n' "$output" >&2
	exit 1
}

finish() {
	local status=$1
	if [ "$status" -ne 0 ] && [ "${INTERRUPTED:-}" != yes ] && [ -f "$ENGINE_STATE/engine.log" ]; then
		printf -- '--- end of the log of the engine of Docker\n'
		tail -n 20 "$ENGINE_STATE/engine.log"
	fi
	engine_down
	if [ "$status" -eq 0 ]; then
		printf '\n%sthe tests with Docker and kind passed%s in %s\n' "$BOLD" "$PLAIN" "$(elapsed)"
	else
		printf '\n%sthe tests with Docker and kind failed%s after %s\n' "$BOLD" "$PLAIN" "$(elapsed)"
	fi
}

# image_checks TARGET ARCHITECTURE IMAGE: the image is for that architecture, runs as nobody's user, has no shell, and its
# program is for that architecture, too.
image_checks() {
	local facts container machine program=/usr/local/bin/cloudmap-mcs work
	[ "$1" = controller ] || program=/usr/local/bin/cloudmap-emulator
	facts=$(in_engine docker image inspect --format '{{.Architecture}} {{.Config.User}} {{json .Config.Entrypoint}}' "$3")
	[ "$facts" = "$2 65532:65532 [\"$program\"]" ] || fail "$3 should be for $2, run as 65532:65532 and begin $program; it is: $facts"
	work=$(mktemp -d)
	container=$(in_engine docker create "$3")
	in_engine docker export "$container" | tar -C "$work" -xf - "${program#/}" LICENSE
	! in_engine docker cp "$container:/bin/sh" - >/dev/null 2>&1 || fail "$3 has a shell"
	in_engine docker rm "$container" >/dev/null
	case $2 in amd64) machine=X86-64 ;; *) machine=AArch64 ;; esac
	LC_ALL=C readelf --file-header "$work$program" | grep -q "Machine:.*$machine" || fail "the program of $3 is not for $2"
	rm -rf "$work"
	ok "the image of the $1 for $2 has its program for $2, the user 65532, the licence, and no shell"
}

# images_build ARCHITECTURE: both targets of the Dockerfile.
images_build() {
	local target
	base_take "$BASES" "$1"
	for target in controller emulator; do
		stage "The Dockerfile: $target for $1 (the first time, many minutes)"
		DOCKER_BUILDKIT=1 in_engine docker build --quiet --platform "linux/$1" --target "$target" --tag "test/$target:$1" . >/dev/null
		image_checks "$target" "$1" "test/$target:$1"
	done
}

engine_lock
stage "An engine of Docker, kind, and images to begin with"
finally finish
engine_tools
engine_up
bases_up
node_up
NATIVE=$(in_engine docker version --format '{{.Server.Arch}}')
if [ "${1:-}" = up ]; then
	trap - EXIT
	cat <<TEXT
the engine runs. To use it:  nsenter --net=/run/netns/$ENGINE_NETWORK
  export DOCKER_HOST=unix://$ENGINE_STATE/docker.sock KIND_IMAGE=$KIND_IMAGE KUBECONFIG=$ENGINE_STATE/kubeconfig
  export PATH=$ENGINE/bin:$ENGINE/root/usr/bin:\$PATH
TEXT
	exit
fi
for architecture in ${ARCHITECTURES:-arm64 amd64}; do images_build "$architecture"; done
base_take "$BASES" "$NATIVE"

stage "The programs of the images"
show in_engine docker run --rm "test/controller:$NATIVE" --version
show in_engine docker run --rm "test/emulator:$NATIVE" --version

stage "make kind-quickstart"
in_engine make kind-quickstart
ok "make kind-quickstart succeeds"
stage "make kind-quickstart once more"
in_engine make kind-quickstart
ok "a second run takes what is there"
stage "make kind-quickstart-down"
in_engine make kind-quickstart-down
left=$(in_engine docker ps --all --format '{{.Names}}')
[ -z "$left" ] || fail "make kind-quickstart-down left containers: $left"
ok "make kind-quickstart-down leaves no container"
