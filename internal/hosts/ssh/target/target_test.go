package target

import (
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for _, tt := range []struct {
		in, user, host         string
		port                   int
		network, daemon, spelt string
	}{
		{"ssh://box", "", "box", 0, "tcp", "127.0.0.1:6767", "ssh://box"},
		{"ssh://box/", "", "box", 0, "tcp", "127.0.0.1:6767", "ssh://box"},
		{"ssh://my_box", "", "my_box", 0, "tcp", "127.0.0.1:6767", "ssh://my_box"},
		{"ssh://_box.example.com", "", "_box.example.com", 0, "tcp", "127.0.0.1:6767", "ssh://_box.example.com"},
		{"ssh://me.too_-@Box.example.com:2222", "me.too_-", "Box.example.com", 2222, "tcp", "127.0.0.1:6767", "ssh://me.too_-@Box.example.com:2222"},
		{"ssh://10.0.0.7:22/?daemonPort=7000", "", "10.0.0.7", 22, "tcp", "127.0.0.1:7000", "ssh://10.0.0.7:22?daemonPort=7000"},
		{"ssh://box?daemonPort=6767", "", "box", 0, "tcp", "127.0.0.1:6767", "ssh://box"},
		{"ssh://[::1]", "", "::1", 0, "tcp", "127.0.0.1:6767", "ssh://[::1]"},
		{"ssh://me@[2001:db8::7]:22?daemonPort=65535", "me", "2001:db8::7", 22, "tcp", "127.0.0.1:65535", "ssh://me@[2001:db8::7]:22?daemonPort=65535"},
		{"ssh://box?daemonSocket=/run/user/1000/daemon.sock", "", "box", 0, "unix", "/run/user/1000/daemon.sock", "ssh://box?daemonSocket=/run/user/1000/daemon.sock"},
	} {
		got, err := Parse(tt.in)
		network, daemon := got.DaemonAddress()
		if err != nil || got.User != tt.user || got.Host != tt.host || got.Port != tt.port || network != tt.network || daemon != tt.daemon || got.String() != tt.spelt {
			t.Errorf("%s is %+v (%s), %v", tt.in, got, got, err)
		}
	}
	for in, problem := range map[string]string{
		"": "must be ssh://", "box": "must be ssh://", "https://box": "must be ssh://", "ssh://": "must be ssh://", "ssh:box": "must be ssh://",
		"ssh://-box": "must be ssh://", "ssh://-oProxyCommand=x": "must be ssh://", "ssh://box/path": "must be ssh://", "ssh://box#x": "must be ssh://", "ssh://b%6fx": "must be ssh://",
		"ssh://box\n": "must be ssh://", "ssh://bo x": "must be ssh://", `ssh://bo\x`: "must be ssh://", "ssh://box;id": "must be ssh://", "ssh://$(id)": "must be ssh://", "ssh://bäx": "must be ssh://",
		"ssh://me:pw@box": "must not contain a password", "ssh://-l@box": "has a user", "ssh://@box": "has a user", "ssh://me@you@box": "has a user",
		"ssh://box:0": "has a port", "ssh://box:65536": "has a port", "ssh://box:": "has a port", "ssh://[::1": "must be ssh://",
		"ssh://[::1]:0": "has a port", "ssh://[fe80::1%25eth0]": "must be ssh://", "ssh://[1.2.3.4]": "must be ssh://", "ssh://[box]": "",
		"ssh://box?daemonPort=0": "daemonPort", "ssh://box?daemonPort=": "daemonPort", "ssh://box?daemonPort=x": "daemonPort", "ssh://box?daemonPort=1&daemonPort=2": "at most once",
		"ssh://box?daemonPort=1&daemonSocket=/x": "not both", "ssh://box?port=1": "has a key", "ssh://box?daemonSocket=x": "daemonSocket", "ssh://box?daemonSocket=/a/../b": "daemonSocket",
		"ssh://box?daemonSocket=/a;b": "", "ssh://box?daemonSocket=/" + strings.Repeat("a", 103): "daemonSocket",
		"ssh://" + strings.Repeat("a", 395): "must be ssh://",
	} {
		if got, err := Parse(in); err == nil || !strings.Contains(err.Error(), problem) {
			t.Errorf("%q is %+v, %v; want an error with %q", in, got, err, problem)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"ssh://me@box:22?daemonPort=1", "ssh://[::1]:2", "ssh://a_b/?daemonSocket=/x/y", "ssh://-x", "ssh://a:b@c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := Parse(s)
		if err != nil {
			return
		}
		again, err := Parse(got.String())
		if err != nil || again.String() != got.String() || again.Host != got.Host || again.User != got.User || again.Port != got.Port {
			t.Errorf("%q is %+v, whose spelling %q is %+v, %v", s, got, got, again, err)
		}
		for _, field := range []string{got.Host, got.User} {
			if strings.HasPrefix(field, "-") || strings.ContainsAny(field, " \t\n;|&$`'\"\\<>(){}*?!%@") {
				t.Errorf("%q has the field %q", s, field)
			}
		}
	})
}
