package config

import (
	"time"

	"github.com/edgemq/edgemq/broker/feed"
	"github.com/edgemq/edgemq/store"
)

// key is one setting.
type key struct {
	name  string            // path in the YAML file; the environment variable follows from it
	def   string            // the default, as YAML
	rule  rule              // what it may be
	field func(*Config) any // where it goes: a pointer into the Config
	doc   string
}

const (
	kib = 1 << 10
	mib = 1 << 20
	gib = 1 << 30
	tib = 1 << 40

	day = 24 * time.Hour
)

// keys is the reference of all settings, in the order of config.yaml.
var keys = []key{
	{
		"listeners", "[{name: tcp, type: tcp, address: '127.0.0.1:1883'}]",
		list[Listener]{keys: listenerKeys, like: `[{name: tcp, address: "127.0.0.1:1883"}]`, atLeast: 1, unique: "name"},
		func(c *Config) any { return &c.Listeners },
		"Where clients connect. An address other machines can reach needs users, certificates of clients, or auth.anonymous: true.",
	},
	{
		"data", "./data",
		text{want: "a directory", check: notEmpty},
		func(c *Config) any { return &c.Data },
		"The data directory. It is created if it does not exist; one broker at a time may use it.",
	},
	{
		"auth.anonymous", "auto",
		words{AnonymousAuto, AnonymousLoopback, AnonymousTrue, AnonymousFalse},
		func(c *Config) any { return &c.Auth.Anonymous },
		"Who may connect without a user's name. loopback: anybody on a listener that only this machine can reach, and\n" +
			"whoever a listener demands a certificate of. true: anybody. false: nobody. auto: nobody once there are users\n" +
			"(users_file, or tls_identity: cn), else as loopback.",
	},
	{
		"auth.users_file", "''",
		anyText,
		func(c *Config) any { return &c.Auth.UsersFile },
		"Users and their passwords; edgemq passwd writes it. Read again at SIGHUP (docs/OPERATIONS.md).",
	},
	{
		"auth.acl_file", "''",
		anyText,
		func(c *Config) any { return &c.Auth.ACLFile },
		"Rules about who may publish and subscribe to what; without it, everybody to everything. Read again at SIGHUP.",
	},
	{
		"auth.tls_identity", "none",
		words{IdentityNone, IdentityCN},
		func(c *Config) any { return &c.Auth.TLSIdentity },
		"cn: the common name in a client's certificate is its user's name, and no password is needed. none: it means nothing.",
	},
	{
		"auth.client_ids", "owner",
		words{"owner", "name", "any"},
		func(c *Config) any { return &c.Auth.ClientIDs },
		"Who may use a client id. owner: while it has a session, the user whose session that is; one of no user is anybody's.\n" +
			"name: likewise, and a user's client ids are its name, or begin with it and one of \"-_.:/\". any: whoever comes takes over.",
	},
	{
		"log.level", "info",
		words{"debug", "info", "warn", "error"},
		func(c *Config) any { return &c.Log.Level },
		"The least important lines that are logged.",
	},
	{
		"log.format", "text",
		words{"text", "json"},
		func(c *Config) any { return &c.Log.Format },
		"How log lines look, on standard error.",
	},
	{
		"store.sync", "always",
		words{"always", "interval", "none"},
		func(c *Config) any { return &c.Store.Sync },
		"What a PUBACK means. always: the message is on disk (fdatasync). interval: it has been written and is\n" +
			"synced within store.sync_interval; a power cut may take back that much, a crash of edgemq nothing.\n" +
			"none: written, and synced at checkpoints only.",
	},
	{
		"store.sync_interval", "100ms",
		span{time.Millisecond, time.Minute, false},
		func(c *Config) any { return &c.Store.SyncInterval },
		"How often store.sync: interval syncs.",
	},
	{
		"store.journal_file", "64MiB",
		size{4 * mib, store.MaxFileBytes, false},
		func(c *Config) any { return &c.Store.JournalFile },
		"Size of one journal file. Files are made in advance and used again.",
	},
	{
		"store.checkpoint_bytes", "256MiB",
		size{4 * mib, 64 * gib, false},
		func(c *Config) any { return &c.Store.CheckpointBytes },
		"Checkpoint after so many bytes of journal. It bounds the work of the next start.",
	},
	{
		"store.checkpoint_interval", "30s",
		span{time.Second, day, false},
		func(c *Config) any { return &c.Store.CheckpointInterval },
		"And at least this often while anything has changed.",
	},
	{
		"store.segment_bytes", "64MiB",
		size{mib, store.MaxFileBytes, false},
		func(c *Config) any { return &c.Store.SegmentBytes },
		"A client's segment file is sealed at this size. Retention deletes whole sealed segments.",
	},
	{
		"store.shared_below", "64KiB",
		size{1, gib, false},
		func(c *Config) any { return &c.Store.SharedBelow },
		"Clients that have written less and have no persistent session share segment files.",
	},
	{
		"store.tail_bytes", "32MiB",
		size{mib, 64 * gib, false},
		func(c *Config) any { return &c.Store.TailBytes },
		"The newest messages kept in memory for consumers that keep up.",
	},
	{
		"store.cache_bytes", "32MiB",
		size{mib, 64 * gib, false},
		func(c *Config) any { return &c.Store.CacheBytes },
		"Cache of blocks read from disk, shared by all consumers that have fallen behind.",
	},
	{
		"store.min_free", "64MiB",
		size{mib, 64 * tib, false},
		func(c *Config) any { return &c.Store.MinFree },
		"With less free disk space than this, publishes of QoS 1 and 2 are refused until there is room.\n" +
			"Consumers go on.",
	},
	{
		"store.qos0", "true",
		boolean{},
		func(c *Config) any { return &c.Store.QoS0 },
		"Store QoS 0 messages too (they never wait for the disk). false: they go to live subscribers only.",
	},
	{
		"store.exclude", "[]",
		texts{want: "topic filters", like: "video/#, +/debug", check: checkFilter},
		func(c *Config) any { return &c.Store.Exclude },
		"Topic filters that nobody wants kept: what matches goes to live subscribers only, at any QoS.",
	},
	{
		"retention.age", "0",
		span{time.Second, 100 * 365 * day, true},
		func(c *Config) any { return &c.Retention.Age },
		"Delete messages older than this. 0 keeps them. What a queue or a persistent session has yet to\n" +
			"deliver is kept in any case.",
	},
	{
		"retention.bytes", "0",
		size{mib, 1 << 60, true},
		func(c *Config) any { return &c.Retention.Bytes },
		"Delete the oldest messages when segments hold more bytes than this. 0 keeps them.",
	},
	{
		"retention.topics", "[]",
		list[TopicRetention]{keys: topicRetentionKeys, like: "[{filter: raw/#, age: 1d}]"},
		func(c *Config) any { return &c.Retention.Topics },
		"Ages for topics that differ from retention.age; the first filter that matches counts. age: 0 keeps.",
	},
	{
		"topics", "[]",
		list[Topic]{keys: topicKeys, like: "[{filter: sensors/#, max_messages: 100}]", whole: checkTopic},
		func(c *Config) any { return &c.Topics },
		"What is kept of which topics: of each topic that a filter matches, by itself. The first filter that matches\n" +
			"counts (docs/OPERATIONS.md). Limits count stored messages only, and do not concern retained ones.",
	},
	{
		"session.max_expiry", "0",
		span{time.Second, maxExpiry, true},
		func(c *Config) any { return &c.Session.MaxExpiry },
		"The longest session expiry a client may have. 0: what it asks for. Longer wishes are shortened, and\n" +
			"the CONNACK says so.",
	},
	{
		"session.v3_expiry", "0",
		span{time.Second, maxExpiry, true},
		func(c *Config) any { return &c.Session.V3Expiry },
		"How long an MQTT 3.1.1 session with clean session = 0 is kept while offline. 0: for ever.",
	},
	{
		"session.window", "1024",
		number{1, 65535},
		func(c *Config) any { return &c.Session.Window },
		"Messages in flight to an MQTT 3.1.1 client.",
	},
	{
		"session.max_window", "1024",
		number{1, 65535},
		func(c *Config) any { return &c.Session.MaxWindow },
		"Messages in flight to an MQTT 5 client, whose Receive Maximum may ask for fewer.",
	},
	{
		"session.window_bytes", "8MiB",
		size{64 * kib, 4 * gib, false},
		func(c *Config) any { return &c.Session.WindowBytes },
		"Bytes in flight to one client.",
	},
	{
		"session.max_lag.bytes", "1GiB",
		size{64 * kib, 1 << 60, true},
		func(c *Config) any { return &c.Session.MaxLag.Bytes },
		"How far a clean session may fall behind before it skips to now (QoS 0) or is disconnected (QoS 1, 2).\n" +
			"0: no bound. Persistent sessions and queues are never cut off.",
	},
	{
		"session.max_lag.time", "1h",
		span{time.Second, 365 * day, true},
		func(c *Config) any { return &c.Session.MaxLag.Time },
		"The same by the age of the oldest message not yet sent. 0: no bound.",
	},
	{
		"dedup.window", "2m",
		span{time.Second, 30 * day, true},
		func(c *Config) any { return &c.Dedup.Window },
		"How long a publisher's @MessageIds are remembered: a second publish with one is acknowledged and not\n" +
			"stored. They are read back from the log at a start. 0: they mean nothing.",
	},
	{
		"dedup.per_client", "65536",
		number{1, 100_000_000},
		func(c *Config) any { return &c.Dedup.PerClient },
		"How many of one client, the newest ones: at least as many as can be unacknowledged. Each takes about 200 bytes of memory.",
	},
	{
		"dedup.total", "1000000",
		number{1, 1_000_000_000},
		func(c *Config) any { return &c.Dedup.Total },
		"How many of all clients.",
	},
	{
		"queue.auto_create", "true",
		boolean{},
		func(c *Config) any { return &c.Queue.AutoCreate },
		"A queue comes into being when somebody first publishes to it, attaches to it or binds a topic to it.\n" +
			"false: only the queues listed below exist.",
	},
	{
		"queues", "[]",
		list[Queue]{keys: queueKeys, whole: checkQueue, like: "[{name: orders, topics: [shop/+/order]}]", unique: "name"},
		func(c *Config) any { return &c.Queues },
		"Queues that exist from the start, each with the topic filters bound to it. Removing one here neither\n" +
			"deletes the queue nor unbinds its topics. What edgemq queue set says of a queue counts over what is here.",
	},
	{
		"limits.connect_timeout", "10s",
		span{100 * time.Millisecond, 10 * time.Minute, false},
		func(c *Config) any { return &c.Limits.ConnectTimeout },
		"A connection that has not sent a complete CONNECT by then is closed.",
	},
	{
		"limits.max_packet", "1MiB",
		size{kib, 256*mib - 1, false},
		func(c *Config) any { return &c.Limits.MaxPacket },
		"The largest packet a client may send; announced to MQTT 5 clients.",
	},
	{
		"limits.max_qos", "2",
		number{0, 2},
		func(c *Config) any { return &c.Limits.MaxQoS },
		"The highest QoS of publishes and of subscriptions; announced to MQTT 5 clients. A publish above it ends the connection,\n" +
			"a subscription is granted less.",
	},
	{
		"limits.retain", "true",
		boolean{},
		func(c *Config) any { return &c.Limits.Retain },
		"false: a publish with RETAIN ends the connection, and retained messages are not sent; announced to MQTT 5 clients.",
	},
	{
		"limits.max_topic_levels", "128",
		number{1, 65535},
		func(c *Config) any { return &c.Limits.MaxTopicLevels },
		"Levels a topic or filter may have.",
	},
	{
		"limits.max_topic_bytes", "8192",
		number{16, 16384},
		func(c *Config) any { return &c.Limits.MaxTopicBytes },
		"Bytes a topic or filter may have.",
	},
	{
		"limits.receive_maximum", "1024",
		number{1, 65535},
		func(c *Config) any { return &c.Limits.ReceiveMaximum },
		"Unacknowledged QoS 1 and 2 publishes a client may have; announced to MQTT 5 clients.",
	},
	{
		"limits.topic_aliases", "64",
		number{0, 65535},
		func(c *Config) any { return &c.Limits.TopicAliases },
		"Topic aliases an MQTT 5 client may use in its publishes; announced to it. 0: none.",
	},
	{
		"limits.keep_alive_max", "0",
		span{time.Second, 65535 * time.Second, true},
		func(c *Config) any { return &c.Limits.KeepAliveMax },
		"The longest keep alive an MQTT 5 client may have; told to it as Server Keep Alive. 0: what it asks for.",
	},
	{
		"limits.max_connections", "0",
		number{0, 10_000_000},
		func(c *Config) any { return &c.Limits.MaxConnections },
		"Connections over all listeners. 0: as many as the system gives.",
	},
	{
		"admin.listen", "127.0.0.1:18830",
		text{want: "host:port, as in 127.0.0.1:18830, or off", check: checkAdmin},
		func(c *Config) any { return &c.Admin.Listen },
		"Where the HTTP API for tools and people is served: queues, messages, sessions, health, metrics\n" +
			"(docs/OPERATIONS.md). An address other machines can reach needs admin.token. off: none.",
	},
	{
		"admin.socket", "admin.sock",
		text{want: "a path or off", check: notEmpty},
		func(c *Config) any { return &c.Admin.Socket },
		"A unix socket for the same, by which the tools of the same user find the broker; relative to data. It needs\n" +
			"no token. off: none.",
	},
	{
		"admin.token", "''",
		text{want: "a text", check: func(string) error { return nil }},
		func(c *Config) any { return &c.Admin.Token },
		"What requests must bring, as Authorization: Bearer <token>; health checks need none. Empty: nothing.",
	},
	{
		"sys.interval", "10s",
		span{100 * time.Millisecond, time.Hour, true},
		func(c *Config) any { return &c.Sys.Interval },
		"How often statistics are made, and published under $SYS/broker/ if somebody listens. 0: never.",
	},
	{
		"shutdown.timeout", "10s",
		span{100 * time.Millisecond, 10 * time.Minute, false},
		func(c *Config) any { return &c.Shutdown.Timeout },
		"How long a clean stop waits for clients to take the acknowledgements of what was accepted.",
	},
}

