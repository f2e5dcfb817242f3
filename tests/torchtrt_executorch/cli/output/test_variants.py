"""The files of an export for several lists of backends and targets."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchtrt_executorch.cli.output.variants import parse_form, variants

OUT = Path("models/model.pte")
ORIN, X86 = "linux-aarch64:sm_87:16GiB", "sm_80:16GiB,sm_90:80GiB"


def test_one_is_written_where_it_was_asked_for() -> None:
    (one,) = variants([("cuda", None)], [], OUT)
    (other,) = variants([("cuda", "cuda")], [ORIN], OUT)
    assert (one.out, one.target) == (OUT, None)
    assert (other.out, other.target) == (OUT, ORIN)


def test_several_have_a_folder_each() -> None:
    forms = [("tensorrt", "cuda"), ("xnnpack", None), ("tensorrt", "cuda")]
    found = {str(each.out): each.target for each in variants(forms, [ORIN, X86], OUT)}
    assert found == {
        "models/tensorrt+cuda/linux-aarch64_sm_87_16GiB/model.pte": ORIN,
        "models/tensorrt+cuda/sm_80_16GiB_sm_90_80GiB/model.pte": X86,
        "models/xnnpack/model.pte": None,
    }


def test_forms_are_one_backend_or_two() -> None:
    names = ["cuda", "tensorrt"]
    assert parse_form("cuda", names) == ("cuda", None)
    assert parse_form("tensorrt+cuda", names) == ("tensorrt", "cuda")
    for text in ("", "cuda+", "xnnpack", "cuda+cuda+cuda", "cuda,tensorrt"):
        with pytest.raises(ValueError, match="no backend such as cuda"):
            parse_form(text, names)
