package sdk

// history remembers which messages were acknowledged, so that they are not shown again when the acknowledgement was lost.
type history struct {
	ring []uint64
	at   int
	set  map[uint64]struct{} // of ring; nil while no message can come again
	miss int
}

// historySize is far over the broker's window: after a crash of the broker, acknowledgements it had received may count for nothing.
const historySize = 1 << 16

func (h *history) add(offset uint64) {
	if len(h.ring) < historySize {
		h.ring = append(h.ring, offset)
	} else {
		h.ring[h.at] = offset
		h.at = (h.at + 1) % historySize
	}
	if h.set != nil {
		h.set[offset] = struct{}{}
	}
}

func (h *history) reconnected() {
	h.set, h.miss = make(map[uint64]struct{}, len(h.ring)), 0
	for _, o := range h.ring {
		h.set[o] = struct{}{}
	}
}

// caughtUp is for when all has come that could come again for having been unacknowledged. What comes again from now on was
// wished for: somebody has moved the queue's position.
func (h *history) caughtUp() { h.set = nil }

func (h *history) has(offset uint64) bool {
	if h.set == nil {
		return false
	}
	if _, ok := h.set[offset]; ok {
		h.miss = 0
		return true
	}
	if h.miss++; h.miss > historySize {
		h.set = nil
	}
	return false
}