// maxExpiry is the longest a Session Expiry Interval can say; one second more means for ever.
const maxExpiry = (1<<32 - 2) * time.Second

var topicRetentionKeys = []itemKey[TopicRetention]{
	{"filter", "", text{want: "a topic filter, as in sensors/+/raw", check: checkFilter}, func(r *TopicRetention) any { return &r.Filter }, "topic filter", nil},
	{"age", "", span{time.Second, 100 * 365 * day, true}, func(r *TopicRetention) any { return &r.Age }, "0: kept", nil},
}

var topicKeys = []itemKey[Topic]{
	{"filter", "", text{want: "a topic filter, as in sensors/+/raw", check: checkFilter}, func(t *Topic) any { return &t.Filter }, "topic filter", nil},
	{"store", "true", boolean{}, func(t *Topic) any { return &t.Store }, "false: messages go to live subscribers only, as with store.exclude", nil},
	{"keep", "all", words{"all", "last"}, func(t *Topic) any { return &t.Keep }, "all, or last: of each topic only the newest message", nil},
	{"max_age", "0", span{time.Second, 100 * 365 * day, true}, func(t *Topic) any { return &t.MaxAge }, "older messages are dropped; 0: what retention says", nil},
	{"max_bytes", "0", size{kib, 1 << 50, true}, func(t *Topic) any { return &t.MaxBytes }, "of a topic's messages, with 44 each for their headers; 0: any number", nil},
	{"max_messages", "0", number{0, feed.MostMessages}, func(t *Topic) any { return &t.MaxMessages }, "of a topic; 0: any number", nil},
	{"overflow", "drop_oldest", words{"drop_oldest", "reject"}, func(t *Topic) any { return &t.Overflow }, "drop_oldest, or reject what would be too much", nil},
	{"protect", "true", boolean{}, func(t *Topic) any { return &t.Protect }, "false: also what a queue or a persistent session has yet to deliver is dropped", nil},
}

