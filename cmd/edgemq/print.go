package main

import (
	"bufio"
	"encoding/json"
	"io"
	"unicode/utf8"

	"github.com/edgemq/edgemq/internal/client"
)

// printer writes messages for people (payload, or topic and payload) or for programs (JSON).
type printer struct {
	*bufio.Writer
	verbose bool
	json    *json.Encoder
}

func newPrinter(w io.Writer, verbose, asJSON bool) *printer {
	p := &printer{Writer: bufio.NewWriterSize(w, 64<<10), verbose: verbose}
	if asJSON {
		p.json = json.NewEncoder(p.Writer)
		p.json.SetEscapeHTML(false)
	}
	return p
}

// jsonMessage is a line of --json. A payload that is not UTF-8 is in payload_base64 instead.
type jsonMessage struct {
	Topic           string            `json:"topic"`
	Payload         *string           `json:"payload,omitempty"`
	PayloadBase64   []byte            `json:"payload_base64,omitempty"`
	QoS             byte              `json:"qos"`
	Retain          bool              `json:"retain,omitempty"`
	Duplicate       bool              `json:"dup,omitempty"`
	PacketID        uint16            `json:"packet_id,omitempty"`
	ContentType     string            `json:"content_type,omitempty"`
	ResponseTopic   string            `json:"response_topic,omitempty"`
	CorrelationData []byte            `json:"correlation_data_base64,omitempty"`
	Expiry          *uint32           `json:"expiry_seconds,omitempty"`
	UTF8            bool              `json:"payload_is_text,omitempty"`
	SubscriptionID  *int              `json:"subscription_id,omitempty"`
	User            []client.Property `json:"user_properties,omitempty"`
}

func (p *printer) message(m *client.Message) error {
	if p.json == nil {
		if p.verbose {
			_, _ = p.WriteString(m.Topic)
			_ = p.WriteByte(' ')
		}
		_, _ = p.Write(m.Payload)
		return p.WriteByte('\n') // a bufio.Writer keeps its first error
	}
	j := jsonMessage{
		Topic: m.Topic, QoS: m.QoS, Retain: m.Retain, Duplicate: m.Duplicate, PacketID: m.PacketID,
		ContentType: m.ContentType, ResponseTopic: m.ResponseTopic, CorrelationData: m.CorrelationData,
		Expiry: m.Expiry, UTF8: m.UTF8, SubscriptionID: m.SubscriptionID, User: m.User,
	}
	if utf8.Valid(m.Payload) {
		text := string(m.Payload)
		j.Payload = &text
	} else {
		j.PayloadBase64 = m.Payload
	}
	return p.json.Encode(j)
}
