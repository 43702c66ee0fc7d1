#!/usr/bin/env bash
# All tests (`make test`): first `make check`, then the other tests on this machine, then those on four real clusters.
#
# Usage: integration/test.sh
#
#   CONTEXTS=a,b[,c]  run the conformance suite and the end-to-end tests on clusters one has: see clusters.sh;
#                     CLOUDMAP_ENDPOINT must then name an emulator that both the pods and this machine reach
#   TESTS=...         only the checks and end-to-end tests whose names contain this, and no others
#   SUITES=name       only this suite on clusters, conformance or e2e, and nothing else
#   KUBERNETES=1.30   clusters of this version: see the testbed's README.md
#   THREADS=n         so many of them at once
#   REPORT=path       the conformance report is written to <path>.md and <path>.json
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. integration/stages.sh
arguments_check "$@"
. integration/clusters.sh

clusters_check
[ -z "$GIVEN_CONTEXTS" ] || [ -n "${CLOUDMAP_ENDPOINT:-}" ] ||
	fail "tests look into the emulator: CLOUDMAP_ENDPOINT names it (cloudmap-emulator --listen), as the pods and this machine reach it"

finish() {
	local status=$?
	trap - EXIT INT TERM
	[ -z "$BESIDE" ] || kill -- "-$BESIDE" 2>/dev/null || true
	if [ "$status" -ne 0 ] && [ "${INTERRUPTED:-}" != yes ]; then
		clusters_logs
	fi
	clusters_down || true
	if [ "$status" -eq 0 ]; then
		printf '\n%sall tests passed%s in %s\n' "$BOLD" "$PLAIN" "$(elapsed)"
	else
		[ ! -s "$MCS_E2E_FAILURES" ] || { printf '\n%swhy scenarios failed%s\n\n' "$BOLD" "$PLAIN" && cat "$MCS_E2E_FAILURES"; }
		printf '\n%stests failed%s after %s\n' "$BOLD" "$PLAIN" "$(elapsed)"
	fi
	rm -f "$MCS_E2E_FAILURES" "$BESIDE_LOG"
	exit "$status"
}
MCS_E2E_FAILURES=$(mktemp)
BESIDE_LOG=$(mktemp)
BESIDE=
export MCS_E2E_FAILURES
trap finish EXIT
trap 'INTERRUPTED=yes; exit 130' INT
trap 'INTERRUPTED=yes; exit 143' TERM

use_target
export "${OFFLINE_AWS[@]}"
# The same features for all runs of cargo, so that nothing is compiled twice.
readonly CARGO_TEST=(cargo test --workspace --features cloudmap-mcs-integration/e2e)
# The pinned one, or where there is no testbed the one that one has.
if [ -z "${HELM:-}" ]; then
	if [ -z "$GIVEN_CONTEXTS" ]; then HELM=$("$TESTBED" peer helm); else HELM=$(type -P helm || echo skip); fi
fi
export HELM
PROMTOOL=${PROMTOOL:-$(promtool)}
[ -n "${LUA:-}" ] || type -P lua5.4 lua >/dev/null || packages lua5.4 || true
LUA=${LUA:-$(type -P lua5.4 || type -P lua || echo skip)}
export PROMTOOL LUA
# On clusters that one has, the page is looked at where there is a ChromeDriver.
if [ -z "${CHROMEDRIVER:-}" ]; then
	if [ -z "$GIVEN_CONTEXTS" ]; then CHROMEDRIVER=$(chromedriver); else CHROMEDRIVER=$(type -P chromedriver || echo skip); fi
fi
export CHROMEDRIVER

if [ -z "${TESTS:-}${SUITES:-}" ]; then
	integration/check.sh
	if [ -x integration/moto.sh ]; then
		MOTO_SERVER=$(integration/moto.sh)
		export MOTO_SERVER
	fi
fi

