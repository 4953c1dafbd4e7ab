package e2e

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	mqtt "github.com/eclipse/paho.mqtt.golang"

	"github.com/edgemq/edgemq/internal/client"
	"github.com/edgemq/edgemq/internal/testbroker"
	"github.com/edgemq/edgemq/internal/testcert"
)

// transports is a broker with a listener of every type.
type transports struct {
	*testbroker.InProcess
	ca     *testcert.CA
	server testcert.Pair
	client testcert.Pair // that the listener "mutual" accepts
	socket string
}

func everyTransport(t testing.TB) *transports {
	t.Helper()
	ca := testcert.NewCA(t)
	tr := &transports{ca: ca, server: ca.Issue("broker"), client: ca.Issue("client"), socket: filepath.Join(t.TempDir(), "mqtt.sock")}
	list := []map[string]any{
		{"name": "tcp", "address": "127.0.0.1:0"},
		{"name": "tls", "type": "tls", "address": "127.0.0.1:0", "cert": tr.server.Cert, "key": tr.server.Key},
		{"name": "mutual", "type": "tls", "address": "127.0.0.1:0", "cert": tr.server.Cert, "key": tr.server.Key, "client_ca": ca.File},
		{"name": "ws", "type": "ws", "address": "127.0.0.1:0"},
		{"name": "wss", "type": "wss", "address": "127.0.0.1:0", "path": "/some/where", "cert": tr.server.Cert, "key": tr.server.Key},
		{"name": "unix", "type": "unix", "address": tr.socket},
	}
	b, err := json.Marshal(list) // which is YAML
	if err != nil {
		t.Fatal(err)
	}
	tr.InProcess = testbroker.Run(t, testbroker.Options{Set: []string{"listeners=" + string(b)}})
	return tr
}

// url is the way to a listener.
func (tr *transports) url(name string) string {
	addr := tr.InProcess.Broker.Addr(name)
	switch name {
	case "tls", "mutual":
		return "mqtts://" + addr
	case "ws":
		return "ws://" + addr
	case "wss":
		return "wss://" + addr + "/some/where"
	case "unix":
		return "unix://" + addr
	}
	return "mqtt://" + addr
}

func (tr *transports) port(name string) string {
	_, port, _ := net.SplitHostPort(tr.InProcess.Broker.Addr(name))
	return port
}

var transportNames = []string{"tcp", "tls", "mutual", "ws", "wss", "unix"}

