package grpcidempotency

import (
	"errors"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// The result of a key is one byte for its kind and the encoding of a message of Protocol Buffers.
const (
	resultReply   = 1 // an Any with the reply
	resultStatus  = 2 // a google.rpc.Status
	resultDropped = 3 // nothing: it was too large
)

var errResult = errors.New("the result of the idempotency-key cannot be read: use a separate scope (Options.Scope), and link the types of all replies")

// encode returns the result for a handler's reply, or for its failure if that is not nil, without its content if it is larger
// than maxBytes.
func encode(reply any, failure *status.Status, maxBytes int) ([]byte, error) {
	kind, content := byte(resultStatus), proto.Message(nil)
	if failure != nil {
		content = failure.Proto()
	} else if m, ok := reply.(proto.Message); ok {
		kind, content = resultReply, m
	} else {
		return nil, status.Errorf(codes.Internal, "the reply is a %T, and not a message of Protocol Buffers", reply)
	}
	if proto.Size(content) > maxBytes {
		return []byte{resultDropped}, nil
	}
	if kind == resultReply {
		wrapped, err := anypb.New(content)
		if err != nil {
			return nil, status.Errorf(codes.Internal, "encoding the reply: %v", err)
		}
		content = wrapped
	}
	b, err := proto.MarshalOptions{}.MarshalAppend([]byte{kind}, content)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "encoding the reply: %v", err)
	}
	return b, nil
}

// replay returns the stored answer of a handler.
func replay(result []byte) (any, error) {
	if len(result) == 0 {
		return nil, status.Error(codes.Internal, errResult.Error())
	}
	switch body := result[1:]; result[0] {
	case resultDropped:
		return nil, status.Error(codes.AlreadyExists, "the call was run, and its reply was too large to keep: do not retry")
	case resultStatus:
		var s spb.Status
		if proto.Unmarshal(body, &s) == nil && s.Code != int32(codes.OK) {
			return nil, status.ErrorProto(&s)
		}
	case resultReply:
		var wrapped anypb.Any
		if proto.Unmarshal(body, &wrapped) == nil {
			if reply, err := wrapped.UnmarshalNew(); err == nil {
				return reply, nil
			}
		}
	}
	return nil, status.Error(codes.Internal, errResult.Error())
}
