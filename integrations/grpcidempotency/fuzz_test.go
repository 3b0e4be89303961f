package grpcidempotency

import (
	"testing"

	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// Whatever a store holds under a key, a replay is a reply or an error, and what was encoded is
// returned unchanged.
func FuzzResult(f *testing.F) {
	for _, seed := range []struct {
		reply any
		err   error
	}{
		{&testgrpc.SimpleResponse{Username: "name", Payload: &testgrpc.Payload{Body: []byte("\x00\xff")}}, nil},
		{&testgrpc.Empty{}, nil},
		{nil, status.Error(codes.NotFound, "none")},
	} {
		for _, most := range []int{0, 1 << 10} {
			result, err := encode(seed.reply, status.Convert(seed.err), most)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(result)
		}
	}
	for _, result := range []string{"", "?", "\x01?", "\x02", "\x02?", "\x01\x0a\x01x"} {
		f.Add([]byte(result))
	}
	f.Fuzz(func(t *testing.T, result []byte) {
		before := string(result)
		reply, err := replay(result)
		if string(result) != before {
			t.Error("the result was changed")
		}
		if (reply == nil) == (err == nil) {
			t.Fatalf("%v, %v", reply, err)
		}
		if err != nil && (status.Code(err) == codes.OK || reply != nil) {
			t.Fatalf("%v, %v", reply, err)
		}
		if err != nil && (len(result) == 0 || result[0] != resultStatus) {
			return // it is not what a handler has returned
		}
		again, encodeErr := encode(reply, status.Convert(err), 1<<30)
		if encodeErr != nil {
			t.Fatalf("encoding it again: %v", encodeErr)
		}
		second, secondErr := replay(again)
		if err != nil {
			if !proto.Equal(status.Convert(err).Proto(), status.Convert(secondErr).Proto()) {
				t.Errorf("%v, then %v", err, secondErr)
			}
			return
		}
		if secondErr != nil || !proto.Equal(reply.(proto.Message), second.(proto.Message)) {
			t.Errorf("%v, then %v, %v", reply, second, secondErr)
		}
	})
}
