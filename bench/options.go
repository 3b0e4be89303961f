package bench

import (
	"reflect"
	"strconv"
)

// Common are the options of all workloads.
type Common struct {
	Store    StoreName `help:"Store to use: pebble or bolt." enum:"pebble,bolt" default:"pebble"`
	Dir      string    `help:"${dir}" type:"dir"` // "": a temporary one, which is removed
	Progress Progress  `kong:"-"`
}

// Show sets what is told how far the workload has come.
func (c *Common) Show(p Progress) { c.Progress = p }

// setDefaults gives the integers and strings of options that are zero the defaults of their tags,
// which are those of the flags. A field with a tag "zero" keeps its zero, which means that.
func setDefaults(options any) {
	v := reflect.ValueOf(options).Elem()
	for i := range v.NumField() {
		tag, field := v.Type().Field(i).Tag, v.Field(i)
		_, keep := tag.Lookup("zero")
		switch n, _ := strconv.ParseInt(tag.Get("default"), 10, 64); {
		case !field.CanSet() || keep || !field.IsZero() && field.Kind() != reflect.Struct:
		case field.Kind() == reflect.Struct:
			setDefaults(field.Addr().Interface())
		case field.Kind() == reflect.Int:
			field.SetInt(n)
		case field.Kind() == reflect.String:
			field.SetString(tag.Get("default"))
		}
	}
}
