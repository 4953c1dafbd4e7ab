package sdk

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/broker/topic"
	"github.com/edgemq/edgemq/internal/wire"
)

// stamp is what sending adds to a message that does not have it.
type stamp struct {
	id       string
	born     int64 // ms
	host     string
	producer string
	epoch    uint64
	trace    string
}

// wellKnown is the type a header has when @types does not say.
func wellKnown(name string) Kind {
	switch name {
	case HeaderBornTimestamp, HeaderStoreTimestamp, HeaderEpoch, HeaderOffset, HeaderOriginOffset, HeaderRedelivered, HeaderRefused, HeaderTimeout:
		return KindInt64
	}
	return KindString
}

// encoder turns messages into property blocks. Its buffers are used again; it is not for concurrent use.
type encoder struct {
	block, types, value []byte
}

// encode returns the property block of a message, valid until the next call.
func (e *encoder) encode(m *Message, s *stamp) ([]byte, error) {
	e.block, e.types = e.block[:0], e.types[:0]
	if m.ContentType != "" {
		e.block = packet.AppendProperty(e.block, packet.Property{ID: packet.PropContentType, Value: []byte(m.ContentType)})
	}
	if m.ResponseTopic != "" {
		e.block = packet.AppendProperty(e.block, packet.Property{ID: packet.PropResponseTopic, Value: []byte(m.ResponseTopic)})
	}
	if m.CorrelationData != nil {
		e.block = packet.AppendProperty(e.block, packet.Property{ID: packet.PropCorrelationData, Value: m.CorrelationData})
	}
	var id, born, host, producer, epoch, trace bool
	for i := range m.headers {
		f := &m.headers[i]
		switch f.Name {
		case HeaderTopic, HeaderQueue:
			continue // the topic on the wire says it
		case HeaderMessageID:
			id = true
		case HeaderBornTimestamp:
			born = true
		case HeaderBornHost:
			host = true
		case HeaderProducer:
			producer = true
		case HeaderEpoch:
			epoch = true
		case HeaderTraceID:
			trace = true
		case "", "types":
			return nil, fmt.Errorf("%w: header %q", ErrName, f.Name)
		}
		if err := e.add(f, true); err != nil {
			return nil, err
		}
	}
	if !id && s.id != "" {
		e.block = packet.AppendUser(e.block, wire.MessageID, s.id)
	}
	if !born && s.born != 0 {
		e.number(wire.BornTimestamp, s.born)
	}
	if !host && s.host != "" {
		e.block = packet.AppendUser(e.block, wire.BornHost, s.host)
	}
	if !producer && s.producer != "" {
		e.block = packet.AppendUser(e.block, wire.Producer, s.producer)
	}
	if !epoch && s.epoch != 0 {
		e.number(wire.Epoch, int64(s.epoch))
	}
	if !trace && s.trace != "" {
		e.block = packet.AppendUser(e.block, wire.TraceID, s.trace)
	}
	for i := range m.properties {
		f := &m.properties[i]
		if f.Name == "" || f.Name[0] == '@' {
			return nil, fmt.Errorf("%w: property %q (names with @ are headers)", ErrName, f.Name)
		}
		if err := e.add(f, false); err != nil {
			return nil, err
		}
	}
	if len(e.types) > 0 {
		e.pair("", wire.Types, e.types)
	}
	return e.block, nil
}

// add appends one field, and its type if that is not what the receiver will take it for.
func (e *encoder) add(f *Field, header bool) error {
	at, kind := "", KindString
	if header {
		at, kind = "@", wellKnown(f.Name)
	}
	e.value = f.Value.append(e.value[:0])
	if f.Value.kind == KindNone || len(at)+len(f.Name) > math.MaxUint16 || len(e.value) > math.MaxUint16 ||
		!validText(f.Name) || f.Value.kind == KindString && !validText(f.Value.text) {
		return fmt.Errorf("%w: %s%.64q: names and texts are up to 65535 bytes of UTF-8 without U+0000", ErrName, at, f.Name)
	}
	e.pair(at, f.Name, e.value)
	if f.Value.kind != kind {
		if len(e.types) > 0 {
			e.types = append(e.types, ',')
		}
		e.types = append(e.types, at...)
		e.types = appendEscaped(e.types, f.Name)
		e.types = append(e.types, ':', f.Value.kind.tag())
		if len(e.types) > math.MaxUint16 {
			return fmt.Errorf("%w: too many typed values", ErrName)
		}
	}
	return nil
}

