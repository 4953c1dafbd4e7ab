package store

import (
	"bytes"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/edgemq/edgemq/store/record"
)

// A panic of what an append calls leaves no lock and nothing of the append behind.
func TestPanicInAnAppend(t *testing.T) {
	dir := t.TempDir()
	o := small(dir)
	var c clock
	o.Now = c.now
	o.Keys = func(props []byte, _ func(byte, []byte) bool) {
		if bytes.Equal(props, []byte("bad")) {
			panic("a bug in Keys")
		}
	}
	s := start(t, o)
	topic, err := s.TopicID("t")
	if err != nil {
		t.Fatal(err)
	}
	client, err := s.ClientID("c", false)
	if err != nil {
		t.Fatal(err)
	}
	msg := func(payload, props string) Message {
		return Message{Topic: topic, Client: client, Flags: 1, Props: []byte(props), Payload: []byte(payload)}
	}
	put := func(ms ...Message) {
		done := make(based, 1)
		if err := s.Append(ms, nil, true, done); err != nil {
			t.Fatal(err)
		}
		if a := <-done; a.err != nil {
			t.Fatal(a.err)
		}
	}
	c.micros.Store(time.Date(2099, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro())
	put(msg("1", ""))
	c.micros.Store(time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()) // the next append says so
	func() {
		defer func() {
			if recover() == nil {
				t.Error("no panic")
			}
		}()
		put(msg("2", ""), msg("3", "bad"))
	}()
	put(msg("4", ""))
	s.end()
	s = start(t, o)
	recs, _, err := s.NewReader().Read(nil, 1, Limits{MaxRecords: 10, MaxScan: 100}, func(uint64, uint32) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	var got string
	for _, r := range recs {
		got += string(r.Payload)
		if at := time.UnixMicro(r.Time).UTC(); at.Year() != 2027 {
			t.Errorf("%q arrived at %v", r.Payload, at)
		}
	}
	if got != "14" || s.Next() != 3 {
		t.Errorf("%q are stored, next is %d", got, s.Next())
	}
}

// A panic of a goroutine that serves everybody ends the process, with its stack: what such a one has half done is for recovery to sort out.
func TestPanicInTheCommitterIsLoud(t *testing.T) {
	if dir := os.Getenv("EDGEMQ_TEST_PANIC_DIR"); dir != "" {
		s := start(t, small(dir))
		_ = s.Append(nil, []Mutation{record.Put(record.BucketMeta, []byte("k"), nil)}, true, loud{})
		<-s.ran
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestPanicInTheCommitterIsLoud$")
	cmd.Env = append(os.Environ(), "EDGEMQ_TEST_PANIC_DIR="+t.TempDir())
	out, err := cmd.CombinedOutput()
	if err == nil || !bytes.Contains(out, []byte("panic: loud")) || !bytes.Contains(out, []byte("commitLoop")) {
		t.Errorf("%v:\n%s", err, out)
	}
}

// loud is a completion that panics.
type loud struct{}

func (loud) Committed(uint64, error) { panic("loud") }
