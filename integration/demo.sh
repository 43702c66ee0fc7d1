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

# show CMD...: prints a command, runs it, and prints its output indented.
show() {
	printf '\n%s$ %s%s\n' "$DIM" "$(quoted "$@")" "$PLAIN"
	"$@" 2>&1 | awk '{ print "    " $0 }'
}

# quoted WORD...: prints the words as one would type them.
quoted() {
	local word line=
	case $1 in
	one) shift && set -- kubectl --context "$CONTEXT_1" "$@" ;;
	two) shift && set -- kubectl --context "$CONTEXT_2" "$@" ;;
	esac
	for word in "$@"; do
		if [[ $word =~ ^[A-Za-z0-9_./:=@,+-]+$ ]]; then line+=" $word"; else line+=" '$word'"; fi
	done
	echo "${line# }"
}

# now: the time in milliseconds (rounded to seconds, if bash is older than version 5).
now() { if [ -n "${EPOCHREALTIME:-}" ]; then echo $((${EPOCHREALTIME//[.,]/} / 1000)); else echo "$(date +%s)000"; fi; }

# since MILLISECONDS: the seconds since then.
since() { awk "BEGIN { printf \"%.1f\", ($(now) - $1) / 1000 }"; }

# within SECONDS WHAT CMD...: waits until a command succeeds, or fails the demo and says what was expected.
within() {
	local deadline=$((SECONDS + $1)) what=$2
	shift 2
	until "$@" >/dev/null 2>&1; do
		[ "$SECONDS" -lt "$deadline" ] || fail "this did not happen in time: $what"
		sleep 0.1
	done
}

# nothing CMD...: whether a command succeeds and prints nothing. One that fails has not looked.
nothing() {
	local printed
	printed=$("$@") && [ -z "$printed" ]
}

# ok WHAT: prints a fact that was checked.
ok() { printf '  %s✓%s %s\n' "$BOLD" "$PLAIN" "$1"; }

one() { kubectl --context "$CONTEXT_1" "$@"; }
two() { kubectl --context "$CONTEXT_2" "$@"; }

# in_client CMD...: runs a command in a pod of cluster 2.
in_client() { two -n "$NAMESPACE" exec deployment/client -- "$@"; }

# ecs ARGS...: a program of this repository plays ECS. Its tasks are in the Cloud Map namespace that the pods are in.
ecs() { "$TESTBED_STATE/bin/ecs" --endpoint "$CLOUDMAP_ENDPOINT" --namespace "$NAMESPACE" --ttl 2 "$@"; }

condition_is() {
	[ "$(one -n "$NAMESPACE" get serviceexport "$SERVICE" -o "jsonpath={.status.conditions[?(@.type==\"$1\")].status}")" = "$2" ]
}

# addresses CONTEXT SELECTOR: prints the ready addresses of the selected EndpointSlices, sorted.
addresses() {
	kubectl --context "$1" -n "$NAMESPACE" get endpointslices -l "$2" \
		-o 'jsonpath={range .items[*].endpoints[?(@.conditions.ready==true)]}{.addresses[0]}{"\n"}{end}' | sort -u | sed '/^$/d'
}
local_addresses() { addresses "$CONTEXT_1" "kubernetes.io/service-name=$SERVICE,endpointslice.kubernetes.io/managed-by=endpointslice-controller.k8s.io"; }
imported_addresses() { addresses "$CONTEXT_2" "multicluster.kubernetes.io/service-name=$SERVICE"; }
pod_count_is() { [ "$(one -n "$NAMESPACE" get pods -l "app=$SERVICE" -o name | wc -l)" = "$1" ]; }
local_is() { [ "$(local_addresses | wc -l)" = "$1" ]; }
same_addresses() {
	local own
	own=$(local_addresses) && [ -n "$own" ] && [ "$own" = "$(imported_addresses)" ]
}

# follows WHAT: waits until cluster 2 has the endpoints of cluster 1, and prints how long that took.
follows() {
	local start
	start=$(now)
	within 30 "cluster 2 has the endpoints of cluster 1" same_addresses
	ok "$1: in cluster 2 $(since "$start") s after cluster 1 itself had it"
}

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
	local status=$1
	if [ "$status" -ne 0 ] && [ "${INTERRUPTED:-}" != yes ]; then
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
	install -D --target-directory "$TESTBED_STATE/bin" "$CARGO_TARGET_DIR"/release/{ecs,cloudmap-mcs}
	PROGRAM=$TESTBED_STATE/bin/cloudmap-mcs
fi

INSTALLING=yes
step "Install the controller in both clusters"
tell "Two ClusterProperties name the cluster and the set it belongs to; kubectl apply -k does the rest." \
	"cloudmap-mcs coredns apply lets CoreDNS answer for clusterset.local."
controller_install "$CONTEXT_1" cluster-1
controller_install "$CONTEXT_2" cluster-2
CLUSTER_1=$(one get clusterproperty cluster.clusterset.k8s.io -o 'jsonpath={.spec.value}')

if [ -z "$GIVEN_CONTEXTS" ]; then
	step "A service in ECS"
	tell "Not everything runs in Kubernetes: 'orders' is a service in ECS. Its one task is a process on a host outside the" \
		"clusters, with an address of its own, and ECS registers it in the Cloud Map namespace '$NAMESPACE', a private DNS" \
		"namespace. (A program plays ECS here. It registers what ECS registers.) The task's id, addresses, port and zone:"
	show ecs scale orders 1
	TASK=$(ecs tasks orders | cut -d' ' -f1)
	[ -n "$TASK" ] || fail "ECS should have started a task"
	ok "the task runs and is registered"
fi

step "A Service in cluster 1, and a client in cluster 2"
tell "An ordinary Deployment, an ordinary Service, and a ServiceExport of the Service's name, which says: this one is" \
	"for the whole ClusterSet. Cluster 2 has the namespace and a pod to ask from, no more."
show cat samples/export/service-export.yaml
show one apply -k samples/export
show two apply -k samples/client
within 180 "the pods of $SERVICE run" one -n "$NAMESPACE" rollout status "deployment/$SERVICE" --timeout 1s
within 180 "the client pod runs" two -n "$NAMESPACE" rollout status deployment/client --timeout 1s
show one -n "$NAMESPACE" get pods -o wide
ok "the pods run"

step "Cluster 1 exports it"
tell "The controller says on the ServiceExport itself what became of it:"
for condition in Valid=True Ready=True Conflict=False; do
	within 30 "the ServiceExport has the condition $condition" condition_is "${condition%=*}" "${condition#*=}"
done
show one -n "$NAMESPACE" get serviceexport "$SERVICE" \
	-o 'jsonpath={range .status.conditions[*]}{.type}={.status} ({.reason}) {.message}{"\n"}{end}'
ok "the export is Valid, Ready and without Conflict"

step "Cluster 2 imports it"
has_address() { [ -n "$(two -n "$NAMESPACE" get serviceimport "$SERVICE" -o 'jsonpath={.spec.ips[0]}')" ]; }
within 30 "cluster 2 has the ServiceImport with an address" has_address
follows "every endpoint"
show two -n "$NAMESPACE" get serviceimport "$SERVICE" -o wide
show two -n "$NAMESPACE" get endpointslices -l "multicluster.kubernetes.io/service-name=$SERVICE" -L multicluster.kubernetes.io/source-cluster
IPS=$(two -n "$NAMESPACE" get serviceimport "$SERVICE" -o 'jsonpath={range .spec.ips[*]}{@}{"\n"}{end}')
ok "the ServiceImport has the addresses ${IPS//$'\n'/ and }, behind which the pods of cluster 1 are"

step "Its name resolves in cluster 2"
tell "clusterset.local is to the ClusterSet what cluster.local is to a cluster."
resolves() { [ "$(in_client dig +short +time=2 +tries=1 "$NAME" "$1" | sort)" = "$2" ]; }
for family in A AAAA; do
	of_family=$(grep "$([ $family = A ] && echo '\.' || echo ':')" <<<"$IPS" | sort || true)
	if [ -z "$of_family" ]; then
		tell "(no $family: these clusters have no such addresses)"
		continue
	fi
	within 30 "$family of $NAME is $of_family" resolves "$family" "$of_family"
	show two -n "$NAMESPACE" exec deployment/client -- dig +short "$NAME" "$family"
	ok "$family is the address of the import"
done
show two -n "$NAMESPACE" exec deployment/client -- dig +short "_http._tcp.$NAME" SRV
in_client dig +short "_http._tcp.$NAME" SRV | grep -q " 80 $NAME\.$" || fail "SRV does not name port 80 of $NAME"
ok "SRV names the port and the service"

step "A pod of cluster 1 answers a client in cluster 2"
answer() { in_client curl --silent --fail --max-time 5 "http://$NAME/hostname"; }
within 30 "http://$NAME/hostname answers" answer
show two -n "$NAMESPACE" exec deployment/client -- curl --silent "http://$NAME/hostname"
SERVER=$(answer)
one -n "$NAMESPACE" get pod "$SERVER" >/dev/null || fail "'$SERVER' answered, but cluster 1 has no such pod"
ok "$SERVER answered, which runs in cluster 1"

step "Cluster 2 follows what happens in cluster 1"
tell "More pods:"
show one -n "$NAMESPACE" scale "deployment/$SERVICE" --replicas 4
within 120 "cluster 1 has four endpoints" local_is 4
follows "the fourth pod"
tell "" "A pod that is killed, and the one that takes its place:"
VICTIM=$(one -n "$NAMESPACE" get pods -l "app=$SERVICE" -o 'jsonpath={.items[0].metadata.name}')
VICTIM_IP=$(one -n "$NAMESPACE" get pod "$VICTIM" -o 'jsonpath={.status.podIP}')
gone() {
	local left
	left=$(imported_addresses) && ! grep -qxF "$VICTIM_IP" <<<"$left"
}
KILLED=$(now)
show one -n "$NAMESPACE" delete pod "$VICTIM" --grace-period 0 --force
within 30 "cluster 2 has forgotten $VICTIM" gone
ok "cluster 2 forgot the killed pod $(since "$KILLED") s after the order to kill it"
within 120 "cluster 1 has four endpoints again" local_is 4
follows "its replacement"

step "ECS tasks see the pods too"
tell "Every pod is also an ordinary Cloud Map instance, in the namespace and service of the same names." \
	"An ECS task, a Lambda or anything else with the AWS SDK finds it with DiscoverInstances:"
instances() {
	if [ -n "${CLOUDMAP_ENDPOINT:-}" ]; then
		curl --silent --show-error --fail --max-time 10 "$CLOUDMAP_ENDPOINT/" \
			-H 'Content-Type: application/x-amz-json-1.1' -H 'X-Amz-Target: Route53AutoNaming_v20170314.DiscoverInstances' \
			-d "{\"NamespaceName\": \"$NAMESPACE\", \"ServiceName\": \"$SERVICE\"}"
	else
		aws servicediscovery discover-instances --namespace-name "$NAMESPACE" --service-name "$SERVICE"
	fi
}
instance_count_is() { [ "$(instances | grep -o '"InstanceId"' | wc -l)" = "$1" ]; }
if [ -n "${CLOUDMAP_ENDPOINT:-}" ] || command -v aws >/dev/null; then
	within 60 "Cloud Map has four instances" instance_count_is 4
	printf '\n%s$ aws servicediscovery discover-instances --namespace-name %s --service-name %s%s\n' "$DIM" "$NAMESPACE" "$SERVICE" "$PLAIN"
	instances | grep -oE '"(InstanceId|AWS_INSTANCE_(IPV4|IPV6|PORT))": *"[^"]*"' | sed 's/^/    /; s/^    "InstanceId"/    - "InstanceId"/'
	ok "four pods are four instances"
else
	tell "(skipped: the aws command is not here)"
fi

if [ -z "$GIVEN_CONTEXTS" ]; then
	step "An ECS task calls a pod"
	tell "Where the Cloud Map namespace has DNS, no SDK is needed: on the host of the ECS task, the network's resolver knows the" \
		"pods as $SERVICE.$NAMESPACE. Port 8080 is the pods' own; nothing is between task and pod."
	from_task() { ecs exec orders -- curl --silent --show-error --fail --max-time 5 "http://$SERVICE.$NAMESPACE:8080/hostname"; }
	within 30 "http://$SERVICE.$NAMESPACE:8080/hostname answers the ECS task" from_task
	show ecs exec orders -- dig +short "$SERVICE.$NAMESPACE" A
	show ecs exec orders -- curl --silent "http://$SERVICE.$NAMESPACE:8080/hostname"
	SERVER=$(from_task)
	one -n "$NAMESPACE" get pod "$SERVER" >/dev/null || fail "'$SERVER' answered the ECS task, but cluster 1 has no such pod"
	ok "$SERVER answered, which runs in cluster 1"

	step "A pod calls an ECS task"
	tell "The other way round, one annotation on a Kubernetes namespace imports what others registered in a Cloud Map namespace." \
		"'orders' becomes a ServiceImport in cluster 2, and pods call it like any Service of the ClusterSet:"
	show two annotate namespace "$NAMESPACE" "cloudmap.controller/import-from=$NAMESPACE"
	orders_imported() { [ -n "$(two -n "$NAMESPACE" get serviceimport orders -o 'jsonpath={.spec.ips[0]}')" ]; }
	within 30 "cluster 2 imports orders" orders_imported
	show two -n "$NAMESPACE" get endpointslices -l multicluster.kubernetes.io/service-name=orders -L multicluster.kubernetes.io/source-cluster
	ORDERS=http://orders.$NAMESPACE.svc.clusterset.local:8080/hostname
	answer_is_task() { [ "$(in_client curl --silent --fail --max-time 5 "$ORDERS")" = "$TASK" ]; }
	within 30 "the ECS task answers at $ORDERS" answer_is_task
	show two -n "$NAMESPACE" exec deployment/client -- curl --silent "$ORDERS"
	ok "that is the id of the ECS task, which runs in no cluster"
	tell "" "Without the annotation it is gone again; ECS and its task never notice:"
	show two annotate namespace "$NAMESPACE" cloudmap.controller/import-from-
	within 30 "cluster 2 has no import of orders" nothing two -n "$NAMESPACE" get serviceimports orders --ignore-not-found -o name
	ok "cluster 2 has no import of orders"
else
	tell "" "(The demo on this machine's own clusters also calls from pods to an ECS task and back; here there is no ECS.)"
fi

step "What the clusters tell each other"
tell "Exports and endpoints cross in the ledger, compressed; this is how to read it:"
LEDGER=$(show one -n "$SYSTEM_NAMESPACE" exec deployment/cloudmap-mcs -- cloudmap-mcs ledger show)
tell "$LEDGER"
for word in "$CLUSTER_1" "$SERVICE"; do
	grep -q "$word" <<<"$LEDGER" || fail "the ledger does not name $word"
done
ok "the ledger has the export of $CLUSTER_1"

step "Un-export"
tell "Deleting the ServiceExport takes it all back. The Service in cluster 1 stays, for cluster 1."
DELETED=$(now)
show one -n "$NAMESPACE" delete serviceexport "$SERVICE"
within 30 "cluster 2 has neither ServiceImport nor EndpointSlices" nothing two -n "$NAMESPACE" get serviceimports,endpointslices -o name
within 30 "cluster 2 has no Service in $NAMESPACE" nothing two -n "$NAMESPACE" get services -o name
ok "cluster 2 has nothing of it any more, $(since "$DELETED") s after the order"
show two -n "$NAMESPACE" get serviceimports,services,endpointslices
within 40 "$NAME does not resolve any more" nothing in_client dig +short +time=2 +tries=1 "$NAME" A
ok "its name does not resolve any more"
if [ -n "${CLOUDMAP_ENDPOINT:-}" ] || command -v aws >/dev/null; then
	within 60 "Cloud Map has no instances of it" instance_count_is 0
	ok "Cloud Map has no instances of it any more"
fi
one -n "$NAMESPACE" get service "$SERVICE" >/dev/null || fail "the Service in cluster 1 should have stayed"
ok "the Service in cluster 1 is as it was"
