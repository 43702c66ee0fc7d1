# Provides clusters that run the controller: the testbed with the emulator, or existing clusters. Scripts source this file
# after stages.sh.
#
#   CONTEXTS=a,b[,c]     contexts of the kubeconfig, instead of the testbed; their pods must reach each other
#   IMAGE=name:tag       the controller's image, where the clusters' nodes can pull it (needed with CONTEXTS)
#   CLOUDMAP_ENDPOINT    a Cloud Map that the pods reach, such as an emulator; without it, with CONTEXTS: AWS itself
#   AWS_REGION           the region of AWS (needed with CONTEXTS and without CLOUDMAP_ENDPOINT)
# shellcheck shell=bash

readonly CLUSTERSET_ID=${CLUSTERSET_ID:-demo}
readonly SYSTEM_NAMESPACE=cloudmap-mcs-system
GIVEN_CONTEXTS=${CONTEXTS:-}
# `eval "$(testbed env)"` sets CONTEXTS in the user's shell. The testbed does not count as existing clusters.
[ -z "${TESTBED_SLOT:-}" ] || GIVEN_CONTEXTS=

# clusters_check: reports at once what is missing, and what to do instead. Without CONTEXTS, the clusters are this script's alone.
clusters_check() {
	local context output
	if [ -z "$GIVEN_CONTEXTS" ]; then
		[ "$(uname -s)" = Linux ] || fail "clusters of our own need Linux; this is $(uname -s). Instead, name two contexts of your kubeconfig
whose clusters' pods reach each other (kind, EKS):
  CONTEXTS=a,b IMAGE=registry.example/cloudmap-mcs:0.1.0 CLOUDMAP_ENDPOINT=http://... make demo"
		output=$("$TESTBED" check 2>&1) || {
			printf '%s\n' "$output" >&2
			exit 1
		}
		alone clusters
		return
	fi
	need kubectl "kubectl 1.32 or later (https://kubernetes.io/docs/tasks/tools)" \
		cargo "a Rust toolchain (https://rustup.rs)" cc "a C compiler" curl curl
	contexts_check
	[ -n "${IMAGE:-}" ] || fail "with CONTEXTS, IMAGE names the controller's image where the nodes can pull it (see Dockerfile), as in
  IMAGE=registry.example/cloudmap-mcs:0.1.0 CONTEXTS=$GIVEN_CONTEXTS make demo"
	[ -n "${CLOUDMAP_ENDPOINT:-}${AWS_REGION:-}" ] || fail "with CONTEXTS, either CLOUDMAP_ENDPOINT names an emulator that the pods reach (cloudmap-emulator --listen), or
AWS_REGION names the region of AWS, where the controller's service account has a role (see README.md)"
}

