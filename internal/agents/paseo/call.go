package paseo

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"reflect"
	"strings"
	"time"
)

// fields are the members of a request; those that are absent are left out.
type fields map[string]any

// absent marks a member that is left out.
type absent struct{}

func omitZero(v any) any {
	if reflect.ValueOf(v).IsZero() {
		return absent{}
	}
	return v
}

// encode writes the session envelope around a request.
func encode(kind, requestID string, f fields) ([]byte, error) {
	message := fields{"type": kind}
	maps.Copy(message, f)
	if requestID != "" {
		message["requestId"] = requestID
	}
	maps.DeleteFunc(message, dropped)
	for key, value := range message {
		if inner, ok := value.(fields); ok {
			kept := maps.Clone(inner)
			maps.DeleteFunc(kept, dropped)
			message[key] = kept
		}
	}
	return json.Marshal(fields{"type": "session", "message": message})
}

func dropped(_ string, v any) bool { _, gone := v.(absent); return gone }

// call sends a request over the present connection and waits for its answer's
// payload, at most CallTimeout when ctx has no deadline.
func (c *Client) call(ctx context.Context, kind string, f fields) (json.RawMessage, error) {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.o.CallTimeout)
		defer cancel()
	}
	cn, err := c.ready(ctx)
	if err != nil {
		return nil, err
	}
	return cn.call(ctx, kind, f)
}

// act is a call whose answer is {accepted, error}.
func (c *Client) act(ctx context.Context, kind string, f fields) error {
	payload, err := c.call(ctx, kind, f)
	if err != nil {
		return notFoundAs(err)
	}
	var w struct {
		Accepted lenient[bool] `json:"accepted"`
		Error    text          `json:"error"`
	}
	if json.Unmarshal(payload, &w) != nil {
		return unreadable("acknowledgement")
	}
	if w.Error != "" || w.Accepted.set && !w.Accepted.v {
		return notFoundAs(rejected(string(w.Error), ""))
	}
	return nil
}

// ready returns the connection, waiting a little for one that is being made, and
// asking for a new attempt if the last was not just now.
func (c *Client) ready(ctx context.Context) (*conn, error) {
	wait := time.NewTimer(c.o.ConnectWait)
	defer wait.Stop()
	for asked := false; ; asked = true {
		c.mu.Lock()
		cn, status, pinned, changed := c.conn, c.status, c.pinned, c.changed
		c.mu.Unlock()
		if cn != nil {
			return cn, nil
		}
		if status.Code == IdentityDiffers && status.Found != nil {
			return nil, &IdentityChanged{Pinned: pinned, Found: status.Found.ServerID}
		}
		down := &NotSent{Code: status.Code, Reason: status.Reason}
		if status.State == Down {
			if asked || status.Code == Stopped || c.o.Now().Sub(status.CheckedAt) < time.Second {
				return nil, down
			}
			c.wake()
		}
		select {
		case <-changed:
		case <-wait.C:
			return nil, down
		case <-ctx.Done():
			down.cause = context.Cause(ctx)
			return nil, down
		}
	}
}

// checkFeature refuses what the daemon does not offer, before anything is sent.
func (c *Client) checkFeature(ctx context.Context, has func(ServerInfo) bool, feature string) error {
	cn, err := c.ready(ctx)
	if err != nil {
		return err
	}
	if !has(cn.info) {
		return &Unsupported{Feature: feature, Version: cn.info.Version}
	}
	return nil
}

// checkKey refuses a key that the daemon would silently ignore.
func (c *Client) checkKey(ctx context.Context, key string, has func(ServerInfo) bool, feature string) error {
	if key == "" {
		return nil
	}
	if len([]rune(key)) > 512 {
		return refuse("An idempotency key has at most 512 characters.")
	}
	return c.checkFeature(ctx, has, feature)
}

// unsupportedAs turns "unknown request" into Unsupported, for requests whose
// arguments can't be what the daemon doesn't know.
func (c *Client) unsupportedAs(err error, feature string) error {
	if !RejectedAs(err, CodeUnknownSchema) {
		return err
	}
	info, _ := c.Info()
	return &Unsupported{Feature: feature, Version: info.Version}
}

// rejected is the daemon's no. Its own codes for receipts may stand in the text.
func rejected(message, code string) error {
	for _, known := range []string{CodeKeyConflict, CodeOutcomeUnknown, CodeNotAccepted} {
		if strings.Contains(message, known) {
			code = known
		}
	}
	if code == CodeOutcomeUnknown {
		return &Lost{Reason: "The daemon stopped half-way through this request and does not know what became of it.", Code: code}
	}
	return &Rejected{Message: message, Code: code}
}

// unreadable is an answer that makes no sense: what was asked may have been done.
func unreadable(what string) error {
	return &Lost{Reason: "The daemon answered with something that is no " + what + "."}
}

// pageOf checks a page's size and place.
func pageOf(limit int, cursor string) (fields, error) {
	if limit < 0 || limit > 200 {
		return nil, refuse("limit must be 1 to 200.")
	}
	if limit == 0 {
		limit = 200
	}
	page := fields{"limit": limit}
	if cursor != "" {
		page["cursor"] = cursor
	}
	return page, nil
}

// decodeEntries reads {entries, pageInfo}; a page without a list is no page.
func decodeEntries(payload []byte, what string) (entries []json.RawMessage, next string, err error) {
	var w struct {
		Entries  lenient[[]json.RawMessage] `json:"entries"`
		PageInfo lenient[struct {
			NextCursor text          `json:"nextCursor"`
			HasMore    lenient[bool] `json:"hasMore"`
		}] `json:"pageInfo"`
		Error text `json:"error"`
	}
	if json.Unmarshal(payload, &w) != nil {
		return nil, "", unreadable(what)
	}
	if w.Error != "" {
		return nil, "", rejected(string(w.Error), "")
	}
	if !w.Entries.set || w.Entries.v == nil {
		return nil, "", unreadable(what)
	}
	info := w.PageInfo.v
	if info.HasMore.set && !info.HasMore.v {
		info.NextCursor = ""
	}
	return w.Entries.v, string(info.NextCursor), nil
}

// asRPCError reads an rpc_error payload.
func asRPCError(payload []byte) (requestID string, err error) {
	var w struct {
		RequestID text `json:"requestId"`
		Error     text `json:"error"`
		Code      text `json:"code"`
	}
	if json.Unmarshal(payload, &w) != nil {
		return "", errors.New("unreadable rpc_error")
	}
	return string(w.RequestID), rejected(string(w.Error), string(w.Code))
}
