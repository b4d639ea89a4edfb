package replay

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/replay/pace"
)

// How a replay ends before its end.
var (
	ErrInterrupted = errors.New("replay interrupted")       // context cancelled, or Quit
	ErrHole        = errors.New("replay stopped by a hole") // a *StopError
	ErrSend        = errors.New("sending failed")           // Config.SendRetry ran out
	ErrRunning     = errors.New("replay runs already")
)

// StopError says before which hole a replay with OnHole Stop ended. It is an
// ErrHole.
type StopError struct {
	Stream  int
	Session moldcast.Session
	Range   moldcast.Range
	Reason  moldcast.HoleReason
}

func (e *StopError) Error() string {
	return fmt.Sprintf("session %s: %v: messages %v are missing (%s)", e.Session, ErrHole, e.Range, e.Reason)
}

func (e *StopError) Unwrap() error { return ErrHole }

// Status is what a replay is doing, for a progress line.
type Status struct {
	Packets, Messages uint64
	Position          moldcast.Stamp // recorded time
	Speed             float64        // messages a second where a rate paces; 0: no waiting
	Paused            bool           // by the user
	Waiting           bool           // for a hole to be filled
	Ended             bool           // End of Session was sent for every stream, in this loop
	Loop, Loops       int            // from 1
	Late, MostLate    time.Duration  // of the last packet, and of any, against when it was due; negative: early
}

// Over reports whether that was the last loop too.
func (s Status) Over() bool { return s.Ended && s.Loop >= s.Loops }

// Player replays its streams once. Its methods may be called from any
// goroutine, Run once.
type Player struct {
	cfg    Config
	wake   chan struct{} // cap 1: the sender's thread looks at the world again
	spaces atomic.Pointer[[]*Space]

	awaited atomic.Bool // somebody waits in Settled

	mu struct {
		sync.Mutex
		started bool
		over    bool
		orders  orders
		obeyed  chan struct{} // closed when orders were taken up; nil: nobody waits
	}

	status struct {
		packets, messages, position, speed, loop atomic.Uint64
		paused, waiting, ended                   atomic.Bool
		late, lateMax                            atomic.Int64 // ns
	}
}

// orders is what the user wants and the sender has not yet taken up. Orders
// add up instead of queueing, so they take no memory.
type orders struct {
	toggle bool
	pause  bool
	resume bool
	quit   bool
	scale  float64 // 0: none
	by     time.Duration
	to     moldcast.Stamp
	seek   bool  // to by
	seekTo bool  // to to, then by by
	seq    place // where one stream goes, if not to the time
	steps  int
	stepTo int     // messages
	speed  float64 // 0: as it is; before scale
}

// New makes a Player. Errors wrap ErrConfig or pace.ErrConfig.
func New(c Config) (*Player, error) {
	c.EnsureDefaults()
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if c.Waiter == nil {
		c.Waiter = NewWaiter(c.Spin)
	}
	p := &Player{cfg: c, wake: make(chan struct{}, 1)}
	p.newSpaces(1)
	return p, nil
}

// newSpaces begins the sequence spaces of a loop. Those of the loop before are
// kept: their receivers may still ask.
func (p *Player) newSpaces(loop int) {
	n := len(p.cfg.Streams)
	all := make([]*Space, 0, 2*n)
	for i, s := range p.cfg.Streams {
		name, _ := LoopSession(s.Session, loop, p.cfg.Loop) // Validate tried them all
		if s.Heard != nil {
			if k := slices.IndexFunc(all, func(o *Space) bool { return o.session == name && p.cfg.Streams[o.stream].Heard != nil }); k >= 0 {
				all = append(all, all[k])
				continue
			}
		}
		all = append(all, newSpace(name, i, s.Range.First))
	}
	if old := p.spaces.Load(); old != nil {
		all = append(all, (*old)[:n]...)
	}
	p.spaces.Store(&all)
}

// Published is one past the highest sequence that stream has sent in the
// present loop; the first of its range before that.
func (p *Player) Published(stream int) moldcast.Seq { return (*p.spaces.Load())[stream].Published() }

// Space finds what was published under a session name, in this loop or the one
// before; of several streams of that name the first.
func (p *Player) Space(s moldcast.Session) (*Space, bool) {
	for _, sp := range *p.spaces.Load() {
		if sp.session == s {
			return sp, true
		}
	}
	return nil, false
}

// Status is a snapshot; its fields may belong to different moments.
func (p *Player) Status() Status {
	s := &p.status
	return Status{
		Packets: s.packets.Load(), Messages: s.messages.Load(),
		Position: moldcast.Stamp(s.position.Load()), Speed: math.Float64frombits(s.speed.Load()),
		Paused: s.paused.Load(), Waiting: s.waiting.Load(), Ended: s.ended.Load(), Loop: int(s.loop.Load()), Loops: p.cfg.Loop,
		Late: time.Duration(s.late.Load()), MostLate: time.Duration(s.lateMax.Load()),
	}
}

// Pause stops the clock; heartbeats go on.
func (p *Player) Pause() {
	p.order(func(o *orders) { o.pause, o.resume, o.toggle = true, false, false })
}

// Resume lets the clock run on from where it stopped.
func (p *Player) Resume() {
	p.order(func(o *orders) { o.resume, o.pause, o.toggle = true, false, false })
}

// Toggle pauses what runs and resumes what is paused.
func (p *Player) Toggle() { p.order(func(o *orders) { o.toggle = !o.toggle }) }

// Scale multiplies the speed (the rate, where that paces), within the bounds
// of package pace. by must be above 0.
func (p *Player) Scale(by float64) {
	p.order(func(o *orders) {
		if o.scale == 0 {
			o.scale = 1
		}
		o.scale *= by
	})
}

// SeekBy moves by recorded time, back where d is negative; not before the
// first packet. Messages passed over are not published, those gone back to
// are published again. It does nothing unless every stream has a SeqAt.
func (p *Player) SeekBy(d time.Duration) {
	p.order(func(o *orders) { o.seek = true; o.by += d; o.seq = place{} })
}

// SeekTo moves to the first messages at or after t; else as SeekBy.
func (p *Player) SeekTo(t moldcast.Stamp) {
	p.order(func(o *orders) { o.seek, o.seekTo, o.to, o.by, o.seq = true, true, t, 0, place{} })
}

// Quit ends the replay as a cancelled context does.
func (p *Player) Quit() { p.order(func(o *orders) { o.quit = true }) }

func (p *Player) order(f func(*orders)) {
	p.mu.Lock()
	f(&p.mu.orders)
	p.mu.Unlock()
	p.poke()
}

func (p *Player) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Run replays until everything was published and End of Session repeated for
// the linger: nil. Other ends: ErrInterrupted, ErrHole, ErrSend, ErrRunning, or
// what a source gave; then a stream that was not through had no End of
// Session. Cancelled in the linger, it returns nil at once: the replay is
// complete. The report holds what was done in any case.
func (p *Player) Run(ctx context.Context) (Report, error) {
	p.mu.Lock()
	again := p.mu.started
	p.mu.started = true
	p.mu.Unlock()
	if again {
		return Report{}, ErrRunning
	}
	sched, err := pace.New(p.cfg.Pace)
	if err != nil {
		return Report{}, err
	}
	c := newConductor(p, sched)
	defer context.AfterFunc(ctx, p.poke)()
	done := make(chan error)
	go func() {
		// The thread ends with this goroutine, since it is never unlocked: its
		// timer slack is not what others expect.
		runtime.LockOSThread()
		done <- c.run(ctx)
	}()
	err = <-done
	p.finish()
	return c.report(), err
}
