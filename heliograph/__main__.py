"""`heliograph`, and `python -m heliograph`: the command.

Loading it takes up to a second; until then, Ctrl-C exits without a traceback, since nothing has started yet.
"""

try:
    from heliograph.cli import main
except KeyboardInterrupt:
    raise SystemExit(130) from None

if __name__ == "__main__":
    main()
