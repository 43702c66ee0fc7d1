# What the scripts of this folder share: where things are, headings with the time that has passed, and what is undone at
# the end. Sourced, with `set -euo pipefail`.
# shellcheck shell=bash disable=SC2034

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
readonly ROOT
readonly TESTBED=$ROOT/integration/testbed/testbed

# Everything that is built or fetched and worth keeping is outside the checkout, so that a fresh clone finds it.
export CLOUDMAP_MCS_CACHE=${CLOUDMAP_MCS_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/cloudmap-mcs}

# A plain `su` leaves these folders out of root's PATH, and nft is there.
export PATH=$PATH:/usr/sbin:/sbin

readonly CARGO_DENY_VERSION=0.20.2

# Settings of the user's shell for AWS must not leak into tests, and the SDK must not look for a machine's role.
readonly OFFLINE_AWS=(AWS_ACCESS_KEY_ID=emulator AWS_SECRET_ACCESS_KEY=emulator AWS_REGION=eu-central-1
	AWS_EC2_METADATA_DISABLED=true AWS_CONFIG_FILE=/dev/null AWS_SHARED_CREDENTIALS_FILE=/dev/null)

# Others of the machine may use it at the same time, and mirrors fail now and then.
readonly APT=(apt-get -o DPkg::Lock::Timeout=300 -o Acquire::Retries=5)

if [ -t 1 ]; then readonly BOLD=$'\e[1m' DIM=$'\e[2m' PLAIN=$'\e[0m'; else readonly BOLD='' DIM='' PLAIN=''; fi

elapsed() { printf '%d:%02d' $((SECONDS / 60)) $((SECONDS % 60)); }

# stage TEXT: a heading, with the minutes and seconds since the script started.
stage() {
	STAGE=$*
	printf '\n%s== [%s] %s%s\n' "$BOLD" "$(elapsed)" "$*" "$PLAIN"
}

# fail TEXT: ends the script with an error.
fail() {
	ENDED_BY=$*
	printf '\n%serror:%s %s\n' "$BOLD" "$PLAIN" "$*" >&2
	exit 1
}

# misused TEXT: ends the script because of its arguments.
misused() {
	printf '%serror:%s %s (%s --help)\n' "$BOLD" "$PLAIN" "$*" "$0" >&2
	exit 2
}

# arguments_check ARGUMENTS...: comes before anything that takes time. The comment that a script begins with is its help, and
# has a line `Usage: ...`. With --help or -h, prints it and ends the script. An option that it does not name is an error, and
# so is every argument if the usage has none.
arguments_check() {
	local argument help
	help=$(awk 'NR > 1 { if (!/^#/) exit; sub(/^# ?/, ""); print }' "$ROOT/integration/$(basename "$0")")
	for argument; do
		case $argument in
		--) return ;;
		-h | --help) printf '%s\n' "$help"; exit 0 ;;
		-*) [[ $help =~ (^|[^[:alnum:]-])"${argument%%=*}"($|[^[:alnum:]-]) ]] || misused "there is no option '$argument'" ;;
		*) ! grep -qE '^Usage: [^ ]+$' <<<"$help" || misused "it takes no arguments, not '$argument'" ;;
		esac
	done
}

# finally FUNCTION: however the script ends, FUNCTION clears up, is given the status, and is not stopped by a lost terminal.
# INTERRUPTED is set after a signal. A second Ctrl-C ends the clearing up, too.
finally() {
	# shellcheck disable=SC2064 # The name is known now.
	trap "cleared_up_by $1" EXIT
	trap 'INTERRUPTED=yes; exit 130' INT
	trap 'INTERRUPTED=yes; exit 143' TERM
	# What is printed to a terminal that is gone fails, and would end the clearing up.
	trap 'INTERRUPTED=yes; exec >/dev/null 2>&1; exit 129' HUP
}

cleared_up_by() {
	local status=$?
	trap - EXIT INT TERM
	trap '' HUP
	"$1" "$status"
	exit "$status"
}

