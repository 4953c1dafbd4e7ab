// Package poll is a loop around epoll for connections that mostly wait: it accepts them, and tells a Guest when its client has sent
// something. What waits in it is an entry in a table of the kernel's and a Socket, and no goroutine.
//
// Go's own poller does that for everybody, by making a goroutine ready. To this belong a thread to run it, another one that is woken to
// see whether there is more to do, and a stack for as long as the connection lasts. A Loop is one goroutine that waits in the kernel
// and calls guests from where it wakes up. So a client that comes, says CONNECT and SUBSCRIBE, and is silent from then on, is
// seen in without anybody else being woken.
//
// A Socket is read by one at a time:
//
//	           ┌─────────┐   Ready    ┌───────┐  Leave, and go    ┌───────────┐
//	accept ───▶│  Loop   │───────────▶│ Guest │──────────────────▶│ goroutine │ uses it as any net.Conn
//	           │         │◀───────────│       │                   │           │
//	           └─────────┘  returns   └───────┘                   └───────────┘
//	             ▲     ▲                  │ Leave, and Close            │   │
//	             │     └──────────────────┴─────────────────────────────┘   │
//	             │       Close: the loop reads on for a moment, see linger  │
//	             └──────────────────────────────────────────────────────────┘
//	                                         Park
//
// To write, to close and to set deadlines is anybody's at any time. The loop alone closes descriptors, and it ends with the last of them: so nothing that is
// handed to it is lost. Go's poller hears of a Socket when somebody first has to wait for it outside the loop.
//
// A Guest must not wait: while it does, nobody is accepted and nobody heard.
package poll

import "time"

// Guest is who a Socket is for.
type Guest interface {
	// Ready is called by the loop when there is something to read, the other side has gone, the time set by Socket.Until is over, or
	// somebody wants the reader to look up (a read deadline in the past). A guest that does not stay calls Leave.
	Ready(now time.Time)
}
