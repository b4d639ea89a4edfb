package bench

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/moldtape/moldtape/capture/capfile"
	"github.com/moldtape/moldtape/cmd/internal/binaryfile"
	"github.com/moldtape/moldtape/cmd/internal/itch"
	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store"
)

// Feed is the messages of one session, packet by packet, in memory.
type Feed struct {
	Name   string
	Pieces []moldcast.Piece
	Rows   []byte // all messages, framed as on the wire
	Count  int    // messages
}

// Add adds a packet of n framed messages; its bytes are copied.
func (f *Feed) Add(framed []byte, n int, at moldcast.Stamp) {
	framed = bytes.Clone(framed)
	f.Pieces = append(f.Pieces, moldcast.Piece{
		First: moldcast.Seq(1 + f.Count), Msgs: moldcast.MessagesOf(framed, n), Time: at, Heard: at,
	})
	f.Rows = append(f.Rows, framed...)
	f.Count += n
}

// most is how much of a file is read: it is all in memory.
const most = 1 << 30

// ErrNoStream is a capture file without a stream that is known.
var ErrNoStream = errors.New("no stream of messages in it")

// ReadFeed reads a capture file, of which it takes the stream with the most
// messages, or a BinaryFILE (.itch, .rows, .bin; one message a packet, 10 µs apart).
func ReadFeed(path string) (*Feed, error) {
	if i, err := os.Stat(path); err == nil && (!i.Mode().IsRegular() || i.Size() > most) {
		return nil, fmt.Errorf("want a file of at most %d bytes", most)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	f := &Feed{Name: filepath.Base(path)}
	switch filepath.Ext(path) {
	case ".itch", ".rows", ".bin":
		r := binaryfile.NewReader(bytes.NewReader(b))
		for at := moldcast.Stamp(0); ; at += 10_000 {
			m, err := r.Next()
			if err != nil {
				return f, end(err)
			}
			f.Add(moldcast.AppendMessage(nil, m), 1, at)
		}
	}
	survey := capfile.NewSurvey(capfile.SurveyOptions{})
	if err := packets(b, survey.Add); err != nil {
		return nil, err
	}
	survey.Finish()
	flows := slices.DeleteFunc(survey.Flows(), func(w *capfile.Flow) bool { return w.Protocol == 0 })
	if len(flows) == 0 {
		return nil, ErrNoStream
	}
	busiest := slices.MaxFunc(flows, func(a, b *capfile.Flow) int { return int(a.Datagrams - b.Datagrams) })
	var scratch []byte
	return f, packets(b, func(p *capfile.Packet) {
		if w, _ := survey.Judge(p); w != busiest {
			return
		}
		if m, err := busiest.Protocol.Parse(p.Payload, &scratch); err == nil && m.Kind == moldcast.Data {
			f.Add(m.Msgs.Framed(), m.Msgs.Len(), p.Stamp)
		}
	})
}

// Pcap is f as a capture file, as `moldtape export` writes it.
func (f *Feed) Pcap() ([]byte, error) {
	var out bytes.Buffer
	w, err := capfile.NewWriter(&out, capfile.Pcap)
	if err != nil {
		return nil, err
	}
	to := netip.MustParseAddrPort("239.255.0.1:26400")
	var payload []byte
	for _, p := range f.Pieces {
		payload = moldcast.AppendHeader(payload[:0], session, p.First, uint16(p.Msgs.Len()))
		if err := w.Write(p.Time, to, append(payload, p.Msgs.Framed()...)); err != nil {
			return nil, err
		}
	}
	err = w.Flush()
	return out.Bytes(), err
}

// FeedOf is what a recording holds from its first message on, up to most
// framed bytes; holes are passed over.
func FeedOf(name string, v *store.View, most int) (*Feed, error) {
	f := &Feed{Name: name}
	c := v.Cursor(0)
	defer c.Close()
	for len(f.Rows) < most {
		p, err := c.Next()
		var hole *moldcast.HoleError
		switch {
		case errors.As(err, &hole):
		case err != nil:
			return f, end(err)
		default:
			f.Add(p.Msgs.Framed(), p.Msgs.Len(), p.Time)
		}
	}
	return f, nil
}

// Cut leaves the packets that fit into most framed bytes, at least one.
func (f *Feed) Cut(most int) {
	n, count, bytes := 0, 0, 0
	for _, p := range f.Pieces {
		if n > 0 && bytes+len(p.Msgs.Framed()) > most {
			break
		}
		n, count, bytes = n+1, count+p.Msgs.Len(), bytes+len(p.Msgs.Framed())
	}
	f.Pieces, f.Count, f.Rows = f.Pieces[:n], count, f.Rows[:bytes]
}

// session is under which name everything is measured.
var session = moldcast.Session{'B', 'E', 'N', 'C', 'H', ' ', ' ', ' ', ' ', ' '}

func end(err error) error {
	if err == io.EOF {
		return nil
	}
	return err
}

func packets(file []byte, fn func(*capfile.Packet)) error {
	raw, _, done, err := capfile.Decompress(bytes.NewReader(file))
	if err != nil {
		return err
	}
	defer done()
	r, err := capfile.NewReader(raw, capfile.Options{Checksums: true})
	if err != nil {
		return err
	}
	defer r.Close()
	var p capfile.Packet
	for err = r.Read(&p); err == nil; err = r.Read(&p) {
		fn(&p)
	}
	return end(err)
}

// Generated is n messages of the generator, perPacket a packet.
func Generated(n, perPacket int) *Feed {
	f := &Feed{Name: fmt.Sprintf("generator/packet=%d", perPacket)}
	g := itch.NewGenerator(n, 1)
	midnight := moldcast.Stamp(1_473_724_800_000_000_000)
	var framed []byte
	var at time.Duration
	for k := 0; ; {
		m, ok := g.Next()
		if ok {
			framed = moldcast.AppendMessage(framed, m)
			at, _ = itch.Timestamp(m)
			k++
		}
		if k > 0 && (k == perPacket || !ok) {
			f.Add(framed, k, midnight+moldcast.Stamp(at)+40_000+moldcast.Stamp(len(framed)*8%3_001))
			framed, k = framed[:0], 0
		}
		if !ok {
			return f
		}
	}
}
