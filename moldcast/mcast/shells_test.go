package mcast

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/gap"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var testSession = moldcast.Session{'N', 'E', 'T', ' ', ' ', ' ', ' ', ' ', ' ', ' '}

// numbers is a source of n messages that hold their own number, of changing
// length.
type numbers struct {
	n, at int
	buf   [64]byte
}

func message(buf []byte, i int) []byte {
	m := buf[:8+i%23]
	clear(m)
	binary.BigEndian.PutUint64(m, uint64(i))
	return m
}

func (s *numbers) Next() ([]byte, error) {
	if s.at == s.n {
		return nil, io.EOF
	}
	s.at++
	return message(s.buf[:], s.at-1), nil
}

// check fails unless the messages come in order, each once and whole.
type check struct {
	t     testing.TB
	first moldcast.Seq
	n     int
	next  moldcast.Seq
	lost  []gap.Range
	end   moldcast.Seq
	wrong bool // said already
}

func (c *check) config() moldcast.ReceiverConfig {
	return moldcast.ReceiverConfig{
		Ordered: true,
		From:    c.first,
		OnMessage: func(seq moldcast.Seq, data []byte) {
			var buf [64]byte
			want := message(buf[:], int(seq-c.first))
			if !c.wrong && (seq < c.next || string(data) != string(want)) {
				c.wrong = true
				c.t.Errorf("message %d after %d is %x, want %x", seq, c.next-1, data, want)
			}
			c.next = seq + 1
			c.n++
		},
		OnLost: func(r gap.Range) { c.lost = append(c.lost, r) },
		OnEnd:  func(end moldcast.Seq) { c.end = end },
	}
}

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// buffers are n empty datagrams to read into.
func buffers(n, size int) []Datagram {
	ds := make([]Datagram, n)
	for i := range ds {
		ds[i].Data = make([]byte, 0, size)
	}
	return ds
}

// TestEndToEndVirtualTime runs a publisher and a receiver over two bad lines
// and a bad way back, in virtual time: everything is recovered.
func TestEndToEndVirtualTime(t *testing.T) {
	// The publisher answers for as long as the receiver asks, hundreds of times
	// for each gap: where each try fails by chance, which try meets which chance
	// is a matter of scheduling.
	const patience = time.Minute
	for _, c := range []struct {
		name       string
		first      moldcast.Seq
		multi, uni Impair
		within     time.Duration
	}{
		{"clean", 1, Impair{}, Impair{}, 2 * time.Second},
		{"loss", 1, Impair{Loss: 0.1, Seed: 1}, Impair{}, 8 * time.Second},
		{"late join, everything", 484311999, Impair{Loss: 0.05, Burst: 4, Duplicate: 0.03, Reorder: 0.05, Depth: 6, Seed: 2}, Impair{Loss: 0.2, Seed: 3}, 8 * time.Second},
		// A quarter of the tries succeeds, and there are four a second at last.
		{"near the end of numbers", ^moldcast.Seq(0) - 30000, Impair{Loss: 0.02, Reorder: 0.1, Seed: 4}, Impair{Loss: 0.5, Duplicate: 0.5, Seed: 5}, patience / 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const messages = 20000
				network := must[*Network](t)(NewNetwork(NetworkConfig{Latency: 300 * time.Microsecond, Multi: c.multi, Uni: c.uni}))
				group := netip.MustParseAddrPort("239.255.1.1:26400")
				line := must[*Endpoint](t)(network.Listen(ListenConfig{Addr: group}))
				requests := must[*Endpoint](t)(network.Listen(ListenConfig{}))
				server := must[*Endpoint](t)(network.Listen(ListenConfig{}))
				out := must[*Endpoint](t)(network.Dial(SendConfig{Addr: group}))
				began := time.Now()

				pub := must[*Publisher](t)(NewPublisher(PublisherConfig{
					Sender: moldcast.SenderConfig{Session: testSession, First: c.first, PacketMessages: 7},
					Out:    out, Requests: server, Rate: 20000, Linger: patience,
				}))
				got := &check{t: t, first: c.first}
				receiver := got.config()
				receiver.Gap.Budget = patience
				sub := must[*Subscriber](t)(NewSubscriber(SubscriberConfig{
					Receiver: receiver, Lines: []Socket{line}, Requests: requests,
					Servers: []netip.AddrPort{server.LocalAddr()},
				}))
				done := make(chan error)
				go func() { done <- pub.Run(t.Context(), &numbers{n: messages}) }()
				if err := sub.Run(t.Context()); err != nil {
					t.Error(err)
				}
				took := time.Since(began)
				if err := <-done; err != nil {
					t.Error(err)
				}

				if got.n != messages || len(got.lost) != 0 || got.end != c.first+messages {
					t.Errorf("%d messages, lost %v, end %d; want %d, none, %d", got.n, got.lost, got.end, messages, c.first+messages)
				}
				if took < time.Second || took > c.within {
					t.Errorf("1 s of messages took %v", took)
				}
				link, _ := line.Impairments()
				st := sub.Stats()
				if (link.Lost > 0) != (st.Recovered > 0) || st.Lost != 0 || st.Delivered != messages {
					t.Errorf("link %+v, receiver %+v", link, st)
				}
				if p := pub.Stats(); p.Answered == 0 && link.Lost > 0 || p.Ends < 2 {
					t.Errorf("publisher %+v", p)
				}
			})
		})
	}
}

