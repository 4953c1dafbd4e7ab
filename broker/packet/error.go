package packet

import "fmt"

// The reason codes of MQTT 5 that this broker receives or sends.
const (
	CodeSuccess                byte = 0x00 // also Normal disconnection, Granted QoS 0
	CodeGrantedQoS1            byte = 0x01
	CodeGrantedQoS2            byte = 0x02
	CodeDisconnectWithWill     byte = 0x04
	CodeNoMatchingSubscribers  byte = 0x10
	CodeNoSubscription         byte = 0x11
	CodeContinueAuthentication byte = 0x18
	CodeReauthenticate         byte = 0x19
	CodeUnspecified            byte = 0x80
	CodeMalformed              byte = 0x81
	CodeProtocol               byte = 0x82
	CodeImplementation         byte = 0x83
	CodeUnsupportedVersion     byte = 0x84
	CodeClientIDInvalid        byte = 0x85
	CodeBadUserOrPassword      byte = 0x86
	CodeNotAuthorized          byte = 0x87
	CodeServerUnavailable      byte = 0x88
	CodeServerBusy             byte = 0x89
	CodeBanned                 byte = 0x8A
	CodeShuttingDown           byte = 0x8B
	CodeBadAuthMethod          byte = 0x8C
	CodeKeepAliveTimeout       byte = 0x8D
	CodeTakenOver              byte = 0x8E
	CodeFilterInvalid          byte = 0x8F
	CodeTopicInvalid           byte = 0x90
	CodePacketIDInUse          byte = 0x91
	CodePacketIDNotFound       byte = 0x92
	CodeReceiveMaximum         byte = 0x93
	CodeAliasInvalid           byte = 0x94
	CodeTooLarge               byte = 0x95
	CodeRateTooHigh            byte = 0x96
	CodeQuotaExceeded          byte = 0x97
	CodeAdministrative         byte = 0x98
	CodePayloadFormat          byte = 0x99
	CodeRetainNotSupported     byte = 0x9A
	CodeQoSNotSupported        byte = 0x9B
	CodeUseAnotherServer       byte = 0x9C
	CodeServerMoved            byte = 0x9D
	CodeSharedNotSupported     byte = 0x9E
	CodeConnectionRate         byte = 0x9F
	CodeMaximumConnectTime     byte = 0xA0
	CodeSubscriptionIDs        byte = 0xA1
	CodeWildcardsNotSupported  byte = 0xA2
)

// Error says what is wrong with a packet: the reason code to answer with, the rule of MQTT 5 that was
// broken ("" if the standard states it without a number), and a sentence for the log and the reason string.
type Error struct {
	Code byte
	Rule string // "MQTT-3.3.1-4"
	Msg  string
}

func (e *Error) Error() string {
	if e.Rule == "" {
		return fmt.Sprintf("packet: %s (0x%02X)", e.Msg, e.Code)
	}
	return fmt.Sprintf("packet: %s (0x%02X) [%s]", e.Msg, e.Code, e.Rule)
}

// ErrTooLarge is what Split returns for a frame over the limit, before anyone allocates for it.
var ErrTooLarge = &Error{CodeTooLarge, "MQTT-3.1.2-24", "packet is larger than the maximum packet size"}

// ConnackCode turns an MQTT 5 reason code into the return code for a CONNACK of version v. ok is false if
// that version has no code for it: the connection is to be closed without an answer.
func ConnackCode(v Version, code byte) (byte, bool) {
	if v == V5 || code == CodeSuccess {
		return code, true
	}
	switch code {
	case CodeUnsupportedVersion:
		return 1, true
	case CodeClientIDInvalid:
		return 2, true
	case CodeServerUnavailable, CodeServerBusy, CodeShuttingDown, CodeConnectionRate, CodeQuotaExceeded:
		return 3, true
	case CodeBadUserOrPassword:
		return 4, true
	case CodeNotAuthorized, CodeBanned, CodeBadAuthMethod:
		return 5, true
	}
	return 0, false
}
