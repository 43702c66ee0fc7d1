# The clusters' Kubernetes. Tests use the version in go/kubernetes/go.mod; KUBERNETES=1.30 takes another one.
#
# There are the oldest and the newest releases of which the Go module proxy has every module. Only their numbers are written
# here: a release's own go.mod names the versions of all modules that it needs, and Go's checksum database holds them.

case ${KUBERNETES:-} in
'') CLUSTERS_VERSION=$KUBERNETES_VERSION ;;
1.30) CLUSTERS_VERSION=v1.30.4 ;;
1.37) CLUSTERS_VERSION=v1.37.2 ;;
*) fail "KUBERNETES is '$KUBERNETES'; there are 1.30 and 1.37, and without it $KUBERNETES_VERSION" ;;
esac
readonly CLUSTERS_VERSION

# minor: prints 34 for v1.34.4.
minor() { cut -d. -f2 <<<"$CLUSTERS_VERSION"; }

# kubernetes_folder: where etcd and the components of that version are.
kubernetes_folder() {
	if [ -z "${KUBERNETES:-}" ]; then
		components_folder
	else
		echo "$CACHE/components/$(uname -m)-$CLUSTERS_VERSION-$(digest "$TESTBED_DIR"/go/kubernetes/main.go "$TESTBED_DIR"/lib/kubernetes.sh)"
	fi
}

# kubernetes_build: brings the cache up to date, as `build` does for everything else.
kubernetes_build() {
	[ ! -d "$(kubernetes_folder)" ] || return 0
	exec 7>"$CACHE/build.lock"
	flock -n 7 || { say "waiting for another build to finish"; flock 7; }
	rm -rf "$CACHE/components/.partial"
	[ -d "$(kubernetes_folder)" ] || into "$(kubernetes_folder)" compile_kubernetes
	exec 7>&-
}

compile_kubernetes() {
	local component
	say "compiling Kubernetes $CLUSTERS_VERSION and etcd (about 6 minutes on 2 cores, once)"
	with_progress kubernetes "$CACHE/logs/kubernetes-$CLUSTERS_VERSION.log" compile_release "$1"
	for component in etcd kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy; do
		ln -s hyperkube "$1/$component"
	done
	chmod -R u+w "$1/source"
	rm -r "$1/source"
}

# compile_release FOLDER: in a module that requires what the release itself requires. In its own repository the
# release replaces its staging modules by folders; here it needs their published versions.
compile_release() {
	local source=$1/source version=$CLUSTERS_VERSION staging=v0.${CLUSTERS_VERSION#v1.} release module
	mkdir "$source"
	cd "$source"
	export GOFLAGS=-mod=mod CGO_ENABLED=0
	release=$(cd / && go mod download -json "k8s.io/kubernetes@$version" | jq -r .Dir)
	sed -E '/^replace/,/^\)/d; s|^module .*|module cloudmap-mcs/testbed/kubernetes|' "$release/go.mod" >go.mod
	go mod edit -require "k8s.io/kubernetes@$version"
	for module in $(awk '$1 ~ /^k8s.io\// && $2 == "v0.0.0" { print $1 }' go.mod); do
		go mod edit -require "$module@$staging" -replace "$module=$module@$staging"
	done
	cp "$TESTBED_DIR/go/kubernetes/main.go" .
	# It takes a context since 1.33.
	grep -q 'func NewKubeletCommand(ctx' "$release/cmd/kubelet/app/server.go" ||
		sed -i 's/NewKubeletCommand(context.Background())/NewKubeletCommand()/; /^\t"context"$/d' main.go
	go build -v -trimpath -buildvcs=false -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$version" -o "$1/hyperkube" .
}
