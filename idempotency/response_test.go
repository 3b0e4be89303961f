package idempotency

import (
	"net/http"
	"reflect"
	"testing"
)

func TestResponseBytes(t *testing.T) {
	r := &response{status: 201, header: http.Header{"B": {"x", "yz"}, "A": nil}, trailer: http.Header{"T": {""}}, body: []byte("body")}
	const golden = "\x01\x00\xc9\x01\x02\x01A\x00\x01B\x02\x01x\x02yz\x01\x01T\x01\x00body"
	if got := string(r.encode()); got != golden {
		t.Fatalf("%q", got)
	}
	if got, err := decodeResponse(golden); err != nil || !reflect.DeepEqual(got, r) {
		t.Errorf("%+v, %v", got, err)
	}
	if got := string((&response{status: 500, dropped: true}).encode()); got != "\x01\x01\xf4\x03\x00\x00" {
		t.Errorf("%q", got)
	}
}

func FuzzDecodeResponse(f *testing.F) {
	for _, r := range []response{{status: 200, body: []byte("b")}, {status: 500, dropped: true}, {status: 201, header: http.Header{"A": {"b"}}}} {
		f.Add(string(r.encode()))
	}
	for _, s := range []string{"", "\x02\x00\xc9\x01\x00\x00", "\x01\x02\xc9\x01\x00\x00", "\x01\x00\x01\x00\x00", "\x01\x00\xc9\x01\xff\xff\xff\xff\x0f"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, data string) {
		r, err := decodeResponse(data)
		if err != nil {
			return
		}
		again, err := decodeResponse(string(r.encode()))
		if err != nil || !reflect.DeepEqual(again, r) && !again.dropped {
			t.Errorf("%q: %+v, then %+v, %v", data, r, again, err)
		}
	})
}

func TestDamagedResponseIsRejected(t *testing.T) {
	for _, data := range []string{"", "other bytes", "\x02\x00\xc9\x01\x00\x00", "\x01\x02\xc9\x01\x00\x00", "\x01\x00\x64\x00\x00", "\x01\x00\xc9\x01\x00"} {
		if r, err := decodeResponse(data); err == nil {
			t.Errorf("%q: %+v", data, r)
		}
	}
}
