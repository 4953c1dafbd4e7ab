package transport_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/edgemq/edgemq/broker/transport"
)

// request is a good one but for the lines that replace others or are added; a line that ends in ":" is left out.
func request(path string, lines ...string) string {
	header := []string{
		"Host: broker", "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
		"Sec-WebSocket-Version: 13", "Sec-WebSocket-Protocol: mqtt",
	}
	for _, line := range lines {
		name, _, _ := strings.Cut(line, ":")
		kept := header[:0]
		for _, h := range header {
			if !strings.HasPrefix(h, name+":") {
				kept = append(kept, h)
			}
		}
		header = kept
		if !strings.HasSuffix(line, ":") {
			header = append(header, line)
		}
	}
	return "GET " + path + " HTTP/1.1\r\n" + strings.Join(header, "\r\n") + "\r\n\r\n"
}

// wsClient speaks WebSocket byte by byte.
type wsClient struct {
	net.Conn
	t  testing.TB
	in *bufio.Reader
}

// upgrade opens a socket and makes a WebSocket of it.
func upgrade(t testing.TB, s *server, path, protocols string) *wsClient {
	t.Helper()
	return upgradeConn(t, s.dial(), path, protocols)
}

func upgradeConn(t testing.TB, raw net.Conn, path, protocols string) *wsClient {
	t.Helper()
	c := &wsClient{Conn: raw, t: t}
	c.in = bufio.NewReader(c)
	c.send([]byte(request(path, "Sec-WebSocket-Protocol: "+protocols)))
	r, err := http.ReadResponse(c.in, nil)
	if err != nil {
		t.Fatal(err)
	}
	if r.StatusCode != http.StatusSwitchingProtocols || r.Header.Get("Sec-WebSocket-Accept") != "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" {
		t.Fatalf("answered %d %v", r.StatusCode, r.Header)
	}
	return c
}

func (c *wsClient) send(b []byte) {
	c.t.Helper()
	if _, err := c.Write(b); err != nil {
		c.t.Fatal(err)
	}
}

const (
	fin          = 0x80
	continuation = 0
	text         = 1
	binaryFrame  = 2
	closeFrame   = 8
	ping         = 9
	pong         = 10
)

// frame is a masked frame.
func frame(first byte, payload string) []byte {
	b := []byte{first}
	switch n := len(payload); {
	case n < 126:
		b = append(b, 0x80|byte(n))
	case n < 1<<16:
		b = binary.BigEndian.AppendUint16(append(b, 0x80|126), uint16(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, 0x80|127), uint64(n))
	}
	key := [4]byte{1, 2, 3, 4}
	b = append(b, key[:]...)
	for i := range len(payload) {
		b = append(b, payload[i]^key[i%4])
	}
	return b
}

// read returns the next frame from the server.
func (c *wsClient) read() (first byte, payload string) {
	c.t.Helper()
	var head [2]byte
	c.full(head[:])
	size := uint64(head[1])
	switch size {
	case 126:
		var b [2]byte
		c.full(b[:])
		size = uint64(binary.BigEndian.Uint16(b[:]))
	case 127:
		var b [8]byte
		c.full(b[:])
		size = binary.BigEndian.Uint64(b[:])
	}
	b := make([]byte, size)
	c.full(b)
	return head[0], string(b)
}

func (c *wsClient) full(b []byte) {
	c.t.Helper()
	if _, err := io.ReadFull(c.in, b); err != nil {
		c.t.Fatal(err)
	}
}

