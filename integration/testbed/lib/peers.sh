# Peers: programs that others wrote, which tests run: controllers beside ours, helm, and kubeadm. Compiled when somebody asks for them,
# from the Go module in go/<peer> whose go.mod names the program as its only tool; kept as the components are.

# peers: their names. A module with a program of its own is none.
peers() {
	local folder
	for folder in "$TESTBED_DIR"/go/*/; do
		[ -e "$folder/main.go" ] || basename "$folder"
	done
}

peer_folder() {
	echo "$CACHE/peers/$1-$(uname -m)-$(digest "$TESTBED_DIR/go/$1"/go.{mod,sum} "$TESTBED_DIR"/lib/{peers,build}.sh)"
}

# peer_build PEER: returns at once if it is in the cache. Several checkouts share it.
peer_build() {
	local folder
	folder=$(peer_folder "$1")
	mkdir -p "$CACHE/logs" "$CACHE/peers"
	[ ! -d "$folder" ] || return 0
	exec 7>"$CACHE/build.lock"
	flock -n 7 || { say "waiting for another build to finish"; flock 7; }
	# What an interrupted build left: nobody else writes here while the lock is held.
	rm -rf "$CACHE/peers/.partial"
	[ -d "$folder" ] || into "$folder" peer_compile "$1"
	exec 7>&-
}

# peer_compile PEER FOLDER
peer_compile() {
	local version
	version=$(peer_version "$1")
	say "compiling $1 $version (2 to 3 minutes on 2 cores, once)"
	# Programs of Kubernetes take it for their own version.
	with_progress "$1" "$CACHE/logs/$1.log" go_build "$1" "$2/$1" tool "-X k8s.io/component-base/version.gitVersion=$version"
}

# peer_version PEER: of the module that its program is in.
peer_version() {
	cd "$TESTBED_DIR/go/$1"
	go list -f '{{.Module.Version}}' tool
}
