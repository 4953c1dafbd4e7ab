package conn

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/broker/session"
)

// scripted is a connection through TLS or WebSocket, say: it cannot be read without a buffer at hand.
type scripted struct {
	net.Conn
	read func(p []byte) (int, error)
}

func (s *scripted) Read(p []byte) (int, error)      { return s.read(p) }
func (s *scripted) SetReadDeadline(time.Time) error { return nil }

// Whatever the sizes of frames and of what comes at once: the frames come out as they went in, and a connection that
// waits for its client waits with a small buffer, unless it is in the middle of something large.
func TestInputThroughLayers(t *testing.T) {
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 0))
		var want [][]byte
		var stream []byte
		for range 1 + r.IntN(20) {
			size := []int{0, 10, 100, 1900, 2030, 3000, 20_000, 70_000, 300_000}[r.IntN(1+r.IntN(9))] + r.IntN(20)
			f := packet.AppendPublish(nil, packet.V5, &packet.Outgoing{Topic: "t", Payload: bytes.Repeat([]byte{byte(size)}, size)})
			want = append(want, f)
			stream = append(stream, f...)
		}
		most := []int{1 << 20, 16 << 10, 5000, aheadBytes, 100, 3}[r.IntN(6)] // what comes at once
		if most < 1000 && len(stream) > 20_000 {
			most = 16 << 10
		}
		var in input
		in.init(&scripted{read: func(p []byte) (int, error) {
			if len(stream) == 0 {
				return 0, io.EOF
			}
			if rest := in.len(); !in.more && rest < aheadBytes && len(in.buf) != aheadBytes {
				t.Fatalf("seed %d: waits with a buffer of %d for what follows %d", seed, len(in.buf), rest)
			}
			n := copy(p, stream[:min(len(stream), 1+r.IntN(most))])
			stream = stream[n:]
			return n, nil
		}}, &session.Link{}, time.Time{})
		for i, f := range want {
			for {
				size, _, err := packet.Split(in.bytes(), packet.V5, 0)
				if err != nil {
					t.Fatal(err)
				}
				if size > 0 && size <= in.len() {
					if got := in.take(size); !bytes.Equal(got, f) {
						t.Fatalf("seed %d: frame %d differs", seed, i)
					}
					break
				}
				if err := in.fill(size); err != nil {
					t.Fatalf("seed %d: frame %d of %d: %v", seed, i, len(want), err)
				}
			}
		}
		if err := in.fill(0); err != io.EOF || in.len() != 0 {
			t.Fatalf("seed %d: at the end: %v, %d bytes", seed, err, in.len())
		}
		in.free()
	}
}

// The client's silence is measured from the last read, to the moment.
func TestKeepAliveThroughLayers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, client := net.Pipe()
		defer server.Close()
		defer client.Close()
		var in input
		in.init(server, &session.Link{}, time.Now().Add(time.Minute))
		go client.Write([]byte{0xC0})
		if err := in.fill(0); err != nil {
			t.Fatal(err)
		}
		in.keepAlive(10)
		for range 5 {
			go func() {
				time.Sleep(14 * time.Second)
				_, _ = client.Write([]byte{0})
			}()
			if err := in.fill(0); err != nil {
				t.Fatal(err)
			}
			in.take(in.len())
		}
		start := time.Now()
		if err := in.fill(0); !errors.Is(err, errKeepAlive) {
			t.Fatalf("got %v", err)
		}
		if took := time.Since(start); took != 15*time.Second {
			t.Errorf("after %v", took)
		}
	})
}

// Packets are signs of life, parts of them are not [MQTT-3.1.2-22]; but a large one may take its time as long as it does come in.
func TestKeepAliveOfPartsOfPackets(t *testing.T) {
	const size = 20_000
	for _, tc := range []struct {
		name         string
		piece, every int           // bytes, seconds
		gone         time.Duration // when it is closed; 0 for not before the packet is whole
	}{
		{"a byte now and then", 1, 8, 15*time.Second + 10*time.Millisecond},
		{"a piece now and then", 100, 7, 17 * time.Second}, // a second more for each that has come
		{"a slow line", 1000, 8, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server, client := net.Pipe()
				var sender sync.WaitGroup
				defer sender.Wait()
				sender.Go(func() {
					for err := error(nil); err == nil; {
						time.Sleep(time.Duration(tc.every) * time.Second)
						_, err = client.Write(make([]byte, tc.piece))
					}
				})
				defer client.Close()
				defer server.Close()
				var in input
				in.init(server, &session.Link{}, time.Now().Add(time.Minute))
				in.keepAlive(10)
				start := time.Now()
				var err error
				for err == nil && in.len() < size {
					err = in.fill(size)
				}
				switch took := time.Since(start); {
				case tc.gone == 0 && err != nil:
					t.Errorf("%v with %d bytes, after %v", err, in.len(), took)
				case tc.gone > 0 && (!errors.Is(err, errKeepAlive) || took != tc.gone):
					t.Errorf("%v after %v, want %v", err, took, tc.gone)
				}
			})
		})
	}
}

