"""The agent: runs on each node of a site, connects to the control plane, reports the node and answers requests.

It needs Python 3.11 and nothing else, so that joining is one small download (`commonage.link.bundle`). Nothing here, or
in what is imported here, may use a library outside the standard library. The NVML binding is shipped along.
"""