func TestUpgrade(t *testing.T) {
	for _, tt := range []struct {
		name    string
		request string
		status  int
		accept  string // subprotocol
	}{
		{"good", request("/mqtt"), 101, "mqtt"},
		{"with a query", request("/mqtt?x=1"), 101, "mqtt"},
		{"the old name", request("/mqtt", "Sec-WebSocket-Protocol: mqttv3.1"), 101, "mqttv3.1"},
		{"both names", request("/mqtt", "Sec-WebSocket-Protocol: mqttv3.1, mqtt"), 101, "mqtt"},
		{"no subprotocol", request("/mqtt", "Sec-WebSocket-Protocol:"), 400, ""},
		{"another subprotocol", request("/mqtt", "Sec-WebSocket-Protocol: soap, mqttv5"), 400, ""},
		{"another path", request("/"), 404, ""},
		{"below the path", request("/mqtt/a"), 404, ""},
		{"no upgrade", request("/mqtt", "Upgrade:", "Connection:"), 426, ""},
		{"another upgrade", request("/mqtt", "Upgrade: h2c"), 426, ""},
		{"an old version", request("/mqtt", "Sec-WebSocket-Version: 8"), 400, ""},
		{"no key", request("/mqtt", "Sec-WebSocket-Key:"), 400, ""},
		{"a short key", request("/mqtt", "Sec-WebSocket-Key: YWJj"), 400, ""},
		{"POST", "POST" + strings.TrimPrefix(request("/mqtt"), "GET"), 405, ""},
		{"HTTP/1.0", strings.Replace(request("/mqtt"), "HTTP/1.1", "HTTP/1.0", 1), 426, ""},
		{"no host", request("/mqtt", "Host:"), 400, ""},
		{"the same host's page", request("/mqtt", "Origin: http://broker"), 101, "mqtt"},
		{"a page that may", request("/mqtt", "Origin: https://app.example.com"), 101, "mqtt"},
		{"another host's page", request("/mqtt", "Origin: https://example.org"), 403, ""},
		{"a file's page", request("/mqtt", "Origin: null"), 403, ""},
		{"large header", request("/mqtt", "Cookie: "+strings.Repeat("x", 10_000)), 431, ""},
		{"many headers", request("/mqtt", "Cookie: x\r\n"+strings.Repeat("X: y\r\n", 3000)+"Z: z"), 431, ""},
		{"MQTT", "\x10\x10\x00\x04MQTT\x04\x02\x00\x3c\x00\x04abcd\r\n\r\n", 400, ""},
		{"no HTTP", "HELO example.org\r\n\r\n", 400, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := serve(t, transport.Options{Type: transport.WS, Origins: []string{"*.example.com"}}, patience)
			c := s.dial()
			_, _ = io.WriteString(c, tt.request) // it may be answered before it is whole
			r, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatal(err)
			}
			if r.StatusCode != tt.status || r.Header.Get("Sec-WebSocket-Protocol") != tt.accept {
				body, _ := io.ReadAll(r.Body)
				t.Errorf("answered %d %v %s", r.StatusCode, r.Header, body)
			}
			if got := s.next(); (got.err == nil) != (tt.status == 101) {
				t.Errorf("handshake: %v", got.err)
			}
		})
	}
}

func TestUpgradeFromAnywhere(t *testing.T) {
	s := serve(t, transport.Options{Type: transport.WS, Path: "/", Origins: []string{"*"}}, patience)
	c := s.dial()
	_, _ = io.WriteString(c, request("/", "Origin: https://example.org"))
	if r, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || r.StatusCode != 101 {
		t.Errorf("%v %v", r, err)
	}
}

func TestSlowUpgrade(t *testing.T) {
	const within = 200 * time.Millisecond
	for _, sent := range []string{"", "GET /mqtt HTTP/1.1\r\nHost: broker\r\nX-"} {
		s := serve(t, transport.Options{Type: transport.WS}, within)
		_, _ = io.WriteString(s.dial(), sent)
		if r := s.next(); r.err == nil || r.took < within || r.took > within+2*time.Second {
			t.Errorf("%q: %v after %v", sent, r.err, r.took)
		}
	}
}

