# What the benchmarks share (bench.sh, cutover-bench.sh): API servers without nodes, and what runs beside them. Sourced after
# stages.sh.
# shellcheck shell=bash disable=SC2034

readonly HOST_SCRIPT=$ROOT/integration/bench-host.sh

testbed() { "$TESTBED" "$1" --apiservers-only "${@:2}" >&2; }

# wait_for URL WHAT: waits until something answers at the URL.
wait_for() {
	curl --noproxy '*' --silent --fail --output /dev/null --max-time 30 --retry 120 --retry-delay 1 --retry-all-errors "$1" ||
		{ echo "$2 does not answer at $1" >&2; return 1; }
}

# crds_apply CONTEXT PROGRAM: the namespace of the controller, and the definitions that this program has.
crds_apply() {
	kubectl --context "$1" create namespace cloudmap-mcs-system >&2
	"$2" crds | kubectl --context "$1" apply --server-side -f - >&2
	kubectl --context "$1" wait --for condition=Established --timeout 300s crd --all >&2
}

# host_logs FAILED: keeps the logs of what ran beside the API servers in LOGS. Without that, prints their ends if FAILED is not
# empty.
host_logs() {
	if [ -n "${LOGS:-}" ] && [ -n "${TESTBED_STATE:-}" ]; then
		mkdir -p "$LOGS"
		cp "$TESTBED_STATE"/host/*.log "$LOGS" || true
	elif [ -n "$1" ]; then
		tail -n 20 "${TESTBED_STATE:-/nonexistent}"/host/*.log >&2 || true
	fi
}
