# Stand-ins for the base images of the Dockerfile, under their names: from Debian's packages, because the engine of tests pulls
# nothing. docs/testing.md says what differs. Sourced after engine.sh.
# shellcheck shell=bash disable=SC2016,SC2153

# What the stand-ins contain, beside the smallest Debian. Debian's Rust is newer than that of the Dockerfile, and has the
# standard library of both architectures.
RUST_PACKAGES=(gcc libc6-dev make rustc-web cargo-web libstd-rust-web-dev:amd64 libstd-rust-web-dev:arm64)
case $(uname -m) in
x86_64) RUST_PACKAGES+=(gcc-aarch64-linux-gnu libc6-dev-arm64-cross) ;;
*) RUST_PACKAGES+=(gcc-x86-64-linux-gnu libc6-dev-amd64-cross) ;;
esac
readonly RUST_PACKAGES
# distroless/static, and what distroless/cc has besides.
readonly STATIC_PACKAGES=(base-files netbase tzdata)
readonly CC_PACKAGES=(libc6 libgcc-s1 libssl3 libstdc++6 zlib1g)

# base_names: sets RUST_IMAGE, STATIC_IMAGE and CC_IMAGE to what the Dockerfile begins its stages with.
base_names() {
	local RUST_VERSION name
	# shellcheck disable=SC2034 # RUST_IMAGE has it.
	RUST_VERSION=$(sed -n 's/^ARG RUST_VERSION=//p' "$ROOT/Dockerfile")
	for name in RUST_IMAGE STATIC_IMAGE CC_IMAGE; do
		eval "$name=$(sed -n "s/^ARG $name=//p" "$ROOT/Dockerfile")"
		[ -n "${!name}" ] || fail "the Dockerfile has no $name any more: integration/docker/bases.sh makes it"
	done
}

# debian ROOT: the smallest Debian of this machine's release, with its sources of packages.
debian() {
	local release
	# shellcheck source=/dev/null
	release=$(. /etc/os-release && echo "$ID ${VERSION_CODENAME:-}")
	[ "$release" = "debian bookworm" ] || fail "the stand-ins of base images are Debian bookworm, and made on it; this is $release"
	echo "debootstrap: ${1##*/}" >&2
	mkdir -p "$ENGINE/packages" "$ENGINE/logs"
	unshare --mount env DEBOOTSTRAP_DIR="$ENGINE/root/usr/share/debootstrap" "$ENGINE/root/usr/sbin/debootstrap" \
		--variant=minbase --cache-dir="$ENGINE/packages" bookworm "$1" >"$ENGINE/logs/debootstrap.log" 2>&1 ||
		{ tail "$ENGINE/logs/debootstrap.log" >&2; fail "debootstrap failed: see above"; }
	rm -f "$1/etc/apt/sources.list"
	cp -a /etc/apt/sources.list.d/debian.sources "$1/etc/apt/sources.list.d/" 2>/dev/null || cp -a /etc/apt/sources.list "$1/etc/apt/"
	cp /etc/resolv.conf "$1/etc/resolv.conf"
	# It starts nothing while packages are installed.
	printf '#!/bin/sh\nexit 101\n' >"$1/usr/sbin/policy-rc.d"
	chmod +x "$1/usr/sbin/policy-rc.d"
}

# debian_apt ROOT ARGUMENTS...: apt-get there.
debian_apt() {
	local root=$1
	shift
	DEBIAN_FRONTEND=noninteractive unshare --mount chroot "$root" /usr/bin/env -C /tmp "${APT[@]}" -qq "$@" >"$ENGINE/logs/apt.log" 2>&1 ||
		{ tail "$ENGINE/logs/apt.log" >&2; fail "apt-get $* failed: see above"; }
}

