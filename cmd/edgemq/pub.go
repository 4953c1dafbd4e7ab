package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/edgemq/edgemq/internal/client"
)

type pubFlags struct {
	connectFlags
	topic         string
	message, file string
	lines         bool
	jsonLines     bool
	qos           uint8
	retain        bool
	user          []string
	expiry        string
	contentType   string
	responseTopic string
	correlation   string
	text          bool
}

func pubCommand() *cobra.Command {
	var f pubFlags
	cmd := &cobra.Command{
		Use:   "pub (-t TOPIC (-m MESSAGE | --file FILE | --stdin-lines) | --json-lines)",
		Short: "Publish messages",
		Long: `Publish one message, or with --stdin-lines one for each line of standard input. With --json-lines each line is a message with its topic, QoS
and properties, as "sub --json" and "store salvage" write them; --topic then says that all go there.

With QoS 1 (the default) pub ends with success only when the broker has acknowledged every message; from an
edgemq broker with store.sync: always that means that they are on disk.`,
		Example: `  edgemq pub -t sensors/kitchen/temperature -m 21.5
  edgemq pub -t '$queue/orders' -m '{"id": 7}' --content-type application/json -u shop=north
  journalctl -f | edgemq pub -t logs/$HOSTNAME --stdin-lines
  edgemq store salvage data | edgemq pub --json-lines`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return pub(cmd, &f) },
	}
	f.connectFlags.add(cmd)
	fs := cmd.Flags()
	fs.StringVarP(&f.topic, "topic", "t", "", "topic to publish to")
	fs.StringVarP(&f.message, "message", "m", "", "the message; may be empty")
	fs.StringVarP(&f.file, "file", "f", "", "send the bytes of this file; - is standard input")
	fs.BoolVarP(&f.lines, "stdin-lines", "l", false, "send each line of standard input as a message")
	fs.Uint8VarP(&f.qos, "qos", "q", 1, "quality of service: 0, 1 or 2")
	fs.BoolVarP(&f.retain, "retain", "r", false, "the broker keeps the message for later subscribers")
	fs.StringArrayVarP(&f.user, "user-property", "u", nil, "user property `name=value`, repeatable (MQTT 5)")
	fs.StringVar(&f.expiry, "expiry", "", "the message expires after this `duration` (MQTT 5)")
	fs.StringVar(&f.contentType, "content-type", "", "content type (MQTT 5)")
	fs.StringVar(&f.responseTopic, "response-topic", "", "topic for the answer (MQTT 5)")
	fs.StringVar(&f.correlation, "correlation", "", "correlation data (MQTT 5)")
	fs.BoolVar(&f.text, "text", false, "declare the payload to be UTF-8 text (MQTT 5)")
	fs.BoolVar(&f.jsonLines, "json-lines", false, "send each line of standard input, a message as JSON")
	cmd.MarkFlagsOneRequired("topic", "json-lines")
	cmd.MarkFlagsMutuallyExclusive("message", "file", "stdin-lines", "json-lines")
	cmd.MarkFlagsOneRequired("message", "file", "stdin-lines", "json-lines")
	for _, name := range []string{"qos", "retain", "user-property", "expiry", "content-type", "response-topic", "correlation", "text"} {
		cmd.MarkFlagsMutuallyExclusive("json-lines", name)
	}
	return cmd
}

func pub(cmd *cobra.Command, f *pubFlags) error {
	o, err := f.options(cmd)
	if err != nil {
		return err
	}
	m, err := f.template(cmd)
	if err != nil {
		return err
	}
	next, err := f.messages(cmd.InOrStdin(), m)
	if err != nil {
		return err
	}
	c, err := client.Dial(cmd.Context(), o)
	if err != nil {
		return err
	}
	defer c.Close()
	err = publishAll(cmd.Context(), c, next)
	if f.version == client.V311 && errors.Is(err, client.ErrLost) {
		return fmt.Errorf("%w; if the broker refused it, MQTT 3.1.1 has no words for why: --mqtt 5 may tell", err)
	}
	return err
}

// template is the message without its payload.
func (f *pubFlags) template(cmd *cobra.Command) (client.Message, error) {
	m := client.Message{
		Topic: f.topic, QoS: f.qos, Retain: f.retain,
		ContentType: f.contentType, ResponseTopic: f.responseTopic, UTF8: f.text,
	}
	switch {
	case f.qos > 2:
		return m, usageError("--qos: %d is not 0, 1 or 2", f.qos)
	case f.topic == "" && !(f.jsonLines && !cmd.Flags().Changed("topic")):
		return m, usageError("--topic: it is empty")
	case strings.ContainsAny(f.topic, "#+"):
		return m, usageError("--topic: %s: # and + are for subscribing; a message goes to one topic", f.topic)
	}
	if f.correlation != "" {
		m.CorrelationData = []byte(f.correlation)
	}
	for _, u := range f.user {
		name, value, ok := strings.Cut(u, "=")
		if !ok {
			return m, usageError("--user-property: %q is not name=value", u)
		}
		m.User = append(m.User, client.Property{Name: name, Value: value})
	}
	if f.expiry != "" {
		seconds, err := parseExpiry("expiry", f.expiry)
		if err != nil {
			return m, err
		}
		m.Expiry = &seconds
	}
	if f.version == client.V311 {
		for _, name := range []string{"user-property", "expiry", "content-type", "response-topic", "correlation", "text"} {
			if cmd.Flags().Changed(name) {
				return m, usageError("--%s: MQTT 3.1.1 has no properties; use --mqtt 5", name)
			}
		}
	}
	return m, nil
}

