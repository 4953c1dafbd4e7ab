// Package store keeps every message edgemq acknowledged, in arrival order, and the small durable
// state of the broker beside it. It knows nothing of MQTT connections.
//
// What lies in the data directory:
//
//	LOCK                one process at a time
//	journal/NNN.jrn     commit groups {records, mutations, CRC-32C}; one fdatasync a group
//	segments/<client>/  every publish of that client; segments/shared/ for clients that wrote little
//	ledger/NNN.ldg      one entry a record, by offset: where it is, and enough to choose without reading it
//	index/NNN.idx       where the records of a topic and of a key are; made from the others
//	state.db            mutations up to the last checkpoint, the table of segments, the checkpoint
//	names               the names of topics and clients once more, for Salvage
//	damaged/            bytes of the journal that recovery had to set aside
//
// A message's life: Append encodes it into the open group; the committer writes the group to the journal,
// syncs, publishes it to the tail and answers; the flusher copies it from the tail to a segment and the ledger;
// a checkpoint makes those durable and lets the journal be recycled; the index takes it in; retention deletes the segment.
// docs/ARCHITECTURE.md has the picture.
package store
