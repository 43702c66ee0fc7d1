#!/usr/bin/env bash
# Starts two API servers and the Cloud Map emulator, runs one controller per API server as a process on this machine, and
# prints the figures of docs/benchmarks.md on standard output, one line of JSON per figure.
#
# Usage: integration/bench.sh [--figures image,small,large,idle,memory,change,sustained] [--services 1000]
#                             [--endpoints 10] [--changes 300] [--idle 120] [--rate 100] [--sustained 120]
#
#   PROFILE=aws       the times of AWS: operations of one to three seconds, discovery that lags up to five
#   STREAM=off        leaders do not tell each other their endpoints: the registry alone
#   CONTROLLER=FILE   measure this binary instead of building one
#   LOGS=FOLDER       keep the logs of the controllers there
#   LOG=FILTER        what the controllers log [default: warn]
#
# Everything that it starts is in the testbed's control group. It ends with this script, or with the next run if this one
# is killed.
set -euo pipefail

# shellcheck source=integration/stages.sh
. "$(dirname "${BASH_SOURCE[0]}")/stages.sh"
arguments_check "$@"

testbed() { "$TESTBED" "$1" --apiservers-only "${@:2}" >&2; }

finish() {
	local status=$?
	trap - EXIT INT TERM
	if [ -n "${LOGS:-}" ] && [ -n "${TESTBED_STATE:-}" ]; then
		mkdir -p "$LOGS"
		cp "$TESTBED_STATE"/host/*.log "$LOGS" || true
	elif [ "$status" -gt 1 ] || [ "$status" -ne 0 ] && [ -z "${MEASURED:-}" ]; then
		tail -n 20 "${TESTBED_STATE:-/nonexistent}"/host/*.log >&2 || true
	fi
	[ -z "${WORK:-}" ] || rm -rf "$WORK"
	testbed down
	exit "$status"
}

# wait_for URL WHAT: waits until something answers at the URL.
wait_for() {
	curl --noproxy '*' --silent --fail --output /dev/null --max-time 5 --retry 60 --retry-delay 1 --retry-all-errors "$1" ||
		{ echo "$2 does not answer at $1" >&2; return 1; }
}

# start_controller NUMBER: starts the controller of that cluster. The allocator is set as in config/manager. The access
# key id equals the cluster id, so that the emulator can tell callers apart.
start_controller() {
	local id=bench-$1 context
	context=$(cut -d, -f"$1" <<<"$CONTEXTS")
	kubectl --context "$context" create namespace cloudmap-mcs-system >&2
	"$CONTROLLER" crds | kubectl --context "$context" apply --server-side -f - >&2
	kubectl --context "$context" wait --for condition=Established --timeout 60s crd --all >&2
	testbed run-host "controller-$1" -- env AWS_ACCESS_KEY_ID="$id" AWS_SECRET_ACCESS_KEY=emulator AWS_REGION=us-east-1 \
		AWS_EC2_METADATA_DISABLED=true AWS_CONFIG_FILE=/dev/null AWS_SHARED_CREDENTIALS_FILE=/dev/null NO_PROXY='*' \
		MALLOC_ARENA_MAX=1 \
		"$CONTROLLER" run --log "${LOG:-warn}" --kubeconfig "$KUBECONFIG" --context "$context" \
		--cluster-id "$id" --clusterset-id bench --cloudmap-endpoint "$EMULATOR" --listen "$TESTBED_HOST_IP:871$1" \
		--stream "${STREAM:-auto}" --stream-addresses "$TESTBED_HOST_IP" --stream-port "794$1"
}

# member NUMBER: prints the cluster and its controller in the format that the benchmark expects.
member() {
	echo "id=bench-$1,context=$(cut -d, -f"$1" <<<"$CONTEXTS"),pid=$(cat "$TESTBED_STATE/host/controller-$1.pid"),admin=http://$TESTBED_HOST_IP:871$1"
}

main() {
	local built
	use_target
	built=$CARGO_TARGET_DIR/release
	build_release >&2
	# The binary that users get.
	[ -n "${CONTROLLER:-}" ] || build_dist >&2
	CONTROLLER=${CONTROLLER:-$CARGO_TARGET_DIR/dist/cloudmap-mcs}
	WORK=$(mktemp -d)
	trap finish EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM
	testbed down
	testbed up --clusters 2
	eval "$("$TESTBED" env --apiservers-only)"
	testbed image cloudmap-mcs:bench "$WORK/image.tar" "$CONTROLLER"
	gzip --keep "$WORK/image.tar"
	case ${PROFILE:-} in
	'') local times=(--call-latency 20ms --operation-latency 100ms) ;;
	aws) local times=(--aws-times) ;;
	*) fail "PROFILE is '$PROFILE'; there is aws, and without it 20 ms a call and 100 ms an operation" ;;
	esac
	EMULATOR=http://$TESTBED_HOST_IP:8700
	testbed run-host emulator -- "$built/cloudmap-emulator" --listen "$TESTBED_HOST_IP:8700" \
		"${times[@]}" --max-instances-per-namespace 100000
	wait_for "$EMULATOR/_emulator/health" "the emulator"
	start_controller 1
	start_controller 2
	wait_for "http://$TESTBED_HOST_IP:8711/readyz" "the controller of cluster 1"
	wait_for "http://$TESTBED_HOST_IP:8712/readyz" "the controller of cluster 2"
	MEASURED=yes
	"$built/bench" --emulator "$EMULATOR" --exporter "$(member 1)" --importer "$(member 2)" \
		--stream "${STREAM:-auto}" --image "$WORK/image.tar" --compressed-image "$WORK/image.tar.gz" --binary "$CONTROLLER" "$@"
}

main "$@"
