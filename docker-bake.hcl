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
  name       = "engine-${replace(runtime.name, ".", "_")}"
  matrix = {
    runtime = [
      { name = "omni-0.30-cpu", python = "3.11" },
      { name = "omni-0.30-cu130", python = "3.12" },
      { name = "torch-2.4.1-cu124", python = "3.11" },
    ]
  }
  args = {
    RUNTIME      = runtime.name
    PYTHON_IMAGE = "python:${runtime.python}-slim-bookworm"
    TORCH_SOURCE = TORCH_SOURCE
  }
  tags = ["${REGISTRY}framekeeper-engine:${VERSION}-${runtime.name}"]
}
