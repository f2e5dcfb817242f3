"""Functions that ExecuTorch's ``libaoti_cuda_shims`` offers AOTInductor's CUDA libraries.

From the sources of executorch 1.4.1 (``backends/aoti/common_shims_slim.h`` and
``backends/cuda/runtime/shims``); those of 1.5 add none.
"""

from __future__ import annotations

_PREFIX = "aoti_torch_"

#: Without the prefix that all names have.
_SHIMS = """
    _reinterpret_tensor assign_tensors_out check clone clone_preserve_strides copy_
    create_cuda_guard create_cuda_stream_guard create_tensor_from_blob
    create_tensor_from_blob_v2 cuda__weight_int4pack_mm cuda_guard_set_index
    cuda_int4_plain_mm cuda_int5_plain_mm cuda_int6_plain_mm cuda_int8_plain_mm
    cuda_rand cuda_randint_low_out cuda_sort_stable delete_cuda_guard
    delete_cuda_stream_guard delete_tensor_object device_type_cpu device_type_cuda
    dtype_bfloat16 dtype_bool dtype_float16 dtype_float32 dtype_int16 dtype_int32
    dtype_int64 dtype_int8 dtype_uint8 empty_strided get_current_cuda_stream
    get_data_ptr get_device_index get_device_type get_dim get_dtype get_numel get_sizes
    get_storage_offset get_storage_size get_strides grad_mode_is_enabled
    grad_mode_set_enabled item_bool layout_strided new_tensor_handle warn
"""


def offered(name: str) -> bool:
    """Whether ExecuTorch offers the function ``name``, such as ``aoti_torch_get_dim``."""
    return name.removeprefix(_PREFIX) in _SHIMS.split()