# need COMMAND WHAT...: ends the script if commands are missing, naming all of them.
need() {
	local missing=()
	while [ $# -gt 0 ]; do
		command -v "$1" >/dev/null || missing+=("  - $1: $2")
		shift 2
	done
	[ ${#missing[@]} -eq 0 ] || fail "missing on this machine:"$'\n'"$(printf '%s\n' "${missing[@]}")"
}

# alone WHAT: until this script ends, no other one of this checkout has the same testbed, which each begins anew; ends the script
# if one has it already. Needs root. No lock does this, because daemons that compilers start would inherit it.
alone() {
	local file holder
	mkdir -p /run/cloudmap-mcs-testbed
	file=/run/cloudmap-mcs-testbed/$(cksum <<<"$ROOT $1 ${TESTBED_NAME:-}" | cut -d" " -f1).used
	exec 5>>"$file"
	flock 5
	holder=$(cat "$file")
	[ -z "$holder" ] || [ "$(process "${holder% *}")" != "$holder" ] ||
		fail "the process ${holder% *} of this checkout works with the same $1, and this one would end them: wait for it, or have
others with TESTBED_NAME, as in
  TESTBED_NAME=second make demo"
	process $$ >"$file"
	exec 5>&-
}

# process PID: prints its id and when it began, which tells it from a later one of the same id; nothing if there is none.
process() { sed -nE "s/.*\) ([^ ]+ ){19}([^ ]+) .*/$1 \2/p" "/proc/$1/stat" 2>/dev/null || true; }

# room GIB: ends the script if the cache's file system has less room than that. Compilers, clusters and emulators that run out of
# it fail long afterwards, and seldom say why.
room() {
	local free
	free=$(($(df -Pk "$CLOUDMAP_MCS_CACHE" | awk 'NR == 2 { print $4 }') / 1048576))
	[ "$free" -ge "$1" ] || fail "the disk of $CLOUDMAP_MCS_CACHE has $free GiB left, and this needs $1 GiB: make room, or name a folder on
another disk, as in
  CLOUDMAP_MCS_CACHE=/mnt/cache make test"
}

# version: prints the version of the workspace.
version() { sed -nE '/^\[workspace.package\]/,/^\[package\]/s/^version = "(.*)"/\1/p' "$ROOT/Cargo.toml"; }

# cargo_tool NAME VERSION [FLAG...]: prints where this version of a program of crates.io is; installs it into the cache.
cargo_tool() {
	local name=$1 version=$2 folder=$CLOUDMAP_MCS_CACHE/tools/$1-$2
	shift 2
	if ! [ -x "$folder/bin/$name" ]; then
		echo "installing $name $version into the cache (some minutes, once)" >&2
		# Not optimized, because each runs for seconds and compiles for minutes. Said here, because a function in $(...) goes on
		# after an error.
		CARGO_PROFILE_DEV_DEBUG=false cargo install --quiet --locked --debug --root "$folder" --target-dir "$folder.build" "$@" "$name@$version" >&2 ||
			fail "$name $version could not be installed from crates.io: see above"
		rm -rf "$folder.build"
	fi
	echo "$folder/bin/$name"
}

# build_release --bin NAME...: these binaries, such as the controller, the emulator and the simulations. One command for demo,
# tests, benchmarks and simulations: with other packages or flags cargo would compile the dependencies again. The flag lets a
# seed decide what tokio's runtime leaves to chance; without it a simulation cannot be repeated.
build_release() {
	(cd "$ROOT" && RUSTFLAGS="--cfg tokio_unstable ${RUSTFLAGS:-}" cargo build --release --workspace "$@")
}

# build_facts: exports what `cloudmap-mcs --version` says of a build beside the version. The same commit gives the same build:
# its date is the commit's, unless SOURCE_DATE_EPOCH is set.
build_facts() {
	local seconds
	CLOUDMAP_MCS_BUILD_COMMIT=$(git -C "$ROOT" rev-parse HEAD)
	[ -z "$(git -C "$ROOT" status --porcelain --untracked-files=no)" ] || CLOUDMAP_MCS_BUILD_COMMIT+=-modified
	seconds=${SOURCE_DATE_EPOCH:-$(git -C "$ROOT" log -1 --format=%ct)}
	# GNU's date, or that of macOS.
	CLOUDMAP_MCS_BUILD_DATE=$(date -u -d "@$seconds" +%FT%TZ 2>/dev/null || date -u -r "$seconds" +%FT%TZ)
	export CLOUDMAP_MCS_BUILD_COMMIT CLOUDMAP_MCS_BUILD_DATE
}

# build_dist: builds the controller as users have it, for this machine or for CARGO_BUILD_TARGET, and sets DIST to the file. No
# path of this machine is in it.
build_dist() {
	local target=${CARGO_BUILD_TARGET:-$(rustc -vV | sed -n 's/^host: //p')}
	local paths="--remap-path-prefix=$ROOT=/source --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}/registry/src=/crates"
	# Nobody unwinds a stack where a panic ends the process (see Cargo.toml).
	local smaller="-C force-unwind-tables=no"
	build_facts
	# With the part of glibc that it needs, it needs no library in its image. And from glibc 2.36, it has bits instead of 24 bytes
	# for each address that it corrects when it starts.
	case $target in *-linux-gnu) smaller+=" -C target-feature=+crt-static -C link-arg=-Wl,-z,pack-relative-relocs" ;; esac
	# With the target, even if it is this machine, the flags are not those of build scripts, which do unwind.
	(cd "$ROOT" && RUSTFLAGS="$paths $smaller" \
		cargo build --profile dist --locked --package cloudmap-mcs --bin cloudmap-mcs --target "$target")
	DIST=$CARGO_TARGET_DIR/$target/dist/cloudmap-mcs
}

# packages PACKAGE...: installs packages of Debian, where that is possible.
packages() {
	local install=("${APT[@]}" install -y -qq --no-install-recommends)
	[ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null || return 1
	echo "installing the packages $* (apt-get)" >&2
	(
		export DEBIAN_FRONTEND=noninteractive
		"${install[@]}" "$@" || { "${APT[@]}" update -qq && "${install[@]}" "$@"; }
	) >/dev/null
}

# chromedriver: prints where the program is that drives Chromium for tests.
chromedriver() {
	type -P chromedriver || { packages chromium chromium-driver && type -P chromedriver; } ||
		fail "chromedriver is missing: install Chromium and its ChromeDriver, or set CHROMEDRIVER=skip"
}

# python_tools NAME REQUIREMENT...: installs packages of PyPI into a virtual environment of the cache, unless they are there,
# and prints where its programs are. NAME has the versions, and changes with them.
python_tools() {
	local name=$1 venv=$CLOUDMAP_MCS_CACHE/$1
	shift
	if [ ! -f "$venv/complete" ]; then
		if ! command -v python3 >/dev/null || ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
			packages python3 python3-venv >&2 || fail "Python 3 with venv is missing: install it"
		fi
		mkdir -p "$CLOUDMAP_MCS_CACHE"
		# One at a time: several test runs may share the cache.
		(
			flock 9
			[ ! -f "$venv/complete" ] || exit 0
			echo "installing $name" >&2
			rm -rf "$venv"
			python3 -m venv "$venv" >&2
			"$venv/bin/pip" install --quiet --disable-pip-version-check --retries 10 --timeout 60 "$@" >&2
			touch "$venv/complete"
		) 9>"$venv.lock" || fail "$name could not be installed from PyPI"
	fi
	echo "$venv/bin"
}

# lua: prints where Lua is, for samples that are written in it.
lua() {
	type -P lua5.4 || type -P lua || { packages lua5.4 && type -P lua5.4; } ||
		fail "Lua is missing: install Lua 5.1 or later, or set LUA=skip"
}

# promtool: prints where Prometheus' tool for rules is. Where it is missing, it comes out of Debian's package, without the
# server being installed.
promtool() {
	local folder=$CLOUDMAP_MCS_CACHE/tools/prometheus work
	if type -P promtool; then return; fi
	if [ ! -x "$folder/promtool" ]; then
		command -v apt-get >/dev/null || fail "promtool is missing: install Prometheus' tools, or set PROMTOOL=skip"
		work=$(mktemp -d)
		chmod 755 "$work"
		(
			cd "$work" &&
				{ "${APT[@]}" download -qq prometheus || { "${APT[@]}" update -qq && "${APT[@]}" download -qq prometheus; }; } &&
				dpkg -x prometheus_*.deb .
		) >&2 || {
			rm -rf "$work"
			fail "the Debian package prometheus, which has promtool, could not be downloaded: install Prometheus' tools, or set PROMTOOL=skip"
		}
		mkdir -p "$folder"
		mv "$work/usr/bin/promtool" "$folder/promtool"
		rm -rf "$work"
	fi
	echo "$folder/promtool"
}

# use_target: sets CARGO_TARGET_DIR, unless it is set, to a folder of the cache for this compiler, which clones share.
#
# Cargo does not tell two checkouts of one workspace apart: it compares file times only, and would take what another
# checkout built for this one's. So whoever comes second throws the workspace's own crates away; the dependencies stay.
# Whoever comes while another one is at work gets a folder of its own.
use_target() {
	local owner profile folder own targets=()
	[ -z "${CARGO_TARGET_DIR:-}" ] || return 0
	CARGO_TARGET_DIR=$CLOUDMAP_MCS_CACHE/target/$(rustc --version | tr -c '[:alnum:].\n' - | tr -s -)
	mkdir -p "$CARGO_TARGET_DIR"
	exec 6>"$CARGO_TARGET_DIR/.in-use"
	flock -n 6 || CARGO_TARGET_DIR+=-$(cksum <<<"$ROOT" | cut -d" " -f1)
	export CARGO_TARGET_DIR
	mkdir -p "$CARGO_TARGET_DIR"
	if [ -d "$CARGO_TARGET_DIR/debug" ]; then room 5; else room 12; fi
	owner=$CARGO_TARGET_DIR/.checkout
	if [ -f "$owner" ] && [ "$(cat "$owner")" != "$ROOT" ]; then
		mapfile -t own < <(cd "$ROOT" && sed -n 's/^name = "\(cloudmap-mcs[a-z-]*\)"$/--package=\1/p' Cargo.toml {src/*,integration}/Cargo.toml)
		for folder in "$CARGO_TARGET_DIR"/*/dist; do
			[ ! -d "$folder" ] || targets+=(--target "$(basename "$(dirname "$folder")")")
		done
		for profile in dev release dist; do
			(cd "$ROOT" && cargo clean --quiet --profile "$profile" "${own[@]}" "${targets[@]}")
		done
	fi
	echo "$ROOT" >"$owner"
}
