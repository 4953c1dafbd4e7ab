package packet

// Split looks at the start of b, which may hold less or more than one frame. size is the length of the whole
// first frame, 0 if more bytes are needed to know it; header is the length of its fixed header. max bounds
// size (0 or less: no limit): a frame over it is ErrTooLarge as soon as its header is there. Version 0 admits
// nothing but CONNECT [MQTT-3.1.0-1].
//
// In version 3.1 SUBSCRIBE, UNSUBSCRIBE and PUBREL may carry DUP (flags 0x0A); later versions forbid it.
func Split(b []byte, v Version, max int) (size, header int, err error) { panic("todo") }

// Check validates a client's frame of any type completely. Version 0 admits nothing but CONNECT.
func Check(v Version, frame []byte) error { panic("todo") }
