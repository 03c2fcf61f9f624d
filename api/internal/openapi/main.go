// Command openapi is a protoc plugin that writes openapi.yaml. It lets protoc-gen-openapiv3 describe the
// contract and adds what a proto file cannot say about HTTP: overlay.yaml, the problem that any call may
// answer, and the payment notification, which over HTTP is the body itself.
package main

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

//go:embed overlay.yaml
var overlay []byte

func main() {
	if err := run(context.Background(), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "openapi:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, in io.Reader, out io.Writer) error {
	raw, err := io.ReadAll(in)
	if err != nil {
		return err
	}
	var req pluginpb.CodeGeneratorRequest
	if err := proto.Unmarshal(raw, &req); err != nil {
		return err
	}
	asHTTPSeesIt(&req)
	resp, err := generate(ctx, &req)
	if err != nil {
		return err
	}
	if len(resp.File) != 1 {
		return fmt.Errorf("one document wanted, got %d: %s", len(resp.File), resp.GetError())
	}
	document, err := finish([]byte(resp.File[0].GetContent()))
	if err != nil {
		return err
	}
	resp.File[0].Name, resp.File[0].Content = proto.String("openapi.yaml"), proto.String(document)
	raw, err = proto.Marshal(resp)
	if err != nil {
		return err
	}
	_, err = out.Write(raw)
	return err
}

// asHTTPSeesIt gives JSON fields their proto names, and the notification call its notification as body.
func asHTTPSeesIt(req *pluginpb.CodeGeneratorRequest) {
	for _, file := range req.ProtoFile {
		if file.GetPackage() != "lapse.v1" {
			continue
		}
		for _, message := range file.MessageType {
			for _, field := range message.Field {
				field.JsonName = field.Name
			}
			if message.GetName() == "NotifyPaymentRequest" {
				body := message.Field[0]
				body.Type = descriptorpb.FieldDescriptorProto_TYPE_MESSAGE.Enum()
				body.TypeName = proto.String(".lapse.v1.PaymentNotification")
				message.Field = message.Field[:1] // the others are headers, see overlay.yaml
			}
		}
	}
}

// generate runs protoc-gen-openapiv3 on req.
func generate(ctx context.Context, req *pluginpb.CodeGeneratorRequest) (*pluginpb.CodeGeneratorResponse, error) {
	raw, err := proto.Marshal(req)
	if err != nil {
		return nil, err
	}
	plugin := exec.CommandContext(ctx, "go", "tool", "-modfile=../tools.mod", "protoc-gen-openapiv3")
	plugin.Stdin, plugin.Stderr = bytes.NewReader(raw), os.Stderr
	if raw, err = plugin.Output(); err != nil {
		return nil, fmt.Errorf("protoc-gen-openapiv3: %w", err)
	}
	resp := &pluginpb.CodeGeneratorResponse{}
	return resp, proto.Unmarshal(raw, resp)
}

const header = "# Code generated from lapse/v1/lapse.proto and internal/openapi/overlay.yaml. DO NOT EDIT.\n"

// finish turns the generated JSON into the finished YAML.
func finish(generated []byte) (string, error) {
	var document, over yaml.Node
	if err := yaml.Unmarshal(generated, &document); err != nil {
		return "", err
	}
	if err := yaml.Unmarshal(overlay, &over); err != nil {
		return "", err
	}
	merge(document.Content[0], over.Content[0])
	addProblems(document.Content[0])
	plain(&document)
	var b strings.Builder
	b.WriteString(header)
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(&document); err != nil {
		return "", err
	}
	return b.String(), enc.Close()
}

// merge lays over on base: maps are merged, anything else is replaced.
func merge(base, over *yaml.Node) {
	if base.Kind != yaml.MappingNode || over.Kind != yaml.MappingNode {
		*base = *over
		return
	}
	for i := 0; i < len(over.Content); i += 2 {
		key, value := over.Content[i], over.Content[i+1]
		if found := get(base, key.Value); found != nil {
			merge(found, value)
			continue
		}
		base.Content = append(base.Content, key, value)
	}
}

func get(mapping *yaml.Node, key string) *yaml.Node {
	for i := 0; i < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == key {
			return mapping.Content[i+1]
		}
	}
	return nil
}

// addProblems lets every operation answer a problem.
func addProblems(document *yaml.Node) {
	var problem yaml.Node
	if err := yaml.Unmarshal([]byte(`default: {$ref: "#/components/responses/Problem"}`), &problem); err != nil {
		panic(err) // a constant
	}
	paths := get(document, "paths")
	for i := 1; i < len(paths.Content); i += 2 {
		for j := 1; j < len(paths.Content[i].Content); j += 2 {
			merge(get(paths.Content[i].Content[j], "responses"), problem.Content[0])
		}
	}
}

// plain writes nodes that come from JSON in the block style of YAML.
func plain(n *yaml.Node) {
	n.Style, n.HeadComment = 0, ""
	if n.Kind == yaml.ScalarNode && strings.Contains(n.Value, "\n") {
		n.Style = yaml.LiteralStyle
	}
	for _, child := range n.Content {
		plain(child)
	}
}
