package retransmit

import (
	"errors"
	"net/netip"
	"sync"
	"testing"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/mcast"
)

// blockView is a memView of blocks of 100 messages that are on disk until they
// are read.
type blockView struct {
	*memView
	mu      sync.Mutex
	have    map[moldcast.Seq]bool
	reads   []moldcast.Seq
	damaged moldcast.Seq                       // a block that cannot be read
	hold    map[moldcast.Seq](<-chan struct{}) // what the read of a block waits for
	begun   chan moldcast.Seq
}

func newBlockView() *blockView {
	return &blockView{
		memView: newMemView(1, 10_000, func(int) int { return 40 }), have: map[moldcast.Seq]bool{},
		damaged: ^moldcast.Seq(0), hold: map[moldcast.Seq](<-chan struct{}){}, begun: make(chan moldcast.Seq, 100),
	}
}

func (v *blockView) Block(q moldcast.Seq) any { return q / 100 }

func (v *blockView) Append(dst []byte, first moldcast.Seq, count, size int, cold bool) ([]byte, int, error) {
	out, n, err := v.memView.Append(dst, first, count, size, cold)
	if err != nil {
		return out, n, err
	}
	for q := first; q < first+moldcast.Seq(n); q++ {
		b := q / 100
		v.mu.Lock()
		have, wait := v.have[b], v.hold[b]
		if !have && cold {
			v.reads = append(v.reads, b)
		}
		v.mu.Unlock()
		switch {
		case have:
			continue
		case !cold:
			return dst, int(q - first), ErrCold
		}
		v.begun <- b
		if wait != nil {
			<-wait
		}
		if b == v.damaged {
			if q > first {
				n = int(q - first)
				return append(dst, v.blocks(first, n)...), n, nil
			}
			return dst, 0, errors.New("checksum")
		}
		v.mu.Lock()
		v.have[b] = true
		v.mu.Unlock()
	}
	return out, n, nil
}

func host(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 5000)
}

// However many clients want however much of one block, it is read once; those
// who wait for it keep no worker, so that another block is read meanwhile.
func TestColdSingleFlight(t *testing.T) {
	v := newBlockView()
	read := make(chan struct{})
	v.hold[1] = read
	r := run(t, Config{Source: memSource{s1: v}, Workers: 2})
	r.send(ask(host(0), s1, 100, 10))
	<-v.begun
	var in []mcast.Datagram
	for c := range 40 {
		for i := range 5 {
			in = append(in, ask(host(1+c), s1, moldcast.Seq(100+c+10*i), 10))
		}
	}
	r.send(in...)
	r.send(ask(host(50), s1, 500, 10))
	if got := <-r.conn.out; got.Dst != host(50) {
		t.Fatalf("answered %v first, while its block is being read", got.Dst)
	}
	for r.Stats().Pending < 201 { // of a crowd, who asks for less has its turn before others have had all of theirs
		r.send()
	}
	close(read)
	for range 201 {
		got := <-r.conn.out
		p, err := moldcast.Parse(got.Data)
		if err != nil {
			t.Fatal(err)
		}
		checkAnswer(t, got.Data, v.memView, s1, moldcast.Range{First: p.First, Next: p.First + 10})
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	st := r.Stats()
	checkConserved(t, st)
	if len(v.reads) != 2 || st.Cold != 202 || st.Pending != 0 {
		t.Fatalf("%v read, %s", v.reads, counted(st))
	}
}

// What begins in one block and goes on in the next waits for one after the
// other.
func TestColdAcrossBlocks(t *testing.T) {
	v := newBlockView()
	read := make(chan struct{})
	v.hold[1] = read
	r := run(t, Config{Source: memSource{s1: v}, Workers: 2})
	r.send(ask(host(0), s1, 190, 5))
	<-v.begun
	for c := range 10 {
		r.send(ask(host(1+c), s1, 195, 10))
	}
	close(read)
	for range 11 {
		<-r.conn.out
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if st := r.Stats(); len(v.reads) != 2 || st.Cold != 11 {
		t.Fatalf("%v read, %s", v.reads, counted(st))
	}
}

// A block that cannot be read is tried once for all who wait.
func TestColdFailsForAll(t *testing.T) {
	v := newBlockView()
	read := make(chan struct{})
	v.hold[1], v.damaged = read, 1
	r := run(t, Config{Source: memSource{s1: v}, Workers: 2})
	r.send(ask(host(0), s1, 100, 10))
	<-v.begun
	for c := range 10 {
		r.send(ask(host(1+c), s1, 150, 10))
	}
	close(read)
	r.send(ask(host(50), s1, 500, 10))
	<-r.conn.out
	for r.Stats().Pending > 0 {
		r.send()
	}
	st := r.Stats()
	checkConserved(t, st)
	if st.Unanswered[ReadFailed] != 11 || len(v.reads) != 2 {
		t.Fatalf("%v read, %s", v.reads, counted(st))
	}
}

// A client with a deep queue delays another by one read.
func TestColdTurns(t *testing.T) {
	v := newBlockView()
	read := make(chan struct{})
	v.hold[1] = read
	r := run(t, Config{Source: memSource{s1: v}, Workers: 1})
	r.send(ask(host(0), s1, 100, 10))
	<-v.begun
	for i := range 50 {
		r.send(ask(host(0), s1, moldcast.Seq(200+100*i), 10))
	}
	r.send(ask(host(1), s1, 9000, 10))
	close(read)
	for i := range 52 {
		if got := <-r.conn.out; got.Dst == host(1) {
			if i > 2 {
				t.Fatalf("answered as number %d", i)
			}
			return
		}
	}
	t.Fatal("not answered")
}

// A full queue makes room for the client that has less in it.
func TestColdMakesRoom(t *testing.T) {
	p := newPool(16)
	for c := range 4 {
		for i := range 4 {
			if why, _ := p.put(job{from: host(c), request: moldcast.Request{First: moldcast.Seq(100*c + i)}, block: 100*c + i}); why != isCold {
				t.Fatal(why)
			}
		}
	}
	for i, want := range []Reason{isCold, isCold, isCold, ColdFull} {
		why, dropped := p.put(job{from: host(9), request: moldcast.Request{First: moldcast.Seq(1000 + i)}, block: 1000 + i})
		if why != want || (dropped != nil) != (why == isCold) {
			t.Fatalf("%d: %v, dropped %v", i, why, dropped)
		}
		if dropped != nil && dropped.request.First%100 != 0 {
			t.Fatalf("not the oldest of a client was dropped: %v", dropped.request.First)
		}
	}
	if p.len() != 16 {
		t.Fatal(p.len())
	}
}
