# Container images without Docker: docker-archive files of one layer.

image_architecture() {
	case $(uname -m) in
	x86_64) echo amd64 ;;
	aarch64) echo arm64 ;;
	*) uname -m ;;
	esac
}

# image_add_program ROOT FILE PATH: copies a program and the shared libraries that it needs.
image_add_program() {
	local library
	install -D -m 0755 "$2" "$1$3"
	# ldd's lines are "name => /path (address)" or "/path (address)"; it fails on static programs, which need nothing.
	while read -r library; do
		[ -e "$1$library" ] || install -D -m 0755 "$library" "$1$library"
	done < <(ldd "$2" 2>/dev/null | grep -oE '(^|[[:space:]])/[^ ]+' | tr -d '[:blank:]')
	# Before glibc 2.34 name resolution was in libraries that are opened at run time, and that ldd does not name.
	for library in /lib/*-linux-gnu/libnss_{dns,files}.so.2; do
		[ ! -e "$library" ] || [ -e "$1$library" ] || install -D -m 0755 "$library" "$1$library"
	done
	[ -e "$1/etc/nsswitch.conf" ] || install -D -m 0644 <(echo 'hosts: files dns') "$1/etc/nsswitch.conf"
}

image_add_certificates() {
	install -D -m 0644 /etc/ssl/certs/ca-certificates.crt "$1/etc/ssl/certs/ca-certificates.crt"
}

# image_add_users ROOT NAME:ID: root, nobody and one more.
image_add_users() {
	mkdir -p "$1/etc"
	printf '%s\n' root:x:0:0:root:/root:/bin/sh nobody:x:65534:65534:nobody:/:/bin/false \
		"${2%:*}:x:${2#*:}:${2#*:}::/:/bin/false" >"$1/etc/passwd"
	printf '%s\n' root:x:0: nobody:x:65534: "${2%:*}:x:${2#*:}:" >"$1/etc/group"
}

# image_pack OUT ROOT NAME:TAG CONFIG: CONFIG is the JSON of the image's run configuration, without its Env.
image_pack() {
	local out=$1 root=$2 name=$3 work layer config
	work=$(mktemp -d "$out.XXXXXX")
	# The same content gives the same image, whoever packs it and when.
	tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -C "$root" -cf "$work/layer.tar" .
	layer=$(sha256sum "$work/layer.tar" | cut -d' ' -f1)
	jq -n --arg layer "sha256:$layer" --arg architecture "$(image_architecture)" --argjson config "$4" '{
		architecture: $architecture, os: "linux",
		config: ({Env: ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]} + $config),
		rootfs: {type: "layers", diff_ids: [$layer]},
		history: [{created_by: "cloudmap-mcs testbed"}]}' >"$work/config.json"
	config=$(sha256sum "$work/config.json" | cut -d' ' -f1).json
	mv "$work/config.json" "$work/$config"
	jq -n --arg config "$config" --arg name "$name" \
		'[{Config: $config, RepoTags: [$name], Layers: ["layer.tar"]}]' >"$work/manifest.json"
	tar --mtime=@0 --owner=0 --group=0 --numeric-owner -C "$work" -cf "$work/image" manifest.json "$config" layer.tar
	mv "$work/image" "$out"
	rm -rf "$work"
}

# image_of_binary NAME:TAG OUT BINARY [FILE=/PATH...]: an image that runs BINARY as the user 65532, as Dockerfiles of
# "distroless" base images do. Its entry point is /usr/local/bin/<name of the binary>.
image_of_binary() {
	local name=$1 out=$2 binary=$3 root program file
	shift 3
	[[ $name == ?*:?* ]] || fail "'$name' is no image name: it takes NAME:TAG"
	[ -x "$binary" ] || fail "'$binary' is not an executable file: build it first"
	# containerd knows images by their full names only.
	case ${name%%/*} in *.* | *:*/* | localhost) ;; *) [[ $name == */* ]] && name=docker.io/$name || name=docker.io/library/$name ;; esac
	root=$(mktemp -d)
	program=/usr/local/bin/$(basename "$binary")
	image_add_program "$root" "$binary" "$program"
	for file in "$@"; do
		[[ $file == ?*=/?* ]] || { rm -rf "$root"; fail "'$file' is not of the form FILE=/PATH"; }
		image_add_program "$root" "${file%%=/*}" "/${file#*=/}"
	done
	image_add_certificates "$root"
	image_add_users "$root" nonroot:65532
	chmod 0755 "$root"
	mkdir -p "$root/tmp"
	chmod 1777 "$root/tmp"
	image_pack "$out" "$root" "$name" "$(jq -n --arg program "$program" '{Entrypoint: [$program], User: "65532:65532", WorkingDir: "/"}')"
	rm -rf "$root"
	say "$out: $name, $(($(stat -c %s "$out") / 1000000)) MB"
}
