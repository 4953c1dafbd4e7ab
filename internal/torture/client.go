package torture

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
)

// patience is how long a client waits for an answer.
const patience = 20 * time.Second

// errNoConnection means that a client is not connected, or not any more.
var errNoConnection = errors.New("not connected")

// Client is one MQTT client with a session that stays. It does what the standard asks of one, over any number of connections: packet ids
// in use are sent again, in order, and a QoS 2 message is taken once. What it does and sees goes to the History.
type Client struct {
	ID      string
	Version packet.Version
	Durable bool            // its session outlives the connection
	Reader  string          // what its subscriptions belong to
	NewWill func() *Message // a Will for each connection; nil for none
	Window  uint16          // Receive Maximum; 0 means 65535
	Addr    string

	// How it acknowledges QoS 1. By default at once.
	Late   float64 // this part of the messages when Settle is called
	Refuse float64 // this part not at all: it is refused (MQTT 5)

	h   *History
	rng *rand.Rand

	mu        sync.Mutex
	conn      net.Conn
	n         int           // of the connection
	ended     chan struct{} // closed when its reader has ended
	leaving   bool          // DISCONNECT was sent
	dismissed bool          // DISCONNECT has come
	anew      bool          // the broker had no session: what it had must be asked for again
	silent    bool          // it reads and answers nothing any more
	nextID    uint16
	out       []*flight // in order of first sending
	took      map[uint16]bool
	held      []heldAck
	pinged    int                         // the History's length when PINGREQ was sent
	waiting   map[packet.Type]chan []byte // for SUBACK, UNSUBACK, PINGRESP
}

// flight is a publish that is not over.
type flight struct {
	id       uint16
	msg      *Message
	released bool // PUBREC has come
}

type heldAck struct {
	id uint16
	of int
}

// NewClient returns a client that notes what it does in h.
func NewClient(h *History, id string, v packet.Version, seed uint64) *Client {
	return &Client{
		ID: id, Version: v, Durable: true, Reader: id, h: h, rng: rand.New(rand.NewPCG(seed, 11)),
		took: map[uint16]bool{}, waiting: map[packet.Type]chan []byte{},
	}
}

// Clone returns a client that goes its own way from here, with a history of its own. It must not be connected.
func (c *Client) Clone(h *History, seed uint64) *Client {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := NewClient(h, c.ID, c.Version, seed)
	d.Durable, d.Reader, d.NewWill, d.Window, d.Late, d.Refuse = c.Durable, c.Reader, c.NewWill, c.Window, c.Late, c.Refuse
	d.n, d.nextID, d.anew = c.n, c.nextID, c.anew
	for _, f := range c.out {
		g := *f
		d.out = append(d.out, &g)
	}
	for id := range c.took {
		d.took[id] = true
	}
	return d
}

// Connected says whether there is a connection.
func (c *Client) Connected() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.conn != nil
}

// Pending counts publishes that are not over.
func (c *Client) Pending() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.out)
}

// Connect opens a connection and sends again what was under way. If there is one already, the broker has to end it: a takeover.
func (c *Client) Connect() error {
	nc, err := net.DialTimeout("tcp", c.Addr, patience)
	if err != nil {
		return err
	}
	hello := &packet.Connect{Version: c.Version, ClientID: c.ID, Clean: !c.Durable, ReceiveMaximum: 65535}
	if c.Durable && c.Version == packet.V5 {
		hello.HasSessionExpiry, hello.SessionExpiry = true, 0xFFFFFFFF
	}
	if c.Window > 0 {
		hello.ReceiveMaximum = c.Window
	}
	e := Event{Kind: Connecting, By: c.ID}
	if c.NewWill != nil {
		e.Msg = c.NewWill()
		hello.Will = &packet.Will{Topic: e.Msg.Topic, QoS: e.Msg.QoS, Payload: e.Msg.Payload(), Retain: e.Msg.Retain}
	}
	c.mu.Lock()
	c.ending()
	c.n++
	e.Conn = c.n
	old := c.ended
	c.mu.Unlock()
	c.h.Add(e)
	in := &input{conn: nc, v: c.Version}
	_ = nc.SetDeadline(time.Now().Add(patience))
	frame, err := []byte(nil), error(nil)
	if _, err = nc.Write(packet.AppendConnect(nil, hello)); err == nil {
		frame, err = in.next()
	}
	if err == nil && packet.TypeOf(frame) != packet.TypeConnack {
		err = fmt.Errorf("CONNECT was answered % X", frame)
	}
	var ack *packet.Connack
	if err == nil {
		ack, err = packet.ParseConnack(c.Version, frame)
	}
	if err == nil && ack.Code != 0 {
		err = fmt.Errorf("CONNECT was refused: 0x%X", ack.Code)
	}
	if old != nil {
		<-old // what it still had is noted before what comes now
	}
	if err != nil {
		_ = nc.Close()
		return err
	}
	_ = nc.SetDeadline(time.Time{})
	c.begin(nc, in, ack.SessionPresent)
	return nil
}

