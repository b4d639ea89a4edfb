//go:build linux

package mcast

import (
	"errors"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// failing is a Conn.fault that fails with each errno in turn, and then no more.
func failing(call uintptr, errnos ...unix.Errno) func(uintptr) unix.Errno {
	return func(c uintptr) unix.Errno {
		if c != call || len(errnos) == 0 {
			return 0
		}
		next := errnos[0]
		errnos = errnos[1:]
		return next
	}
}

// Reads survive what a network does to a socket, and count it; what a program
// did to it ends them.
func TestReadErrors(t *testing.T) {
	for _, c := range []struct {
		name    string
		errnos  []unix.Errno
		counted uint64
		fatal   unix.Errno
	}{
		{name: "interrupted", errnos: []unix.Errno{unix.EINTR, unix.EINTR}},
		{name: "nothing there after all", errnos: []unix.Errno{unix.EAGAIN}},
		{name: "no memory, no network", errnos: []unix.Errno{unix.ENOBUFS, unix.ENOMEM, unix.ENETDOWN, unix.ENETUNREACH, unix.EHOSTUNREACH}, counted: 5},
		{name: "nobody heard a request", errnos: []unix.Errno{unix.ECONNREFUSED, unix.ECONNREFUSED}, counted: 2},
		{name: "not a socket any more", errnos: []unix.Errno{unix.ENETDOWN, unix.EBADF}, counted: 1, fatal: unix.EBADF},
		{name: "our mistake", errnos: []unix.Errno{unix.EFAULT}, fatal: unix.EFAULT},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := must[*Conn](t)(Listen(ListenConfig{Addr: loopback}))
			defer in.Close()
			in.fault = failing(unix.SYS_RECVMMSG, c.errnos...)
			out := dial(t, in.LocalAddr(), SendConfig{})
			must[int](t)(out.Send([][]byte{[]byte("x"), []byte("y")}))
			ring := NewRing(8, 16)
			wake := NewWake()
			rx := StartRX(in, ring, wake, nil)
			if c.fatal != 0 {
				<-rx.done
				if err := rx.Err(); !errors.Is(err, c.fatal) || ring.Len() != 0 {
					t.Errorf("ended with %v, %d datagrams; want %v", err, ring.Len(), c.fatal)
				}
			} else {
				for came := wake.Arm(); ring.Len() < 2; came = wake.Arm() {
					<-came
				}
			}
			if err := rx.Close(); err != nil {
				t.Error(err)
			}
			if c.fatal == 0 && rx.Err() != nil {
				t.Error(rx.Err())
			}
			if n := rx.Counters().Errors; n != c.counted {
				t.Errorf("%d errors counted, want %d", n, c.counted)
			}
		})
	}
}

// All datagrams are tried; what the system has no room for is tried again, and
// what it refuses is counted and skipped.
func TestWriteErrors(t *testing.T) {
	full := slices.Repeat([]unix.Errno{unix.ENOBUFS}, sendTries+1)
	for _, c := range []struct {
		name    string
		errnos  []unix.Errno
		retries uint64
		refused unix.Errno // the first datagram
	}{
		{name: "interrupted", errnos: []unix.Errno{unix.EINTR, unix.EINTR}},
		{name: "full for a while", errnos: []unix.Errno{unix.ENOBUFS, unix.EAGAIN, unix.ENOMEM}, retries: 3},
		{name: "an earlier one was refused", errnos: []unix.Errno{unix.ECONNREFUSED}},
		{name: "no network", errnos: []unix.Errno{unix.ENETDOWN}, refused: unix.ENETDOWN},
		{name: "not permitted", errnos: []unix.Errno{unix.EPERM}, refused: unix.EPERM},
		{name: "full for good", errnos: full, retries: sendTries, refused: unix.ENOBUFS},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := must[*Conn](t)(Listen(ListenConfig{Addr: loopback}))
			defer in.Close()
			out := must[*Conn](t)(Listen(ListenConfig{Addr: loopback}))
			defer out.Close()
			out.fault = failing(unix.SYS_SENDMMSG, c.errnos...)
			batch := []Datagram{{Data: []byte("a"), Dst: in.LocalAddr()}, {Data: []byte("b"), Dst: in.LocalAddr()}, {Data: []byte("c"), Dst: in.LocalAddr()}}
			want := []string{"a", "b", "c"}
			if c.refused != 0 {
				want = want[1:]
			}
			n, err := out.WriteBatch(batch)
			if n != len(want) || (c.refused == 0) != (err == nil) || err != nil && !errors.Is(err, c.refused) {
				t.Errorf("%d sent, %v; want %d, %v", n, err, len(want), c.refused)
			}
			for i, d := range read(t, in, len(want), 16) {
				if string(d.Data) != want[i] {
					t.Errorf("datagram %d is %q, want %q", i, d.Data, want[i])
				}
			}
			k := out.Counters()
			if refused := uint64(3 - len(want)); k.Sent != uint64(len(want)) || k.SendRetries != c.retries || k.SendErrors != refused {
				t.Errorf("%+v; want %d sent, %d retries, %d refused", k, len(want), c.retries, refused)
			}
		})
	}
}
