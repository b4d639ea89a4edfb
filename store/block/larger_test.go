package block

import (
	"encoding/binary"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/moldtape/moldtape/moldcast"
)

// Whatever comes, and whatever came before, in blocks small and large: what is
// stored takes no more than rows do, compressed as hard, and 1 %; in overload,
// where they are not tried, no more than they are. Times are held to the same
// for themselves.
func TestNeverLarger(t *testing.T) {
	if os.Getenv("MOLDTAPE_LONG") != "" {
		n := flag.Lookup("rapid.checks")
		was := n.Value.String()
		n.Value.Set("1000")
		defer n.Value.Set(was)
	}
	var plans []*Plans
	for _, feed := range slices.Sorted(maps.Keys(feeds)) {
		plans = append(plans, Learn(nil, feedBlock(feed, 40<<10, 3, 9)))
	}
	for level, of := range map[Level]Level{Dense: Default, Planes: Fastest, Hasty: None} {
		e, rows := mustEncoder(t, EncoderOptions{Level: level}), mustEncoder(t, EncoderOptions{Level: of})
		rapid.Check(t, func(t *rapid.T) {
			var past History
			e.Follow(&past)
			for _, b := range anyFeed(t) {
				switch rapid.IntRange(0, 15).Draw(t, "learned") {
				case 0:
					e.UsePlans(rapid.SampledFrom(plans).Draw(t, "plans"))
				case 1:
					if level == Dense { // which alone goes by them
						e.UsePlans(Learn(nil, b))
					}
				}
				if fault := larger(e, rows, b); fault != "" {
					t.Fatal(fault)
				}
			}
		})
	}
}

// Messages that are those of the block before in all but that they are repeated,
// whole, in parts or in good order, are seen to be.
func TestNeverLargerAgain(t *testing.T) {
	for level, of := range map[Level]Level{Dense: Default, Planes: Fastest} {
		e, rows := mustEncoder(t, EncoderOptions{Level: level}), mustEncoder(t, EncoderOptions{Level: of})
		for _, width := range []int{8, 20, 40} {
			for _, known := range []int{20, 300, 2000, 1 << 20} {
				for _, ordered := range []bool{false, true} {
					var past History
					e.Follow(&past)
					for _, again := range []bool{false, true} {
						rnd, n := rand.New(rand.NewPCG(1, 2)), uint32(0)
						b := NewBuilder(testSession)
						for q := moldcast.Seq(1); b.RawSize() < 256<<10; q++ {
							m := append(make([]byte, 24), 'M')
							n += uint32(rnd.IntN(100))
							binary.BigEndian.PutUint32(m[8:], n)
							of := rnd
							if again {
								k := rnd.IntN(known)
								if ordered {
									k = int(q) % known
								}
								of = rand.New(rand.NewPCG(uint64(k), 3))
							}
							for range width {
								m = append(m, byte(of.Uint32()))
							}
							framed := moldcast.AppendMessage(nil, m)
							if err := b.Append(moldcast.Piece{First: q, Msgs: moldcast.MessagesOf(framed, 1)}); err != nil {
								t.Fatal(err)
							}
						}
						x := new(Block)
						if err := b.Freeze(x); err != nil {
							t.Fatal(err)
						}
						if fault := larger(e, rows, x); fault != "" {
							t.Errorf("%v, %d bytes, one of %d, ordered %v: %s", level, width, known, ordered, fault)
						}
					}
				}
			}
		}
	}
}

// larger says where e stores more of b than rows does.
func larger(e, rows *Encoder, b *Block) (fault string) {
	most := func(n int) int { return n + n/100 + 8 }
	header, body := rows.EncodeBlock(nil, b, EncodeOptions{})
	r, times := len(header)+len(body), storedTimes(body)
	if header, body = e.EncodeBlock(nil, b, EncodeOptions{}); len(header)+len(body) > most(r) {
		fault = fmt.Sprintf("%d bytes of %d; rows take %d. ", len(header)+len(body), len(b.rows), r)
	}
	if n := storedTimes(body); n > most(times) {
		fault += fmt.Sprintf("%d bytes of %d times; compressed ones take %d.", n, len(b.times), times)
	}
	return fault
}

// storedTimes is how long the section of times in a body is.
func storedTimes(body []byte) int {
	for len(body) > 0 {
		n := sectionHeader + int(binary.BigEndian.Uint32(body[8:]))
		if tag(binary.BigEndian.Uint16(body)) == tagTimes {
			return n
		}
		body = body[n:]
	}
	return 0
}