// checkTopic says what does not go together.
func checkTopic(t *Topic) []Problem {
	switch {
	case t.Keep == "last" && (t.MaxMessages > 0 || t.MaxBytes > 0):
		return []Problem{{Key: ".keep", Message: "last keeps one message of each topic, so max_messages and max_bytes mean nothing"}}
	case !t.Store && (t.Keep == "last" || t.MaxMessages > 0 || t.MaxBytes > 0 || t.MaxAge > 0):
		return []Problem{{Key: ".store", Message: "false stores nothing, so keep, max_age, max_messages and max_bytes mean nothing"}}
	}
	return nil
}

func checkQueue(q *Queue) []Problem {
	if q.DeadLetter == q.Name {
		return []Problem{{Key: ".dead_letter", Message: "a queue cannot be its own dead letter queue: leave it out, or name another"}}
	}
	return nil
}

var queueKeys = []itemKey[Queue]{
	{"name", "", text{want: "1 to 128 of A-Z a-z 0-9 _ . -", check: checkQueueName}, func(q *Queue) any { return &q.Name }, "clients use $queue/<name>", nil},
	{"topics", "[]", texts{want: "topic filters", like: "video/#, +/debug", check: checkFilter}, func(q *Queue) any { return &q.Topics }, "topic filters bound to it", nil},
	{"max_in_flight", "0", number{0, feed.MostInFlight}, func(q *Queue) any { return &q.MaxInFlight }, "unacknowledged messages of one consumer; 0: its window", nil},
	{"max_deliveries", "5", number{0, feed.MostDeliveries}, func(q *Queue) any { return &q.MaxDeliveries }, "a message refused so often goes to the dead letters; 0: never", nil},
	{"retry_delay", "[1s, 2s, 4s, 8s]", texts{want: "durations", like: "1s, 1m", check: checkRetryDelay, least: 1, most: feed.MostRetryDelays}, func(q *Queue) any { return &q.RetryDelay }, "after the first, second, ... refusal", nil},
	{"dead_letter", "''", text{want: "a queue's name, or nothing", check: checkDeadLetter}, func(q *Queue) any { return &q.DeadLetter }, "queue for dead letters; empty: <name>-dead", nil},
	{"ordered", "false", boolean{}, func(q *Queue) any { return &q.Ordered }, "a refused message holds back the later ones of its key", nil},
	{"exclusive", "false", boolean{}, func(q *Queue) any { return &q.Exclusive }, "one consumer at a time; the others stand by, first come, first served", nil},
	{"ack_timeout", "0", span{feed.LeastAckTimeout, feed.MostAckTimeout, true}, func(q *Queue) any { return &q.AckTimeout }, "a consumer that keeps a message longer is disconnected; 0: never", nil},
	{"max_messages", "0", number{0, feed.MostMessages}, func(q *Queue) any { return &q.MaxMessages }, "that may wait; 0: any number", nil},
	{"max_bytes", "0", size{feed.LeastBytes, feed.MostBytes, true}, func(q *Queue) any { return &q.MaxBytes }, "that may wait; 0: any number", nil},
	{"max_age", "0", span{feed.LeastAge, feed.MostAge, true}, func(q *Queue) any { return &q.MaxAge }, "older messages are dropped; 0: none", nil},
	{"overflow", "drop_oldest", words{"drop_oldest", "reject"}, func(q *Queue) any { return &q.Overflow }, "drop_oldest, or reject what is sent to the queue itself", nil},
}