// While we do not read, since the disk is slow or the client does not take its answers, the client is not silent.
func TestKeepAliveWhileNotReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, client := net.Pipe()
		defer server.Close()
		defer client.Close()
		var in input
		in.init(server, &session.Link{}, time.Now().Add(time.Minute))
		in.keepAlive(10)
		for range 3 {
			go func() {
				time.Sleep(time.Second)
				_, _ = client.Write([]byte{0xC0})
			}()
			if err := in.fill(0); err != nil {
				t.Fatal(err)
			}
			in.take(in.len())
			time.Sleep(time.Minute) // at work
		}
	})
}

// A large frame that comes in small pieces costs memory in proportion to its size, not to that times the pieces; and no
// more than twice what has come, whatever its header claims.
func TestLargeFrameComesSlowly(t *testing.T) {
	for _, size := range []int{70_000, 1 << 20} {
		testLargeFrame(t, packet.AppendPublish(nil, packet.V5, &packet.Outgoing{Topic: "t", Payload: make([]byte, size)}))
	}
}

func testLargeFrame(t *testing.T, frame []byte) {
	for _, direct := range []bool{false, true} {
		for _, piece := range []int{1, 1460, 50_000} {
			if piece == 1 && direct {
				continue // a million system calls
			}
			var raw net.Conn
			rest := frame
			if direct {
				raw = trickle(t, frame, piece)
			} else {
				raw = &scripted{read: func(p []byte) (int, error) {
					n := copy(p, rest[:min(piece, len(rest))])
					rest = rest[n:]
					return n, nil
				}}
			}
			var in input
			in.init(raw, &session.Link{}, time.Now().Add(time.Minute))
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for in.len() < len(frame) {
				size, _, err := packet.Split(in.bytes(), packet.V5, 0)
				if err == nil {
					err = in.fill(size)
				}
				if err != nil {
					t.Fatal(err)
				}
				if len(in.buf) > max(readBytes, 4*in.len()) {
					t.Fatalf("a buffer of %d for %d bytes", len(in.buf), in.len())
				}
			}
			runtime.ReadMemStats(&after)
			if got := after.TotalAlloc - before.TotalAlloc; got > 8<<20 {
				t.Errorf("direct=%v, pieces of %d: %d MiB were allocated", direct, piece, got>>20)
			}
			if !bytes.Equal(in.take(len(frame)), frame) {
				t.Error("the frame differs")
			}
			in.free()
		}
	}
}

// trickle is a socket on which p comes in pieces.
func trickle(t *testing.T, p []byte, piece int) net.Conn {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ; len(p) > 0; p = p[min(piece, len(p)):] {
			if _, err := client.Write(p[:min(piece, len(p))]); err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-done
		_ = client.Close()
		_ = l.Close()
	})
	return server
}

// A client that does not get as far as its CONNECT has its time and no more.
func TestConnectDeadlineThroughLayers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, client := net.Pipe()
		defer server.Close()
		defer client.Close()
		var in input
		in.init(server, &session.Link{}, time.Now().Add(10*time.Second))
		go func() {
			for range 8 { // a byte now and then does not help
				time.Sleep(3 * time.Second)
				_ = client.SetWriteDeadline(time.Now().Add(time.Second))
				_, _ = client.Write([]byte{0x10})
			}
		}()
		start := time.Now()
		var err error
		for err == nil {
			err = in.fill(0)
		}
		defer time.Sleep(time.Minute) // until the goroutine has ended
		if took := time.Since(start); took != 10*time.Second || !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, errKeepAlive) {
			t.Errorf("%v after %v", err, took)
		}
	})
}

// The longest keep-alives are what they say, and not what is left of them in 16 bits. [MQTT-3.1.2-22]
func TestLongKeepAlive(t *testing.T) {
	for _, seconds := range []uint16{1, 43690, 43691, 65535} {
		synctest.Test(t, func(t *testing.T) {
			server, client := net.Pipe()
			defer server.Close()
			defer client.Close()
			var in input
			in.init(server, &session.Link{}, time.Now().Add(time.Minute))
			in.keepAlive(seconds)
			start := time.Now()
			if err := in.fill(0); !errors.Is(err, errKeepAlive) {
				t.Fatalf("got %v", err)
			}
			if took, want := time.Since(start), time.Duration(seconds)*3*time.Second/2; took != want {
				t.Errorf("keep-alive %d: after %v, want %v", seconds, took, want)
			}
		})
	}
}

// Whoever waits for a client, its keep-alive runs from the end of its last packet.
func TestKeepAliveWhoeverWaits(t *testing.T) {
	server, client := net.Pipe()
	defer server.Close()
	defer client.Close()
	var in input
	in.init(server, &session.Link{}, time.Time{})
	begun := time.Now()
	in.took = true
	in.rest(begun)
	if in.rest(begun.Add(10 * time.Second)); !in.last.Equal(begun) {
		t.Errorf("the client was heard %v after its last packet", in.last.Sub(begun))
	}
}
