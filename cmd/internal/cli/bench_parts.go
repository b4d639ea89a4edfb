package cli

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/moldtape/moldtape/cmd/internal/bench"
	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/moldcast/mcast"
	"github.com/moldtape/moldtape/replay"
	"github.com/moldtape/moldtape/replay/pace"
	"github.com/moldtape/moldtape/retransmit"
	"github.com/moldtape/moldtape/retransmit/admit"
	"github.com/moldtape/moldtape/store"
)

// receive is datagrams by each back end, beside recvmmsg alone.
func (r *benchRun) receive(ctx context.Context) error {
	for _, size := range []int{200, 1400} {
		var arms []func(context.Context, time.Duration) (float64, error)
		var names []string
		lost := make([]int, len(bench.ReceiveBy))
		came := make([]int, len(bench.ReceiveBy))
		for _, how := range bench.ReceiveBy {
			if how == "ring" && r.rep.RXReason != "" {
				if size == 200 {
					r.skip("ring", errors.New(r.rep.RXReason))
				}
				continue
			}
			i := len(arms)
			names = append(names, how)
			arms = append(arms, func(ctx context.Context, d time.Duration) (float64, error) {
				group, err := freeGroup()
				if err != nil {
					return 0, err
				}
				got, err := bench.MeasureReceive(ctx, how, group, size, d)
				lost[i] += got.Lost
				came[i] += got.Datagrams
				return got.Each().Seconds() * 1e6, err
			})
		}
		v, err := r.turns(ctx, arms...)
		if err != nil {
			return err
		}
		for i, name := range names[1:] {
			r.beside(fmt.Sprintf("%s, %d bytes", name, size), "µs CPU a datagram", v[i+1], "recvmmsg(64) alone", v[0])
		}
		for i, name := range names {
			if lost[i] > 0 {
				r.add(fmt.Sprintf("%s, %d bytes, lost", name, size), "% of datagrams", 100*float64(lost[i])/float64(lost[i]+came[i]))
			}
		}
	}
	return nil
}

// codec is each form of a block, beside rows.
func (r *benchRun) codec(ctx context.Context) error {
	until := time.Now().Add(time.Duration(len(bench.Forms)) * r.time)
	forms := slices.DeleteFunc(slices.Clone(bench.Forms), func(f bench.Form) bool { return f.Name == "row-fast" })
	got, err := bench.MeasureForms(ctx, r.feed, forms, store.DefaultOptions().BlockSize, 1<<20, func() bool { return time.Now().Before(until) })
	if err != nil {
		return err
	}
	row := &got[0]
	each := func(x *bench.FormResult) float64 { return float64(x.Stored) / float64(r.feed.Count) }
	rowEncode, rowDecode := row.Speeds(r.feed)
	r.beside("row, size", "bytes a message", each(row), "messages alone", r.rep.MessageLen)
	for i := range got[1:] {
		x := &got[i+1]
		encode, decode := x.Speeds(r.feed)
		name := map[string]string{"planes": "fast", "hasty": "fast, in haste"}[x.Name]
		if name == "" {
			name = x.Name
		}
		r.beside(name+", size", "bytes a message", each(x), "rows, zstd's default", each(row))
		r.beside(name+", encode", "MB/s", encode/1e6, "rows, zstd's default", rowEncode/1e6)
		r.beside(name+", decode", "MB/s", decode/1e6, "rows, zstd's default", rowDecode/1e6)
	}
	return nil
}

// fresh is a directory that does not exist yet.
func (r *benchRun) fresh() (string, error) {
	dir, err := os.MkdirTemp(r.tmp, "")
	return filepath.Join(dir, "archive"), err
}

func (r *benchRun) options(codec store.Codec) store.Options {
	o := store.DefaultOptions()
	o.Log, o.Quiet, o.Codec = r.log, true, codec
	return o
}

