package mcast

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"
)

// TestRing checks a ring against a plain queue.
func TestRing(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		slots := rapid.IntRange(1, 9).Draw(rt, "slots")
		r := NewRing(slots, 16)
		var want []string
		held := 0
		next := 0
		for range rapid.IntRange(1, 80).Draw(rt, "steps") {
			if rapid.Bool().Draw(rt, "push") {
				m := fmt.Sprintf("%0*d", rapid.SampledFrom([]int{1, 16, 17, 3000}).Draw(rt, "size"), next)
				next++
				ok := r.Push(&Datagram{Data: []byte(m), Stamp: 7})
				if ok != (len(want)+held < r.Cap()) {
					rt.Fatalf("push is %v with %d of %d in use", ok, len(want)+held, r.Cap())
				}
				if ok {
					want = append(want, m)
				}
				continue
			}
			if r.Empty() != (len(want) == 0) {
				rt.Fatalf("empty is %v with %d waiting", r.Empty(), len(want))
			}
			d := r.Pop()
			held = 0
			if (d == nil) != (len(want) == 0) {
				rt.Fatalf("pop gives %v, %d waiting", d, len(want))
			}
			if d != nil {
				held = 1
				if string(d.Data) != want[0] || d.Stamp != 7 {
					rt.Fatalf("got %q, want %q", d.Data, want[0])
				}
				want = want[1:]
			}
		}
	})
}

// TestRingLargeBudget: datagrams longer than a slot are bounded in total, and
// give their share back.
func TestRingLargeBudget(t *testing.T) {
	r := NewRing(1024, 64)
	big := &Datagram{Data: make([]byte, 60000)}
	for round := range 2 {
		pushed, refused := 0, 0
		for range 600 {
			if r.Push(big) {
				pushed++
			} else {
				refused++
			}
		}
		if pushed*60000 > largeBudget || (pushed+1)*60000 <= largeBudget || refused != 600-pushed {
			t.Errorf("round %d: %d large datagrams in, %d refused", round, pushed, refused)
		}
		if !r.Push(&Datagram{Data: []byte("small")}) {
			t.Error("no room for a small one")
		}
		popped := 0
		for d := r.Pop(); d != nil; d = r.Pop() {
			popped++
		}
		if popped != pushed+1 || r.large.Load() != 0 {
			t.Errorf("round %d: %d of %d come out, %d bytes still counted", round, popped, pushed+1, r.large.Load())
		}
	}
}

// fake is a socket whose datagrams are made here: n of them, each with its
// number, as fast as they are read.
type fake struct {
	Socket
	n, at  int
	closed chan struct{}
}

func (f *fake) ReadBatch(ds []Datagram) (int, error) {
	if f.at == f.n {
		<-f.closed
		return 0, net.ErrClosed
	}
	k := min(len(ds), f.n-f.at, 1+f.at%5)
	for i := range k {
		ds[i].Data = binary.BigEndian.AppendUint64(ds[i].Data[:0], uint64(f.at))
		ds[i].Truncated = false
		f.at++
	}
	return k, nil
}
func (f *fake) Close() error              { close(f.closed); return nil }
func (f *fake) LocalAddr() netip.AddrPort { return netip.AddrPort{} }

// TestRXConserves runs an RX against an engine that sleeps on its Wake, with
// a ring that overflows: order is kept, and every datagram is accounted for.
func TestRXConserves(t *testing.T) {
	const n = 200000
	sock := &fake{n: n, closed: make(chan struct{})}
	wake := NewWake()
	rx := StartRX(sock, NewRing(64, 64), wake, nil)
	defer rx.Close()
	last, popped := -1, 0
	for uint64(popped)+rx.Counters().QueueDropped < n {
		for d := rx.Ring().Pop(); d != nil; d = rx.Ring().Pop() {
			at := int(binary.BigEndian.Uint64(d.Data))
			if at <= last {
				t.Fatalf("%d after %d", at, last)
			}
			last = at
			popped++
		}
		if uint64(popped)+rx.Counters().QueueDropped >= n {
			break
		}
		c := wake.Arm()
		if rx.Ring().Empty() && uint64(popped)+rx.Counters().QueueDropped < n {
			<-c
		}
		wake.Disarm()
	}
	if got := rx.Counters(); got.Received != n || popped == 0 {
		t.Errorf("%+v, %d popped", got, popped)
	}
}

// TestWakeIsNotLost hammers the arming protocol.
func TestWakeIsNotLost(t *testing.T) {
	w := NewWake()
	var made atomic.Int64
	const n = 100000
	go func() {
		for range n {
			made.Add(1)
			w.Signal()
		}
	}()
	for seen := int64(0); seen < n; {
		c := w.Arm()
		if made.Load() == seen {
			<-c
		}
		w.Disarm()
		seen = made.Load()
	}
}

func TestRXFailure(t *testing.T) {
	sock := newRecorder()
	wake := NewWake()
	rx := StartRX(sock, NewRing(8, 64), wake, nil)
	c := wake.Arm()
	close(sock.closed)
	<-c
	if rx.Err() == nil {
		t.Error("a read that failed is not told")
	}
	sock.closed = make(chan struct{})
	rx.Close()
}

func BenchmarkRing(b *testing.B) {
	r := NewRing(0, 0)
	d := &Datagram{Data: make([]byte, 200)}
	b.ReportAllocs()
	for b.Loop() {
		r.Push(d)
		r.Pop()
	}
}
