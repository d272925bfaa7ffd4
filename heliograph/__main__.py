"""`python -m heliograph` is the `heliograph` command."""

from heliograph.cli import main

if __name__ == "__main__":
    main()
