package session

// Stats counts what all links did.
type Stats struct {
	Sessions, Connections                       int
	MaxConnections, Connects                    int64    // the most at once; all that ever were
	MessagesIn, MessagesOut                     [3]int64 // PUBLISH packets by QoS
	PayloadIn, PayloadOut                       int64    // their bytes, properties included
	BytesIn, BytesOut                           int64    // on the wire
	Refused, TooLarge, LostWithQoS0, Duplicates int64
	LoginsRefused, NacksRefused                 int64
	Denied                                      int64 // publishes (which count as refused), subscriptions and Wills, by rules
	Panics                                      int64 // caught, each at the cost of one connection or of a pause of one feed
	UnreadableDelayed                           int   // delayed messages that make no sense and were set aside
}

// Stats returns the counters.
func (m *Manager) Stats() Stats {
	m.mu.Lock()
	n := len(m.sessions)
	m.mu.Unlock()
	m.links.mu.Lock()
	c := len(m.links.all)
	m.links.mu.Unlock()
	out := Stats{
		Sessions: n, Connections: c, MaxConnections: m.peers.Load(), Connects: m.connects.Load(),
		PayloadIn: m.payloadIn.Load(), PayloadOut: m.payloadOut.Load(), BytesIn: m.bytesIn.Load(), BytesOut: m.bytesOut.Load(),
		Panics:        m.faults.Load() + m.hub.Panics(),
		LoginsRefused: m.loginsRefused.Load(), NacksRefused: m.nacksRefused.Load(), Denied: m.denied.Load(),
		Refused: m.refused.Load(), TooLarge: m.tooLarge.Load(), LostWithQoS0: m.lost.Load(), Duplicates: m.duplicates.Load(), UnreadableDelayed: m.delayed.unreadable(),
	}
	for qos := range out.MessagesIn {
		out.MessagesIn[qos], out.MessagesOut[qos] = m.messagesIn[qos].Load(), m.messagesOut[qos].Load()
	}
	return out
}