// store is append to durable.
func (r *benchRun) store(ctx context.Context) error {
	measure := func(f *bench.Feed, codec store.Codec, of func(bench.Stored) float64, wrote *float64) func(context.Context, time.Duration) (float64, error) {
		return func(ctx context.Context, d time.Duration) (float64, error) {
			dir, err := r.fresh()
			if err != nil {
				return 0, err
			}
			s, err := bench.MeasureStore(ctx, dir, r.options(codec), f, d, 0)
			if err = errors.Join(err, os.RemoveAll(dir)); err != nil {
				return 0, err
			}
			if wrote != nil {
				*wrote = float64(s.Wrote) / float64(max(s.Disk, 1))
			}
			return of(s), nil
		}
	}
	perSecond := func(s bench.Stored) float64 { return float64(s.Messages) / s.Took.Seconds() }
	stored := func(s bench.Stored) float64 { return float64(s.Disk) / s.Took.Seconds() / 1e6 }
	var wrote float64
	v, err := r.turns(ctx,
		measure(bench.NoiseFeed(4096, 1400), store.CodecRow, stored, &wrote),
		func(ctx context.Context, d time.Duration) (float64, error) {
			n, err := bench.AppendSynced(ctx, r.tmp, d)
			return n / 1e6, err
		},
		measure(r.feed, store.CodecRow, perSecond, nil),
		measure(r.feed, store.CodecAuto, perSecond, nil),
		measure(r.feed, store.CodecFast, perSecond, nil))
	if err != nil {
		return err
	}
	r.beside("what cannot be compressed", "MB/s durable", v[0], "append + fdatasync of 4 MiB", v[1])
	r.add("bytes written a byte of it", "", wrote)
	for i, name := range []string{"row", "auto", "fast"} {
		r.add("as fast as it goes, --codec "+name, "messages/s durable", v[2+i])
	}
	dir, err := r.fresh()
	if err != nil {
		return err
	}
	lags, err := bench.MeasureLag(ctx, dir, r.options(store.CodecRow), r.feed, 20_000, r.time)
	if err = errors.Join(err, os.RemoveAll(dir)); err != nil {
		return err
	}
	if len(lags) > 0 {
		slices.Sort(lags)
		sync := store.DefaultSync.Seconds() * 1e3
		r.beside("20000 messages/s: durable after, p50", "ms", lags[len(lags)/2].Seconds()*1e3, "--sync", sync)
		r.beside("20000 messages/s: durable after, p99", "ms", lags[len(lags)*99/100].Seconds()*1e3, "--sync", sync)
	}
	return nil
}

// archive is the feed, over and over, so that there is enough to ask for and to
// replay; made once.
func (r *benchRun) archive(ctx context.Context) (string, int, error) {
	n := max(r.feed.Count, 20_000, r.feed.Count*(2<<20)/len(r.feed.Rows))
	if r.made != "" {
		return r.made, n, nil
	}
	dir, err := r.fresh()
	if err != nil {
		return "", 0, err
	}
	s, err := bench.MeasureStore(ctx, dir, r.options(store.CodecAuto), r.feed, 0, n)
	r.made = dir
	return dir, s.Messages, err
}

// served is an archive, opened as a request server does.
type served struct {
	archive *store.Archive
	source  *Source
	server  *retransmit.Server
	end     func() error
}

func (r *benchRun) serve(dir string, cache int64) (*served, error) {
	o := r.options(store.CodecRow)
	o.CacheBytes = cache
	s := &served{}
	var err error
	if s.archive, err = store.Open(dir, o); err != nil {
		return nil, err
	}
	s.source = NewSource(s.archive, nil, r.log)
	fail := func(err error) (*served, error) { return nil, errors.Join(err, s.source.Close(), s.archive.Close()) }
	if err := s.source.Refresh(); err != nil {
		return fail(err)
	}
	conn, err := retransmit.Listen(netip.MustParseAddrPort("127.0.0.1:0"), r.log)
	if err != nil {
		return fail(err)
	}
	none := admit.Rate{Requests: -1, Bytes: -1}
	if s.server, err = retransmit.New(retransmit.Config{Conn: conn, Source: s.source, Log: r.log, Admit: admit.Config{Client: none, Loopback: none, Total: none}}); err != nil {
		return fail(errors.Join(err, conn.Close()))
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.server.Run(ctx) }()
	s.end = func() error {
		cancel()
		return errors.Join(<-done, s.source.Close(), s.archive.Close())
	}
	return s, nil
}

