package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"time"

	"github.com/moldtape/moldtape/moldcast/mcast"
)

// Loopback is the only interface that anything is sent on by multicast.
const Loopback = "lo"

// receiver takes in datagrams of one socket.
type receiver interface {
	// drain reads until the datagram that ends a burst was read, or nothing has
	// come for quiet; n is how many came, all counted.
	drain(quiet time.Duration) (n int, err error)

	// early is whether drain is to run while the burst is sent: what the kernel
	// holds is in its own memory meanwhile, else.
	early() bool
	Close() error
}

// warm is how many bursts do not count: until all memory is there.
const warm = 2

// Receipt is what receiving so cost.
type Receipt struct {
	Datagrams int           // that count
	Lost      int           // of all
	CPU       time.Duration // of all threads but the sender's
	Buffer    int           // bytes that the kernel holds, by its own account
}

// Each is the CPU for a datagram.
func (r Receipt) Each() time.Duration { return r.CPU / time.Duration(max(r.Datagrams, 1)) }

// endMark begins the last datagram of a burst.
const endMark = 'E'

// ReceiveBy are the ways to receive that are measured: "recvmmsg" is a bare
// loop of that system call, of 64 datagrams, without stamps and drop counts,
// the limit of "udp".
var ReceiveBy = []string{"recvmmsg", "udp", "ring"}

// MeasureReceive sends bursts of datagrams of size bytes to a group on lo, TTL
// 0, as many at a time as the kernel holds, until d is over, and takes each in
// once it is sent, by full batches; but the ring at once, by full blocks. Errors
// wrap mcast.ErrNoRing where that is why.
func MeasureReceive(ctx context.Context, how string, group netip.AddrPort, size int, d time.Duration) (r Receipt, err error) {
	runtime.LockOSThread() // the sender's
	defer runtime.UnlockOSThread()
	in, buffer, err := openReceiver(how, group)
	if err != nil {
		return r, err
	}
	r.Buffer = buffer
	type burst struct {
		n   int
		err error
	}
	sent, got := make(chan struct{}), make(chan burst, 1)
	ended := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and ends with it
		for range sent {
			n, err := in.drain(time.Second)
			got <- burst{n, err}
		}
		ended <- in.Close()
	}()
	defer func() {
		close(sent)
		err = errors.Join(err, <-ended)
	}()
	out, err := mcast.Dial(mcast.SendConfig{Addr: group, Interface: Loopback})
	if err != nil {
		return r, err
	}
	defer out.Close()
	batch := make([][]byte, mcast.BatchSize)
	for i := range batch {
		batch[i] = make([]byte, size)
	}
	// The kernel takes for a datagram at most what it is rounded up to, twice,
	// and its own head.
	most := min(buffer/(2*size+1536), 20_000, int(d/time.Microsecond))
	calls := max(1, most/len(batch))
	began := time.Now()
	var all, own time.Duration
	for k := 0; k <= warm || time.Since(began) < d; k++ {
		if ctx.Err() != nil {
			return r, ctx.Err()
		}
		allWas, ownWas := CPU(), ThreadCPU()
		if in.early() {
			sent <- struct{}{}
		}
		for k := range calls {
			if k == calls-1 {
				batch[len(batch)-1][0] = endMark
			}
			if _, err := out.Send(batch); err != nil {
				return r, fmt.Errorf("sending on %s: %w", Loopback, err)
			}
		}
		batch[len(batch)-1][0] = 0
		if !in.early() {
			sent <- struct{}{}
		}
		b := <-got
		if b.err != nil {
			return r, b.err
		}
		r.Lost += calls*len(batch) - b.n
		if k >= warm {
			all, own = all+CPU()-allWas, own+ThreadCPU()-ownWas
			r.Datagrams += b.n
		}
	}
	r.CPU = max(all-own, 0)
	if r.Datagrams == 0 {
		return r, fmt.Errorf("nothing that is sent to %v on %s arrives there", group, Loopback)
	}
	return r, nil
}

func openReceiver(how string, group netip.AddrPort) (receiver, int, error) {
	listen := mcast.ListenConfig{Addr: group, Interface: Loopback}
	switch how {
	case "ring":
		taps, err := mcast.OpenLines([]mcast.ListenConfig{listen}, mcast.RingBackend)
		if err != nil {
			return nil, 0, err
		}
		wake := mcast.NewWake()
		return &ringReceiver{rx: mcast.StartRX(taps[0].Socket, mcast.NewRing(1<<15, 0), wake, nil), wake: wake}, mcast.DefaultRingSize, nil
	case "udp":
		conn, err := mcast.Listen(listen)
		if err != nil {
			return nil, 0, err
		}
		return &udpReceiver{conn: conn}, conn.RecvBuffer(), nil
	case "recvmmsg":
		return newBareReceiver(group)
	}
	return nil, 0, fmt.Errorf("receive by %q: want one of %q", how, ReceiveBy)
}

// udpReceiver is the UDP back end: what a thread does to fill its ring.
type udpReceiver struct {
	conn *mcast.Conn
	ds   [mcast.BatchSize]mcast.Datagram
	bufs [mcast.BatchSize][2048]byte
}

func (u *udpReceiver) drain(quiet time.Duration) (n int, err error) {
	for idle := (time.Time{}); ; {
		for i := range u.ds {
			u.ds[i].Data = u.bufs[i][:0]
		}
		k, err := u.conn.TryReadBatch(u.ds[:])
		if err != nil {
			return n, err
		}
		n += k
		if k == 0 {
			if idle.IsZero() {
				idle = time.Now()
			}
			if time.Since(idle) > quiet {
				return n, nil
			}
			continue
		}
		idle = time.Time{}
		for i := range u.ds[:k] {
			if u.ds[i].Data[0] == endMark {
				return n, nil
			}
		}
	}
}

func (u *udpReceiver) early() bool { return false }

func (u *udpReceiver) Close() error { return u.conn.Close() }

// ringReceiver is the receive ring, all the way to the engine: thread, queue,
// Pop.
type ringReceiver struct {
	rx   *mcast.RX
	wake *mcast.Wake
}

func (r *ringReceiver) drain(quiet time.Duration) (n int, err error) {
	q := r.rx.Ring()
	late := time.NewTimer(quiet)
	defer late.Stop()
	for {
		for d := q.Pop(); d != nil; d = q.Pop() {
			n++
			if d.Data[0] == endMark {
				return n, nil
			}
		}
		c := r.wake.Arm()
		if q.Empty() {
			select {
			case <-c:
			case <-late.C:
				r.wake.Disarm()
				return n, nil
			}
		}
		r.wake.Disarm()
	}
}

func (r *ringReceiver) early() bool { return true }

func (r *ringReceiver) Close() error {
	err := r.rx.Close()
	r.rx.Ring().Discard()
	return err
}
