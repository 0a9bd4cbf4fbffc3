package gateway

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/coder/websocket"

	"agentrelay/internal/devices"
	"agentrelay/internal/devices/wire"
)

// buildDevices makes the devices; none may come before [devices.Service.Start].
func (g *Gateway) buildDevices() {
	g.devices = devices.New(devices.Options{
		Store: g.store, URL: deviceURL(g.config.PublicBaseURL), Now: g.now, Rand: g.rand, Log: g.log,
	})
}

// deviceURL is what devices of a gateway at base dial.
func deviceURL(base string) string {
	return "ws" + strings.TrimPrefix(base, "http") + wire.Path
}

// acceptDevice serves GET /device: it upgrades to a websocket and gives it to the
// devices. There is no bearer token here, for a device proves itself by its first
// frame. Browsers send Origin and devices do not, so a page that is not trusted is
// turned away.
func (g *Gateway) acceptDevice(w http.ResponseWriter, r *http.Request) {
	trusted := newGuard(g.config)
	for _, origin := range r.Header["Origin"] {
		if !trusted.originAllowed(origin) {
			refuse(w, r, http.StatusForbidden, originNotAllowed.New("This web page may not connect as a device."))
			return
		}
	}
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", "websocket")
		refuse(w, r, http.StatusUpgradeRequired, notAWebsocket.New("Devices connect here with a websocket."))
		return
	}
	retry := linkDevice(g.devices, w, r)
	if retry > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int((retry+time.Second-1)/time.Second)))
		refuse(w, r, http.StatusServiceUnavailable, notReady.New("Too many devices connect at once, or the gateway is stopping."))
	}
}

// linkDevice accepts a websocket as the link of a device, and returns while it is
// served. It answers nothing when there is no room and says when to try again.
func linkDevice(d *devices.Service, w http.ResponseWriter, r *http.Request) (retryAfter time.Duration) {
	leave, retryAfter, ok := d.Admit()
	if !ok {
		return retryAfter
	}
	taken := &hijacked{ResponseWriter: w}
	conn, err := websocket.Accept(taken, r, &websocket.AcceptOptions{InsecureSkipVerify: true, CompressionMode: websocket.CompressionDisabled})
	if err != nil { // and answered
		leave()
		recordOf(r.Context()).refusedAs("not_a_websocket")
		return 0
	}
	conn.SetReadLimit(-1) // the link has its own, which is answered
	d.Serve(socket{conn, taken.conn}, leave)
	return 0
}

// hijacked remembers the connection below a websocket.
type hijacked struct {
	http.ResponseWriter
	conn net.Conn
}

// Hijack implements [http.Hijacker].
func (h *hijacked) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(h.ResponseWriter).Hijack()
	h.conn = conn
	return conn, rw, err
}

// socket is a websocket as devices use it.
type socket struct {
	conn  *websocket.Conn
	below net.Conn
}

// farewell is how long a device has to answer a close frame. The library would wait
// for 5 seconds, and a stop of the gateway with it.
const farewell = 2 * time.Second

var errBinary = errors.New("a frame must be a text message")

// Next implements [devices.Socket].
func (s socket) Next(ctx context.Context) (io.Reader, error) {
	kind, r, err := s.conn.Reader(ctx)
	if err == nil && kind != websocket.MessageText {
		return nil, errBinary
	}
	return r, err
}

// Write implements [devices.Socket].
func (s socket) Write(ctx context.Context, message []byte) error {
	return s.conn.Write(ctx, websocket.MessageText, message)
}

// Ping implements [devices.Socket].
func (s socket) Ping(ctx context.Context) error { return s.conn.Ping(ctx) }

// Close implements [devices.Socket].
func (s socket) Close(code int, reason string) {
	if code == 0 {
		_ = s.conn.CloseNow()
		return
	}
	defer time.AfterFunc(farewell, func() { _ = s.below.Close() }).Stop()
	_ = s.conn.Close(websocket.StatusCode(code), reason) // a socket that is gone is closed
}
