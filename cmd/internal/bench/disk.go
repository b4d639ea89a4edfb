package bench

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store"
)

// Noise is n bytes that cannot be compressed.
func Noise(n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}

// NoiseFeed is messages of size bytes, one a packet, that cannot be compressed.
func NoiseFeed(n, size int) *Feed {
	f := &Feed{Name: "noise"}
	b := Noise(n * size)
	for i := range n {
		f.Add(moldcast.AppendMessage(nil, b[i*size:(i+1)*size]), 1, moldcast.Stamp(1_772_445_600_000_000_000+i*10_000))
	}
	return f
}

// chunk is how much an append of what a store holds back is synced at a time:
// what moldtape writes as one table at full rate.
const chunk = 4 << 20

// AppendSynced appends noise to a file in dir, with an fdatasync every 4 MiB,
// until d is over: the limit of any store there. It is bytes a second; the file
// is gone afterwards.
func AppendSynced(ctx context.Context, dir string, d time.Duration) (perSecond float64, err error) {
	f, err := os.Create(filepath.Join(dir, "append"))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	b := Noise(chunk)
	n, began := 0, time.Now()
	for n == 0 || time.Since(began) < d {
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		if _, err := f.Write(b); err != nil {
			return 0, err
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			return 0, os.NewSyscallError("fdatasync", err)
		}
		n += len(b)
	}
	return float64(n) / time.Since(began).Seconds(), nil
}

// Endless appends a feed to a recording, over and over, under numbers and
// times that go on.
type Endless struct {
	Feed *Feed

	i     int
	base  moldcast.Seq
	shift moldcast.Stamp
}

// Next is the next packet.
func (e *Endless) Next() moldcast.Piece {
	if e.i == len(e.Feed.Pieces) {
		first, last := e.Feed.Pieces[0], e.Feed.Pieces[e.i-1]
		e.base += moldcast.Seq(e.Feed.Count)
		e.shift += last.Time - first.Time + 10_000
		e.i = 0
	}
	p := e.Feed.Pieces[e.i]
	p.First += e.base
	p.Time += e.shift
	p.Heard += e.shift
	e.i++
	return p
}

// Stored is what a store made of a feed.
type Stored struct {
	Messages, Raw int           // Raw: framed bytes
	Took          time.Duration // until all was durable
	CPU           time.Duration // of the process, for all of it
	Disk, Wrote   int64         // bytes of the blocks; written for them, in write calls, the seal included
}

// MeasureStore appends a feed to a new archive at dir, as fast as it is taken,
// until d is over and all is durable, or until limit messages (0: none) are.
func MeasureStore(ctx context.Context, dir string, o store.Options, f *Feed, d time.Duration, limit int) (s Stored, err error) {
	o.Wait = true
	before, err := Written()
	if err != nil {
		return s, err
	}
	a, err := store.Create(dir, o)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, a.Close()) }()
	w, err := a.Writer("bench", session, 0)
	if err != nil {
		return s, err
	}
	cpu, began := CPU(), time.Now()
	feed := &Endless{Feed: f}
	for n := 0; ; n++ {
		if n%256 == 0 && (ctx.Err() != nil || limit == 0 && time.Since(began) >= d) {
			break
		}
		p := feed.Next()
		if _, err := w.Append(p); err != nil {
			return s, errors.Join(err, w.Close())
		}
		s.Raw += len(p.Msgs.Framed())
		if s.Messages += p.Msgs.Len(); limit > 0 && s.Messages >= limit {
			break
		}
	}
	err = errors.Join(ctx.Err(), w.Flush(ctx))
	s.Took = time.Since(began)
	err = errors.Join(err, w.Close())
	s.CPU = CPU() - cpu
	if err != nil {
		return s, err
	}
	after, err := Written()
	if err != nil {
		return s, err
	}
	s.Wrote = after - before
	info, err := a.Show(w.Ref())
	s.Disk = int64(info.BytesDisk)
	return s, err
}

// MeasureLag appends a feed at so many messages a second, in steps of 1 ms,
// until d is over, and is how much later than they were appended messages were
// durable, one of each step.
func MeasureLag(ctx context.Context, dir string, o store.Options, f *Feed, rate float64, d time.Duration) (lags []time.Duration, err error) {
	a, err := store.Create(dir, o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, a.Close()) }()
	w, err := a.Writer("bench", session, 0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	type step struct {
		next moldcast.Seq
		at   time.Time
	}
	var waiting []step
	feed, began := &Endless{Feed: f}, time.Now()
	next := moldcast.Seq(1)
	for over := false; !over || len(waiting) > 0; {
		now := time.Now()
		_, durable, _ := w.Watermarks()
		for len(waiting) > 0 && waiting[0].next <= durable {
			lags = append(lags, now.Sub(waiting[0].at))
			waiting = waiting[1:]
		}
		if over = over || now.Sub(began) >= d; !over {
			first := next
			for float64(next) < rate*now.Sub(began).Seconds() {
				p := feed.Next()
				if _, err := w.Append(p); err != nil {
					return nil, err
				}
				next = p.Range().Next
			}
			if next > first {
				waiting = append(waiting, step{next, now})
			}
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(time.Millisecond):
		}
		if err := w.Err(); err != nil {
			return nil, err
		}
	}
	return lags, nil
}
