# The components, compiled from the Go modules in go/, and the images made of them.

# build: brings the cache up to date; returns at once if it is. Several checkouts share it.
build() {
	mkdir -p "$CACHE/logs" "$CACHE/components" "$CACHE/images"
	[ ! -d "$(components_folder)" ] || [ ! -d "$(images_folder)" ] || return 0
	exec 7>"$CACHE/build.lock"
	flock -n 7 || { say "waiting for another build to finish"; flock 7; }
	# What an interrupted build left: nobody else writes here while the lock is held.
	rm -rf "$CACHE"/{components,images}/.partial
	[ -d "$(components_folder)" ] || into "$(components_folder)" build_components
	[ -d "$(images_folder)" ] || into "$(images_folder)" build_images
	exec 7>&-
}

# into FOLDER CMD...: has CMD fill a folder beside FOLDER and renames it into place when it is complete.
into() {
	local folder=$1 partial
	partial=$(dirname "$folder")/.partial
	mkdir -p "$partial"
	shift
	"$@" "$partial"
	mv "$partial" "$folder"
}

# go_build MODULE OUT PACKAGE LDFLAGS
go_build() {
	cd "$TESTBED_DIR/go/$1"
	GOFLAGS='' CGO_ENABLED=0 go build -v -trimpath -buildvcs=false -ldflags "-s -w $4" -o "$2" "$3"
}

build_components() {
	local log=$CACHE/logs module component
	say "compiling Kubernetes $KUBERNETES_VERSION and etcd (about 6 minutes on 2 cores, once)"
	with_progress kubernetes "$log/kubernetes.log" go_build kubernetes "$1/hyperkube" . \
		"-X k8s.io/component-base/version.gitVersion=$KUBERNETES_VERSION"
	for component in etcd kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy; do
		ln -s hyperkube "$1/$component"
	done
	say "compiling agnhost, the image of Kubernetes' end-to-end tests"
	with_progress agnhost "$log/agnhost.log" go_build kubernetes "$1/agnhost" k8s.io/kubernetes/test/images/agnhost \
		"-X main.Version=${AGNHOST_IMAGE##*:}"
	say "compiling CoreDNS $COREDNS_VERSION (about 1 minute on 2 cores, once)"
	with_progress coredns "$log/coredns.log" go_build coredns "$1/coredns" . ''
	module=$(cd "$TESTBED_DIR/go/kubernetes" && go list -m -f '{{.Dir}}' k8s.io/kubernetes)
	quietly "$log/pause.log" cc -Os -static -DVERSION="${PAUSE_IMAGE##*:}" -o "$1/pause" "$module/build/pause/linux/pause.c"
}

build_images() {
	local components root
	components=$(components_folder)
	root=$1/root
	say "building images"

	mkdir -p "$root"
	cp "$components/pause" "$root/pause"
	image_pack "$1/pause.tar" "$root" "$PAUSE_IMAGE" '{"Entrypoint": ["/pause"], "User": "65535:65535"}'

	rm -rf "$root"
	mkdir -p "$root"
	cp "$components/coredns" "$root/coredns"
	image_add_certificates "$root"
	image_pack "$1/coredns.tar" "$root" "$COREDNS_IMAGE" '{"Entrypoint": ["/coredns"], "WorkingDir": "/"}'

	rm -rf "$root"
	mkdir -p "$root"
	build_agnhost_root "$root" "$components/agnhost"
	image_pack "$1/agnhost.tar" "$root" "$AGNHOST_IMAGE" '{"Entrypoint": ["/agnhost"], "Cmd": ["pause"]}'
	rm -rf "$root"
}

# build_agnhost_root ROOT AGNHOST: what agnhost's Dockerfile puts into the image, with Debian's tools for Alpine's.
build_agnhost_root() {
	local root=$1 module applet busybox
	mkdir -p "$root"/{bin,usr/bin,usr/local/bin,etc,tmp,uploads,root}
	chmod 1777 "$root/tmp" "$root/uploads"
	cp "$2" "$root/agnhost"
	ln -s agnhost "$root/agnhost-2"
	ln -s /agnhost "$root/usr/bin/agnhost"
	module=$(cd "$TESTBED_DIR/go/kubernetes" && go list -m -f '{{.Dir}}' k8s.io/kubernetes)
	cp "$module"/test/images/agnhost/porter/localhost.{crt,key} "$root/"
	busybox=$(busybox_program "$root.busybox")
	image_add_program "$root" "$busybox" /bin/busybox
	while read -r applet; do ln -s /bin/busybox "$root/bin/$applet"; done < <("$busybox" --list | grep -vx busybox)
	rm -rf "$root.busybox"
	for applet in dig nslookup curl wget; do
		rm -f "$root/bin/$applet"
		image_add_program "$root" "$(command -v $applet)" "/usr/bin/$applet"
	done
	image_add_certificates "$root"
	image_add_users "$root" user-defined-in-image:1000
	printf 'group-defined-in-image:x:50000:user-defined-in-image\n' >>"$root/etc/group"
	chmod -R u+w "$root"
}

# busybox_program FOLDER: the path of a busybox for the image; FOLDER is for what must be fetched. It is Debian's
# dynamically linked one, which cannot be installed beside busybox-static. The static one will not do: it resolves no names
# beside another glibc, and its shell runs its own applets instead of the programs in PATH.
busybox_program() {
	if command -v apt-get >/dev/null; then
		mkdir -p "$1"
		cd "$1"
		apt-get download -q busybox >apt.log 2>&1 || { apt-get update && apt-get download -q busybox; } >apt.log 2>&1 ||
			{ show_log apt.log; fail "failed to download the Debian package busybox"; }
		dpkg -x busybox_*.deb .
		find "$1" -path '*/bin/busybox'
	else
		command -v busybox || fail "missing: busybox; install it with this system's package manager"
	fi
}
