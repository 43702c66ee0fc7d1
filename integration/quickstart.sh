#!/usr/bin/env bash
# Two kind clusters with the controller, an emulator of Cloud Map beside them, and a first export (`make kind-quickstart`);
# needs neither Linux nor root nor AWS. Run it again to continue where it failed.
#
# Usage: integration/quickstart.sh [up | down]
#
#   up     makes all of it [the default]
#   down   removes the clusters and the emulator
#
#   IMAGE=name:tag            an image of the controller, instead of building one
#   EMULATOR_IMAGE=name:tag   an image of the emulator, instead of building one
#   KIND_IMAGE=name:tag       the image of the nodes [default: that of kind]
#   COREDNS_IMAGE=name:tag    replaces a CoreDNS older than 1.12.2, which does not know clusterset.local
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. integration/stages.sh
. integration/observe.sh
arguments_check "$@"
readonly CLUSTERS=(cloudmap-1 cloudmap-2) EMULATOR=cloudmap-emulator
COREDNS_IMAGE=${COREDNS_IMAGE:-docker.io/coredns/coredns:1.12.4}

need docker "Docker (https://docs.docker.com/get-docker)" kind "kind (https://kind.sigs.k8s.io/docs/user/quick-start)" \
	kubectl "kubectl 1.32 or later (https://kubernetes.io/docs/tasks/tools)"
docker info >/dev/null 2>&1 || fail "Docker does not answer: start it, or give this user access to it (docker info says why)"

case ${1:-up} in
up) ;;
down)
	for cluster in "${CLUSTERS[@]}"; do kind delete cluster --name "$cluster"; done
	docker rm --force "$EMULATOR" >/dev/null 2>&1 || true
	exit
	;;
*) misused "there is no command '$1'" ;;
esac

# in_cluster NUMBER ARGUMENTS...: kubectl there.
in_cluster() { kubectl --context "kind-cloudmap-$1" "${@:2}"; }

# address CONTAINER: its address in the network that kind makes.
address() { docker inspect --format '{{.NetworkSettings.Networks.kind.IPAddress}}' "$1"; }

# image TARGET NAME: builds a target of the Dockerfile.
image() {
	stage "The image $2 (the first time, some minutes)"
	# Docker before 23 has BuildKit, which the Dockerfile needs, but has to be asked for it.
	DOCKER_BUILDKIT=1 docker build --target "$1" --tag "$2" .
}

if [ -z "${IMAGE:-}" ]; then
	IMAGE=cloudmap-mcs:quickstart
	image controller "$IMAGE"
fi
if [ -z "${EMULATOR_IMAGE:-}" ]; then
	EMULATOR_IMAGE=cloudmap-emulator:quickstart
	image emulator "$EMULATOR_IMAGE"
fi

work=$(mktemp -d)
finish() {
	local n
	rm -rf "$work"
	if [ "$1" -ne 0 ] && [ "${INTERRUPTED:-}" != yes ]; then
		for n in 1 2; do
			objects_print "kind-cloudmap-$n" example
			objects_print "kind-cloudmap-$n" cloudmap-mcs-system
		done
	fi
}
finally finish

# The pods of both reach each other by IP: their ranges differ, and each node has a route to the other's.
for n in 1 2; do
	stage "The cluster cloudmap-$n"
	# grep reads to the end, because kind would fail at a closed pipe.
	kind get clusters 2>/dev/null | grep -x "cloudmap-$n" >/dev/null ||
		kind create cluster --name "cloudmap-$n" ${KIND_IMAGE:+--image "$KIND_IMAGE"} --wait 120s --config - <<-YAML
			kind: Cluster
			apiVersion: kind.x-k8s.io/v1alpha4
			networking: {podSubnet: 10.$n.0.0/16, serviceSubnet: 10.10$n.0.0/16}
		YAML
done
for n in 1 2; do
	other=$((3 - n))
	in_cluster "$n" get --raw /readyz >/dev/null ||
		fail "the cluster cloudmap-$n is there, but does not answer: make kind-quickstart-down removes both, to begin anew"
	docker exec "cloudmap-$n-control-plane" ip route replace "10.$other.0.0/16" via "$(address "cloudmap-$other-control-plane")"
