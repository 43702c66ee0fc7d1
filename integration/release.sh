#!/usr/bin/env bash
# Builds what a release consists of (`make release-dry-run`), into a folder outside the checkout, and publishes it (`make release`).
#
# Usage: integration/release.sh STEP...
#
#   audit       checks the dependencies against the database of advisories, and fails if it cannot be reached
#   notes       prints the notes of the release: what CHANGELOG.md says of this version
#   binary      the program for this machine's architecture, linked statically, with its licence, man pages and completions,
#               and its name as a plugin of kubectl, as .tar.gz
#   image       the images of the controller and of the emulator: with Docker for amd64 and arm64, as OCI archives; otherwise for
#               this architecture, as Docker archives
#   chart       the Helm chart
#   sbom        the bill of materials (CycloneDX) of the program
#   provenance  checksums of all that is there, and from which commit, by whom and how it was built (in-toto, SLSA)
#   sign        signatures of these two (cosign, by the identity of who runs it)
#   publish     pushes images and chart to REGISTRY, signs them, and makes the GitHub release of the tag
#
#   REGISTRY=host/name   where images and chart are published; the chart then has that image
#   RELEASE=folder       where all of it is put; by default in the cache
#   KEEP_GOING=1         say at the end what this machine cannot do, instead of failing: no cosign, no Docker
set -euo pipefail
# shellcheck source=integration/stages.sh
. "$(dirname "${BASH_SOURCE[0]}")/stages.sh"
arguments_check "$@"
cd "$ROOT"

VERSION=$(version)
RELEASE=${RELEASE:-$CLOUDMAP_MCS_CACHE/release/$VERSION}
# Registries take no capitals.
REGISTRY=$(tr "[:upper:]" "[:lower:]" <<<"${REGISTRY:-}")
readonly VERSION RELEASE REGISTRY
# The images, by the targets of the Dockerfile.
declare -rA IMAGES=([controller]=cloudmap-mcs [emulator]=cloudmap-emulator)
case $(uname -m) in x86_64) ARCHITECTURE=amd64 ;; aarch64 | arm64) ARCHITECTURE=arm64 ;; *) fail "releases are for amd64 and arm64; this is $(uname -m)" ;; esac
readonly ARCHITECTURE
MISSING=()

# missing TEXT: ends the script, or notes what this machine cannot do.
missing() {
	[ -n "${KEEP_GOING:-}" ] || fail "$*"
	MISSING+=("$*")
}

# The time of everything in a release.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH

# pack FOLDER FILE.tar.gz: the same content gives the same archive.
pack() {
	tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner -C "$(dirname "$1")" -cf - "$(basename "$1")" |
		gzip --no-name --best >"$2"
}

# section NAME: prints what CHANGELOG.md has below the heading `## NAME`, `## [NAME]` or `## NAME - DATE`.
section() { awk -v name="$1" '/^## / { inside = $2 == name || $2 == "[" name "]"; next } inside' CHANGELOG.md; }

step_notes() {
	local notes
	notes=$(section "$VERSION")
	if [ -z "$notes" ]; then
		missing "CHANGELOG.md has no section '## $VERSION': add this heading below '## Unreleased', above what is released"
		notes=$(section Unreleased)
	fi
	tee "$work/notes.md" <<<"$notes"
}

step_audit() {
	local cargo_deny
	cargo_deny=$(cargo_tool cargo-deny "$CARGO_DENY_VERSION")
	if ! timeout 120 "$cargo_deny" --all-features fetch db; then
		missing "the database of advisories cannot be reached: dependencies were not checked for known vulnerabilities"
		return 0
	fi
	"$cargo_deny" --all-features check --hide-inclusion-graph --disable-fetch advisories
}

# bases: writes which base images there are by digest, once for all images of a release, and prints them as arguments of the
# Dockerfile. A name may mean another image tomorrow, a digest may not.
bases() {
	local name image digest RUST_VERSION
	RUST_VERSION=$(sed -n 's/^ARG RUST_VERSION=//p' Dockerfile)
	if [ ! -s "$RELEASE/bases.json" ]; then
		for name in RUST_IMAGE CC_IMAGE STATIC_IMAGE; do
			image=$(sed -n "s/^ARG $name=//p" Dockerfile)
			image=${image/\${RUST_VERSION\}/$RUST_VERSION}
			digest=$(docker buildx imagetools inspect "$image" --format '{{.Manifest.Digest}}')
			[[ $digest =~ ^sha256:[0-9a-f]{64}$ ]] || fail "the digest of the base image $image is unknown: '$digest'"
			jq -n --arg name "$name" --arg image "$image@$digest" '{($name): $image}'
		done | jq -s add >"$work/bases.json" || return
		mv "$work/bases.json" "$RELEASE/bases.json"
	fi
	jq -r 'to_entries[] | "--build-arg\n\(.key)=\(.value)"' "$RELEASE/bases.json"
}