// anyFeed are blocks, one after the other, of messages and times of a few
// natures, which change from block to block, and within one, or do not.
func anyFeed(t *rapid.T) (blocks []*Block) {
	rnd := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 3))
	var messages []func() []byte
	var fields []field
	if rapid.Bool().Draw(t, "fields") {
		fields = fieldsOf(t, rnd)
	}
	for k := range rapid.IntRange(1, 3).Draw(t, "natures of messages") {
		var next func() []byte
		switch how := rapid.IntRange(0, 3).Draw(t, "which"); {
		case how == 0:
			next = messagesOf(t, rnd, 2)
		case fields != nil && (k == 0 || how == 1):
			if k > 0 { // those of the same shape, one field is of another nature
				i := rapid.IntRange(0, len(fields)-1).Draw(t, "other field")
				fields = slices.Clone(fields)
				fields[i].next = fieldOf(t, rnd, fields[i].width)
			}
			next = messageOf(fields)
		case k == 0: // what columns suit
			next = feeds[rapid.SampledFrom([]string{"itch", "quotes"}).Draw(t, "feed")](rnd)
		default: // the same, and rows suit it better
			next = again(t, rnd, messages[0])
		}
		messages = append(messages, next)
	}
	var times []func() moldcast.Stamp
	for range rapid.IntRange(1, 2).Draw(t, "natures of times") {
		times = append(times, timesOf(t, rnd))
	}
	size := rapid.SampledFrom([]int{100, 20_000, smallRaw + 1000, 40_000, 60_000, 80_000, 150_000, 256 << 10}).Draw(t, "size")
	perPiece := rapid.SampledFrom([]int{1, 1, 2, 5, 40}).Draw(t, "messages a piece")
	late := rapid.SampledFrom([]int{1, 2, 50, 1 << 30}).Draw(t, "one piece heard late of")
	count := rapid.IntRange(1, min(6, 1+400_000/size)).Draw(t, "blocks")
	b, q, at := NewBuilder(testSession), moldcast.Seq(1), moldcast.Stamp(1_473_799_831_000_000_000)
	var weights []int
	for range count {
		// Of what it is: mostly of what the one before was.
		if weights == nil || rapid.IntRange(0, 2).Draw(t, "change") == 0 {
			weights = rapid.SliceOfN(rapid.SampledFrom([]int{0, 1, 3, 10, 30, 100}), len(messages), len(messages)).Draw(t, "weights")
			if rapid.Bool().Draw(t, "mostly the first") {
				weights[0] += 100
			}
		}
		stretch := rapid.SampledFrom([]int{1, 1, 50, 1000}).Draw(t, "stretch") // of messages of one nature
		from, left, stamps := 0, 0, rnd.IntN(len(times))
		size := size * rapid.SampledFrom([]int{100, 100, 90, 115, 50}).Draw(t, "of the size") / 100
		for b.RawSize() < size {
			var framed []byte
			n := max(1, rnd.IntN(perPiece+1))
			for range n {
				if left--; left < 0 {
					from, left = weighted(rnd, weights), rnd.IntN(2*stretch)
				}
				framed = moldcast.AppendMessage(framed, messages[from]())
			}
			at += times[stamps]()
			if rnd.IntN(2*size) < len(framed) {
				stamps = rnd.IntN(len(times))
			}
			p := moldcast.Piece{First: q, Msgs: moldcast.MessagesOf(framed, n), Time: at, Heard: at}
			if rnd.IntN(late) == 0 && late != 1<<30 {
				p.Heard += 1000 * moldcast.Stamp(rnd.IntN(1000))
			}
			if err := b.Append(p); err != nil {
				t.Fatal(err)
			}
			q += moldcast.Seq(n)
		}
		out := new(Block)
		if err := b.Freeze(out); err != nil {
			t.Fatal(err)
		}
		blocks = append(blocks, out)
		b.Reset(testSession)
	}
	return blocks
}

// weighted is one of what has these weights.
func weighted(rnd *rand.Rand, weights []int) int {
	all := 0
	for _, w := range weights {
		all += w
	}
	if all == 0 {
		return 0
	}
	k := rnd.IntN(all)
	for i, w := range weights {
		if k -= w; k < 0 {
			return i
		}
	}
	panic("unreachable")
}

