"""The GPUs of this node: real ones through NVML or AMD SMI, simulated ones, or none (`ports.devices`).

| question | module |
|---|---|
| Which GPUs does the node offer? | `detect`, `nvml.inventory`, `amd`, `simulated` |
| Why does a GPU take no work? | `nvml.health`, `nvml.xid`, `device_faults` |
| How does a share become environment variables? | `environment` |
| How is a share enforced, and at which level? | `isolation.devices`, then a module for each level |
| What does a workload really use? | `nvml.sample` |
"""