// TestTwoLinesRepairEachOther: two lines that lose in different places, without
// a request server.
func TestTwoLinesRepairEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const messages = 10000
		network := must[*Network](t)(NewNetwork(NetworkConfig{Multi: Impair{Reorder: 0.02, Depth: 3, Seed: 9}}))
		var lines []Socket
		var done []chan error
		for i, every := range []int{13, 17} {
			group := netip.AddrPortFrom(netip.AddrFrom4([4]byte{239, 255, 1, byte(i + 1)}), 26400)
			lines = append(lines, must[*Endpoint](t)(network.Listen(ListenConfig{Addr: group})))
			pub := must[*Publisher](t)(NewPublisher(PublisherConfig{
				Sender: moldcast.SenderConfig{Session: testSession, PacketMessages: 1 + i},
				Out:    must[*Endpoint](t)(network.Dial(SendConfig{Addr: group})),
				Impair: must[*Impairment](t)(NewImpairment(Impair{DropEvery: every})),
				Rate:   10000, Linger: 3 * time.Second,
			}))
			c := make(chan error)
			done = append(done, c)
			go func() { c <- pub.Run(t.Context(), &numbers{n: messages}) }()
		}
		got := &check{t: t, first: 1}
		c := got.config()
		c.Gap.Budget = 500 * time.Millisecond
		sub := must[*Subscriber](t)(NewSubscriber(SubscriberConfig{Receiver: c, Lines: lines}))
		if err := sub.Run(t.Context()); err != nil {
			t.Error(err)
		}
		for _, c := range done {
			if err := <-c; err != nil {
				t.Error(err)
			}
		}
		// What both lost is lost; all else is there, once.
		st := sub.Stats()
		if lost := messages / (13 * 17); st.NAKSent != 0 || len(got.lost) != lost || st.Lost != uint64(lost) || got.n != messages-lost || got.end != messages+1 {
			t.Errorf("%+v, %d messages, lost %d ranges", st, got.n, len(got.lost))
		}
		if st.Duplicates < messages*8/10 {
			t.Errorf("%d duplicates", st.Duplicates)
		}
	})
}

