package cli

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/moldtape/moldtape/replay"
)

// What the arrow keys seek by, in recorded time.
const (
	smallSeek = 10 * time.Second
	largeSeek = time.Minute
)

// console is a replay's terminal, where there is one: a progress line on
// stderr, keys from stdin.
func (e *env) console(ctx context.Context, p *replay.Player) {
	var wg sync.WaitGroup
	defer wg.Wait()
	if f, ok := e.stdin.(*os.File); ok && isTerminal(f) && isTerminal(e.stderr) {
		wg.Go(func() { readKeys(ctx, int(f.Fd()), p) })
	}
	e.statusLine(ctx, func() string { return progressLine(p.Status()) })
}

// progressLine says where the replay is: recorded time, speed, lateness of the
// last packet and the most of any, and how much has gone.
func progressLine(s replay.Status) string {
	at := "starting"
	if s.Position != 0 {
		at = s.Position.Time().Format("2006-01-02 15:04:05.000")
	}
	how := fmt.Sprintf("speed %g", s.Speed)
	switch {
	case s.Over():
		how = "ended"
	case s.Paused:
		how = "paused"
	case s.Waiting:
		how = "waiting for a hole to be filled"
	case s.Speed == 0:
		how = "speed max"
	}
	late := ""
	if s.Speed != 0 && s.Packets > 0 {
		late = fmt.Sprintf("  late %v, at most %v", brief(s.Late), brief(s.MostLate))
	}
	return fmt.Sprintf("%s  %s%s  %d packets  %d messages", at, how, late, s.Packets, s.Messages)
}

// brief is d to three digits.
func brief(d time.Duration) time.Duration {
	unit := time.Duration(1)
	for d.Abs() >= 1000*unit {
		unit *= 10
	}
	return d.Round(unit)
}

// readKeys obeys the keys until ctx is done. The terminal gives them one by
// one meanwhile, and does not echo them; it is left as it was found.
func readKeys(ctx context.Context, fd int, p *replay.Player) {
	if !foreground(fd) {
		return
	}
	restore, err := keyMode(fd)
	if err != nil {
		return
	}
	defer restore()
	var buf [64]byte
	for ctx.Err() == nil {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if n, err := unix.Poll(fds, 100); err != nil && err != unix.EINTR {
			return
		} else if n <= 0 {
			continue
		}
		if !foreground(fd) { // reading would stop the process
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		n, err := unix.Read(fd, buf[:])
		if n <= 0 || err != nil {
			return
		}
		obeyKeys(buf[:n], p)
	}
}

// foreground reports whether this process may read the terminal without being
// stopped for it.
func foreground(fd int) bool {
	pgrp, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	return err == nil && pgrp == unix.Getpgrp()
}

// keyMode lets a terminal give single keys without echo. Signals stay: Ctrl-C
// interrupts as ever.
func keyMode(fd int) (restore func(), err error) {
	was, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, err
	}
	now := *was
	now.Lflag &^= unix.ICANON | unix.ECHO
	now.Cc[unix.VMIN], now.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, &now); err != nil {
		return nil, err
	}
	return func() { _ = unix.IoctlSetTermios(fd, unix.TCSETS, was) }, nil
}

// controls is what keys do to a Player.
type controls interface {
	Toggle()
	Scale(by float64)
	SeekBy(d time.Duration)
	Step()
	Quit()
}

// obeyKeys does what the keys in b say. An arrow is ESC [ or ESC O, and a
// letter; it comes in one read.
func obeyKeys(b []byte, p controls) {
	for len(b) > 0 {
		if len(b) >= 3 && b[0] == 0x1b && (b[1] == '[' || b[1] == 'O') {
			switch b[2] {
			case 'A':
				p.SeekBy(largeSeek)
			case 'B':
				p.SeekBy(-largeSeek)
			case 'C':
				p.SeekBy(smallSeek)
			case 'D':
				p.SeekBy(-smallSeek)
			}
			b = b[3:]
			continue
		}
		switch b[0] {
		case ' ':
			p.Toggle()
		case '+', '=':
			p.Scale(2)
		case '-', '_':
			p.Scale(0.5)
		case '.':
			p.Step()
		case 'q', 'Q':
			p.Quit()
		}
		b = b[1:]
	}
}
