// Package sdk is the Go client library of edgemq.
//
// A [Client] is a connection to one broker that is kept up. On it one makes
//
//   - a [Producer]: sends messages to topics and queues; Send returns when the broker has them on disk,
//   - a [PullConsumer]: attaches to a queue and polls, from where it or a predecessor left off,
//   - a [PushConsumer]: the same with a handler that is called, in parallel for messages of different keys,
//   - subscriptions and replays of topics, and requests with replies.
//
// [Brokers] are several of them, found by a [Discovery]; a producer made there goes on when a broker fails.
//
// It speaks MQTT 3.1.1. eclipse/paho.mqtt.golang connects, authenticates, subscribes and keeps the connection
// alive; PUBLISH and PUBACK are handled on the socket beneath it (see socket.go), because paho completes a
// publish it never saw acknowledged, drops acknowledgements after a reconnect, and costs several goroutine
// switches a message. Headers and properties travel in the property block of MQTT 5, in front of the payload:
// the package publishes and subscribes under $v5/, MQTT 5 clients see the same as user properties, and plain
// 3.1.1 clients see the body alone.
//
// What is promised: a message whose Send returned nil is on the broker's disk, at the offset that its [Result] says. One whose Send
// failed has a [*SendError] that says whether it was sent at all. A message is given up if its context ends, its client is closed, or
// the broker refuses it, and for nothing else. Messages of one producer to one topic or queue keep their
// order, also over lost connections. A consumer is not shown a message again because a connection was lost.
package sdk