docker_works() { command -v docker >/dev/null && docker info >/dev/null 2>&1; }

step_binary() {
	local shell target name=cloudmap-mcs-$VERSION-linux-$ARCHITECTURE
	target=$(uname -m)-unknown-linux-musl
	if ! command -v musl-gcc >/dev/null; then packages musl-tools || true; fi
	need musl-gcc "the C compiler for static programs (Debian: musl-tools)" rustup "rustup (https://rustup.rs), for the target $target"
	rustup target add "$target"
	use_target
	CARGO_BUILD_TARGET=$target build_dist
	mkdir -p "$work/$name"
	cp LICENSE "$DIST" "$work/$name/"
	"$work/$name/cloudmap-mcs" --version
	ln -s cloudmap-mcs "$work/$name/kubectl-mcs"
	"$work/$name/cloudmap-mcs" man "$work/$name/man"
	mkdir "$work/$name/completions"
	for shell in bash zsh fish; do
		"$work/$name/cloudmap-mcs" completions "$shell" >"$work/$name/completions/cloudmap-mcs.$shell"
	done
	pack "$work/$name" "$RELEASE/$name.tar.gz"
}

step_image() {
	local target binary
	build_facts
	if docker_works; then
		# The default builder of Docker makes images for one architecture.
		docker buildx inspect cloudmap-mcs >/dev/null 2>&1 || docker buildx create --name cloudmap-mcs
		for target in "${!IMAGES[@]}"; do
			image_build "$target" --output "type=oci,dest=$RELEASE/${IMAGES[$target]}-$VERSION-image.tar"
		done
	else
		missing "the images are for $ARCHITECTURE only, and made without the Dockerfile: Docker does not answer here"
		use_target
		build_dist
		# As for tests: with the time and the facts of a release, cargo compiles what knows them, and all that needs it, once more.
		(
			unset SOURCE_DATE_EPOCH CLOUDMAP_MCS_BUILD_COMMIT CLOUDMAP_MCS_BUILD_DATE
			build_release --bin cloudmap-emulator
		)
		for binary in "$DIST" "$CARGO_TARGET_DIR/release/cloudmap-emulator"; do
			"$TESTBED" image "$(image "${binary##*/}")" "$RELEASE/${binary##*/}-$VERSION-image-$ARCHITECTURE.tar" "$binary"
		done
	fi
}

# image NAME: prints what the image of this name is called.
image() { echo "${REGISTRY:+$REGISTRY/}$1:$VERSION"; }

# image_build TARGET FLAG...: by the Dockerfile, with what BuildKit knows of its provenance and contents.
image_build() {
	local target=$1 arguments
	shift
	# Not in the command below, which would not fail.
	arguments=$(bases)
	mapfile -t arguments <<<"$arguments"
	docker buildx build --builder cloudmap-mcs --platform linux/amd64,linux/arm64 --target "$target" \
		--tag "$(image "${IMAGES[$target]}")" --provenance mode=max --sbom true \
		--build-arg CLOUDMAP_MCS_BUILD_COMMIT --build-arg CLOUDMAP_MCS_BUILD_DATE \
		--build-arg SOURCE_DATE_EPOCH "${arguments[@]}" "$@" .
}

# helm ARGUMENTS...: the one that is installed, or the one that tests use.
helm() {
	HELM=${HELM:-$(type -P helm || "$TESTBED" peer helm)}
	"$HELM" "$@"
}

step_chart() {
	# The chart takes its objects from config/ by symbolic links.
	cp -RL config/chart "$work/chart"
	[ -z "${GITHUB_REPOSITORY:-}" ] || sed -i "s|github.com/OWNER/cloudmap-mcs/|github.com/$GITHUB_REPOSITORY/|" "$work/chart/values.yaml"
	[ -z "$REGISTRY" ] || sed -i "s|^  repository: cloudmap-mcs\$|  repository: $REGISTRY/cloudmap-mcs|" "$work/chart/values.yaml"
	find "$work/chart" -exec touch --date "@$SOURCE_DATE_EPOCH" {} +
	helm lint --strict "$work/chart"
	helm package "$work/chart" --version "$VERSION" --app-version "$VERSION" --destination "$RELEASE"
}

step_sbom() {
	local cyclonedx
	cyclonedx=$(cargo_tool cargo-cyclonedx 0.5.9)
	# It writes beside the manifests that it reads; so it reads copies.
	git ls-files -z '*Cargo.toml' Cargo.lock 'src/*.rs' 'integration/*.rs' | xargs -0 cp --parents -t "$work"
	"$cyclonedx" cyclonedx --quiet \
		--manifest-path "$work/Cargo.toml" --format json --spec-version 1.5 --all-features --override-filename sbom
	jq --sort-keys 'del(.serialNumber)' "$work/sbom.json" >"$RELEASE/cloudmap-mcs-$VERSION-sbom.cdx.json"
}

step_provenance() {
	local commit
	commit=$(git rev-parse HEAD)
	(cd "$RELEASE" && rm -f SHA256SUMS* provenance.json* && sha256sum -- * >"$work/SHA256SUMS")
	mv "$work/SHA256SUMS" "$RELEASE/"
	jq -n --rawfile sums "$RELEASE/SHA256SUMS" --arg commit "$commit" --arg version "$VERSION" \
		--arg repository "${GITHUB_SERVER_URL:+$GITHUB_SERVER_URL/${GITHUB_REPOSITORY:-}}" \
		--arg builder "${GITHUB_WORKFLOW_REF:-local}" --arg run "${GITHUB_RUN_ID:-}" '{
			_type: "https://in-toto.io/Statement/v1",
			subject: [$sums | rtrimstr("\n") | split("\n")[] | {name: .[66:], digest: {sha256: .[:64]}}],
			predicateType: "https://slsa.dev/provenance/v1",
			predicate: {
				buildDefinition: {
					buildType: "make release",
					externalParameters: {version: $version},
					resolvedDependencies: [{uri: "git+\($repository)", digest: {gitCommit: $commit}}]},
				runDetails: {builder: {id: $builder}, metadata: {invocationId: $run}}}}' >"$RELEASE/provenance.json"
}

