package remote

import (
	"bytes"
	"context"
	"fmt"

	"agentrelay/internal/hosts/ssh"
)

const (
	// lookChunk is how many bytes of paths one command line is given.
	lookChunk = 32 << 10
	// maxLook bounds what a host answers to that.
	maxLook = 1 << 20
)

// Look asks the host where each path really lies. For each it returns "d" and the
// canonical path of a directory, "g" and that of what is no directory or is gone,
// or "" for what can't be told: a path that is not absolute, a link that leads
// nowhere. It costs the host one command for some hundred paths.
func (h *Host) Look(ctx context.Context, paths []string) ([]string, error) {
	link, err := h.SSH.Link(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]string, 0, len(paths))
	for len(paths) > 0 {
		n, size := 0, 0
		for n < len(paths) && (n == 0 || size+len(paths[n]) < lookChunk) {
			size += len(paths[n]) + 3
			n++
		}
		raw, err := link.Run(ctx, ssh.Shell(look, paths[:n]...), nil, maxLook)
		if err != nil {
			return nil, err
		}
		answers := bytes.Split(bytes.TrimSuffix(raw, []byte{0}), []byte{0})
		if len(answers) != n {
			return nil, fmt.Errorf("the host answered %d of %d paths", len(answers), n)
		}
		for _, a := range answers {
			out = append(out, string(a))
		}
		paths = paths[n:]
	}
	return out, nil
}

// look goes up from each path to a directory that is there, and has the shell
// say where that lies. The dot keeps line ends at the end of a name.
const look = `for p in "$@"; do
	case $p in
	/*) ;;
	*) printf '\0'; continue ;;
	esac
	at=$p gone=
	while :; do
		if [ -d "$at" ]; then
			if real=$(cd -P -- "$at" 2>/dev/null && pwd -P && printf .); then
				real=${real%??}
				[ "$real" = / ] && [ -n "$gone" ] && real=
				if [ -z "$gone" ]; then printf 'd%s\0' "$real"; else printf 'g%s\0' "$real$gone"; fi
			else
				printf '\0'
			fi
			break
		fi
		if [ -h "$at" ]; then
			printf '\0'
			break
		fi
		while [ "$at" != "${at%/}" ]; do at=${at%/}; done
		case ${at##*/} in
		.|..) printf '\0'; break ;;
		esac
		gone=/${at##*/}$gone
		at=${at%/*}
		at=${at:-/}
	done
done`