// pair appends a user property at+name.
func (e *encoder) pair(at, name string, value []byte) {
	e.block = append(e.block, byte(packet.PropUser))
	e.block = binary.BigEndian.AppendUint16(e.block, uint16(len(at)+len(name)))
	e.block = append(append(e.block, at...), name...)
	e.block = binary.BigEndian.AppendUint16(e.block, uint16(len(value)))
	e.block = append(e.block, value...)
}

func (e *encoder) number(name string, n int64) {
	e.value = Int64(n).append(e.value[:0])
	e.pair("", name, e.value)
}

// validText is MQTT's UTF-8 Encoded String. [MQTT-1.5.4-1] [MQTT-1.5.4-2]
func validText(s string) bool { return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 }

// appendEscaped appends a name for @types, whose separators a name may hold.
func appendEscaped(dst []byte, name string) []byte {
	for i := range len(name) {
		switch c := name[i]; c {
		case '%', ',', ':':
			const hex = "0123456789ABCDEF"
			dst = append(dst, '%', hex[c>>4], hex[c&15])
		default:
			dst = append(dst, c)
		}
	}
	return dst
}

var unescape = strings.NewReplacer("%2C", ",", "%3A", ":", "%25", "%")

// delivery is a PUBLISH as it came, before anybody has looked into it.
type delivery struct {
	topic   string
	payload []byte // own memory: a property block with its length, then the body
	id      uint16 // 0 at QoS 0
	dup     bool
	retain  bool
}

// decode fills m from a property block and a body.
func (m *Message) decode(name string, props, body []byte) {
	*m = Message{body: bytes.Clone(body)}
	if m.body == nil {
		m.body = []byte{}
	}
	text := string(props)          // one copy, which all names and texts share
	m.headers = make(Values, 0, 8) // what a message from a queue has
	q, queue := topic.QueueOf(name)
	if queue {
		m.headers = append(m.headers, Field{HeaderQueue, String(q)})
	} else {
		m.headers = append(m.headers, Field{HeaderTopic, String(name)})
	}
	var types string
	at := 0
scan:
	for p := range packet.Properties(props) {
		size := len(p.Value)
		at += 3 + size // identifier, length, value
		switch p.ID {
		case packet.PropContentType:
			m.ContentType = text[at-size : at]
		case packet.PropResponseTopic:
			m.ResponseTopic = text[at-size : at]
		case packet.PropCorrelationData:
			m.CorrelationData = append([]byte{}, p.Value...)
		case packet.PropUser:
			at += 2 + len(p.Name)
			name, value := text[at-size-2-len(p.Name):at-size-2], text[at-size:at]
			switch {
			case name == wire.Types:
				types = value
			case strings.HasPrefix(name, "@"):
				switch name = name[1:]; {
				case name != HeaderTopic && name != HeaderQueue:
					m.headers = append(m.headers, Field{name, String(value)})
				case queue: // a dead letter's
					m.headers = append(m.headers, Field{"Origin" + name, String(value)})
				}
			default:
				if m.properties == nil {
					m.properties = make(Values, 0, 4)
				}
				m.properties = append(m.properties, Field{name, String(value)})
			}
		case packet.PropPayloadFormat:
			at -= 1 // identifier and one byte
		case packet.PropMessageExpiry:
			at += 2 // identifier and four bytes
		default:
			break scan // nothing else comes in a delivery's envelope
		}
	}
	for i := range m.headers {
		if f := &m.headers[i]; wellKnown(f.Name) != KindString && !strings.Contains(types, "@"+f.Name+":") {
			f.Value = parseValue(f.Value.text, wellKnown(f.Name).tag())
		}
	}
	m.retype(types)
}

// retype gives values the types that @types names.
func (m *Message) retype(types string) {
	for types != "" {
		var one string
		one, types, _ = strings.Cut(types, ",")
		name, tag, ok := strings.Cut(one, ":")
		if !ok || len(tag) != 1 {
			continue
		}
		if strings.IndexByte(name, '%') >= 0 {
			name = unescape.Replace(name)
		}
		vs := m.properties
		if strings.HasPrefix(name, "@") {
			name, vs = name[1:], m.headers
		}
		for i := range vs {
			if vs[i].Name == name {
				vs[i].Value = parseValue(vs[i].Value.String(), tag[0])
			}
		}
	}
}
