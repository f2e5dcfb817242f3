"""Maps the patch files from their upstream paths into this distribution's own package."""

from setuptools import find_packages, setup

PATCHES = "torchtrt_executorch.patches"
ROOTS = {
    f"{PATCHES}.torch_tensorrt": "py/torch_tensorrt",
    f"{PATCHES}.executorch.backends": "backends",
    f"{PATCHES}.executorch.exir": "exir",
}

packages = find_packages(include=["torchtrt_executorch", "torchtrt_executorch.*"])
for package, folder in ROOTS.items():
    packages += [package, *(f"{package}.{name}" for name in find_packages(folder))]

setup(packages=packages, package_dir=ROOTS)