// Where frames and messages begin and end means nothing.
func TestFrames(t *testing.T) {
	join := func(frames ...[]byte) []byte { return bytes.Join(frames, nil) }
	large := strings.Repeat("0123456789", 30_000)
	for _, tt := range []struct {
		name string
		sent []byte
		want string
	}{
		{"one", frame(fin|binaryFrame, "abc"), "abc"},
		{"several", join(frame(fin|binaryFrame, "abc"), frame(fin|binaryFrame, "def"), frame(fin|binaryFrame, "g")), "abcdefg"},
		{"empty ones", join(frame(fin|binaryFrame, ""), frame(fin|binaryFrame, "a"), frame(fin|binaryFrame, ""), frame(fin|binaryFrame, "b")), "ab"},
		{"fragments", join(frame(binaryFrame, "ab"), frame(continuation, "c"), frame(continuation, ""), frame(fin|continuation, "d")), "abcd"},
		{"a ping in between", join(frame(binaryFrame, "ab"), frame(fin|ping, "hello"), frame(fin|continuation, "cd"), frame(fin|pong, "x"), frame(fin|binaryFrame, "e")), "abcde"},
		{"medium", frame(fin|binaryFrame, large[:1000]), large[:1000]},
		{"large", frame(fin|binaryFrame, large), large},
		{"large in fragments", join(frame(binaryFrame, large[:70_000]), frame(continuation, large[70_000:140_000]), frame(fin|continuation, large[140_000:])), large},
	} {
		for _, piece := range []int{1, 7, 1 << 20} { // as which they are sent
			if piece == 1 && len(tt.sent) > 10_000 {
				continue
			}
			t.Run(fmt.Sprintf("%s/%d", tt.name, piece), func(t *testing.T) {
				s := serve(t, transport.Options{Type: transport.WS}, patience)
				c := upgrade(t, s, "/mqtt", "mqtt")
				go func() {
					for b := tt.sent; len(b) > 0; b = b[min(piece, len(b)):] {
						_, _ = c.Write(b[:min(piece, len(b))])
					}
				}()
				got := make([]byte, len(tt.want))
				if _, err := io.ReadFull(s.conn(), got); err != nil || string(got) != tt.want {
					t.Errorf("got %.50q, %v", got, err)
				}
			})
		}
	}
}

// Packets in frames of their own that have come together are read together; what is not here whole is not waited for.
func TestReadTakesWhatIsThere(t *testing.T) {
	s := serve(t, transport.Options{Type: transport.WS}, patience)
	c := upgrade(t, s, "/mqtt", "mqtt")
	conn := s.conn()
	half := frame(fin|binaryFrame, "later")
	var b []byte
	for i := range 10 {
		b = append(b, frame(fin|binaryFrame, fmt.Sprint(i))...)
	}
	for _, rest := range [][]byte{nil, half[:1], half[:4], half[:9], frame(fin|ping, "")} {
		c.send(append(b[:len(b):len(b)], rest...))
		buf := make([]byte, 100)
		if n, err := conn.Read(buf); err != nil || string(buf[:n]) != "0123456789" {
			t.Fatalf("with %x behind it: read %q, %v", rest, buf[:n], err)
		}
		if len(rest) > 0 && rest[0] == half[0] {
			c.send(half[len(rest):])
			if n, err := conn.Read(buf); err != nil || string(buf[:n]) != "later" {
				t.Fatalf("read %q, %v", buf[:n], err)
			}
		}
	}
}

func TestPing(t *testing.T) {
	s := serve(t, transport.Options{Type: transport.WS}, patience)
	c := upgrade(t, s, "/mqtt", "mqtt")
	go io.Copy(io.Discard, s.conn())
	c.send(frame(fin|ping, "are you there"))
	if first, payload := c.read(); first != fin|pong || payload != "are you there" {
		t.Errorf("got %x %q", first, payload)
	}
}

// What is not allowed ends the connection, with the code that says why.
func TestFramesThatAreRefused(t *testing.T) {
	for _, tt := range []struct {
		name string
		sent []byte
		code websocket.StatusCode
	}{
		{"text", frame(fin|text, "hello"), websocket.StatusUnsupportedData}, // [MQTT-6.0.0-1]
		{"text in fragments", frame(text, "hello"), websocket.StatusUnsupportedData},
		{"a reserved bit", frame(fin|0x40|binaryFrame, "x"), websocket.StatusProtocolError},
		{"an unknown opcode", frame(fin|3, "x"), websocket.StatusProtocolError},
		{"a continuation of nothing", frame(fin|continuation, "x"), websocket.StatusProtocolError},
		{"a ping in fragments", frame(ping, "x"), websocket.StatusProtocolError},
		{"a long ping", frame(fin|ping, strings.Repeat("x", 126)), websocket.StatusProtocolError},
		{"a close", frame(fin|closeFrame, "\x03\xe8"), websocket.StatusNormalClosure},
		{"a close with an impossible code", frame(fin|closeFrame, "\x03\xee"), websocket.StatusProtocolError},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := serve(t, transport.Options{Type: transport.WS}, patience)
			c := upgrade(t, s, "/mqtt", "mqtt")
			conn := s.conn()
			read := make(chan error, 1)
			go func() {
				n, err := conn.Read(make([]byte, 100))
				if n > 0 {
					t.Errorf("%d bytes were read", n)
				}
				read <- err
				_ = conn.SetReadDeadline(time.Unix(1, 0))
				_ = conn.Close()
			}()
			c.send(tt.sent)
			first, payload := c.read()
			if first != fin|closeFrame || len(payload) < 2 || websocket.StatusCode(binary.BigEndian.Uint16([]byte(payload))) != tt.code {
				t.Errorf("got frame %x %q", first, payload)
			}
			c.send(frame(fin|closeFrame, "\x03\xe8"))
			if err := <-read; err == nil {
				t.Error("no error")
			}
			if _, err := c.in.ReadByte(); err == nil {
				t.Error("the connection is still there")
			}
		})
	}
	t.Run("a frame without mask", func(t *testing.T) {
		s := serve(t, transport.Options{Type: transport.WS}, patience)
		c := upgrade(t, s, "/mqtt", "mqtt")
		c.send([]byte{fin | binaryFrame, 1, 'x'})
		if n, err := s.conn().Read(make([]byte, 100)); err == nil || n > 0 {
			t.Errorf("read %d, %v", n, err)
		}
	})
}

