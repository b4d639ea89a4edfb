package main

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moldtape/moldtape/moldcast"
)

// crowdReader reads a recovery stream from its start to its end, and keeps of
// it what tells two apart.
type crowdReader struct {
	messages, bytes int // framing included in these
	sum             uint32
	ended           bool
	err             error
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (r *crowdReader) run(addr string) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		r.err = err
		return
	}
	defer conn.Close()
	stop := make(chan struct{})
	defer close(stop)
	login := fmt.Sprintf("\x00\x2fL%-6s%-10s%-10s%20d", "crowd", "", session, 1)
	if _, r.err = io.WriteString(conn, login); r.err != nil {
		return
	}
	go func() {
		for {
			select {
			case <-time.After(time.Second):
				_, _ = io.WriteString(conn, "\x00\x01R")
			case <-stop:
				return
			}
		}
	}()
	buf := make([]byte, 64<<10+2)
	have := 0
	for !r.ended {
		_ = conn.SetReadDeadline(time.Now().Add(hang))
		n, err := conn.Read(buf[have:])
		have += n
		at, from := 0, 0 // frames seen, and those of messages among them that are not summed
		flush := func() {
			r.sum = crc32.Update(r.sum, castagnoli, buf[from:at])
			r.bytes += at - from
		}
		for have-at >= 3 {
			size := 2 + int(binary.BigEndian.Uint16(buf[at:]))
			if have-at < size {
				break
			}
			if buf[at+2] == 'S' {
				r.messages++
				at += size
				continue
			}
			flush()
			r.ended = buf[at+2] == 'Z'
			at += size
			from = at
		}
		flush()
		have = copy(buf, buf[at:have])
		if err != nil && !r.ended {
			r.err = err
			return
		}
	}
}

