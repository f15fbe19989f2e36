"""Runs one part, in the process that `bench.gpu.check` starts for it."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path

from bench.gpu.parts import Part, part_named
from bench.gpu.places import report_file
from bench.gpu.results import FAILED, OK, Report, error_text
from bench.gpu.setting import Setting


def run(part: Part, setting: Setting) -> int:
    """Runs a part; its report says how it ended. 1 where it failed."""
    setting.report.save("")
    try:
        module, function = part.run.split(":")
        getattr(import_module(f"bench.gpu.{module}"), function)(setting, *part.names)
    except BaseException as error:
        setting.report.save(FAILED, error_text(error))
        return 1
    setting.report.save(OK)
    return 0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.part", description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--artifacts", type=Path, required=True)
    args = parser.parse_args(argv)
    report = Report(report_file(args.work, args.name))
    return run(part_named(args.name), Setting(args.work, args.artifacts, report))


if __name__ == "__main__":
    sys.exit(main())
