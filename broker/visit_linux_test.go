package broker

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
)

// frame reads one packet.
func frame(t *testing.T, c net.Conn) []byte {
	t.Helper()
	var b []byte
	for {
		size, _, err := packet.Split(b, packet.V5, 0)
		if err != nil {
			t.Fatal(err)
		}
		if size > 0 && size <= len(b) {
			return b
		}
		var one [1]byte
		if _, err := io.ReadFull(c, one[:]); err != nil {
			t.Fatalf("after %x: %v", b, err)
		}
		b = append(b, one[0])
	}
}

func send(t *testing.T, c net.Conn, p []byte) {
	t.Helper()
	if _, err := c.Write(p); err != nil {
		t.Fatal(err)
	}
}

func expect(t *testing.T, c net.Conn, want packet.Type) {
	t.Helper()
	if got := packet.TypeOf(frame(t, c)); got != want {
		t.Fatalf("got %v, not %v", got, want)
	}
}

// readers counts the goroutines that serve connections.
func readers() int {
	b := make([]byte, 1<<20)
	return bytes.Count(b[:runtime.Stack(b, true)], []byte(".(*listener).run("))
}

func awaitReaders(t *testing.T, want int) {
	t.Helper()
	for until := time.Now().Add(patience); readers() != want; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("%d connections have a goroutine, not %d", readers(), want)
		}
	}
}

// A connection has a goroutine while its client has something to say. (Not parallel: it looks at all goroutines.)
func TestOnlyTheActiveHaveGoroutines(t *testing.T) {
	b, stop := run(t, Options{Listeners: []Listener{{Name: "a", Address: "127.0.0.1:0"}}}, func(b *Broker) {
		b.listeners[0].conn.Quiet = 40 * time.Millisecond
	})
	clients := make([]net.Conn, 20)
	for i := range clients {
		clients[i] = dial(t, "tcp", b.Addr("a"))
		mustConnect(t, clients[i], fmt.Sprint("c", i))
		sub := packet.Subscribe{PacketID: 1, Filters: []packet.Subscription{{Filter: fmt.Sprint("to/", i), QoS: 1}}}
		send(t, clients[i], packet.AppendSubscribe(nil, packet.V5, &sub))
		expect(t, clients[i], packet.TypeSuback)
		send(t, clients[i], packet.AppendPingreq(nil))
		expect(t, clients[i], packet.TypePingresp)
	}
	awaitReaders(t, 0)
	for round := range 3 { // each sends to itself
		for i, c := range clients {
			p := packet.Outgoing{Topic: fmt.Sprint("to/", i), QoS: 1, PacketID: uint16(100 + round), Payload: []byte("hello")}
			send(t, c, packet.AppendPublish(nil, packet.V5, &p))
		}
		for _, c := range clients {
			var acked, came bool
			for range 2 {
				switch f := frame(t, c); packet.TypeOf(f) {
				case packet.TypePuback:
					acked = true
				case packet.TypePublish:
					var p packet.Publish
					if err := packet.ParsePublish(packet.V5, f, &p); err != nil || string(p.Payload) != "hello" {
						t.Fatalf("got %x, %v", f, err)
					}
					send(t, c, packet.AppendAck(nil, packet.V5, packet.TypePuback, p.PacketID, 0, ""))
					came = true
				}
			}
			if !acked || !came {
				t.Fatalf("acked %v, came %v", acked, came)
			}
		}
		awaitReaders(t, 0)
	}
	for i, c := range clients {
		switch i % 3 {
		case 0:
			send(t, c, packet.AppendDisconnect(nil, packet.V5, &packet.Disconnect{}))
		case 1:
			_ = c.Close()
			continue
		case 2:
			continue
		}
		if n, err := c.Read(make([]byte, 1)); n > 0 || err != io.EOF {
			t.Fatalf("read %d, %v", n, err)
		}
	}
	for until := time.Now().Add(patience); b.listeners[0].open.Load() != 6; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("%d are connected, not 6", b.listeners[0].open.Load())
		}
	}
	stop()
	if f := frame(t, clients[2]); packet.TypeOf(f) != packet.TypeDisconnect || f[2] != packet.CodeShuttingDown {
		t.Errorf("the broker's last word is %x", f)
	}
}

