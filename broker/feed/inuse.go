package feed

import "github.com/edgemq/edgemq/store/record"

// InUse calls topic and client with the numbers that feeds keep though the log may have lost their messages. All that limits of topics dropped below the
// offset that it returns, queues have been told of.
func (h *Hub) InUse(topic, client func(number uint32)) (told uint64) {
	h.feedsMu.Lock()
	feeds := make([]*Feed, 0, len(h.feeds))
	for _, f := range h.feeds {
		feeds = append(feeds, f)
	}
	h.feedsMu.Unlock()
	first := h.log.First()
	told = h.pos.Load()
	for _, f := range feeds {
		f.mu.Lock()
		if f.local != 0 {
			client(f.local)
		}
		if f.queues != nil && !f.closed {
			told = min(told, f.examined())
		}
		for seq := f.win.head; seq < f.win.tail; seq++ {
			if s := f.win.at(seq); s.state != settled && (s.Offset < first || s.Flags.Has(record.FlagTransient)) { // which the log does not have
				topic(s.Topic)
				client(s.Client)
			}
		}
		f.mu.Unlock()
	}
	return told
}
