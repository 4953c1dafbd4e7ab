package session

import "github.com/edgemq/edgemq/store/record"

// InUse calls client with the numbers that are kept though the log may have no message with them: of publishers whose @MessageIds or epochs are
// remembered, and of messages that are retained or wait for their time. Links ask for theirs anew when numbers have been given up.
func (m *Manager) InUse(client func(number uint32)) error {
	m.dedup.mu.Lock()
	for id := range m.dedup.pubs {
		client(id)
	}
	m.dedup.mu.Unlock()
	m.epochs.mu.Lock()
	for id := range m.epochs.by {
		client(id)
	}
	m.epochs.mu.Unlock()
	err := m.log.Range(record.BucketRetained, nil, func(_, v []byte) bool {
		if rec, err := parseRetained(v); err == nil {
			client(rec.Client)
		}
		return true
	})
	if err != nil {
		return err
	}
	return m.log.Range(record.BucketDelayed, nil, func(_, v []byte) bool {
		if _, _, rec, err := parseDelayed(v); err == nil {
			client(rec.Client)
		}
		return true
	})
}
