"""A detector, from a photograph to one ``.pte`` over TensorRT, a partner and CPU kernels.

    python examples/detector.py --output detector.pte

The partner is ExecuTorch's CUDA backend, which compiles without a GPU as well; XNNPACK where there
is no Triton or no C++ compiler. TensorRT-RTX builds real engines anywhere. What can't run here,
engines and CUDA libraries, its partition stands in for. Only where there is TensorRT alone, and it
can't build, engines are emulated. The weights are random; nothing is downloaded.
"""

from __future__ import annotations

import logging
import shutil
import warnings
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import torch
import torch_tensorrt
import typer
from executorch.exir import EdgeProgramManager
from executorch.exir.backend.partitioner import Partitioner
from report import Report
from sklearn.datasets import load_sample_image
from torch import Tensor, nn
from torch.fx import GraphModule
from transformers import YolosConfig, YolosForObjectDetection

from torchtrt_executorch import emulated_engines, runtime
from torchtrt_executorch.files import check_writable, staged, write_program
from torchtrt_executorch.nogpu.emulation import emulation_enabled
from torchtrt_executorch.nogpu.host.present import can_build_engines, can_run_engines

HEIGHT, WIDTH, QUERIES, THRESHOLD = 128, 192, 40, 0.3
ROUTINGS = ("target", "node")
TOLERANCE = 1e-3  # absolute, of scores and of boxes in [0, 1]
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

# COCO numbers its 80 categories from 1 to 90; the last of YOLOS's 92 classes is "no object".
CLASSES = sorted(set(range(92)) - {0, 12, 26, 29, 30, 45, 66, 68, 69, 71, 83})


class Detections(nn.Module):
    """From YOLOS's answers to rows of what it found: two corners, score, category."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("classes", torch.tensor(CLASSES))

    def forward(self, logits: Tensor, boxes: Tensor) -> Tensor:
        scores, best = logits[:, self.classes].softmax(-1)[:, :-1].max(-1)
        labels = self.classes[best]
        # Not split(): ExecuTorch's CUDA backend has no kernel for it.
        centres, sizes = boxes[:, :2], boxes[:, 2:]
        corners = [centres - sizes / 2, centres + sizes / 2]
        rows = torch.cat([*corners, scores[:, None], labels[:, None]], -1)
        # How many pass is known at run time only: TensorRT would need an output allocator.
        # nonzero's result is transposed; ExecuTorch's kernels take its clone, which isn't.
        found = torch.nonzero(scores > THRESHOLD).clone()[:, 0]
        return rows[found]


class Detector(nn.Module):
    """A small YOLOS with fixed random weights, and :class:`Detections`."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        config = YolosConfig(
            hidden_size=64,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=128,
            image_size=[HEIGHT, WIDTH],
            num_detection_tokens=QUERIES,
            num_labels=91,
            initializer_range=0.2,
        )
        self.yolos = YolosForObjectDetection(config)
        # Zeros as they are made, which would give every query the same answer.
        nn.init.normal_(self.yolos.vit.embeddings.detection_tokens)
        self.detections = Detections()

    def forward(self, image: Tensor) -> Tensor:
        answer = self.yolos(pixel_values=image)
        return self.detections(answer.logits[0], answer.pred_boxes[0])


def photograph() -> Tensor:
    """Return a photograph that scikit-learn ships, as YOLOS takes it: float32 (1, 3, 128, 192)."""
    pixels = torch.from_numpy(load_sample_image("china.jpg").copy())
    image = pixels.permute(2, 0, 1)[None] / 255
    image = nn.functional.interpolate(image, (HEIGHT, WIDTH), mode="area")
    mean = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
    deviation = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
    return (image - mean) / deviation


def compiled(model: nn.Module, image: Tensor, routing: str) -> GraphModule:
    """Compile with TensorRT, all but what would need an output allocator."""
    return torch_tensorrt.compile(
        model,
        ir="dynamo",
        arg_inputs=[image],
        target_executorch=True,
        executorch_allocator_routing=routing,
        disable_tf32=True,  # full float32: the results are compared with eager PyTorch's
    )


def lowered(module: GraphModule, image: Tensor) -> EdgeProgramManager:
    """Give the engines to ExecuTorch's TensorRT backend, and what is left to the partner."""
    return torch_tensorrt.executorch.export(
        module,
        arg_inputs=[image],
        partitioners=[partner()],
    )


def partner() -> Partitioner:
    """Return the CUDA backend's partitioner where it can compile, and XNNPACK's elsewhere."""
    if not (find_spec("triton") and shutil.which("g++")):
        return xnnpack()
    from executorch.backends.cuda.cuda_backend import CudaBackend
    from executorch.backends.cuda.cuda_partitioner import CudaPartitioner

    return CudaPartitioner([CudaBackend.generate_method_name_compile_spec("forward")])


