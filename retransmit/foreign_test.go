package retransmit

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/soup"
)

// foreign speaks SoupBinTCP as its specification has it, and shares no code
// with package soup: it logs in for the next message, reads until the session
// ends or most messages came, and returns them with whether it ended.
func foreign(addr string, next uint64, most int) (msgs [][]byte, ended bool, err error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, false, err
	}
	defer conn.Close()
	login := fmt.Sprintf("L%-6s%-10s%-10s%20d", "user", "password", "DAY1", next)
	if _, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(login))), login...)); err != nil {
		return nil, false, err
	}
	accepted := false
	beat := time.Time{}
	for len(msgs) < most {
		if time.Since(beat) >= time.Second { // else it is taken for dead
			beat = time.Now()
			_ = conn.SetDeadline(beat.Add(time.Minute))
			_, _ = conn.Write([]byte("\x00\x01R")) // if it fails, reading tells why
		}
		var size [2]byte
		if _, err := io.ReadFull(conn, size[:]); err != nil {
			return msgs, false, err
		}
		packet := make([]byte, binary.BigEndian.Uint16(size[:]))
		if _, err := io.ReadFull(conn, packet); err != nil {
			return msgs, false, err
		}
		switch packet[0] {
		case 'A':
			got, err := strconv.ParseUint(strings.TrimLeft(string(packet[11:]), " "), 10, 64)
			if err != nil || got != next || string(packet[1:11]) != "DAY1      " || len(packet) != 31 {
				return msgs, false, fmt.Errorf("accepted %q", packet)
			}
			accepted = true
		case 'S':
			if !accepted {
				return msgs, false, fmt.Errorf("a message before the login was accepted")
			}
			msgs = append(msgs, packet[1:])
		case 'H', '+':
		case 'Z':
			return msgs, true, nil
		default:
			return msgs, false, fmt.Errorf("packet %q", packet)
		}
	}
	return msgs, false, nil
}

// A client that knows nothing of ours gets the whole session, byte for byte,
// however often it is cut off and comes back for the rest.
func TestForeignClient(t *testing.T) {
	v := &tape{first: 1, head: 50_000, end: 50_000, cold: 40_000}
	s := tcp(t, StreamConfig{Recordings: v})
	for _, most := range []int{1 << 30, 7_001} {
		var all [][]byte
		for ended := false; !ended; {
			msgs, end, err := foreign(s.Addr().String(), uint64(len(all)+1), most)
			if err != nil {
				t.Fatal(err)
			}
			all, ended = append(all, msgs...), end
		}
		if len(all) != 49_999 {
			t.Fatalf("%d messages", len(all))
		}
		for i, m := range all {
			if want := fmt.Appendf(nil, "message %d", i+1); !bytes.Equal(m, want) {
				t.Fatalf("message %d is %q", i+1, m)
			}
		}
	}
}

// Those who stop reading, on sockets, hold up nobody with the one turn there is,
// and are disconnected.
func TestStalledOnTCP(t *testing.T) {
	v := &tape{first: 1, head: 4_000_000, end: 4_000_000}
	s := tcp(t, StreamConfig{Recordings: v, Turns: 1, Stall: 300 * time.Millisecond})
	const lazy = 4
	for range lazy {
		conn, err := net.Dial("tcp", s.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.(*net.TCPConn).SetReadBuffer(16 << 10)
		if _, err := fmt.Fprintf(conn, "\x00\x2fL%-6s%-10s%-10s%20d", "", "", "DAY1", 1); err != nil {
			t.Fatal(err)
		}
	}
	if msgs, _, err := foreign(s.Addr().String(), 1, 30_000); err != nil || len(msgs) != 30_000 {
		t.Fatalf("%d messages, %v", len(msgs), err)
	}
	for limit := time.Now().Add(time.Minute); s.Stats().Ends[StreamStalled] < lazy; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("%+v", s.Stats())
		}
	}
}

// By TLS it is the same stream; who speaks none is counted, and who stops
// reading is disconnected.
func TestStreamTLS(t *testing.T) {
	web := httptest.NewTLSServer(http.NotFoundHandler()) // for its certificate
	defer web.Close()
	trust := web.Client().Transport.(*http.Transport).TLSClientConfig
	v := &tape{first: 1, head: 4_000_000, end: 4_000_000}
	cfg := StreamConfig{Recordings: v, TLS: &tls.Config{Certificates: web.TLS.Certificates}}
	s := tcp(t, cfg)
	dial := func(s *StreamServer, from uint64) (*client, error) {
		conn, err := tls.Dial("tcp", s.Addr().String(), trust)
		if err != nil {
			return nil, err
		}
		return speak(conn, soup.Login{Session: day1, Seq: moldcast.Seq(from)}), nil
	}
	c, err := dial(s, 3_900_000)
	if err != nil {
		t.Fatal(err)
	}
	if c.run(nil); c.end != v.end {
		t.Errorf("end %d (%v)", c.end, c.err)
	} else {
		c.check(t, 3_900_000, v.end)
	}
	if _, _, err := foreign(s.Addr().String(), 1, 1); err == nil {
		t.Error("a stream without TLS")
	}
	ends := func(s *StreamServer, e StreamEnd, n uint64) {
		t.Helper()
		for limit := time.Now().Add(time.Minute); s.Stats().Ends[e] < n; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(limit) {
				t.Fatalf("%v: %+v", e, s.Stats())
			}
		}
	}
	ends(s, StreamProtocol, 1)

	cfg.Stall = 300 * time.Millisecond // for the handshake too: lest a machine be too slow for it, again
	s = tcp(t, cfg)
	for limit := time.Now().Add(time.Minute); s.Stats().Ends[StreamStalled] == 0; {
		if time.Now().After(limit) {
			t.Fatalf("nobody has stalled: %+v", s.Stats())
		}
		lazy, err := dial(s, 1)
		if err != nil {
			continue
		}
		defer lazy.conn.Close()
		_, _ = lazy.conn.Write(lazy.m.Output(0))
		for s.Stats().Readers > 0 {
			time.Sleep(10 * time.Millisecond)
		}
	}
	before := s.Stats().Ends[StreamNoLogin]
	mute, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	ends(s, StreamNoLogin, before+1)
}
