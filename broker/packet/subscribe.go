package packet

import (
	"bytes"
	"strings"
)

// Subscription is one topic filter of a SUBSCRIBE with its options.
type Subscription struct {
	Filter            string
	QoS               byte
	NoLocal           bool
	RetainAsPublished bool
	RetainHandling    byte // 0 send retained, 1 only if new, 2 never
}

// Subscribe is a parsed SUBSCRIBE. It owns its memory.
type Subscribe struct {
	PacketID       uint16
	SubscriptionID uint32 // 0 means none
	User           []UserProperty
	Filters        []Subscription
}

// ParseSubscribe parses and validates a SUBSCRIBE. Where wildcards stand is not its concern, see package topic.
func ParseSubscribe(v Version, frame []byte) (*Subscribe, error) {
	b, err := body(v, frame, TypeSubscribe)
	if err != nil {
		return nil, err
	}
	r := reader{b: b}
	s := &Subscribe{PacketID: r.packetID()}
	if v == V5 {
		p := r.props(1 << TypeSubscribe)
		for p.next() {
			switch p.ID {
			case PropSubscriptionID:
				s.SubscriptionID = p.Num
			case PropUser:
				s.User = append(s.User, p.user())
			}
		}
		r.close(&p)
	}
	for len(r.b) > 0 {
		filter, opts := r.filter(), r.byte()
		sub := Subscription{Filter: filter, QoS: opts & 3}
		if v == V5 {
			sub.NoLocal, sub.RetainAsPublished, sub.RetainHandling = opts&4 != 0, opts&8 != 0, opts>>4&3
			r.checkOptions(&sub, opts)
		} else if opts > 2 {
			r.fail(malformed("MQTT-3.8.3-4", "requested QoS is not 0, 1 or 2")) // the number is 3.1.1's
		}
		s.Filters = append(s.Filters, sub)
	}
	if len(s.Filters) == 0 {
		r.fail(protocol("MQTT-3.8.3-2", "SUBSCRIBE without a topic filter"))
	}
	if err := r.end(); err != nil {
		return nil, err
	}
	return s, nil
}

func (r *reader) checkOptions(s *Subscription, opts byte) {
	switch {
	case opts&0xC0 != 0:
		r.fail(malformed("MQTT-3.8.3-5", "reserved subscription options are set"))
	case s.QoS == 3:
		r.fail(protocol("", "maximum QoS of a subscription is 3"))
	case s.RetainHandling == 3:
		r.fail(protocol("", "retain handling is 3"))
	case s.NoLocal && strings.HasPrefix(s.Filter, "$share/"):
		r.fail(protocol("MQTT-3.8.3-4", "no local on a shared subscription"))
	}
}

// filter reads a topic filter, which is a string of at least one character.
func (r *reader) filter() string {
	f := r.string() // [MQTT-3.8.3-1], [MQTT-3.10.3-1]
	if f == "" && r.err == nil {
		r.fail(malformed("MQTT-4.7.3-1", "topic filter is empty"))
	}
	return f
}

// AppendSubscribe appends the SUBSCRIBE for s.
func AppendSubscribe(dst []byte, v Version, s *Subscribe) []byte {
	b := appendUint16(nil, s.PacketID)
	if v == V5 {
		p := appendNum(nil, PropSubscriptionID, s.SubscriptionID, s.SubscriptionID != 0)
		b = appendBlock(b, appendUsers(p, s.User))
	}
	for _, f := range s.Filters {
		opts := f.QoS
		if v == V5 {
			opts |= f.RetainHandling << 4
			if f.NoLocal {
				opts |= 4
			}
			if f.RetainAsPublished {
				opts |= 8
			}
		}
		b = append(appendString(b, f.Filter), opts)
	}
	return appendFrame(dst, TypeSubscribe, 2, b)
}

// Unsubscribe is a parsed UNSUBSCRIBE. It owns its memory.
type Unsubscribe struct {
	PacketID uint16
	User     []UserProperty
	Filters  []string
}