// begin sends again what was under way and starts to read.
func (c *Client) begin(nc net.Conn, in *input, present bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := Event{Kind: Connected, By: c.ID, Conn: c.n, Present: present}
	if c.Durable {
		e.QoS = 1
	}
	c.h.Add(e)
	if !present {
		clear(c.took)
		c.anew = true
	}
	c.held = nil
	c.conn, c.ended, c.leaving, c.dismissed, c.silent = nc, make(chan struct{}), false, false, false
	var b []byte
	kept := c.out[:0]
	for _, f := range c.out {
		switch {
		case !f.released:
			b = c.appendPublish(b, f, present)
		case present:
			b = packet.AppendAck(b, c.Version, packet.TypePubrel, f.id, 0, "")
		default:
			continue
		}
		kept = append(kept, f)
	}
	c.out = kept
	_ = c.write(b)
	go c.read(nc, in, c.n, c.ended)
}

// write is called with c.mu held.
func (c *Client) write(b []byte) error {
	if c.conn == nil {
		return errNoConnection
	}
	if len(b) == 0 {
		return nil
	}
	_ = c.conn.SetWriteDeadline(time.Now().Add(patience))
	_, err := c.conn.Write(b)
	return err
}

func (c *Client) appendPublish(b []byte, f *flight, dup bool) []byte {
	m := f.msg
	c.h.Add(Event{Kind: Sending, By: c.ID, Conn: c.n, Msg: m})
	name := m.Topic
	if m.Later {
		name = "$delayed/" + strconv.Itoa(int(m.Delay/time.Second)) + "/" + name
	}
	return packet.AppendPublish(b, c.Version, &packet.Outgoing{
		Dup: dup && m.QoS > 0, QoS: m.QoS, PacketID: f.id, Retain: m.Retain, Topic: name, Payload: m.Payload(),
	})
}

// Anew tells whether a connection began a new session since it was last asked.
func (c *Client) Anew() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	anew := c.anew
	c.anew = false
	return anew
}

// Publish sends messages, without waiting for answers.
func (c *Client) Publish(ms ...*Message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == nil {
		return errNoConnection
	}
	var b []byte
	for _, m := range ms {
		f := &flight{msg: m}
		if m.QoS > 0 {
			f.id = c.freeID()
			c.out = append(c.out, f)
		}
		b = c.appendPublish(b, f, false)
	}
	return c.write(b)
}

// freeID returns a packet id that is not in use; c.mu is held.
func (c *Client) freeID() uint16 {
	for {
		c.nextID++
		used := c.nextID == 0
		for _, f := range c.out {
			used = used || f.id == c.nextID
		}
		if !used {
			return c.nextID
		}
	}
}

// ask sends a packet and waits for its answer.
func (c *Client) ask(b []byte, answer packet.Type) ([]byte, error) {
	c.mu.Lock()
	ch := make(chan []byte, 1)
	c.waiting[answer] = ch
	if answer == packet.TypePingresp {
		c.pinged = c.h.Len()
	}
	ended := c.ended
	err := c.write(b)
	c.mu.Unlock()
	if err != nil {
		return nil, err
	}
	select {
	case f := <-ch:
		return f, nil
	case <-ended:
		return nil, errNoConnection
	case <-time.After(patience):
		return nil, fmt.Errorf("no %v came", answer)
	}
}