done

stage "The emulator of Cloud Map"
docker start "$EMULATOR" >/dev/null 2>&1 ||
	docker run --detach --name "$EMULATOR" --network kind "$EMULATOR_IMAGE" --listen 0.0.0.0:8700 --region eu-central-1 >/dev/null
ENDPOINT=http://$(address "$EMULATOR"):8700

# What installs looks for a program on this machine. This one runs in the controller's image, in the network of the nodes.
cat >"$work/cloudmap-mcs" <<SCRIPT
#!/usr/bin/env bash
exec docker run --rm --network kind --user "$(id -u)" --volume "$work:$work:ro" --env KUBECONFIG="$work/kubeconfig" "$IMAGE" "\$@"
SCRIPT
chmod +x "$work/cloudmap-mcs"

for n in 1 2; do
	stage "The controller in cloudmap-$n"
	kind load docker-image "$IMAGE" --name "cloudmap-$n"
	version=$(in_cluster "$n" -n kube-system get deployment coredns -o 'jsonpath={.spec.template.spec.containers[0].image}')
	version=${version##*:}
	if [ "$(printf '%s\n' 1.12.2 "${version#v}" | sort -V | head -n 1)" != 1.12.2 ]; then
		in_cluster "$n" -n kube-system set image deployment/coredns "coredns=$COREDNS_IMAGE"
		in_cluster "$n" -n kube-system rollout status deployment/coredns --timeout 180s
	fi
	kind get kubeconfig --internal --name "cloudmap-$n" >"$work/kubeconfig"
	PROGRAM=$work/cloudmap-mcs integration/install.sh "kind-cloudmap-$n" "cluster-$n" quickstart "$IMAGE" "$ENDPOINT"
done

stage "A first export from cloudmap-1, a client in cloudmap-2"
in_cluster 1 apply -k samples/export
in_cluster 2 apply -k samples/client
in_cluster 1 -n example rollout status deployment/my-service --timeout 180s
in_cluster 2 -n example rollout status deployment/client --timeout 180s
readonly NAME=my-service.example.svc.clusterset.local
in_client() { in_cluster 2 -n example exec deployment/client -- "$@"; }
# Each pod of CoreDNS reads its configuration at its own time: where one answers, the next request may meet another.
everywhere() {
	local pods pod found
	pods=$(in_cluster 2 -n kube-system get pods -l k8s-app=kube-dns -o 'jsonpath={.items[*].status.podIP}')
	[ -n "$pods" ] || return
	for pod in $pods; do
		if ! found=$(in_client dig +short +time=2 +tries=1 "$NAME" "@$pod") || [ -z "$found" ]; then
			echo "$pod: ${found:-no address}"
			return 1
		fi
	done
}
# An answer, and not only a connection: it names the pod, and no pod of cloudmap-2 has this name.
answer() {
	in_client curl --silent --show-error --fail --max-time 5 "http://$NAME/hostname" >"$work/server" && [ -s "$work/server" ]
}
within "all pods of CoreDNS in cloudmap-2 have an address for $NAME (cloudmap-mcs status my-service -n example says where it is
held up)" everywhere
within "the client in cloudmap-2 has an answer from http://$NAME/hostname" answer
SERVER=$(cat "$work/server")
in_cluster 1 -n example get pod "$SERVER" >/dev/null || fail "'$SERVER' answered, but cloudmap-1 has no such pod"
cat <<TEXT

$NAME answers in cloudmap-2, from the pod $SERVER in cloudmap-1. Look around:

  kubectl --context kind-cloudmap-1 -n example describe serviceexport my-service
  kubectl --context kind-cloudmap-2 -n example get serviceimports,endpointslices
  kubectl --context kind-cloudmap-2 -n cloudmap-mcs-system exec deployment/cloudmap-mcs -- cloudmap-mcs status my-service -n example
  kubectl --context kind-cloudmap-1 -n example scale deployment my-service --replicas 5

make kind-quickstart-down removes all of it.
TEXT
