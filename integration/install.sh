#!/usr/bin/env bash
# Installs the controller in one cluster as a user does, with `kubectl apply -k`, and prints every command.
#
# Usage: integration/install.sh CONTEXT CLUSTER_ID CLUSTERSET_ID IMAGE [CLOUDMAP_ENDPOINT]
#
# With an endpoint, the controller uses the emulator there, which accepts any credentials. Without one, it uses AWS in
# AWS_REGION, and its service account must have a role (README.md). If the cluster already has ids, they are kept.
#
#   PROGRAM=FILE  cloudmap-mcs on this machine, for `coredns apply`; without it one is built
set -euo pipefail
# shellcheck source=integration/stages.sh
. "$(dirname "${BASH_SOURCE[0]}")/stages.sh"
arguments_check "$@"
cd "$ROOT"

[ $# -ge 4 ] || misused "it takes four arguments or five"
readonly CONTEXT=$1 CLUSTER_ID=$2 CLUSTERSET_ID=$3 IMAGE=$4 ENDPOINT=${5:-} REGION=${AWS_REGION:-eu-central-1}
[[ $IMAGE == ?*:?* ]] || fail "'$IMAGE' is not an image: write name:tag"

if [ -z "${PROGRAM:-}" ]; then
	use_target
	build_release --bin cloudmap-mcs
	PROGRAM=$CARGO_TARGET_DIR/release/cloudmap-mcs
fi

# This folder is next to the overlay that it extends, because kustomize accepts relative paths only.
work=$(mktemp -d "$ROOT/integration/.install.XXXXXX")
trap 'rm -rf "$work"' EXIT

# run CMD...: prints a command and runs it; its output is shown only if it fails.
run() {
	printf '%s$ %s%s\n' "$DIM" "$*" "$PLAIN"
	"$@" >"$work/output" 2>&1 && return
	cat "$work/output" >&2
	fail "failed: $*"
}

in_cluster() { run kubectl --context "$CONTEXT" "$@"; }

# ---- Who the cluster is. First of all: a controller that starts without ids takes others, and has to move later. -------

in_cluster apply --server-side -k config/crd
in_cluster wait --timeout 300s --for condition=Established crd/clusterproperties.about.k8s.io \
	crd/serviceexports.multicluster.x-k8s.io crd/serviceimports.multicluster.x-k8s.io \
	crd/clusterimportpolicies.cloudmap-mcs.io crd/cutovers.cloudmap-mcs.io

# The API server serves a new kind before it lists it, and kubectl knows only what is listed.
for attempt in {1..60}; do
	! kubectl --context "$CONTEXT" get clusterproperties >"$work/output" 2>&1 || break
	[ "$attempt" -lt 60 ] || fail "the cluster has no ClusterProperties: $(cat "$work/output")"
	sleep 2
done

# property NAME VALUE
property() {
	local kept
	if kept=$(kubectl --context "$CONTEXT" get clusterproperty "$1" -o 'jsonpath={.spec.value}' 2>/dev/null); then
		[ "$kept" = "$2" ] || echo "the ClusterProperty $1 is already '$kept', and stays so"
		return
	fi
	printf 'apiVersion: about.k8s.io/v1beta1\nkind: ClusterProperty\nmetadata: {name: %s}\nspec: {value: "%s"}\n' "$1" "$2" >"$work/property.yaml"
	sed "s/^/${DIM}  | /; s/\$/$PLAIN/" "$work/property.yaml"
	in_cluster create -f "$work/property.yaml"
}
property cluster.clusterset.k8s.io "$CLUSTER_ID"
property clusterset.k8s.io "$CLUSTERSET_ID"

# ---- The controller, by the overlay that a user writes: config/default with an image and settings --------------------

mkdir "$work/overlay"
cat >"$work/overlay/kustomization.yaml" <<YAML
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
namespace: cloudmap-mcs-system
resources:
- $([ -n "$ENDPOINT" ] && echo ../../install || echo ../../../config/default)
images:
- name: cloudmap-mcs
  newName: "${IMAGE%:*}"
  newTag: "${IMAGE##*:}"
configMapGenerator:
- name: cloudmap-mcs-config
  literals:
  - CLOUDMAP_MCS_REGION=$REGION
YAML
[ -z "$ENDPOINT" ] || cat >>"$work/overlay/kustomization.yaml" <<YAML
  - CLOUDMAP_MCS_CLOUDMAP_ENDPOINT=$ENDPOINT
secretGenerator:
- name: cloudmap-mcs-emulator
  behavior: merge
  literals:
  # The emulator counts calls by access key id.
  - AWS_ACCESS_KEY_ID=$CLUSTER_ID
YAML
sed "s/^/${DIM}  | /; s/\$/$PLAIN/" "$work/overlay/kustomization.yaml"
in_cluster apply -k "$work/overlay"

# ---- CoreDNS, as described in coredns/README.md (also for the managed add-on of EKS) ----------------------------------

printf '%s$ cloudmap-mcs coredns apply --no-wait --context %s%s\n' "$DIM" "$CONTEXT" "$PLAIN"
# What comes after it waits for names by itself.
"$PROGRAM" coredns apply --no-wait --context "$CONTEXT" >"$work/output" || fail "CoreDNS does not answer for clusterset.local: see above, and coredns/README.md"
sed "s/^/${DIM}  | /; s/\$/$PLAIN/" "$work/output"

in_cluster -n cloudmap-mcs-system rollout status deployment/cloudmap-mcs --timeout 600s
