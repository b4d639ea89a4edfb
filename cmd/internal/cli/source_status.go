package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/moldtape/moldtape/capture"
	"github.com/moldtape/moldtape/cmd/internal/httpd"
	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/store"
)

// servedAge is how old what is told of sessions may be: to look at one costs
// opening a file, and what other processes seal is not seen any sooner.
const servedAge = 500 * time.Millisecond

// servedStatus tells what a Source serves. Since the disk may hang, the archive
// is looked at by one goroutine at most, which nobody must wait for.
type servedStatus struct {
	source *Source
	turn   chan struct{} // holds one token: who has it may use the rest
	last   []httpd.Served
	at     time.Time
}

func newServedStatus(s *Source) *servedStatus {
	return &servedStatus{source: s, turn: make(chan struct{}, 1)}
}

var errArchiveHangs = errors.New("the archive does not answer")

// get implements httpd.ServedFunc.
func (k *servedStatus) get(ctx context.Context) (channels []httpd.Served, trouble string, err error) {
	select {
	case k.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, "", errArchiveHangs
	}
	done := make(chan []httpd.Served, 1)
	go func() {
		defer func() { <-k.turn }()
		if k.at.IsZero() || time.Since(k.at) >= servedAge {
			k.last, k.at = k.source.served(), time.Now()
		}
		done <- k.last
	}()
	select {
	case channels = <-done:
		return channels, k.source.troubled(), nil
	case <-ctx.Done():
		return nil, "", errArchiveHangs
	}
}

// troubled is why the archive as a whole cannot be read; empty: it can.
func (s *Source) troubled() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.trouble
}

// served is every channel with what is served of it, and what cannot be.
func (s *Source) served() []httpd.Served {
	all := []httpd.Served{}
	at := map[string]int{}
	add := func(channel string, x httpd.ServedSession) {
		i, ok := at[channel]
		if !ok {
			i = len(all)
			at[channel] = i
			all = append(all, httpd.Served{Channel: channel, State: capture.StateOK})
		}
		if x.Fault != "" {
			all[i].State = capture.StateDegraded
		}
		all[i].Sessions = append(all[i].Sessions, x)
	}
	for _, v := range *s.table.Load() {
		i := v.view.Info()
		add(i.Channel, httpd.ServedSession{
			Session: i.Session, Take: i.Take, State: string(i.State),
			FirstSeq: i.FirstSeq, NextSeq: i.NextSeq, DurableSeq: i.DurableSeq, HeadSeq: i.HeadSeq,
			Messages: i.Messages, Holes: i.Holes, Segments: i.Segments, LastTime: i.LastTime, Fault: cmp.Or(i.Fault, damagedText(v.view, i.Holes)),
		})
	}
	s.mu.Lock()
	for r, text := range s.mu.failed {
		add(r.Channel, httpd.ServedSession{Session: r.Session.String(), Take: r.Take, State: string(store.Opened), Fault: text})
	}
	s.mu.Unlock()
	slices.SortFunc(all, func(a, b httpd.Served) int { return cmp.Compare(a.Channel, b.Channel) })
	for i := range all {
		slices.SortFunc(all[i].Sessions, func(a, b httpd.ServedSession) int {
			return cmp.Or(lastTime(a).Compare(lastTime(b)), cmp.Compare(a.Session, b.Session), cmp.Compare(a.Take, b.Take))
		})
	}
	return all
}

// damagedText names the messages that reads found damaged; empty without any.
func damagedText(v *store.View, holes int) string {
	if holes == 0 {
		return ""
	}
	const most = 4
	var ranges []string
	n, messages := 0, uint64(0)
	for _, h := range v.Holes() {
		if h.Reason != moldcast.Damaged {
			continue
		}
		messages += h.Range.Len()
		if n++; n <= most {
			ranges = append(ranges, h.Range.String())
		}
	}
	if n == 0 {
		return ""
	}
	text := strings.Join(ranges, ", ")
	if n > most {
		text += fmt.Sprintf(" and %d more ranges", n-most)
	}
	return fmt.Sprintf("%s damaged, not served: %s; `moldtape repair` mends them from another source", count(messages, "message"), text)
}

func lastTime(x httpd.ServedSession) (t time.Time) {
	if x.LastTime != nil {
		t = *x.LastTime
	}
	return t
}
