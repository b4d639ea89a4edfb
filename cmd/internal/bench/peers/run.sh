#!/bin/sh
# Measures moldtape beside its peers, in turn, and prints for each goal the
# figure, the peer's, their ratio, and whether the goal is reached.
#
#   run.sh [--quick] [--runs N] [--only rx|tape|keep|tx|ask] [-- flags of tape or tx compare]
#
# All in a network namespace of its own: on lo, and on a veth pair of which one
# end sends and the other receives. Needs root, or unprivileged namespaces; two
# cores; Go. What peers are missing it says, and goes on without them. About
# half an hour; --quick nine minutes. $TMPDIR is where captures are written: 4 GB.
# MOLDTAPE_CORPUS names a folder of real captures, for goals 6 and 7.
set -eu
cd "$(dirname "$0")"
quick= runs= only=
while [ $# -gt 0 ]; do
	case $1 in
	--quick) quick=-quick ;;
	--runs) runs=$2; shift ;;
	--only) only=$2; shift ;;
	--) shift; break ;;
	*) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
	esac
	shift
done
: "${runs:=$([ "$quick" ] && echo 3 || echo 5)}"

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
go build -o "$tmp" ./rx ./tape ./keep ./tx ./ask
(cd ../../../.. && go build -o "$tmp/moldtape" ./cmd/moldtape)
c=
if command -v cc >/dev/null; then
	cc -O2 -Wall -o "$tmp/recvmmsg" c/recvmmsg.c
	c=$tmp/recvmmsg
else
	echo "no cc: apt-get install gcc libc6-dev" >&2
fi
if ! command -v ip >/dev/null; then
	echo "no ip: apt-get install iproute2" >&2
	exit 1
fi

ns="unshare -n"
[ "$(id -u)" = 0 ] || ns="unshare -Urn"
inside() {
	# shellcheck disable=SC2016
	$ns sh -ec '
		ip link set lo up
		ip link add tx0 type veth peer name rx0
		for i in tx0 rx0; do
			echo 1 >/proc/sys/net/ipv6/conf/$i/disable_ipv6 || true
			ip link set $i up
		done 2>/dev/null
		ip addr add 10.77.0.1/24 dev rx0
		exec "$@"' sh "$@"
}

wanted() { [ -z "$only" ] || [ "$only" = "$1" ]; }
# shellcheck disable=SC2086
! wanted rx || inside "$tmp/rx" compare "$runs" $c
# shellcheck disable=SC2086
! wanted tape || inside "$tmp/tape" compare -moldtape "$tmp/moldtape" -runs "$runs" $quick "$@"
# shellcheck disable=SC2086
if wanted keep; then inside "$tmp/keep" compare -runs "$runs" $quick; fi
[ "$only" = tx ] || set --
# shellcheck disable=SC2086
! wanted tx || inside "$tmp/tx" compare -moldtape "$tmp/moldtape" -runs "$runs" $quick "$@"
# shellcheck disable=SC2086
if wanted ask; then inside "$tmp/ask" compare -moldtape "$tmp/moldtape" -runs "$runs" $quick; fi
