#!/bin/sh
# Goals 1 and 2: what it costs to receive, against C and golang.org/x/net.
# In a network namespace of its own, on lo; takes a minute.
set -eu
cd "$(dirname "$0")"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
go build -o "$tmp/rx" ./rx
c=
if command -v cc >/dev/null; then
	cc -O2 -Wall -o "$tmp/recvmmsg" c/recvmmsg.c
	c=$tmp/recvmmsg
else
	echo "no C compiler: no C peer" >&2
fi
ns="unshare -n"
[ "$(id -u)" = 0 ] || ns="unshare -Urn"
# shellcheck disable=SC2086
$ns sh -c 'ip link set lo up && exec "$@"' sh "$tmp/rx" compare $c
