package packet

// Connect is a parsed CONNECT. It owns its memory.
type Connect struct {
	Version   Version
	Clean     bool
	KeepAlive uint16
	ClientID  string

	HasUsername, HasPassword bool
	Username                 string
	Password                 []byte

	Will *Will // nil if there is none

	HasSessionExpiry    bool
	SessionExpiry       uint32
	ReceiveMaximum      uint16 // 65535 if absent
	MaximumPacketSize   uint32 // 0 means no limit
	TopicAliasMaximum   uint16
	RequestResponseInfo bool
	NoProblemInfo       bool // the client asked for no reason strings and user properties on acks
	AuthMethod          string
	AuthData            []byte // nil if absent
	User                []UserProperty
}

// Will is the message a CONNECT leaves with the server.
type Will struct {
	Topic     string
	Payload   []byte
	QoS       byte
	Retain    bool
	Delay     uint32 // seconds
	HasExpiry bool
	Expiry    uint32
	UTF8      bool   // payload format indicator is 1
	Props     []byte // stored form, like Publish.AppendStoredProps
}

// CheckPayload is Publish.CheckPayload for the message of a Will.
func (w *Will) CheckPayload() error { return checkPayload(w.UTF8, w.Payload) }

// The connect flags.
const (
	flagClean    = 0x02
	flagWill     = 0x04
	flagRetain   = 0x20
	flagPassword = 0x40
	flagUsername = 0x80
)

// ParseConnect parses and validates a CONNECT, given as a whole frame. On an error the result is not nil
// either: its Version says in which version to answer, 0 if the connection is to be closed without one.
//
// Version 3.1 is held to the rules of 3.1.1, but that it has no empty client id and does not use what is
// reserved since; ids of more than 23 characters are accepted, as everywhere in the field.
func ParseConnect(frame []byte) (*Connect, error) {
	c := &Connect{ReceiveMaximum: 65535}
	b, err := body(0, frame, TypeConnect)
	if err != nil {
		return c, err
	}
	r := reader{b: b}
	name, level := r.binary(), r.byte()
	if r.err != nil {
		return c, r.err
	}
	if err := c.setVersion(string(name), level); err != nil {
		return c, err
	}
	if _, err := body(c.Version, frame, TypeConnect); err != nil { // flags, and in v5 an overlong remaining length
		return c, err
	}
	flags := r.byte()
	c.KeepAlive = r.uint16()
	if r.err == nil {
		if err := checkConnectFlags(c.Version, flags); err != nil {
			return c, err
		}
	}
	c.Clean = flags&flagClean != 0
	if c.Version == V5 {
		c.parseProps(&r)
	}
	c.ClientID = r.string() // [MQTT-3.1.3-4]
	if flags&flagWill != 0 {
		c.Will = parseWill(&r, c.Version, flags)
	}
	if flags&flagUsername != 0 {
		c.HasUsername, c.Username = true, r.string() // [MQTT-3.1.3-12]
	}
	if flags&flagPassword != 0 {
		c.HasPassword, c.Password = true, append([]byte{}, r.binary()...)
	}
	if err := r.end(); err != nil {
		return c, err
	}
	if c.ClientID == "" && (c.Version == V31 || c.Version == V311 && !c.Clean) { // 3.1.1: [MQTT-3.1.3-8]
		return c, &Error{CodeClientIDInvalid, "MQTT-3.1.3-8", "client id is empty"}
	}
	return c, nil
}

// setVersion tells from protocol name and level which version this is, or in which to say no.
func (c *Connect) setVersion(name string, level byte) *Error {
	switch {
	case name == "MQTT" && (level == 4 || level == 5), name == "MQIsdp" && level == 3:
		c.Version = Version(level)
		return nil
	case name != "MQTT" && name != "MQIsdp":
		return &Error{CodeUnsupportedVersion, "MQTT-3.1.2-1", "protocol name is neither MQTT nor MQIsdp"}
	}
	// A client of a version to come understands MQTT 5 rather than 3.1.1; one that sets the high bit is a
	// mosquitto bridge, which tries again without when told 0x01.
	if c.Version = V311; level > 5 && level < 0x80 {
		c.Version = V5
	}
	return &Error{CodeUnsupportedVersion, "MQTT-3.1.2-2", "unsupported protocol version"}
}

func checkConnectFlags(v Version, flags byte) *Error {
	switch {
	case flags&1 != 0 && v != V31:
		return malformed("MQTT-3.1.2-3", "reserved connect flag is set")
	case flags>>3&3 == 3:
		return malformed("MQTT-3.1.2-12", "Will QoS is 3")
	case flags&flagWill == 0 && flags>>3&3 != 0:
		return malformed("MQTT-3.1.2-11", "Will QoS without a Will")
	case flags&flagWill == 0 && flags&flagRetain != 0:
		return malformed("MQTT-3.1.2-13", "Will Retain without a Will")
	case v < V5 && flags&flagPassword != 0 && flags&flagUsername == 0: // 3.1.1: [MQTT-3.1.2-22]
		return malformed("MQTT-3.1.2-22", "password without a user name")
	}
	return nil
}

