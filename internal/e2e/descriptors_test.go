//go:build unix

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/testbroker"
)

// Neither connections nor clients with segments of their own use up the file descriptors that the store needs: it goes on, and
// whoever is connected is served.
func TestFewFileDescriptors(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	cmd := exec.Command("/bin/sh", "-c", `ulimit -n 128 && exec "$0" "$@"`, testbroker.Binary(t), "serve", "--listen", addr, "--data", t.TempDir(),
		"--set", "admin.listen=off", "--set", "store.journal_file=4MiB", "--set", "store.checkpoint_interval=1s", "--set", "store.shared_below=1")
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := <-ended; err != nil {
			t.Errorf("the broker ended: %v", err)
		}
		if t.Failed() {
			out := log.String()
			t.Logf("broker's log:\n%s", out[max(0, len(out)-4000):])
		}
	})
	for deadline := time.Now().Add(testbroker.Patience); ; <-time.After(10 * time.Millisecond) {
		if c, err := net.Dial("tcp", addr); err == nil {
			_ = c.Close()
			break
		} else if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	keeper := func(id string) *packet.Connect {
		return &packet.Connect{ClientID: id, HasSessionExpiry: true, SessionExpiry: 0xFFFFFFFF}
	}
	c := testbroker.ConnectRaw(t, addr, packet.V5, keeper("first"))
	publish := func(c *testbroker.Raw, topic string) {
		t.Helper()
		if code := c.Publish(topic, strings.Repeat("x", 1000)); code != 0 && code != packet.CodeNoMatchingSubscribers {
			t.Fatalf("PUBLISH to %s was answered 0x%02X", topic, code)
		}
	}
	for i := range 150 { // each has a segment of its own
		x := testbroker.ConnectRaw(t, addr, packet.V5, keeper(fmt.Sprint("c", i)))
		publish(x, "b")
		x.Close()
	}
	var last net.Conn
	for range 200 { // as many as there is room for; the others are closed at once
		if last, err = net.Dial("tcp", addr); err != nil {
			t.Fatal(err)
		}
		defer last.Close()
	}
	_ = last.SetReadDeadline(time.Now().Add(testbroker.Patience))
	if _, err := last.Read(make([]byte, 1)); err != io.EOF && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("one connection too many: %v", err)
	}
	for range 30 { // over a checkpoint
		publish(c, "a")
		<-time.After(50 * time.Millisecond)
	}
}
