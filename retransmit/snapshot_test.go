package retransmit

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/soup"
)

// stated is a tape with snapshots.
type stated struct {
	*tape
	snaps  map[moldcast.Seq][]byte
	broken error // after the first piece
	open   atomic.Int32
}

func (v *stated) Recording(s moldcast.Session) (moldcast.Session, Recording, error) {
	name, _, err := v.tape.Recording(s)
	return name, v, err
}

func (v *stated) Snapshot(q moldcast.Seq) (Snapshot, error) {
	best := moldcast.Seq(0)
	for at := range v.snaps {
		if (q == 0 || at <= q) && at > best {
			best = at
		}
	}
	if best == 0 {
		return nil, ErrNoSnapshot
	}
	v.open.Add(1)
	return &memSnapshot{v: v, seq: best, b: v.snaps[best]}, nil
}

type memSnapshot struct {
	v   *stated
	seq moldcast.Seq
	b   []byte
	at  int
}

func (m *memSnapshot) Seq() moldcast.Seq { return m.seq }
func (m *memSnapshot) Size() uint64      { return uint64(len(m.b)) }
func (m *memSnapshot) Sum() [32]byte     { return sha256.Sum256(m.b) }
func (m *memSnapshot) Close() error      { m.v.open.Add(-1); return nil }
func (m *memSnapshot) Next(dst []byte) ([]byte, error) {
	if m.at == len(m.b) {
		return dst, io.EOF
	}
	if m.at > 0 && m.v.broken != nil {
		return dst, m.v.broken
	}
	n := min(32<<10, len(m.b)-m.at)
	m.at += n
	return append(dst, m.b[m.at-n:m.at]...), nil
}

// snapshotClient is a client that keeps what it gets of a snapshot.
type snapshotClient struct {
	*client
	begun, done moldcast.Seq
	none        bool
	state       []byte
}

func askSnapshot(p *pipes, seq moldcast.Seq) *snapshotClient {
	return askSnapshotAs(p, soup.Login{User: soup.SnapshotUser, Session: day1, Seq: seq})
}

func askSnapshotAs(p *pipes, l soup.Login) *snapshotClient {
	c := &snapshotClient{client: connect(p, l)}
	c.client.other = func(e soup.Event) {
		switch e.Kind {
		case soup.NoSnapshot:
			c.none = true
		case soup.Snapshot:
			c.begun = e.First
		case soup.SnapshotBytes:
			c.state = append(c.state, e.Bytes...)
		case soup.SnapshotDone:
			c.done = e.First
		}
	}
	return c
}

// A user that the server knows asks by its own name and password; SNAP is
// nobody's.
func TestStreamSnapshotUsers(t *testing.T) {
	v := &stated{tape: &tape{first: 1, head: 10, end: 10}, snaps: map[moldcast.Seq][]byte{5: []byte("state")}}
	may := func(user, password string) bool { return user == "ann" && password == "secret" }
	world2(t, v, StreamConfig{Authorise: may}, func(t *testing.T, s *StreamServer, p *pipes) {
		x := askSnapshotAs(p, soup.Login{User: soup.SnapshotLogin("ann"), Password: "secret", Session: day1})
		x.run(nil).check(t, 5, 10)
		if x.begun != 5 || x.done != 5 || string(x.state) != "state" {
			t.Errorf("%+v", x)
		}
		for _, l := range []soup.Login{{User: "ann+", Password: "Secret"}, {User: "ann++", Password: "secret"}, {User: soup.SnapshotUser, Password: "secret"}} {
			l.Session = day1
			c := askSnapshotAs(p, l).run(nil)
			var r *soup.RejectedError
			if !errors.As(c.err, &r) || r.Code != soup.NotAuthorised {
				t.Errorf("%s: %v", l.User, c.err)
			}
		}
	})
}

// A client that asks gets the newest snapshot at or before its sequence, and from
// that on every message, into what is live; without one the session from its
// start. One that does not ask gets none.
func TestStreamSnapshot(t *testing.T) {
	large := bytes.Repeat([]byte("state"), 60_000)
	v := &stated{tape: &tape{first: 1, head: 101, growing: true}, snaps: map[moldcast.Seq][]byte{20: large, 60: {}, 101: []byte("at the head")}}
	world2(t, v, StreamConfig{}, func(t *testing.T, s *StreamServer, p *pipes) {
		for _, c := range []struct {
			ask, at moldcast.Seq
		}{{0, 101}, {100, 60}, {60, 60}, {59, 20}, {20, 20}, {19, 0}} {
			x := askSnapshot(p, c.ask)
			until := moldcast.Seq(101)
			if c.at == 101 {
				v.set(func() { v.head = 121 })
				until = 121
			}
			first := c.at
			if c.at == 0 {
				first = 1
			}
			x.run(func() bool { return x.m.Next() == until })
			v.set(func() { v.head = 101 })
			x.check(t, first, until)
			if x.none != (c.at == 0) || x.begun != c.at || x.done != c.at || !bytes.Equal(x.state, v.snaps[c.at]) {
				t.Errorf("asked for %d: none %v, begun %d, done %d, %d bytes", c.ask, x.none, x.begun, x.done, len(x.state))
			}
		}
		plain := connect(p, soup.Login{User: "snap", Session: day1, Seq: 20})
		plain.other = func(e soup.Event) { t.Errorf("not asked for: %+v", e) }
		plain.run(func() bool { return plain.m.Next() == 101 })
		plain.check(t, 20, 101)
	})
	if n := v.open.Load(); n != 0 {
		t.Errorf("%d snapshots are left open", n)
	}
}

// At a hole the snapshot is sent all the same, and then the hole is told, from its
// very sequence; where it cannot be read on the client is told, and gets no more.
func TestStreamSnapshotFaults(t *testing.T) {
	v := &stated{tape: &tape{first: 1, head: 101, holes: []moldcast.Hole{{Range: moldcast.Range{First: 15, Next: 30}, Reason: moldcast.Unrecoverable}}}, snaps: map[moldcast.Seq][]byte{20: make([]byte, 100_000)}}
	world2(t, v, StreamConfig{}, func(t *testing.T, s *StreamServer, p *pipes) {
		x := askSnapshot(p, 0)
		x.run(nil)
		if x.first != 20 || x.done != 20 || x.hole != (moldcast.Range{First: 20, Next: 30}) || len(x.got) != 0 {
			t.Errorf("first %d, done %d, hole %v, %d messages", x.first, x.done, x.hole, len(x.got))
		}
		v.broken = errors.New("flipped")
		y := askSnapshot(p, 0)
		y.run(nil)
		if y.done != 0 || len(y.state) != 32<<10 || len(y.got) != 0 || !strings.Contains(strings.Join(y.debug, "\n"), "snapshot cannot be read") {
			t.Errorf("done %d, %d bytes, %q", y.done, len(y.state), y.debug)
		}
		// One that leaves in the middle, and one that never reads, leave nothing open.
		v.broken = nil
		z := askSnapshot(p, 0)
		z.run(func() bool { return len(z.state) > 0 })
		w := askSnapshot(p, 0)
		if _, err := w.conn.Write(w.m.Output(0)); err != nil {
			t.Fatal(err)
		}
	})
	if n := v.open.Load(); n != 0 {
		t.Errorf("%d snapshots are left open", n)
	}
}
