package devices

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"agentrelay/internal/audit"
	"agentrelay/internal/callerid"
	"agentrelay/internal/devices/wire"
	"agentrelay/internal/fault"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

// watch is those who wait for the end of one call, guarded by the service's mutex.
type watch struct {
	done    chan struct{}
	over    bool
	waiting int
}

// Call makes a call and waits for its end, or with a callId waits for the end of an
// earlier one, in both cases for 45 s at most: then it answers pending. A requestId is
// the caller key of (owner, device): a repeat with the same arguments answers the
// call's present state. A call without one is withdrawn when ctx ends.
//
// Refusals: invalid_arguments, device_not_connected, unknown_device_tool,
// device_args_too_large, device_busy, key_conflict, unknown_device_call, and those that
// end a call.
func (s *Service) Call(ctx context.Context, who principal.Principal, in CallIn) (CallOut, error) {
	if in.CallID != "" {
		return s.outcome(ctx, who, in)
	}
	n, err := s.check(who, in)
	if err != nil {
		return CallOut{}, err
	}
	if in.RequestID == "" { // also when the caller left while the call was being stored
		defer func() {
			if ctx.Err() != nil {
				s.withdraw(n.id, n.device)
			}
		}()
	}
	duplicate := false
	if in.RequestID != "" { // a repeat is answered whether or not its device is there
		if duplicate, err = s.repeats(ctx, &n); err != nil {
			return CallOut{}, err
		}
	}
	if !duplicate {
		if err := s.admit(n); err != nil {
			return CallOut{}, err
		}
		if duplicate, err = s.insert(ctx, who, &n); err != nil {
			return CallOut{}, err
		}
	}
	return s.await(ctx, who.Owner, n.id, duplicate)
}

// outcome answers a callId.
func (s *Service) outcome(ctx context.Context, who principal.Principal, in CallIn) (CallOut, error) {
	if in.Device != "" || in.Tool != "" || len(in.Args) > 0 || in.Reason != "" || in.RequestID != "" {
		return CallOut{}, fault.InvalidArguments.New("callId stands alone: it reads the outcome of an earlier call.")
	}
	return s.await(ctx, who.Owner, in.CallID, false)
}

// check reads the arguments of a new call.
func (s *Service) check(who principal.Principal, in CallIn) (row, error) {
	var missing []string
	for _, a := range []struct{ name, value string }{{"device", in.Device}, {"tool", in.Tool}, {"reason", strings.TrimSpace(in.Reason)}} {
		if a.value == "" {
			missing = append(missing, a.name)
		}
	}
	if len(missing) > 0 {
		return row{}, fault.InvalidArguments.Newf("%s: required unless callId is given.", strings.Join(missing, ", "))
	}
	if n := utf8.RuneCountInString(in.Reason); n > MaxReason {
		return row{}, fault.InvalidArguments.Newf("reason must have 1 to %d characters, it has %d.", MaxReason, n)
	}
	if in.RequestID != "" && !callerid.Valid(in.RequestID) {
		return row{}, fault.InvalidArguments.New("requestId " + callerid.Rule + ".")
	}
	args, err := wire.Canonical(in.Args)
	if err != nil {
		return row{}, fault.InvalidArguments.Newf("%s.", err)
	}
	raw := make([]byte, 16)
	if _, err := io.ReadFull(s.rand, raw); err != nil {
		return row{}, fmt.Errorf("making the id of a call: %w", err)
	}
	n := row{
		id: "call-" + hex.EncodeToString(raw), owner: who.Owner, clientID: who.ClientID, agent: cutText(who.ClientName, maxAgent),
		device: in.Device, tool: in.Tool, requestID: in.RequestID, args: args, argsHash: wire.HashArgs(args), reason: in.Reason,
	}
	if n.requestID == "" {
		n.requestID = n.id
	}
	n.fingerprint = n.print()
	return n, nil
}

