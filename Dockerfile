# Builds for linux/amd64 and linux/arm64 on either, by cross-compilation:
#   docker buildx build --platform linux/amd64,linux/arm64 --tag <registry>/cloudmap-mcs:0.1.0 \
#     --build-arg CLOUDMAP_MCS_BUILD_COMMIT="$(git rev-parse HEAD)" --push .
# With --target emulator: the emulator of Cloud Map.
# Commit and date of the build are arguments, because the sources come without git: see build_facts in integration/stages.sh.
ARG RUST_VERSION=1.95.0
# A release gives each of them by digest: see step_image in integration/release.sh.
ARG RUST_IMAGE=rust:${RUST_VERSION}-bookworm
ARG CC_IMAGE=gcr.io/distroless/cc-debian12:nonroot
ARG STATIC_IMAGE=gcr.io/distroless/static-debian12:nonroot

FROM --platform=$BUILDPLATFORM ${RUST_IMAGE} AS sources
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

FROM sources AS build-emulator
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/source/target,sharing=locked \
    cargo build --release --locked --package cloudmap-emulator --no-default-features --target "$(cat /target)" \
    && cp "target/$(cat /target)/release/cloudmap-emulator" /cloudmap-emulator

FROM ${CC_IMAGE} AS emulator
COPY --from=build-emulator /cloudmap-emulator /usr/local/bin/cloudmap-emulator
COPY LICENSE /LICENSE
USER 65532:65532
EXPOSE 8700
ENTRYPOINT ["/usr/local/bin/cloudmap-emulator"]
CMD ["--listen", "0.0.0.0:8700"]

FROM sources AS build
ARG CLOUDMAP_MCS_BUILD_COMMIT
ARG CLOUDMAP_MCS_BUILD_DATE
# As build_dist in integration/stages.sh.
ENV RUSTFLAGS="-C force-unwind-tables=no -C target-feature=+crt-static -C link-arg=-Wl,-z,pack-relative-relocs"
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/source/target,sharing=locked \
    cargo build --profile dist --locked --package cloudmap-mcs --bin cloudmap-mcs --target "$(cat /target)" \
    && cp "target/$(cat /target)/dist/cloudmap-mcs" /cloudmap-mcs

# CA certificates, no libraries and no shell; user 65532.
FROM ${STATIC_IMAGE} AS controller
ARG CLOUDMAP_MCS_BUILD_COMMIT
ARG CLOUDMAP_MCS_BUILD_DATE
LABEL org.opencontainers.image.revision=$CLOUDMAP_MCS_BUILD_COMMIT org.opencontainers.image.created=$CLOUDMAP_MCS_BUILD_DATE
COPY --from=build /cloudmap-mcs /usr/local/bin/cloudmap-mcs
COPY LICENSE /LICENSE
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["/usr/local/bin/cloudmap-mcs"]
CMD ["run"]