// TestSourceIsAsked: the requests go to where the stream comes from; answers
// from anyone else do not count.
func TestSourceIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const messages = 3000
		network := must[*Network](t)(NewNetwork(NetworkConfig{Latency: time.Millisecond, Multi: Impair{Loss: 0.1, Seed: 2}}))
		group := netip.MustParseAddrPort("239.255.1.1:26400")
		line := must[*Endpoint](t)(network.Listen(ListenConfig{Addr: group}))
		requests := must[*Endpoint](t)(network.Listen(ListenConfig{}))
		out := must[*Endpoint](t)(network.Dial(SendConfig{Addr: group}))
		server := must[*Endpoint](t)(network.Listen(ListenConfig{Addr: netip.AddrPortFrom(out.LocalAddr().Addr(), 26401)}))
		stranger := must[*Endpoint](t)(network.Dial(SendConfig{Addr: requests.LocalAddr()}))
		forged := moldcast.AppendMessage(moldcast.AppendHeader(nil, testSession, 1, 1), []byte("forged"))
		must[int](t)(stranger.Send([][]byte{forged, forged}))

		pub := must[*Publisher](t)(NewPublisher(PublisherConfig{
			Sender: moldcast.SenderConfig{Session: testSession, PacketMessages: 5}, Out: out, Requests: server, Rate: 10000, Linger: 3 * time.Second,
		}))
		got := &check{t: t, first: 1}
		sub := must[*Subscriber](t)(NewSubscriber(SubscriberConfig{Receiver: got.config(), Lines: []Socket{line}, Requests: requests, SourcePort: 26401}))
		done := make(chan error)
		go func() { done <- pub.Run(t.Context(), &numbers{n: messages}) }()
		if err := errors.Join(sub.Run(t.Context()), <-done); err != nil {
			t.Error(err)
		}
		if st := sub.Stats(); got.n != messages || st.Recovered == 0 || st.Foreign != 2 {
			t.Errorf("%d messages, %+v", got.n, st)
		}
		stranger.Close()
	})
}

// TestSubscriberStops: a context that ends is no error, and what was received
// stays.
func TestSubscriberStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := must[*Network](t)(NewNetwork(NetworkConfig{}))
		group := netip.MustParseAddrPort("239.255.1.1:26400")
		out := must[*Endpoint](t)(network.Dial(SendConfig{Addr: group}))
		got := &check{t: t, first: 1}
		idle := 0
		sub := must[*Subscriber](t)(NewSubscriber(SubscriberConfig{
			Receiver: got.config(), Lines: []Socket{must[*Endpoint](t)(network.Listen(ListenConfig{Addr: group}))},
			OnIdle: func() { idle++ },
		}))
		var buf [64]byte
		b := moldcast.AppendMessage(moldcast.AppendHeader(nil, testSession, 1, 1), message(buf[:], 0))
		must[int](t)(out.Send([][]byte{b, moldcast.AppendHeader(nil, testSession, 2, 0), {}, b[:25], make([]byte, 3000)}))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := sub.Run(ctx); err != nil {
			t.Error(err)
		}
		if st := sub.Stats(); got.n != 1 || st.Malformed != 3 || idle == 0 || sub.Stamp() == 0 {
			t.Errorf("%d messages, idle %d times, %+v", got.n, idle, st)
		}
		out.Close()
	})
}

// TestUnrecoverable: what nobody can answer is lost, said once, and reception
// goes on.
func TestUnrecoverable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const messages = 1000
		network := must[*Network](t)(NewNetwork(NetworkConfig{Multi: Impair{DropEvery: 10}}))
		group := netip.MustParseAddrPort("239.255.1.1:26400")
		line := must[*Endpoint](t)(network.Listen(ListenConfig{Addr: group}))
		requests := must[*Endpoint](t)(network.Listen(ListenConfig{}))
		out := must[*Endpoint](t)(network.Dial(SendConfig{Addr: group}))
		pub := must[*Publisher](t)(NewPublisher(PublisherConfig{
			Sender: moldcast.SenderConfig{Session: testSession, PacketMessages: 1}, Out: out, Rate: 1000, Linger: 5 * time.Second,
		}))
		var lost, delivered uint64
		sub := must[*Subscriber](t)(NewSubscriber(SubscriberConfig{
			Receiver: moldcast.ReceiverConfig{
				Ordered:   true,
				Gap:       gap.Config{Budget: 200 * time.Millisecond},
				OnMessage: func(moldcast.Seq, []byte) { delivered++ },
				OnLost:    func(r gap.Range) { lost += r.Len() },
			},
			Lines: []Socket{line}, Requests: requests, Servers: []netip.AddrPort{netip.MustParseAddrPort("10.9.9.9:9")},
		}))
		done := make(chan error)
		go func() { done <- pub.Run(t.Context(), &numbers{n: messages}) }()
		if err := sub.Run(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		if lost != 100 || delivered != 900 || sub.Stats().Lost != 100 || sub.Stats().NAKSent == 0 {
			t.Errorf("lost %d, delivered %d, %+v", lost, delivered, sub.Stats())
		}
	})
}

