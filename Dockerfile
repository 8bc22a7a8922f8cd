# longsift with object stores, in an image of its binary and the system's certificates.
#
#     docker build -t longsift .
#     docker run --rm -v "$PWD:/work" -w /work longsift run pipeline.yaml
#
# GPUs: build with `--build-arg FEATURES=cloud,cuda` and run with `--gpus all`; the driver of the host is used.
FROM rust:1.95-slim-trixie AS build
ARG FEATURES=cloud
RUN apt-get update && apt-get install --yes --no-install-recommends gcc g++ libc6-dev python3 python3-pip \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN case ",$FEATURES," in *,cuda,*) scripts/cuda-toolchain.sh target/cuda && . target/cuda/env.sh ;; esac; \
    cargo build --release --locked -p longsift-engine --bin longsift --features "$FEATURES" \
    && cp target/release/longsift /longsift

FROM debian:trixie-slim
RUN apt-get update && apt-get install --yes --no-install-recommends ca-certificates && rm -rf /var/lib/apt/lists/*
COPY --from=build /longsift /usr/local/bin/longsift
# Nobody in particular: give `--user` and a folder that this user may write.
USER 65534:65534
ENV XDG_CACHE_HOME=/tmp/cache
ENTRYPOINT ["longsift"]
