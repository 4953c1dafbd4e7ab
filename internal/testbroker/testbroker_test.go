package testbroker

import (
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/edgemq/edgemq/broker/packet"
)

func TestMain(m *testing.M) {
	code := Main(m)
	if code == 0 {
		if err := goleak.Find(); err != nil {
			println(err.Error())
			code = 1
		}
	}
	os.Exit(code)
}

// A broker that is stopped with clients connected leaves no goroutine behind (TestMain looks).
func TestInProcess(t *testing.T) {
	p := Run(t, Options{Config: "queues: [{name: q}]"})
	var clients []*Raw
	for _, v := range []packet.Version{packet.V311, packet.V5} {
		c := ConnectRaw(t, p.Addr, v, nil)
		c.Subscribe("a/#", 1)
		c.Subscribe("$queue/q", 1)
		clients = append(clients, c)
	}
	if code := clients[0].Publish("a/b", "hello"); code != 0 {
		t.Errorf("PUBACK 0x%02X", code)
	}
	for _, c := range clients {
		if d := c.Delivery(); d.Payload != "hello" || d.Topic != "a/b" || d.QoS != 1 {
			t.Errorf("got %q on %s at QoS %d", d.Payload, d.Topic, d.QoS)
		}
	}
	silent := DialRaw(t, p.Addr, packet.V5)
	p.Stop()
	silent.ExpectClosed()
	if code := clients[0].ExpectClosed(); code != -1 {
		t.Errorf("3.1.1 was sent DISCONNECT 0x%02X", code)
	}
	if code := clients[1].ExpectClosed(); code != 0x8B {
		t.Errorf("5 was told 0x%02X, want 0x8B", code)
	}
	if !strings.Contains(p.log.String(), "listening") {
		t.Errorf("the log does not say that it listens: %s", p.log)
	}
}

func TestProcess(t *testing.T) {
	p := Start(t, Options{Set: []string{"log.format=json"}})
	c := ConnectRaw(t, p.Addr, packet.V5, nil)
	pid := p.PID()
	p.Kill()
	c.ExpectClosed()
	if p.Running() {
		t.Error("it still runs")
	}
	p.Restart()
	if p.PID() == pid {
		t.Error("it is the same process")
	}
	c = ConnectRaw(t, p.Addr, packet.V5, nil)
	p.Stop()
	if code := c.ExpectClosed(); code != 0x8B {
		t.Errorf("told 0x%02X, want 0x8B", code)
	}
	if !strings.Contains(p.Log(), `"msg":"listening"`) {
		t.Errorf("log:\n%s", p.Log())
	}
}
