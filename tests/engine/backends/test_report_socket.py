"""Reports across the socket: order, a receiver that is gone, a handler that fails."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from framekeeper.engine.backends import report_socket
from framekeeper.engine.backends.report_socket import (
    AnyReport,
    EndReport,
    PhaseReport,
    Receiver,
    Sender,
    StepReport,
)

STEP = StepReport(request="r", step=1, steps=2, seconds=0.5, memory_bytes=7, expert=None)
END = EndReport(
    request="r", step=2, seconds={"denoising": 1.0}, expert_steps={0: 1, 1: 1}, peak_memory_bytes=9
)


def test_reports_arrive_unchanged_and_in_order() -> None:
    got: list[AnyReport] = []
    done = threading.Event()

    def handle(report: AnyReport) -> None:
        got.append(report)
        if isinstance(report, EndReport):
            done.set()

    receiver = Receiver(handle)
    sent: list[AnyReport] = [PhaseReport(request="r", name="denoising"), STEP, END]
    sender = Sender(receiver.path)
    for report in sent:
        sender.send(report)
    assert done.wait(5)
    assert got == sent
    receiver.close()


def test_closing_removes_the_directory_and_repeats() -> None:
    receiver = Receiver(lambda report: None)
    receiver.close()
    receiver.close()
    assert not Path(receiver.path).parent.exists()


def test_a_receiver_that_is_gone_costs_nothing() -> None:
    receiver = Receiver(lambda report: None)
    sender = Sender(receiver.path)
    receiver.close()
    began = time.monotonic()
    for _ in range(100):
        sender.send(STEP)
    assert time.monotonic() - began < 1


def test_a_stuck_receiver_delays_a_report_by_a_bounded_time() -> None:
    release = threading.Event()
    receiver = Receiver(lambda report: release.wait(20) and None)
    sender = Sender(receiver.path)
    slowest = 0.0
    # More than any kernel queues for a datagram socket; stop at the first report that had to wait.
    for _ in range(5000):
        began = time.monotonic()
        sender.send(STEP)
        slowest = max(slowest, time.monotonic() - began)
        if slowest > report_socket.SEND_SECONDS / 2:
            break
    assert slowest < report_socket.SEND_SECONDS + 1
    release.set()
    receiver.close()


def test_a_failing_handler_does_not_end_the_thread() -> None:
    got: list[AnyReport] = []
    done = threading.Event()

    def handle(report: AnyReport) -> None:
        if isinstance(report, PhaseReport):
            raise RuntimeError("a listener's own trouble")
        got.append(report)
        done.set()

    receiver = Receiver(handle)
    sender = Sender(receiver.path)
    sender.send(PhaseReport(request="r", name="denoising"))
    sender.send(STEP)
    assert done.wait(5)
    assert got == [STEP]
    receiver.close()
