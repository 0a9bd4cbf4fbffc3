package gateway

import (
	"context"
	"net"
	"strconv"
	"time"
)

// notifier tells the service manager how the gateway is (sd_notify(3)). Without a
// manager that asks for it, it does nothing.
type notifier struct {
	socket string
	every  time.Duration // of the watchdog; 0 is none
}

func newNotifier(getenv func(string) string) notifier {
	n := notifier{socket: getenv("NOTIFY_SOCKET")}
	if us, err := strconv.ParseInt(getenv("WATCHDOG_USEC"), 10, 64); err == nil && us > 0 {
		n.every = time.Duration(us) * time.Microsecond / 3
	}
	return n
}

// say sends one message. A manager that does not hear it can't be told so.
func (n notifier) say(state string) {
	if n.socket == "" {
		return
	}
	// A name that begins with @ is one of the abstract name space.
	conn, err := net.Dial("unixgram", n.socket)
	if err != nil {
		return
	}
	defer conn.Close()
	_, _ = conn.Write([]byte(state))
}

// watch tells the manager that the gateway works, for as long as ok says so and
// until ctx ends.
func (n notifier) watch(ctx context.Context, ok func(context.Context) bool) {
	if n.socket == "" || n.every == 0 {
		return
	}
	tick := time.NewTicker(n.every)
	defer tick.Stop()
	for {
		if ok(ctx) {
			n.say("WATCHDOG=1")
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
