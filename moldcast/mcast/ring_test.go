package mcast

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

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

// lending is a lender whose datagrams are made here: n of them, each with its
// number, in memory that is spoilt when it is released.
type lending struct {
	fake
	out      []*Datagram // what is lent, from position first on
	first    uint64
	given    atomic.Int64
	borrowed bool
	t        *testing.T
}

func (l *lending) borrow()   { l.borrowed = true }
func (l *lending) giveBack() { l.given.Add(1) }

func (l *lending) lend(ds []Datagram, pos uint64) int {
	if pos != l.first+uint64(len(l.out)) {
		l.t.Errorf("lends at %d, want %d", pos, l.first+uint64(len(l.out)))
	}
	k := min(len(ds), l.n-l.at, 1+l.at%7)
	for i := range k {
		ds[i].Data = binary.BigEndian.AppendUint64(make([]byte, 0, 300), uint64(l.at))[:300] // longer than a slot
		ds[i].lent, ds[i].Truncated = true, l.at%100 == 99
		copied := ds[i]
		l.out = append(l.out, &copied)
		l.at++
	}
	return k
}

func (l *lending) release(pos uint64) {
	for l.first < pos {
		clear(l.out[0].Data)
		l.out = l.out[1:]
		l.first++
	}
}

func (l *lending) wait(bool) error {
	select {
	case <-l.closed:
		return net.ErrClosed
	case <-time.After(100 * time.Microsecond):
		return nil
	}
}

// TestRXLends runs an RX on a lender with a ring that is often full: nothing is
// lost or spoilt before the engine has popped on, and the memory is given back
// once, when all was popped.
func TestRXLends(t *testing.T) {
	const n = 20000
	sock := &lending{fake: fake{n: n, closed: make(chan struct{})}, t: t}
	wake := NewWake()
	rx := StartRX(sock, NewRing(64, 64), wake, nil)
	if !sock.borrowed {
		t.Error("lends without having been told")
	}
	next := 0
	take := func(d *Datagram) {
		for next%100 == 99 {
			next++
		}
		if at := int(binary.BigEndian.Uint64(d.Data)); at != next || len(d.Data) != 300 {
			t.Fatalf("got %d, %d bytes, want %d", at, len(d.Data), next)
		}
		next++
	}
	for next < n/2 {
		c := wake.Arm()
		for next < n/2 {
			d := rx.Ring().Pop()
			if d == nil {
				break
			}
			take(d)
		}
		if next < n/2 && rx.Ring().Empty() {
			<-c
		}
	}
	rx.Close()
	if sock.given.Load() != 0 && !rx.Ring().Empty() {
		t.Error("memory is given back that is still lent")
	}
	received := int(rx.Counters().Received)
	for d := rx.Ring().Pop(); d != nil; d = rx.Ring().Pop() {
		take(d)
	}
	rx.Ring().Discard()
	if got := sock.given.Load(); got != 1 {
		t.Errorf("memory is given back %d times", got)
	}
	if c := rx.Counters(); c.QueueDropped != 0 || received-next > 1 {
		t.Errorf("%d of %d came, %+v", next, received, c)
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
