package main

import (
	"os/exec"
	"slices"
	"testing"
)

func TestNoPackageIsTangled(t *testing.T) {
	for _, problem := range check(measured(t)) {
		t.Error(problem)
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
	if problems := check(packages); len(problems) != 0 {
		t.Errorf("a package within the limits: %q", problems)
	}
}

func TestLimitsAreChecked(t *testing.T) {
	files := func(n int) []string { return make([]string, n) }
	for _, c := range []struct {
		circles  [][]string
		methods  int
		problems int
	}{
		{nil, mostMethods, 0},
		{[][]string{files(mostFiles), files(mostFiles), files(2)}, 0, 0},
		{[][]string{files(mostFiles + 1), files(2)}, 0, 1},
		{nil, mostMethods + 1, 1},
		{[][]string{files(mostFiles + 1)}, mostMethods + 1, 2},
	} {
		p := figures{name: "some", circles: c.circles, types: []methods{{"Type", c.methods}}}
		if problems := check([]figures{p}); len(problems) != c.problems {
			t.Errorf("%s files in circles, %d methods: problems %q", p.circleSizes(), c.methods, problems)
		}
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