// A crowd that reads from the start while a node captures: each gets the whole
// session, byte for byte, read and encoded about once for all of them, and the
// capture loses nothing. How much later than before messages are durable is
// logged, as a ratio.
func TestCrowdBesideCapture(t *testing.T) {
	crowd, history := long(300, 40), moldcast.Seq(long(200_000, 30_000))
	if s := os.Getenv("MOLDTAPE_CROWD"); s != "" { // READERS,MESSAGES
		if _, err := fmt.Sscanf(s, "%d,%d", &crowd, &history); err != nil {
			t.Fatal(err)
		}
	}
	const rate = 4000 // while it is measured
	dir := t.TempDir()
	src := newSource(t, 1<<40, 0)
	node := moldtape(t, dir, "capture", "--line", "127.0.0.1:0", "--rerequest", src.addr(), "--recovery-listen", "127.0.0.1:0", "--recovery-stall", "1h", "--nak-budget", "1h", "--http", "127.0.0.1:0",
		"--until-end", "--log-level", "warn")
	ready := node.event("ready")
	http, peer := ready["http"].(string), ready["recovery"].(string)
	line := lineAddrs(t, ready)[0]
	next := moldcast.Seq(1)
	send := func(n moldcast.Seq) {
		_, _ = line.Write(packet(next, next+n))
		next += n
		src.published(next)
	}
	fast := pacer{rate: 60_000}
	for next <= history {
		send(20)
		fast.wait(next)
	}
	waitStatus(t, http, func(c map[string]any) bool {
		_, _ = line.Write(moldcast.AppendHeader(nil, session, next, 0)) // what was dropped last is told with the next
		return num(t, c, "messages") == int(next-1)
	})

	// lags publishes until done, and samples how late durable is: once at least.
	lags := func(done func() bool) (p99 float64) {
		p := pacer{rate: rate}
		start := next
		var all []float64
		for looked := time.Now(); len(all) == 0 || !done(); {
			send(4)
			p.wait(next - start)
			if time.Since(looked) >= 20*time.Millisecond {
				looked = time.Now()
				s := httpStatus(t, http)["channels"].([]any)[0].(map[string]any)["sessions"].([]any)[0].(map[string]any)
				all = append(all, s["lag_seconds"].(float64))
			}
		}
		slices.Sort(all)
		return all[len(all)*99/100]
	}
	calmTill := time.Now().Add(time.Duration(long(10_000, 700)) * time.Millisecond)
	calm := lags(func() bool { return time.Now().After(calmTill) })
	before := memory(t, node)

	readers := make([]crowdReader, crowd)
	var all sync.WaitGroup
	for i := range readers {
		all.Go(func() { readers[i].run(peer) })
	}
	start := time.Now()
	var took time.Duration
	var peak float64
	limit := time.Now().Add(10 * time.Minute)
	looked := start
	storm := lags(func() bool {
		if took == 0 && time.Since(looked) < 100*time.Millisecond {
			return false
		}
		looked = time.Now()
		peak = max(peak, memory(t, node))
		if took > 0 {
			return time.Since(start) > took+500*time.Millisecond
		}
		states := httpStatus(t, http)["streams"].(map[string]any)
		if num(t, states["states"].(map[string]any), "live") == crowd {
			took = time.Since(start)
		}
		if time.Now().After(limit) {
			t.Fatalf("the crowd is not through: %v", states["states"])
		}
		return false
	})
	streams := httpStatus(t, http)["streams"].(map[string]any)
	channel := httpStatus(t, http)["channels"].([]any)[0].(map[string]any)
	end := moldcast.AppendHeader(nil, session, next, moldcast.EndCount)
	stop := make(chan struct{})
	go func() {
		for {
			_, _ = line.Write(end)
			select {
			case <-time.After(50 * time.Millisecond):
			case <-stop:
				return
			}
		}
	}()
	all.Wait()
	sum := node.event("stopped")
	close(stop)
	node.exit(0)
	if num(t, sum, "messages") != int(next-1) || num(t, sum, "messages_lost") != 0 || num(t, sum, "holes") != 0 {
		t.Errorf("stopped %v of %d", sum, next-1)
	}

	var want crowdReader
	var frame []byte
	for q := moldcast.Seq(1); q < next; q++ {
		m := message(nil, q)
		frame = append(binary.BigEndian.AppendUint16(frame[:0], uint16(1+len(m))), 'S')
		frame = append(frame, m...)
		want.sum = crc32.Update(want.sum, castagnoli, frame)
		want.bytes += len(frame)
	}
	total := 0
	for i, r := range readers {
		if r.err != nil || !r.ended || r.messages != int(next-1) || r.bytes != want.bytes || r.sum != want.sum {
			t.Fatalf("reader %d: %d messages of %d, %d bytes, ended %v: %v", i, r.messages, next-1, r.bytes, r.ended, r.err)
		}
		total += r.bytes
	}
	encoded := float64(num(t, streams, "messages_encoded")) / float64(next-1)
	if encoded > 1.5 {
		t.Errorf("each message was encoded %.2f times", encoded)
	}
	t.Logf("%d readers of %d messages: live after %v, %.0f MB/s; encoded %.2f times each, %d of %d chunks read from disk, %d sent; memory %.0f MB, at most %.0f; durable p99 %.1f ms, in the storm %.1f ms: %.2f times; dropped %d, %d",
		crowd, next-1, took.Round(time.Millisecond), float64(total)/1e6/took.Seconds(), encoded, num(t, streams, "reads"), num(t, streams, "chunks_encoded"), num(t, streams, "chunks"),
		before, peak, 1e3*calm, 1e3*storm, storm/calm, num(t, channel, "queue_dropped"), num(t, channel, "kernel_dropped"))
}

// memory is what a node has resident, MB.
func memory(t *testing.T, p *proc) float64 {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.cmd.Process.Pid), "statm"))
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.ParseFloat(strings.Fields(string(b))[1], 64)
	if err != nil {
		t.Fatal(err)
	}
	return pages * float64(os.Getpagesize()) / 1e6
}
