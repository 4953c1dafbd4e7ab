package packet

// Disconnect is a DISCONNECT. It owns its memory. That an expiry of a session that had none at CONNECT is a
// protocol error is for the caller, who knows the CONNECT [MQTT-3.1.2-23].
type Disconnect struct {
	Code             byte
	HasSessionExpiry bool
	SessionExpiry    uint32
	ReasonString     string
	ServerReference  string
	User             []UserProperty
}

// ParseDisconnect parses and validates a client's DISCONNECT.
func ParseDisconnect(v Version, frame []byte) (*Disconnect, error) { panic("todo") }

// ParseServerDisconnect parses and validates a server's DISCONNECT (version 5 only).
func ParseServerDisconnect(frame []byte) (*Disconnect, error) { panic("todo") }

// AppendDisconnect appends a DISCONNECT. Before version 5 it is two bytes, and only clients send it.
func AppendDisconnect(dst []byte, v Version, d *Disconnect) []byte { panic("todo") }

// Auth is an AUTH packet (version 5). It owns its memory.
type Auth struct {
	Code         byte
	Method       string
	Data         []byte // nil if absent
	ReasonString string
	User         []UserProperty
}

// ParseAuth parses and validates a client's AUTH.
func ParseAuth(frame []byte) (*Auth, error) { panic("todo") }

// AppendAuth appends an AUTH.
func AppendAuth(dst []byte, a *Auth) []byte { panic("todo") }

// AppendPingreq appends a PINGREQ.
func AppendPingreq(dst []byte) []byte { return append(dst, byte(TypePingreq)<<4, 0) }

// AppendPingresp appends a PINGRESP.
func AppendPingresp(dst []byte) []byte { return append(dst, byte(TypePingresp)<<4, 0) }
