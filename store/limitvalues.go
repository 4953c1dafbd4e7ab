package store

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/edgemq/edgemq/store/record"
)

// What the state has of topics with limits.
const (
	floorVersion = 1
	tallyVersion = 1
)

var (
	errFloor = errors.New("store: damaged floor of a topic")
	errTally = errors.New("store: damaged tally of a topic")
)

// mutation saves the floor: version u8, then uvarints: floor, messages and bytes dropped; l.mu is held.
func (l *TopicLimit) mutation() Mutation {
	v := binary.AppendUvarint([]byte{floorVersion}, l.floor.Load())
	v = binary.AppendUvarint(v, l.gone.Records)
	v = binary.AppendUvarint(v, l.gone.Bytes)
	return record.Put(record.BucketFloors, topicKey(l.id), v)
}

// tally saves what is in segments: version u8, then uvarints: messages, bytes, the last offset. The flusher calls it.
func (l *TopicLimit) tally() Mutation {
	v := binary.AppendUvarint([]byte{tallyVersion}, l.stored.Records)
	v = binary.AppendUvarint(v, l.stored.Bytes)
	v = binary.AppendUvarint(v, l.newest)
	return record.Put(record.BucketTallies, topicKey(l.id), v)
}

// parseThree reads a version and three uvarints.
func parseThree(b []byte, version byte, bad error) (v [3]uint64, err error) {
	if len(b) == 0 {
		return v, bad
	}
	if b[0] > version {
		return v, fmt.Errorf("%w: version %d", ErrVersion, b[0])
	}
	b = b[1:]
	for i := range v {
		n := 0
		if v[i], n = binary.Uvarint(b); n <= 0 {
			return v, bad
		}
		b = b[n:]
	}
	if len(b) > 0 {
		return v, bad
	}
	return v, nil
}
