"""`heliograph`, and `python -m heliograph`: the command.

Loading it takes up to a second. Ctrl-C ends it meanwhile without a traceback, as nothing has begun.
"""

try:
    from heliograph.cli import main
except KeyboardInterrupt:
    raise SystemExit(130) from None

if __name__ == "__main__":
    main()