def xnnpack() -> Partitioner:
    """Return XNNPACK's partitioner, whose delegates run in ExecuTorch's own runtime here."""
    from executorch.backends.xnnpack.partition import xnnpack_partitioner

    return xnnpack_partitioner.XnnpackPartitioner()


def write(edge: EdgeProgramManager, output: Path) -> list[Path]:
    """Write the ``.pte``, whole or not at all; return the weight files that are beside it."""
    program = edge.to_executorch()
    with staged(output) as folder:
        write_program(program, folder / output.name)
        return [output.parent / file.name for file in folder.glob("*.ptd")]


def run_in_executorch(module: Detections, logits: Tensor, boxes: Tensor) -> Tensor:
    """Run what comes after YOLOS in ExecuTorch's own runtime, by XNNPACK and CPU kernels."""
    from executorch.runtime import Runtime

    edge = torch_tensorrt.executorch.export(
        torch.export.export(module, (logits, boxes)),
        partitioners=[xnnpack()],
        allow_no_engine=True,
    )
    program = Runtime.get().load_program(edge.to_executorch().buffer)
    (rows,) = program.load_method("forward").execute([logits, boxes])
    return rows


def largest_difference(rows: Tensor, expected: Tensor) -> float:
    """Return the largest absolute difference; infinity if not as many were found."""
    if rows.shape != expected.shape or rows.dtype != expected.dtype:
        return float("inf")
    difference = (rows.cpu() - expected.cpu()).abs()
    return difference.amax().item() if len(rows) else 0.0


def demonstrate(output: Path, routing: str, report: Report) -> None:
    """Compile with both routings, write the program of one, run it, and compare with eager."""
    emulate = report.emulated
    with report.step("Run the model in eager PyTorch"), torch.no_grad():
        model, image = Detector().eval().to(DEVICE), photograph().to(DEVICE)
        answer = model.yolos(pixel_values=image)
        expected = model(image)

    def compare(what: str, rows: Tensor) -> None:
        report.differences[what] = largest_difference(rows, expected)

    edges = {}
    for way in ROUTINGS:
        emulation = emulated_engines() if emulate else nullcontext()
        with report.step(f"Compile with TensorRT, routing by {way}"), emulation:
            module = compiled(model, image, way)
        with report.step("Lower to ExecuTorch"):
            edges[way] = lowered(module, image)
        report.operators(way, edges[way])

    if (
        not can_run_engines()
    ):  # a real engine's Python form isn't executable where it runs
        with report.step("Run the edge program in Python"):
            compare("edge program", edges[routing].exported_program().module()(image))
    with report.step(f"Write {output}"):
        data = write(edges[routing], output)
    with report.step("Run the .pte"):
        program = runtime.load(output, data, emulated_engines=emulate)
        compare(".pte", *program.run(image))
    with report.step("Run the .pte on simulated devices"):
        simulated = runtime.load(
            output, data, emulated_engines=emulate, simulate_devices=True
        )
        (rows,) = simulated.run(image)
        if (
            not simulated.stats().not_run
        ):  # a delegate that can't run here is stood in for
            compare(".pte, simulated devices", rows)
    if DEVICE.type == "cpu":
        with report.step("Run what comes after YOLOS in ExecuTorch's own runtime"):
            after_yolos = (answer.logits[0], answer.pred_boxes[0])
            rows = run_in_executorch(model.detections, *after_yolos)
            compare("after YOLOS, in ExecuTorch", rows)
    report.show(output, program.stats(), simulated.stats(), found=len(expected))


def main(
    output: Annotated[Path, typer.Option(help="Where the .pte goes.")] = Path(
        "detector.pte"
    ),
    routing: Annotated[
        str, typer.Option(help="What the .pte is routed by: target or node.")
    ] = "target",
) -> None:
    """Compile, stack, save and run a detector, and compare it with eager PyTorch."""
    if routing not in ROUTINGS:
        raise typer.BadParameter(f"{routing} is none of {', '.join(ROUTINGS)}")
    try:
        check_writable(output)
    except OSError as error:
        raise typer.BadParameter(str(error)) from None
    report = Report(emulated=emulation_enabled() or not can_build_engines())
    demonstrate(output, routing, report)
    if not all(largest <= TOLERANCE for largest in report.differences.values()):
        print(f"It differs from eager PyTorch by more than {TOLERANCE:g}.")
        raise typer.Exit(1)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    typer.run(main)
