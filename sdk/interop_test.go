package sdk_test

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	mqtt "github.com/eclipse/paho.mqtt.golang"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/testbroker"
	"github.com/edgemq/edgemq/internal/testcert"
	"github.com/edgemq/edgemq/sdk"
)

// The README's recipe for those who use paho without the SDK.
func TestBarePahoRecipe(t *testing.T) { // AT-91
	b := testbroker.Run(t, testbroker.Options{})
	got := make(chan string, 10)
	c := mqtt.NewClient(mqtt.NewClientOptions().AddBroker("tcp://" + b.Addr).SetClientID("bare").
		SetDefaultPublishHandler(func(_ mqtt.Client, m mqtt.Message) { got <- m.Topic() + " " + string(m.Payload()) }))
	if tok := c.Connect(); tok.Wait() && tok.Error() != nil {
		t.Fatal(tok.Error())
	}
	defer c.Disconnect(100)
	if tok := c.SubscribeMultiple(map[string]byte{"$queue/q1": 1, "$queue/q1/T1": 1}, nil); tok.Wait() && tok.Error() != nil {
		t.Fatal(tok.Error())
	}
	p := dial(t, b.Addr, "p").Producer()
	send(t, p, sdk.NewQueueMessage("q1", []byte("direct")).PutProperty("k", sdk.Int32(1)), sdk.NewMessage("T1", []byte("bound")))
	for _, want := range []string{"$queue/q1 direct", "T1 bound"} {
		select {
		case s := <-got:
			if s != want {
				t.Fatalf("got %q, want %q", s, want)
			}
		case <-time.After(testbroker.Patience):
			t.Fatalf("no %q", want)
		}
	}
	queue := b.Queues()
	eventually(t, "both are acknowledged", func() bool { q, err := queue.Backlog("q1"); return err == nil && q.Messages == 0 })
}

func TestOrderOfFiltersIsIrrelevant(t *testing.T) { // AT-92
	b := testbroker.Run(t, testbroker.Options{})
	p := dial(t, b.Addr, "p").Producer()
	for i := range 30 {
		sendTo(t, p, []string{"A", "B", "queue:X"}[i%3], fmt.Sprint(i))
	}
	filters := func(q string) []string {
		return []string{"$v5/$queue/" + q, "$v5/$queue/" + q + "/A", "$v5/$queue/" + q + "/B"}
	}
	for i, perm := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		q := fmt.Sprint("Q", i)
		raw := testbroker.ConnectRaw(t, b.Addr, packet.V311, &packet.Connect{ClientID: q, Clean: true})
		s := &packet.Subscribe{PacketID: 1}
		for _, k := range perm {
			s.Filters = append(s.Filters, packet.Subscription{Filter: filters(q)[k], QoS: 1})
		}
		raw.Send(packet.AppendSubscribe(nil, packet.V311, s))
		raw.Expect(packet.TypeSuback)
		var got []string
		for {
			d := raw.Delivery()
			if d.QoS == 0 {
				break // the marker
			}
			raw.Ack(d)
			var e packet.Publish
			if err := packet.ParseEnvelope([]byte(d.Payload), &e); err != nil {
				t.Fatal(err)
			}
			got = append(got, string(e.Payload))
		}
		var want []string
		for n := range 30 {
			if n%3 != 2 {
				want = append(want, fmt.Sprint(n))
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("order %v: %q", perm, got)
		}
	}
}

func TestTransports(t *testing.T) {
	t.Parallel()
	ca := testcert.NewCA(t)
	server, meter := ca.Issue("broker"), ca.Issue("meter-7")
	cert, key := server.Cert, server.Key
	sock := filepath.Join(t.TempDir(), "s")
	b := testbroker.Run(t, testbroker.Options{Set: []string{fmt.Sprintf(
		"listeners=[{name: tcp, address: '127.0.0.1:0'}, {name: tls, type: tls, address: '127.0.0.1:0', cert: %[1]s, key: %[2]s},"+
			" {name: mtls, type: tls, address: '127.0.0.1:0', cert: %[1]s, key: %[2]s, client_ca: %[4]s}, {name: ws, type: ws, address: '127.0.0.1:0'}, {name: wss, type: wss, address: '127.0.0.1:0', cert: %[1]s, key: %[2]s}, {name: unix, type: unix, address: %[3]s}]",
		cert, key, sock, ca.File)}})
	trust := sdk.WithTLS(&tls.Config{RootCAs: ca.Pool(), Certificates: []tls.Certificate{meter.Load(t)}})
	for name, url := range map[string]string{
		"tcp": "mqtt://" + b.Broker.Addr("tcp"), "tls": "mqtts://" + b.Broker.Addr("tls"), "mtls": "mqtts://" + b.Broker.Addr("mtls"), "ws": "ws://" + b.Broker.Addr("ws") + "/mqtt",
		"wss": "wss://" + b.Broker.Addr("wss") + "/mqtt", "unix": "unix://" + sock,
	} {
		t.Run(name, func(t *testing.T) {
			c := dial(t, url, name, trust)
			want := numbers(name, 500)
			sendTo(t, c.Producer(), "queue:"+name, want...)
			if got := bodies(poll(t, attach(t, c, name, nil))); !slices.Equal(got, want) {
				t.Fatalf("%d messages", len(got))
			}
		})
	}
	if _, err := sdk.Dial(patience(t), "mqtts://"+b.Broker.Addr("tls")); err == nil {
		t.Fatal("a certificate nobody vouches for was trusted")
	}
	if _, err := sdk.Dial(patience(t), "mqtts://"+b.Broker.Addr("mtls"), sdk.WithTLS(&tls.Config{RootCAs: ca.Pool()})); err == nil {
		t.Fatal("a certificate is demanded, and there was none")
	}
	if _, err := sdk.Dial(patience(t), "gopher://x"); err == nil {
		t.Fatal("gopher")
	}
}

// What stands in the address and in options gets into the WebSocket handshake as it should: the headers, and not the password.
func TestWebSocketHandshake(t *testing.T) {
	got := make(chan *http.Request, 1)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got <- r
		w.WriteHeader(http.StatusForbidden)
	}))
	defer proxy.Close()
	url := strings.Replace(proxy.URL, "http://", "ws://ann:secret@", 1) + "/mqtt"
	_, err := sdk.Dial(patience(t), url, sdk.WithHTTPHeader(http.Header{"X-Token": {"t"}}))
	if err == nil || strings.Contains(err.Error(), "secret") {
		t.Fatalf("got %v", err)
	}
	r := <-got
	if r.Header.Get("X-Token") != "t" || r.Header.Get("Sec-WebSocket-Protocol") != "mqtt" || r.Header.Get("Authorization") != "" {
		t.Fatalf("headers %v", r.Header)
	}
}
