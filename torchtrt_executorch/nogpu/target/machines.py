"""Named target machines, as GPU descriptions."""

from __future__ import annotations

#: Name, and operating system, processor, GPU and memory. Memory that a processor shares is the whole.
DEVICES = (
    ("Jetson Orin Nano 8GB", "linux-aarch64:sm_87:8GiB"),
    ("Jetson Orin NX 16GB", "linux-aarch64:sm_87:16GiB"),
    ("Jetson AGX Orin 64GB", "linux-aarch64:sm_87:64GiB"),
    ("Jetson AGX Thor", "linux-aarch64:sm_110:128GiB"),
    ("DGX Spark", "linux-aarch64:sm_121:128GiB"),
    ("GH200, Grace with H100", "linux-aarch64:sm_90:96GiB"),
    ("GB200, Grace with B200", "linux-aarch64:sm_100:184GiB"),
    ("T4", "linux-x86_64:sm_75:16GiB"),
    ("A100", "linux-x86_64:sm_80:40GiB"),
    ("RTX 30 (3060), A10", "linux-x86_64:sm_86:12GiB"),
    ("RTX 40 (4060), L4", "linux-x86_64:sm_89:8GiB"),
    ("H100", "linux-x86_64:sm_90:80GiB"),
    ("H200", "linux-x86_64:sm_90:141GiB"),
    ("B200", "linux-x86_64:sm_100:180GiB"),
    ("RTX 50 (5060)", "linux-x86_64:sm_120:8GiB"),
    (
        "RTX 30, 40 and 50 on Windows",
        "windows-x86_64:sm_86:8GiB,sm_89:8GiB,sm_120:8GiB",
    ),
)