# contexts_check: checks that CONTEXTS names two or three clusters and that they answer.
contexts_check() {
	local context
	[[ $GIVEN_CONTEXTS =~ ^[^,]+,[^,]+(,[^,]+)?$ ]] || fail "CONTEXTS takes two or three contexts of your kubeconfig, as in CONTEXTS=kind-a,kind-b"
	for context in ${GIVEN_CONTEXTS//,/ }; do
		kubectl --context "$context" get --raw /readyz >/dev/null || fail "the context '$context' does not answer (kubectl --context $context get nodes)"
	done
}

# clusters_up N: sets KUBECONFIG, CONTEXTS, IPV6_CONTEXT, EVERY_CONTEXT, and CONTEXT_1 and CONTEXT_2, the first two of them.
clusters_up() {
	if [ -z "$GIVEN_CONTEXTS" ]; then
		stage "$1 Kubernetes clusters (the first time, compiling Kubernetes takes some minutes)"
		# Starts afresh: the objects and the registry of an earlier run would be part of this one.
		"$TESTBED" down
		"$TESTBED" up --clusters "$1"
		eval "$("$TESTBED" env)"
	fi
	export CONTEXTS
	# Only the testbed has a cluster with IPv6 only. It does not reach all others, so it is not one of CONTEXTS.
	[ -n "$GIVEN_CONTEXTS" ] || IPV6_CONTEXT=$TESTBED_IPV6_CONTEXT
	IFS=, read -ra EVERY_CONTEXT <<<"$CONTEXTS${IPV6_CONTEXT:+,$IPV6_CONTEXT}"
	CONTEXT_1=${EVERY_CONTEXT[0]}
	# shellcheck disable=SC2034 # the demo's
	CONTEXT_2=${EVERY_CONTEXT[1]}
}

# registry_up EMULATOR [FLAG...]: starts the emulator beside the testbed; sets CLOUDMAP_ENDPOINT.
registry_up() {
	local emulator=$1 host listen=()
	shift
	[ -z "$GIVEN_CONTEXTS" ] || return 0
	for host in "$TESTBED_HOST_IP" "[$TESTBED_HOST_IP6]"; do
		listen+=(--listen "$host:8700" --dns-listen "$host:5300" --resolver-listen "$host:53")
	done
	"$TESTBED" run-host cloudmap-emulator -- "$emulator" "${listen[@]}" --region eu-central-1 "$@"
	CLOUDMAP_ENDPOINT=http://$TESTBED_HOST_IP:8700
	curl --silent --show-error --fail --retry 60 --retry-delay 1 --retry-connrefused --max-time 30 \
		--output /dev/null "$CLOUDMAP_ENDPOINT/_emulator/health" || fail "the emulator does not answer at $CLOUDMAP_ENDPOINT"
	export CLOUDMAP_ENDPOINT
}

# other_registry_up EMULATOR [FLAG...]: starts another one beside it, as that of another region; sets OTHER_CLOUDMAP_ENDPOINT.
other_registry_up() {
	local emulator=$1
	shift
	[ -z "$GIVEN_CONTEXTS" ] || return 0
	"$TESTBED" run-host cloudmap-emulator-elsewhere -- "$emulator" --listen "$TESTBED_HOST_IP:8701" --region us-east-1 "$@"
	OTHER_CLOUDMAP_ENDPOINT=http://$TESTBED_HOST_IP:8701
	export OTHER_CLOUDMAP_ENDPOINT
}

# image_up BINARY: puts an image of the controller on every node; sets IMAGE.
image_up() {
	local tar
	[ -z "$GIVEN_CONTEXTS" ] || return 0
	# The tag depends on the content, so that a running testbed takes the new image.
	IMAGE=cloudmap-mcs:$(sha256sum "$1" | cut -c1-12)
	tar=$TESTBED_STATE/cloudmap-mcs.tar
	"$TESTBED" image "$IMAGE" "$tar" "$1"
	"$TESTBED" load-image "$tar"
	rm -f "$tar"
	export IMAGE
}

# controller_install CONTEXT CLUSTER_ID; PROGRAM is cloudmap-mcs on this machine, see install.sh.
controller_install() {
	local endpoint=${CLOUDMAP_ENDPOINT:-}
	if [ "$1" = "${IPV6_CONTEXT:-}" ]; then endpoint=http://[$TESTBED_HOST_IP6]:8700; fi
	"$ROOT/integration/install.sh" "$1" "$2" "$CLUSTERSET_ID" "$IMAGE" "$endpoint"
}

# controllers_install: installs the controller in every cluster, with the ids cluster-1, cluster-2 and so on.
controllers_install() {
	local n installs=() install
	for n in "${!EVERY_CONTEXT[@]}"; do
		controller_install "${EVERY_CONTEXT[n]}" "cluster-$((n + 1))" 2>&1 | sed -u "s/^/[${EVERY_CONTEXT[n]}] /" &
		installs+=($!)
	done
	for install in "${installs[@]}"; do wait "$install"; done
}

# tests_environment: sets the variables that tests on clusters read; see integration/src/scenario/mod.rs.
tests_environment() {
	export MCS_E2E_CONTEXTS=$CONTEXTS MCS_E2E_IPV6_CONTEXT=${IPV6_CONTEXT:-} MCS_E2E_EMULATOR=${CLOUDMAP_ENDPOINT:-} MCS_E2E_OTHER_EMULATOR=${OTHER_CLOUDMAP_ENDPOINT:-} MCS_E2E_AGNHOST_IMAGE=${TESTBED_AGNHOST_IMAGE:-}
	export MCS_E2E_DNS_HOST=${TESTBED_HOST_IP:-}
}

# conformance_environment: sets the variables of the conformance suite that do not say which checks run.
conformance_environment() {
	export MCS_CONFORMANCE_THREADS=${THREADS:-4} MCS_CONFORMANCE_REPORT=${REPORT:-$ROOT/target/conformance-report}
	# Without tags, only the commit: abc1234, or abc1234-dirty.
	MCS_CONFORMANCE_COMMIT=$(git -C "$ROOT" describe --always --dirty --exclude '*' 2>/dev/null || echo unknown)
	export MCS_CONFORMANCE_COMMIT
}

# clusters_logs: prints the last log lines of the controllers and of the emulator, to analyse a failure.
clusters_logs() {
	local context pod
	[ -n "${CONTEXT_1:-}" ] || return 0
	stage "What the controllers said"
	for context in "${EVERY_CONTEXT[@]}"; do
		printf '\n--- %s: pods and events of %s\n' "$context" "$SYSTEM_NAMESPACE"
		kubectl --context "$context" --request-timeout 10s -n "$SYSTEM_NAMESPACE" get pods -o wide || true
		kubectl --context "$context" --request-timeout 10s -n "$SYSTEM_NAMESPACE" get events --sort-by .lastTimestamp 2>/dev/null | tail -n 15 || true
		for pod in $(kubectl --context "$context" --request-timeout 10s -n "$SYSTEM_NAMESPACE" get pods -o name 2>/dev/null); do
			printf -- '--- %s: end of the log of %s\n' "$context" "$pod"
			kubectl --context "$context" --request-timeout 10s -n "$SYSTEM_NAMESPACE" logs --tail 60 "$pod" 2>&1 || true
			kubectl --context "$context" --request-timeout 10s -n "$SYSTEM_NAMESPACE" logs --tail 30 --previous "$pod" 2>/dev/null || true
		done
	done
	if [ -z "$GIVEN_CONTEXTS" ] && [ -f "$TESTBED_STATE/host/cloudmap-emulator.log" ]; then
		printf -- '--- end of the log of the emulator\n'
		tail -n 20 "$TESTBED_STATE/host/cloudmap-emulator.log"
	fi
}

clusters_down() {
	if [ -z "$GIVEN_CONTEXTS" ]; then
		"$TESTBED" down
	fi
}
