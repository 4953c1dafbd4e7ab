package torture

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strings"
)

// Payload is what a message looks like: its ID, its size, and bytes that follow from both, so that no other message and no damaged one
// passes for it.
func (m *Message) Payload() []byte {
	if m.Empty {
		return nil
	}
	id := m.ID()
	b := fmt.Appendf(nil, "%s|%d|", id, m.Size)
	h := fnv.New64a()
	_, _ = h.Write(b)
	rng := rand.New(rand.NewPCG(h.Sum64(), 1))
	end := len(b) + m.Size
	for len(b) < end {
		b = binary.LittleEndian.AppendUint64(b, rng.Uint64())
	}
	return b[:end]
}

// messageOf finds the message that a payload belongs to, by its ID in registry.
func messageOf(registry func(id string) *Message, topic string, payload []byte) (*Message, error) {
	head, _, _ := strings.Cut(string(payload[:min(len(payload), 400)]), "\n")
	f := strings.SplitN(head, "|", 5)
	if len(f) < 4 {
		return nil, fmt.Errorf("a payload that nobody sends: %.60q", payload)
	}
	m := registry(strings.Join(f[:3], "|"))
	switch {
	case m == nil:
		return nil, fmt.Errorf("a message that nobody sent: %.60q", payload)
	case !bytes.Equal(m.Payload(), payload):
		return nil, fmt.Errorf("%s has other bytes: %d of them, %.80q", m.ID(), len(payload), payload)
	case m.Topic != topic:
		return nil, fmt.Errorf("%s came to topic %s", m.ID(), topic)
	}
	return m, nil
}
