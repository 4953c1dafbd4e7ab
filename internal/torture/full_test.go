package torture

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/testbroker"
)

// TestFullFileSystem fills a real, small file system to the last byte under the real broker: publishers are refused, consumers go on, a
// kill and a start lose nothing, and once there is room all is as before, without a restart.
func TestFullFileSystem(t *testing.T) {
	t.Parallel()
	dir := smallFileSystem(t, 48<<20)
	b := testbroker.Start(t, testbroker.Options{Dir: filepath.Join(dir, "data"), Set: []string{
		"store.journal_file=4MiB", "store.checkpoint_bytes=4MiB", "store.checkpoint_interval=1s", "store.segment_bytes=1MiB", "store.min_free=1MiB",
	}})
	keeper := &packet.Connect{ClientID: "consumer", HasSessionExpiry: true, SessionExpiry: 0xFFFFFFFF}
	c := testbroker.ConnectRaw(t, b.Addr, packet.V5, keeper)
	c.Subscribe("t", 1)
	p := raw(t, b, "p")
	p.Publish("t", "0")
	acked := 1
	ballast := filepath.Join(dir, "ballast")
	fill(t, ballast)

	// The journal has room for a while. Then it is full, or it is seen that the disk is.
	body := strings.Repeat("x", 20<<10)
	code := byte(0)
	for i := 0; code == 0; i++ {
		if i > 4000 {
			t.Fatal("the disk does not fill up")
		}
		if code = p.Publish("t", fmt.Sprintf("%d %s", acked, body)); code == 0 {
			acked++
		}
		if i%50 == 0 {
			fill(t, ballast) // whatever was freed
		}
	}
	if code != packet.CodeQuotaExceeded {
		t.Errorf("PUBACK 0x%X", code)
	}
	take := func(from, to int) {
		for n := from; n < to; n++ {
			d := c.Delivery()
			if got, _, _ := strings.Cut(d.Payload, " "); got != fmt.Sprint(n) {
				t.Fatalf("message %d is %.20q", n, d.Payload)
			}
			c.Ack(d)
		}
	}
	take(0, acked/2)
	c.Close()

	b.Kill()
	b.Launch()
	started := listens(b)
	if started {
		p = raw(t, b, "p")
		if code := p.Publish("t", "refused"); code != packet.CodeQuotaExceeded {
			t.Errorf("on the full disk: PUBACK 0x%X", code)
		}
	} else if log := b.Log(); !strings.Contains(log, "no space left") {
		t.Errorf("it does not start, and does not say why:\n%s", log)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if !started {
		b.Restart()
		p = raw(t, b, "p")
	}
	deadline := time.Now().Add(testbroker.Patience)
	for p.Publish("t", fmt.Sprintf("%d ", acked)) != 0 {
		if time.Now().After(deadline) {
			t.Fatal("there is room, and publishers are still refused")
		}
		time.Sleep(20 * time.Millisecond)
	}
	acked++
	t.Logf("%d messages acknowledged; a start on the full disk works: %v", acked, started)

	// All that was acknowledged is there, in order; what a kill took back of the acknowledgements comes again.
	c = testbroker.ConnectRaw(t, b.Addr, packet.V5, keeper)
	first := c.Delivery()
	from := 0
	if _, err := fmt.Sscan(first.Payload, &from); err != nil || from > acked/2 {
		t.Fatalf("it goes on at %.20q, %d were acknowledged", first.Payload, acked/2)
	}
	c.Ack(first)
	take(from+1, acked)
	log := raw(t, b, "log")
	c.Close()
	c = log
	log.Subscribe("$s/earliest/t", 1)
	take(0, acked)
}

// listens waits until a broker listens, or has ended.
func listens(b *testbroker.Process) bool {
	for b.Running() {
		if c, err := net.Dial("tcp", b.Addr); err == nil {
			_ = c.Close()
			return true
		}
		time.Sleep(5 * time.Millisecond)
	}
	return false
}

// smallFileSystem mounts one in memory.
func smallFileSystem(t *testing.T, bytes int) string {
	t.Helper()
	if runtime.GOOS != "linux" || os.Getuid() != 0 {
		t.Skip("mounting a small file system needs root on Linux; vfstest has full disks too (TestDiskErrors, store.TestFullDisk)")
	}
	dir := t.TempDir()
	if err := mount(dir, bytes); err != nil {
		t.Skipf("mounting a small file system is not possible here: %v", err)
	}
	t.Cleanup(func() {
		if err := unmount(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fill takes all space that is left.
func fill(t *testing.T, name string) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for b := make([]byte, 64<<10); len(b) > 0; {
		if n, err := f.Write(b); err != nil {
			b = b[:len(b)/2]
			_ = n
		}
	}
}
