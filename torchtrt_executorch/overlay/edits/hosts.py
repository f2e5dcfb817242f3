"""Edits of Torch-TensorRT for machines without a GPU or TensorRT, a tuple per patch: they are this distribution's own."""

from __future__ import annotations

from torchtrt_executorch.overlay.edit import Edit
from torchtrt_executorch.overlay.edits import edits_of

_HOST = "torchtrt_executorch.nogpu.host"
_EMULATION = "torchtrt_executorch.nogpu.emulation"
_DYNAMO = "torch_tensorrt.dynamo"
_RUNTIME = f"{_DYNAMO}.runtime"
_CONVERT = f"{_DYNAMO}.conversion._conversion"
_ENGINE = f"{_RUNTIME}._TRTEngine"
_INTERPRETER = f"{_DYNAMO}.conversion._TRTInterpreter"
_META_OPS = f"{_RUNTIME}.meta_ops.register_meta_ops"


def _answering(module: str) -> tuple[Edit, ...]:
    """Return the edits with which a module's CUDA queries are answered for the GPU description."""
    code = """
    from torchtrt_executorch.nogpu.host.cuda_queries import described_torch

    torch = described_torch()
    """
    return edits_of(module, ("", "last", code))


def _standing_in(module: str) -> tuple[Edit, ...]:
    """Return the edits with which a module keeps engines that can't be deserialized here as they were built."""
    code = """
    from torchtrt_executorch.nogpu.stand_ins.engine import StandInTensorRT

    trt = StandInTensorRT(trt)
    """
    return edits_of(module, ("", "last", code))


_CHECK_CAN_BUILD = (
    "",
    "imports",
    "from torchtrt_executorch.nogpu.host.building import check_can_build",
)
_CHECK_CAN_RUN = (
    "",
    "imports",
    "from torchtrt_executorch.nogpu.host.gpu_needed import check_can_run",
)

HOST = (
    *edits_of(
        "torch_tensorrt",
        (
            "",
            "last",
            "from torchtrt_executorch.nogpu.host.importable import subpackage as __getattr__",
        ),
    ),
    *_answering("torch_tensorrt._Device"),
    *_answering("torch_tensorrt._utils"),
    *_answering(f"{_DYNAMO}._compiler"),
    *_answering(f"{_DYNAMO}._defaults"),
    *_answering(_ENGINE),
    *_answering(f"{_RUNTIME}._serialized_engine_layout"),
    *edits_of(
        f"{_DYNAMO}.utils",
        (
            "to_torch_device",
            "first",
            f"""
            from {_HOST} import present

            if not present.cuda_device():
                return torch.device("cpu")
            """,
        ),
    ),
    *edits_of(
        _ENGINE,
        (
            "",
            "last",
            """
            from torchtrt_executorch.nogpu.host.python_only import register_fake_kernels

            register_fake_kernels()
            """,
        ),
    ),
    *edits_of(
        _ENGINE,
        (
            "",
            "imports",
            "from torchtrt_executorch.nogpu.target.engine_targets import loadable_platform",
        ),
        (
            "TRTEngine._setup_engine",
            "call _current_serialized_platform",
            "loadable_platform({}, self.serialized_target_platform)",
        ),
        releases={"torch-tensorrt": ">=2.14"},  # 2.13 loads an engine of any platform
    ),
    *edits_of(
        f"{_RUNTIME}._TorchTensorRTModule",
        (
            "",
            "imports",
            "from torchtrt_executorch.nogpu.target.engine_targets import recorded_platform",
        ),
        (
            "TorchTensorRTModule.__init__",
            "after self.target_platform",
            "self.target_platform = recorded_platform(self.target_platform)",
        ),
    ),
    *edits_of(
        "torch_tensorrt._compile",
        _CHECK_CAN_BUILD,
        # Behind the arguments' checks: what is wrong with them is said on any host.
        ("compile", "after target_ir", 'check_can_build(kwargs.get("dryrun"))'),
        (
            "convert_method_to_trt_engine",
            "after target_ir",
            'check_can_build(kwargs.get("dryrun"))',
        ),
    ),
    *edits_of(
        f"{_DYNAMO}._compiler",
        _CHECK_CAN_BUILD,
        ("compile", "after engine_capability", "check_can_build(dryrun)"),
        ("compile_module", "first", "check_can_build(settings.dryrun)"),
        (
            "convert_exported_program_to_serialized_trt_engine",
            "after engine_capability",
            "check_can_build(dryrun)",
        ),
    ),
    *edits_of(
        f"{_DYNAMO}._refit",
        _CHECK_CAN_RUN,
        ("refit_module_weights", "first", 'check_can_run("refitting an engine")'),
    ),
    *edits_of(
        "torch_tensorrt.runtime._cudagraphs",
        _CHECK_CAN_RUN,
        ("enable_cudagraphs", "first", 'check_can_run("capturing a CUDA graph")'),
        (
            "set_cudagraphs_mode",
            "first",
            """
            if mode:
                check_can_run("capturing CUDA graphs")
            """,
        ),
    ),
    *edits_of(
        _INTERPRETER,
        (
            "",
            "imports",
            """
            from torchtrt_executorch.nogpu.host.gpu_needed import check_can_build_refittable
            from torchtrt_executorch.nogpu.target.engine_targets import for_targets
            """,
        ),
        (
            "TRTInterpreter._populate_trt_builder_config",
            "first",
            "check_can_build_refittable(self.compilation_settings)",
        ),
        (
            "TRTInterpreter._populate_trt_builder_config",
            "return",
            "for_targets({})",
        ),
    ),
    *edits_of(
        f"{_RUNTIME}._MutableTorchTensorRTModule",
        (
            "",
            "imports",
            "from torchtrt_executorch.nogpu.host.gpu_needed import compile_for_refit",
        ),
        (
            "MutableTorchTensorRTModule.compile",
            "call dynamo_compile",
            "compile_for_refit(dynamo_compile, {args})",
        ),
    ),
)

