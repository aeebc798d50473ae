"""Metrics, for Prometheus."""

from __future__ import annotations

from fastapi import APIRouter, Response

from framekeeper.gateway import metrics

router = APIRouter(tags=["operation"])


@router.get("/metrics", response_class=Response)
def read_metrics() -> Response:
    """The gateway's metrics, of all its processes."""
    return Response(metrics.exposition(), media_type=metrics.CONTENT_TYPE)