// print tells a repeat from another call. The order of names in args is no matter.
func (n row) print() []byte {
	args := []byte(n.args)
	var v any
	d := json.NewDecoder(bytes.NewReader(args))
	d.UseNumber()
	if d.Decode(&v) == nil {
		if sorted, err := json.Marshal(v); err == nil {
			args = sorted
		}
	}
	h := sha256.New()
	for _, f := range [][]byte{[]byte("spooky_call"), []byte(n.device), []byte(n.tool), args, []byte(n.reason)} {
		var size [8]byte
		binary.BigEndian.PutUint64(size[:], uint64(len(f)))
		h.Write(size[:])
		h.Write(f)
	}
	return h.Sum(nil)
}

// repeats looks for a call of the same key, and makes n that call.
func (s *Service) repeats(ctx context.Context, n *row) (found bool, err error) {
	err = store.Read(ctx, s.store, func(r *store.Reader) error {
		stored, there, err := find(r, byRequest, n.owner, n.device, n.requestID)
		if err != nil || !there {
			return err
		}
		found = true
		return n.become(stored)
	})
	return found, err
}

func (n *row) become(stored row) error {
	if !bytes.Equal(stored.fingerprint, n.fingerprint) {
		return fault.KeyConflict.Newf("requestId was used at %s for another call of this device.", at(stored.created).UTC().Format(timeLayout))
	}
	n.id = stored.id
	return nil
}

// admit refuses what the device would not take.
func (s *Service) admit(n row) error {
	o, err := s.tool(n.device, n.tool)
	if err != nil {
		return err
	}
	if err := o.check(n.args); err != nil {
		return fault.InvalidArguments.Newf("%s.", err).WithHint("spooky_schema shows the arguments of this tool; full true gives the whole schema. The device was not asked.")
	}
	f := s.frame(n.call(), true)
	f.DeadlineMs = s.times.Budget.Milliseconds()
	if _, err := wire.Encode(f); err != nil {
		return ArgsTooLarge.Newf("args are too large: a call has at most %d bytes.", wire.MaxFrame)
	}
	return nil
}

// tool finds a tool of a connected device, with the refusals of the specification.
func (s *Service) tool(device, name string) (*offered, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.links[device]
	if l == nil {
		return nil, NotConnected.Newf("device %s is not connected", shown(device))
	}
	names := make([]string, len(l.tools))
	for i, o := range l.tools {
		if o.Name == name {
			return o, nil
		}
		names[i] = o.Name
	}
	has := "it has none"
	if len(names) > 0 {
		has = "it has " + strings.Join(names, ", ")
	}
	return nil, UnknownTool.Newf("device %s has no tool %s: %s", device, shown(name), has)
}

// shown is a caller's name as it may be repeated.
func shown(name string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || r == '"' {
			return '?'
		}
		return r
	}, cutText(name, 64))
}

// insert stores a call and puts it into its lane, unless its key was used meanwhile.
func (s *Service) insert(ctx context.Context, who principal.Principal, n *row) (duplicate bool, err error) {
	type result struct {
		id        string
		duplicate bool
	}
	out, err := store.Write(ctx, s.store, func(tx *store.Tx) (result, error) {
		mine := *n
		stored, there, err := find(tx, byRequest, mine.owner, mine.device, mine.requestID)
		if err != nil {
			return result{}, err
		}
		if there {
			return result{stored.id, true}, mine.become(stored)
		}
		var known bool
		var open int
		err = tx.QueryRow(`SELECT EXISTS (SELECT 1 FROM devices WHERE name = ?1), (SELECT count(*) FROM device_calls WHERE device = ?1 AND ended_at IS NULL)`, mine.device).Scan(&known, &open)
		switch {
		case err != nil:
			return result{}, fmt.Errorf("counting open calls: %w", err)
		case !known:
			return result{}, NotConnected.Newf("device %s is not connected", mine.device)
		case open > MaxQueued:
			return result{}, Busy.Newf("device %s is busy", mine.device)
		}
		mine.created = tx.Now().UnixMilli()
		mine.deadline = mine.created + int64(open+1)*s.times.Budget.Milliseconds() // until it is sent
		if err := insert(tx, mine); err != nil {
			return result{}, err
		}
		tx.AfterCommit(func() { s.enqueue(mine.call()) })
		return result{mine.id, false}, audit.Record(tx, who, "device.call", mine.id, audit.OK, "device", mine.device, "tool", mine.tool, "args", mine.argsHash)
	})
	if err == nil {
		n.id = out.id
	}
	return out.duplicate, err
}

