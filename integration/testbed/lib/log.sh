# What the testbed says.

TESTBED_STARTED=$SECONDS

# say TEXT: one line of progress, with the seconds since the command started.
say() { printf '[testbed %3ds] %s\n' $((SECONDS - TESTBED_STARTED)) "$*" >&2; }

# fail TEXT: ends the command (or the subshell) with an error.
fail() {
	printf '[testbed] error: %s\n' "$*" >&2
	exit 1
}

# misused TEXT: ends with an error about the arguments.
misused() {
	printf '[testbed] error: %s (%s --help)\n' "$*" "$0" >&2
	exit 2
}

# show_log FILE: the end of a component's log, indented.
show_log() {
	printf -- '--- end of %s\n' "$1" >&2
	tail -n 15 "$1" 2>/dev/null | cut -c1-300 | sed 's/^/    /' >&2
}

# quietly LOG CMD...: runs a command with its output in a log, which is shown if the command fails.
quietly() {
	local log=$1
	shift
	"$@" >"$log" 2>&1 && return
	show_log "$log"
	fail "failed to run: $*"
}

# with_progress WHAT LOG CMD...: the same for a command of minutes; says now and then that it is still at work.
with_progress() {
	local what=$1 log=$2 started=$SECONDS pid ticks=0
	shift 2
	# In a process group of its own, which ends with this command: Ctrl-C does not reach what runs in the background.
	set -m
	"$@" >"$log" 2>&1 </dev/null &
	pid=$!
	set +m
	WORKING=$pid
	trap 'kill -- "-$WORKING" 2>/dev/null || true' EXIT
	while kill -0 "$pid" 2>/dev/null; do
		sleep 1
		ticks=$((ticks + 1))
		[ $((ticks % 20)) -ne 0 ] || say "  $what: $((SECONDS - started)) s $(tail -n 1 "$log" | cut -c1-80)"
	done
	trap - EXIT
	wait "$pid" && return
	show_log "$log"
	fail "failed: $what"
}

# wait_until SECONDS CMD...: tries a command five times a second until it succeeds.
wait_until() {
	local deadline=$((SECONDS + $1))
	shift
	until "$@" >/dev/null 2>&1; do
		[ "$SECONDS" -lt "$deadline" ] || return 1
		sleep 0.2
	done
}
