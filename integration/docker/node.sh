# The image of kind's nodes, with kind's own files and units, from Debian's packages and the Kubernetes of the testbed. kind's
# base image would clone containerd, runc and CNI plugins, and its node image would pull. Sourced after bases.sh.
# shellcheck shell=bash disable=SC2016,SC2153

readonly NODE_PACKAGES=(systemd conntrack iptables nftables iproute2 ethtool util-linux mount kmod procps pigz jq ca-certificates
	curl containerd runc containernetworking-plugins)

# node_up: sets KIND_IMAGE to the image, and makes it unless the engine has that of these sources.
node_up() {
	local key work
	"$TESTBED" build
	KUBEADM=$("$TESTBED" peer kubeadm)
	key=$(cat "$ROOT"/integration/docker/{node.sh,node/*} <(testbed_run 'components_folder; images_folder') | sha256sum | cut -c1-12)
	KIND_IMAGE=stand-in/kind-node:$key
	export KIND_IMAGE
	if image_exists "$KIND_IMAGE"; then return; fi
	work=$(mktemp -d "$ENGINE/work.XXXXXX")
	image_exists "stand-in/kind-base:$key" || {
		node_root "$work/root"
		import "$work/root" "stand-in/kind-base:$key"
	}
	mkdir "$work/images"
	node_images "$work/images"
	node_commit "$work/images" "stand-in/kind-base:$key"
	rm -rf "$work"
}

# testbed_run SCRIPT ARGUMENT...: with what the testbed knows of its components and images. A shell of its own, because both
# have a `fail`.
testbed_run() {
	TESTBED_DIR=$(dirname "$TESTBED") bash -euo pipefail -c \
		'for part in log versions image build; do . "$TESTBED_DIR/lib/$part.sh"; done; '"$1" testbed "${@:2}"
}

# node_root ROOT: what kind's base image is: its Dockerfile, with Debian's packages for what that compiles.
node_root() {
	local root=$1 files binaries
	files=$(cd / && GOFLAGS='' go mod download -json "sigs.k8s.io/kind@$KIND_VERSION" | jq -r .Dir)/images/base/files
	binaries=$(testbed_run components_folder)
	debian "$root"
	debian_apt "$root" update
	debian_apt "$root" install -y --no-install-recommends "${NODE_PACKAGES[@]}"
	debian_tidy "$root"
	cp -r --no-preserve=mode,ownership "$files"/{etc,kind,usr} "$root/"
	chmod 755 "$root/kind/bin" "$root"/kind/bin/* "$root"/usr/local/bin/*
	rm -f "$root"/lib/systemd/system/{multi-user,local-fs,basic}.target.wants/* "$root"/etc/systemd/system/*.wants/* \
		"$root"/lib/systemd/system/sockets.target.wants/*{udev,initctl}* \
		"$root/lib/systemd/system/sysinit.target.wants/systemd-tmpfiles-setup.service"
	echo ReadKMsg=no >>"$root/etc/systemd/journald.conf"
	ln -sf "$(chroot "$root" /usr/bin/which systemd 2>/dev/null || echo /lib/systemd/systemd)" "$root/sbin/init"
	chroot "$root" systemctl enable kubelet.service containerd.service undo-mount-hacks.service >/dev/null 2>&1
	chroot "$root" systemctl mask systemd-binfmt.service >/dev/null 2>&1
	ln -s /usr/bin/containerd "$root/usr/local/bin/containerd"
	mkdir -p "$root/opt/cni" "$root/etc/kubernetes/manifests" "$root/etc/cni/net.d" "$root/kind/manifests"
	ln -s /usr/lib/cni "$root/opt/cni/bin"
	# The pause image that the testbed has.
	sed -i -E "s|^( *sandbox_image = ).*|\1\"$(testbed_run 'echo $PAUSE_IMAGE')\"|" "$root/etc/containerd/config.toml"
	# Root of the testing machine may not lower it.
	sed -i 's/restrict_oom_score_adj = false/restrict_oom_score_adj = true/' "$root/etc/containerd/config.toml"
	chroot "$root" ctr oci spec | jq '.hooks.createContainer[.hooks.createContainer | length] |= . + {path: "/kind/bin/mount-product-files.sh"} |
		del(.process.rlimits)' >"$root/etc/containerd/cri-base.json"
	cp "$ROOT"/integration/docker/node/*.yaml "$root/kind/manifests/"
	testbed_run 'echo $KUBERNETES_VERSION' >"$root/kind/version"
	install -m 755 "$KUBEADM" "$root/usr/bin/kubeadm"
	install -m 755 "$binaries/kubelet" "$root/usr/bin/kubelet"
	install -m 755 "$(readlink -f "$(command -v kubectl)")" "$root/usr/bin/kubectl"
}

# node_images FOLDER: archives of the images that nodes begin with, under the names that kubeadm, samples and the quick start
# use.
node_images() {
	testbed_run '
		images=$1
		components=$(components_folder)
		root=$images/root
		image_add_program "$root" "$components/hyperkube" /usr/local/bin/hyperkube
		for name in etcd kube-apiserver kube-controller-manager kube-scheduler kube-proxy; do
			ln -s hyperkube "$root/usr/local/bin/$name"
		done
		# What kube-proxy runs.
		image_add_program "$root" "$(readlink -f "$(command -v conntrack)")" /usr/sbin/conntrack
		image_add_program "$root" "$(readlink -f "$(command -v iptables-nft)")" /usr/sbin/xtables-nft-multi
		for name in iptables ip6tables; do
			for part in "" -save -restore; do ln -s xtables-nft-multi "$root/usr/sbin/$name$part"; done
		done
		for plugin in /usr/lib/*/xtables/*.so; do image_add_program "$root" "$plugin" "$plugin"; done
		image_add_users "$root" nonroot:65532
		mkdir -p "$root/tmp" "$root/run"
		image_pack "$images/kubernetes.tar" "$root" "registry.k8s.io/kube-apiserver:$KUBERNETES_VERSION" "{}"
		rm -rf "$root"
		ln "$(images_folder)"/*.tar "$images/" 2>/dev/null || cp "$(images_folder)"/*.tar "$images/"' "$1"
}

# node_commit IMAGES BASE: a container of the base takes the images; it becomes KIND_IMAGE.
node_commit() {
	local container tags version coredns
	version=$(testbed_run 'echo $KUBERNETES_VERSION')
	coredns=$(testbed_run 'echo $COREDNS_IMAGE')
	tags=$("$KUBEADM" config images list --kubernetes-version "$version" 2>/dev/null)
	container=$(in_engine docker run --detach --privileged --entrypoint sleep --volume "$1:/images:ro" "$2" infinity)
	in_engine docker exec --detach "$container" containerd
	for attempt in {1..60}; do
		! in_engine docker exec "$container" ctr version >/dev/null 2>&1 || break
		[ "$attempt" -lt 60 ] || fail "containerd does not start in $2"
		sleep 0.5
	done
	# Not unpacked: an overlay cannot be stacked on an overlay. Nodes have a volume for it.
	in_engine docker exec "$container" sh -ec '
		for tar in /images/*.tar; do ctr --namespace k8s.io images import --no-unpack "$tar"; done' >/dev/null
	{
		for tag in $tags; do
			case $tag in
			*/coredns/*) echo "$coredns $tag" ;;
			*/pause:*) ;;
			*) echo "registry.k8s.io/kube-apiserver:$version $tag" ;;
			esac
		done
		# What the quick start takes where CoreDNS is too old, as the one of this Kubernetes is.
		echo "$coredns $(sed -nE 's/^COREDNS_IMAGE=.*:-(.*)}$/\1/p' "$ROOT/integration/quickstart.sh")"
	} | while read -r from to; do
		[ "$from" = "$to" ] || in_engine docker exec "$container" ctr --namespace k8s.io images tag "$from" "$to" >/dev/null </dev/null
	done
	in_engine docker exec "$container" pkill containerd
	in_engine docker commit --change 'ENTRYPOINT ["/usr/local/bin/entrypoint", "/sbin/init"]' --change 'ENV container=docker' \
		"$container" "$KIND_IMAGE" >/dev/null
	in_engine docker rm --force --volumes "$container" >/dev/null
}
