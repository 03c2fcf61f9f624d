package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"lapse/pkg/order"
)

// body is a request body that has been read. The gateway's generated code flattens decoding errors into a
// text; err keeps the error that the caller is to see. As a reader it is empty, so that net/http never takes
// it for a form, whatever its Content-Type says.
type body struct {
	io.ReadCloser
	raw []byte
	err error
}

func newBody(raw []byte) *body { return &body{ReadCloser: http.NoBody, raw: raw} }

// codec is the JSON of the contract: field names as in the proto file, zero values written out.
type codec struct{ runtime.JSONPb }

func newCodec() *codec {
	return &codec{runtime.JSONPb{MarshalOptions: protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}}}
}

// NewDecoder decodes a *body: as a whole into a message, or unparsed into bytes that are signed as they came.
func (*codec) NewDecoder(r io.Reader) runtime.Decoder {
	b, ok := r.(*body)
	if !ok {
		return runtime.DecoderFunc(func(any) error { return fmt.Errorf("not a body that was read: %T", r) })
	}
	return runtime.DecoderFunc(func(v any) error {
		switch v := v.(type) {
		case *[]byte:
			*v = b.raw
		case proto.Message:
			b.err = decode(b.raw, v)
		default:
			b.err = fmt.Errorf("cannot decode into %T", v)
		}
		return b.err
	})
}

// decode reads a JSON object into m. Nothing at all is an object without fields. Every unknown field and
// every field of a wrong type is named.
func decode(raw []byte, m proto.Message) error {
	if len(bytes.TrimSpace(raw)) == 0 {
		return nil
	}
	err := protojson.Unmarshal(raw, m)
	if err == nil {
		return nil
	}
	var object map[string]json.RawMessage
	if syntax := json.Unmarshal(raw, &object); syntax != nil {
		return malformed(raw, syntax)
	}
	if fields := wrongFields("", object, m.ProtoReflect().Type()); len(fields) > 0 {
		return refused(fields...)
	}
	return order.Errorf(order.Invalid, "malformed_json", "the body is not valid: %s", reasonOf(err))
}

// malformed says where a body ceases to be a JSON object.
func malformed(raw []byte, err error) error {
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return order.Errorf(order.Invalid, "malformed_json", "the body is not JSON: %v at byte %d of %d", syntax, syntax.Offset, len(raw))
	}
	return order.Errorf(order.Invalid, "malformed_json", "the body is not a JSON object")
}

// wrongFields finds the fields of object that a message of type t cannot hold, in their order by name.
func wrongFields(path string, object map[string]json.RawMessage, t protoreflect.MessageType) []order.Field {
	var wrong []order.Field
	for name, value := range object {
		fd := t.Descriptor().Fields().ByTextName(name)
		if fd == nil {
			fd = t.Descriptor().Fields().ByJSONName(name)
		}
		if fd == nil {
			wrong = append(wrong, order.Field{Name: path + name, Reason: "unknown field; there are " + fieldNames(t.Descriptor())})
			continue
		}
		wrong = append(wrong, wrongValue(path+name, fd, value, t)...)
	}
	slices.SortFunc(wrong, func(a, b order.Field) int { return strings.Compare(a.Name, b.Name) })
	return wrong
}

// wrongValue tries one field by itself, and goes into the messages of a list to name the culprit inside.
func wrongValue(path string, fd protoreflect.FieldDescriptor, value json.RawMessage, t protoreflect.MessageType) []order.Field {
	alone, err := json.Marshal(map[string]json.RawMessage{fd.TextName(): value})
	if err != nil {
		return []order.Field{{Name: path, Reason: err.Error()}}
	}
	m := t.New()
	err = protojson.Unmarshal(alone, m.Interface())
	if err == nil {
		return nil
	}
	var list []map[string]json.RawMessage
	if fd.IsList() && fd.Message() != nil && json.Unmarshal(value, &list) == nil {
		var wrong []order.Field
		element := m.NewField(fd).List().NewElement().Message().Type()
		for i, object := range list {
			wrong = append(wrong, wrongFields(fmt.Sprintf("%s[%d].", path, i), object, element)...)
		}
		return wrong
	}
	return []order.Field{{Name: path, Reason: wanted(fd)}}
}

// wanted says what a field takes in JSON.
func wanted(fd protoreflect.FieldDescriptor) string {
	if fd.IsList() {
		return "a list"
	}
	switch fd.Kind() {
	case protoreflect.StringKind:
		return "a string of valid UTF-8"
	case protoreflect.Int32Kind, protoreflect.Int64Kind:
		return "a whole number"
	case protoreflect.MessageKind:
		switch fd.Message().FullName() {
		case "google.protobuf.Duration":
			return `seconds with an s: "300s", not "5m"`
		case "google.protobuf.Timestamp":
			return `an instant of RFC 3339, like "2026-01-02T15:04:05Z"`
		}
	}
	return "a " + fd.Kind().String()
}

func fieldNames(d protoreflect.MessageDescriptor) string {
	names := make([]string, d.Fields().Len())
	for i := range names {
		names[i] = d.Fields().Get(i).TextName()
	}
	return strings.Join(names, ", ")
}

// reasonOf is the text of a protojson error without its prefix, which has a space of varying width.
func reasonOf(err error) string {
	text := strings.TrimPrefix(err.Error(), "proto:")
	return strings.TrimLeft(text, " \u00a0")
}
