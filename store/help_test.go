package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/edgemq/edgemq/store/record"
)

// running is a store whose Run is on its way.
type running struct {
	*Store
	t    testing.TB
	stop context.CancelFunc
	ran  chan error
	over bool
}

// small makes everything happen with little data.
func small(dir string) Options {
	return Options{
		Dir: dir, JournalFileBytes: 256 << 10, CheckpointBytes: 512 << 10, CheckpointInterval: time.Hour,
		SegmentBytes: 64 << 10, SharedBelow: 8 << 10, TailBytes: 64 << 10, CacheBytes: 1 << 20, MinFree: 1,
	}
}

// start opens a store and runs it until the test ends or stops it.
func start(t testing.TB, o Options) *running {
	t.Helper()
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	s.retainEvery = 20 * time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{Store: s, t: t, stop: cancel, ran: make(chan error, 1)}
	go func() { r.ran <- s.Run(ctx) }()
	t.Cleanup(func() {
		if !r.over {
			r.end()
		}
	})
	return r
}

// end stops the store cleanly.
func (r *running) end() {
	r.t.Helper()
	r.over = true
	r.stop()
	if err := errors.Join(<-r.ran, r.Close()); err != nil {
		r.t.Errorf("stop: %v", err)
	}
}

// kill stops the store as a crash of the process does: what is not in the journal is gone.
func (r *running) kill() {
	r.t.Helper()
	r.over = true
	_ = r.fail(errKilled)
	if err := <-r.ran; !errors.Is(err, errKilled) {
		r.t.Errorf("Run after a kill: %v", err)
	}
	r.stop()
	if err := r.Close(); err != nil {
		r.t.Error(err)
	}
}

// put appends and waits for the answer. It returns the first offset.
func (r *running) put(msgs ...Message) uint64 {
	r.t.Helper()
	base, err := r.tryPut(nil, msgs...)
	if err != nil {
		r.t.Fatal(err)
	}
	return base
}

func (r *running) tryPut(muts []Mutation, msgs ...Message) (uint64, error) {
	done := make(based, 1)
	if err := r.Append(msgs, muts, true, done); err != nil {
		return 0, err
	}
	a := <-done
	return a.base, a.err
}

// based is a completion to wait for.
type based chan answerOf

type answerOf struct {
	base uint64
	err  error
}

func (b based) Committed(base uint64, err error) { b <- answerOf{base, err} }

// topic and client are numbers for names.
func (r *running) topic(name string) uint32 {
	r.t.Helper()
	id, err := r.TopicID(name)
	if err != nil {
		r.t.Fatal(err)
	}
	return id
}

func (r *running) client(name string) uint32 {
	r.t.Helper()
	id, err := r.ClientID(name, false)
	if err != nil {
		r.t.Fatal(err)
	}
	return id
}

// all is a want that wants everything.
func all(uint64, uint32) bool { return true }

// read returns everything from an offset on.
func (r *running) read(from uint64) []Record {
	r.t.Helper()
	var recs []Record
	reader := r.NewReader()
	for {
		var next uint64
		var err error
		recs, next, err = reader.Read(recs, from, Limits{MaxRecords: 1000, MaxScan: 5000}, all)
		if err != nil {
			r.t.Fatal(err)
		}
		if next == from || next == r.Committed() {
			return recs
		}
		from = next
	}
}

// flushed waits until nothing is left to flush.
func (r *running) flushAll() {
	r.t.Helper()
	r.await("flush", func() bool { return r.Stats().UnflushedBytes == 0 })
}

// checkpointAll waits until a checkpoint covers everything.
func (r *running) checkpointAll() {
	r.t.Helper()
	r.await("checkpoint", func() bool {
		poke(r.checkpointNow)
		poke(r.Store.flusher.wake)
		return r.Stats().Checkpointed == r.Committed()
	})
}

// await waits for a condition.
func (r *running) await(what string, cond func() bool) {
	r.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !cond() {
		if time.Now().After(deadline) {
			r.t.Fatalf("waited in vain for: %s; %+v", what, r.Stats())
		}
		time.Sleep(time.Millisecond)
	}
}

// numbered makes a message whose payload begins with a number.
func numbered(topic, client uint32, n, size int) Message {
	p := make([]byte, max(size, 8))
	binary.LittleEndian.PutUint64(p, uint64(n))
	for i := 8; i < len(p); i++ {
		p[i] = byte(n + i)
	}
	return Message{Topic: topic, Client: client, Payload: p, Flags: record.Flags(1)}
}

// number checks a payload of numbered and returns its number.
func number(r Record) (int, error) {
	n := int(binary.LittleEndian.Uint64(r.Payload))
	for i := 8; i < len(r.Payload); i++ {
		if r.Payload[i] != byte(n+i) {
			return 0, fmt.Errorf("record %d, number %d: wrong byte %d", r.Offset, n, i)
		}
	}
	return n, nil
}