func (tr *transports) dial(t testing.TB, name string, o client.Options) client.Client {
	t.Helper()
	o.URL, o.TLS = tr.url(name), client.TLS{CAFile: tr.ca.File}
	if name == "mutual" {
		o.TLS.CertFile, o.TLS.KeyFile = tr.client.Cert, tr.client.Key
	}
	c, err := client.Dial(patience(t), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Whatever way a message comes in, it goes out by every other.
func TestTransports(t *testing.T) {
	versions(t, func(t *testing.T, v client.Version) {
		tr := everyTransport(t)
		var subs []client.Client
		for _, name := range transportNames {
			c := tr.dial(t, name, clean(v))
			subscribe(t, c, "ways/#")
			subs = append(subs, c)
		}
		var want []string
		for _, name := range transportNames {
			sent := append(numbers(name+" ", 1, 100), name+strings.Repeat(" large", 50_000), name+" last")
			publish(t, tr.dial(t, name, clean(v)), "ways/"+name, sent...)
			want = append(want, sent...)
		}
		for _, c := range subs {
			expect(t, c, want)
		}
	})
}

// A session moves from one transport to another, and a stop reaches every client.
func TestTransportsShareSessions(t *testing.T) {
	versions(t, func(t *testing.T, v client.Version) {
		tr := everyTransport(t)
		subscribe(t, tr.dial(t, "tcp", durable(v, "wanderer")), "walk")
		pub := tr.dial(t, "ws", clean(v))
		for i, name := range transportNames {
			publish(t, pub, "walk", fmt.Sprint(i))
			c := tr.dial(t, name, durable(v, "wanderer")) // takes over
			if !c.SessionPresent() {
				t.Fatalf("%s: no session", name)
			}
			expect(t, c, []string{fmt.Sprint(i)})
		}
		var all []client.Client
		for _, name := range transportNames {
			c := tr.dial(t, name, clean(v))
			subscribe(t, c, "stop") // the connection stands on both sides
			all = append(all, c)
		}
		tr.Stop()
		for i, c := range all {
			if err := ended(t, c); v == client.V5 && code(err) != 0x8B {
				t.Errorf("%s: %v", transportNames[i], err)
			}
		}
	})
}

func TestMosquittoOverTLSAndUnix(t *testing.T) {
	pub, sub := testbroker.Tool(t, "mosquitto_pub"), testbroker.Tool(t, "mosquitto_sub")
	tr := everyTransport(t)
	for name, at := range map[string][]string{
		"tls":    {"-h", "localhost", "-p", tr.port("tls"), "--cafile", tr.ca.File},
		"alpn":   {"-h", "127.0.0.1", "-p", tr.port("tls"), "--cafile", tr.ca.File, "--tls-alpn", "mqtt"},
		"mutual": {"-h", "localhost", "-p", tr.port("mutual"), "--cafile", tr.ca.File, "--cert", tr.client.Cert, "--key", tr.client.Key},
		"unix":   {"--unix", tr.socket},
	} {
		t.Run(name, func(t *testing.T) {
			for _, version := range []string{"mqttv311", "mqttv5"} {
				id := fmt.Sprint("mosquitto-", name, version, time.Now().UnixNano())
				session := append([]string{"-V", version, "-i", id, "-c", "-q", "1", "-t", "m/" + id}, at...)
				testbroker.Exec(t, nil, sub, append(session, "-E")...)
				var in strings.Builder
				for i := range 1000 {
					fmt.Fprintln(&in, i)
				}
				testbroker.Exec(t, []byte(in.String()), pub, append([]string{"-V", version, "-l", "-q", "1", "-t", "m/" + id}, at...)...)
				if got := testbroker.Exec(t, nil, sub, append(session, "-C", "1000")...); got != in.String() {
					t.Errorf("received %d lines", strings.Count(got, "\n"))
				}
			}
		})
	}
	out, err := exec.Command(pub, "-h", "localhost", "-p", tr.port("mutual"), "--cafile", tr.ca.File, "-t", "x", "-m", "x").CombinedOutput()
	if err == nil {
		t.Errorf("mosquitto_pub without a certificate succeeds: %s", out)
	}
}

// paho.mqtt.golang by its own means.
func TestPahoTransports(t *testing.T) {
	tr := everyTransport(t)
	for name, url := range map[string]string{
		"ssl":  "ssl://" + tr.InProcess.Broker.Addr("tls"),
		"ws":   "ws://" + tr.InProcess.Broker.Addr("ws") + "/mqtt",
		"wss":  tr.url("wss"),
		"unix": tr.url("unix"),
	} {
		t.Run(name, func(t *testing.T) {
			received := make(chan mqtt.Message, 200)
			o := mqtt.NewClientOptions().AddBroker(url).SetClientID("paho-" + name).SetAutoReconnect(false).
				SetTLSConfig(&tls.Config{RootCAs: tr.ca.Pool()}).
				SetDefaultPublishHandler(func(_ mqtt.Client, m mqtt.Message) { received <- m })
			c := mqtt.NewClient(o)
			finish := func(token mqtt.Token) {
				t.Helper()
				if !token.WaitTimeout(testbroker.Patience) || token.Error() != nil {
					t.Fatal(token.Error())
				}
			}
			finish(c.Connect())
			defer c.Disconnect(250)
			finish(c.Subscribe("paho/"+name, 2, nil))
			for i := range 200 {
				finish(c.Publish("paho/"+name, byte(i%3), false, fmt.Sprint(i, strings.Repeat("x", i*100))))
			}
			for i := range 200 {
				select {
				case m := <-received:
					if want := fmt.Sprint(i, strings.Repeat("x", i*100)); string(m.Payload()) != want {
						t.Fatalf("message %d is %.20q", i, m.Payload())
					}
				case <-time.After(testbroker.Patience):
					t.Fatalf("message %d does not come", i)
				}
			}
		})
	}
}

// edgemq's own tools.
func TestToolsOverTransports(t *testing.T) {
	tr := everyTransport(t)
	_, tlsPort, _ := net.SplitHostPort(tr.InProcess.Broker.Addr("tls"))
	for _, tt := range []struct {
		name string
		args []string
		code int
		want string // in standard error
	}{
		{"tls", []string{"--url", tr.url("tls"), "--cafile", tr.ca.File}, 0, ""},
		{"tls by host and port", []string{"--host", "localhost", "--port", tlsPort, "--cafile", tr.ca.File}, 0, ""},
		{"insecure", []string{"--url", tr.url("tls"), "--insecure"}, 0, ""},
		{"mutual", []string{"--url", tr.url("mutual"), "--cafile", tr.ca.File, "--cert", tr.client.Cert, "--key", tr.client.Key}, 0, ""},
		{"ws", []string{"--url", tr.url("ws")}, 0, ""},
		{"wss", []string{"--url", tr.url("wss"), "--cafile", tr.ca.File}, 0, ""},
		{"unix", []string{"--url", tr.url("unix")}, 0, ""},
		{"unknown authority", []string{"--url", tr.url("tls")}, 3, "unknown authority"},
		{"no certificate", []string{"--url", tr.url("mutual"), "--cafile", tr.ca.File}, 3, ""},
		{"no key", []string{"--url", tr.url("mutual"), "--cert", tr.client.Cert}, 2, "key"},
		{"no TLS", []string{"--url", tr.url("tcp"), "--insecure"}, 2, "not for mqtt://"},
		{"another path", []string{"--url", tr.url("ws") + "/x"}, 3, "404"},
		{"no socket", []string{"--url", "unix://" + tr.socket + "x"}, 3, "no such file"},
		{"another scheme", []string{"--url", "http://localhost"}, 2, "only mqtt://"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			queue := strings.ReplaceAll(tt.name, " ", "-")
			for _, version := range []string{"5", "3.1.1"} {
				if version != "5" && tt.name != "mutual" && tt.name != "wss" {
					continue // the way there is the same
				}
				at := append([]string{"--mqtt", version}, tt.args...)
				_, stderr, code := edgemq(t, "", append([]string{"pub", "-t", "$queue/" + queue, "-m", "hello"}, at...)...)
				if code != tt.code || !strings.Contains(stderr, tt.want) {
					t.Fatalf("pub: exit code %d\n%s", code, stderr)
				}
				if tt.code != 0 {
					return
				}
				stdout, stderr, code := edgemq(t, "", append([]string{"sub", "--queue", queue, "-n", "1"}, at...)...)
				if code != 0 || stdout != "hello\n" {
					t.Fatalf("sub: exit code %d, %q\n%s", code, stdout, stderr)
				}
			}
		})
	}
}

// A socket of this machine needs no permission to be served to anybody; the file says who may.
func TestUnixIsLocal(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte("listeners: [{name: a, type: unix, address: /run/edgemq.sock}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, stderr, code := edgemq(t, "", "config", "check", file); code != 0 {
		t.Errorf("%d %s %s", code, out, stderr)
	}
}

// MQTT.js, which most web pages use, over WebSocket and what else it can.
func TestMQTTJS(t *testing.T) {
	node := testbroker.Tool(t, "node")
	dir := filepath.Join("testdata", "mqttjs")
	if _, err := os.Stat(filepath.Join(dir, "node_modules")); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip("MQTT.js is not installed: npm ci --ignore-scripts --prefix internal/e2e/testdata/mqttjs")
	}
	tr := everyTransport(t)
	for name, url := range map[string]string{"tcp": tr.url("tcp"), "tls": tr.url("tls"), "ws": tr.url("ws") + "/mqtt", "wss": tr.url("wss")} {
		for _, version := range []string{"4", "5"} {
			t.Run(name+"/"+version, func(t *testing.T) {
				if out := testbroker.Exec(t, nil, node, filepath.Join(dir, "echo.js"), url, version, tr.ca.File); out != "ok 302\n" {
					t.Errorf("got %q", out)
				}
			})
		}
	}
}
