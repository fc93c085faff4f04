"""The few calls of the CUDA driver API that `probe` needs, by ctypes. Every failure is a CudaError.

Source: NVIDIA, "CUDA Driver API". The names with _v2 are those that the current header's plain names stand for.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from typing import Any

LIBRARY = "libcuda.so.1"
OUT_OF_MEMORY = 2
MIB = 1024 * 1024

BURN = b"""
.version 6.4
.target sm_70
.address_size 64
.visible .entry burn(.param .u64 out, .param .u32 rounds)
{
  .reg .pred %p<2>;
  .reg .b32 %r<7>;
  .reg .f32 %f<3>;
  .reg .b64 %d<5>;
  ld.param.u64 %d1, [out];
  ld.param.u32 %r1, [rounds];
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mov.u32 %r4, %tid.x;
  mad.lo.s32 %r5, %r2, %r3, %r4;
  cvt.rn.f32.u32 %f1, %r5;
  mov.f32 %f2, 0f3F7FFFEF;
  mov.u32 %r6, 0;
again:
  fma.rn.f32 %f1, %f1, %f2, %f2;
  add.u32 %r6, %r6, 1;
  setp.lt.u32 %p1, %r6, %r1;
  @%p1 bra again;
  cvta.to.global.u64 %d2, %d1;
  mul.wide.u32 %d3, %r5, 4;
  add.s64 %d4, %d2, %d3;
  st.global.f32 [%d4], %f1;
  ret;
}
"""
"""A kernel that multiplies and adds `rounds` times in each thread, in PTX for compute capability 7.0 or newer.

It writes one float, so that it is not optimised away. The driver compiles it for the GPU.
"""
BLOCKS, THREADS = 256, 256


class CudaError(Exception):
    """A call failed: `code` is CUresult's number, -1 if the library itself cannot be used."""

    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"{call}: {name}")
        self.code = code
        self.name = name


class Cuda:
    """The library, initialised. Not thread-safe."""

    def __init__(self, library: str = LIBRARY) -> None:
        try:
            self._library: Any = ctypes.CDLL(library)
        except OSError as error:
            raise CudaError(library, -1, f"cannot be loaded: {error}") from error
        self._do("cuInit", c_uint(0))

    def _do(self, call: str, *args: Any) -> None:
        try:
            function = getattr(self._library, call)
        except AttributeError as error:
            raise CudaError(call, -1, "this driver does not have it") from error
        code = function(*args)
        if code != 0:
            raise CudaError(call, code, self._name(code))

    def _name(self, code: int) -> str:
        text = c_char_p()
        known = self._library.cuGetErrorName(c_int(code), byref(text)) == 0 and text.value is not None
        return text.value.decode("ascii", "replace") if known and text.value else f"error {code}"

    def devices(self) -> list[str]:
        """The uuids of the visible GPUs, in hexadecimal digits only."""
        count = c_int()
        self._do("cuDeviceGetCount", byref(count))
        found = []
        for ordinal in range(count.value):
            device, uuid = c_int(), (c_ubyte * 16)()
            self._do("cuDeviceGet", byref(device), c_int(ordinal))
            self._do("cuDeviceGetUuid_v2", uuid, device)
            found.append(bytes(uuid).hex())
        return found

    def use(self, ordinal: int) -> None:
        """Create the GPU's primary context, and make it current."""
        device, context = c_int(), c_void_p()
        self._do("cuDeviceGet", byref(device), c_int(ordinal))
        self._do("cuDevicePrimaryCtxRetain", byref(context), device)
        self._do("cuCtxSetCurrent", context)

    def memory_mib(self) -> tuple[int, int]:
        """Free and total memory of the GPU as the context sees it, MiB."""
        free, total = c_size_t(), c_size_t()
        self._do("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value // MIB, total.value // MIB

    def allocate(self, mib: int) -> int:
        address = c_uint64()
        self._do("cuMemAlloc_v2", byref(address), c_size_t(mib * MIB))
        return address.value

    def free(self, address: int) -> None:
        self._do("cuMemFree_v2", c_uint64(address))

    def burner(self) -> Burner:
        return Burner(self)

    def load(self, program: bytes, entry: bytes) -> c_void_p:
        """The function `entry` of a PTX program."""
        module, function = c_void_p(), c_void_p()
        self._do("cuModuleLoadData", byref(module), c_char_p(program))
        self._do("cuModuleGetFunction", byref(function), module, c_char_p(entry))
        return function

    def launch(self, function: c_void_p, *args: Any) -> None:
        """Launch the kernel on BLOCKS blocks of THREADS threads each, and wait until it ends."""
        pointers = (c_void_p * len(args))(*(ctypes.cast(byref(one), c_void_p) for one in args))
        grid = [c_uint(size) for size in (BLOCKS, 1, 1, THREADS, 1, 1, 0)]
        self._do("cuLaunchKernel", function, *grid, c_void_p(), pointers, c_void_p())
        self._do("cuCtxSynchronize")


class Burner:
    """The kernel with a buffer for its results."""

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda
        self._function = cuda.load(BURN, b"burn")
        self._out = cuda.allocate(max(1, BLOCKS * THREADS * 4 // MIB + 1))

    def burn(self, rounds: int) -> None:
        """Compute for this number of rounds. Raises CudaError, also for an earlier asynchronous error on the GPU."""
        self._cuda.launch(self._function, c_uint64(self._out), c_uint(rounds))