// Subscribe subscribes for its Reader. filter is what the reader gets; as is how it is written in the packet.
func (c *Client) Subscribe(as, filter string, qos byte) error {
	if c.Reader != "" {
		c.h.Add(Event{Kind: Subscribing, By: c.ID, Reader: c.Reader, Filter: filter, QoS: qos})
	}
	f, err := c.ask(packet.AppendSubscribe(nil, c.Version, &packet.Subscribe{
		PacketID: 1, Filters: []packet.Subscription{{Filter: as, QoS: qos}},
	}), packet.TypeSuback)
	if err != nil {
		return err
	}
	a, err := packet.ParseSuback(c.Version, f)
	if err != nil {
		return err
	}
	if a.Codes[0] >= 0x80 {
		return fmt.Errorf("SUBSCRIBE %s was refused: 0x%X", as, a.Codes[0])
	}
	if c.Reader != "" {
		c.h.Add(Event{Kind: Subscribed, By: c.ID, Reader: c.Reader, Filter: filter, QoS: qos})
	}
	return nil
}

// Unsubscribe takes a filter back.
func (c *Client) Unsubscribe(filter string) error {
	c.h.Add(Event{Kind: Unsubscribing, By: c.ID, Reader: c.Reader, Filter: filter})
	f, err := c.ask(packet.AppendUnsubscribe(nil, c.Version, &packet.Unsubscribe{PacketID: 1, Filters: []string{filter}}), packet.TypeUnsuback)
	var a *packet.Suback
	if err == nil {
		a, err = packet.ParseUnsuback(c.Version, f)
	}
	if err == nil && len(a.Codes) > 0 && a.Codes[0] >= 0x80 {
		err = fmt.Errorf("UNSUBSCRIBE %s failed: 0x%X", filter, a.Codes[0])
	}
	if err == nil {
		c.h.Add(Event{Kind: Unsubscribed, By: c.ID, Reader: c.Reader, Filter: filter})
	}
	return err
}

// Ping returns once the broker has taken all that was sent before.
func (c *Client) Ping() error {
	_, err := c.ask(packet.AppendPingreq(nil), packet.TypePingresp)
	return err
}

// Settle acknowledges what was held back.
func (c *Client) Settle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	var b []byte
	for _, a := range c.held {
		c.h.Add(Event{Kind: Settling, By: c.ID, Conn: c.n, Of: a.of})
		b = packet.AppendAck(b, c.Version, packet.TypePuback, a.id, 0, "")
	}
	c.held = nil
	_ = c.write(b)
}

// ending notes that the connection will end by our doing; c.mu is held.
func (c *Client) ending() {
	if c.conn != nil {
		c.h.Add(Event{Kind: Ending, By: c.ID, Conn: c.n})
	}
}

// Break closes the socket and waits until nothing more is noted.
func (c *Client) Break() {
	c.mu.Lock()
	conn, ended := c.conn, c.ended
	c.ending()
	c.silent = true // what the socket still holds was never received
	c.mu.Unlock()
	if conn != nil {
		_ = conn.Close()
		<-ended
	}
}

// Bye says goodbye and waits for the broker to close.
func (c *Client) Bye() {
	c.mu.Lock()
	if c.conn == nil {
		c.mu.Unlock()
		return
	}
	c.ending()
	c.leaving = true
	_ = c.write(packet.AppendDisconnect(nil, c.Version, &packet.Disconnect{}))
	conn, ended := c.conn, c.ended
	c.mu.Unlock()
	select {
	case <-ended:
	case <-time.After(patience):
		_ = conn.Close()
		<-ended
	}
}

// Wait waits for the end of the connection, which the broker or its death brings about.
func (c *Client) Wait() {
	c.mu.Lock()
	ended := c.ended
	c.mu.Unlock()
	if ended != nil {
		<-ended
	}
}

// input cuts frames.
type input struct {
	conn net.Conn
	v    packet.Version
	buf  []byte
	b    [16 << 10]byte
}

func (in *input) next() ([]byte, error) {
	for {
		size, _, err := packet.Split(in.buf, in.v, 0)
		if err != nil {
			return nil, err
		}
		if size > 0 && size <= len(in.buf) {
			f := in.buf[:size:size]
			in.buf = in.buf[size:]
			return f, nil
		}
		n, err := in.conn.Read(in.b[:])
		in.buf = append(in.buf, in.b[:n]...)
		if err != nil && n == 0 {
			return nil, err
		}
	}
}