// onlyView is the only recording of the archive that was made.
func onlyView(a *store.Archive) (*store.View, store.Ref, error) {
	infos, err := a.Sessions()
	if err != nil {
		return nil, store.Ref{}, err
	}
	if len(infos) != 1 {
		return nil, store.Ref{}, fmt.Errorf("%d recordings in the archive that was made, want 1", len(infos))
	}
	v, err := a.View(infos[0].Ref())
	return v, infos[0].Ref(), err
}

// Requests are for as much as fits a datagram.
const (
	benchInFlight = 64
	benchCount    = 100
	benchAnswer   = 1500 - 28 - moldcast.HeaderSize
)

func (r *benchRun) retransmit(ctx context.Context) error {
	dir, n, err := r.archive(ctx)
	if err != nil {
		return err
	}
	if err := r.hot(ctx, dir, n); err != nil {
		return err
	}
	return r.cold(ctx, dir, n)
}

func (r *benchRun) hot(ctx context.Context, dir string, n int) (err error) {
	s, err := r.serve(dir, 1<<30)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.end()) }()
	view, ref, err := onlyView(s.archive)
	if err != nil {
		return err
	}
	var messages []float64
	firsts := rand.New(rand.NewPCG(1, 2)).Perm(n - benchCount)
	v, err := r.turns(ctx,
		func(ctx context.Context, d time.Duration) (float64, error) {
			got, err := bench.AskHot(ctx, s.server.Addr(), ref.Session, n, benchInFlight, d)
			messages = append(messages, got.PerSecond(got.Messages))
			return got.PerSecond(got.Requests), err
		},
		func(ctx context.Context, d time.Duration) (float64, error) {
			return alone(ctx, view, d, func(i int) (moldcast.Seq, uint16) { return moldcast.Seq(1 + firsts[i%len(firsts)]), benchCount })
		})
	if err != nil {
		return err
	}
	r.beside("hot, 64 in flight", "requests/s", v[0], "the same, of the store alone", v[1])
	r.add("hot, messages in them", "messages/s", bench.Median(messages))
	return nil
}

// cold asks for a message of another block each time, one at a time.
func (r *benchRun) cold(ctx context.Context, dir string, n int) (err error) {
	s, err := r.serve(dir, 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.end()) }()
	view, ref, err := onlyView(s.archive)
	if err != nil {
		return err
	}
	rng := rand.New(rand.NewPCG(3, 4))
	half := n / 2
	next := func(i int) (moldcast.Seq, uint16) {
		return moldcast.Seq(1 + half*(i%2) + rng.IntN(max(half-benchCount, 1))), 30
	}
	v, err := r.turns(ctx,
		func(ctx context.Context, d time.Duration) (float64, error) {
			a, err := bench.NewAsker(s.server.Addr(), ref.Session)
			if err != nil {
				return 0, err
			}
			defer a.Conn.Close()
			i := -1
			got, err := a.Ask(ctx, 1, d, func() (moldcast.Seq, uint16, bool) {
				i++
				q, count := next(i)
				return q, count, true
			})
			return got.PerSecond(got.Requests), err
		},
		func(ctx context.Context, d time.Duration) (float64, error) { return alone(ctx, view, d, next) })
	if err != nil {
		return err
	}
	r.beside("cold, one at a time", "requests/s", v[0], "reading and decoding alone", v[1])
	return nil
}

// alone is answers a second of the store, without a server.
func alone(ctx context.Context, v *store.View, d time.Duration, next func(i int) (moldcast.Seq, uint16)) (float64, error) {
	buf := make([]byte, 0, moldcast.MaxDatagram)
	began, i := time.Now(), 0
	for i == 0 || time.Since(began) < d {
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		q, count := next(i)
		if _, _, err := v.Append(buf, q, int(count), benchAnswer, true); err != nil {
			return 0, err
		}
		i++
	}
	return float64(i) / time.Since(began).Seconds(), nil
}

