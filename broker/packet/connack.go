package packet

// Connack is the answer to CONNECT. Zero fields are left out of the packet and mean the standard's default.
type Connack struct {
	SessionPresent bool
	Code           byte // of the version it is sent in: see ConnackCode

	HasSessionExpiry   bool
	SessionExpiry      uint32
	ReceiveMaximum     uint16
	HasMaximumQoS      bool
	MaximumQoS         byte
	NoRetain           bool
	MaximumPacketSize  uint32
	AssignedClientID   string
	TopicAliasMaximum  uint16
	ReasonString       string
	User               []UserProperty
	NoWildcards        bool
	NoSubscriptionIDs  bool
	NoShared           bool
	HasServerKeepAlive bool
	ServerKeepAlive    uint16
	ResponseInfo       string
	ServerReference    string
	AuthMethod         string
	AuthData           []byte
}

// AppendConnack appends the CONNACK for c in version v.
func AppendConnack(dst []byte, v Version, c *Connack) []byte {
	var present byte
	if c.SessionPresent && v != V31 && c.Code == 0 { // [MQTT-3.2.2-6]; 3.1 has no such flag
		present = 1
	}
	if v != V5 {
		return append(dst, byte(TypeConnack)<<4, 2, present, c.Code)
	}
	return appendFrame(dst, TypeConnack, 0, appendBlock([]byte{present, c.Code}, c.appendProps(nil)))
}

func (c *Connack) appendProps(p []byte) []byte {
	p = appendNum(p, PropSessionExpiry, c.SessionExpiry, c.HasSessionExpiry)
	p = appendNum(p, PropReceiveMaximum, uint32(c.ReceiveMaximum), c.ReceiveMaximum != 0)
	p = appendNum(p, PropMaximumQoS, uint32(c.MaximumQoS), c.HasMaximumQoS)
	p = appendNum(p, PropRetainAvailable, 0, c.NoRetain)
	p = appendNum(p, PropMaximumPacketSize, c.MaximumPacketSize, c.MaximumPacketSize != 0)
	p = appendText(p, PropAssignedClientID, c.AssignedClientID)
	p = appendNum(p, PropTopicAliasMaximum, uint32(c.TopicAliasMaximum), c.TopicAliasMaximum != 0)
	p = appendText(p, PropReasonString, c.ReasonString)
	p = appendUsers(p, c.User)
	p = appendNum(p, PropWildcardAvailable, 0, c.NoWildcards)
	p = appendNum(p, PropSubscriptionIDs, 0, c.NoSubscriptionIDs)
	p = appendNum(p, PropSharedAvailable, 0, c.NoShared)
	p = appendNum(p, PropServerKeepAlive, uint32(c.ServerKeepAlive), c.HasServerKeepAlive)
	p = appendText(p, PropResponseInfo, c.ResponseInfo)
	p = appendText(p, PropServerReference, c.ServerReference)
	p = appendText(p, PropAuthMethod, c.AuthMethod)
	return appendBytes(p, PropAuthData, c.AuthData)
}

// ParseConnack parses and validates a CONNACK.
func ParseConnack(v Version, frame []byte) (*Connack, error) {
	b, err := body(v, frame, TypeConnack)
	if err != nil {
		return nil, err
	}
	r := reader{b: b}
	flags, code := r.byte(), r.byte()
	if v == V31 {
		flags = 0 // a reserved byte there
	}
	c := &Connack{SessionPresent: flags&1 != 0, Code: code}
	switch {
	case r.err != nil:
	case flags > 1:
		r.fail(malformed("MQTT-3.2.2-1", "reserved acknowledge flags are set"))
	case v != V5 && code > 5, v == V5 && !codeAllowed(code, 1<<TypeConnack):
		r.fail(protocol("MQTT-3.2.2-8", "reason code is not one of CONNACK's"))
	case flags == 1 && code != 0:
		r.fail(protocol("MQTT-3.2.2-6", "session present in a refusal"))
	case v == V5:
		c.parseProps(&r)
	}
	if err := r.end(); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *Connack) parseProps(r *reader) {
	s := r.props(1 << TypeConnack)
	for s.next() {
		switch s.ID {
		case PropSessionExpiry:
			c.HasSessionExpiry, c.SessionExpiry = true, s.Num
		case PropReceiveMaximum:
			c.ReceiveMaximum = uint16(s.Num)
		case PropMaximumQoS:
			c.HasMaximumQoS, c.MaximumQoS = true, byte(s.Num)
		case PropRetainAvailable:
			c.NoRetain = s.Num == 0
		case PropMaximumPacketSize:
			c.MaximumPacketSize = s.Num
		case PropAssignedClientID:
			c.AssignedClientID = string(s.Value)
		case PropTopicAliasMaximum:
			c.TopicAliasMaximum = uint16(s.Num)
		case PropReasonString:
			c.ReasonString = string(s.Value)
		case PropUser:
			c.User = append(c.User, s.user())
		case PropWildcardAvailable:
			c.NoWildcards = s.Num == 0
		case PropSubscriptionIDs:
			c.NoSubscriptionIDs = s.Num == 0
		case PropSharedAvailable:
			c.NoShared = s.Num == 0
		case PropServerKeepAlive:
			c.HasServerKeepAlive, c.ServerKeepAlive = true, uint16(s.Num)
		case PropResponseInfo:
			c.ResponseInfo = string(s.Value)
		case PropServerReference:
			c.ServerReference = string(s.Value)
		case PropAuthMethod:
			c.AuthMethod = string(s.Value)
		case PropAuthData:
			c.AuthData = s.bytes()
		}
	}
	r.close(&s)
}
