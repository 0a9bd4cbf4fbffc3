package doctor

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/coder/websocket"

	"agentrelay/internal/devices/wire"
)

// silent is how long a link may say nothing: both sides ask each other far more often.
const silent = 3 * time.Minute

func deviceChecks() []check {
	return []check{
		{id: "devices.link", needs: needPublic, budget: 30 * time.Second, why: "Devices dial in with a websocket, which a proxy hands on only when it is told to.", run: checkDeviceLink},
		{id: "devices.connected", needs: needStored, why: "The tools of a device work while it is connected and somebody, or its policy, allows them.", run: checkDevices},
	}
}

func checkDeviceLink(ctx context.Context, v *visit) []finding {
	if !v.config.Tools.Devices {
		return one(skip("tools.devices is off."))
	}
	ctx, cancel := context.WithTimeout(ctx, askBudget)
	defer cancel()
	conn, resp, err := websocket.Dial(ctx, v.config.PublicBaseURL+wire.Path, &websocket.DialOptions{HTTPClient: v.browser})
	if err == nil {
		_ = conn.CloseNow() // a stranger that says nothing
		return one(pass("A websocket gets through to the gateway."))
	}
	f := fail("Have the proxy hand on websockets at "+wire.Path+": nginx needs proxy_http_version 1.1 with Upgrade $http_upgrade and Connection \"upgrade\"; Caddy and tunnels do it by themselves.", "A websocket does not get through: %s", refusedLink(resp, err))
	if len(v.stored().devices) == 0 {
		return one(skip("%s Only devices need it, and none is paired.", f.evidence))
	}
	return one(f)
}

// refusedLink says why in a few words: the library's error repeats headers.
func refusedLink(resp *http.Response, err error) string {
	if resp != nil {
		return "the answer is " + strings.ToLower(http.StatusText(resp.StatusCode)) + "."
	}
	return sentence(err)
}

func checkDevices(_ context.Context, v *visit) []finding {
	if len(v.stored().devices) == 0 {
		return one(skip("No device is paired."))
	}
	if v.running() == nil {
		return one(skip("No gateway runs that devices could be connected to."))
	}
	now := v.o.Now()
	var found []finding
	for _, d := range v.stored().devices {
		const back = "If it should be there: device status on that machine says why it is not. gateway devices revoke ends the access of one that is gone."
		switch {
		case d.Connected && d.SeenAt != nil && now.Sub(d.SeenAt.Time) > silent:
			found = append(found, warn(back, "Connected, but silent for %s.", span(now.Sub(d.SeenAt.Time))).of(d.Name))
		case d.Connected && d.ConnectedAt != nil:
			found = append(found, pass("Connected for %s.", span(now.Sub(d.ConnectedAt.Time))).of(d.Name))
		case d.Connected:
			found = append(found, pass("Connected.").of(d.Name))
		case d.SeenAt != nil:
			found = append(found, warn(back, "Not connected; last seen %s ago.", span(now.Sub(d.SeenAt.Time))).of(d.Name))
		default:
			found = append(found, warn(back, "Not connected since it was paired, %s ago.", span(now.Sub(d.PairedAt.Time))).of(d.Name))
		}
	}
	return found
}
