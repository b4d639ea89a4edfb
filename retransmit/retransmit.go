package retransmit

import (
	"errors"
	"iter"

	"github.com/moldtape/moldtape/moldcast"
	"github.com/moldtape/moldtape/retransmit/admit"
)

// Held is what is held of one session. Its methods are called from several
// goroutines at the same time.
type Held interface {
	// Bounds is the first sequence and one past the highest that may be
	// served. Both are equal when there is nothing.
	Bounds() (first, head moldcast.Seq)

	// Append appends at most count framed messages, of at most size bytes
	// together, contiguous from first, which lies within the bounds (or below
	// them: an error, and *moldcast.HoleError with moldcast.Pruned where it was
	// pruned); a first message that alone is larger than size is appended
	// alone. n is how many;
	// what follows dst in out is exactly those n message blocks.
	//
	// n is less than what is there and fits only where a hole begins. n is 0
	// only with an error: a *moldcast.HoleError where the message at first is
	// not held; any other is a failure to read. With cold true it may wait;
	// with cold false it answers ErrCold where a disk would have to be read for
	// any of the messages: n is then how many before it need none.
	Append(dst []byte, first moldcast.Seq, count, size int, cold bool) (out []byte, n int, err error)
}

// View is Held, of which requests are answered.
type View interface {
	Held

	// Block names what must be read from disk for the message at q: what has
	// an equal name comes to memory by the same read. It is comparable.
	Block(q moldcast.Seq) any
}

// ErrCold is what Held.Append answers, bare or wrapped, where it would have
// to read a disk.
var ErrCold = errors.New("retransmit: not in memory")

// Source finds sessions. It is called for every request, from one goroutine,
// and must not wait.
type Source interface {
	// Lookup is the View of the latest take of s.
	Lookup(s moldcast.Session) (View, bool)
}

// Reason is why a request had no answer.
type Reason uint8

// The reasons.
const (
	Empty          Reason = iota // a datagram of 0 bytes
	Malformed                    // not 20 bytes
	CountZero                    // asks for 0 messages
	SeqZero                      // asks from sequence 0, which is never a message
	BadSource                    // from no unicast address and port
	NotAllowed                   // from outside the allow-list
	Overload                     // more arrive than can be looked at, most of them from this client
	Repeated                     // was answered a moment ago, or waits for its cold read
	ClientRate                   // the client's budget is spent
	TotalRate                    // the total budget is spent
	UnknownSession               // no such session
	BelowFirst                   // before the first message of the session
	BeyondHead                   // not published yet
	Missing                      // a hole in the archive
	WithinWindow                 // left to the sender, which surely still has it: Duty BeyondWindow
	ColdFull                     // the queue for cold reads is full, or the client's share of it
	ReadFailed                   // the archive could not be read
	SendFailed                   // the system did not send the answer
	Stopped                      // waited when the server stopped
	Reasons                      // number of reasons
)

const (
	noReason Reason = 0xFF // there is an answer
	isCold   Reason = 0xFE // a worker has it, or shall have it
)

var reasonNames = [Reasons]string{
	"empty", "malformed", "count_zero", "seq_zero", "bad_source", "not_allowed", "overload", "repeated", "client_rate", "total_rate",
	"unknown_session", "below_first", "beyond_head", "missing", "within_window", "cold_full", "read_failed", "send_failed", "stopped",
}

// String is r as a counter's name.
func (r Reason) String() string {
	if r < Reasons {
		return reasonNames[r]
	}
	return "reason(?)"
}

// reasonOf translates a verdict of admission.
var reasonOf = [admit.Verdicts]Reason{
	admit.Admitted: noReason, admit.BadSource: BadSource, admit.NotAllowed: NotAllowed,
	admit.Repeated: Repeated, admit.ClientRate: ClientRate, admit.TotalRate: TotalRate,
}

// Stats counts since the server was made. Requests is always Answered + all
// Unanswered + Pending, but for requests that are just being handled.
type Stats struct {
	Requests   uint64          // datagrams that arrived
	Answered   uint64          // answers sent
	Cold       uint64          // of those, after a read from disk
	Messages   uint64          // in answers, those that the system did not send included
	Bytes      uint64          // UDP payload of the same
	Unanswered [Reasons]uint64 // by reason
	Pending    int             // waiting for or at their cold read, or for what was asked for upstream, now
	Wanted     uint64          // ranges that upstream was told of
	Arrived    uint64          // requests that waited until what they ask for came
	Admit      admit.Stats
}

// Add adds up what several servers did.
func (s *Stats) Add(o Stats) {
	s.Requests += o.Requests
	s.Answered += o.Answered
	s.Cold += o.Cold
	s.Messages += o.Messages
	s.Bytes += o.Bytes
	for i, n := range o.Unanswered {
		s.Unanswered[i] += n
	}
	s.Pending += o.Pending
	s.Wanted += o.Wanted
	s.Arrived += o.Arrived
	for i, n := range o.Admit.Verdicts {
		s.Admit.Verdicts[i] += n
	}
	s.Admit.Clients += o.Admit.Clients
	s.Admit.Replaced += o.Admit.Replaced
	s.Admit.Shared += o.Admit.Shared
}

// Counters is every counter with its snake_case name, in a fixed order.
func (s Stats) Counters() iter.Seq2[string, uint64] {
	return func(yield func(string, uint64) bool) {
		for _, c := range []struct {
			name string
			n    uint64
		}{{"requests", s.Requests}, {"answered", s.Answered}, {"cold", s.Cold}, {"messages", s.Messages}, {"bytes", s.Bytes}, {"wanted", s.Wanted}, {"arrived", s.Arrived}} {
			if !yield(c.name, c.n) {
				return
			}
		}
		for r, n := range s.Unanswered {
			if !yield(Reason(r).String(), n) {
				return
			}
		}
	}
}