// recorder is a Socket that keeps what is sent; reads wait for Close.
type recorder struct {
	closed  chan struct{}
	packets []string
	at      []time.Duration
	began   time.Time
}

func newRecorder() *recorder { return &recorder{closed: make(chan struct{}), began: time.Now()} }

func (r *recorder) Send(batch [][]byte) (int, error) {
	for _, b := range batch {
		p, err := moldcast.Parse(b)
		if err != nil {
			return 0, err
		}
		r.packets = append(r.packets, fmt.Sprintf("%v %d+%d", p.Kind, p.First, p.Msgs.Len()))
		r.at = append(r.at, time.Since(r.began))
	}
	return len(batch), nil
}
func (r *recorder) WriteBatch(ds []Datagram) (int, error) { return len(ds), nil }
func (r *recorder) ReadBatch([]Datagram) (int, error)     { <-r.closed; return 0, io.ErrClosedPipe }
func (r *recorder) LocalAddr() netip.AddrPort             { return netip.AddrPort{} }
func (r *recorder) Close() error                          { close(r.closed); return nil }

func publish(t testing.TB, ctx context.Context, c PublisherConfig, src Source) (*recorder, PublisherStats, error) {
	t.Helper()
	out := newRecorder()
	c.Out = out
	c.Sender.Session = testSession
	p := must[*Publisher](t)(NewPublisher(c))
	err := p.Run(ctx, src)
	return out, p.Stats(), err
}

func TestPublisherFillsPackets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out, st, err := publish(t, t.Context(), PublisherConfig{
			Sender: moldcast.SenderConfig{PacketMessages: 4}, Linger: 2500 * time.Millisecond,
		}, &numbers{n: 10})
		want := []string{"heartbeat 1+0", "data 1+4", "data 5+4", "data 9+2", "end 11+0", "end 11+0", "end 11+0"}
		if err != nil || !reflect.DeepEqual(out.packets, want) {
			t.Errorf("%v, %v", out.packets, err)
		}
		if st.Messages != 10 || st.Packets != 3 || st.Ends != 3 || st.Publishing >= 2500*time.Millisecond {
			t.Errorf("%+v", st)
		}
	})
}

// TestPublisherDropEvery: what is dropped is not sent, but was sent as far as
// requests are concerned.
func TestPublisherDropEvery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out, st, err := publish(t, t.Context(), PublisherConfig{
			Sender: moldcast.SenderConfig{PacketMessages: 1},
			Impair: must[*Impairment](t)(NewImpairment(Impair{DropEvery: 3})),
		}, &numbers{n: 7})
		want := []string{"heartbeat 1+0", "data 1+1", "data 2+1", "data 4+1", "data 5+1", "data 7+1", "end 8+0"}
		if err != nil || !reflect.DeepEqual(out.packets, want) {
			t.Errorf("%v, %v", out.packets, err)
		}
		if st.Impair.Lost != 2 || st.Packets != 7 {
			t.Errorf("%+v", st)
		}
	})
}

// TestPublisherHoldsBack: a packet that is held back comes out before the
// heartbeat that would call it lost.
func TestPublisherHoldsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out, _, err := publish(t, t.Context(), PublisherConfig{
			Sender: moldcast.SenderConfig{PacketMessages: 1},
			Impair: must[*Impairment](t)(NewImpairment(Impair{Reorder: 1})),
		}, &numbers{n: 2})
		want := []string{"heartbeat 1+0", "data 1+1", "data 2+1", "end 3+0"}
		if err != nil || !reflect.DeepEqual(out.packets, want) {
			t.Errorf("%v, %v", out.packets, err)
		}
	})
}

func TestPublisherRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out, _, err := publish(t, t.Context(), PublisherConfig{Rate: 0.5, Sender: moldcast.SenderConfig{Heartbeat: 1500 * time.Millisecond}}, &numbers{n: 3})
		want := []string{"heartbeat 1+0", "data 1+1", "heartbeat 2+0", "data 2+1", "heartbeat 3+0", "data 3+1", "end 4+0"}
		if err != nil || !reflect.DeepEqual(out.packets, want) {
			t.Errorf("%v, %v", out.packets, err)
		}
		for i, at := range []time.Duration{0, 0, 1500, 2000, 3500, 4000, 4000} {
			if got := out.at[i].Round(time.Millisecond); got != at*time.Millisecond {
				t.Errorf("packet %d at %v, want %v ms", i, got, int(at))
			}
		}
	})
}

// piped is a source that waits.
type piped struct{ c chan string }

func (p *piped) Next() ([]byte, error) {
	m, ok := <-p.c
	if !ok {
		return nil, io.EOF
	}
	return []byte(m), nil
}

func TestPublisherLive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &piped{c: make(chan string)}
		go func() {
			for i := range 3 {
				time.Sleep(400 * time.Millisecond) // virtual
				src.c <- "a"
				if i == 1 {
					src.c <- "b"
				}
			}
			close(src.c)
		}()
		out, _, err := publish(t, t.Context(), PublisherConfig{Live: true, Sender: moldcast.SenderConfig{Heartbeat: 300 * time.Millisecond}}, src)
		var got []string
		for i, p := range out.packets {
			got = append(got, fmt.Sprint(out.at[i].Round(time.Millisecond), " ", p))
		}
		// Whether b goes with a is a matter of scheduling.
		text := strings.ReplaceAll(strings.Join(got, ", "), "800ms data 2+1, 800ms data 3+1", "800ms data 2+2")
		want := "0s heartbeat 1+0, 300ms heartbeat 1+0, 400ms data 1+1, 700ms heartbeat 2+0, 800ms data 2+2, " +
			"1.1s heartbeat 4+0, 1.2s data 4+1, 1.2s end 5+0"
		if err != nil || text != want {
			t.Errorf("%s: %v", text, err)
		}
	})
}

// TestPublisherStop: a stopped publisher says what it has, ends the session
// and is gone.
func TestPublisherStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 2250*time.Millisecond)
		defer cancel()
		out, _, err := publish(t, ctx, PublisherConfig{Rate: 1, Linger: time.Hour, Sender: moldcast.SenderConfig{Heartbeat: time.Minute}}, &numbers{n: 1000})
		want := []string{"heartbeat 1+0", "data 1+1", "data 2+1", "data 3+1", "end 4+0", "end 4+0", "end 4+0"}
		if err != nil || !reflect.DeepEqual(out.packets, want) {
			t.Errorf("%v, %v", out.packets, err)
		}
		if took := out.at[6].Round(time.Millisecond); took != 2350*time.Millisecond {
			t.Errorf("stopped at %v", took)
		}
	})
}

type broken struct{ n int }

var errBroken = errors.New("broken")

func (b *broken) Next() ([]byte, error) {
	if b.n--; b.n < 0 {
		return nil, errBroken
	}
	return []byte("x"), nil
}

// TestPublisherSourceFailsAtOnce: there is nothing to linger for.
func TestPublisherSourceFailsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out, _, err := publish(t, t.Context(), PublisherConfig{Linger: time.Hour}, &broken{})
		if want := []string{"heartbeat 1+0", "end 1+0"}; !errors.Is(err, errBroken) || !reflect.DeepEqual(out.packets, want) {
			t.Errorf("%v, %v", out.packets, err)
		}
	})
}

func TestPublisherSourceFails(t *testing.T) {
	for _, live := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			out, _, err := publish(t, t.Context(), PublisherConfig{Live: live}, &broken{n: 3})
			if !errors.Is(err, errBroken) || out.packets[len(out.packets)-1] != "end 4+0" {
				t.Errorf("%v, %v", out.packets, err)
			}
		})
	}
}
