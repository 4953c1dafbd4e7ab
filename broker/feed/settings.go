package feed

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"time"

	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/record"
)

// Setting names one field of a Policy. The numbers are on the disk.
type Setting uint16

// The settings that can be changed while the broker runs.
const (
	SetMaxInFlight Setting = 1 << iota
	SetMaxDeliveries
	SetRetryDelay
	SetDeadLetter
	SetOrdered
	SetExclusive
	SetAckTimeout
	SetMaxMessages
	SetMaxBytes
	SetMaxAge
	SetReject

	lastSetting
)

// allSettings are those that this build knows.
const allSettings = lastSetting - 1

// What a queue's settings may be, whoever sets them. 0 is possible too where it says that there is no limit; ages and timeouts are
// looked at once a second.
const (
	MostInFlight    = 65535
	MostDeliveries  = 1_000_000
	MostMessages    = 1_000_000_000_000
	LeastBytes      = 1 << 10
	MostBytes       = 1 << 50
	LeastAge        = time.Second
	MostAge         = 100 * 365 * 24 * time.Hour
	LeastAckTimeout = time.Second
	MostAckTimeout  = 365 * 24 * time.Hour
	LeastRetryDelay = time.Millisecond
	MostRetryDelay  = 365 * 24 * time.Hour
	MostRetryDelays = 100
)

// settings are what a queue has of its own: where it differs from what the configuration says.
type settings struct {
	paused bool
	set    Setting // which fields of policy count
	policy Policy
}

// What holds for feeds that are no queues.
var (
	noPolicy   Policy
	noSettings settings
)

// over returns base with the fields of s that are set.
func (s *settings) over(base Policy) Policy {
	for bit := Setting(1); bit < lastSetting; bit <<= 1 {
		if s.set&bit != 0 {
			base.take(bit, &s.policy)
		}
	}
	return base
}

// take copies one field from another policy.
func (p *Policy) take(which Setting, from *Policy) {
	fields[bits.TrailingZeros16(uint16(which))].copy(p, from)
}

// field is one setting's place in a Policy and form on the disk.
type field struct {
	copy   func(to, from *Policy)
	append func(p *Policy, b []byte) []byte
	parse  func(p *Policy, r *numbers)
}

// fields are those of the settings, by the number of their bit.
var fields = [...]field{
	count(math.MaxInt32, 0, func(p *Policy) *int { return &p.MaxInFlight }),
	count(math.MaxInt32, 1, func(p *Policy) *int { return &p.MaxDeliveries }),
	{
		func(to, from *Policy) { to.RetryDelay = from.RetryDelay },
		func(p *Policy, b []byte) []byte {
			b = binary.AppendUvarint(b, uint64(len(p.RetryDelay)))
			for _, d := range p.RetryDelay {
				b = binary.AppendUvarint(b, uint64(d))
			}
			return b
		},
		func(p *Policy, r *numbers) {
			for n := r.atMost(uint64(len(r.b))); n > 0 && !r.bad; n-- {
				p.RetryDelay = append(p.RetryDelay, time.Duration(r.atMost(math.MaxInt64)))
			}
		},
	},
	{
		func(to, from *Policy) { to.DeadLetter = from.DeadLetter },
		func(p *Policy, b []byte) []byte {
			return append(binary.AppendUvarint(b, uint64(len(p.DeadLetter))), p.DeadLetter...)
		},
		func(p *Policy, r *numbers) {
			n := r.atMost(uint64(len(r.b)))
			if r.bad = r.bad || n > uint64(len(r.b)); !r.bad {
				p.DeadLetter, r.b = string(r.b[:n]), r.b[n:]
			}
		},
	},
	truth(func(p *Policy) *bool { return &p.Ordered }),
	truth(func(p *Policy) *bool { return &p.Exclusive }),
	count(math.MaxInt64, 0, func(p *Policy) *time.Duration { return &p.AckTimeout }),
	count(math.MaxInt64, 0, func(p *Policy) *int64 { return &p.Limits.MaxMessages }),
	count(math.MaxInt64, 0, func(p *Policy) *int64 { return &p.Limits.MaxBytes }),
	count(math.MaxInt64, 0, func(p *Policy) *time.Duration { return &p.Limits.MaxAge }),
	truth(func(p *Policy) *bool { return &p.Limits.Reject }),
}

// count is a field with a number of most at most, and of which plus more is stored: it may be as low as -more.
func count[T int | int64 | time.Duration](most uint64, more T, of func(p *Policy) *T) field {
	return field{
		func(to, from *Policy) { *of(to) = *of(from) },
		func(p *Policy, b []byte) []byte { return binary.AppendUvarint(b, uint64(max(-more, *of(p))+more)) },
		func(p *Policy, r *numbers) { *of(p) = T(r.atMost(most)) - more },
	}
}

func truth(of func(p *Policy) *bool) field {
	return field{
		func(to, from *Policy) { *of(to) = *of(from) },
		func(p *Policy, b []byte) []byte {
			if *of(p) {
				return append(b, 1)
			}
			return append(b, 0)
		},
		func(p *Policy, r *numbers) { *of(p) = r.atMost(1) == 1 },
	}
}

// queueVersion is that of the value of a queue. 1 had no settings.
const queueVersion = 2

var errQueue = errors.New("feed: damaged queue")

