"""Stand-ins for the checks in this folder: attributes for a while, a card, streams, a pipeline's parts."""

from __future__ import annotations

from typing import Any


class Patched:
    """Sets attributes for a while."""

    def __init__(self, owner: Any, **attributes: Any) -> None:
        self.owner, self.attributes = owner, attributes

    def __enter__(self) -> None:
        self.before = {name: getattr(self.owner, name) for name in self.attributes}
        for name, value in self.attributes.items():
            setattr(self.owner, name, value)

    def __exit__(self, *_: object) -> None:
        for name, value in self.before.items():
            setattr(self.owner, name, value)


def raises(kind: type[Exception], work: Any) -> str:
    try:
        work()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__}")


class Cuda:
    """torch.cuda for `CudaDevice`: notes what is called."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def call(*_args: Any) -> Any:
            self.calls.append(name)
            return {
                "is_available": True,
                "get_device_name": "Some card",
                "memory_reserved": 11,
                "max_memory_reserved": 12,
                "mem_get_info": (13, 14),
            }.get(name)

        return call


class Streams:
    """torch.cuda with streams and events that only note their order."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self._current = "compute"
        self._events = 0
        owner = self

        class Stream:
            def __init__(self, name: str = "copy") -> None:
                self.name = name

            def wait_stream(self, other: Any) -> None:
                owner.order.append(f"{self.name} waits for {other.name}")

            def wait_event(self, event: Any) -> None:
                owner.order.append(f"{self.name} waits for event {event.number}")

        class Event:
            def __init__(self) -> None:
                owner._events += 1
                self.number = owner._events

            def record(self, stream: Any) -> None:
                owner.order.append(f"event {self.number} on {stream.name}")

        self.Stream, self.Event = Stream, Event

    def current_stream(self) -> Any:
        return self.Stream(self._current)

    def stream(self, chosen: Any) -> Any:
        return Patched(self, _current=chosen.name)


def blocks_of(count: int = 4) -> list[Any]:
    import torch

    torch.manual_seed(0)
    blocks = [torch.nn.Linear(6, 6) for _ in range(count)]
    for block in blocks:
        block.register_buffer("shift", torch.randn(6, dtype=torch.float64))
    return blocks


def run(blocks: list[Any], x: Any) -> Any:
    for block in blocks:
        x = block(x) + block.shift.float()
    return x


def run_within(blocks: list[Any], x: Any) -> Any:
    """As `run`, with the buffer added by a hook that runs before the layer is freed."""
    handles = [
        block.register_forward_hook(lambda module, _args, out: out + module.shift.float(), prepend=True)
        for block in blocks
    ]
    for block in blocks:
        x = block(x)
    for handle in handles:
        handle.remove()
    return x


class Pipeline:
    """The parts of a pipeline that offload touches."""

    def __init__(self) -> None:
        import torch

        class Transformer(torch.nn.Module):
            _layerwise_offload_blocks_attr = "blocks"

            def __init__(self) -> None:
                super().__init__()
                self.blocks = torch.nn.ModuleList(blocks_of())
                self.head = torch.nn.Linear(6, 6)
                self.table = torch.nn.Parameter(torch.ones(6))

            def forward(self, x: Any) -> Any:
                for block in self.blocks:
                    x = block(x)
                return self.head(x) + self.table

        self.transformer, self.transformer_2 = Transformer(), Transformer()
        self.text_encoder, self.vae = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6)
