package retransmit

import (
	"encoding/binary"
	"errors"
	"sync/atomic"

	"github.com/moldtape/moldtape/moldcast"
)

// memView is a View in memory: message q of a session is the framed form of
// what size and fill say, held or not, hot or cold.
type memView struct {
	first, head moldcast.Seq
	offsets     []int // of message first+i in framed; one more at the end
	framed      []byte
	missing     func(moldcast.Seq) bool // nil: nothing
	cold        func(moldcast.Seq) bool // nil: nothing
	fail        error                   // of a cold read
	entered     chan struct{}           // told at each cold read
	release     chan struct{}           // waited for in each cold read
	coldReads   atomic.Int64
	block       func(moldcast.Seq) any // nil: each message is its own
}

// newMemView holds n messages from first, of size(i) bytes each; message q
// begins with q, as far as it has room.
func newMemView(first moldcast.Seq, n int, size func(i int) int) *memView {
	v := &memView{first: first, head: first + moldcast.Seq(n), offsets: []int{0}}
	var buf [8]byte
	for i := range n {
		m := make([]byte, size(i))
		binary.BigEndian.PutUint64(buf[:], uint64(first)+uint64(i))
		copy(m, buf[:])
		v.framed = moldcast.AppendMessage(v.framed, m)
		v.offsets = append(v.offsets, len(v.framed))
	}
	return v
}

func (v *memView) blocks(first moldcast.Seq, n int) []byte {
	i := int(first - v.first)
	return v.framed[v.offsets[i]:v.offsets[i+n]]
}

func (v *memView) Bounds() (first, head moldcast.Seq) { return v.first, v.head }

func (v *memView) Append(dst []byte, first moldcast.Seq, count, size int, cold bool) ([]byte, int, error) {
	if v.missing != nil && v.missing(first) {
		return dst, 0, &moldcast.HoleError{Hole: moldcast.Hole{Range: moldcast.Range{First: first, Next: first + 1}, Reason: moldcast.Unrecoverable}}
	}
	if first < v.first {
		return dst, 0, errors.New("below the first")
	}
	n := 0
	for n < count && first+moldcast.Seq(n) < v.head {
		q := first + moldcast.Seq(n)
		if v.missing != nil && v.missing(q) {
			break
		}
		if len(v.blocks(first, n+1)) > size && n > 0 {
			break
		}
		if v.cold != nil && v.cold(q) && !cold {
			return dst, n, ErrCold
		}
		if n++; len(v.blocks(first, n)) > size {
			break
		}
	}
	if cold {
		v.coldReads.Add(1)
		if v.entered != nil {
			v.entered <- struct{}{}
		}
		if v.release != nil {
			<-v.release
		}
		if v.fail != nil {
			return dst, 0, v.fail
		}
	}
	return append(dst, v.blocks(first, n)...), n, nil
}

func (v *memView) Block(q moldcast.Seq) any {
	if v.block == nil {
		return q
	}
	return v.block(q)
}

// memSource is a Source of memViews.
type memSource map[moldcast.Session]View

func (m memSource) Lookup(s moldcast.Session) (View, bool) {
	v, ok := m[s]
	return v, ok
}

func session(name string) moldcast.Session {
	s, err := moldcast.ParseSession(name)
	if err != nil {
		panic(err)
	}
	return s
}
