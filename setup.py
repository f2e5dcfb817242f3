"""Maps the patch files from their upstream paths into this distribution's own package.

``REPOSITORY`` in the environment is the project's address, without which README's links to its other
files lead nowhere on PyPI; ``make dist`` sets it.
"""

import os
import re
from pathlib import Path

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

readme = Path("README.md").read_text(encoding="utf-8")
urls = {}
if repository := os.environ.get("REPOSITORY", "").rstrip("/"):
    files = f"{repository}/blob/main/"
    # An image is loaded from where its bytes are, a page from where it is shown.
    raw = f"{repository}/raw/main/"
    readme = re.sub(r"(!\[[^\]]*\]\()(?!\w+:)", rf"\g<1>{raw}", readme)
    readme = re.sub(r"\]\((?!\w+:|#)", f"]({files}", readme)
    urls = {
        "Source": repository,
        "Documentation": f"{repository}/tree/main/docs",
        "Changelog": f"{files}CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }

setup(
    packages=packages,
    package_dir=ROOTS,
    long_description=readme,
    long_description_content_type="text/markdown",
    project_urls=urls,
)
