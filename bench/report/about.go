package report

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"
)

// An About says how a report was made. The commands write it into their JSON under the name about.
type About struct {
	// Kind is the command that made the report, such as claims.
	Kind string `json:"kind"`
	// Command is the command line.
	Command string `json:"command"`
	// Commit is the commit of the sources, with "+changes" if there were uncommitted ones; "" if
	// unknown.
	Commit string `json:"commit"`
	// Machine describes the processor, the number of its cores and the memory.
	Machine string    `json:"machine"`
	Go      string    `json:"go"`
	Time    time.Time `json:"time"`
}

// NewAbout describes the running program on this machine. program is the command with which a
// reader starts it.
func NewAbout(kind, program string, args []string) About {
	command := strings.Join(append([]string{program}, quoted(args)...), " ")
	return About{Kind: kind, Command: command, Commit: commit(), Machine: machine(), Go: runtime.Version(), Time: time.Now().UTC().Truncate(time.Second)}
}

// Where returns the date, the commit and the machine of the report.
func (a About) Where() string {
	s := a.Time.UTC().Format("2006-01-02 15:04 UTC")
	if a.Commit != "" {
		s += ", commit " + a.Commit
	}
	return s + ", " + a.Machine + ", " + a.Go
}

func quoted(args []string) (q []string) {
	for _, a := range args {
		if a == "" || strings.ContainsAny(a, " \t\"'$*") {
			a = strconv.Quote(a)
		}
		q = append(q, a)
	}
	return q
}

// commit returns the commit that the go command has recorded in the program. For go run there is
// none: then git gives the commit of the directory of this file.
func commit() string {
	revision, changed := "", ""
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision":
				revision = s.Value[:min(len(s.Value), 12)]
			case s.Key == "vcs.modified" && s.Value == "true":
				changed = "+changes"
			}
		}
	}
	if revision != "" {
		return revision + changed
	}
	_, file, _, _ := runtime.Caller(0)
	described, err := exec.Command("git", "-C", filepath.Dir(file), "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+changes").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(described))
}

// machine describes the machine from the files of Linux, and otherwise from package runtime.
func machine() string {
	parts := []string{}
	if cpu := field("/proc/cpuinfo", "model name"); cpu != "" {
		parts = append(parts, cpu)
	}
	parts = append(parts, strconv.Itoa(runtime.NumCPU())+" cores")
	if kib, _, _ := strings.Cut(field("/proc/meminfo", "MemTotal"), " "); kib != "" {
		if n, err := strconv.ParseFloat(kib, 64); err == nil {
			parts = append(parts, strconv.FormatFloat(n/(1<<20), 'f', 0, 64)+" GB memory")
		}
	}
	return strings.Join(append(parts, runtime.GOOS+"/"+runtime.GOARCH), ", ")
}

// field returns the value of the first line "name: value" of a file, "" if there is none.
func field(path, name string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