func (c *Connect) parseProps(r *reader) {
	s := r.props(1 << TypeConnect)
	for s.next() {
		switch s.ID {
		case PropSessionExpiry:
			c.HasSessionExpiry, c.SessionExpiry = true, s.Num
		case PropReceiveMaximum:
			c.ReceiveMaximum = uint16(s.Num)
		case PropMaximumPacketSize:
			c.MaximumPacketSize = s.Num
		case PropTopicAliasMaximum:
			c.TopicAliasMaximum = uint16(s.Num)
		case PropRequestResponseInfo:
			c.RequestResponseInfo = s.Num == 1
		case PropRequestProblemInfo:
			c.NoProblemInfo = s.Num == 0
		case PropAuthMethod:
			c.AuthMethod = string(s.Value)
		case PropAuthData:
			c.AuthData = s.bytes()
		case PropUser:
			c.User = append(c.User, s.user())
		}
	}
	if s.err == nil && s.saw(PropAuthData) && !s.saw(PropAuthMethod) {
		s.err = protocol("", "authentication data without a method")
	}
	r.close(&s)
}

func parseWill(r *reader, v Version, flags byte) *Will {
	w := &Will{QoS: flags >> 3 & 3, Retain: flags&flagRetain != 0}
	if v == V5 {
		s := r.props(inWill)
		raw := s.rest
		for s.next() {
			switch s.ID {
			case PropWillDelay:
				w.Delay = s.Num
			case PropMessageExpiry:
				w.HasExpiry, w.Expiry = true, s.Num
			case PropPayloadFormat:
				w.UTF8 = s.Num == 1
			}
		}
		w.Props = appendStored(nil, raw)
		r.close(&s)
	}
	topic := r.binary()
	if r.err == nil {
		if len(topic) == 0 {
			r.fail(&Error{CodeTopicInvalid, "MQTT-4.7.3-1", "Will topic is empty"})
		} else if err := checkName(topic); err != nil {
			r.fail(err)
		}
	}
	w.Topic = string(topic)
	w.Payload = append([]byte{}, r.binary()...)
	return w
}

// AppendConnect appends the CONNECT packet for c.
func AppendConnect(dst []byte, c *Connect) []byte { return c.appendTo(dst, c.Will) }

// AppendWithoutWill is AppendConnect with the Will left out, for handing the packet to mochi.
func (c *Connect) AppendWithoutWill(dst []byte) []byte { return c.appendTo(dst, nil) }

func (c *Connect) appendTo(dst []byte, w *Will) []byte {
	b := make([]byte, 0, 128)
	if c.Version == V31 {
		b = appendString(b, "MQIsdp")
	} else {
		b = appendString(b, "MQTT")
	}
	var flags byte
	if c.Clean {
		flags |= flagClean
	}
	if w != nil {
		flags |= flagWill | w.QoS<<3
		if w.Retain {
			flags |= flagRetain
		}
	}
	if c.HasPassword {
		flags |= flagPassword
	}
	if c.HasUsername {
		flags |= flagUsername
	}
	b = appendUint16(append(b, byte(c.Version), flags), c.KeepAlive)
	if c.Version == V5 {
		b = appendBlock(b, c.appendProps(nil))
	}
	b = appendString(b, c.ClientID)
	if w != nil {
		if c.Version == V5 {
			p := appendNum(nil, PropWillDelay, w.Delay, w.Delay != 0)
			p = appendNum(p, PropMessageExpiry, w.Expiry, w.HasExpiry)
			b = appendBlock(b, append(p, w.Props...))
		}
		b = appendString(b, w.Topic)
		b = appendString(b, w.Payload)
	}
	if c.HasUsername {
		b = appendString(b, c.Username)
	}
	if c.HasPassword {
		b = appendString(b, c.Password)
	}
	return appendFrame(dst, TypeConnect, 0, b)
}

func (c *Connect) appendProps(p []byte) []byte {
	p = appendNum(p, PropSessionExpiry, c.SessionExpiry, c.HasSessionExpiry)
	p = appendNum(p, PropReceiveMaximum, uint32(c.ReceiveMaximum), c.ReceiveMaximum != 0 && c.ReceiveMaximum != 65535)
	p = appendNum(p, PropMaximumPacketSize, c.MaximumPacketSize, c.MaximumPacketSize != 0)
	p = appendNum(p, PropTopicAliasMaximum, uint32(c.TopicAliasMaximum), c.TopicAliasMaximum != 0)
	p = appendNum(p, PropRequestResponseInfo, 1, c.RequestResponseInfo)
	p = appendNum(p, PropRequestProblemInfo, 0, c.NoProblemInfo)
	p = appendText(p, PropAuthMethod, c.AuthMethod)
	p = appendBytes(p, PropAuthData, c.AuthData)
	return appendUsers(p, c.User)
}
