# An engine of Docker that disturbs nothing of this machine, and kind. Sourced after stages.sh.
#
# The engine comes out of Debian's packages and is not installed. It has a network namespace of its own, because it sets the
# policy of the chain FORWARD to DROP and adds rules; a mount namespace of its own, so that no mount is left; and a cgroup of
# its own, in which all its containers are, too: by it, the next run finds and ends what a killed run left.
# shellcheck shell=bash

# What process.sh of the testbed names its cgroups by.
readonly SLOT=docker
# shellcheck source=integration/testbed/lib/process.sh
. "$ROOT/integration/testbed/lib/process.sh"

readonly KIND_VERSION=v0.30.0
readonly ENGINE_PACKAGES=(docker.io debootstrap libdevmapper1.02.1)
readonly ENGINE=$CLOUDMAP_MCS_CACHE/docker
# Here, because the path of a socket has at most 107 characters.
readonly ENGINE_STATE=/run/cloudmap-mcs-testbed/docker
readonly ENGINE_NETWORK=cloudmap-mcs-docker

# engine_lock: one engine a machine, because all checkouts share its images. `spawn` gives its processes no descriptors.
engine_lock() {
	mkdir -p "$ENGINE_STATE" "$ENGINE"
	exec 4>"$ENGINE_STATE.lock"
	flock -n 4 || fail "another run on this machine has the engine of Docker for tests: wait for it"
}

# engine_tools: the engine and debootstrap out of Debian's packages, kind from the Go module proxy; into the cache, once.
engine_tools() {
	local work
	if [ ! -x "$ENGINE/root/usr/sbin/dockerd" ] || [ ! -x "$ENGINE/root/usr/sbin/debootstrap" ]; then
		command -v apt-get >/dev/null || fail "the engine comes out of Debian's packages, and there is no apt-get here"
		command -v containerd >/dev/null && command -v runc >/dev/null && command -v iptables >/dev/null ||
			packages containerd runc iptables || fail "containerd, runc and iptables are missing"
		echo "fetching Debian's packages ${ENGINE_PACKAGES[*]}" >&2
		work=$(mktemp -d)
		chmod 755 "$work"
		(
			cd "$work"
			"${APT[@]}" download -qq "${ENGINE_PACKAGES[@]}" ||
				{ "${APT[@]}" update -qq && "${APT[@]}" download -qq "${ENGINE_PACKAGES[@]}"; }
			for package in *.deb; do dpkg -x "$package" root; done
		) >&2 || fail "Debian's packages ${ENGINE_PACKAGES[*]} could not be downloaded"
		rm -rf "$ENGINE/root"
		mv "$work/root" "$ENGINE/root"
		rm -rf "$work"
	fi
	[ -x "$ENGINE/bin/kind-$KIND_VERSION" ] || {
		echo "compiling kind $KIND_VERSION" >&2
		GOBIN=$ENGINE/bin GOFLAGS='' CGO_ENABLED=0 go install "sigs.k8s.io/kind@$KIND_VERSION"
		mv "$ENGINE/bin/kind" "$ENGINE/bin/kind-$KIND_VERSION"
	}
	ln -sfn "kind-$KIND_VERSION" "$ENGINE/bin/kind"
}

# in_engine CMD...: where the engine's ports are, with docker, kind and kubectl that mean this engine.
in_engine() {
	nsenter --net="/run/netns/$ENGINE_NETWORK" -- env -u HTTP_PROXY -u HTTPS_PROXY -u http_proxy -u https_proxy \
		PATH="$ENGINE/bin:$ENGINE/root/usr/bin:$PATH" DOCKER_HOST="unix://$ENGINE_STATE/docker.sock" \
		DOCKER_CONFIG="$ENGINE_STATE/config" KUBECONFIG="$ENGINE_STATE/kubeconfig" "$@"
}

# engine_up: begins anew, with the images and the build cache of earlier runs, and none of their containers.
engine_up() {
	engine_down
	rm -rf "$ENGINE"/work.*
	mkdir -p "$ENGINE_STATE" "$ENGINE/data"
	echo '{}' >"$ENGINE_STATE/daemon.json"
	ip netns add "$ENGINE_NETWORK"
	ip -n "$ENGINE_NETWORK" link set lo up
	# Not `ip netns exec`, which mounts /sys anew, so that the engine finds no cgroups.
	spawn "$SLOT/engine" "$ENGINE_STATE/engine.log" nsenter --net="/run/netns/$ENGINE_NETWORK" \
		unshare --mount --propagation private env LD_LIBRARY_PATH="$(dirname "$ENGINE"/root/lib/*/libdevmapper.so.1.02.1)" \
		"$ENGINE/root/usr/sbin/dockerd" --config-file "$ENGINE_STATE/daemon.json" --data-root "$ENGINE/data" \
		--exec-root "$ENGINE_STATE/exec" --pidfile "$ENGINE_STATE/engine.pid" --host "unix://$ENGINE_STATE/docker.sock" \
		--storage-driver overlay2 --userland-proxy-path "$ENGINE/root/usr/sbin/docker-proxy" \
		--add-runtime "bounded=$ROOT/integration/docker/runc" --default-runtime bounded \
		--cgroup-parent "/$CGROUP_TOP/$SLOT/containers" >/dev/null
	for attempt in {1..120}; do
		! in_engine docker info >/dev/null 2>&1 || break
		[ "$attempt" -lt 120 ] || { tail -n 30 "$ENGINE_STATE/engine.log" >&2; fail "the engine of Docker does not start: see above"; }
		sleep 0.5
	done
	in_engine docker ps --all --quiet | xargs -r nsenter --net="/run/netns/$ENGINE_NETWORK" -- \
		"$ENGINE/root/usr/bin/docker" --host "unix://$ENGINE_STATE/docker.sock" rm --force --volumes >/dev/null
	in_engine docker volume prune --force >/dev/null
	in_engine docker network prune --force >/dev/null
	# This engine collects no garbage by itself: what lost its name, and what is older than a week.
	in_engine docker image prune --force >/dev/null
	in_engine docker image prune --all --force --filter until=168h >/dev/null
	in_engine docker builder prune --force --filter until=168h >/dev/null
}

# engine_down: ends the engine with all its containers, of this run or of one that was killed, and nothing else.
engine_down() {
	cgroup_kill "$SLOT" 2>/dev/null
	ip netns delete "$ENGINE_NETWORK" 2>/dev/null || true
	rm -rf "$ENGINE_STATE"
}