step_sign() {
	local file
	command -v cosign >/dev/null || { missing "nothing is signed: there is no cosign here"; return 0; }
	for file in SHA256SUMS provenance.json; do
		cosign sign-blob --yes --bundle "$RELEASE/$file.sigstore.json" "$RELEASE/$file"
	done
}

step_publish() {
	local target digest
	[ -n "$REGISTRY" ] || fail "REGISTRY says where images and chart go, as in REGISTRY=ghcr.io/me"
	need docker Docker cosign cosign gh "the GitHub command line"
	[ "$(git describe --tags --exact-match 2>/dev/null)" = "v$VERSION" ] || fail "this is not the commit of the tag v$VERSION"
	step_notes
	build_facts
	for target in "${!IMAGES[@]}"; do
		image_build "$target" --push --metadata-file "$work/image.json"
		digest=$(jq -r '."containerimage.digest"' "$work/image.json")
		cosign sign --yes --recursive "$REGISTRY/${IMAGES[$target]}@$digest"
	done
	helm push "$RELEASE/cloudmap-mcs-$VERSION.tgz" "oci://$REGISTRY/charts" 2>&1 | tee "$work/chart.log"
	digest=$(grep -oE 'sha256:[0-9a-f]{64}' "$work/chart.log" | head -n 1)
	cosign sign --yes "$REGISTRY/charts/cloudmap-mcs@$digest"
	gh release create "v$VERSION" --verify-tag --title "v$VERSION" --notes-file "$work/notes.md" "$RELEASE"/*
}

[ $# -gt 0 ] || misused "which step?"
for step; do declare -F "step_$step" >/dev/null || misused "there is no step '$step'"; done
need cargo "a Rust toolchain (https://rustup.rs)" git git jq jq tar "GNU tar"
mkdir -p "$RELEASE"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for step; do
	stage "$step"
	"step_$step"
done

stage "$RELEASE"
(cd "$RELEASE" && ls -l)
if [ ${#MISSING[@]} -gt 0 ]; then
	printf '\n%snot done on this machine:%s\n' "$BOLD" "$PLAIN"
	printf '  - %s\n' "${MISSING[@]}"
fi