func TestCloseSaysWhy(t *testing.T) {
	for _, tt := range []struct {
		leaving bool
		code    websocket.StatusCode
	}{
		{false, websocket.StatusNormalClosure},
		{true, websocket.StatusGoingAway},
	} {
		s := serve(t, transport.Options{Type: transport.WS}, patience)
		c := upgrade(t, s, "/mqtt", "mqtt")
		conn := s.conn()
		if tt.leaving {
			_ = s.Close()
		}
		go func() {
			_ = conn.SetReadDeadline(time.Unix(1, 0))
			_ = conn.Close()
		}()
		if first, payload := c.read(); first != fin|closeFrame || websocket.StatusCode(binary.BigEndian.Uint16([]byte(payload))) != tt.code {
			t.Errorf("got frame %x %q", first, payload)
		}
	}
}

// A batch of packets is one frame.
func TestWriteIsOneFrame(t *testing.T) {
	s := serve(t, transport.Options{Type: transport.WS}, patience)
	c := upgrade(t, s, "/mqtt", "mqtt")
	conn := s.conn()
	for _, n := range []int{1, 125, 126, 1000, 5000, 65535, 65536, 100_000} {
		want := strings.Repeat("x", n)
		wrote := make(chan error, 1)
		go func() {
			_, err := io.WriteString(conn, want)
			wrote <- err
		}()
		if first, payload := c.read(); first != fin|binaryFrame || payload != want {
			t.Errorf("%d bytes: got frame %x of %d", n, first, len(payload))
		}
		if err := <-wrote; err != nil {
			t.Fatal(err)
		}
	}
}

func TestReadDoesNotAllocate(t *testing.T) {
	s := serve(t, transport.Options{Type: transport.WS}, patience)
	c := upgrade(t, s, "/mqtt", "mqtt")
	conn := s.conn()
	const each = 100
	batch := bytes.Repeat(frame(fin|binaryFrame, "0123456789"), each)
	buf := make([]byte, 64<<10)
	avg := testing.AllocsPerRun(100, func() {
		c.send(batch)
		for n := 0; n < each*10; {
			m, err := conn.Read(buf)
			if err != nil {
				t.Fatal(err)
			}
			n += m
		}
	})
	if avg > each/10 {
		t.Errorf("%.0f allocations for %d messages", avg, each)
	}
}

// A real client's library gets along with it.
func TestWebSocketClient(t *testing.T) {
	s := serve(t, transport.Options{Type: transport.WS, Path: "/a/b"}, patience)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ws, _, err := websocket.Dial(ctx, "ws://"+s.Addr()+"/a/b", &websocket.DialOptions{Subprotocols: []string{"mqtt"}})
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	client := websocket.NetConn(ctx, ws, websocket.MessageBinary)
	ws.SetReadLimit(-1)
	conn := s.conn()
	echo(t, client, conn)
	read := make(chan error, 1)
	go func() {
		_, err := conn.Read(make([]byte, 1))
		read <- err
	}()
	if err := client.Close(); err != nil { // with the whole closing handshake
		t.Errorf("close: %v", err)
	}
	if err := <-read; websocket.CloseStatus(err) != websocket.StatusNormalClosure {
		t.Errorf("read: %v", err)
	}
}