// messages returns a function that gives one message after the other, then io.EOF.
func (f *pubFlags) messages(stdin io.Reader, m client.Message) (func() (client.Message, error), error) {
	if f.jsonLines {
		return f.parsed(stdin), nil
	}
	next, err := f.payloads(stdin)
	return func() (client.Message, error) {
		payload, err := next()
		m.Payload = payload
		return m, err
	}, err
}

// parsed reads messages as JSON.
func (f *pubFlags) parsed(stdin io.Reader) func() (client.Message, error) {
	dec := json.NewDecoder(stdin)
	number := 0
	return func() (client.Message, error) {
		number++
		var j jsonLine
		if err := dec.Decode(&j); err == io.EOF {
			return client.Message{}, err
		} else if err != nil {
			return client.Message{}, fmt.Errorf("message %d: %w", number, err)
		}
		m := client.Message{
			Topic: cmp.Or(f.topic, j.Topic), QoS: j.QoS, Retain: j.Retain, Payload: j.PayloadBase64,
			ContentType: j.ContentType, ResponseTopic: j.ResponseTopic, CorrelationData: j.CorrelationData, Expiry: j.Expiry, UTF8: j.UTF8,
		}
		if j.Payload != nil {
			m.Payload = []byte(*j.Payload)
		}
		for _, u := range j.User {
			m.User = append(m.User, client.Property(u))
		}
		if m.Topic == "" || strings.ContainsAny(m.Topic, "#+") || m.QoS > 2 {
			return m, fmt.Errorf("message %d: topic %q, qos %d: no such message can be published", number, m.Topic, m.QoS)
		}
		if f.version == client.V311 && (m.ContentType != "" || m.ResponseTopic != "" || m.CorrelationData != nil || m.Expiry != nil || m.UTF8 || m.User != nil) {
			return m, fmt.Errorf("message %d: MQTT 3.1.1 has no properties; use --mqtt 5", number)
		}
		return m, nil
	}
}

// jsonLine is what --json-lines reads.
type jsonLine struct {
	jsonMessage
	User []userProperty `json:"user_properties"`
}

// userProperty is written as a pair by the API and the store commands, and with names by sub.
type userProperty client.Property

// UnmarshalJSON implements json.Unmarshaler.
func (u *userProperty) UnmarshalJSON(b []byte) error {
	var pair [2]string
	if err := json.Unmarshal(b, &pair); err == nil {
		u.Name, u.Value = pair[0], pair[1]
		return nil
	}
	return json.Unmarshal(b, (*client.Property)(u))
}

// payloads returns a function that gives one payload after the other, then io.EOF.
func (f *pubFlags) payloads(stdin io.Reader) (func() ([]byte, error), error) {
	if f.lines {
		in := bufio.NewReaderSize(stdin, 64<<10)
		return func() ([]byte, error) {
			line, err := in.ReadBytes('\n')
			if err != nil && (err != io.EOF || len(line) == 0) { // the last line may lack its end
				return nil, err
			}
			return bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r")), nil
		}, nil
	}
	payload := []byte(f.message)
	var err error
	switch f.file {
	case "":
	case "-":
		payload, err = io.ReadAll(stdin)
	default:
		payload, err = os.ReadFile(f.file)
	}
	if err != nil {
		return nil, err
	}
	sent := false
	return func() ([]byte, error) {
		if sent {
			return nil, io.EOF
		}
		sent = true
		return payload, nil
	}, nil
}

// publishAll sends the payloads in order, many under way at a time, and waits for every answer.
func publishAll(ctx context.Context, c client.Client, next func() (client.Message, error)) error {
	// The window of the client bounds what is under way; this only bounds what waits here to be looked at.
	tokens := make(chan *client.Token, 1024)
	var acked int
	var failed error
	collected := make(chan struct{})
	sending, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		defer close(collected)
		for t := range tokens {
			// Not sending: what is under way when a signal comes still gets its answer.
			if err := t.Wait(context.Background()); err != nil && failed == nil {
				failed = err
				stop()
			} else if err == nil {
				acked++
			}
		}
	}()
	sendErr := send(sending, c, next, tokens)
	close(tokens)
	<-collected
	err := failed
	if err == nil {
		err = sendErr
	}
	if err == nil {
		return nil
	}
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		err = errors.New("interrupted")
	}
	if acked > 0 {
		return fmt.Errorf("%w (acknowledged before it: %d)", err, acked)
	}
	return err
}

func send(ctx context.Context, c client.Client, next func() (client.Message, error), tokens chan<- *client.Token) error {
	type read struct {
		message client.Message
		err     error
	}
	reads := make(chan read)
	go func() { // reading a terminal cannot be interrupted; this goroutine may outlive send
		for {
			m, err := next()
			select {
			case reads <- read{m, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	for {
		select {
		case r := <-reads:
			if r.err == io.EOF {
				return nil
			}
			if r.err != nil {
				return fmt.Errorf("read messages: %w", r.err)
			}
			token, err := c.Publish(ctx, r.message)
			if err != nil {
				return err
			}
			tokens <- token
		case <-c.Done():
			return c.Err()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
