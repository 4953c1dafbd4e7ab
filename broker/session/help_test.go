package session

import (
	"context"
	"log/slog"
	"testing"

	"github.com/edgemq/edgemq/broker/feed"
	"github.com/edgemq/edgemq/broker/topic"
	"github.com/edgemq/edgemq/store"
	"github.com/edgemq/edgemq/store/vfs/vfstest"
)

// openStore runs an empty store until the end of the test.
func openStore(t *testing.T) *store.Store {
	t.Helper()
	log, _ := openStoreOn(t)
	return log
}

// openStoreOn is openStore for who has plans with the disk.
func openStoreOn(t *testing.T) (*store.Store, *vfstest.Disk) {
	t.Helper()
	d := vfstest.NewDisk(vfstest.Never)
	log, err := store.Open(store.Options{Dir: "data", FS: d, MinFree: 1, JournalFileBytes: 128 << 10})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- log.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-ran
		_ = log.Close()
		_ = d.Close()
	})
	return log, d
}

// newManager returns the sessions that a store has.
func newManager(t *testing.T, log *store.Store) *Manager {
	t.Helper()
	logger := slog.New(slog.DiscardHandler)
	hub := feed.NewHub(log, logger)
	queues, err := feed.OpenQueues(hub, true)
	if err != nil {
		t.Fatal(err)
	}
	m, err := NewManager(log, hub, queues, Options{MaxExpiry: Never, MaxQoS: 2, Topics: topic.Limits{MaxLevels: 8, MaxBytes: 100}}, logger)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// committed is a store.Completion that tells a channel.
type committed chan error

func (c committed) Committed(_ uint64, err error) { c <- err }