# debian_tidy ROOT: without sources, `apt-get update` and the installation of what is there succeed without a network.
debian_tidy() { rm -rf "$1"/etc/apt/sources.list* "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/* "$1/usr/sbin/policy-rc.d" "$1"/tmp/*; }

image_exists() { in_engine docker image inspect "$1" >/dev/null 2>&1; }

# bases_up: the images, unless the engine has those of these sources. Sets BASES for base_take.
bases_up() {
	local key work
	base_names
	key=$(cat "$ROOT/integration/docker/"{bases.sh,rustup} | sha256sum | cut -c1-12)
	if ! image_exists "stand-in/rust:$key" || ! image_exists "stand-in/cc-arm64:$key"; then
		work=$(mktemp -d "$ENGINE/work.XXXXXX")
		bases_make "$work" "$key"
		rm -rf "$work"
	fi
	crates_add "stand-in/rust:$key"
	# shellcheck disable=SC2034 # docker.sh reads it.
	BASES=$key
	base_take "$key" "$(in_engine docker version --format '{{.Server.Arch}}')"
}

# base_take KEY ARCHITECTURE: gives the distroless images of an architecture their names, of which each has one at a time.
base_take() {
	in_engine docker tag "stand-in/static-$2:$1" "$STATIC_IMAGE"
	in_engine docker tag "stand-in/cc-$2:$1" "$CC_IMAGE"
}

# bases_make FOLDER KEY
bases_make() {
	local root=$1/rust architecture package
	debian "$root"
	chroot "$root" dpkg --add-architecture amd64
	chroot "$root" dpkg --add-architecture arm64
	debian_apt "$root" update
	for architecture in amd64 arm64; do
		mkdir -p "$1/$architecture/cc" "$1/$architecture/static"
		debian_apt "$root" download "${STATIC_PACKAGES[@]}" "${CC_PACKAGES[@]/%/:$architecture}"
		for package in "$root"/tmp/*.deb; do
			case ${package##*/} in
			base-files* | netbase* | tzdata*) dpkg -x "$package" "$1/$architecture/static" ;;
			esac
			dpkg -x "$package" "$1/$architecture/cc"
			rm "$package"
		done
		distroless "$1/$architecture/static" "stand-in/static-$architecture:$2" "$architecture"
		distroless "$1/$architecture/cc" "stand-in/cc-$architecture:$2" "$architecture"
	done
	debian_apt "$root" install -y --no-install-recommends "${RUST_PACKAGES[@]}"
	debian_tidy "$root"
	install -m 755 "$ROOT/integration/docker/rustup" "$root/usr/local/bin/rustup"
	import "$root" "stand-in/rust:$2" --change 'ENV CARGO_HOME=/usr/local/cargo CARGO_NET_OFFLINE=true'
}

# distroless ROOT IMAGE ARCHITECTURE: certificates, the user 65532, and no shell.
distroless() {
	install -D -m 644 /etc/ssl/certs/ca-certificates.crt "$1/etc/ssl/certs/ca-certificates.crt"
	printf '%s\n' root:x:0:0:root:/root:/sbin/nologin nonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin >"$1/etc/passwd"
	printf '%s\n' root:x:0: nonroot:x:65532: >"$1/etc/group"
	install -d -o 65532 -g 65532 "$1/home/nonroot"
	# Built and not imported, because an import is of the engine's own architecture, whatever it is asked for, and then not taken
	# for another one.
	echo "building $2" >&2
	mkdir "$1.context"
	tar -C "$1" --numeric-owner -cf "$1.context/root.tar" .
	printf '%s\n' 'FROM scratch' 'ADD root.tar /' 'USER 65532' 'WORKDIR /home/nonroot' \
		'ENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt' |
		DOCKER_BUILDKIT=1 in_engine docker build --quiet --platform "linux/$3" --file - --tag "$2" "$1.context" >/dev/null
	[ "$(in_engine docker image inspect --format '{{.Architecture}}' "$2")" = "$3" ] || fail "$2 should be for $3"
}

# import ROOT IMAGE FLAG...: for the architecture of the engine.
import() {
	local root=$1 image=$2
	shift 2
	echo "importing $image" >&2
	tar -C "$root" --numeric-owner -cf - . | in_engine docker import "$@" - "$image" >/dev/null
}

# crates_add IMAGE: this one with the crates of Cargo.lock gets the name of the Dockerfile's, because its builds have no network.
crates_add() {
	local key work
	key=$( { cat "$ROOT/Cargo.lock"; echo "$1"; } | sha256sum | cut -c1-12)
	if ! image_exists "stand-in/rust-crates:$key"; then
		work=$(mktemp -d "$ENGINE/work.XXXXXX")
		echo "vendoring the crates of Cargo.lock" >&2
		cargo vendor --quiet --locked --versioned-dirs --manifest-path "$ROOT/Cargo.toml" "$work/crates" >/dev/null
		cat >"$work/config.toml" <<-'TOML'
			[source.crates-io]
			replace-with = "vendored"
			[source.vendored]
			directory = "/usr/local/cargo/crates"
		TOML
		printf 'FROM %s\nCOPY . /usr/local/cargo/\n' "$1" | DOCKER_BUILDKIT=1 in_engine docker build --quiet --file - --tag "stand-in/rust-crates:$key" "$work" >/dev/null
		rm -rf "$work"
	fi
	in_engine docker tag "stand-in/rust-crates:$key" "$RUST_IMAGE"
}