// replay is how exactly packets go, and how fast.
func (r *benchRun) replay(ctx context.Context) error {
	dir, n, err := r.archive(ctx)
	if err != nil {
		return err
	}
	a, err := store.Open(dir, r.options(store.CodecRow))
	if err != nil {
		return err
	}
	defer closeQuietly(r.log, "archive", a.Close)
	view, _, err := onlyView(a)
	if err != nil {
		return err
	}
	rate := r.rate * r.rep.PacketMsgs
	paced := func(how replay.Spin, into *[]replay.Report) func(context.Context, time.Duration) (float64, error) {
		return func(ctx context.Context, d time.Duration) (float64, error) {
			rep, err := r.play(ctx, view, replay.Config{Pace: pace.Config{Rate: rate}, Spin: how}, max(1, int(rate*d.Seconds())), n)
			*into = append(*into, rep)
			return 0, err
		}
	}
	var auto, spin []replay.Report
	if _, err := r.turns(ctx, paced(replay.SpinAuto, &auto), paced(replay.SpinAlways, &spin)); err != nil {
		return err
	}
	of := func(reps []replay.Report, f func(replay.Report) float64) float64 {
		var v []float64
		for _, x := range reps {
			v = append(v, f(x))
		}
		return bench.Median(v)
	}
	for _, q := range []struct {
		name string
		of   func(replay.Report) float64
	}{
		{"p50", func(x replay.Report) float64 { return x.PacingError.P50 * 1e6 }},
		{"p99", func(x replay.Report) float64 { return x.PacingError.P99 * 1e6 }},
		{"drift", func(x replay.Report) float64 { return x.Drift * 1e6 }},
	} {
		r.beside(fmt.Sprintf("%.0f packets/s: lateness, %s", r.rate, q.name), "µs", of(auto, q.of), "never sleeping", of(spin, q.of))
	}
	v, err := r.turns(ctx,
		func(ctx context.Context, d time.Duration) (float64, error) {
			rep, err := r.play(ctx, view, replay.Config{Pace: pace.Config{Max: true}}, 1000+int(400_000*r.rep.PacketMsgs*d.Seconds()), n)
			return rep.PacketRate, err
		},
		func(ctx context.Context, d time.Duration) (float64, error) {
			return r.sendAlone(ctx, int(r.rep.MessageLen*r.rep.PacketMsgs)+moldcast.HeaderSize, d)
		})
	if err != nil {
		return err
	}
	r.beside("as fast as it goes", "packets/s", v[0], "sendmmsg(64) alone", v[1])
	return nil
}

// play replays messages of a view that holds held, in as many rounds as it
// takes.
func (r *benchRun) play(ctx context.Context, view *store.View, c replay.Config, messages, held int) (replay.Report, error) {
	group, err := freeGroup()
	if err != nil {
		return replay.Report{}, err
	}
	out, err := mcast.DialInOrder(mcast.SendConfig{Addr: group, Interface: bench.Loopback, Log: r.log})
	if err != nil {
		return replay.Report{}, err
	}
	defer out.Close()
	name, _ := moldcast.ParseSession("B")
	c.Loop = max(1, (messages+held-1)/held)
	c.Streams = []replay.Stream{{
		Session: name, Sender: out, Range: moldcast.Range{First: 1, Next: moldcast.Seq(min(messages, held)) + 1},
		Open: func(from moldcast.Seq) (replay.Source, error) { return view.Cursor(from), nil },
	}}
	c.Log = r.log
	player, err := replay.New(c)
	if err != nil {
		return replay.Report{}, err
	}
	return player.Run(ctx)
}

// sendAlone is how many datagrams a second of a size batches of 64 send.
func (r *benchRun) sendAlone(ctx context.Context, size int, d time.Duration) (float64, error) {
	group, err := freeGroup()
	if err != nil {
		return 0, err
	}
	out, err := mcast.Dial(mcast.SendConfig{Addr: group, Interface: bench.Loopback, Log: r.log})
	if err != nil {
		return 0, err
	}
	defer out.Close()
	batch := make([][]byte, mcast.BatchSize)
	for i := range batch {
		batch[i] = make([]byte, size)
	}
	n, began := 0, time.Now()
	for n == 0 || time.Since(began) < d {
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		k, err := out.Send(batch)
		if err != nil {
			return 0, err
		}
		n += k
	}
	return float64(n) / time.Since(began).Seconds(), nil
}
