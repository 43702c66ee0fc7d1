#!/usr/bin/env bash
# `make demo`: two clusters, the controller, and what it does, step by step. Every step is checked.
#
# Usage: integration/demo.sh
#
#   KEEP=1               leave everything running at the end
#   CONTEXTS=a,b         two existing clusters (kind, EKS) instead of two on this machine. clusters.sh describes the
#                        other settings that are then needed (IMAGE, CLOUDMAP_ENDPOINT or AWS_REGION). Steps with an ECS
#                        task are left out, because its host is a part of this machine's network
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. integration/stages.sh
arguments_check "$@"
. integration/clusters.sh
. integration/observe.sh

readonly NAMESPACE=example SERVICE=my-service
readonly NAME=$SERVICE.$NAMESPACE.svc.clusterset.local
STEP=0

# ---- How the demo talks, runs and checks -----------------------------------------------------------------------------

# step TITLE: a numbered heading.
step() {
	STEP=$((STEP + 1))
	printf '\n%s== [%s] %d. %s%s\n' "$BOLD" "$(elapsed)" "$STEP" "$1" "$PLAIN"
}

# tell TEXT...: explains something to the reader, one argument per line.
tell() { printf '%s\n' "$@"; }

one() { kubectl --context "$CONTEXT_1" "$@"; }
two() { kubectl --context "$CONTEXT_2" "$@"; }
show_one() { show kubectl --context "$CONTEXT_1" "$@"; }
show_two() { show kubectl --context "$CONTEXT_2" "$@"; }

# in_client CMD...: runs a command in a pod of cluster 2.
in_client() { two -n "$NAMESPACE" exec deployment/client -- "$@"; }

# instances SERVICE: what DiscoverInstances answers about a service of the Cloud Map namespace.
instances() {
	if [ -n "${CLOUDMAP_ENDPOINT:-}" ]; then
		curl --silent --show-error --fail-with-body --max-time 10 "$CLOUDMAP_ENDPOINT/" \
			-H 'Content-Type: application/x-amz-json-1.1' -H 'X-Amz-Target: Route53AutoNaming_v20170314.DiscoverInstances' \
			-d "{\"NamespaceName\": \"$NAMESPACE\", \"ServiceName\": \"$1\"}" 2>&1
	else
		aws servicediscovery discover-instances --namespace-name "$NAMESPACE" --service-name "$1" 2>&1
	fi
}

# registered SERVICE ID: whether it has an instance with this id.
registered() {
	local found
	found=$(instances "$1") || return
	seen "$found" grep -E "\"InstanceId\": *\"$2\""
}

# ecs ARGS...: a program of this repository plays ECS. Its tasks are in the Cloud Map namespace that the pods are in.
ecs() { "$TESTBED_STATE/bin/ecs" --endpoint "$CLOUDMAP_ENDPOINT" --namespace "$NAMESPACE" --ttl 2 "$@"; }

condition_is() {
	local condition
	condition=$(one -n "$NAMESPACE" get serviceexport "$SERVICE" -o "jsonpath={.status.conditions[?(@.type==\"$1\")]}") || return
	seen "${condition:-there is no condition $1}" grep -F "\"status\":\"$2\""
}

# follows WHAT: waits until cluster 2 has the endpoints of cluster 1, and prints how long that took.
follows() {
	local start
	start=$(now)
	within "cluster 2 has the endpoints of cluster 1" imports_all "$CONTEXT_2" "$CONTEXT_1" "$NAMESPACE" "$SERVICE"
	ok "$1: in cluster 2 $(since "$start") s after cluster 1 itself had it"
}

# of_cluster_1 POD: ends the demo unless cluster 1 has it.
of_cluster_1() { one -n "$NAMESPACE" get pod "$1" >/dev/null || fail "'$1' answered, but cluster 1 has no such pod"; }

# ---- Setting up and clearing up --------------------------------------------------------------------------------------

