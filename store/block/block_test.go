package block

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/moldtape/moldtape/moldcast"
)

var testSession = moldcast.Session{'0', '0', '0', '0', '0', '7', '5', '2', '5', 'B'}

// piece makes a piece of messages.
func piece(first moldcast.Seq, at moldcast.Stamp, msgs ...string) moldcast.Piece {
	var b []byte
	for _, m := range msgs {
		b = moldcast.AppendMessage(b, []byte(m))
	}
	return moldcast.Piece{First: first, Msgs: moldcast.MessagesOf(b, len(msgs)), Time: at, Heard: at}
}

// flat is a piece with its bytes as a string, to compare and print.
type flat struct {
	First       moldcast.Seq
	N           int
	Framed      string
	Time, Heard moldcast.Stamp
	Line        uint8
	Flags       moldcast.PieceFlags
}

func flatten(p moldcast.Piece) flat {
	return flat{p.First, p.Msgs.Len(), string(p.Msgs.Framed()), p.Time, p.Heard, p.Line, p.Flags}
}

func builderPieces(b *Builder) (all []flat) {
	b.PiecesFrom(0, func(p moldcast.Piece) bool { all = append(all, flatten(p)); return true })
	return all
}

func blockPieces(b *Block) (all []flat) {
	b.PiecesFrom(0, func(p moldcast.Piece) bool { all = append(all, flatten(p)); return true })
	return all
}

func mustEncoder(t testing.TB, o EncoderOptions) *Encoder {
	e, err := NewEncoder(o)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func mustDecoder(t testing.TB, o DecoderOptions) *Decoder {
	d, err := NewDecoder(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

func mustAppend(t testing.TB, b *Builder, pieces ...moldcast.Piece) {
	t.Helper()
	for _, p := range pieces {
		if err := b.Append(p); err != nil {
			t.Fatalf("append %v: %v", p.Range(), err)
		}
	}
}

func TestRoundTrip(t *testing.T) {
	b := NewBuilder(testSession)
	mustAppend(t, b,
		piece(10, 1000, "a", "", "ccc"),
		piece(13, 1005, "ddddddddddddd"),
		piece(20, 2000, "e"),
		moldcast.Piece{First: 14, Msgs: piece(14, 0, "rep", "aired").Msgs, Time: 1500, Heard: 9000, Line: moldcast.AnswerLine, Flags: moldcast.Repaired},
	)
	if err := b.Mark(moldcast.Mark{Kind: moldcast.End, Next: 21, Stamp: 3000, Line: 1}); err != nil {
		t.Fatal(err)
	}
	e, d := mustEncoder(t, EncoderOptions{}), mustDecoder(t, DecoderOptions{Verify: true})
	header, body, err := e.Encode(nil, b, EncodeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	h, err := ParseHeader(header)
	if err != nil {
		t.Fatal(err)
	}
	var got Block
	if err := d.Decode(h, body, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(builderPieces(b), blockPieces(&got)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(b.Runs(), got.Runs()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(b.Marks(), got.Marks()); diff != "" {
		t.Error(diff)
	}
}