// However packets are cut, the loop and the goroutine that follows it read the same.
func TestPiecesThroughLoop(t *testing.T) {
	t.Parallel()
	b, _ := run(t, Options{Listeners: []Listener{{Name: "a", Address: "127.0.0.1:0"}}}, nil)
	stream := packet.AppendConnect(nil, &packet.Connect{
		Version: packet.V5, Clean: true, ClientID: "c", ReceiveMaximum: 65535, Username: string(bytes.Repeat([]byte("u"), 20_000)), HasUsername: true,
	})
	sub := packet.Subscribe{PacketID: 1, Filters: []packet.Subscription{{Filter: "t", QoS: 0}}}
	stream = packet.AppendSubscribe(stream, packet.V5, &sub)
	stream = packet.AppendPingreq(stream)
	stream = packet.AppendPublish(stream, packet.V5, &packet.Outgoing{Topic: "other", QoS: 1, PacketID: 7, Payload: make([]byte, 100_000)})
	stream = packet.AppendPingreq(stream)
	for _, piece := range []int{len(stream), 30_011, 1009, 97} {
		c := dial(t, "tcp", b.Addr("a"))
		for rest := stream; len(rest) > 0; {
			n := min(piece, len(rest))
			send(t, c, rest[:n])
			rest = rest[n:]
		}
		for _, want := range []packet.Type{packet.TypeConnack, packet.TypeSuback, packet.TypePingresp} {
			expect(t, c, want)
		}
		seen := map[packet.Type]bool{packet.TypeOf(frame(t, c)): true, packet.TypeOf(frame(t, c)): true}
		if !seen[packet.TypePuback] || !seen[packet.TypePingresp] {
			t.Fatalf("got %v", seen)
		}
		_ = c.Close()
	}
}

// The loop ends who sends no CONNECT, or nothing for longer than its keep-alive, whether it has a goroutine or not.
func TestTimeoutsInLoop(t *testing.T) {
	t.Parallel()
	b, _ := run(t, Options{Listeners: []Listener{{Name: "a", Address: "127.0.0.1:0", ConnectTimeout: 50 * time.Millisecond}}}, func(b *Broker) {
		b.listeners[0].conn.Quiet = time.Hour
	})
	begun := time.Now()
	for name, hello := range map[string][]byte{
		"nothing":             nil,
		"half a CONNECT":      packet.AppendConnect(nil, &packet.Connect{Version: packet.V5, ClientID: "half"})[:9],
		"quiet":               packet.AppendConnect(nil, &packet.Connect{Version: packet.V311, Clean: true, ClientID: "quiet", KeepAlive: 1}),
		"quiet after PUBLISH": packet.AppendPublish(packet.AppendConnect(nil, &packet.Connect{Version: packet.V311, Clean: true, ClientID: "pub", KeepAlive: 1}), packet.V311, &packet.Outgoing{Topic: "t"}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := dial(t, "tcp", b.Addr("a"))
			send(t, c, hello)
			if _, err := io.ReadAll(c); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(begun); took < 50*time.Millisecond || len(hello) > 9 && took < 1500*time.Millisecond {
				t.Errorf("ended after %v", took)
			}
		})
	}
}

// A client that has been quiet is heard when it speaks again, also if what comes first is more than one packet and less than two.
func TestHeardAfterSilence(t *testing.T) {
	for _, keepAlive := range []uint16{60, 0} {
		t.Run(fmt.Sprint(keepAlive), func(t *testing.T) {
			b, _ := run(t, Options{Listeners: []Listener{{Name: "a", Address: "127.0.0.1:0"}}}, func(b *Broker) {
				b.listeners[0].conn.Quiet = 40 * time.Millisecond
			})
			c := dial(t, "tcp", b.Addr("a"))
			if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
				t.Fatal(err)
			}
			hello := packet.Connect{Version: packet.V5, Clean: true, ClientID: "c", KeepAlive: keepAlive, ReceiveMaximum: 65535}
			send(t, c, packet.AppendConnect(nil, &hello))
			expect(t, c, packet.TypeConnack)
			var stream []byte
			for id := range uint16(3) {
				stream = packet.AppendPublish(stream, packet.V5, &packet.Outgoing{Topic: "other", QoS: 1, PacketID: id + 1, Payload: []byte("x")})
			}
			one := len(stream) / 3
			send(t, c, stream[:one])
			expect(t, c, packet.TypePuback)
			awaitReaders(t, 0) // the loop waits for it
			send(t, c, stream[one:3*one-5])
			expect(t, c, packet.TypePuback)
			send(t, c, stream[3*one-5:])
			expect(t, c, packet.TypePuback)
		})
	}
}
