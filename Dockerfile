# The server's image: podsandboxd, the libraries that it needs, and the agent that goes into sandboxes. 25 MB, no shell.
#
#   docker build -t podsandbox .          (or podman, buildah)
#
# It runs with a read-only root, without any capability, as any user; --store wants a writable place.
FROM docker.io/library/debian:12 AS build
WORKDIR /src
COPY deploy/packages deploy/packages
RUN apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $(cat deploy/packages)
COPY . .
RUN cmake --preset release -DBUILD_TESTING=OFF \
    && cmake --build --preset release \
    && deploy/image-root build/release /image

FROM scratch
COPY --from=build /image /
USER 1000:1000
EXPOSE 8080
ENTRYPOINT ["/podsandboxd"]