// append encodes: version u8, flags u8 (1: paused), then uvarints: which settings follow, as bits, and in the order of the bits
// each one. RetryDelay is the number of delays and each of them, DeadLetter its length and the name; durations are in ns.
// MaxDeliveries is one more than the number, 0 for never.
func (s *settings) append(b []byte) []byte {
	flags := byte(0)
	if s.paused {
		flags = 1
	}
	b = binary.AppendUvarint(append(b, queueVersion, flags), uint64(s.set))
	for i := range fields {
		if s.set&(1<<i) != 0 {
			b = fields[i].append(&s.policy, b)
		}
	}
	return b
}

func parseSettings(b []byte) (s settings, err error) {
	if len(b) == 0 {
		return s, errQueue
	}
	version := b[0]
	switch {
	case version > queueVersion:
		return s, fmt.Errorf("feed: queue of version %d: %w", version, store.ErrVersion)
	case version == 0 || len(b) < 2 || version == 1 && len(b) != 2:
		return s, errQueue
	}
	s.paused = b[1]&1 != 0
	if version == 1 {
		return s, nil
	}
	r := numbers{b: b[2:]}
	set := r.next()
	if set&^uint64(allSettings) != 0 {
		return s, fmt.Errorf("feed: queue with a setting that this build does not know: %w", store.ErrVersion)
	}
	s.set = Setting(set)
	for i := range fields {
		if s.set&(1<<i) != 0 && !r.bad {
			fields[i].parse(&s.policy, &r)
		}
	}
	if r.bad || len(r.b) > 0 {
		return s, errQueue
	}
	return s, nil
}

// basePolicy is what holds for a queue that neither the configuration nor anybody else has said anything about.
func basePolicy(name string) Policy {
	if isDead(name) {
		return Policy{MaxDeliveries: -1} // there is nowhere to go from here
	}
	return Policy{}
}

// SetPolicy says what holds for a queue where nothing was set for it (Configure): the configuration's part. It is not saved.
func (q *Queues) SetPolicy(name string, p Policy) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	f, ok := q.byName[name]
	if !ok {
		return fmt.Errorf("%w: %q", ErrNoQueue, name)
	}
	q.base[name] = p
	f.mu.Lock()
	defer f.mu.Unlock()
	f.applyPolicy(f.chosen.over(p))
	return nil
}

// applyPolicy puts a policy into force; f.mu is held.
func (f *Feed) applyPolicy(p Policy) {
	before := f.policy.Limits
	f.policy = &p
	if p.Limits != before {
		f.setLimits(p.Limits)
	}
	f.rebalance()
}

// Configure sets some fields of a queue's policy, to what p has, and has others (reset) be as the configuration says. It is
// durable when Configure returns.
func (q *Queues) Configure(name string, set Setting, p Policy, reset Setting) error {
	err := q.change(name, func(s *settings) error { return s.configure(name, q.baseOf(name), set, &p, reset) })
	if err != nil {
		return err
	}
	if f, err := q.Find(name); err == nil {
		return f.enforce(f.hub.log.Now())
	}
	return nil
}

// CheckSettings returns the error that Configure would for settings that a queue cannot have, be it there or not.
func (q *Queues) CheckSettings(name string, set Setting, p Policy, reset Setting) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	var s settings
	if f, ok := q.byName[name]; ok {
		f.mu.Lock()
		s = *f.chosen
		f.mu.Unlock()
	}
	return s.configure(name, q.baseOf(name), set, &p, reset)
}

// configure is Configure for one queue's settings.
func (s *settings) configure(name string, base Policy, set Setting, p *Policy, reset Setting) error {
	for bit := Setting(1); bit < lastSetting; bit <<= 1 {
		if set&bit != 0 {
			s.policy.take(bit, p)
		}
	}
	s.policy.RetryDelay = slices.Clone(s.policy.RetryDelay)
	s.set = s.set&^reset | set
	if s.over(base).DeadLetter == name {
		return fmt.Errorf("%w: a queue cannot be its own dead letter queue", ErrPolicy)
	}
	return nil
}

// ErrPolicy means that a queue cannot have such settings.
var ErrPolicy = errors.New("impossible settings")

// Pause stops a queue from handing out messages, or has it go on. It is durable when Pause returns.
func (q *Queues) Pause(name string, paused bool) error {
	return q.change(name, func(s *settings) error {
		s.paused = paused
		return nil
	})
}

// change changes what a queue has of its own; it holds from the moment it is appended, and is durable when change returns.
func (q *Queues) change(name string, do func(s *settings) error) error {
	return q.commit(func(done store.Completion) error {
		q.mu.Lock()
		defer q.mu.Unlock() // what is appended later was also changed later, and not after a deletion
		f, ok := q.byName[name]
		if !ok {
			return fmt.Errorf("%w: %q", ErrNoQueue, name)
		}
		f.mu.Lock()
		s := *f.chosen
		f.mu.Unlock()
		if err := do(&s); err != nil {
			return err
		}
		if err := q.hub.Save([]store.Mutation{record.Put(record.BucketQueues, []byte(name), s.append(nil))}, done); err != nil {
			return err
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		f.chosen = &s
		f.applyPolicy(s.over(q.baseOf(name)))
		f.wake()
		return nil
	})
}

// baseOf returns what holds for a queue where nothing was set for it; q.mu is held.
func (q *Queues) baseOf(name string) Policy {
	if p, ok := q.base[name]; ok {
		return p
	}
	return basePolicy(name)
}