// messagesOf draws a nature of messages; of others, up to so deep.
func messagesOf(t *rapid.T, rnd *rand.Rand, depth int) func() []byte {
	kinds := []string{"feed", "random", "alike", "tape", "counting", "feed"}
	if depth > 0 {
		kinds = append(kinds, "again", "again")
	}
	symbols := rapid.SampledFrom([]int{1, 2, 16, 100, 256})
	longest := rapid.SampledFrom([]int{1, 8, 20, 40, 100, 300, 1400})
	random := func(symbols, longest int, fixed bool) []byte {
		n := longest
		if !fixed {
			n = rnd.IntN(longest + 1)
		}
		m := make([]byte, n)
		for i := range m {
			m[i] = byte(rnd.IntN(symbols))
		}
		return m
	}
	switch rapid.SampledFrom(kinds).Draw(t, "nature") {
	case "feed":
		return feeds[rapid.SampledFrom(slices.Sorted(maps.Keys(feeds))).Draw(t, "feed")](rnd)
	case "alike": // but for a byte, or a field
		s, l, fixed := symbols.Draw(t, "symbols"), longest.Draw(t, "longest"), rapid.Bool().Draw(t, "fixed length")
		known := make([][]byte, rapid.SampledFrom([]int{1, 3, 20, 200}).Draw(t, "known"))
		for i := range known {
			known[i] = random(s, l, fixed)
		}
		field, keeps := rapid.IntRange(1, 8).Draw(t, "field"), rapid.Bool().Draw(t, "keeps")
		return func() []byte {
			k := rnd.IntN(len(known))
			m := slices.Clone(known[k])
			if len(m) > 0 {
				at := rnd.IntN(len(m))
				for i := at; i < min(at+field, len(m)); i++ {
					m[i] = byte(rnd.Uint32())
				}
			}
			if keeps {
				known[k] = m
			}
			return m
		}
	case "tape": // pieces of one long text
		tape := make([]byte, 2000+rapid.SampledFrom([]int{100, 2000, 20_000, 100_000}).Draw(t, "tape"))
		if s := symbols.Draw(t, "symbols"); rapid.Bool().Draw(t, "text") {
			words := make([][]byte, 200)
			for i := range words {
				words[i] = append(random(s, 9, false), ' ')
			}
			for at := 0; at < len(tape); {
				at += copy(tape[at:], words[min(rnd.IntN(len(words)), rnd.IntN(len(words)))])
			}
		} else {
			copy(tape, random(s, len(tape), true))
		}
		l, fixed := longest.Draw(t, "longest"), rapid.Bool().Draw(t, "fixed length")
		grid := rapid.SampledFrom([]int{1, 8, 100}).Draw(t, "grid")
		return func() []byte {
			n := l
			if !fixed {
				n = rnd.IntN(l + 1)
			}
			at := rnd.IntN(len(tape) - n)
			at -= at % grid
			return tape[at : at+n]
		}
	case "counting": // fields that go on by themselves, or with others
		l := max(16, longest.Draw(t, "longest"))
		base := random(256, l, true)
		steps := rapid.SliceOfN(rapid.SampledFrom([]int{0, 1, 1000, 1 << 20}), 1, 3).Draw(t, "steps")
		values := make([]uint64, len(steps))
		return func() []byte {
			m := slices.Clone(base)
			for i, s := range steps {
				values[i] += rnd.Uint64N(uint64(s) + 1)
				binary.BigEndian.PutUint32(m[4*i+1:], uint32(values[i]))
			}
			return m
		}
	case "again":
		return again(t, rnd, messagesOf(t, rnd, depth-1))
	default:
		s, l, fixed := symbols.Draw(t, "symbols"), longest.Draw(t, "longest"), rapid.Bool().Draw(t, "fixed length")
		return func() []byte { return random(s, l, fixed) }
	}
}

// again draws a nature of messages of another one that are repeated.
func again(t *rapid.T, rnd *rand.Rand, of func() []byte) func() []byte {
	several := func(n int) [][]byte {
		m := make([][]byte, n)
		for i := range m {
			m[i] = slices.Clone(of())
		}
		return m
	}
	switch rapid.SampledFrom([]string{"cycle", "runs", "nearly", "known"}).Draw(t, "again") {
	case "cycle":
		period := several(rapid.SampledFrom([]int{2, 7, 50, 300, 1000, 2000}).Draw(t, "period"))
		k := 0
		return func() []byte {
			k++
			return period[k%len(period)]
		}
	case "runs":
		run := rapid.SampledFrom([]int{2, 10, 100, 1000}).Draw(t, "run")
		m := of()
		return func() []byte {
			if rnd.IntN(run) == 0 {
				m = of()
			}
			return m
		}
	case "nearly": // but for few bytes, here and there
		one := rapid.SampledFrom([]int{2, 20, 500}).Draw(t, "one other byte of")
		return func() []byte {
			m := slices.Clone(of())
			for range (len(m) + rnd.IntN(one)) / one {
				if len(m) > 0 {
					m[rnd.IntN(len(m))] = byte(rnd.Uint32())
				}
			}
			return m
		}
	default: // one of those known, or, at times, another
		known := several(rapid.SampledFrom([]int{1, 3, 20, 200, 2000}).Draw(t, "known"))
		other := rapid.SampledFrom([]int{2, 8, 100, 1 << 30}).Draw(t, "another of")
		return func() []byte {
			k := rnd.IntN(len(known))
			if rnd.IntN(other) == 0 {
				known[k] = slices.Clone(of())
			}
			return known[k]
		}
	}
}

