# All programs in one image: docker build -t lapse . && docker run lapse producer --config …
# The images are named by version. To pin them to the byte, add their digests.
FROM --platform=$BUILDPLATFORM golang:1.26.8-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY . .
ARG TARGETOS TARGETARCH VERSION=devel
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -ldflags="-s -w -X lapse/pkg/app.Version=$VERSION" -o /out/ \
    ./producer ./consumer ./compensator ./cmd/lapse ./deploy/healthcheck

# No shell, no package manager, not root.
FROM gcr.io/distroless/static-debian12:nonroot
LABEL org.opencontainers.image.title="lapse" \
      org.opencontainers.image.description="Unpaid orders lapse on time, once, and give back what they held" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /out/ /usr/local/bin/
# API; operations: /healthz, /readyz, /metrics.
EXPOSE 8080 9090
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 CMD ["healthcheck"]
CMD ["lapse", "help"]
