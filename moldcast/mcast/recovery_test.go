package mcast

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"net"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/rejoin"
	"github.com/moldtape/moldtape/moldcast/soup"
)

// streams is a recovery server in memory, of messages that are made at a rate.
type streams struct {
	t        testing.TB
	began    time.Time
	rate     int
	messages moldcast.Seq
	breaks   moldcast.Seq // after so many a connection breaks
	snapshot moldcast.Seq // 0: none
	wg       sync.WaitGroup
}

func (s *streams) head() moldcast.Seq {
	return 1 + min(s.messages, moldcast.Seq(time.Since(s.began).Seconds()*float64(s.rate)))
}

func (s *streams) dial(ctx context.Context, _ int) (net.Conn, error) {
	ours, theirs := net.Pipe()
	s.wg.Go(func() { s.serve(theirs) })
	return ours, ctx.Err()
}

func (s *streams) serve(conn net.Conn) {
	defer conn.Close()
	clock := NewClock()
	m := soup.NewServer(clock.Now())
	buf := make([]byte, 1024)
	sent := moldcast.Seq(0)
	for {
		_ = conn.SetReadDeadline(time.Now().Add(5 * time.Millisecond))
		n, err := conn.Read(buf)
		var out []byte
		for b := buf[:n]; len(b) > 0; {
			k, login, err := m.Receive(clock.Now(), b)
			b = b[k:]
			if err != nil {
				s.t.Error(err)
				return
			}
			if login != nil {
				out = append(out, s.login(m, login, clock.Now())...)
			}
		}
		if m.Closing() || err != nil && !errors.Is(err, context.DeadlineExceeded) && !isTimeout(err) {
			return
		}
		if m.Poll(clock.Now()) != nil {
			return
		}
		out = append(out, m.Output(clock.Now())...)
		if m.Serving() && sent > s.breaks {
			return
		}
		for i := 0; m.Serving() && i < 200 && m.Next() < s.head(); i++ {
			var b [64]byte
			out, _ = soup.AppendData(out, moldcast.MessagesOf(moldcast.AppendMessage(nil, message(b[:], int(m.Next()-1))), 1))
			m.Sent(clock.Now(), 1)
			sent++
		}
		if m.Serving() && m.Next() == s.messages+1 {
			m.End()
			out = append(out, m.Output(clock.Now())...)
		}
		if _, err := conn.Write(out); err != nil {
			return
		}
	}
}

func isTimeout(err error) bool {
	var e net.Error
	return errors.As(err, &e) && e.Timeout()
}

func (s *streams) login(m *soup.Server, l *soup.Login, now moldcast.Instant) []byte {
	if !l.WantsSnapshot() {
		m.Accept(testSession, min(max(l.Seq, 1), s.head()))
		return nil
	}
	m.Accept(testSession, s.snapshot)
	state := []byte("state")
	out := append([]byte(nil), m.Output(now)...)
	out = soup.AppendSnapshot(out, soup.SnapshotPacket{Kind: soup.SnapshotBegin, Seq: s.snapshot, Size: 5, Sum: sha256.Sum256(state)})
	out = soup.AppendSnapshot(out, soup.SnapshotPacket{Kind: soup.SnapshotData, Data: state})
	return soup.AppendSnapshot(out, soup.SnapshotPacket{Kind: soup.SnapshotEnd, Size: 5})
}

// kept is a snapshot in memory.
type kept struct {
	bytes.Buffer
	seq  moldcast.Seq
	done func(moldcast.Seq)
}

func (k *kept) Begin(q moldcast.Seq, _ uint64) error { k.Reset(); k.seq = q; return nil }
func (k *kept) Write(b []byte) error                 { _, err := k.Buffer.Write(b); return err }
func (k *kept) Done() error                          { k.done(k.seq); return nil }

// A receiver that comes when half is sent, over a line that loses a fifth of
// it, has everything from connections that break off again and again, or
// everything behind a snapshot.
func TestRecoveryVirtualTime(t *testing.T) {
	for _, snapshot := range []moldcast.Seq{0, 7001} {
		synctest.Test(t, func(t *testing.T) {
			const messages, rate = 20000, 10000
			network := must[*Network](t)(NewNetwork(NetworkConfig{Multi: Impair{Loss: 0.2, Seed: 5}}))
			group := netip.MustParseAddrPort("239.255.1.1:26400")
			out := must[*Endpoint](t)(network.Dial(SendConfig{Addr: group}))
			pub := must[*Publisher](t)(NewPublisher(PublisherConfig{
				Sender: moldcast.SenderConfig{Session: testSession, PacketMessages: 3}, Out: out, Rate: rate, Linger: 10 * time.Second,
			}))
			server := &streams{t: t, began: time.Now(), rate: rate, messages: messages, breaks: 3000, snapshot: snapshot}
			done := make(chan error)
			go func() { done <- pub.Run(t.Context(), &numbers{n: messages}) }()
			time.Sleep(time.Second) // of virtual time: half of it is gone
			line := must[*Endpoint](t)(network.Listen(ListenConfig{Addr: group}))
			got := &check{t: t, first: 1}
			c := got.config()
			rec := &RecoveryConfig{Config: rejoin.Config{Servers: 1}, Names: []string{"memory"}, Dial: server.dial}
			took := moldcast.Seq(0)
			if snapshot > 0 {
				k := &kept{}
				k.done = func(q moldcast.Seq) {
					if took = q; k.String() != "state" || got.n > 0 {
						t.Errorf("snapshot %q after %d messages", k.String(), got.n)
					}
				}
				rec.Snapshot = k
			}
			sub := must[*Subscriber](t)(NewSubscriber(SubscriberConfig{Receiver: c, Lines: []Socket{line}, Recovery: rec}))
			if err := sub.Run(t.Context()); err != nil {
				t.Error(err)
			}
			if err := <-done; err != nil {
				t.Error(err)
			}
			server.wg.Wait()
			want := messages
			if snapshot > 0 {
				want -= int(snapshot) - 1
			}
			st := sub.Stats()
			if got.n != want || got.lost != nil || got.end != messages+1 || took != snapshot {
				t.Errorf("%d messages, want %d, lost %v, end %d, snapshot at %d: %+v", got.n, want, got.lost, got.end, took, st)
			}
			if st.Streamed == 0 || st.Recovery.Reconnects == 0 {
				t.Errorf("%+v", st)
			}
		})
	}
}

// An error of what takes the snapshot ends Run.
func TestSnapshotFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := must[*Network](t)(NewNetwork(NetworkConfig{}))
		line := must[*Endpoint](t)(network.Listen(ListenConfig{Addr: netip.MustParseAddrPort("239.255.1.1:26400")}))
		server := &streams{t: t, began: time.Now(), rate: 1, messages: 10, breaks: 10, snapshot: 1}
		no := errors.New("no space left")
		c := (&check{t: t, first: 1}).config()
		c.Session = &testSession
		sub := must[*Subscriber](t)(NewSubscriber(SubscriberConfig{Receiver: c, Lines: []Socket{line}, Recovery: &RecoveryConfig{
			Config: rejoin.Config{Servers: 1, Snapshot: fullDisk{no}}, Names: []string{"memory"}, Dial: server.dial,
		}}))
		if err := sub.Run(t.Context()); !errors.Is(err, no) {
			t.Errorf("%v", err)
		}
		server.wg.Wait()
	})
}

type fullDisk struct{ err error }

func (f fullDisk) Begin(moldcast.Seq, uint64) error { return f.err }
func (f fullDisk) Write([]byte) error               { return f.err }
func (f fullDisk) Done() error                      { return f.err }
