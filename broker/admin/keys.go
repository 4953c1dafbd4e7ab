package admin

import (
	"bytes"

	"github.com/edgemq/edgemq/broker/packet"
	"github.com/edgemq/edgemq/internal/wire"
)

// The kinds of keys by which messages are found. They are part of the index's format.
const (
	KindMessageID byte = 1
	KindSearchKey byte = 2
)

// Keys is the store's question (store.Options.Keys) for the keys in a message's properties.
func Keys(props []byte, yield func(kind byte, value []byte) bool) {
	if !bytes.Contains(props, at) { // most have none, and this is on the path of every publish
		return
	}
	for p := range packet.Properties(props) {
		if p.ID != packet.PropUser {
			continue
		}
		kind := byte(0)
		switch string(p.Name) {
		case wire.MessageID:
			kind = KindMessageID
		case wire.SearchKey:
			kind = KindSearchKey
		}
		if kind != 0 && !yield(kind, p.Value) {
			return
		}
	}
}

var at = []byte{'@'}
