"""Names of the level `preload`: for the GPU code, which enforces it, and the engines, which mount its files."""

LIBRARY, LIST = "libvgpu.so", "ld.so.preload"
"""The interposer, and the file that makes each program load it: their names in a folder of the node."""
LIBRARY_INSIDE, LIST_INSIDE = f"/usr/local/vgpu/{LIBRARY}", f"/etc/{LIST}"
"""Their paths in a container. HAMi-core expects its library at this path."""
VARIABLE = "COMMONAGE_GPU_PRELOAD"
"""The variable of a container that has an interposer: the folder of its node with both files."""
