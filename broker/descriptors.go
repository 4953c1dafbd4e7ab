package broker

import "github.com/edgemq/edgemq/broker/transport"

// What a process has open besides segments and connections: journal, ledger, state, listeners, the admin API, standard streams.
const otherFiles = 32

// descriptors divides the file descriptors that the process may have between the store, connections, and those that linger
// after their end; connections 0 is no limit. A flood of connections that left the store none would end the broker: a store
// that cannot open a file cannot go on.
func descriptors(limit uint64) (files, connections, linger int) {
	const most = 1024 // of the store
	if limit == 0 || limit > 1<<30 {
		return most, 0, transport.MaxLinger
	}
	n := int(limit)
	files = min(most, n/2)
	rest := max(0, n-files-otherFiles)
	linger = min(transport.MaxLinger, rest/4)
	return files, max(1, rest-linger), linger
}

// lower returns the lower of two limits, 0 being none.
func lower(a, b int) int {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}
