# Builds for linux/amd64 and linux/arm64 on either, by cross-compilation:
#   docker buildx build --platform linux/amd64,linux/arm64 --tag <registry>/cloudmap-mcs:0.1.0 --push .
# Commit and date of the build are arguments, because the sources come without git: see build_facts in integration/stages.sh.
ARG RUST_VERSION=1.95

FROM --platform=$BUILDPLATFORM rust:${RUST_VERSION}-bookworm AS build
ARG BUILDARCH
ARG TARGETARCH
WORKDIR /source
RUN set -eu; \
    case "$TARGETARCH" in \
        amd64) target=x86_64-unknown-linux-gnu gcc=x86-64-linux-gnu ;; \
        arm64) target=aarch64-unknown-linux-gnu gcc=aarch64-linux-gnu ;; \
        *) echo "unsupported architecture: $TARGETARCH (amd64 and arm64 are supported)" >&2; exit 1 ;; \
    esac; \
    rustup target add "$target"; \
    if [ "$BUILDARCH" != "$TARGETARCH" ]; then \
        apt-get update; \
        apt-get install --yes --no-install-recommends "gcc-$gcc" "libc6-dev-$TARGETARCH-cross"; \
        rm -rf /var/lib/apt/lists/*; \
    fi; \
    echo "$target" > /target
ENV CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_LINKER=x86_64-linux-gnu-gcc \
    CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
COPY . .
ARG CLOUDMAP_MCS_BUILD_COMMIT
ARG CLOUDMAP_MCS_BUILD_DATE
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/source/target,sharing=locked \
    cargo build --profile dist --locked --package cloudmap-mcs --bin cloudmap-mcs --target "$(cat /target)" \
    && cp "target/$(cat /target)/dist/cloudmap-mcs" /cloudmap-mcs

# glibc, libgcc and CA certificates, no shell; user 65532.
FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /cloudmap-mcs /usr/local/bin/cloudmap-mcs
COPY LICENSE /LICENSE
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["/usr/local/bin/cloudmap-mcs"]
CMD ["run"]
