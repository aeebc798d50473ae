# `docker buildx bake` builds every image, `docker buildx bake gateway engine-omni-0_30-cpu` some.
variable "VERSION" { default = "0.1.0" }
variable "REVISION" { default = "unknown" }
variable "REGISTRY" { default = "" }
variable "TORCH_SOURCE" { default = "" }

group "default" { targets = ["gateway", "engine"] }
group "cpu" { targets = ["gateway", "engine-omni-0_30-cpu"] }

target "common" {
  context = "."
  args = {
    VERSION  = VERSION
    REVISION = REVISION
  }
}

target "gateway" {
  inherits   = ["common"]
  dockerfile = "docker/gateway.Dockerfile"
  tags       = ["${REGISTRY}framekeeper-gateway:${VERSION}"]
}

target "engine" {
  inherits   = ["common"]
  dockerfile = "docker/engine.Dockerfile"
  name       = "engine-${replace(runtime, ".", "_")}"
  matrix     = { runtime = ["omni-0.30-cpu", "omni-0.30-cu130", "torch-2.4.1-cu124"] }
  args = {
    RUNTIME      = runtime
    TORCH_SOURCE = TORCH_SOURCE
  }
  tags = ["${REGISTRY}framekeeper-engine:${VERSION}-${runtime}"]
}
