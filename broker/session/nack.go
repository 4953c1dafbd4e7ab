package session

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/edgemq/edgemq/broker/feed"
	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/wire"
)

// refusal is what a client says by publishing to $queue/<name>/$nack.
type refusal struct {
	offset uint64
	id     uint16 // or the packet id of the delivery
	delay  time.Duration
	reason string
}

// never as a refusal's delay sends the message to the dead letters at once.
const never = "never"

// parseRefusal reads it from user properties (@Offset, @Delay in seconds, @Reason), or else from the payload: an offset or
// "#" and the packet id of the delivery, then, if wanted, a space and the delay in seconds or never, and a space and the reason.
func parseRefusal(p *packet.Publish) (r refusal, err error) {
	text := string(p.Payload)
	if off, ok := packet.FindUser(p.Props, wire.Offset); ok {
		delay, _ := packet.FindUser(p.Props, wire.Delay)
		reason, _ := packet.FindUser(p.Props, wire.Reason)
		if text = string(off); len(delay) > 0 || len(reason) > 0 {
			text += " " + string(delay) + " " + string(reason)
		}
	}
	r.delay = feed.DefaultDelay
	what, rest, _ := strings.Cut(text, " ")
	delay, reason, _ := strings.Cut(rest, " ")
	r.reason = reason
	if id, ok := strings.CutPrefix(what, "#"); ok {
		var n uint64
		n, err = strconv.ParseUint(id, 10, 16)
		r.id = uint16(n)
	} else {
		r.offset, err = strconv.ParseUint(what, 10, 64)
	}
	if err == nil && delay == never {
		r.delay = feed.Never
	} else if err == nil && delay != "" {
		var s float64
		if s, err = strconv.ParseFloat(delay, 64); err == nil && !(s >= 0 && s <= 1e9) {
			err = strconv.ErrRange
		}
		r.delay = time.Duration(s * float64(time.Second))
	}
	if err != nil {
		return r, &packet.Error{
			Code: packet.CodePayloadFormat,
			Msg:  fmt.Sprintf("a refusal is an offset or #packet-id, then maybe a delay in seconds (or never) and a reason, not %q", text),
		}
	}
	return r, nil
}

// nack refuses a delivery of a queue that the session has and has not acknowledged.
func (s *Session) nack(queue string, p *packet.Publish) error {
	r, err := parseRefusal(p)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.flights.slots {
		fl := &s.flights.slots[i]
		if fl.id == 0 || fl.m == nil || !fl.m.queue || fl.m.f.ID() != feed.QueueID(queue) || fl.stage == released {
			continue
		}
		if r.id != 0 && fl.id != r.id || r.id == 0 && fl.offset != r.offset {
			continue
		}
		// The packet id stays in use until the client has acknowledged the delivery as well, or is gone: MQTT demands it. By then the message
		// may be with it once more, under another id, and is not to be taken for acknowledged.
		if !fl.nacked {
			fl.nacked = true
			fl.m.source.(*feed.Member).Refuse(fl.seq, r.reason, r.delay)
		}
		return nil
	}
	return &packet.Error{Code: packet.CodeImplementation, Msg: fmt.Sprintf("queue %q: no such delivery is waiting for an acknowledgement", queue)}
}
