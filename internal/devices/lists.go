package devices

import (
	"context"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"

	"agentrelay/internal/fault"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

// List answers spooky_list: every device in short, or one. It is not an owner's: all
// clients that may use devices see the same.
//
// Refusals: device_not_connected.
func (s *Service) List(ctx context.Context, _ principal.Principal, in ListIn) (any, error) {
	if in.Device != "" {
		return s.one(in.Device)
	}
	paired, err := s.paired(ctx)
	if err != nil {
		return nil, err
	}
	out := Listing{Devices: []Connected{}}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range paired {
		l := s.links[p.Name]
		if l == nil {
			out.Offline = append(out.Offline, Offline{p.Name, p.SeenAt})
			continue
		}
		c := Connected{Device: p.Name, SeenAt: at(l.seen.Load()), ConnectedAt: Time{l.connected}, Tools: make([]Summary, len(l.tools))}
		for i, o := range l.tools {
			c.Tools[i] = Summary{Name: o.Name, Desc: oneLine(o.Desc)}
		}
		out.Devices = append(out.Devices, c)
	}
	return out, nil
}

func (s *Service) one(device string) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.links[device]
	if l == nil {
		return nil, NotConnected.Newf("device %s is not connected", shown(device))
	}
	out := One{Device: device, Platform: l.platform, SeenAt: at(l.seen.Load()), ConnectedAt: Time{l.connected}, Tools: make([]Summary, len(l.tools))}
	for i, o := range l.tools {
		out.Tools[i] = Summary{o.Name, o.Desc, o.Requires}
	}
	if lane := s.lanes[device]; lane != nil {
		out.OpenCalls = len(lane.calls)
	}
	return out, nil
}

// Schema answers spooky_schema: a digest of a tool's arguments, or the whole schema.
//
// Refusals: device_not_connected, unknown_device_tool.
func (s *Service) Schema(_ context.Context, _ principal.Principal, in SchemaIn) (any, error) {
	o, err := s.tool(in.Device, in.Tool)
	if err != nil {
		return nil, err
	}
	if in.Full {
		return Full{in.Device, in.Tool, o.Desc, o.Requires, o.Schema}, nil
	}
	return o.digest(in.Device), nil
}

// ListPaired is every paired device by name, as the owner sees it.
func (s *Service) ListPaired(ctx context.Context) ([]Paired, error) {
	all, err := s.paired(ctx)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range all {
		p := &all[i]
		if l := s.links[p.Name]; l != nil {
			p.Connected, p.Tools, p.Platform = true, len(l.tools), l.platform
			p.ConnectedAt, p.SeenAt = pointer(Time{l.connected}), pointer(at(l.seen.Load()))
		}
	}
	return all, nil
}

func (s *Service) paired(ctx context.Context) (all []Paired, err error) {
	err = store.Read(ctx, s.store, func(r *store.Reader) error {
		all = []Paired{}
		return r.Query(func(sc store.Scanner) error {
			var p Paired
			var paired, connected, seen int64
			err := sc.Scan(&p.Name, &p.Platform, &paired, &connected, &seen, &p.OpenCalls)
			p.PairedAt, p.ConnectedAt, p.SeenAt = at(paired), pointer(at(connected)), pointer(at(seen))
			all = append(all, p)
			return err
		}, `SELECT name, platform, paired_at, coalesce(connected_at, 0), coalesce(seen_at, 0),
			(SELECT count(*) FROM device_calls WHERE device = name AND ended_at IS NULL) FROM devices ORDER BY name`)
	})
	if err != nil {
		return nil, fmt.Errorf("reading devices: %w", err)
	}
	return all, nil
}

// Calls is a page of the calls of all owners, newest first.
//
// Refusals: invalid_arguments, invalid_cursor.
func (s *Service) Calls(ctx context.Context, in CallsIn) (CallsOut, error) {
	limit := DefaultLimit
	if in.Limit != nil {
		limit = *in.Limit
	}
	if limit < 1 || limit > MaxLimit {
		return CallsOut{}, fault.InvalidArguments.Newf("limit must be from 1 to %d.", MaxLimit)
	}
	before := int64(1) << 62
	if in.Cursor != nil {
		var err error
		if before, err = readCursor(*in.Cursor, in.Device); err != nil {
			return CallsOut{}, err
		}
	}
	out := CallsOut{Calls: []Record{}}
	var last int64
	err := store.Read(ctx, s.store, func(r *store.Reader) error {
		return r.Query(func(sc store.Scanner) error {
			var c Record
			var id, created, sent, ended, late int64
			err := sc.Scan(&id, &c.CallID, &c.Owner, &c.ClientID, &c.Device, &c.Tool, &c.ArgsSHA256, &c.State, &c.Code, &created, &sent, &ended, &late)
			if len(out.Calls) == limit {
				out.NextCursor = cursor(last, in.Device)
				return err
			}
			c.CreatedAt, c.SentAt, c.EndedAt, c.LateAt = at(created), pointer(at(sent)), pointer(at(ended)), pointer(at(late))
			out.Calls, last = append(out.Calls, c), id
			return err
		}, `SELECT id, call_id, owner, client_id, device, tool, args_hash, state, code, created_at, coalesce(sent_at, 0), coalesce(ended_at, 0), coalesce(late_at, 0)
			FROM device_calls WHERE id < ? AND (?2 = '' OR device = ?2) ORDER BY id DESC LIMIT ?`, before, in.Device, limit+1)
	})
	if err != nil {
		return CallsOut{}, fmt.Errorf("reading calls: %w", err)
	}
	return out, nil
}

// cursor continues a list of one device's calls, or of all.
func cursor(before int64, device string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(strconv.FormatInt(before, 10) + "/" + device))
}

func readCursor(s, device string) (int64, error) {
	raw, err := base64.RawURLEncoding.DecodeString(s)
	number, of, found := strings.Cut(string(raw), "/")
	before, bad := strconv.ParseInt(number, 10, 64)
	if err != nil || bad != nil || !found || of != device || before < 1 {
		return 0, fault.InvalidCursor.New("The cursor does not continue this list.")
	}
	return before, nil
}
