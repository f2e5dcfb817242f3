"""``python -m torchtrt_executorch.cli``: the command, by the interpreter that runs it."""

from torchtrt_executorch.cli import app

if __name__ == "__main__":
    app(prog_name="torchtrt-executorch")
