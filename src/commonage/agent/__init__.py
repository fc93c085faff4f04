"""The agent: runs on each machine of a site, dials to the control plane, tells what the machine has and does its asks.

It needs Python 3.11 and nothing else, so that joining is one small download (`commonage.link.bundle`): nothing here, or
in what is imported here, may use a library beyond the standard one. NVML's binding travels along.
"""
