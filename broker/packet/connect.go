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

// ParseConnect parses and validates a CONNECT, given as a whole frame. On an error the result is not nil
// either: its Version says in which version to answer, 0 if the connection is to be closed without one.
func ParseConnect(frame []byte) (*Connect, error) { panic("todo") }

// AppendConnect appends the CONNECT packet for c.
func AppendConnect(dst []byte, c *Connect) []byte { panic("todo") }

// AppendWithoutWill is AppendConnect with the Will left out, for handing the packet to mochi.
func (c *Connect) AppendWithoutWill(dst []byte) []byte { panic("todo") }

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
func AppendConnack(dst []byte, v Version, c *Connack) []byte { panic("todo") }

// ParseConnack parses and validates a CONNACK.
func ParseConnack(v Version, frame []byte) (*Connack, error) { panic("todo") }
