package transport

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"

	"github.com/coder/websocket"
)

const (
	maxHeader = 8 << 10 // of the HTTP request
	wsRead    = 4 << 10 // a frame up to this size is read together with its neighbours
	wsWrite   = 1 << 10 // what is longer is written past the buffer
	wsChunk   = 16 << 10
)

// subprotocols are the names that a client may offer; the first is the standard's. [MQTT-6.0.0-3]
var subprotocols = []string{"mqtt", "mqttv3.1"}

// upgrade reads an HTTP request and answers it, if it is one for us by becoming a WebSocket.
func (l *Listener) upgrade(raw net.Conn) (net.Conn, error) {
	limited := &io.LimitedReader{R: raw, N: maxHeader}
	// websocket.Accept reads on with this reader, from raw.
	in := bufio.NewReaderSize(limited, wsRead)
	out := bufio.NewWriterSize(raw, wsWrite)
	w := &response{conn: raw, in: in, out: out, header: http.Header{}}
	r, err := http.ReadRequest(in)
	switch {
	case err == nil:
	case limited.N == 0:
		return nil, w.refuse(http.StatusRequestHeaderFieldsTooLarge, fmt.Sprintf("more than %d bytes of header", maxHeader))
	case isNetwork(err):
		return nil, err
	default:
		return nil, w.refuse(http.StatusBadRequest, "not an HTTP request: "+err.Error())
	}
	switch {
	case r.Host == "": // RFC 9112, 3.2; and a page without an origin would be of the same host
		return nil, w.refuse(http.StatusBadRequest, "no Host header")
	case r.URL.Path != l.opt.Path:
		return nil, w.refuse(http.StatusNotFound, "not found")
	case !offersSubprotocol(r):
		return nil, w.refuse(http.StatusBadRequest, "MQTT clients offer the WebSocket subprotocol mqtt") // [MQTT-6.0.0-3]
	}
	ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{
		Subprotocols:       subprotocols, // the one chosen is in the answer [MQTT-6.0.0-4]
		OriginPatterns:     l.opt.Origins,
		InsecureSkipVerify: slices.Contains(l.opt.Origins, "*"),
		CompressionMode:    websocket.CompressionDisabled, // a window for each connection would cost more than it saves
	})
	if err != nil {
		return nil, errors.Join(err, w.flush())
	}
	ws.SetReadLimit(-1) // a message is a stretch of the stream: packets have their own limit
	return &wsConn{Conn: raw, ws: ws, in: in, closing: l.closing.Load}, nil
}

func offersSubprotocol(r *http.Request) bool {
	for _, line := range r.Header.Values("Sec-WebSocket-Protocol") {
		for name := range strings.SplitSeq(line, ",") {
			if slices.Contains(subprotocols, strings.ToLower(strings.TrimSpace(name))) {
				return true
			}
		}
	}
	return false
}

// isNetwork tells errors of the connection from those of what came over it.
func isNetwork(err error) bool {
	var ne net.Error
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) || errors.As(err, &ne)
}

// response is the http.ResponseWriter of the one request of a connection.
type response struct {
	conn   net.Conn
	in     *bufio.Reader
	out    *bufio.Writer
	header http.Header
	wrote  bool
}

func (w *response) Header() http.Header { return w.header }

func (w *response) WriteHeader(code int) {
	if w.wrote {
		return
	}
	w.wrote = true
	if code != http.StatusSwitchingProtocols {
		w.header.Set("Connection", "close")
	}
	fmt.Fprintf(w.out, "HTTP/1.1 %d %s\r\n", code, http.StatusText(code))
	_ = w.header.Write(w.out) // errors stay with the writer
	_, _ = w.out.WriteString("\r\n")
}

func (w *response) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.out.Write(p)
}

func (w *response) flush() error { return w.out.Flush() }

// Hijack implements http.Hijacker: the answer is on its way, and the connection is a WebSocket's.
func (w *response) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	if err := w.flush(); err != nil {
		return nil, nil, err
	}
	return w.conn, bufio.NewReadWriter(w.in, w.out), nil
}

// refuse answers with an error, which it returns.
func (w *response) refuse(code int, message string) error {
	http.Error(w, message, code)
	return errors.Join(fmt.Errorf("answered %d: %s", code, message), w.flush())
}

// wsConn is the stream of bytes in the binary messages of a WebSocket. Where messages and frames begin and end means
// nothing. [MQTT-6.0.0-2]
type wsConn struct {
	net.Conn // what it goes through
	ws       *websocket.Conn
	in       *bufio.Reader // that ws reads from
	message  io.Reader     // the message being read, nil between messages
	closing  func() bool   // the server goes away
}

var errText = errors.New("WebSocket: a text message")

// Read implements net.Conn. It returns what has come, over as many frames as are here whole: most clients put each packet
// into a frame of its own.
func (c *wsConn) Read(p []byte) (n int, err error) {
	p = p[:min(len(p), wsChunk)] // ws waits until a read of a frame is full
	for n < len(p) && (n == 0 || c.wholeFrame()) {
		if c.message == nil {
			if c.message, err = c.next(); err != nil {
				return n, err
			}
		}
		var m int
		m, err = c.message.Read(p[n:])
		n += m
		if errors.Is(err, io.EOF) {
			c.message = nil
		} else if err != nil {
			return n, err
		}
	}
	return n, nil
}

// next waits for the next message.
func (c *wsConn) next() (io.Reader, error) {
	t, r, err := c.ws.Reader(context.Background())
	if err != nil {
		return nil, err
	}
	if t != websocket.MessageBinary { // [MQTT-6.0.0-1]
		return nil, errors.Join(errText, c.ws.Close(websocket.StatusUnsupportedData, "MQTT is sent in binary frames"))
	}
	return r, nil
}

// wholeFrame tells whether what has been read ahead begins with a whole frame of data, so that reading it does not wait.
func (c *wsConn) wholeFrame() bool {
	b, _ := c.in.Peek(c.in.Buffered())
	const header, mask, control = 2, 4, 0x08
	if len(b) < header || b[0]&control != 0 { // what follows a ping may be long in coming
		return false
	}
	size, at := uint64(b[1]&0x7F), header
	switch size {
	case 126:
		if at += 2; len(b) < at {
			return false
		}
		size = uint64(binary.BigEndian.Uint16(b[2:]))
	case 127:
		return false // larger than what is read ahead
	}
	return uint64(len(b)-at) >= mask+size
}

// Write implements net.Conn: p becomes one binary frame.
func (c *wsConn) Write(p []byte) (int, error) {
	if err := c.ws.Write(context.Background(), websocket.MessageBinary, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Close implements net.Conn. It says goodbye but does not wait for an answer for longer than the read deadline allows,
// which has passed where the broker closes a connection.
func (c *wsConn) Close() error {
	code := websocket.StatusNormalClosure
	if c.closing() {
		code = websocket.StatusGoingAway
	}
	return c.ws.Close(code, "")
}
