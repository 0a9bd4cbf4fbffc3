package events

import "net/url"

// attempt makes a claimed attempt and decides about it.
func (s *Service) attempt(j *job) (answer, verdict) {
	build, accepts := s.callback, isSuccess
	if j.row.subscription == "" {
		build, accepts = s.wakeUp, s.acceptsWakeUp(j.row)
	}
	m, failure := build(j.row)
	a := answer{failure: failure}
	if failure == "" {
		a = s.post(j.ctx, m)
	}
	return a, judge(j.row, a, accepts, j.ctx.Err() != nil)
}

func isSuccess(status int) bool { return status >= 200 && status < 300 }

// callback is the message of a delivery to a subscription. During a rotation it
// is signed with both secrets, the new one first.
func (s *Service) callback(d deliveryRow) (m message, failure string) {
	m = message{url: d.address, id: d.eventID, body: d.body, subscription: d.subscription}
	boxes := [][]byte{d.secret}
	if d.oldUntil > s.now().UnixMilli() {
		boxes = append(boxes, d.oldSecret)
	}
	for _, box := range boxes {
		key, err := s.key.Open(box, d.subscription)
		if err != nil {
			s.log.Error("the secret of a subscription could not be opened", "subscription", d.subscription, "error", err)
			return m, secretUnreadable
		}
		m.keys = append(m.keys, key)
	}
	return m, ""
}

// hostOf is what a log may say of a receiver: the rest of a URL can be a key.
func hostOf(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	return u.Host
}