// A field is a part of messages of a shape.
type field struct {
	width int
	next  func() []byte
}

// fieldsOf draws what messages of a shape are made of.
func fieldsOf(t *rapid.T, rnd *rand.Rand) (fields []field) {
	for range rapid.IntRange(1, 8).Draw(t, "fields") {
		width := rapid.SampledFrom([]int{1, 2, 4, 6, 8, 12, 20, 32}).Draw(t, "width")
		fields = append(fields, field{width, fieldOf(t, rnd, width)})
	}
	return fields
}

func fieldOf(t *rapid.T, rnd *rand.Rand, width int) func() []byte {
	random := func(n int) []byte {
		m := make([]byte, n)
		for i := range m {
			m[i] = byte(rnd.Uint32())
		}
		return m
	}
	switch rapid.SampledFrom([]string{"constant", "counter", "random", "known", "tape", "runs"}).Draw(t, "kind") {
	case "constant":
		v := random(width)
		return func() []byte { return v }
	case "counter":
		n, step := rnd.Uint64(), rapid.SampledFrom([]uint64{1, 2, 50, 5000}).Draw(t, "step")
		return func() []byte {
			n += rnd.Uint64N(step + 1)
			return append(make([]byte, max(width-8, 0)), binary.BigEndian.AppendUint64(nil, n)[max(8-width, 0):]...)
		}
	case "random":
		return func() []byte { return random(width) }
	case "known":
		known := make([][]byte, rapid.SampledFrom([]int{2, 30, 256, 2000}).Draw(t, "known"))
		for i := range known {
			known[i] = random(width)
		}
		return func() []byte { return known[rnd.IntN(len(known))] }
	case "runs":
		v, of := random(width), rapid.SampledFrom([]int{2, 20, 500}).Draw(t, "run")
		return func() []byte {
			if rnd.IntN(of) == 0 {
				v = random(width)
			}
			return v
		}
	default:
		tape := random(width + rapid.SampledFrom([]int{50, 2000, 50_000}).Draw(t, "tape"))
		return func() []byte { return tape[rnd.IntN(len(tape)-width+1):][:width] }
	}
}

// messageOf makes messages of fields.
func messageOf(fields []field) func() []byte {
	return func() []byte {
		m := []byte{'F'}
		for _, f := range fields {
			m = append(m, f.next()...)
		}
		return m
	}
}

// timesOf draws a nature of times: what each is later than the one before.
func timesOf(t *rapid.T, rnd *rand.Rand) func() moldcast.Stamp {
	unit := rapid.SampledFrom([]int64{1, 1000, 1e6, 1e9}).Draw(t, "unit")
	most := rapid.SampledFrom([]int64{1, 3, 200, 5000, 1e6}).Draw(t, "step")
	step := func() moldcast.Stamp { return moldcast.Stamp(unit * (1 + rnd.Int64N(most))) }
	switch rapid.SampledFrom([]string{"none", "regular", "jittered", "random", "backwards", "cyclic", "again", "bursts"}).Draw(t, "times") {
	case "none":
		return func() moldcast.Stamp { return 0 }
	case "regular":
		s := step()
		return func() moldcast.Stamp { return s }
	case "jittered": // around regular ones
		s := moldcast.Stamp(unit) * 1000
		was := moldcast.Stamp(0)
		return func() moldcast.Stamp {
			off := step()
			d := s + off - was
			was = off
			return d
		}
	case "backwards":
		return func() moldcast.Stamp { return -step() }
	case "cyclic":
		period := make([]moldcast.Stamp, rapid.SampledFrom([]int{2, 7, 50, 1000}).Draw(t, "period"))
		for i := range period {
			period[i] = step()
		}
		k := 0
		return func() moldcast.Stamp {
			k++
			return period[k%len(period)]
		}
	case "again": // one of few
		known := make([]moldcast.Stamp, rapid.SampledFrom([]int{2, 7, 50}).Draw(t, "known"))
		for i := range known {
			known[i] = step()
		}
		return func() moldcast.Stamp { return known[rnd.IntN(len(known))] }
	case "bursts":
		return func() moldcast.Stamp {
			if rnd.IntN(20) > 0 {
				return 0
			}
			return step()
		}
	default:
		return step
	}
}
