package store

import (
	"context"

	"github.com/edgemq/edgemq/store/record"
)

// Group is what one commit made durable: immutable, and valid for as long as somebody holds it.
type Group struct {
	Base    uint64  // offset of Entries[0]
	Entries []Entry // one a record; may be empty

	buf []byte
}

// Entry is what a dispatcher needs of a record to choose. Group.Record has the rest.
type Entry struct {
	Time                  int64 // µs since 1970
	Topic, Client, Expiry uint32
	pos, size             uint32 // in Group.buf
	PacketID              uint16
	Flags                 record.Flags
}

// Record returns the record of Entries[i]. Its bytes alias the group and are valid for ever.
func (g *Group) Record(i int) Record { panic("todo") }

// Follow hands every group that is committed from Open on to fn, in order, until ctx ends; it returns ctx's error.
// fn must not block for long: appends wait for a follower that is far behind. A follower that starts late begins with the
// oldest group still in memory; Group.Base tells.
func (s *Store) Follow(ctx context.Context, fn func(g *Group)) error { panic("todo") }
