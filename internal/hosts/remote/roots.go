package remote

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"agentrelay/internal/agents"
)

// maxResolved is the longest answer of one look at directories, in bytes.
const maxResolved = 4 << 20

// resolveDirectories reads paths, one a line, and writes for each a line: d and the
// path with every link resolved for a directory, g and the same for one whose end is
// gone, and an empty line for what is none. It needs nothing but a POSIX shell.
const resolveDirectories = `while IFS= read -r p; do
	gone=
	q=$p
	while :; do
		if [ -d "$q" ]; then
			r=$(cd -P -- "$q" 2>/dev/null && pwd -P && printf .) || r=
			r=${r%
.}
			break
		fi
		if [ -e "$q" ] || [ -h "$q" ] || [ "$q" = / ]; then
			r=
			break
		fi
		gone=/${q##*/}$gone
		q=${q%/*}
		[ -n "$q" ] || q=/
	done
	if [ -z "$r" ]; then
		printf '\n'
	elif [ -z "$gone" ]; then
		printf 'd%s\n' "$r"
	else
		printf 'g%s%s\n' "${r%/}" "$gone"
	fi
done`

// Resolve says where directories lie on that machine, and which of them are inside
// its allowedRoots; see [agents.Roots]. A root that can't be reached allows nothing.
func (h *Host) Resolve(ctx context.Context, paths []string) ([]agents.Place, error) {
	roots := h.conf.AllowedRoots
	var in bytes.Buffer
	asked := append(append([]string{}, roots...), paths...)
	for i, p := range asked {
		if !strings.HasPrefix(p, "/") || strings.ContainsAny(p, "\x00\n") {
			p = "/dev/null" // no directory
		}
		asked[i] = p
		in.WriteString(agents.CleanRemote(p) + "\n")
	}
	link, err := h.SSH.Link(ctx)
	if err != nil {
		return nil, err
	}
	raw, err := link.Script(ctx, resolveDirectories, nil, in.Bytes(), maxResolved)
	if err != nil {
		return nil, agents.HostUnavailable.Newf("Where directories lie on host %s could not be asked.", h.ID()).Because(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(raw), "\n"), "\n")
	if len(lines) != len(asked) {
		return nil, agents.HostUnavailable.Newf("Host %s gave no readable answer about its directories.", h.ID()).
			Because(fmt.Errorf("%d lines for %d paths", len(lines), len(asked)))
	}
	return agents.PlacesOf(lines[:len(roots)], lines[len(roots):]), nil
}