EMULATED_ENGINES = (
    *edits_of(
        _CONVERT,
        ("", "imports", f"from {_EMULATION}.engines import with_emulation"),
        ("interpret_module_to_result", "decorator", "@with_emulation"),
    ),
    *_standing_in(_CONVERT),
    *_standing_in(_INTERPRETER),
    *_standing_in(f"{_DYNAMO}._refit"),
    *_standing_in(_ENGINE),
    *edits_of(
        _ENGINE,
        (
            "TRTEngine._setup_engine",
            "first",
            f"""
            from {_EMULATION}.engines import set_up_stand_in

            if set_up_stand_in(self):
                return
            """,
        ),
        (
            "TRTEngine.execute",
            "first",
            f"""
            from {_EMULATION}.engines import is_stand_in, unpacked

            if is_stand_in(self.cuda_engine):
                return unpacked(self.cuda_engine.run(inputs))
            """,
        ),
    ),
    *edits_of(
        f"{_RUNTIME}._TorchTensorRTModule",
        (
            "TorchTensorRTModule.forward",
            "first",
            f"""
            from {_EMULATION}.engines import is_stand_in, unpacked

            # A stand-in takes its inputs where they are.
            if is_stand_in(getattr(self.engine, "cuda_engine", None)):
                tensors = [torch.as_tensor(value) for value in inputs]
                return unpacked(torch.ops.tensorrt.execute_engine(tensors, self.engine))
            """,
        ),
    ),
    *edits_of(
        _META_OPS,
        (
            "no_op_placeholder_for_execute_engine",
            "first",
            f"""
            from torch_tensorrt.dynamo.runtime._engine_bytes import engine_bytes
            from {_EMULATION}.payload import stand_in_of

            # ExecuTorch runs edge programs, in which engines are this placeholder, in Python.
            stand_in = stand_in_of(engine_bytes(serialized_engine))
            if stand_in is not None:
                return stand_in(inputs)
            """,
        ),
    ),
)
