package packet

// Disconnect is a DISCONNECT. It owns its memory. That an expiry of a session that had none at CONNECT is a
// protocol error is for the caller, who knows the CONNECT (MQTT 5, 3.14.2.2.2).
type Disconnect struct {
	Code             byte
	HasSessionExpiry bool
	SessionExpiry    uint32
	ReasonString     string
	ServerReference  string
	User             []UserProperty
}

// ParseDisconnect parses and validates a client's DISCONNECT.
func ParseDisconnect(v Version, frame []byte) (*Disconnect, error) {
	return parseDisconnect(v, frame, 1<<TypeDisconnect, clientDisconnect)
}

// ParseServerDisconnect parses and validates a server's DISCONNECT (version 5 only).
func ParseServerDisconnect(frame []byte) (*Disconnect, error) {
	return parseDisconnect(V5, frame, inServerDisc, inServerDisc)
}

func parseDisconnect(v Version, frame []byte, where, who mask) (*Disconnect, error) {
	b, err := body(v, frame, TypeDisconnect)
	if err != nil {
		return nil, err
	}
	r := reader{b: b}
	d := &Disconnect{}
	if v == V5 && len(b) > 0 {
		if d.Code = r.byte(); !codeAllowed(d.Code, who) {
			r.fail(protocol("MQTT-3.14.2-1", "reason code is not one of the sender's"))
		}
	}
	if v == V5 && len(b) > 1 { // 3.14.2.2.1: shorter packets have no property length
		s := r.props(where)
		for s.next() {
			switch s.ID {
			case PropSessionExpiry:
				d.HasSessionExpiry, d.SessionExpiry = true, s.Num
			case PropReasonString:
				d.ReasonString = string(s.Value)
			case PropServerReference:
				d.ServerReference = string(s.Value)
			case PropUser:
				d.User = append(d.User, s.user())
			}
		}
		r.close(&s)
	}
	if err := r.end(); err != nil {
		return nil, err
	}
	return d, nil
}

// AppendDisconnect appends a DISCONNECT. Before version 5 it is two bytes, and only clients send it.
func AppendDisconnect(dst []byte, v Version, d *Disconnect) []byte {
	if v != V5 {
		return append(dst, byte(TypeDisconnect)<<4, 0)
	}
	p := appendNum(nil, PropSessionExpiry, d.SessionExpiry, d.HasSessionExpiry)
	p = appendText(p, PropReasonString, d.ReasonString)
	p = appendText(p, PropServerReference, d.ServerReference)
	p = appendUsers(p, d.User)
	switch {
	case len(p) > 0:
		return appendFrame(dst, TypeDisconnect, 0, appendBlock([]byte{d.Code}, p))
	case d.Code != 0:
		return append(dst, byte(TypeDisconnect)<<4, 1, d.Code)
	}
	return append(dst, byte(TypeDisconnect)<<4, 0)
}

// Auth is an AUTH packet (version 5). It owns its memory.
type Auth struct {
	Code         byte
	Method       string
	Data         []byte // nil if absent
	ReasonString string
	User         []UserProperty
}

// ParseAuth parses and validates a client's AUTH.
func ParseAuth(frame []byte) (*Auth, error) {
	b, err := body(V5, frame, TypeAuth)
	if err != nil {
		return nil, err
	}
	r := reader{b: b}
	a := &Auth{}
	if len(b) > 0 { // 3.15.2.1: an empty AUTH is code 0x00 without properties
		a.Code = r.byte()
		s := r.props(1 << TypeAuth)
		for s.next() {
			switch s.ID {
			case PropAuthMethod:
				a.Method = string(s.Value)
			case PropAuthData:
				a.Data = s.bytes()
			case PropReasonString:
				a.ReasonString = string(s.Value)
			case PropUser:
				a.User = append(a.User, s.user())
			}
		}
		if s.err == nil && r.err == nil && !s.saw(PropAuthMethod) {
			s.err = protocol("", "AUTH without an authentication method")
		}
		r.close(&s)
	}
	if !codeAllowed(a.Code, clientAuth) {
		r.fail(protocol("MQTT-3.15.2-1", "reason code is not one of a client's AUTH"))
	}
	if err := r.end(); err != nil {
		return nil, err
	}
	return a, nil
}

// AppendAuth appends an AUTH.
func AppendAuth(dst []byte, a *Auth) []byte {
	p := appendText(nil, PropAuthMethod, a.Method)
	p = appendBytes(p, PropAuthData, a.Data)
	p = appendText(p, PropReasonString, a.ReasonString)
	p = appendUsers(p, a.User)
	if a.Code == 0 && len(p) == 0 {
		return append(dst, byte(TypeAuth)<<4, 0)
	}
	return appendFrame(dst, TypeAuth, 0, appendBlock([]byte{a.Code}, p))
}

// AppendPingreq appends a PINGREQ.
func AppendPingreq(dst []byte) []byte { return append(dst, byte(TypePingreq)<<4, 0) }

// AppendPingresp appends a PINGRESP.
func AppendPingresp(dst []byte) []byte { return append(dst, byte(TypePingresp)<<4, 0) }
