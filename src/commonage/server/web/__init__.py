"""HTTP of the control plane: uvicorn, WebSockets, and the gateway for workloads."""
