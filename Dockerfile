# syntax=docker/dockerfile:1

# Two images of one static binary:
#
#   docker build --target slim .    the binary alone; wants CLAIMLOCK_REDIS_URL
#   docker build .                  with Valkey, for the embedded default; data in /var/lib/claimlock
#
#   docker run -p 7420:7420 -p 7421:7421 -v claimlock:/var/lib/claimlock claimlock
#
# Inside it listens on every interface, for a published port to reach it; which interface of the
# host that is, `-p 127.0.0.1:7420:7420` says.

# A minor version, so that a build does not change with the day; not below that of Cargo.toml.
FROM rust:1.95-bookworm AS build
RUN apt-get update \
    && apt-get install --yes --no-install-recommends musl-tools \
    && rm -rf /var/lib/apt/lists/* \
    && rustup target add "$(uname -m)-unknown-linux-musl"
WORKDIR /build
COPY . .
# The caches outlive a build, so that only what changed is compiled again. The binary is copied out
# of the cache, which is no part of the image. /data is the empty folder that a volume begins as.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/build/target \
    target="$(uname -m)-unknown-linux-musl" \
    && cargo build --locked --release --bin claimlock --target "$target" \
    && install -D "target/$target/release/claimlock" /out/claimlock \
    && install -d -m 0700 /out/data

FROM scratch AS slim
LABEL org.opencontainers.image.title="claimlock" \
      org.opencontainers.image.description="Idempotency keys and locks over gRPC, on a Redis of yours" \
      org.opencontainers.image.licenses="Apache-2.0"
# For rediss:// with a certificate of a public authority.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/claimlock /claimlock
ENV CLAIMLOCK_GRPC_ADDR=0.0.0.0:7420 \
    CLAIMLOCK_HTTP_ADDR=0.0.0.0:7421
EXPOSE 7420 7421
USER 65532:65532
# Asks at CLAIMLOCK_ENDPOINT, port 7420 in here unless set otherwise: set it along with another CLAIMLOCK_GRPC_ADDR. An
# orchestrator asks for /readyz and /healthz on 7421, or the gRPC health service on 7420, without a process for each.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s \
    CMD ["/claimlock", "health", "--call-timeout", "2s"]
ENTRYPOINT ["/claimlock"]
CMD ["serve"]

FROM alpine:3.22 AS embedded
LABEL org.opencontainers.image.title="claimlock" \
      org.opencontainers.image.description="Idempotency keys and locks over gRPC, with its own Valkey" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN apk add --no-cache ca-certificates valkey
COPY --from=build /out/claimlock /claimlock
COPY --from=build --chown=65532:65532 /out/data /var/lib/claimlock
ENV CLAIMLOCK_GRPC_ADDR=0.0.0.0:7420 \
    CLAIMLOCK_HTTP_ADDR=0.0.0.0:7421 \
    CLAIMLOCK_DATA_DIR=/var/lib/claimlock
EXPOSE 7420 7421
VOLUME /var/lib/claimlock
USER 65532:65532
# Asks on the port of CLAIMLOCK_HTTP_ADDR alone. Where a flag or a settings file names another, change that variable along
# with it, or bring a check of your own (--health-cmd, or --no-healthcheck).
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s \
    CMD wget -q -O /dev/null "http://127.0.0.1:${CLAIMLOCK_HTTP_ADDR##*:}/readyz"
ENTRYPOINT ["/claimlock"]
CMD ["serve"]
