package broker

import "testing"

// Whatever a process may have open, the store has enough of it to go on, and all together there is no more.
func TestDescriptors(t *testing.T) {
	for _, limit := range []uint64{64, 100, 128, 1024, 4096, 65536, 1 << 20} {
		files, connections, linger := descriptors(limit)
		if files < 16 || connections < 1 || linger < 0 || files+connections+linger+otherFiles > max(int(limit), 65) {
			t.Errorf("%d: store %d, connections %d, lingering %d", limit, files, connections, linger)
		}
	}
	if _, connections, _ := descriptors(0); connections != 0 {
		t.Errorf("unknown: %d connections", connections)
	}
}