// await waits for the end of a call of an owner.
func (s *Service) await(ctx context.Context, owner, id string, duplicate bool) (CallOut, error) {
	done, release := s.watch(id)
	defer release()
	patience := time.NewTimer(s.times.Patience)
	defer patience.Stop()
	for waited := false; ; waited = true {
		var r row
		err := store.Read(ctx, s.store, func(q *store.Reader) (err error) {
			var found bool
			if r, found, err = find(q, byCallID, owner, id); err == nil && !found {
				err = UnknownCall.New("There is no call of this callId.")
			}
			return err
		})
		if err != nil {
			return CallOut{}, err
		}
		if !r.open() || waited {
			return s.answer(r, duplicate)
		}
		select {
		case <-done:
		case <-patience.C:
		case <-s.quiet:
		case <-ctx.Done():
			return CallOut{}, ctx.Err()
		}
	}
}

// watch returns a channel that is closed when a call ends.
func (s *Service) watch(id string) (done <-chan struct{}, release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.watches[id]
	if w == nil {
		w = &watch{done: make(chan struct{})}
		s.watches[id] = w
	}
	w.waiting++
	return w.done, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if w.waiting--; w.waiting == 0 {
			delete(s.watches, id)
		}
	}
}

// answer is what a caller is told of a call.
func (s *Service) answer(r row, duplicate bool) (CallOut, error) {
	out := CallOut{CallID: r.id, Device: r.device, Tool: r.tool, Duplicate: duplicate}
	switch {
	case r.open():
		out.State, out.Phase = Pending, s.phase(r)
		out.ExpiresAt = pointer(at(r.deadline))
		out.Next = "Call spooky_call with this callId alone to read the outcome."
		return out, nil
	case r.code != "":
		return CallOut{}, r.failure()
	case r.forgotten:
		return CallOut{}, NoOutput.Newf("The output of this call, which ended at %s, is no longer kept.", at(r.ended).UTC().Format(timeLayout))
	}
	out.State, out.Output, out.Summary, out.Spilled = Done, r.output, r.summary, r.spilled
	return out, nil
}

// phase is where an open call stands.
func (s *Service) phase(r row) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.lanes[r.device]; l != nil {
		if i := slices.IndexFunc(l.calls, func(c *call) bool { return c.id == r.id }); i >= 0 && l.calls[i].phase != "" {
			return l.calls[i].phase
		}
	}
	return r.state
}

// failure is the refusal of a call that ended badly.
func (r row) failure() error {
	kind, ok := failures[r.code]
	if !ok {
		kind = ToolFailed
	}
	text := clip(r.output)
	switch r.code {
	case Denied.Code:
		if text == "" {
			text = "no reason given"
		}
		text = fmt.Sprintf("device %s denied the call: %s", r.device, text)
	case TimedOut.Code:
		text = fmt.Sprintf("device %s did not answer in time", r.device)
		if r.sent == 0 {
			text = fmt.Sprintf("device %s was busy until the call's time was over; it was not sent", r.device)
		}
	case Cancelled.Code:
		text = fmt.Sprintf("the call of device %s was cancelled", r.device)
	case Revoked.Code:
		text = fmt.Sprintf("device %s was revoked", r.device)
	case Lost.Code:
		text = fmt.Sprintf("device %s was lost while the call was under way", r.device)
	case NotConnected.Code:
		text = fmt.Sprintf("device %s is not connected", r.device)
	case ResultTooLarge.Code:
		text = fmt.Sprintf("the result of device %s was too large", r.device)
	default:
		if text == "" {
			text = fmt.Sprintf("tool %s of device %s failed without a message", r.tool, r.device)
		}
	}
	return kind.New(text)
}

// clip is a text of a failing tool, its middle left out when it is long.
func clip(s string) string {
	if len(s) <= maxMessage {
		return s
	}
	return strings.ToValidUTF8(s[:maxMessage/2], "") + fmt.Sprintf("\n[%d bytes left out]\n", len(s)-maxMessage) + strings.ToValidUTF8(s[len(s)-maxMessage/2:], "")
}
