package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moldtape/moldtape/capture/capfile"
	"github.com/moldtape/moldtape/cmd/internal/binaryfile"
	"github.com/moldtape/moldtape/cmd/internal/itch"
	"github.com/moldtape/moldtape/moldcast"
)

// feed is the messages of a session, packet by packet.
type feed struct {
	name   string
	pieces []moldcast.Piece
	rows   []byte
	count  int
}

// add adds a packet; its bytes are copied.
func (f *feed) add(framed []byte, n int, at moldcast.Stamp) {
	framed = bytes.Clone(framed)
	f.pieces = append(f.pieces, moldcast.Piece{
		First: moldcast.Seq(1 + f.count), Msgs: moldcast.MessagesOf(framed, n), Time: at, Heard: at,
	})
	f.rows = append(f.rows, framed...)
	f.count += n
}

// readFeed reads a capture file, of which it takes the stream with the most
// messages, a BinaryFILE (.itch, one message a packet), or what WriteFile of
// rows wrote (.rows).
func readFeed(path string) (*feed, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	f := &feed{name: filepath.Base(path)}
	switch {
	case strings.HasSuffix(path, ".itch"), strings.HasSuffix(path, ".rows"):
		r := binaryfile.NewReader(bytes.NewReader(b))
		for at := moldcast.Stamp(0); ; at += 10_000 {
			m, err := r.Next()
			if err != nil {
				return f, end(err)
			}
			f.add(moldcast.AppendMessage(nil, m), 1, at)
		}
	}
	survey := capfile.NewSurvey(capfile.SurveyOptions{})
	if err := packets(b, survey.Add); err != nil {
		return nil, err
	}
	survey.Finish()
	flows := slices.DeleteFunc(survey.Flows(), func(w *capfile.Flow) bool { return w.Protocol == 0 })
	if len(flows) == 0 {
		return nil, errors.New("no stream in it")
	}
	most := slices.MaxFunc(flows, func(a, b *capfile.Flow) int { return int(a.Datagrams - b.Datagrams) })
	var scratch []byte
	return f, packets(b, func(p capfile.Packet) {
		if w, _ := survey.Judge(p); w != most {
			return
		}
		if m, err := most.Protocol.Parse(p.Payload, &scratch); err == nil && m.Kind == moldcast.Data {
			f.add(m.Msgs.Framed(), m.Msgs.Len(), p.Stamp)
		}
	})
}

func end(err error) error {
	if err == io.EOF {
		return nil
	}
	return err
}

func packets(file []byte, fn func(capfile.Packet)) error {
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
	for {
		p, err := r.Next()
		if err != nil {
			return end(err)
		}
		fn(p)
	}
}

// generated is n messages of the generator, perPacket a packet.
func generated(n, perPacket int) *feed {
	f := &feed{name: fmt.Sprintf("generator/packet=%d", perPacket)}
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
			f.add(framed, k, midnight+moldcast.Stamp(at)+40_000+moldcast.Stamp(len(framed)*8%3_001))
			framed, k = framed[:0], 0
		}
		if !ok {
			return f
		}
	}
}
