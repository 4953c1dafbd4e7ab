package store

import "errors"

var (
	// ErrLocked means that another process has the data directory open.
	ErrLocked = errors.New("store: data directory is locked by another process")
	// ErrFull means that the disk is full or too low for durable appends. Reads go on, and appends
	// work again once there is room.
	ErrFull = errors.New("store: disk full")
	// ErrFailed means that a write or sync failed and the store stopped taking appends for good:
	// what the disk holds is known again only after a restart.
	ErrFailed = errors.New("store: failed")
	// ErrClosed means that the store has been told to stop.
	ErrClosed = errors.New("store: closed")
	// ErrTooLarge means that the messages of one Append do not fit one commit group.
	ErrTooLarge = errors.New("store: append too large")
	// ErrVersion means that the data were written by a newer version of edgemq.
	ErrVersion = errors.New("store: data written by a newer version")
	// ErrDamaged means that Verify found damage.
	ErrDamaged = errors.New("store: damaged data")
)
