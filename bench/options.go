package bench

import (
	"reflect"
	"strconv"
)

// setDefaults gives the integers and strings of options that are zero the defaults of their tags,
// which are those of the flags. A field with a tag "zero" keeps its zero, which means that.
func setDefaults(options any) {
	v := reflect.ValueOf(options).Elem()
	for i := range v.NumField() {
		tag, field := v.Type().Field(i).Tag, v.Field(i)
		_, keep := tag.Lookup("zero")
		switch n, _ := strconv.ParseInt(tag.Get("default"), 10, 64); {
		case !field.CanSet() || !field.IsZero() || keep:
		case field.Kind() == reflect.Int:
			field.SetInt(n)
		case field.Kind() == reflect.String:
			field.SetString(tag.Get("default"))
		}
	}
}
