"""The entry point of `klamm` and of `python -m klamm`. It imports little itself, so that Ctrl-C during the imports of
a command ends it without a traceback.
"""

from klamm.processes.tool_errors import EXIT_INTERRUPTED


def main() -> None:
    try:
        from klamm.cli.main import main as run
    except KeyboardInterrupt:
        raise SystemExit(EXIT_INTERRUPTED) from None
    run()


if __name__ == "__main__":
    main()