// ParseUnsubscribe parses and validates an UNSUBSCRIBE.
func ParseUnsubscribe(v Version, frame []byte) (*Unsubscribe, error) {
	b, err := body(v, frame, TypeUnsubscribe)
	if err != nil {
		return nil, err
	}
	r := reader{b: b}
	u := &Unsubscribe{PacketID: r.packetID()}
	if v == V5 {
		p := r.props(1 << TypeUnsubscribe)
		for p.next() {
			u.User = append(u.User, p.user()) // the only property there is
		}
		r.close(&p)
	}
	for len(r.b) > 0 {
		u.Filters = append(u.Filters, r.filter())
	}
	if len(u.Filters) == 0 {
		r.fail(protocol("MQTT-3.10.3-2", "UNSUBSCRIBE without a topic filter"))
	}
	if err := r.end(); err != nil {
		return nil, err
	}
	return u, nil
}

// AppendUnsubscribe appends the UNSUBSCRIBE for u.
func AppendUnsubscribe(dst []byte, v Version, u *Unsubscribe) []byte {
	b := appendUint16(nil, u.PacketID)
	if v == V5 {
		b = appendBlock(b, appendUsers(nil, u.User))
	}
	for _, f := range u.Filters {
		b = appendString(b, f)
	}
	return appendFrame(dst, TypeUnsubscribe, 2, b)
}

// Suback is a SUBACK or UNSUBACK: one code for each filter, in the version's own terms.
type Suback struct {
	PacketID     uint16
	Codes        []byte // 3.1.1 UNSUBACK has none
	ReasonString string
	User         []UserProperty
}

// AppendSuback appends a SUBACK. Before version 5 every code from 0x80 up is sent as 0x80.
func AppendSuback(dst []byte, v Version, s *Suback) []byte {
	b := s.appendHead(v)
	for _, c := range s.Codes {
		if v != V5 && c > 0x80 {
			c = 0x80
		}
		b = append(b, c)
	}
	return appendFrame(dst, TypeSuback, 0, b)
}

// AppendUnsuback appends an UNSUBACK. Before version 5 it has no codes.
func AppendUnsuback(dst []byte, v Version, s *Suback) []byte {
	b := s.appendHead(v)
	if v == V5 {
		b = append(b, s.Codes...)
	}
	return appendFrame(dst, TypeUnsuback, 0, b)
}

func (s *Suback) appendHead(v Version) []byte {
	b := appendUint16(nil, s.PacketID)
	if v == V5 {
		b = appendBlock(b, appendUsers(appendText(nil, PropReasonString, s.ReasonString), s.User))
	}
	return b
}

// ParseSuback parses and validates a SUBACK.
func ParseSuback(v Version, frame []byte) (*Suback, error) { return parseSuback(v, frame, TypeSuback) }

// ParseUnsuback parses and validates an UNSUBACK.
func ParseUnsuback(v Version, frame []byte) (*Suback, error) {
	return parseSuback(v, frame, TypeUnsuback)
}

func parseSuback(v Version, frame []byte, t Type) (*Suback, error) {
	b, err := body(v, frame, t)
	if err != nil {
		return nil, err
	}
	r := reader{b: b}
	s := &Suback{PacketID: r.packetID()}
	if v == V5 {
		p := r.props(1 << t)
		for p.next() {
			switch p.ID {
			case PropReasonString:
				s.ReasonString = string(p.Value)
			case PropUser:
				s.User = append(s.User, p.user())
			}
		}
		r.close(&p)
	}
	if v == V5 || t == TypeSuback {
		s.Codes = bytes.Clone(r.take(len(r.b)))
		if len(s.Codes) == 0 {
			r.fail(malformed("", "no reason codes"))
		}
		for _, c := range s.Codes {
			if !codeAllowed(c, 1<<t) || v != V5 && c > 0x80 {
				r.fail(protocol("MQTT-3.9.3-2", "reason code is not one of this packet's"))
			}
		}
	}
	if err := r.end(); err != nil {
		return nil, err
	}
	return s, nil
}
