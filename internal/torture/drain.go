package torture

import (
	"fmt"
	"time"

	"github.com/edgemq/edgemq/broker/packet"
)

// Crashed notes that the broker is dead. Every connection has ended then.
func (p *Plant) Crashed() { p.ended(Crashed) }

// Stopped notes that the broker has stopped cleanly.
func (p *Plant) Stopped() { p.ended(Stopped) }

func (p *Plant) ended(k Kind) {
	for _, c := range p.clients() {
		c.Wait()
	}
	p.H.Add(Event{Kind: k})
}

// Drain gives every reader all that it is still to get, reads everything back, and returns the faults. The broker must be there to stay.
func (p *Plant) Drain(addr string, limit time.Duration) ([]Fault, error) {
	deadline := time.Now().Add(limit)
	for _, c := range p.clients() {
		c.Addr = addr
		c.calm()
	}
	for _, x := range p.members {
		if err := x.connected(); err != nil {
			return nil, err
		}
		if !x.subscribe() {
			return nil, fmt.Errorf("%s cannot subscribe", x.ID)
		}
		x.Settle()
	}
	for _, x := range p.publishers {
		if err := x.connected(); err != nil {
			return nil, err
		}
		x.answered(deadline)
		// What comes after all else tells that all else has come.
		var last []*Message
		for _, t := range []string{"t/" + x.name + "/a", "t/" + x.name + "/b", "$queue/" + QueueName} {
			x.numbers[t]++
			last = append(last, &Message{Source: x.name, Topic: t, N: x.numbers[t], QoS: 1})
		}
		if err := x.Publish(last...); err != nil {
			return nil, err
		}
		x.answered(deadline)
		if n := x.Pending(); n > 0 {
			return nil, fmt.Errorf("%s: %d publishes are not answered", x.ID, n)
		}
	}
	p.await(deadline, p.readers...)
	for _, x := range p.members {
		if err := x.Ping(); err != nil {
			return nil, err
		}
	}
	p.look(addr)
	if err := p.log(addr, deadline); err != nil {
		return nil, err
	}
	return p.H.Check(), nil
}

// answered waits until all that was published is over.
func (c *Client) answered(deadline time.Time) {
	for n := 0; c.Pending() > 0 && (n < 100*least || time.Now().Before(deadline)); n++ {
		time.Sleep(200 * time.Microsecond)
	}
}

// least is how often a reader is looked at before it is said to lack something: a machine that has stood still has had no time, whatever its clock says.
const least = 40

// await waits until the readers have all they must get, and notes that they had their time.
func (p *Plant) await(deadline time.Time, readers ...string) {
	for _, r := range readers {
		wait := time.Millisecond
		for n := 0; p.H.Missing(r) > 0 && (n < least || time.Now().Before(deadline)); n++ {
			time.Sleep(wait)
			wait = min(wait*2, 100*time.Millisecond)
		}
		p.H.Add(Event{Kind: Drained, Reader: r})
	}
}

// log reads back all that is stored.
func (p *Plant) log(addr string, deadline time.Time) error {
	p.logs++
	name := fmt.Sprint("log", p.logs)
	p.H.AddReader(Reader{Name: name, Kind: Log, Cut: p.Retains})
	c := NewClient(p.H, name, packet.V5, p.next())
	c.Durable, c.Addr = false, addr
	if err := c.Connect(); err != nil {
		return err
	}
	defer c.Break()
	for _, f := range []string{"t/#", "will/#", "later/#"} {
		if err := c.Subscribe("$s/earliest/"+f, f, 1); err != nil {
			return err
		}
	}
	p.await(deadline, name)
	return c.Ping()
}

// calm makes a client acknowledge everything from now on.
func (c *Client) calm() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.Late, c.Refuse = 0, 0
}

func (c *Client) connected() error {
	if c.Connected() {
		return nil
	}
	return c.Connect()
}

// look reads the retained messages. The last of them, by name, is always there once it was acknowledged.
func (p *Plant) look(addr string) {
	x := p.publishers[0]
	end := &Message{Source: x.name, Topic: "ret/" + x.name + "/~", N: 1, QoS: 1, Retain: true}
	if !p.H.Acked(end.ID()) {
		return
	}
	filter := "ret/" + x.name + "/#"
	r, err := dialRetained(addr, filter)
	if err != nil {
		return
	}
	defer r.conn.Close()
	of := p.H.Add(Event{Kind: Looking, By: "look", Filter: filter})
	found, err := r.collect(filter, end.Topic, p.H.Message)
	switch {
	case err == nil:
		p.H.Add(Event{Kind: Looked, By: "look", Filter: filter, Of: of, Values: found})
	case !ordinary(err):
		p.H.Add(Event{Kind: Damaged, By: "look", Note: err.Error()})
	}
}
