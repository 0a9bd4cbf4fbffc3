package direct

import (
	"bytes"
	"os"
	"strings"
)

// mounts reads what is mounted where (proc_pid_mountinfo(5)), in the order in
// which a later mount covers an earlier one; nil when the system does not tell.
func mounts() []mount {
	raw, _ := os.ReadFile("/proc/self/mountinfo")
	var all []mount
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	for line := range bytes.Lines(raw) {
		f := strings.SplitN(string(line), " ", 6)
		if len(f) == 6 {
			all = append(all, mount{f[2], unescape.Replace(f[3]), unescape.Replace(f[4])})
		}
	}
	return all
}
