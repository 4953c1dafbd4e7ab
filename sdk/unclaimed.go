package sdk

import "time"

// claimTime is how long after Dial deliveries wait for the program to subscribe to what an earlier life of its session subscribed to.
const claimTime = 10 * time.Second

// unclaimed are deliveries that no subscription of this Client matches, guarded by Client.mu. A session that was there before begins to
// send as soon as it is connected, and the program subscribes a moment later: what came in between is not to be taken for
// unwanted. The broker's window bounds how many they are, since none is acknowledged.
type unclaimed struct {
	over  bool
	timer *time.Timer
	link  *link // on which they came: what came on another comes again
	list  []received
}

// waitForClaims begins the time after which deliveries wait no more.
func (c *Client) waitForClaims() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.unclaimed.over {
		c.unclaimed.timer = time.AfterFunc(claimTime, c.dropUnclaimed)
	}
}

// stop ends it; what is there stays unacknowledged, and comes again with the next connection. Client.mu is held.
func (u *unclaimed) stop() {
	u.over, u.list, u.link = true, nil, nil
	if u.timer != nil {
		u.timer.Stop()
	}
}

// keep holds a delivery back and reports whether it does; Client.mu is held.
func (u *unclaimed) keep(l *link, d delivery, r *receipt) bool {
	if u.over || d.id == 0 {
		return false
	}
	if u.link != l {
		u.link, u.list = l, nil
	}
	u.list = append(u.list, received{d, r})
	return true
}

// claim hands a new subscription what it matches; Client.mu is held, so that nothing newer overtakes it.
func (u *unclaimed) claim(s *Subscription) {
	rest := u.list[:0]
	for _, r := range u.list {
		if s.matches(r.d.topic) {
			s.put(r.d, r.r)
		} else {
			rest = append(rest, r)
		}
	}
	clear(u.list[len(rest):])
	u.list = rest
}

// dropUnclaimed acknowledges what nobody wants any more.
func (c *Client) dropUnclaimed() {
	c.mu.Lock()
	list := c.unclaimed.list
	c.unclaimed.over, c.unclaimed.list, c.unclaimed.link = true, nil, nil
	c.mu.Unlock()
	if len(list) > 0 {
		c.o.logger.Warn("nobody has subscribed again to what an earlier life of the session has: dropped", "client", c.o.clientID,
			"messages", len(list), "topic", list[0].d.topic)
	}
	for _, r := range list {
		r.r.settle()
	}
}
