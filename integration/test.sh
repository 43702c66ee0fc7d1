#!/usr/bin/env bash
# All tests (`make test`): the cheap ones first, then those on two real clusters.
#
#   CONTEXTS=a,b   run the end-to-end tests on clusters one has: see clusters.sh; CLOUDMAP_ENDPOINT must then name an
#                  emulator that both the pods and this machine reach
#   TESTS=...      only the end-to-end tests whose names contain this, and no others
#   THREADS=n      so many end-to-end tests at once
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. integration/stages.sh
. integration/clusters.sh

clusters_check
[ -z "$GIVEN_CONTEXTS" ] || [ -n "${CLOUDMAP_ENDPOINT:-}" ] ||
	fail "tests look into the emulator: CLOUDMAP_ENDPOINT names it (cloudmap-emulator --listen), as the pods and this machine reach it"

finish() {
	local status=$?
	trap - EXIT INT TERM
	if [ "$status" -ne 0 ] && [ "${INTERRUPTED:-}" != yes ]; then
		clusters_logs
	fi
	clusters_down || true
	[ "$status" -ne 0 ] || printf '\n%sall tests passed%s in %s\n' "$BOLD" "$PLAIN" "$(elapsed)"
	[ "$status" -eq 0 ] || printf '\n%stests failed%s after %s\n' "$BOLD" "$PLAIN" "$(elapsed)"
	exit "$status"
}
trap finish EXIT
trap 'INTERRUPTED=yes; exit 130' INT
trap 'INTERRUPTED=yes; exit 143' TERM

use_target
export "${OFFLINE_AWS[@]}"
# The same features for both runs of cargo, so that nothing is compiled twice.
readonly CARGO_E2E=(cargo test --workspace --features cloudmap-mcs-integration/e2e --test e2e)

if [ -z "${TESTS:-}" ]; then
	stage "Unit, property, simulation, adapter and emulator tests"
	if [ -x integration/moto.sh ]; then
		MOTO_SERVER=$(integration/moto.sh)
		export MOTO_SERVER
	fi
	cargo test --workspace --no-fail-fast
fi

stage "Compiling the end-to-end tests, and release builds of the controller and the emulator"
"${CARGO_E2E[@]}" --no-run
build_release

if [ -z "${TESTS:-}" ]; then
	stage "Simulation of the ledger, from the release build"
	"$CARGO_TARGET_DIR/release/ledger-simulation" --seeds 150
fi

clusters_up
stage "Cloud Map emulator and controller"
# Slow enough that what happens at once in memory does not hide what does not in AWS; quotas for a namespace a scenario.
registry_up "$CARGO_TARGET_DIR/release/cloudmap-emulator" --max-namespaces 1000 --call-latency 5ms-20ms \
	--operation-latency 100ms-300ms --replicas 2 --discovery-lag 0s-500ms
image_up "$CARGO_TARGET_DIR/release/cloudmap-mcs"
controller_install "$CONTEXT_1" cluster-1
controller_install "$CONTEXT_2" cluster-2

stage "End-to-end tests"
MCS_E2E_CONTEXTS=$CONTEXTS MCS_E2E_EMULATOR=$CLOUDMAP_ENDPOINT MCS_E2E_AGNHOST_IMAGE=${TESTBED_AGNHOST_IMAGE:-} \
	"${CARGO_E2E[@]}" -- --test-threads="${THREADS:-4}" ${GIVEN_CONTEXTS:+--skip ecs::} ${TESTS:+"$TESTS"}
