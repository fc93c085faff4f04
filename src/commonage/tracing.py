"""Traces of requests and workloads for OpenTelemetry, used like `logging`: one tracer for each process.

Off until `configure` is called: then nothing is imported, and the functions below do nothing. A trace begins with a
request. Its W3C traceparent is stored with the workload and passed to all components that handle it, so a restart does
not end the trace.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

HEADER = "traceparent"
NS_PER_S = 1_000_000_000
Attribute = str | int | float | bool


class TracingMissing(Exception):
    """The packages of the extra `tracing` are not installed."""


class _Tracer(Protocol):
    def begin(self, name: str, parent: str, began_s: float | None, attributes: dict[str, Attribute]) -> Any: ...
    def current(self) -> str: ...
    def active(self, span: Any) -> Any: ...


_tracer: _Tracer | None = None


def configure(endpoint: str, component: str, share: float = 1.0) -> None:
    """Send spans to `endpoint` by OTLP over HTTP from now on; `share` of the traces that begin here are kept.

    Spans wait in memory for up to five seconds; those of a collector that does not answer are dropped. Raises
    TracingMissing.
    """
    global _tracer  # noqa: PLW0603 - one for each process, as OpenTelemetry's own
    try:
        _tracer = _otlp(endpoint, component, share)
    except ImportError as error:
        raise TracingMissing(
            f"tracing_endpoint is set, but {error.name} is not installed. Run pip install 'commonage[tracing]', or "
            "remove the setting."
        ) from error


def is_on() -> bool:
    return _tracer is not None


def current() -> str:
    """The traceparent of the open span of this task; empty if no span is open, or its trace is not kept."""
    return "" if _tracer is None else _tracer.current()


def headers() -> dict[str, str]:
    """Headers of a request to another component of the platform."""
    parent = current()
    return {HEADER: parent} if parent else {}


@contextmanager
def span(name: str, parent: str = "", *, begins: bool = False, **attributes: Attribute) -> Iterator[None]:
    """A span around a piece of work, below `parent` or else the open span. With neither, no span is made, unless
    `begins`: then it begins a trace.
    """
    if _tracer is None or not (begins or parent or _tracer.current()):
        yield
        return
    with _tracer.active(_tracer.begin(name, parent, None, attributes)):
        yield


def record(name: str, parent: str, began_s: float, ended_s: float, **attributes: Attribute) -> None:
    """A span of the past, in unix seconds. Without a parent, no span is made."""
    if _tracer is not None and parent:
        _tracer.begin(name, parent, began_s, attributes).end(int(ended_s * NS_PER_S))


def _otlp(endpoint: str, component: str, share: float) -> _Tracer:
    # Imported here: they take time and memory, and are installed only where traces are wanted.
    from opentelemetry import trace  # noqa: PLC0415 - see above
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - see above
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - see above
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - see above
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 - see above
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased  # noqa: PLC0415 - see above
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415 - see above

    resource = Resource.create({"service.name": f"commonage-{component}"})
    ratio = TraceIdRatioBased(share)  # for requests from outside, too: the caller does not decide how much is kept
    sampler = ParentBased(ratio, remote_parent_sampled=ratio)
    provider = TracerProvider(resource=resource, sampler=sampler)
    exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces")
    provider.add_span_processor(BatchSpanProcessor(exporter))
    tracer, propagator = provider.get_tracer("commonage"), TraceContextTextMapPropagator()

    class Otlp:
        def begin(self, name: str, parent: str, began_s: float | None, attributes: dict[str, Attribute]) -> Any:
            above = propagator.extract({HEADER: parent}) if parent else None
            began = None if began_s is None else int(began_s * NS_PER_S)
            named = {f"commonage.{key}": value for key, value in attributes.items() if value != ""}
            return tracer.start_span(name, above, attributes=named, start_time=began)

        def current(self) -> str:
            if not trace.get_current_span().get_span_context().trace_flags.sampled:
                return ""
            carrier: dict[str, str] = {}
            propagator.inject(carrier)
            return carrier.get(HEADER, "")

        def active(self, span: Any) -> Any:
            return trace.use_span(span, end_on_exit=True)

    return Otlp()
