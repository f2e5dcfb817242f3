"""Table of the functions of Inductor, Dynamo, Triton and the CUDA backend that are overridden for a GPU description.

None of them is meant for others, so each has its reason here, the releases that have it, and whether a
compiler would look for the device without it. What upstream lets one set is set (:mod:`._options`), and
names that anybody may call, as ``torch.cuda``'s, aren't listed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from torchtrt_executorch.nogpu.thread_scope import lookup


@dataclass(frozen=True)
class PatchPoint:
    """A name that upstream keeps for itself.

    Attributes:
        why: What fails without it.
        required: Whether nothing is compiled with a release that hasn't it.
        releases: Releases of its package that have it; if empty, all supported ones.
    """

    why: str
    required: bool = False
    releases: str = ""


_INDUCTOR = "torch._inductor"
_FOLDER = f"{_INDUCTOR}.fx_passes.joint_graph:UniformValueConstantFolder"

PATCH_POINTS = {
    # The device
    "torch._dynamo.device_interface:get_interface_for_device": PatchPoint(
        "Inductor asks it for whatever it wants to know of a device", True
    ),
    "torch._subclasses.fake_tensor:init_gpu_context": PatchPoint(
        "fake tensors put a real one on the device first"
    ),
    "torch.cuda:_exchange_device": PatchPoint("a guard of the current device calls it"),
    "torch.cuda:_maybe_exchange_device": PatchPoint("as above"),
    "torch.cuda:_lazy_init": PatchPoint("PyTorch would load the driver"),
    "triton.runtime.driver:DriverConfig.active": PatchPoint(
        "Triton asks it what to compile for", True
    ),
    "triton.compiler.compiler:max_shared_mem": PatchPoint(
        "it remembers one GPU's, and a kernel may be for one of several", True
    ),
    f"{_INDUCTOR}.runtime.triton_helpers:set_driver_to_gpu": PatchPoint(
        "each kernel, when it is defined, puts the GPU's own driver in", True
    ),
    f"{_INDUCTOR}.utils:is_big_gpu": PatchPoint(
        "matmuls on small GPUs are left to ATen, of which the backend has no kernels",
        True,
    ),
    f"{_INDUCTOR}.fx_passes.joint_graph:lazy_init": PatchPoint(
        "patterns are traced on the device; here they have been, on the CPU", True
    ),
    f"{_FOLDER}._deduce_value": PatchPoint("constants are folded on the device"),
    f"{_FOLDER}._add_peephole_patterns": PatchPoint("as above"),
    # Functions that run or time kernels
    f"{_INDUCTOR}.codegen.wrapper:PythonWrapperCodegen.generate_and_run_autotune_block": PatchPoint(
        "it runs each kernel before it is saved", True
    ),
    f"{_INDUCTOR}.select_algorithm:AlgorithmSelectorCache.__call__": PatchPoint(
        "it times what there is to choose from", True
    ),
    f"{_INDUCTOR}.codegen.simd:SIMDScheduling.codegen_template": PatchPoint(
        "of several GPUs each may have a kernel of its own"
    ),
    f"{_INDUCTOR}.choices:InductorChoices.get_conv_configs": PatchPoint(
        "convolutions have smaller tiles beside Inductor's"
    ),
    f"{_INDUCTOR}.choices:InductorChoices._finalize_template_configs": PatchPoint(
        "it writes a kernel for each configuration, of which one is taken"
    ),
    f"{_INDUCTOR}.runtime.triton_heuristics:CachingAutotuner.precompile": PatchPoint(
        "what doesn't compile is passed over when kernels are timed"
    ),
    f"{_INDUCTOR}.runtime.triton_heuristics:CachingAutotuner.save_gpu_kernel": PatchPoint(
        "what another GPU can't launch is compiled with other tiles"
    ),
    f"{_INDUCTOR}.compile_fx:compile_fx_aot": PatchPoint(
        "as above: all is compiled again"
    ),
    f"{_INDUCTOR}.graph:GraphLowering.run_node": PatchPoint(
        "what doesn't compile when it is fused is computed apart"
    ),
    f"{_INDUCTOR}.decomposition:select_decomp_table": PatchPoint(
        "GEMVs would be matmuls in mostly empty tiles"
    ),
    f"{_INDUCTOR}.select_algorithm:TritonTemplateKernel.render": PatchPoint(
        "its templates multiply float32 without tensor cores"
    ),
    f"{_INDUCTOR}.kernel.conv:convert_1x1_conv_to_mm": PatchPoint(
        "a convolution would be as exact, and as slow, as a matmul"
    ),
    f"{_INDUCTOR}.select_algorithm:TritonTemplateKernel.size": PatchPoint(
        "matmuls that only differ in K would each have a kernel"
    ),
    f"{_INDUCTOR}.select_algorithm:TritonTemplateKernel.stride": PatchPoint("as above"),
    f"{_INDUCTOR}.select_algorithm:TritonTemplateKernel.load_input": PatchPoint(
        "as above"
    ),
    f"{_INDUCTOR}.codegen.triton_combo_kernel:_custom_combo_kernel_horizontal_partition_algorithm": PatchPoint(
        "elementwise kernels and reductions of a decode step would be a launch each"
    ),
    f"{_INDUCTOR}.codegen.triton:TritonScheduling.define_kernel": PatchPoint(
        "Triton can't tell rows by its indices behind a matmul"
    ),
    "torch._higher_order_ops.triton_kernel_wrap:identify_accessed_tensors": PatchPoint(
        "it compiles a kernel again for each call that is like another"
    ),
    f"{_INDUCTOR}.scheduler:Scheduler.can_fuse": PatchPoint(
        "it analyzes all pairs of nodes that read one buffer, layers apart"
    ),
    f"{_INDUCTOR}.utils:normalize_name": PatchPoint(
        "it is called for each pair of weights"
    ),
    f"{_INDUCTOR}.codegen.cpp_wrapper_cpu:CppWrapperCpu.finalize_prefix": PatchPoint(
        "it looks for each weight among all"
    ),
    f"{_INDUCTOR}.dtype_propagation:DtypePropagationOpsHandler.__init__": PatchPoint(
        "it fills its table for each operator of each kernel"
    ),
    # Weights, which stay on the host
    f"{_INDUCTOR}.codecache:AotCodeCompiler.compile": PatchPoint(
        "it writes the weights' bytes, from the device", True
    ),
    f"{_INDUCTOR}.utils:clone_preserve_strides": PatchPoint(
        "it copies what the program writes to", True
    ),
    f"{_INDUCTOR}.utils:is_same_tensor": PatchPoint(
        "it compares addresses, of which a described device has none", True
    ),
    f"{_INDUCTOR}.ir:ExternKernel.realize_input": PatchPoint(
        "it puts a number that is returned, or carried into a loop, on the device"
    ),
    "executorch.backends.cuda.cuda_weight_collector:_write_tensor_storage": PatchPoint(
        "it writes a weight's bytes, from the device", releases=">=1.5"
    ),
    "executorch.backends.cuda.cuda_weight_collector:mapped_data": PatchPoint(
        "it asks for a weight's memory, which the device has", releases=">=1.5"
    ),
    "executorch.backends.cuda.cuda_weight_collector:trim_host_memory": PatchPoint(
        "it collects garbage around copies of weights, of which there are none",
        releases=">=1.5",
    ),
    "executorch.backends.cuda.cuda_backend:_move_to_device_resize_kv": PatchPoint(
        "it moves weights to the device"
    ),
    "executorch.backends.cuda.cuda_backend:_compile_time_cpu_clones": PatchPoint(
        "it spares the device's memory"
    ),
    f"{_INDUCTOR}.graph:GraphLowering.get_attr": PatchPoint(
        "it reads weights of convolutions as they are, and converts them in each call"
    ),
    # Its memory
    f"{_INDUCTOR}.codegen.cpp_wrapper_cpu:CppWrapperCpu.codegen_model_constructor": PatchPoint(
        "what a call frees goes back to the driver before the next one"
    ),
    # Launches
    "torch._inductor.codegen.cuda.device_op_overrides:CUDADeviceOpOverrides.kernel_driver": PatchPoint(
        "it launches each kernel behind the end of the one before"
    ),
    "torch._inductor.codegen.cuda.device_op_overrides:CUDADeviceOpOverrides.tma_descriptor_helpers": PatchPoint(
        "it encodes no TMA descriptor of a block with rows of more than 128 bytes"
    ),
    "torch._inductor.codegen.cpp_wrapper_gpu:CppWrapperGpu._generate_stable_tma_descriptor": PatchPoint(
        "Clang rejects the declaration of a TMA descriptor with CUDA 13"
    ),
    "triton.backends.nvidia.compiler:CUDABackend.parse_options": PatchPoint(
        "kernels that wait for the one before are told from others on disk"
    ),
    "triton.backends.nvidia.compiler:CUDABackend.make_ptx": PatchPoint(
        "kernels don't wait for the one before"
    ),
    # The environment
    f"{_INDUCTOR}.runtime.cache_dir_utils:os": PatchPoint(
        "it reads in the environment where compilers keep things", True
    ),
    f"{_INDUCTOR}.runtime.triton_heuristics:os": PatchPoint(
        "it sets in the environment where Triton keeps things", True
    ),
    "triton.knobs:getenv": PatchPoint("as the first, for Triton", True),
    "triton.knobs:getenv_bool": PatchPoint(
        "with line information machine code names this machine's files", True
    ),
    # Compilers
    "triton.compiler.compiler:compile": PatchPoint(
        "what compiles a kernel for one GPU has to compile it for others", True
    ),
    f"{_INDUCTOR}.codecache:CudaKernelParamCache.set": PatchPoint(
        "it saves machine code for one GPU", True
    ),
    f"{_INDUCTOR}.cpu_vec_isa:pick_vec_isa": PatchPoint(
        "it compiles for this machine's vectors"
    ),
    f"{_INDUCTOR}.cpp_builder:get_cpp_options": PatchPoint(
        "nothing else takes more options for the host's side: no paths, no symbols"
    ),
    f"{_INDUCTOR}.cpp_builder:run_compile_cmd": PatchPoint(
        "what all libraries have in common would be compiled for each"
    ),
    "torch.utils.cpp_extension:_join_cuda_home": PatchPoint(
        "it looks for a toolkit, once, when it is imported", True
    ),
    "torch.utils._sympy.printers:CppPrinter._print_Integer": PatchPoint(
        "it writes integers for this machine's operating system"
    ),
    f"{_INDUCTOR}.codegen.cpp_wrapper_cpu:CppWrapperCpu.val_to_arg_str_for_prim_type": PatchPoint(
        "as above"
    ),
}

#: Functions that remember what they were told of the device, and modules, all of whose functions do. Within
#: a scope each has a memory of its own: what they know of no device doesn't reach in, and what they learn
#: doesn't get out.
REMEMBERING = (
    "torch._dynamo.debug_utils:_cuda_system_info_comment",
    f"{_INDUCTOR}.codecache:CacheBase.get_system",
    f"{_INDUCTOR}.cpp_builder",
    f"{_INDUCTOR}.kernel.mm:_is_sm7x_or_older_gpu",
    f"{_INDUCTOR}.runtime.hints:DeviceProperties.create",
    f"{_INDUCTOR}.utils",
    "torch.utils._triton",
)


def isolated_caches() -> dict[str, Callable[..., Any]]:
    """Return the replacements of :data:`REMEMBERING`, by name: the same functions with empty caches."""
    functions: dict[str, Any] = {}
    for path in REMEMBERING:
        if ":" in path:
            functions[path] = lookup(path)
            continue
        for name, value in vars(import_module(path)).items():
            if getattr(value, "__module__", None) == path:
                functions[f"{path}:{name}"] = value
    return {
        path: functools.cache(function.__wrapped__)
        for path, function in functions.items()
        if hasattr(function, "cache_info")
    }