clusters_check
if [ -n "$GIVEN_CONTEXTS" ]; then
	for context in ${GIVEN_CONTEXTS//,/ }; do
		! kubectl --context "$context" get namespace "$NAMESPACE" >/dev/null 2>&1 ||
			fail "$context already has a namespace '$NAMESPACE'; the demo creates a namespace of this name and removes it at the end"
		! kubectl --context "$context" -n "$SYSTEM_NAMESPACE" get deployment cloudmap-mcs >/dev/null 2>&1 ||
			fail "$context already has the controller; the demo installs its own and removes it at the end. Take clusters that have none"
	done
fi

finish() {
	local status=$1 context
	if [ "$status" -ne 0 ] && [ "${INTERRUPTED:-}" != yes ]; then
		for context in ${INSTALLING:+"$CONTEXT_1" "$CONTEXT_2"}; do objects_print "$context" "$NAMESPACE"; done
		clusters_logs
	fi
	if [ -n "${KEEP:-}" ] && [ "$status" -eq 0 ]; then
		look_around
	else
		clear_up || true
	fi
	if [ "$status" -eq 0 ]; then
		printf '\n%sThe demo is complete%s (%s).\n' "$BOLD" "$PLAIN" "$(elapsed)"
	else
		printf '\n%sThe demo failed%s after %s.\n' "$BOLD" "$PLAIN" "$(elapsed)"
	fi
}
finally finish

look_around() {
	stage "Still running (KEEP=1)"
	if [ -z "$GIVEN_CONTEXTS" ]; then
		tell "Use them:     eval \"\$(${TESTBED_NAME:+TESTBED_NAME=$TESTBED_NAME }integration/testbed/testbed env)\"; kubectl --context $CONTEXT_1 get pods -A"
	fi
	tell "Export again: kubectl --context $CONTEXT_1 apply -k samples/export" \
		"Ask again:    kubectl --context $CONTEXT_2 -n $NAMESPACE exec deployment/client -- curl -s http://$NAME/hostname" \
		"The ledger:   kubectl --context $CONTEXT_1 -n $SYSTEM_NAMESPACE exec deployment/cloudmap-mcs -- cloudmap-mcs ledger show" \
		"Logs:         kubectl --context $CONTEXT_1 -n $SYSTEM_NAMESPACE logs -l app.kubernetes.io/name=cloudmap-mcs --prefix -f"
	if [ -z "$GIVEN_CONTEXTS" ]; then
		tell "ECS:          $TESTBED_STATE/bin/ecs --endpoint $CLOUDMAP_ENDPOINT --namespace $NAMESPACE scale orders 2" \
			"Cloud Map:    AWS_ENDPOINT_URL=$CLOUDMAP_ENDPOINT (any credentials); its books: curl $CLOUDMAP_ENDPOINT/_emulator/counters" \
			"Stop it all:  make testbed-down"
	else
		tell "Remove it:    kubectl delete -k config/controller and the namespace $NAMESPACE, in both clusters"
	fi
}

clear_up() {
	local context
	if [ -z "$GIVEN_CONTEXTS" ]; then
		"$TESTBED" down
	elif [ -n "${INSTALLING:-}" ]; then
		stage "Removing the samples and the controller (CRDs, ClusterProperties and the DNS zone stay, and in Cloud Map the ledger: docs/leaving.md)"
		for context in "$CONTEXT_1" "$CONTEXT_2"; do
			kubectl --context "$context" delete namespace "$NAMESPACE" --ignore-not-found --timeout 120s || true
		done
		sleep 5
		for context in "$CONTEXT_1" "$CONTEXT_2"; do
			kubectl --context "$context" delete -k "$ROOT/config/controller" --ignore-not-found --timeout 120s || true
		done
	fi
}

# ---- The demo --------------------------------------------------------------------------------------------------------

tell "${BOLD}cloudmap-mcs: a Service of one Kubernetes cluster, used from another${PLAIN}" \
	"The clusters never talk to each other's API servers: they meet in AWS Cloud Map, which an emulator plays here."

stage "Building the controller and the emulator (the first time, some minutes)"
use_target
binaries=(--bin cloudmap-mcs)
[ -n "$GIVEN_CONTEXTS" ] || binaries+=(--bin cloudmap-emulator --bin ecs)
build_release "${binaries[@]}"
export PROGRAM=$CARGO_TARGET_DIR/release/cloudmap-mcs
# The build is finished: another checkout may build now.
exec 6>&-
clusters_up 2
if [ -z "$GIVEN_CONTEXTS" ]; then
	stage "A Cloud Map emulator, and an image of the controller on every node"
	registry_up "$CARGO_TARGET_DIR/release/cloudmap-emulator" --call-latency 20ms --operation-latency 100ms
	image_up "$CARGO_TARGET_DIR/release/cloudmap-mcs"
	# Another checkout may replace the files meanwhile.
	install -D --target-directory "$TESTBED_STATE/bin" "$CARGO_TARGET_DIR"/release/{ecs,cloudmap-mcs,cloudmap-emulator}
	PROGRAM=$TESTBED_STATE/bin/cloudmap-mcs
fi

INSTALLING=yes
step "Install the controller in both clusters"
tell "Two ClusterProperties name the cluster and the set it belongs to; kubectl apply -k does the rest." \
	"cloudmap-mcs coredns apply lets CoreDNS answer for clusterset.local."
controller_install "$CONTEXT_1" cluster-1
controller_install "$CONTEXT_2" cluster-2
CLUSTER_1=$(one get clusterproperty cluster.clusterset.k8s.io -o 'jsonpath={.spec.value}')
CLUSTER_2=$(two get clusterproperty cluster.clusterset.k8s.io -o 'jsonpath={.spec.value}')

if [ -z "$GIVEN_CONTEXTS" ]; then
	step "A service in ECS"
	tell "Not everything runs in Kubernetes: 'orders' is a service in ECS. Its one task is a process on a host outside the" \
		"clusters, with an address of its own, and ECS registers it in the Cloud Map namespace '$NAMESPACE', a private DNS" \
		"namespace. (A program plays ECS here. It registers what ECS registers.) The task's id, addresses, port and zone:"
	show ecs scale orders 1
	TASK=$(ecs tasks orders | cut -d' ' -f1)
	[ -n "$TASK" ] || fail "ECS should have started a task"
	within "Cloud Map has the task as an instance of orders" registered orders "$TASK"
	ok "the task runs and is registered"
fi

step "A Service in cluster 1, and a client in cluster 2"
tell "An ordinary Deployment, an ordinary Service, and a ServiceExport of the Service's name, which says: this one is" \
	"for the whole ClusterSet. Cluster 2 has the namespace and a pod to ask from, no more."
show cat samples/export/service-export.yaml
show_one apply -k samples/export
show_two apply -k samples/client
within "the pods of $SERVICE run" one -n "$NAMESPACE" rollout status "deployment/$SERVICE" --timeout 1s
within "the client pod runs" two -n "$NAMESPACE" rollout status deployment/client --timeout 1s
show_one -n "$NAMESPACE" get pods -o wide
ok "the pods run"

step "Cluster 1 exports it"
tell "The controller says on the ServiceExport itself what became of it:"
for condition in Valid=True Ready=True Conflict=False; do
	within "the ServiceExport has the condition $condition" condition_is "${condition%=*}" "${condition#*=}"
done
show_one -n "$NAMESPACE" get serviceexport "$SERVICE" \
	-o 'jsonpath={range .status.conditions[*]}{.type}={.status} ({.reason}) {.message}{"\n"}{end}'
ok "the export is Valid, Ready and without Conflict"

step "Cluster 2 imports it"
has_address() { [ -n "$(two -n "$NAMESPACE" get serviceimport "$SERVICE" -o 'jsonpath={.spec.ips[0]}')" ]; }
within "cluster 2 has the ServiceImport with an address" has_address
within "cluster 1 has two endpoints" serves "$CONTEXT_1" "$NAMESPACE" "$SERVICE" 2
follows "every endpoint"
show_two -n "$NAMESPACE" get serviceimport "$SERVICE" -o wide
show_two -n "$NAMESPACE" get endpointslices -l "multicluster.kubernetes.io/service-name=$SERVICE" -L multicluster.kubernetes.io/source-cluster
IPS=$(two -n "$NAMESPACE" get serviceimport "$SERVICE" -o 'jsonpath={range .spec.ips[*]}{@}{"\n"}{end}')
ok "the ServiceImport has the addresses ${IPS//$'\n'/ and }, behind which the pods of cluster 1 are"

step "Its name resolves in cluster 2"
tell "clusterset.local is to the ClusterSet what cluster.local is to a cluster."
resolves() {
	local answer
	answer=$(in_client dig +short +time=2 +tries=1 "$NAME" "$1" | sort) || return
	seen "$answer" test "$answer" = "$2"
}
for family in A AAAA; do
	of_family=$(grep "$([ $family = A ] && echo '\.' || echo ':')" <<<"$IPS" | sort || true)
	if [ -z "$of_family" ]; then
		tell "(no $family: these clusters have no such addresses)"
		continue
	fi
	within "$family of $NAME is $of_family" resolves "$family" "$of_family"
	show_two -n "$NAMESPACE" exec deployment/client -- dig +short "$NAME" "$family"
	[ "$(sort <<<"$SHOWN")" = "$of_family" ] || fail "$family of $NAME is not $of_family any more"
	ok "$family is the address of the import"
done
names_port() {
	local answer
	answer=$(in_client dig +short +time=2 +tries=1 "_http._tcp.$NAME" SRV) || return
	seen "$answer" grep " 80 $NAME\.$"
}
within "SRV names port 80 of $NAME" names_port
show_two -n "$NAMESPACE" exec deployment/client -- dig +short "_http._tcp.$NAME" SRV
grep -q " 80 $NAME\.$" <<<"$SHOWN" || fail "SRV does not name port 80 of $NAME any more"
ok "SRV names the port and the service"

step "A pod of cluster 1 answers a client in cluster 2"
answer() { in_client curl --silent --show-error --fail --max-time 5 "http://$NAME/hostname"; }
within "http://$NAME/hostname answers" answer
show_two -n "$NAMESPACE" exec deployment/client -- curl --silent --show-error --fail "http://$NAME/hostname"
of_cluster_1 "$SHOWN"
ok "$SHOWN answered, which runs in cluster 1"

step "Cluster 2 follows what happens in cluster 1"
tell "More pods:"
show_one -n "$NAMESPACE" scale "deployment/$SERVICE" --replicas 4
within "cluster 1 has four pods as endpoints" serves "$CONTEXT_1" "$NAMESPACE" "$SERVICE" 4
follows "the fourth pod"
tell "" "A pod that is killed, and the one that takes its place:"
VICTIM=$(own_endpoints "$CONTEXT_1" "$NAMESPACE" "$SERVICE" | awk 'NR == 1 { print $2 }')
# All its addresses, one for each family.
VICTIM_IPS=$(own_endpoints "$CONTEXT_1" "$NAMESPACE" "$SERVICE" | awk -v pod="$VICTIM" '$2 == pod { print $1 }')
gone() {
	local left
	left=$(imported_addresses "$CONTEXT_2" "$NAMESPACE" "$SERVICE") && ! grep -xF "$VICTIM_IPS" <<<"$left"
}
! gone >/dev/null || fail "cluster 2 should have the endpoints of $VICTIM (${VICTIM_IPS//$'\n'/ })"
KILLED=$(now)
show_one -n "$NAMESPACE" delete pod "$VICTIM" --grace-period 0 --force
within "cluster 2 has forgotten $VICTIM" gone
ok "cluster 2 forgot the killed pod $(since "$KILLED") s after the order to kill it"
within "cluster 1 has four pods as endpoints again, and $VICTIM is none" serves "$CONTEXT_1" "$NAMESPACE" "$SERVICE" 4 "$VICTIM"
follows "its replacement"

step "ECS tasks see the pods too"
tell "Every pod is also an ordinary Cloud Map instance, in the namespace and service of the same names." \
	"An ECS task, a Lambda or anything else with the AWS SDK finds it with DiscoverInstances:"
# The pods' addresses of one family, because an instance has one address or both.
pod_addresses() {
	local own four
	own=$(own_endpoints "$CONTEXT_1" "$NAMESPACE" "$SERVICE") || return
	four=$(grep -F . <<<"$own" || true)
	cut -d' ' -f1 <<<"${four:-$own}" | sort -u
}
pods_are_instances() {
	local found own family=IPV4
	found=$(instances "$SERVICE") || return
	own=$(pod_addresses) || return
	[[ $own != *:* ]] || family=IPV6
	found=$(grep -oE "\"AWS_INSTANCE_$family\": *\"[^\"]*\"" <<<"$found" | cut -d'"' -f4 | sort)
	[ "$found" = "$own" ] || { printf 'pods:\n%s\ninstances:\n%s\n' "$own" "$found"; return 1; }
}
# Also if Cloud Map does not have the service any more. Any other failure is no answer.
no_instances() {
	local found
	if found=$(instances "$SERVICE"); then
		seen "$found" grep -z '"Instances": *\[\]'
	else
		seen "$found" grep ServiceNotFound
	fi
}
if [ -n "${CLOUDMAP_ENDPOINT:-}" ] || command -v aws >/dev/null; then
	within "the instances in Cloud Map are the four pods" pods_are_instances
	printf '\n%s$ aws servicediscovery discover-instances --namespace-name %s --service-name %s%s\n' "$DIM" "$NAMESPACE" "$SERVICE" "$PLAIN"
	FOUND=$(instances "$SERVICE")
	grep -oE '"(InstanceId|AWS_INSTANCE_(IPV4|IPV6|PORT))": *"[^"]*"' <<<"$FOUND" | sed 's/^/    /; s/^    "InstanceId"/    - "InstanceId"/'
	[ "$(grep -o '"InstanceId"' <<<"$FOUND" | wc -l)" = 4 ] || fail "these are not four instances"
	ok "four pods are four instances"
else
	tell "(skipped: the aws command is not here)"
fi

if [ -z "$GIVEN_CONTEXTS" ]; then
	step "An ECS task calls a pod"
	tell "Where the Cloud Map namespace has DNS, no SDK is needed: on the host of the ECS task, the network's resolver knows the" \
		"pods as $SERVICE.$NAMESPACE. Port 8080 is the pods' own; nothing is between task and pod."
	from_task() { ecs exec orders -- curl --silent --show-error --fail --max-time 5 "http://$SERVICE.$NAMESPACE:8080/hostname"; }
	within "http://$SERVICE.$NAMESPACE:8080/hostname answers the ECS task" from_task
	show ecs exec orders -- dig +short "$SERVICE.$NAMESPACE" A
	show ecs exec orders -- curl --silent --show-error --fail "http://$SERVICE.$NAMESPACE:8080/hostname"
	of_cluster_1 "$SHOWN"
	ok "$SHOWN answered, which runs in cluster 1"

	step "A pod calls an ECS task"
	tell "The other way round, one annotation on a Kubernetes namespace imports what others registered in a Cloud Map namespace." \
		"'orders' becomes a ServiceImport in cluster 2, and pods call it like any Service of the ClusterSet:"
	show_two annotate namespace "$NAMESPACE" "cloudmap.controller/import-from=$NAMESPACE"
	orders_imported() { [ -n "$(two -n "$NAMESPACE" get serviceimport orders -o 'jsonpath={.spec.ips[0]}')" ]; }
	within "cluster 2 imports orders" orders_imported
	show_two -n "$NAMESPACE" get endpointslices -l multicluster.kubernetes.io/service-name=orders -L multicluster.kubernetes.io/source-cluster
	ORDERS=http://orders.$NAMESPACE.svc.clusterset.local:8080/hostname
	answer_is_task() {
		local answer
		answer=$(in_client curl --silent --show-error --fail --max-time 5 "$ORDERS") || return
		seen "$answer" test "$answer" = "$TASK"
	}
	within "the ECS task answers at $ORDERS" answer_is_task
	show_two -n "$NAMESPACE" exec deployment/client -- curl --silent --show-error --fail "$ORDERS"
	[ "$SHOWN" = "$TASK" ] || fail "'$SHOWN' answered, and not the task $TASK"
	ok "that is the id of the ECS task, which runs in no cluster"
	tell "" "Without the annotation it is gone again; ECS and its task never notice:"
	show_two annotate namespace "$NAMESPACE" cloudmap.controller/import-from-
	within "cluster 2 has no import of orders" nothing two -n "$NAMESPACE" get serviceimports orders --ignore-not-found -o name
	registered orders "$TASK" >/dev/null || fail "the task should still be registered in Cloud Map"
	ok "cluster 2 has no import of orders, and the task is registered as before"
else
	tell "" "(The demo on this machine's own clusters also calls from pods to an ECS task and back; here there is no ECS.)"
fi

step "What the clusters tell each other"
tell "Exports and endpoints cross in the ledger, compressed; this is how to read it:"
show_one -n "$SYSTEM_NAMESPACE" exec deployment/cloudmap-mcs -- cloudmap-mcs ledger show
for word in "$CLUSTER_1" "$SERVICE"; do
	grep -qF "$word" <<<"$SHOWN" || fail "the ledger does not name $word"
done
ok "the ledger has the export of $CLUSTER_1"

# has_home CONTEXT REGISTRY: gives a cluster this registry as its home, in the ConfigMap with the flags of its controller.
has_home() {
	local settings patch
	settings=$(kubectl --context "$1" -n "$SYSTEM_NAMESPACE" get deployment cloudmap-mcs \
		-o 'jsonpath={.spec.template.spec.containers[0].envFrom[0].configMapRef.name}')
	patch=$(jq --null-input --compact-output --arg home "$2" --arg registries "$REGISTRIES" '{data: {CLOUDMAP_MCS_HOME: $home,
		CLOUDMAP_MCS_REGISTRIES: $registries, CLOUDMAP_MCS_REGION: null, CLOUDMAP_MCS_CLOUDMAP_ENDPOINT: null}}')
	show kubectl --context "$1" -n "$SYSTEM_NAMESPACE" patch configmap "$settings" --type merge --patch "$patch"
	show kubectl --context "$1" -n "$SYSTEM_NAMESPACE" rollout restart deployment/cloudmap-mcs
	within "the controller of $1 has this home" kubectl --context "$1" -n "$SYSTEM_NAMESPACE" rollout status deployment/cloudmap-mcs --timeout 1s
}
# told_in_both: whether the ledgers of both registries are read in cluster 1, and cluster 2 is in that of the other region.
told_in_both() {
	local told
	told=$(one -n "$SYSTEM_NAMESPACE" exec deployment/cloudmap-mcs -- cloudmap-mcs ledger show -o json) || return
	# shellcheck disable=SC2016 # The variable is one of jq.
	seen "$told" jq --exit-status --arg id "$CLUSTER_2" '.registries.us.clusters[] | select(.id == $id and .state == "live")'
}
if [ -z "$GIVEN_CONTEXTS" ]; then
	step "A second region"
	tell "Cluster 2 moves to another region: from now on its home is a registry there, which another emulator plays. One text" \
		"names the registries. It is the same in all clusters, and each of them reads both:"
	other_registry_up "$TESTBED_STATE/bin/cloudmap-emulator" --call-latency 80ms --operation-latency 100ms
	REGISTRIES="eu: {region: eu-central-1, endpoint: \"$CLOUDMAP_ENDPOINT\"}