# All but the library's, which the check has run, and those on clusters, which come later.
other_tests() {
	local test tests=()
	for test in integration/tests/*; do
		test=$(basename "$test" .rs)
		case $test in conformance | e2e) ;; *) tests+=(--test "$test") ;; esac
	done
	"${CARGO_TEST[@]}" --no-fail-fast --bins "${tests[@]}" "$@"
}

stage "Compiling the other tests, and release builds of the controller, the emulator and the simulations"
"${CARGO_TEST[@]}" --test conformance --test e2e --no-run
[ -n "${TESTS:-}${SUITES:-}" ] || other_tests --no-run
build_release --bin cloudmap-mcs --bin cloudmap-emulator --bin ledger-simulation --bin controller-simulation
if [ -z "$GIVEN_CONTEXTS" ]; then
	MCS_E2E_EXTERNAL_DNS=$("$TESTBED" peer external-dns)
	MCS_E2E_AWS_MCS_CONTROLLER=$("$TESTBED" peer aws-mcs-controller)
	export MCS_E2E_EXTERNAL_DNS MCS_E2E_AWS_MCS_CONTROLLER
fi

# Only end-to-end tests need the cluster that has IPv6 only.
if [[ ${SUITES:-e2e} == *e2e* ]]; then clusters_up 4; else clusters_up 3; fi
stage "Cloud Map emulator and controller"
# Slow enough that what happens at once in memory does not hide what does not in AWS; quotas for a namespace a scenario.
registry_up "$CARGO_TARGET_DIR/release/cloudmap-emulator" --max-namespaces 1000 --call-latency 5ms-20ms \
	--operation-latency 100ms-300ms --replicas 2 --discovery-lag 0s-500ms
image_up "$CARGO_TARGET_DIR/release/cloudmap-mcs"
export PROGRAM=$CARGO_TARGET_DIR/release/cloudmap-mcs
controllers_install

tests_environment

# wanted TEST: whether there is a test of this name.
wanted() {
	# Into a variable first: grep ends at the first match, and cargo would fail at the closed pipe.
	local tests
	[ -z "${TESTS:-}" ] || { tests=$("${CARGO_TEST[@]}" --quiet --test "$1" -- --list) && grep -q -- "$TESTS" <<<"$tests"; }
}

# yield N: what this script starts lets the clusters go first, by so much. They are sessions of their own, and between
# sessions Linux heeds this where it groups processes by session, and otherwise only what `renice` says.
yield() {
	echo "$1" >/proc/self/autogroup
} 2>/dev/null

FAILED=
# The conformance suite mostly waits. What needs no cluster runs beside it.
if [ -z "${TESTS:-}${SUITES:-}" ]; then
	yield 10 || true
	# In a process group of their own, to be ended as one.
	set -m
	(
		failed=0
		stage "Adapter and emulator tests"
		renice -n 10 "$BASHPID" >/dev/null
		other_tests || failed=1
		"${CARGO_TEST[@]}" --no-fail-fast --doc || failed=1
		renice -n 19 "$BASHPID" >/dev/null
		stage "Simulations: the ledger's machines"
		"$CARGO_TARGET_DIR/release/ledger-simulation" --seeds 150 || failed=1
		stage "Simulations: whole controllers"
		"$CARGO_TARGET_DIR/release/controller-simulation" --seeds 40 || failed=1
		exit "$failed"
	) >"$BESIDE_LOG" 2>&1 </dev/null &
	BESIDE=$!
	set +m
fi

WANTED=
for suite in ${SUITES:-conformance e2e}; do
	if wanted "$suite"; then WANTED+=" $suite"; fi
done
if [ -z "$WANTED" ]; then
	echo "no test on clusters has \"$TESTS\" in its name" >&2
	exit 1
fi
if [[ $WANTED == *conformance* ]]; then
	stage "Conformance suite"
	export MCS_CONFORMANCE_DISRUPTIVE=1 MCS_CONFORMANCE_THREADS=${THREADS:-4} MCS_CONFORMANCE_REPORT=${REPORT:-$ROOT/target/conformance-report}
	"${CARGO_TEST[@]}" --quiet --test conformance -- ${TESTS:+"$TESTS"} || FAILED=yes
	echo "report: $MCS_CONFORMANCE_REPORT.md and .json"
fi
if [ -n "$BESIDE" ]; then
	wait "$BESIDE" || FAILED=yes
	BESIDE=
	yield 0 || true
	cat "$BESIDE_LOG"
fi
if [[ $WANTED == *e2e* ]]; then
	stage "End-to-end tests"
	# The scenarios themselves know which of them may run beside each other, and how many.
	export MCS_E2E_THREADS=${THREADS:-6}
	# Names in Cloud Map and ECS tasks need a network of our own, IP families a cluster of each kind; the chart's scenario
	# installs the controller anew.
	own_network=(--skip ecs:: --skip replaced:: --skip families:: --skip chart::)
	"${CARGO_TEST[@]}" --test e2e -- --test-threads=64 ${GIVEN_CONTEXTS:+"${own_network[@]}"} ${TESTS:+"$TESTS"} || FAILED=yes
fi
[ -z "$FAILED" ] || exit 1
