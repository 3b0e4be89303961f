package main

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestNoPackageIsMoreTangledThanItWas compares all packages with limits.txt.
func TestNoPackageIsMoreTangledThanItWas(t *testing.T) {
	allowed, err := readLimits(exceptions)
	if err != nil {
		t.Fatal(err)
	}
	problems, lower := check(measured(t), allowed)
	for _, problem := range problems {
		t.Error(problem)
	}
	if len(lower) > 0 {
		t.Logf("limits.txt can be lowered:\n%s", strings.Join(lower, "\n"))
	}
}

func TestTangledPackageIsDetected(t *testing.T) {
	packages := measured(t, "./testdata/tangled")
	p := packages[0]
	if len(packages) != 1 || p.files != 4 || len(p.circles) != 1 {
		t.Fatalf("%+v", packages)
	}
	if circle := slices.Sorted(slices.Values(p.circles[0])); !slices.Equal(circle, []string{"shop.go", "tax.go", "ware.go"}) {
		t.Errorf("the circle is %q", circle)
	}
	if p.types[0] != (methods{"Shop", 2}) {
		t.Errorf("the largest type is %+v", p.types[0])
	}
	for _, c := range []struct {
		allowed        limits
		problems, down int
	}{
		{limits{3, 3, 2}, 0, 0},
		{limits{2, 3, 2}, 1, 0},
		{limits{3, 2, 2}, 1, 0},
		{limits{3, 3, 1}, 1, 0},
		{limits{4, 4, 3}, 0, 1},
	} {
		problems, lower := check(packages, map[string]limits{p.name: c.allowed})
		if len(problems) != c.problems || len(lower) != c.down {
			t.Errorf("limits %+v: problems %q, lower %q", c.allowed, problems, lower)
		}
	}
	if problems, _ := check(packages, map[string]limits{"gone": {}}); len(problems) != 1 {
		t.Errorf("a line for a package that does not exist: %q", problems)
	}
}

func measured(t *testing.T, patterns ...string) []figures {
	t.Helper()
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("there is no go command:", err)
	}
	packages, err := measure(patterns...)
	if err != nil {
		t.Fatal(err)
	}
	return packages
}