us: {region: us-east-1, endpoint: \"$OTHER_CLOUDMAP_ENDPOINT\"}"
	tell "" "$REGISTRIES"
	has_home "$CONTEXT_1" eu
	has_home "$CONTEXT_2" us
	within "cluster 1 reads what cluster 2 says in the other region" told_in_both
	ok "cluster 2 writes in the other region, and cluster 1 reads it there"
	tell "" "One pod more in cluster 1:"
	show_one -n "$NAMESPACE" scale "deployment/$SERVICE" --replicas 5
	within "cluster 1 has five pods as endpoints" serves "$CONTEXT_1" "$NAMESPACE" "$SERVICE" 5
	follows "the fifth pod"
	show_one -n "$SYSTEM_NAMESPACE" exec deployment/cloudmap-mcs -- cloudmap-mcs ledger show
fi

step "Un-export"
tell "Deleting the ServiceExport takes it all back. The Service in cluster 1 stays, for cluster 1."
DELETED=$(now)
show_one -n "$NAMESPACE" delete serviceexport "$SERVICE"
within "cluster 2 has neither ServiceImport nor EndpointSlices" nothing two -n "$NAMESPACE" get serviceimports,endpointslices -o name
within "cluster 2 has no Service in $NAMESPACE" nothing two -n "$NAMESPACE" get services -o name
ok "cluster 2 has nothing of it any more, $(since "$DELETED") s after the order"
show_two -n "$NAMESPACE" get serviceimports,services,endpointslices
[ -z "$SHOWN" ] || fail "cluster 2 has something of it again"
# Not the absence of an answer: a server that fails prints none, either.
unknown() {
	local answer
	answer=$(in_client dig +time=2 +tries=1 "$NAME" A) || return
	seen "$answer" grep 'status: NXDOMAIN'
}
within "$NAME does not resolve any more" unknown
ok "its name does not resolve any more"
if [ -n "${CLOUDMAP_ENDPOINT:-}" ] || command -v aws >/dev/null; then
	within "Cloud Map has no instances of it" no_instances
	ok "Cloud Map has no instances of it any more"
fi
one -n "$NAMESPACE" get service "$SERVICE" >/dev/null || fail "the Service in cluster 1 should have stayed"
ok "the Service in cluster 1 is as it was"
